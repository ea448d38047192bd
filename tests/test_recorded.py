"""What is built from notes of a computation is what the computation itself returns."""

from __future__ import annotations

import random
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest

from clnn.recorded import Recorded, Tape, integer, larger
from clnn.replays import MOST_RECORDINGS, MOST_WAYS, Replays, behind_calls


@dataclass(frozen=True)
class Pair:
    a: tuple[int, ...]
    b: object = None


def counted(function):
    """The function, and its calls with plain numbers and with numbers whose uses are noted."""
    calls = {"plain": 0, "noted": 0}

    def call(numbers):
        calls["noted" if any(type(n) is Recorded for n in numbers) else "plain"] += 1
        return function(*numbers)

    return call, calls


def arithmetic(a, b):
    rows = {"x": [a + b, a - b, 3 * b, -a], "y": Pair((a // (b + 1), a % 7, 0 * a), "same")}
    if a > b:
        rows["z"] = larger(0, a - 2 * b), abs(b - a)
    return rows, max(a, b), isinstance(a, int), sum((a, b)), divmod(a, 5)


@pytest.mark.parametrize("seed", range(5))
def test_results_are_those_of_the_function(seed):
    rng = random.Random(seed)
    make, calls = counted(arithmetic)
    replays = Replays(make)
    for _ in range(60):
        numbers = rng.randrange(20), rng.randrange(20)
        assert replays(numbers) == arithmetic(*numbers)
    assert calls["noted"]


def test_a_way_is_noted_once():
    make, calls = counted(lambda a, b: (a * b, "large" if a > b else "small"))
    replays = Replays(make)
    for a in range(2, 40):
        for b in range(2, 40):
            assert replays((a, b)) == (a * b, "large" if a > b else "small")
    assert calls == {"plain": 0, "noted": 2}


# What is done to a number in these ways is not a computation that is noted.
UNNOTED = {
    "range": lambda n: [*range(n)],
    "repeated": lambda n: (1,) * n,
    "item": lambda n: "abcdefghijklmnopqrstuvwxyz"[n],
    "text": str,
    "form": lambda n: f"{n:03d} {n!r} {n}",
    "array": lambda n: np.array([n, 2]).tolist(),
    "array of type": lambda n: np.asarray((n, n), np.int32).dtype.name,
    "zeros": lambda n: np.zeros(n).shape,
    "numpy": lambda n: np.int64(3) * n,
    "array times": lambda n: (np.arange(3) * n).tolist(),
    "true division": lambda n: n / 4,
    "power": lambda n: n**2,
    "shift": lambda n: 1 << n,
    "bits": lambda n: n.bit_length(),
    "and": lambda n: n & 3,
    "set": lambda n: n in {3, 5, 8},
    "table": lambda n: {3: "a", 5: "b"}.get(n, "c"),
    "float": float,
    "int": int,
    "equal to a float": lambda n: n == 7.0,
    "round": round,
}


@pytest.mark.parametrize("what", UNNOTED)
def test_what_is_not_noted_is_not_used_for_other_numbers(what):
    function = UNNOTED[what]
    replays = Replays(lambda numbers: [function(numbers[0])])
    for n in (7, 3, 5, 12, 7, 8, 1, 3):
        found = replays((n,))
        assert found == [function(n)]
        assert [*map(type, found)] == [type(function(n))]


def test_objects_are_built_anew_where_they_hold_numbers():
    shared = Pair((1, 2))
    replays = Replays(lambda n: {"a": Pair((n[0], 1), shared), "b": shared})
    replays((5,))
    found = replays((6,))
    assert found == {"a": Pair((6, 1), shared), "b": shared}
    assert found["b"] is shared


@pytest.mark.parametrize(
    "holder", [lambda n: lambda: n, lambda n: partial(print, n), lambda n: {n}, lambda n: {n: 1}]
)
def test_what_cannot_be_built_is_computed(holder):
    make, calls = counted(lambda n: [holder(n)])
    replays = Replays(make)
    for n in range(40):
        replays((n,))
    assert calls["plain"] == 40
    assert calls["noted"] == MOST_RECORDINGS


def test_errors_are_those_of_the_function():
    def function(numbers):
        if numbers[0] > 9:
            raise ValueError(f"{numbers[0]} is too large")
        return [12 // numbers[0]]

    replays = Replays(function)
    assert replays((4,)) == [3]
    with pytest.raises(ValueError, match="11 is too large"):
        replays((11,))
    with pytest.raises(ZeroDivisionError):
        replays((0,))
    assert replays((3,)) == [4]


def test_ways_are_bounded():
    make, calls = counted(lambda n: [str(n)])
    replays = Replays(make)
    for n in range(100):
        replays((n,))
    assert len(replays._ways) <= MOST_WAYS
    assert calls["noted"] == MOST_RECORDINGS


def test_integer_keeps_what_is_noted():
    replays = Replays(lambda n: [integer(n[0]), integer(2.5)])
    assert replays((3,)) == [3, 2]
    assert replays((4,)) == [4, 2]
    assert len(replays._ways) == 1


def test_numbers_of_notes_that_are_done_are_plain_ones():
    """Tables of other functions may hold them as keys."""
    done, tape = Tape(), Tape()
    old, new = done.input(3), tape.input(4)
    done.close()
    assert old != new
    assert new > old
    assert [number.value for number in (new - old, old - new, old * new)] == [1, -1, 12]
    assert not done.statements
    noted = " ".join(tape.statements)
    assert all(text in noted for text in ("v0 != 3", "v0 > 3", "v0 - 3", "3 - v0", "3 * v0"))


def long_sum(numbers):
    a, total = numbers[0], 0
    for k in range(3000):
        total = total + (a + k) * (k + 1)
    return total


@pytest.mark.parametrize("is_behind", [True, False])
def test_notes_behind_calls_are_taken_in_small_pieces(is_behind, monkeypatch):
    """A pause is made between few notes, and between few lines that are compiled; in calls none is."""
    pauses = []
    monkeypatch.setattr("clnn.replays.time.sleep", pauses.append)
    made = Replays(long_sum)
    with behind_calls() if is_behind else nullcontext():
        made.record([5])
    assert made([7]) == long_sum([7])
    assert len(pauses) > 500 if is_behind else not pauses
