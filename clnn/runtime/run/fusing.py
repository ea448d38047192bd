"""The launches of a plan as few kernels: which of them are fused, and their arguments in C."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import groupby, islice

from clnn.cache.templates import use_cache
from clnn.codegen.fused_kernel import KERNELS, FusedCall, Numbers, can_fuse, fuse
from clnn.codegen.kernels import MOST_INPUTS, input_names, text_of
from clnn.codegen.set_kernel import (
    ARENA_MEMORY,
    CONSTANT_MEMORY,
    INPUT_MEMORY,
    SetCall,
    set_kernel,
)
from clnn.codegen.set_texts import set_sources
from clnn.ops.universal.functions import set_of
from clnn.plan.plan import ConstArg, Plan, PlannedArg, ScratchArg, TensorArg
from clnn.records import dataclass
from clnn.runtime.run.arguments import Place, in_order
from clnn.runtime.run.constants import ALIGNMENT, Constants
from clnn.runtime.run.fused_launch import (
    ARENA,
    CONSTANTS,
    OWN_CONSTANTS,
    FusedLaunch,
    FusedLaunches,
    NodeLaunch,
    launches_of,
    params_of,
)
from clnn.runtime.run.work import work_of

use_cache()
MIN_LAUNCHES = 2  # that are worth a kernel of their own
MOST_FUNCTIONS, MOST_CALLS = 32, 100  # of one kernel: several build side by side
# The same for networks of so few operations that what lies between two kernels is a share of their time.
SMALL_FUNCTIONS, SMALL_CALLS, SMALL_WORK = 96, 200, 2_500_000_000
MOST_BUILDERS = 8  # processes that build at once, one for each compute unit


@dataclass(frozen=True)
class Places:
    """Where a fused kernel finds its data: bytes in the arena, pages among the constants."""

    arena: Callable[[str], int]
    constant: Callable[[ConstArg | TensorArg], int]


def fuse_plan(
    plan: Plan, constants: Constants, timed: bool, open_: bool, helpers: int = 0
) -> FusedLaunches | None:
    """Return the launches of a plan as few kernels, None where the device takes no buffer for that.

    timed, open_, helpers: as in fuse_launches.
    """
    places = Places(lambda key: plan.memory.offsets[key] + plan.guard, constants.place)
    run, fills = launches_of(plan), [NodeLaunch(f, "border") for f in plan.first_fills]
    args = (arg for one in run for arg in one.launch.args)
    if constants.whole is None and any(isinstance(arg, ConstArg) for arg in args):
        return None
    return FusedLaunches(
        fuse_launches(plan, fills, places, open_=open_),
        fuse_launches(plan, run, places, timed, open_, helpers),
    )


def fuse_launches(
    plan: Plan,
    launches: Sequence[NodeLaunch],
    places: Places,
    timed: bool = False,
    open_: bool = False,
    helpers: int = 0,
) -> list[FusedLaunch]:
    """Return launches in groups of neighbours, those that can be fused as few kernels.

    timed: these kernels note when each launch's part began and ended. open_: they read their numbers
    from a buffer, and so serve other extents. helpers: of a kernel that has all launches, as
    clnn.codegen.fused_kernel.fuse takes them. Raises TemplateError.
    """

    def fused(ones: Sequence[_Rendered]) -> FusedLaunch:
        numbers = Numbers() if open_ else None
        calls = [_call(plan, one, places, numbers) for one in ones]
        own = {} if numbers is None else {OWN_CONSTANTS: "__global char *"}
        params = params_of(plan) | own
        more = helpers if len(ones) == len(launches) else 0
        kernel = fuse(calls, plan.target.compute_units, params, timed, numbers, more)
        return FusedLaunch(tuple(one.launch for one in ones), kernel)

    groups: list[FusedLaunch] = []
    rendered = [_Rendered(one, one.source) for one in launches]
    known = {name: _set_sources(plan, name) for name in {one.set_ for one in rendered} if name}
    builders = min(plan.target.compute_units, MOST_BUILDERS)
    small = not open_ and sum(work.flops for work in work_of(plan).values()) <= SMALL_WORK
    whole_set = len(plan.inputs) <= MOST_INPUTS and not open_

    def kind(one: _Rendered) -> tuple[str, bool]:
        on_set = whole_set and one.source in known.get(one.set_, ())
        return one.set_ if on_set else "", one.fits

    for (program, fits), neighbours in groupby(rendered, kind):
        if program:
            ones = list(neighbours)
            rows = [_row(plan, one, places) for one in ones]
            kernel = set_kernel(known[program], rows, plan.target.compute_units, timed)
            groups.append(FusedLaunch(tuple(one.launch for one in ones), kernel))
            continue
        for ones in (
            _even([*neighbours], small, builders) if fits else [[one] for one in neighbours]
        ):
            whole = fits and len(ones) >= MIN_LAUNCHES
            groups += [fused(ones)] if whole else [FusedLaunch((one.launch,)) for one in ones]
    return groups


def _set_sources(plan: Plan, program: str) -> tuple[str, ...]:
    """Return the texts of a program of the universal set; none for a stored plan where mako is not installed.

    Its launches are fused as others are there.
    """
    try:
        return set_sources(plan.target, program)
    except ModuleNotFoundError:
        return ()


@dataclass(frozen=True)
class _Rendered:
    """A launch and its kernel's source."""

    launch: NodeLaunch
    source: str

    @property
    def set_(self) -> str:
        return set_of(self.launch.launch.launch)

    @property
    def fits(self) -> bool:
        launch = self.launch.launch.launch
        return can_fuse(self.source, launch.local_size, tuple(map(int, launch.global_size)))


