"""What is kept of what was made for earlier calls: bounded by what it costs, never by a count alone."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple, TypeVar

from clnn.plan.plan import Plan

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
MAX_LAUNCHES = 8192  # of all that is kept in one place: some KB of the host's memory each
MAX_BYTES = 2**30  # of memory that what is kept has for itself


class Cost(NamedTuple):
    """What keeping something costs: launches of its plans, and bytes of arenas and constants of its own."""

    launches: int
    nbytes: int

    @staticmethod
    def of_all(costs: Iterable[Cost]) -> Cost:
        """Return the sum of costs."""
        every = list(costs)
        return Cost(sum(cost.launches for cost in every), sum(cost.nbytes for cost in every))

    @staticmethod
    def of_plan(plan: Plan, is_lent: bool, constants: int) -> Cost:
        """Return the cost of a plan. is_lent: others have its arena, too. constants: bytes that it alone has."""
        launches = sum(len(step.fills) + len(step.launches) for step in plan.scheduled)
        arena = 0 if is_lent else plan.memory.total
        return Cost(launches + len(plan.first_fills), arena + constants)


def constant_bytes(plan: Plan) -> int:
    """Return the bytes of a plan's constants, before they are packed."""
    return sum(plan.graph.types[name].nbytes for name in plan.consts)


class Recent(OrderedDict[K, V]):
    """What was made for some keys, in the order of use. Its users hold a lock of their own.

    few: so many stay, whatever launches they have; large: so many, whatever memory. Of others stay those
    used last, within MAX_LAUNCHES of all and MAX_BYTES of all but the newest.
    """

    def __init__(self, cost: Callable[[V], Cost], few: int, large: int) -> None:
        """cost: what one of them costs now."""
        super().__init__()
        self._cost, self._few, self._large = cost, few, large

    def use(self, key: K) -> V | None:
        """Return what was made for a key, and note that it was used last; None where there is nothing."""
        if key in self:
            self.move_to_end(key)
        return self.get(key)

    def shrink(self) -> list[tuple[K, V]]:
        """Drop what is beyond the bound, and return it, what was used longest ago first."""
        dropped: list[tuple[K, V]] = []
        if len(self) <= min(self._few, self._large):
            return dropped
        costs = [self._cost(value) for value in self.values()]
        launches, nbytes = Cost.of_all(costs)
        nbytes -= costs[-1].nbytes
        for cost in costs[:-1]:
            are_many = len(self) > self._few and launches > MAX_LAUNCHES
            are_large = len(self) > self._large and nbytes > MAX_BYTES
            if not are_many and not are_large:
                break
            dropped.append(self.popitem(last=False))
            launches, nbytes = launches - cost.launches, nbytes - cost.nbytes
        return dropped
