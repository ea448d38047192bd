"""Cases of random networks: drawn from seeds, run on clnn, compared with onnxruntime, made small, kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import composed_kinds
import kinds
import numpy as np
import onnx
import staged_kinds
from children import said_of
from drawing import Drawer, Feeds, Network, evaluate, evaluate_all, moderate, reads

import clnn
from clnn.compile import load_graph
from clnn.errors import ClnnError, ShapeError, UnsupportedOpError

# Share of the largest magnitude that results may differ by, and of an element that it is moved by, up or
# down, so many times, to see which results hang on rounding.
TOLERANCE = {"f32": 2e-4, "tf32": 2e-2, "f16": 2e-2, "bf16": 8e-2}
STEPS = {"f32": 2e-6, "tf32": 1e-3, "f16": 1e-3, "bf16": 8e-3}
MOVES = 3
FEW_BITS = {"f16": onnx.TensorProto.FLOAT16, "bf16": onnx.TensorProto.BFLOAT16}
NOISES = 16  # ties between neighbouring numbers change with half of them
BODIES = {"Scan", "Loop", "If"}
DECIDING = {"Unique", "NonZero", "Compress", "Range", "Loop", "If"}  # shapes, by values
# Terms that cancel, and what onnxruntime rounds to a share of 1: its sigmoids of large negative numbers are 0.
SUMS = {"DFT", "STFT", "Sigmoid"}
UINT8 = onnx.TensorProto.UINT8
# Of no elements, or steps, onnxruntime makes results of its own: a mean of 0, a last state that is not the first.
UNLIKE = {"ReduceMean", "GlobalAveragePool", "RNN", "GRU", "LSTM"}
# Of extents that are invalid: windows without room, or elements, scales for other channels, transforms of nothing.
INVALID = (
    "does not fit spatial axis",
    "must be at least 1: Window",
    "Normalization: input",
    "length is 0",
)


@dataclass(frozen=True)
class Case:
    """A network, which of its values are outputs, the options it runs with, and what else it is fed.

    dims: extents of inputs that are open, and their names. more: further feeds. fixed: the last of
    them runs on a session of its own as well, which is compiled for its shapes.
    """

    net: Network
    outputs: tuple[str, ...]
    options: dict[str, Any]
    dims: dict[int, str] | None = None
    more: tuple[Feeds, ...] = ()
    fixed: bool = False

    @property
    def model(self) -> onnx.ModelProto:
        """The case as a model."""
        return self.net.model(self.outputs, {} if self.more and self.dims is None else self.dims)

    @property
    def feeds(self) -> list[Feeds]:
        """All that it is fed, in the order of calls."""
        return [self.net.feeds, *self.more]


def draw(seed: int) -> Case:
    """Return the case of a seed."""
    drawer = Drawer(seed)
    chance = drawer.chance
    staged = chance.random() < 0.3
    usual = (*kinds.KINDS, *composed_kinds.KINDS)
    drawn = drawer.draw(drawer.up_to(8), (*usual, *staged_kinds.KINDS) if staged else usual)
    made = drawn.made
    read = {name for node in drawn.nodes for name in reads(node)}
    outputs = [n for n in made if n not in read or chance.random() < 0.15]
    case = Case(drawn, tuple(outputs), options(chance))
    if not outputs or any(UINT8 in _targets(n) for n in drawn.nodes):  # of what is below zero
        return case
    opened = _opened(case, chance) if chance.random() < 0.12 else None
    return opened or _fed_again(case, chance)


def options(chance: np.random.Generator) -> dict[str, Any]:
    """Return options; most often those with which all launches become one program, which builds fast."""
    options = {
        "dtype": str(chance.choice(["f32"] * 8 + ["f16", "bf16", "tf32"])),
        "fuse": bool(chance.random() < 0.85),
        "winograd": bool(chance.random() < 0.7),
    }
    if chance.random() < 0.85:
        return {**options, "merge": True, "guard": 0, "arena": "shared"}
    return {
        **options,
        "merge": bool(chance.random() < 0.5),
        "guard": int(chance.choice([0, 0, 64])),
        "arena": str(chance.choice(["shared", "separate"])),
    }


def _targets(node: onnx.NodeProto) -> list[int]:
    return [a.i for a in node.attribute if node.op_type == "Cast" and a.name == "to"]


def _fed_again(case: Case, chance: np.random.Generator) -> Case:
    """Return the case with other numbers as further feeds, where they stay moderate."""
    feeds = {n: _numbers(a.shape, a.dtype, chance) for n, a in case.net.feeds.items()}
    again = replace(case, more=(feeds,))
    return again if _takes(again, feeds) else case


def _numbers(shape: tuple[int, ...], dtype: np.dtype[Any], chance: np.random.Generator) -> Any:
    if dtype.kind != "f":
        return chance.integers(0, 5, shape).astype(dtype)
    return np.asarray(chance.normal(0, 1.5, shape), dtype)


def _opened(case: Case, chance: np.random.Generator) -> Case | None:
    """Return the case with one or two open extents and feeds of others, where onnxruntime takes them."""
    extents = sorted({int(n) for a in case.net.feeds.values() for n in a.shape})
    for _ in range(3 if extents else 0):
        picked = chance.choice(extents, min(len(extents), int(chance.integers(1, 3))), False)
        dims = {int(n): f"d{n}" for n in picked}
        drawn = [{n: int(chance.integers(1, 13)) for n in dims} for _ in range(4)]
        fixed = bool(chance.random() < 0.3)
        more = [feeds for others in drawn if (feeds := _of_others(case, dims, others, chance))]
        if more:
            ends = [dict.fromkeys(dims, least) for least in (1, 0)]  # after larger ones
            if UNLIKE & {node.op_type for node in case.net.nodes}:
                ends.pop()
            least = [feeds for few in ends if (feeds := _of_others(case, dims, few, chance))]
            return replace(case, dims=dims, more=(*more[:2], *least), fixed=fixed)
    return None


def _of_others(
    case: Case, dims: dict[int, str], others: dict[int, int], chance: np.random.Generator
) -> Feeds | None:
    """Return feeds of other extents, None where onnxruntime does not take them, or clnn knows why not."""
    feeds = {
        name: _numbers(tuple(others.get(n, n) for n in a.shape), a.dtype, chance)
        for name, a in case.net.feeds.items()
    }
    opened = replace(case, dims=dims)
    try:
        load_graph(opened.model, {name: a.shape for name, a in feeds.items()})
    except ShapeError as err:
        if _is_invalid(err):
            return None
    except ClnnError:
        pass
    return feeds if _takes(opened, feeds) else None


def _is_invalid(err: ShapeError) -> bool:
    """Tell whether the definition refuses the extents, too: onnxruntime makes results of its own, or never ends."""
    return any(text in str(err) for text in INVALID)


def _takes(case: Case, feeds: Feeds) -> bool:
    """Tell whether onnxruntime makes moderate numbers of feeds, between nodes too."""
    try:
        made = evaluate(replace(case, outputs=tuple(case.net.made)).model, feeds)
    except Exception:  # whatever onnxruntime says of feeds that it does not take
        return False
    if UNLIKE & {n.op_type for n in case.net.nodes} and not all(a.size for a in made.values()):
        return False
    return all(moderate(a) for a in made.values())


def on_clnn(case: Case, device: str) -> list[Feeds]:
    """Return clnn's outputs for each of the feeds, then for the first again, in one session.

    With `fixed` also those of a session for the last feeds alone.
    """
    model, options = case.model, clnn.Options(**case.options)
    with clnn.compile_model(model, device, options) as session:
        got = [session(feeds) for feeds in (*case.feeds, case.feeds[0])]
    if case.fixed:
        shapes = {name: a.shape for name, a in case.feeds[-1].items()}
        with clnn.compile_model(model, device, options, shapes) as session:
            got.append(session(case.feeds[-1]))
    return got


def wrong_outputs(case: Case, got: list[Feeds]) -> dict[str, str]:
    """Return output -> what is wrong with it in any of the calls of `on_clnn`."""
    found: dict[str, str] = {}
    fed = [*case.feeds, case.feeds[0], *([case.feeds[-1]] if case.fixed else [])]
    for number, (feeds, outputs) in enumerate(zip(fed, got, strict=True)):
        told = differences(case, feeds, outputs)
        found |= {n: how + (f" in call {number}" if number else "") for n, how in told.items()}
    for name, first in got[0].items():
        again = got[len(case.feeds)][name]
        if first.tobytes() != again.tobytes() or first.shape != again.shape:
            found.setdefault(name, "the same feeds, later in the session, give other bits")
    return found


def differences(case: Case, feeds: Feeds, got: Feeds) -> dict[str, str]:
    """Return output -> how it differs from onnxruntime's, beyond what moved inputs do to that."""
    dtype = case.options["dtype"]
    chance = np.random.default_rng(len(feeds))
    shifted = [{n: moved(a, STEPS[dtype], chance) for n, a in feeds.items()} for _ in range(MOVES)]
    try:
        want, *others = evaluate_all(case.model, [feeds, *shifted])
    except Exception:  # rounding decides whether shapes fit each other
        return {}
    found = {}
    for name in case.outputs:
        a, b = got[name], want[name]
        beside = [other[name] for other in others]
        if any(b.shape != c.shape for c in beside):  # rounding decides the shape
            continue
        deciding = a.shape != b.shape and DECIDING & {n.op_type for n in case.model.graph.node}
        if deciding and (dtype != "f32" or _hangs_on_rounding(case, feeds, name, b, np.inf)):
            continue
        if a.ndim == b.ndim and not a.size and not b.size:  # of no steps: of extents nobody knows
            continue
        if a.dtype != b.dtype or a.shape != b.shape:
            found[name] = f"{a.dtype}{a.shape} for {b.dtype}{b.shape}"
            continue
        if dtype != "f32" and b.dtype.kind != "f":  # few bits decide what is the next integer
            continue
        allowed = TOLERANCE[dtype] * max(1.0, float(np.abs(b).max(initial=0)))
        apart = np.abs(a.astype(np.float64) - b)
        unsteady = max(np.abs(c.astype(np.float64) - b).max(initial=0) for c in beside)
        if not unsteady <= allowed / 4:
            continue
        if not apart.max(initial=0) <= allowed:
            place = np.unravel_index(int(np.argmax(np.nan_to_num(apart, nan=np.inf))), a.shape)
            at = tuple(map(int, place))
            found[name] = f"{a[place]} for {b[place]} at {at} of {a.shape}"
            if _hangs_on_rounding(case, feeds, name, b, allowed):
                del found[name]
    return found


