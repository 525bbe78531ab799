"""operators: verbs that take an operator: one command per operator, with options made from the operator's class."""

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
Context = Any  # a class of click or of typer, depending on typer's version


class OperatorRequest(NamedTuple):
    """An operator on the command line: its class, the options given, and the limits on its schedules."""

    kind: type[Operator]
    given: Mapping[str, Any]
    limits: Mapping[str, Any]

    @property
    def missing(self) -> list[str]:
        """Return the flags of required options that were not given."""
        return [flag(o.name) for o in of(self.kind, "operator") if o.needed and self.given[o.name] is None]

    @property
    def is_bare(self) -> bool:
        """Return whether the operator has required options, and none of them was given."""
        needed = [o for o in of(self.kind, "operator") if o.needed]
        return bool(needed) and len(self.missing) == len(needed)

    def operator(self, machine: Machine | None = None) -> Operator:
        """Return the operator. Options not given come from the machine's facts, else from the operator's defaults.

        Raises OperatorError if a required option is missing, or if the operator is tuned by size only.
        """
        if self.kind.by_size:
            raise _by_size(self.kind.name)
        if self.missing:
            words = "".join(f" {flag(o.name)} …" for o in of(self.kind, "operator") if o.needed)
            raise OperatorError(f"{self.kind.name} needs {listed(self.missing)}", hint=f"{self.kind.name}{words}")
        facts = machine.facts if machine else {}
        found = {name: facts.get(name) if value is None else value for name, value in self.given.items()}
        return self.kind.points(**found)[0]


def _by_size(name: str) -> OperatorError:
    return OperatorError(
        f"{name} has no single plan: it is tuned at several sizes", hint=f"dovetail tune {name} --ranks 2"
    )


def of(kind: type[Operator], whose: str) -> list[Option]:
    """Return the options of an operator's class (`whose` is "operator"), or of its schedules ("schedules")."""
    return [option for option in kind.options if option.of == whose]


def summary_of(kind: type[Operator]) -> str:
    """Return the first paragraph of an operator class's docstring."""
    return " ".join((inspect.getdoc(kind) or kind.name).split("\n\n")[0].split())


def flag(name: str) -> str:
    """Return an option's flag on the command line."""
    return f"--{name.replace('_', '-')}"


def listed(words: list[str]) -> str:
    """Join words for a sentence.

    >>> listed(["--m", "--k", "--n"]), listed(["--m"])
    ('--m, --k and --n', '--m')
    """
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def words_of(operator: Operator) -> list[str]:
    """Return the operator as on a command line: its name, and the options that differ from their defaults.

    >>> from dovetail.matmul import AllGatherMatmul
    >>> words_of(AllGatherMatmul(8, 4, 4, gathered=True))
    ['all_gather_matmul', '--m', '8', '--k', '4', '--n', '4', '--dtype', 'float32', '--gathered']
    """
    return [
        operator.name,
        *chain.from_iterable(_words(o, operator.to_json().get(o.name)) for o in of(type(operator), "operator")),
    ]


def _words(option: Option, value: Any) -> list[str]:
    """Return an option as on a command line; nothing if its value is the default."""
    if value is None or value == option.default:
        return []
    return [flag(option.name)] if value is True else [flag(option.name), str(value)]


@dataclass(frozen=True)
class Verb:
    """A verb that takes an operator.

    Attributes
    ----------
    run : callable
        Takes the operator's request, then the verb's own options.
    limits : bool
        The verb takes options of schedules.
    balances : bool
        The verb finds sizes itself if none are given.
    alone : str, optional
        Name of the command without an operator, if there is one.
    by_size : bool
        The verb takes operators that have a schedule for each size (collectives).
    compares : bool
        The verb has its own scenarios if no sizes are given.
    of_subjects : callable, optional
        Called in place of `run` for a subject (see `ir.Subject`), if the verb takes subjects.
    """

    run: Callable[..., Any]
    limits: bool = False
    balances: bool = False
    alone: str | None = None
    by_size: bool = False
    compares: bool = False
    of_subjects: Callable[..., Any] | None = None

    @property
    def name(self) -> str:
        return self.run.__name__

    def names(self) -> list[str]:
        """Return the names of all commands: the one without an operator, the subjects, the operators."""
        from dovetail.ir.registry import OPERATORS, operator_class

        known = [name for name in OPERATORS.usable if self.by_size or not operator_class(name).by_size]
        return [*([self.alone] if self.alone else []), *self.subjects(), *known]

    def subjects(self) -> list[str]:
        """Return the names of the subjects that the verb takes."""
        from dovetail.ir.registry import SUBJECTS

        return list(SUBJECTS) if self.of_subjects else []

    def kind_of(self, name: str) -> type[Operator] | None:
        """Return the class of an operator or subject; None for the command without an operator.

        Raises OperatorError, offering the nearest name, for an unknown name.
        """
        from dovetail.ir.registry import OPERATORS, SUBJECTS, is_in_file, operator_class

        if name == self.alone:
            return None
        if name in self.subjects():
            return cast("type[Operator]", SUBJECTS[name])  # only members that operators and subjects share are used
        if name in OPERATORS and name not in self.names():
            operator_class(name)  # raises, with the reason, if it cannot be loaded
            raise _by_size(name)
        return operator_class(
            name if is_in_file(name) or name.endswith(".py") else nearest(name, self.names(), "operator")
        )

    def run_of(self, name: str) -> Callable[..., Any]:
        """Return the function that runs for an operator or subject."""
        return self.of_subjects if self.of_subjects and name in self.subjects() else self.run

    def group(self) -> typer.Typer:
        """Return the verb as a group of commands, one per operator. A command is made on first access."""
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
        """Return the command for one operator. Raise OperatorError, offering the nearest, for an unknown name."""
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
        """Return the options of an operator that this verb takes."""
        from dovetail.ir import Option

        if kind is None:
            return []
        asked = of(kind, "schedules") if self.limits else []
        if self.limits and not kind.by_size:
            text = "Use schedules of this family only."
            family = Option("schedule", str, text, "auto", ("auto", *kind.families), of="schedules")
            asked = [family, *asked]
        return [*of(kind, "operator"), *asked]

    def _needs(self, kind: type[Operator], option: Option) -> bool:
        from dovetail.ir.abilities import BalancedSizes

        return option.needed and not (self.balances and issubclass(kind, BalancedSizes)) and not self.compares


def command_of(run: Callable[..., Any], name: str, about: str | None = None) -> Any:
    """Return a function as a command that belongs to no group; `about`: its line in lists of commands."""
    app = typer.Typer(add_completion=False, context_settings=HELP)
    app.command(name, short_help=about)(run)
    made = typer.main.get_command(app)
    made.name = name
    return made


class ByOperator(TyperGroup):
    """The commands of a verb, by operator. Options may also stand before the operator."""

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
    """Return the words of a command line with the operator first; if none of them is an operator, with `alone` first.

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
    """Return an option as the parameter of a function that typer reads."""
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
