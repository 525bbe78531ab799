"""Verbs that take an operator: a command for each operator that there is, its options made from the operator's
class."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast

import typer
from typer.core import TyperGroup

from dovetail.cli.options import nearest, one_of
from dovetail.core import OperatorError

if TYPE_CHECKING:
    from dovetail.ir import Operator, Option
    from dovetail.machine import Machine

HELP = {"help_option_names": ["-h", "--help"]}
Context = Any  # click's, or typer's own, as typer's version has it


class OperatorRequest(NamedTuple):
    """An operator on the command line: its class, the options given, and the limits on its schedules."""

    kind: type[Operator]
    given: Mapping[str, Any]
    limits: Mapping[str, Any]

    @property
    def missing(self) -> list[str]:
        """Flags of the options that the operator needs and that were not given."""
        return [flag(o.name) for o in of(self.kind, "operator") if o.needed and self.given[o.name] is None]

    @property
    def is_bare(self) -> bool:
        """Whether the operator needs options and none of them was given."""
        needed = [o for o in of(self.kind, "operator") if o.needed]
        return bool(needed) and len(self.missing) == len(needed)

    def operator(self, machine: Machine | None = None) -> Operator:
        """The operator. Options not given come from the machine's facts, else from the operator's defaults."""
        if self.kind.by_size:
            raise _by_size(self.kind.name)
        if self.missing:
            words = "".join(f" {flag(o.name)} …" for o in of(self.kind, "operator") if o.needed)
            raise OperatorError(f"{self.kind.name} needs {listed(self.missing)}", hint=f"{self.kind.name}{words}")
        facts = machine.facts if machine else {}
        found = {name: facts.get(name) if value is None else value for name, value in self.given.items()}
        return self.kind.points(**found)[0]


def _by_size(name: str) -> OperatorError:
    return OperatorError(f"{name} is chosen at several sizes, by measurement", hint=f"dovetail tune {name}")


def of(kind: type[Operator], whose: str) -> list[Option]:
    """The options of the operator, or of its schedules."""
    return [option for option in kind.options if option.of == whose]


def summary_of(kind: type[Operator]) -> str:
    """The first paragraph of an operator class's docstring."""
    return " ".join((inspect.getdoc(kind) or kind.name).split("\n\n")[0].split())


def flag(name: str) -> str:
    """An option's name on the command line."""
    return f"--{name.replace('_', '-')}"


def listed(words: list[str]) -> str:
    """Words in a sentence.

    >>> listed(["--m", "--k", "--n"]), listed(["--m"])
    ('--m, --k and --n', '--m')
    """
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def words_of(operator: Operator) -> list[str]:
    """The operator as on a command line: its name, and options that are not as usual.

    >>> from dovetail.matmul import AllGatherMatmul
    >>> words_of(AllGatherMatmul(8, 4, 4, gathered=True))
    ['all_gather_matmul', '--m', '8', '--k', '4', '--n', '4', '--dtype', 'float32', '--gathered']
    """
    return [
        operator.name,
        *chain.from_iterable(_words(o, operator.to_json().get(o.name)) for o in of(type(operator), "operator")),
    ]


def _words(option: Option, value: Any) -> list[str]:
    """An option as on a command line; nothing where its value is the usual one."""
    if value is None or value == option.default:
        return []
    return [flag(option.name)] if value is True else [flag(option.name), str(value)]