def _even(
    ones: Sequence[_Rendered], small: bool = False, builders: int = 1
) -> list[list[_Rendered]]:
    """Return launches in as few groups as the limits allow, of texts as even as that allows.

    Each group is a kernel that builds on its own; from one to the next, threads sleep and wake. small: of
    a network whose time that is a share of. builders: that build at once.
    """
    left = iter(ones)
    counts = _even_counts(tuple(one.source for one in ones), small, builders)
    return [list(islice(left, count)) for count in counts]


@lru_cache(KERNELS)
def _even_counts(sources: tuple[str, ...], small: bool = False, builders: int = 1) -> list[int]:
    """Return how many neighbours each group has, of launches with these sources; others as of _even.

    Where there are more groups than builders, each builder has as many: there are fewer where groups half as
    large again suffice, else more.
    """
    functions, calls = (SMALL_FUNCTIONS, SMALL_CALLS) if small else (MOST_FUNCTIONS, MOST_CALLS)
    fewest = len(_counts(sources, functions, calls))
    over = fewest % builders if fewest > builders else 0
    if over and len(_counts(sources, functions * 3 // 2, calls * 3 // 2)) <= fewest - over:
        functions, calls, fewest = functions * 3 // 2, calls * 3 // 2, fewest - over
    elif over:
        fewest += builders - over
    low, high = 0, sum(map(len, {*sources}))
    while low < high:
        middle = (low + high) // 2
        if len(_counts(sources, functions, calls, middle)) <= fewest:
            high = middle
        else:
            low = middle + 1
    return _counts(sources, functions, calls, high)


def _counts(
    sources: Sequence[str], functions: int, calls: int, characters: float = math.inf
) -> list[int]:
    """Return how many neighbours each group has, with at most so many functions and calls in each.

    characters: of a group's functions, unless one alone has more.
    """
    counts: list[int] = []
    known: set[str] = set()
    length = 0
    for source in sources:
        is_new = source not in known
        is_more = is_new and (len(known) >= functions or length + len(source) > characters)
        if not counts or (known and is_more) or counts[-1] >= calls:
            counts.append(0)
            known, length, is_new = set(), 0, True
        counts[-1] += 1
        known.add(source)
        length += len(source) if is_new else 0
    return counts


def _call(plan: Plan, one: _Rendered, places: Places, numbers: Numbers | None) -> FusedCall:
    launch, node = one.launch.launch, one.launch.node
    put = str if numbers is None else numbers.put
    args = in_order((_place(plan, arg, places, put) for arg in launch.args), put)
    args += map(_literal if numbers is None else numbers.put, text_of(launch.launch).numbers)
    skipped = [input_names(k)[2] for k, port in enumerate(plan.inputs) if node == f"io:{port.name}"]
    condition = " || ".join(skipped)
    extents = tuple(map(int, launch.launch.global_size))
    return FusedCall(one.source, extents, tuple(args), condition, launch.idle)


def _literal(number: int | float) -> str:
    """Return a number in C."""
    return str(number).replace("inf", "INFINITY").replace("nan", "NAN")


def _row(plan: Plan, one: _Rendered, places: Places) -> SetCall:
    """Return a launch of the universal set as its kernel reads it."""
    launch, node = one.launch.launch, one.launch.node
    words: list[int | float] = []
    for arg in launch.args:
        words += _words(plan, arg, places)
    words += text_of(launch.launch).numbers
    skipped = [k for k, port in enumerate(plan.inputs) if node == f"io:{port.name}"]
    extents = (0,) if launch.idle else tuple(map(int, launch.launch.global_size))
    return SetCall(one.source, extents, tuple(words), skipped[0] if skipped else -1)


def _words(plan: Plan, arg: PlannedArg, places: Places) -> tuple[int, ...]:
    """Return where an argument lies: memory, its page there, and the element unless it is the first."""
    if isinstance(arg, ConstArg):
        return CONSTANT_MEMORY, places.constant(arg)
    if isinstance(arg, ScratchArg):
        return ARENA_MEMORY, 0, places.arena(arg.key) // arg.itemsize
    if arg.storage in plan.consts:
        return CONSTANT_MEMORY, places.constant(arg), arg.offset
    for k, port in enumerate(plan.inputs):
        if plan.placed[port.value].storage == arg.storage:
            return INPUT_MEMORY + k, 0, arg.offset
    itemsize = plan.storages[arg.storage].dtype.itemsize
    return ARENA_MEMORY, 0, places.arena(arg.storage) // itemsize + arg.offset


def _place(plan: Plan, arg: PlannedArg, places: Places, put: Callable[[int], str]) -> Place:
    """Return where an argument lies: C expressions of a fused kernel; `put` makes one of a number."""

    def constant(arg: ConstArg | TensorArg) -> str:
        page = places.constant(arg)
        if put is str:
            return f"(__global void *)({CONSTANTS} + {page * ALIGNMENT}L)"
        name = put(page)
        own = f"{OWN_CONSTANTS} + ~{name} * {ALIGNMENT}L"
        return f"(__global void *)({name} < 0 ? {own} : {CONSTANTS} + {name} * {ALIGNMENT}L)"

    if isinstance(arg, ConstArg):
        return constant(arg), None
    if isinstance(arg, ScratchArg):
        return f"(__global void *){ARENA}", places.arena(arg.key) // arg.itemsize
    if arg.storage in plan.consts:
        return constant(arg), arg.offset
    for k, port in enumerate(plan.inputs):
        if plan.placed[port.value].storage == arg.storage:
            memory, start, _ = input_names(k)
            return f"(__global void *)({memory} + {start})", arg.offset
    itemsize = plan.storages[arg.storage].dtype.itemsize
    return f"(__global void *){ARENA}", places.arena(arg.storage) // itemsize + arg.offset