def _hangs_on_rounding(
    case: Case, feeds: Feeds, name: str, want: np.ndarray, allowed: float
) -> bool:
    """Tell whether an output changes where every value on the way to it is rounded otherwise."""
    made = floats_made(case.model)
    exact = evaluate(_with_outputs(case.model, made), feeds) if made else {}
    chance, share = np.random.default_rng(len(feeds)), 2 * STEPS[case.options["dtype"]]
    sums = {n for node in case.model.graph.node if SUMS & ops_of(node) for n in node.output}
    noise = [
        {f"{n}_noise": _noise(exact[n], chance, share, n in sums) for n in made}
        for _ in range(NOISES)
    ]
    few = FEW_BITS.get(case.options["dtype"])
    kinds = set().union(*map(ops_of, case.model.graph.node))
    if few is not None and "Equal" in kinds and BODIES & kinds:  # equal in few bits within a body
        return True
    fed = [{n: moved(a, share / 2, chance) for n, a in feeds.items()} for _ in noise]
    try:
        pairs = zip(fed, noise, strict=True)
        others = evaluate_all(with_noise(case.model, made), [{**a, **b} for a, b in pairs])
        if few is not None:  # what is equal in few bits
            others.append(evaluate(with_noise(case.model, made, few), feeds))
    except Exception:  # rounding decides shapes
        return True
    if any(other[name].shape != want.shape for other in others):
        return True
    far = [np.abs(other[name].astype(np.float64) - want).max(initial=0) for other in others]
    return not max(far) <= allowed / 4


