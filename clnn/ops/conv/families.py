"""The families of convolution kernels: the table of contents of this folder.

    depthwise       one filter per channel: a row of output pixels stays in registers
    depthwise_bytes   the same of bytes, four rows of a window at a time
    direct            register tiles of pixels by output channels, one product at a time
    direct, packed    the same, two or four products of small integers at a time
    amx               of bytes and bfloat16 by tiles of registers, where x86 has them
    row_packing       packed ones of few input channels: a row of the window as channels
    streaming         the same for weights that exceed a CPU's caches: each is read once
    winograd_cpu      3 x 3 with fewer products, transforms in the kernel or in a launch before
    winograd_streamed the same for weights that memory gives too slowly when transformed
    winograd_rows     wide windows, and those over few input channels, with fewer products along one axis
    strassen          windows of one place, with seven products of blocks for eight
    winograd_bytes    winograd_cpu of bytes, exact, in sums of 32 bits that wrap
    winograd_fused    the same on GPUs, all in one kernel
    winograd_gpu      the same in three launches, around a product of matrices
    workgroup         a product of pixels with weights, by a GPU's work-groups that share chunks of them
    mma               the same product on tensor cores
    reference         any layouts, borders and weights

Each family is a function from a problem to its kernels that are worth a measurement, made one by one:
the one that it would choose itself comes first. It yields none where it does not fit. All but the
reference want `ConvProblem.fits_fast`. At equal cost, families stand in the order of FAMILIES.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, islice

from clnn.ops.conv import (
    amx,
    depthwise,
    depthwise_bytes,
    direct,
    mma,
    row_packing,
    strassen,
    streaming,
    winograd_bytes,
    winograd_cpu,
    winograd_fused,
    winograd_gpu,
    winograd_rows,
    winograd_streamed,
    workgroup,
)
from clnn.ops.conv.problem import ConvProblem
from clnn.ops.conv.reference import reference
from clnn.ops.launch import Variant, by_cost

Family = Callable[[ConvProblem], Iterator[Variant]]
# What names of kernels begin with as their file's does.
NAMED_SO = ("depthwise", "strassen", "winograd")
FAMILIES: tuple[Family, ...] = (
    depthwise.variants,
    depthwise_bytes.variants,
    direct.variants,
    direct.packed_variants,
    amx.variants,
    row_packing.variants,
    streaming.variants,
    winograd_cpu.variants,
    winograd_streamed.variants,
    winograd_rows.variants,
    strassen.variants,
    winograd_bytes.variants,
    winograd_fused.variants,
    winograd_gpu.variants,
    workgroup.variants,
    mma.variants,
)


def _fitting(problem: ConvProblem) -> tuple[Family, ...]:
    """Return the families that may have kernels for a problem."""
    if not problem.fits_fast:
        return ()
    return (depthwise.variants,) if problem.arith.fours else FAMILIES


def variants(problem: ConvProblem) -> list[Variant]:
    """Return the choice of each family that fits by rising cost, then the reference kernel."""
    families = _fitting(problem)
    choices = [variant for family in families for variant in islice(family(problem), 1)]
    return [*sorted(choices, key=lambda v: v.cost), reference(problem)]


def named(problem: ConvProblem, name: str) -> Variant | None:
    """Return the kernel of a name; None where there is none.

    Families whose kernels have such names are looked through first: others need not be made for it.
    """
    families = _fitting(problem)
    near = [family for family in families if _may_have(family, name)]
    far = [family for family in families if family not in near]
    every = chain(_each(problem, near), _each(problem, far), map(reference, (problem,)))
    return next((v for v in every if v.name == name), None)


def _each(problem: ConvProblem, families: list[Family]) -> Iterator[Variant]:
    """Yield the choices of families, then their other kernels."""
    for family in families:
        yield from islice(family(problem), 1)
    for family in families:
        yield from islice(family(problem), 1, None)


def _may_have(family: Family, name: str) -> bool:
    """Whether a kernel's name begins as those of a family do."""
    own, begin = (text.partition("_")[0] for text in (family.__module__.split(".")[-1], name))
    return own == begin if begin in NAMED_SO else own not in NAMED_SO


def candidates(problem: ConvProblem) -> list[Variant]:
    """Return all kernels that are worth a measurement by rising cost, or the reference alone."""
    found = [variant for family in _fitting(problem) for variant in family(problem)]
    return by_cost(found) if found else variants(problem)