@dataclass(frozen=True)
class Verb:
    """A verb for any operator: `run` takes the operator's request, then the verb's own options.

    `limits`: whether the verb takes options of schedules. `balances`: whether it finds sizes if none are given.
    `alone`: name of the command without an operator, if there is one. `of_subjects`: called in place of `run` for a
    subject (see `ir.Subject`), if the verb takes subjects.
    """

    run: Callable[..., Any]
    limits: bool = False
    balances: bool = False
    alone: str | None = None
    compares: bool = False  # whether it has scenarios of its own if no sizes are given
    of_subjects: Callable[..., Any] | None = None

    @property
    def name(self) -> str:
        return self.run.__name__

    def names(self) -> list[str]:
        """Every operator by name."""
        from dovetail.ir.registry import OPERATORS, operator_class

        known = [name for name in OPERATORS.usable if self.balances or not operator_class(name).by_size]
        return [*([self.alone] if self.alone else []), *self.subjects(), *known]

    def subjects(self) -> list[str]:
        """Everything that it takes by itself."""
        from dovetail.ir.registry import SUBJECTS

        return list(SUBJECTS) if self.of_subjects else []

    def kind_of(self, name: str) -> type[Operator] | None:
        """The class of an operator or subject, None without; an OperatorError that offers the nearest where there is
        none."""
        from dovetail.ir.registry import OPERATORS, SUBJECTS, is_in_file, operator_class

        if name == self.alone:
            return None
        if name in self.subjects():
            return cast("type[Operator]", SUBJECTS[name])  # only what operators and subjects share is used
        if name in OPERATORS and name not in self.names():
            operator_class(name)  # raises, with the reason, if it cannot be loaded
            raise _by_size(name)
        return operator_class(
            name if is_in_file(name) or name.endswith(".py") else nearest(name, self.names(), "operator")
        )

    def run_of(self, name: str) -> Callable[..., Any]:
        """What runs for an operator or subject."""
        return self.of_subjects if self.of_subjects and name in self.subjects() else self.run

    def group(self) -> typer.Typer:
        """The verb as a group of commands, one for each operator, each made when it is asked for."""
        made = type("ByOperator", (ByOperator,), {"verb": self})
        help_text = inspect.getdoc(self.run)
        bare = not self.alone  # then an operator is required
        return typer.Typer(
            cls=made,
            help=help_text,
            epilog=f"dovetail {self.name} OPERATOR --help lists the options of an operator.",
            context_settings=HELP,
            no_args_is_help=bare,
            subcommand_metavar="OPERATOR [OPTIONS]",
        )

    def command(self, name: str) -> Any:
        """The command for one operator; an OperatorError that offers the nearest where there is none."""
        kind, verb = self.kind_of(name), self.run_of(name)
        own = list(inspect.signature(verb, eval_str=True).parameters.values())[1:]
        options = self.options(kind)

        def run(**values: Any) -> Any:
            given = {option.name: values.pop(option.name) for option in options}
            limits = {option.name: given.pop(option.name) for option in options if option.of == "schedules"}
            return verb(OperatorRequest(kind, given, limits) if kind else None, **values)

        needed = [_parameter(o, kind is not None and self._needs(kind, o)) for o in options]
        named = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own]
        run.__signature__ = inspect.Signature([*needed, *named])  # type: ignore[attr-defined]
        about = summary_of(kind) if kind else "Links between ranks only, without an operator."
        run.__annotations__, run.__doc__ = {}, f"{about}\n\n{inspect.getdoc(verb)}"
        return command_of(run, name, about)

    def options(self, kind: type[Operator] | None) -> list[Option]:
        """Options of an operator that this verb takes."""
        from dovetail.ir import Option

        if kind is None:
            return []
        asked = of(kind, "schedules") if self.limits else []
        if self.limits and not kind.by_size:
            family = Option("schedule", str, "Family to keep to.", "auto", ("auto", *kind.families), of="schedules")
            asked = [family, *asked]
        return [*of(kind, "operator"), *asked]

    def _needs(self, kind: type[Operator], option: Option) -> bool:
        from dovetail.ir.abilities import BalancedSizes

        return option.needed and not (self.balances and issubclass(kind, BalancedSizes)) and not self.compares


def command_of(run: Callable[..., Any], name: str, about: str | None = None) -> Any:
    """A typer command made of a function, outside a group; `about`: its line in lists of commands."""
    app = typer.Typer(add_completion=False, context_settings=HELP)
    app.command(name, short_help=about)(run)
    made = typer.main.get_command(app)
    made.name = name
    return made


class ByOperator(TyperGroup):
    """The commands of a verb, by operator; options may stand before the operator, too."""

    verb: Verb

    def list_commands(self, ctx: Context) -> list[str]:
        return self.verb.names()

    def get_command(self, ctx: Context, cmd_name: str) -> Any:
        if cmd_name not in self.commands:
            self.commands[cmd_name] = self.verb.command(cmd_name)
        return self.commands[cmd_name]

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, operator_first(args, self.verb.names(), self.verb.alone))


def operator_first(words: list[str], operators: list[str], alone: str | None = None) -> list[str]:
    """Words of a command line, the operator first; `alone` where none of them is one.

    >>> operator_first(["--ranks", "2", "all_reduce"], ["all_reduce"]), operator_first(["--ranks", "2"], [], "links")
    (['all_reduce', '--ranks', '2'], ['links', '--ranks', '2'])
    """
    if words and (not words[0].startswith("-") or set(words) & set(HELP["help_option_names"])):
        return words
    at = next((place for place, word in enumerate(words) if word in operators), None)
    if at is None:
        return [alone, *words] if alone else words
    return [words[at], *words[:at], *words[at + 1 :]]


def _parameter(option: Option, needed: bool) -> inspect.Parameter:
    """An option as typer takes it."""
    fields: dict[str, Any] = {"help": option.help}
    if option.choices:
        fields["help"] += f" One of {', '.join(option.choices)}."
        fields["callback"] = one_of(option.choices, "--by" if option.name == "by" else option.name.replace("_", " "))
    if option.least is not None:
        fields["min"] = option.least
    declared = typer.Option(flag(option.name), **fields)
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if needed else option.default,
        annotation=Annotated[option.type if needed else option.type | None, declared],
    )