def _shapes_hang_on_rounding(case: Case) -> bool:
    """Tell whether values decide shapes, other ones where each value on the way is rounded otherwise."""
    if not DECIDING & {node.op_type for node in case.net.nodes}:
        return False
    return any(
        _hangs_on_rounding(case, feeds, name, case.net.values[name], np.inf)
        for feeds in case.feeds[:1]
        for name in case.outputs
    )


def floats_made(model: onnx.ModelProto) -> list[str]:
    """Return the names of all float32 values that nodes of the main graph make."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    known = {v.name: v.type.tensor_type.elem_type for v in (*graph.value_info, *graph.output)}
    made = [name for node in graph.node for name in node.output]
    return [name for name in made if known.get(name) == onnx.TensorProto.FLOAT]


def with_noise(model: onnx.ModelProto, names: list[str], few: int | None = None) -> onnx.ModelProto:
    """Return the model with an input NAME_noise added to each of these values, or rounded to type `few`."""
    noisy = onnx.ModelProto.FromString(model.SerializeToString())
    nodes = []
    for node in model.graph.node:
        node = onnx.NodeProto.FromString(node.SerializeToString())
        nodes.append(node)
        for number, name in enumerate(node.output):
            if name not in names:
                continue
            exact, noise = f"{name}_exact", f"{name}_noise"
            node.output[number] = exact
            if few is None:
                nodes.append(onnx.helper.make_node("Add", [exact, noise], [name]))
                continue
            nodes.append(onnx.helper.make_node("Cast", [exact], [noise], to=few))
            nodes.append(onnx.helper.make_node("Cast", [noise], [name], to=onnx.TensorProto.FLOAT))
    del noisy.graph.node[:]
    noisy.graph.node.extend(nodes)
    if few is None:
        noisy.graph.input.extend(_float(f"{name}_noise") for name in names)
    return noisy


def ops_of(node: onnx.NodeProto) -> set[str]:
    """Return the operators of a node and of its subgraphs."""
    inner = [n for attribute in node.attribute for n in attribute.g.node]
    return {node.op_type}.union(*map(ops_of, inner))


def _noise(
    exact: np.ndarray, chance: np.random.Generator, share: float, is_sum: bool
) -> np.ndarray:
    """Return noise of a share of each value; of sums, in which terms cancel, of the largest."""
    scale = np.abs(exact).max(initial=0) if is_sum else exact
    noise = scale * chance.uniform(-share, share, exact.shape)
    return np.asarray(np.where(np.isfinite(noise), noise, 0), np.float32)


def _with_outputs(model: onnx.ModelProto, names: Iterable[str]) -> onnx.ModelProto:
    """Return the model with these values as outputs alone."""
    other = onnx.ModelProto.FromString(model.SerializeToString())
    del other.graph.output[:]
    other.graph.output.extend(_float(name) for name in names)
    return other


def _float(name: str) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)


def moved(array: np.ndarray, step: float, chance: np.random.Generator) -> np.ndarray:
    if array.dtype.kind != "f":
        return array
    return np.asarray(array * (1 + chance.choice([-step, step], array.shape)), array.dtype)


def check(case: Case, device: str) -> str:
    """Return what is wrong with a case, "" for nothing; refused forms are nothing."""
    return outcome(case, device)[0]


def outcome(case: Case, device: str) -> tuple[str, bool]:
    """Return what is wrong with a case, "" for nothing, and whether clnn refused it."""
    if not case.outputs:
        return "", False
    try:
        got = on_clnn(case, device)
    except UnsupportedOpError:
        return "", True
    except ShapeError as err:
        if case.dims is not None and _is_invalid(err):
            return "", True
        return f"ShapeError: {str(err)[:300]}", False
    except Exception as err:  # any error of a valid network is a finding
        if _shapes_hang_on_rounding(case):
            return "", True
        return said_of(err), False
    found = wrong_outputs(case, got)
    return "; ".join(f"{name}: {how}" for name, how in found.items()), False


def minimise(case: Case, wrong: Callable[[Case], Any]) -> Case:
    """Return a smaller case that is wrong still: one call, one output, fewer nodes, plainer options."""
    case = next((c for c in _single_calls(case) if wrong(c)), case)
    one = (_pruned(replace(case, outputs=(name,))) for name in case.outputs)
    case = next((c for c in one if wrong(c)), case)
    for node in [] if case.more else list(case.net.nodes):
        inputs = [*case.net.inputs, *node.output]
        kept = [n for n in case.net.nodes if n is not node]
        net = replace(case.net, inputs=inputs, nodes=kept)
        if not set(node.output) & set(case.outputs):
            smaller = _pruned(replace(case, net=net))
            case = smaller if wrong(smaller) else case
    defaults = clnn.Options()
    for key in case.options:
        plain = replace(case, options={**case.options, key: getattr(defaults, key)})
        case = plain if wrong(plain) else case
    return case


def _single_calls(case: Case) -> Iterable[Case]:
    """Yield the case with one of its feeds alone, its extents known."""
    for feeds in case.feeds:
        values = evaluate(replace(case, outputs=tuple(case.net.made)).model, feeds)
        net = replace(case.net, values={**case.net.values, **feeds, **values})
        yield replace(case, net=net, dims=None, more=(), fixed=False)


def _pruned(case: Case) -> Case:
    """Return the case without what its outputs do not hang on."""
    wanted, nodes = set(case.outputs), []
    for node in reversed(case.net.nodes):
        if wanted & set(node.output):
            nodes.insert(0, node)
            wanted |= set(reads(node))
    net = replace(
        case.net,
        nodes=nodes,
        inputs=[n for n in case.net.inputs if n in wanted],
        consts=[n for n in case.net.consts if n in wanted],
    )
    more = tuple({n: feeds[n] for n in net.inputs} for feeds in case.more)
    return replace(case, net=net, more=more)


def keep(case: Case, folder: Path) -> None:
    """Write a case as files that `replay` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(case.model, str(folder / "model.onnx"))
    for number, feeds in enumerate(case.feeds):
        np.savez(folder / f"inputs{number}.npz", **feeds)
    about = {"options": case.options, "fixed": case.fixed}
    (folder / "case.json").write_text(json.dumps(about), "utf-8")


class _Kept(Case):
    """A case that was read from files."""

    read: onnx.ModelProto
    fed: list[Feeds]

    @property
    def model(self) -> onnx.ModelProto:
        return self.read

    @property
    def feeds(self) -> list[Feeds]:
        return self.fed


def replay(folder: Path, device: str) -> str:
    """Return what is wrong with a case that was kept."""
    about = json.loads((folder / "case.json").read_text("utf-8"))
    model, fed = onnx.load(str(folder / "model.onnx")), []
    for path in sorted(folder.glob("inputs*.npz")):
        with np.load(path) as feeds:
            fed.append({name: feeds[name] for name in feeds.files})
    outputs = tuple(o.name for o in model.graph.output)
    case = _Kept(Network(), outputs, about["options"], fixed=about["fixed"])
    object.__setattr__(case, "read", model)
    object.__setattr__(case, "fed", fed)
    return check(case, device)
