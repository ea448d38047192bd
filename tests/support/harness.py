"""check_op: run one op on a device under poison, guards and borders, and compare with numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from joined import JoinedDevice
from targets import CPU, GPU, generate_for

from clnn.graph.ir import Graph, Node, check
from clnn.graph.passes.store import store_as
from clnn.layout import view_of
from clnn.ops.launch import Variant
from clnn.ops.problem import Border
from clnn.ops.spec import OpSpec
from clnn.ops.universal.functions import is_universal
from clnn.options import Options
from clnn.plan.layouts import Hints
from clnn.plan.plan import Storage
from clnn.plan.schedule import Chooser, make_plan
from clnn.runtime.build.program import Device
from clnn.runtime.device.device import select
from clnn.runtime.device.target import allowed
from clnn.runtime.drivers.loader import load
from clnn.runtime.run import planning
from clnn.runtime.run.fused_launch import sources_of
from clnn.runtime.run.session import Session
from clnn.runtime.run.state import POISON, ExecutionState
from clnn.tune.bench import with_border
from clnn.types import F32, STORAGE, STORED_BF16, STORED_F16, TensorType, dtype_of, narrow, widen

GUARD = 128
TOGETHER = True  # whether an op's variants are built as one program
# Of a result that is stored, relative to itself: half a unit in the last place.
ROUNDING = {"f32": 0.0, "tf32": 0.0, "f16": 2**-11, "bf16": 2**-8}


def single_node(
    spec: OpSpec, inputs: Sequence[np.ndarray | None], consts: Sequence[int] = ()
) -> Graph:
    """Return the graph of one node; inputs listed in `consts` are constants, None is left out."""
    names = [None if a is None else f"i{k}" for k, a in enumerate(inputs)]
    types = {
        f"i{k}": TensorType(a.shape, dtype_of(a.dtype))
        for k, a in enumerate(inputs)
        if a is not None
    }
    made = spec.infer([None if n is None else types[n] for n in names])
    outs = [f"o{k}" for k in range(len(made))]
    types.update(zip(outs, made, strict=True))
    node = Node("node", spec, tuple(names), tuple(outs), spec.kind)
    feeds = tuple(n for k, n in enumerate(names) if n is not None and k not in consts)
    fixed = {f"i{k}": np.asarray(inputs[k]) for k in consts if inputs[k] is not None}
    return check(Graph((node,), types, fixed, feeds, {n: n for n in outs}))


def check_op(
    device: str,
    spec: OpSpec,
    inputs: Sequence[np.ndarray | None],
    *,
    consts: Sequence[int] = (),
    border: int = 0,
    orders: Mapping[str, tuple[int, ...]] | None = None,
    tolerance: float | None = None,
    only: str | None = None,
    dtype: str = "f32",
    every: bool = False,
) -> list[str]:
    """Run every variant of an op on `device` and compare with its reference in double precision.

    consts: inputs that are constants. border: padding put around all spatial tensors, beyond what
    the op asks for. orders: memory order of values ("i0", "o0", ...). only: part of a variant's
    name; where it is one for CPUs, GPUs skip the test. dtype: as of Options; inputs are rounded to
    what it stores first, and results may be off by its rounding besides. every: run the op's
    candidates too. Returns the names of the variants that ran. Checks: error, finite poison (nothing
    left unwritten), guards and borders untouched, second run bitwise equal.
    """
    inputs = [rounded(a, dtype) for a in inputs]
    graph = store_as(single_node(spec, inputs, consts), STORAGE[dtype])
    wide = STORAGE[dtype] == F32
    assert wide or any(n.startswith("o") for n in graph.stored), "it keeps float32"
    with np.errstate(invalid="ignore"):  # infinity less infinity
        want = spec.reference(*[_widen(a) for a in inputs])
    node = next(n for n in graph.nodes if n.name == "node")
    limit = spec.tolerance(graph.input_types(node)) if tolerance is None else tolerance
    asked = {at: order for n, order in (orders or {}).items() for at in (n, f"{n}:{dtype}")}
    hints = Hints(_borders(graph, border), {n: o for n, o in asked.items() if n in graph.types})
    names = variant_names(graph, device, hints, every, dtype)
    chosen = [n for n in names if only is None or only in n]
    if not chosen and select(device).type == "gpu":
        with pytest.MonkeyPatch.context() as patch:
            generate_for(patch, CPU)
            if any(str(only) in n for n in variant_names(graph, device, hints, every, dtype)):
                pytest.skip(f"{only}: kernels for CPUs")
    assert chosen, f"no variant of {list(names)} has {only!r} in its name"
    run_variants(
        graph, device, {n: max(limit, names[n]) for n in chosen}, hints, inputs, want, dtype
    )
    return chosen


def check_universal(
    device: str,
    spec: OpSpec,
    inputs: Sequence[np.ndarray | None],
    *,
    consts: Sequence[int] = (),
    border: int = 0,
    orders: Mapping[str, tuple[int, ...]] | None = None,
    rows: bool = True,
) -> str:
    """Run an op on the universal set, as check_op runs a variant, and then as rows of its one kernel.

    consts, border, orders: as of check_op. rows: whether to do the latter. Fails where the set has no form for the op.
    Returns the variant's name. The set is for CPUs: skips the test on GPUs.
    """
    if select(device).type == "gpu":
        pytest.skip("the universal set is for CPUs")
    graph = single_node(spec, inputs, consts)
    with np.errstate(all="ignore"):
        want = spec.reference(*[_widen(a) for a in inputs])
    node = next(n for n in graph.nodes if n.name == "node")
    limit = spec.tolerance(graph.input_types(node))
    asked = {n: order for n, order in (orders or {}).items() if n in graph.types}
    hints = Hints(_borders(graph, border), asked)
    feeds = {f"i{k}": a for k, a in enumerate(inputs) if f"i{k}" in graph.inputs}
    guarded = Options(fuse=False, specialise="never", guard=GUARD, arena="separate")
    for options in (guarded, replace(guarded, guard=0, arena=""))[: 1 + rows]:
        with Session(graph, select(device), options, hints=hints) as session:
            launches = [one.launch for one in session.plan.launches]
            other = [launch.template for launch in launches if not is_universal(launch)]
            assert not other, f"not on the set: {other}"
            (variant,) = (s.variant for s in session.plan.scheduled if s.node.name == "node")
            got, again = session(feeds), session(feeds)
            for k, expected in enumerate(want):
                allowed = max(limit, variant.error)
                compare(got[f"o{k}"], expected, allowed, f"set on {device}, {options}")
                assert got[f"o{k}"].tobytes() == again[f"o{k}"].tobytes()
            if options.guard:
                check_memory(session, "set")
    return variant.name


def check_subgroups(
    device: str,
    monkeypatch: pytest.MonkeyPatch,
    spec: OpSpec,
    inputs: Sequence[np.ndarray],
    tolerance: float | None = None,
) -> None:
    """Run check_op on the code for a GPU with subgroups, where 64 members fold each row by them.

    Skips the test where the device has no subgroups.
    """
    if not select(device).caps.subgroups:
        pytest.skip("the device has no subgroups")
    generate_for(monkeypatch, replace(GPU, features=frozenset({"subgroups"})))
    (name, *_) = check_op(device, spec, inputs, tolerance=tolerance)
    assert name.endswith("_g64s")


def of_cpus(device: str) -> bool:
    """Whether kernels on a device are those for CPUs, whose names a test may ask for."""
    return planning.target_of(select(device)).is_cpu


def rounded(array: np.ndarray | None, dtype: str) -> np.ndarray | None:
    """Return a float32 array as it comes back from storage."""
    if array is None or array.dtype != np.float32 or STORAGE[dtype] == F32:
        return array
    return widen(narrow(array, STORAGE[dtype]), STORAGE[dtype])


def _widen(array: np.ndarray | None) -> np.ndarray | None:
    if array is None or array.dtype.kind != "f":
        return array
    return array.astype(np.float64)


def _borders(graph: Graph, width: int) -> dict[str, Border]:
    if not width:
        return {}
    return {
        name: Border((0, 0) + (width,) * (t.rank - 2), (0, 0) + (width,) * (t.rank - 2), 0.0)
        for name, t in graph.types.items()
        if t.rank in (3, 4) and name not in graph.consts
    }


def variant_names(
    graph: Graph,
    device: str,
    hints: Hints | None = None,
    every: bool = False,
    dtype: str = "f32",
) -> dict[str, float]:
    """Return the variants that the (only) node offers on `device`, with the errors they declare."""
    seen: dict[str, float] = {}

    def note(node: Node, problem: Any, variants: Sequence[Variant]) -> Variant:
        if node.name == "node":
            every_one = every and problem.outputs[0].type.size
            offered = [*variants, *(node.spec.candidates(problem) if every_one else [])]
            seen.update((v.name, v.error) for v in offered)
        return variants[0]

    target = planning.target_of(select(device))  # which tests may have replaced
    make_plan(graph, allowed(target, Options(dtype=dtype)), note, hints=hints)
    return seen


def run_variants(
    graph: Graph,
    device: str,
    limits: Mapping[str, float],
    hints: Hints,
    inputs: Sequence[np.ndarray | None],
    want: Sequence[np.ndarray],
    dtype: str = "f32",
) -> None:
    """Run variants, each within its limit; their kernels are built together."""
    opened = None
    if TOGETHER:
        opened = JoinedDevice.of(select(device))
        target = allowed(planning.target_of(opened.info), Options(dtype=dtype))
        sources: dict[str, str] = {}
        for name in limits:
            plan = make_plan(graph, target, picks(name), separate=True, guard=GUARD, hints=hints)
            sources |= dict.fromkeys(sources_of(plan).values(), name)
        opened.build({f"{name}#{k}": source for k, (source, name) in enumerate(sources.items())})
    for name, limit in limits.items():
        run_variant(graph, device, name, hints, inputs, want, limit, dtype, opened)


def picks(name: str) -> Chooser:
    """Return what chooses the variant of a name for "node", and the first one for others."""

    def pick(node: Node, problem: Any, variants: Sequence[Variant]) -> Variant:
        if node.name != "node":
            return variants[0]
        same = [v for v in variants if v.name == name]
        return next(iter(same or [v for v in node.spec.candidates(problem) if v.name == name]))

    return pick


def run_variant(
    graph: Graph,
    device: str,
    name: str,
    hints: Hints,
    inputs: Sequence[np.ndarray | None],
    want: Sequence[np.ndarray],
    limit: float,
    dtype: str = "f32",
    opened: Device | None = None,
) -> None:
    """Run one variant in guarded, poisoned memory and check everything that can be checked.

    opened: the device, with programs that are built already.
    """
    options = Options(guard=GUARD, arena="separate", fuse=False, dtype=dtype)
    where = f"{name} on {device}"
    with Session(graph, select(device), options, picks(name), hints, device=opened) as session:
        feeds = {
            f"i{k}": a for k, a in enumerate(inputs) if a is not None and f"i{k}" in graph.inputs
        }
        got = session(feeds)
        again = session(feeds)
        for k, expected in enumerate(want):
            compare(got[f"o{k}"], expected, limit, where, ROUNDING[dtype])
            assert got[f"o{k}"].tobytes() == again[f"o{k}"].tobytes(), (
                f"{where}: second run differs"
            )
        check_memory(session, where)


def compare(
    got: np.ndarray, want: np.ndarray, limit: float, where: str, rounding: float = 0.0
) -> None:
    """Assert equal shape and values: exact for integers, else within `limit` of the largest value.

    rounding: of each value besides, relative to itself.
    """
    assert got.shape == want.shape, f"{where}: shape {got.shape}, reference {want.shape}"
    if got.dtype.kind != "f":
        np.testing.assert_array_equal(got, want.astype(got.dtype), err_msg=where)
        return
    same = (np.isnan(got) & np.isnan(want)) | (got == want)
    finite = np.isfinite(want)
    assert (same | finite).all(), f"{where}: NaN or infinity in other places than the reference"
    scale = max(float(np.abs(want[finite]).max(initial=0.0)), 1e-30)
    error = np.zeros(want.shape)
    np.subtract(got, want, out=error, where=~same, dtype=np.float64)
    error = np.abs(error)
    allowed = np.abs(np.where(finite, want, 0.0)) * rounding
    error = (error - allowed).max(initial=0.0) / scale
    assert error <= limit, (
        f"{where}: error {error:.3g} relative to the largest value, limit {limit}"
    )


def check_memory(session: Session, where: str) -> None:
    """Assert that guards hold poison and borders hold their fill in every state of a session."""
    for state in session._call_states:
        for key, storage in session.plan.storages.items():
            raw = storage_bytes(state, key)
            body = raw[GUARD : raw.size - GUARD]
            assert (raw[:GUARD] == POISON).all(), f"{where}: wrote in front of {key}"
            assert (raw[raw.size - GUARD :] == POISON).all(), f"{where}: wrote behind {key}"
            check_border(storage, body, f"{where}: {key}")


def storage_bytes(state: ExecutionState, key: str) -> np.ndarray:
    """Return all bytes of a storage with its guards."""
    where = state.memory[key]
    raw = np.empty(state.plan.block_bytes[key], np.uint8)
    start = where.start - state.plan.guard
    load().enqueue_copy(state.queue, raw, where.buffer, src_offset=start, is_blocking=True)
    return raw


def check_border(storage: Storage, body: np.ndarray, where: str) -> None:
    """Assert that a storage's border holds the fill value, and gaps between pixels that, poison or nothing."""
    flat = body.view(storage.dtype.numpy).copy()[: max(storage.layout.size, 1)]
    whole = view_of(flat, with_border(storage.layout))
    fill = np.asarray(storage.fill or 0, storage.dtype.numpy)
    if storage.dtype in (STORED_F16, STORED_BF16):
        fill = narrow(np.asarray(storage.fill or 0), storage.dtype)
    view_of(flat, storage.layout)[...] = fill
    assert (whole == fill).all(), f"{where}: border was changed"
    whole[...] = fill
    poison = (flat.view(np.uint8).reshape(flat.size, -1) == POISON).all(axis=1)
    untouched = poison | (flat == 0)  # some simulators begin with zeros
    assert ((flat == fill) | untouched).all(), f"{where}: what lies between pixels was changed"


def rng(seed: int = 0) -> np.random.Generator:
    """Return a seeded generator."""
    return np.random.default_rng(seed)


def normal(shape: Sequence[int], seed: int = 0) -> np.ndarray:
    """Return float32 data from a normal distribution."""
    return rng(seed).standard_normal(tuple(shape)).astype(np.float32)
