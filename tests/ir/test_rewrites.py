"""Passes as methods of a Program."""

import inspect

import pytest

from dovetail import passes
from dovetail.collective import build, family
from dovetail.core import ProgramError
from dovetail.ir import parse, verify
from dovetail.ir.rewrites import Rewrites
from dovetail.matmul import MatmulAllReduce

SUM = parse("""
program sum ranks 2
buffer x input 4
buffer y output 4
lane net net
collective all_reduce 0 1
post 0 1 y[0:4] = x@0[0:4] + x@1[0:4]
rank 0 lane net
  collective all_reduce x[0:4] -> y[0:4] group 0 1
rank 1 lane net
  collective all_reduce x[0:4] -> y[0:4] group 0 1
""")
GIVE = parse("""
program give ranks 2
buffer x input 1
buffer y output 1
lane net net
channel 0->1 0 depth 8
post 1 y[0:1] = x@0[0:1]
rank 0 lane net
  put x[0:1] -> y[0:1] to 1
  signal to 1
rank 1 lane net
  wait from 0
""")


def parameters_of(function):
    return [(each.name, each.default) for each in inspect.signature(function).parameters.values()][1:]


def test_every_pass_that_only_needs_a_program_is_a_method():
    """A pass from Program to Program that needs no traced algorithm is a method, with the same parameters."""
    functions = {name: getattr(passes, name) for name in passes.__all__ if inspect.isfunction(getattr(passes, name))}
    returns = {name: inspect.signature(each).return_annotation for name, each in functions.items()}
    wanted = {
        name
        for name, kind in returns.items()
        if kind == "Program" and "hints" not in inspect.signature(functions[name]).parameters
    }
    methods = {name: each for name, each in vars(Rewrites).items() if not name.startswith("_")}
    assert {*methods} == wanted
    assert {name: parameters_of(each) for name, each in methods.items()} == {
        name: parameters_of(functions[name]) for name in methods
    }


def test_a_method_passes_its_program_and_arguments_to_its_function(monkeypatch):
    for name, each in vars(Rewrites).items():
        if not name.startswith("_"):
            monkeypatch.setattr(passes, name, lambda *given, name=name: (name, *given))
            given = [object() for _ in parameters_of(each)]
            assert getattr(SUM, name)(*given) == (name, SUM, *given)


def test_programs_that_methods_return_are_proved():
    ring = build("ring_all_reduce", 2)
    ours = SUM.inline_collectives(family("exchange"))
    assert not len(ours.collectives)
    for found in (ours, ring.split_slots(4).slice_messages(2), GIVE.two_sided()):
        assert verify(found).ok


def test_methods_can_be_chained_and_raise_the_errors_of_their_functions():
    ring = build("ring_all_reduce", 2)
    assert ring.split_slots(4).slice_messages(2).num_ops > ring.num_ops
    with pytest.raises(ProgramError, match="computes"):
        MatmulAllReduce(2, 2, 2).program(MatmulAllReduce(2, 2, 2).serial(2), 2).split_slots(2)
    with pytest.raises(AttributeError, match="no attribute 'slice_message'"):
        ring.slice_message(2)
