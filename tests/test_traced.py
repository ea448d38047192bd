"""Numbers that kernels read at run time: what they compute, and what a text is noted to depend on."""

from __future__ import annotations

import operator
import random

import pytest

from clnn.traced import Trace, compiled, divides, is_one, is_traced, room, today

OPERATIONS = (
    operator.add,
    operator.sub,
    operator.mul,
    operator.floordiv,
    operator.mod,
)
COMPARISONS = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)


def random_expression(draw, leaves, depth):
    """A function of a list of numbers, made of the operations that templates use."""
    if depth == 0 or draw.random() < 0.2:
        if draw.random() < 0.3:
            constant = draw.choice((0, 1, 2, 3, 7, 16))
            return lambda numbers: constant
        which = draw.randrange(leaves)
        return lambda numbers: numbers[which]
    compute = draw.choice(OPERATIONS)
    left = random_expression(draw, leaves, depth - 1)
    right = random_expression(draw, leaves, depth - 1)
    if compute in (operator.floordiv, operator.mod):
        divisor = draw.choice((1, 2, 3, 8))
        return lambda numbers: compute(left(numbers), divisor)
    return lambda numbers: compute(left(numbers), right(numbers))


@pytest.mark.parametrize("seed", range(200))
def test_expressions_follow_their_numbers(seed):
    """The expression of a result, at other numbers, is what the computation gives for these."""
    draw = random.Random(seed)
    first = [draw.randrange(1, 500) for _ in range(3)]
    other = [draw.randrange(1, 500) for _ in range(3)]
    compute = random_expression(draw, 3, 4)
    trace = Trace()
    result = compute([trace.number(k, value) for k, value in enumerate(first)])
    text = result.text if is_traced(result) else repr(result)
    assert today(result) == compute(first)
    assert compiled(3, [text])(*other) == (compute(other),)
    assert not trace.guards


@pytest.mark.parametrize("seed", range(100))
def test_guards_hold_where_decisions_are_the_same(seed):
    draw = random.Random(seed)
    first, other = ([draw.randrange(1, 12) for _ in range(2)] for _ in range(2))
    compare = draw.choice(COMPARISONS)
    constant = draw.choice((None, draw.randrange(1, 12)))

    def decide(numbers):
        right = numbers[1] if constant is None else constant
        return compare(numbers[0], right)

    trace = Trace()
    decided = decide([trace.number(k, value) for k, value in enumerate(first)])
    assert decided is decide(first)
    held = all(compiled(2, list(trace.guards))(*other))
    assert held == (decide(other) == decided)


@pytest.mark.parametrize("use", [int, range, bool, lambda n: [0] * n, lambda n: max(n, 4), float])
def test_what_takes_the_value_is_noted(use):
    trace = Trace()
    use(trace.number(0, 5))
    holds = compiled(1, list(trace.guards))
    assert trace.guards and all(holds(5))
    assert not all(holds(0))


def test_what_a_text_may_not_depend_on_is_not_noted():
    trace = Trace()
    number = trace.number(0, 12)
    assert not divides(4, number) and divides(4, 12) and not divides(5, 12)
    assert not is_one(trace.number(1, 1)) and is_one(1)
    assert today(number) == 12 and is_traced(number)
    assert not trace.guards


def test_arrays_have_room_for_the_most_there_may_be():
    trace = Trace()
    assert room(trace.number(0, 100), 4096) == 4096 and room(100, 4096) == 100
    holds = compiled(1, list(trace.guards))
    assert all(holds(4096)) and not all(holds(4097))
    with pytest.raises(ValueError, match="4096"):
        room(trace.number(0, 5000), 4096)


def test_arguments_are_named_once():
    trace = Trace()
    number = trace.number(0, 7)
    assert f"{number} + {number * 2}" == "x0_ + x1_"
    assert f"{number}" == "x0_" and str(trace.number(2, 0.5)) == "x2_"
    assert list(trace.arguments.values()) == [("x0_", "int"), ("x1_", "int"), ("x2_", "float")]
