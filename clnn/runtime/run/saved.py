"""Compiled networks in files: what a session is made of, written, and read back without its model.

Sections of a file (clnn.cache.sections):

    plan       JSON: the device and what its kernels need of one, the plan (clnn.runtime.run.plan_rows), places
               of constants, which launches are fused kernels, keys of the programs
    programs   zlib, JSON: the sources of what is built
    kernels    zlib, JSON: the sources of the launches of fused kernels, for profiles and other devices
    constants  packed constants, as kernels read them; sessions map them
    first      of a network at one of several shapes: packed constants that all of them have
    binaries   built programs, one behind the other
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from clnn._version import __version__
from clnn.cache.sections import PAGE, BadSectionsError, read_sections, write_sections
from clnn.codegen.kernels import KERNEL, FusedKernel, as_ints, text_of
from clnn.errors import ModelFileError, SettingError
from clnn.plan.plan import ConstArg, Plan, TensorArg
from clnn.records import dataclass
from clnn.runtime.build.program import Device
from clnn.runtime.device.failures import explained
from clnn.runtime.drivers.loader import load
from clnn.runtime.run.constants import ALIGNMENT, Uploaded
from clnn.runtime.run.fused_launch import (
    FusedLaunch,
    FusedLaunches,
    NodeLaunch,
    launches_of,
    sources_of,
)
from clnn.runtime.run.parts import Parts
from clnn.runtime.run.plan_rows import BadPlanError, Makers, read, whole, written
from clnn.runtime.run.work import StoredPlan
from clnn.target import LARGE_REGISTERS
from clnn.types import Array

MOST_TEXT = 1 << 28  # bytes of all sources
MOST_PLAN = 1 << 28
MOST_COUNTERS = 1 << 24
ALIKE = 4  # networks whose texts are remembered: those of one at several shapes are the same
# What is found in the text of kernels that need a capability of the device (Target.features).
# Each begins with plain letters, for which texts are searched quickly.
MARKS = {
    "fp16": r"half(?<=\bhalf)\d*\s+\w|cl_khr_fp16",
    "fp64": r"double(?<=\bdouble)\d*\b",
    "subgroups": r"sub_group_(?<=\bsub_group_)",
    "x86_vnni": r"vpdp\w+ |vpack\w+ (?=%2, %1, %0\" : \"=v)",
    "x86_vbmi": r"vpermi2b ",
    "x86_madd": r"vpmaddwd |vpack\w+ (?=%2, %1, %0\" : \"=x)",
    "x86_bf16": r"vdpbf16ps ",
    "x86_amx": r"byte 0xc4, 0xe2, 0x7b, 0x4b, ",
    "ptx_dp4a": r'"dp4a\.',
    "ptx_mma": r"mma\.sync",
    "ptx_ldmatrix": r"ldmatrix\.",
    "ptx_cp_async": r"cp\.async",
    "prefetch": r"__builtin_prefetch",
    "required_subgroups": r"intel_reqd_sub_group_size",
    "large_registers": re.escape(LARGE_REGISTERS.lstrip("/ ")),
    "wave64": r"wavefrontsize64",
}
Place = tuple[int, int]  # first byte, and how many
Row = tuple[int, ...]


@dataclass(frozen=True)
class SavedNetwork:
    """What a file holds.

    made_for: platform and name of the device. needs: capabilities that its kernels use. local_bytes,
    group: local memory and work-items of the largest work-group. makers, tensors: places of packed
    constants, and of constant tensors by name. fused: how the launches are fused, None where they are
    not. binaries: key of a program -> binary. in_caller: it was compiled to run in the thread that calls.
    first: constants that the network at other shapes has, too, None where it is one of known shapes;
    in_first: which of makers and tensors lie there.
    """

    made_for: str
    needs: frozenset[str]
    local_bytes: int
    group: int
    products: str
    plan: StoredPlan
    data: Array
    makers: Mapping[Uploaded, Place]
    tensors: Mapping[str, Place]
    fused: FusedLaunches | None
    binaries: Mapping[str, bytes]
    in_caller: bool = False
    first: Array | None = None
    in_first: frozenset[Uploaded | str] = frozenset()


def save_network(path: Path, parts: Parts) -> None:
    """Write a network to a file. Raises as network_sections does, and OSError."""
    write_sections(path, network_sections(parts))


def network_sections(parts: Parts, programs: bool = True, check: bool = True) -> dict[str, Array]:
    """Return the sections of a network's file, with or without its built programs. check: that they can be read.

    Raises SettingError for a network that cannot be kept.
    """
    if parts.constants.is_shared and parts.fused is None:
        raise SettingError("a session of open shapes is kept where its kernels are fused.")
    if parts.plan.guard or parts.plan.separate:
        raise SettingError(
            "a session with guards or separate arenas is for checks, and is not saved. Leave out"
            " Options(guard=..., arena=...)."
        )
    with explained(parts.device, "saving the network"):
        sections = _sections(parts, programs)
    try:
        if check:
            network_of(sections)
    except BadPlanError as err:
        raise SettingError(f"this network cannot be kept in a file: {err}.") from err
    return sections


def _sections(parts: Parts, built: bool) -> dict[str, Array]:
    device, plan, fused = parts.device, parts.plan, parts.fused
    programs = {source: k for k, source in enumerate(sources_of(plan, fused).values())}
    kernels = dict(programs) if fused is None else {}
    makers: Makers = {}
    rows = written(plan, kernels, makers)
    data, places, tensors = _constants_of(parts, makers)
    first = {"first": _first_of(parts)} if parts.constants.is_shared else {}
    binaries = {
        device.key(source): (device.binary(source) if built else None) or b"" for source in programs
    }
    runs = _runs(plan, fused) if built else ()  # what stays on its device fits that
    local = max((_local_bytes(device, *one) for one in runs), default=0)
    about = {
        "clnn": __version__,
        "made_for": f"{device.info.name} on {device.info.platform}",
        "needs": _needs((*programs, *kernels)),
        "local": local,
        "products": parts.products,
        "in_caller": device.info.in_caller,
        "plan": rows,
        "constants": places,
        "tensors": tensors,
        "fused": None if fused is None else _fused_rows(fused, programs),
        "programs": [[key, len(binary)] for key, binary in binaries.items()],
    }
    return {
        "plan": _bytes(json.dumps(about, separators=(",", ":"), allow_nan=False).encode()),
        "programs": _packed(tuple(programs)),
        "kernels": _packed(() if fused is None else tuple(kernels)),
        "constants": data,
        "binaries": _bytes(b"".join(binaries.values())),
        **first,
    }


def _bytes(data: bytes) -> Array:
    return np.frombuffer(data, np.uint8)


@lru_cache(ALIKE)
def _needs(texts: tuple[str, ...]) -> list[str]:
    """Return the capabilities that kernels use."""
    text = "\n".join(texts)
    return sorted(name for name, mark in MARKS.items() if re.search(mark, text))


@lru_cache(ALIKE)
def _packed(texts: tuple[str, ...]) -> Array:
    return _bytes(zlib.compress(json.dumps(texts).encode(), 6))


def _unpacked(section: Array) -> list[str]:
    """Return the texts of a section. Raises BadPlanError."""
    unpacker = zlib.decompressobj()
    try:
        blob = unpacker.decompress(section.tobytes(), MOST_TEXT)
        texts = json.loads(blob)
    except (zlib.error, ValueError, RecursionError) as err:
        raise BadPlanError(f"the sources are not as they must be ({err})") from None
    if not unpacker.eof or not isinstance(texts, list) or {*map(type, texts)} - {str}:
        raise BadPlanError("the sources are no list of texts")
    return texts


def _constants_of(parts: Parts, makers: Makers) -> tuple[Array, list[Row], dict[str, Row]]:
    """Return the data of all constants, rows of packed ones in order, and of tensors by name.

    A row is a place. Of a network at one of several shapes the data is what others lack, and rows
    of what they have begin with its place in `first`, and end with 1.
    """
    cl, plan, constants, together = load(), parts.plan, parts.constants, parts.fused is not None
    end = 0
    found: dict[Uploaded | str, tuple[Any, int]] = {}
    rows: dict[Uploaded | str, Row] = {}
    for arg in (arg for one in plan.launches for arg in one.args):
        is_tensor = isinstance(arg, TensorArg) and arg.storage in plan.consts
        if not (is_tensor or isinstance(arg, ConstArg)):
            continue
        assert isinstance(arg, (ConstArg, TensorArg))
        key: Any = arg.storage if isinstance(arg, TensorArg) else arg.make
        if key not in rows:
            buffer = constants.buffer(arg)
            page = constants.place(arg) if together else end // ALIGNMENT
            nbytes, is_own = int(buffer.size), page < 0 or not constants.is_shared
            at = (~page if page < 0 else page) * ALIGNMENT
            rows[key] = (at, nbytes) if is_own else (at, nbytes, 1)
            if not is_own:
                continue
            found[key] = buffer, at
            end = max(end, at + -(-buffer.size // PAGE) * PAGE)
    if constants.is_shared and constants.host is not None:
        data = constants.host if constants.own is not None else np.zeros(0, np.uint8)
    else:
        queue, data = cl.CommandQueue(parts.device.context), np.zeros(end, np.uint8)
        for buffer, at in found.values():
            cl.enqueue_copy(queue, data[at : at + buffer.size], buffer)
    packed = [rows[token] for token in makers]
    return data, packed, {key: row for key, row in rows.items() if isinstance(key, str)}


def _first_of(parts: Parts) -> Array:
    """Return the constants that a network has at all shapes."""
    buffer, host = parts.constants.first
    if host is not None or buffer is None:
        return np.zeros(0, np.uint8) if host is None else host
    cl, data = load(), np.empty(buffer.size, np.uint8)
    cl.enqueue_copy(cl.CommandQueue(parts.device.context), data, buffer)
    return data


def _runs(plan: Plan, fused: FusedLaunches | None) -> Iterator[tuple[str, str]]:
    """Yield source and name of each kernel that runs."""
    ones = [FusedLaunch((NodeLaunch(launch, ""),)) for launch in plan.launches]
    for one in ones if fused is None else [*fused.first, *fused.run]:
        if one.kernel is not None:
            yield one.kernel.source, KERNEL
        else:
            text = text_of(one.launches[0].launch.launch)
            yield text.source, text.name


def _local_bytes(device: Device, source: str, name: str) -> int:
    """Return the local memory of a work-group."""
    what = load().kernel_work_group_info.LOCAL_MEM_SIZE
    return int(device.kernel(source, name).get_work_group_info(what, device.handle))


def _fused_rows(fused: FusedLaunches, programs: Mapping[str, int]) -> list[Any]:
    """Return a row of each kernel, before the runs and in them, and how runs are taken."""

    def row(one: FusedLaunch) -> list[Any]:
        k = one.kernel
        if k is None:
            return [1]
        sizes = k.counters, k.scratch, k.groups
        numbers = None if k.numbers is None else as_ints(k.numbers)
        return [len(one.launches), programs[k.source], list(k.params), *sizes, numbers]

    rows: list[Any] = [[row(one) for one in ones] for ones in (fused.first, fused.run)]
    return [*rows, [fused.is_long, fused.in_turns, fused.is_small]]


def read_network(path: str | os.PathLike[str]) -> SavedNetwork:
    """Return what a file holds. Raises ModelFileError where it is damaged, or none of clnn's."""
    try:
        sections = read_sections(path)
        return network_of(sections)
    except KeyError as err:
        what = f"has no section {err}"
    except (BadSectionsError, BadPlanError) as err:
        what = f"{err}"
    except FileNotFoundError:
        raise ModelFileError(f"no file at {os.fspath(path)!r}. Check the path.") from None
    except OSError as err:
        what = f"cannot be read: {err}"
    raise ModelFileError(
        f"{os.fspath(path)!r} is no sound .clnn file: it {what}. Copy it again, or make it anew from its"
        " model: clnn compile MODEL -o FILE"
    )


def network_of(sections: Mapping[str, Array]) -> SavedNetwork:
    """Return the network of a file's sections. Raises BadPlanError, KeyError for a section."""
    blob, data, compressed = (sections[name] for name in ("plan", "constants", "kernels"))
    programs = _unpacked(sections["programs"])
    if blob.size > MOST_PLAN:
        raise BadPlanError(f"has a plan of {blob.size} bytes")
    try:
        about = json.loads(blob.tobytes())
        fused, kernels = about["fused"], cache(lambda: _unpacked(compressed))
        tokens, first = [Uploaded() for _ in about["constants"]], sections.get("first")
        rows = [*zip(tokens, about["constants"], strict=True), *about["tensors"].items()]
        there = {key: _place(row, data, first) for key, row in rows}
        tensors = {str(name): there[name] for name in about["tensors"]}
        texts: Callable[[], Sequence[str]] = (lambda: programs) if fused is None else kernels
        plan = read(about["plan"], texts, tokens, list(tensors))
        sizes = [int(np.prod(one.launch.local_size)) for one in plan.launches]
        return SavedNetwork(
            str(about["made_for"]),
            frozenset(map(str, about["needs"])),
            whole(about["local"]),
            max(sizes, default=1),
            str(about["products"]),
            plan,
            data,
            {token: there[token] for token in tokens},
            tensors,
            None if fused is None else _fused(plan, fused, programs),
            _binaries(about["programs"], sections["binaries"]),
            about.get("in_caller", False) is True,
            first,
            frozenset(key for key, row in rows if len(row) == 3),
        )
    except (BadPlanError, BadSectionsError):
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as err:
        raise BadPlanError(
            f"has a plan that is not as it must be ({type(err).__name__}: {err})"
        ) from None


def _place(row: Any, data: Array, first: Array | None) -> Place:
    at, nbytes, *is_first = row
    if is_first:
        if is_first != [1] or first is None:
            raise BadPlanError("has a constant in memory that is not there")
        data = first
    at, nbytes = whole(at, data.size), whole(nbytes, data.size)
    if at % ALIGNMENT or not 0 < nbytes <= data.size - at:
        raise BadPlanError(f"has a constant at {at}, {nbytes} of {data.size} bytes")
    return at, nbytes


def _fused(plan: StoredPlan, rows: Any, programs: Sequence[str]) -> FusedLaunches:
    """Return how a plan's launches are fused."""

    def ones(rows: Any, launches: Sequence[NodeLaunch]) -> Iterator[FusedLaunch]:
        left = iter(launches)
        for count, *row in rows:
            taken = tuple(islice(left, whole(count, len(launches), 1)))
            yield FusedLaunch(taken, _kernel(row, programs) if row else None)
            if len(taken) != count or (not row and count != 1):
                raise BadPlanError("has fused kernels of launches that are not there")
        if next(left, None) is not None:
            raise BadPlanError("has launches that no kernel does")

    first = [NodeLaunch(fill, "border") for fill in plan.first_fills]
    ways = [way is True for way in rows[2]] if len(rows) > 2 and isinstance(rows[2], list) else []
    return FusedLaunches([*ones(rows[0], first)], [*ones(rows[1], launches_of(plan))], *ways[:3])


def _kernel(row: Any, programs: Sequence[str]) -> FusedKernel:
    number, params, counters, scratch, groups, numbers = row
    source = programs[whole(number, len(programs) - 1)]
    sizes = whole(counters, MOST_COUNTERS), whole(scratch), whole(groups, 1 << 24, 1)
    read = None if numbers is None else tuple(whole(n, (1 << 31) - 1, -1 << 31) for n in numbers)
    return FusedKernel(source, tuple(map(str, params)), *sizes, numbers=read)


def _binaries(rows: Any, section: Array) -> dict[str, bytes]:
    """Return key -> binary of the programs that have one."""
    found, at = {}, 0
    for key, nbytes in rows:
        at, begin = at + whole(nbytes, section.size), at
        if nbytes:
            found[str(key)] = section[begin:at].tobytes()
    if at != section.size:
        raise BadPlanError("has binaries of other sizes than it says")
    return found
