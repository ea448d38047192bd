"""Every binary function fused behind every producer, the running value on either side of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from harness import ROUNDING, normal, rounded
from small_graphs import Builder
from targets import GPU, generate_for

from clnn.graph.ir import Graph, Node
from clnn.graph.passes import optimise
from clnn.graph.passes.store import store_as
from clnn.ops.conv.transpose import ConvTranspose
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.gemm.spec import Gemm
from clnn.ops.launch import Variant
from clnn.ops.pool.spec import Pool
from clnn.ops.problem import Problem
from clnn.ops.resize.sampling import Sampling
from clnn.ops.resize.spec import Resize
from clnn.ops.rows.lrn import Lrn
from clnn.ops.rows.norm import Normalise
from clnn.ops.rows.reduce import Reduce
from clnn.ops.rows.softmax import Softmax
from clnn.ops.shared.functions import FUNCTIONS, PostOp
from clnn.ops.shared.window import Window
from clnn.options import Options
from clnn.runtime.device.device import select
from clnn.runtime.run.session import Session
from clnn.target import Target
from clnn.types import STORAGE, TensorType
from clnn.verification.reference import reference_values

pytestmark = pytest.mark.dealt

CORES = replace(GPU, tensor="emulated")
NAN = np.float32("nan")


def larger(a, b):
    return np.where(np.isnan(a) | np.isnan(b), NAN, np.where(a > b, a, b))


def smaller(a, b):
    return np.where(np.isnan(a) | np.isnan(b), NAN, np.where(a < b, a, b))


# What the functions are, apart from clnn's own references.
MEANING: dict[str, Callable] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "pow": lambda a, b: a**b,
    "min": smaller,
    "max": larger,
    "prelu": lambda a, b: np.where(a < 0, a * b, a),
    "replace": lambda a, b: np.where(np.isposinf(b) | np.isnan(b), a, b),
}
# Function, whether the running value is its second operand, and numbers that the other one is drawn
# from, exact in 16 bits. What one step makes keeps the next one's argument where it tells much.
CHAIN = (
    ("sub", True, (-3, -2, -1, 1, 2, 3)),
    ("max", True, (-2, -1, 0, 1, 2, NAN)),
    ("add", False, (-4, -1, 1, 4)),
    ("min", True, (-2, -1, 0, 1, 2, NAN)),
    ("mul", True, (-1, 0.5, 2)),
    ("max", False, (-3, -2, -1, 0, 1, NAN)),
    ("add", True, (-3, 0.5, 3)),
    ("min", False, (-1, 0, 1, 2, 3, NAN)),
    ("prelu", False, (-0.5, 0.25, 2)),
    ("sub", False, (-2, 0.5, 2)),
    ("mul", False, (-1, -0.0, 0, 1, 2)),
    ("div", True, (-2, -1, 1, 2)),
    ("max", True, (-8, -1, -0.0, 0, 1)),
    ("min", True, (-1, 0.0, -0.0, 1, 8)),
    ("pow", True, (0.5, 1.5, 2)),
    ("prelu", True, (-2, -1, -0.5)),
    ("pow", False, (2, 3)),
    ("div", False, (-4, -0.0, 0.0, 2)),
    ("replace", False, (-2, 0.0, *(np.inf,) * 8)),
    ("replace", True, (1, 2)),
)


@dataclass(frozen=True)
class Producer:
    """A node whose kernels take post-ops, its input, and a part of the name of the kernel to run."""

    made: Callable[[Builder], str]
    kernel: str = ""
    shape: tuple[int, ...] = (1, 8, 6, 8)
    target: Target | None = None
    rounds: bool = False  # it stores something on the way

    def pick(self, node: Node, problem: Problem, variants: Sequence[Variant]) -> Variant:
        """Return the variant of that name, or the best one where there is none."""
        every = [*variants, *node.spec.candidates(problem)]
        return next((v for v in every if self.kernel in v.name), variants[0])


def window(k=3, stride=1, pad=1) -> Window:
    return Window((k, k), (stride, stride), (1, 1), (pad, pad), (pad, pad))


def separable(b: Builder) -> str:
    return b.conv(b.conv("x", 8, group=8), 8, 1)


def transposed(b: Builder) -> str:
    spec = ConvTranspose((4, 4), (2, 2), (1, 1), (1, 1), (12, 16))
    return b.add(spec, "x", b.const(8, 5, 4, 4), b.const(5))


def scaled(b: Builder) -> str:
    spec = Eltwise((PostOp("mul", operand=1), PostOp("add", operand=2)))
    return b.add(spec, "x", b.const(1, 8, 1, 1), b.const(1, 8, 1, 1))


def resized(mode: str, scale: float) -> Callable[[Builder], str]:
    high, wide = int(6 * scale), int(8 * scale)
    spec = Resize((1, 8, high, wide), (1.0, 1.0, scale, scale), Sampling(mode))
    return lambda b: b.add(spec, "x")


def product(b: Builder) -> str:
    return b.add(Gemm(), "x", b.const(40, 24), b.const(24))


def turned_product(b: Builder) -> str:
    return b.add(Gemm(trans_b=True), "x", b.post_ops("neg", b.const(24, 40)), b.const(24))


def pooled(b: Builder) -> str:
    return b.add(Pool(window(2, 2, 0), "average"), "x")


def mean(b: Builder) -> str:
    return b.add(Reduce("mean", (3,)), "x")


PRODUCERS = {
    "conv": Producer(lambda b: b.conv("x", 8, stride=2), "conv2d_direct"),
    "point": Producer(lambda b: b.conv("x", 16, 1), "conv2d_direct"),
    "conv, any": Producer(lambda b: b.conv("x", 8), "conv2d_reference"),
    "winograd": Producer(lambda b: b.conv("x", 32), "winograd", (1, 32, 16, 16)),
    "depthwise": Producer(lambda b: b.conv("x", 8, group=8), "depthwise"),
    "separable": Producer(separable, "separable"),
    "transposed": Producer(transposed),
    "transposed, any": Producer(transposed, "reference"),
    "product": Producer(product, "gemm_tiled", (24, 40)),
    "row": Producer(turned_product, "gemm_dot", (1, 40), GPU),
    "product, any": Producer(product, "gemm_reference", (7, 40)),
    "average": Producer(pooled, "_b"),
    "average, any": Producer(pooled, "any"),
    "batchnorm": Producer(scaled),
    "elementwise": Producer(lambda b: b.post_ops("softsign", "x")),
    "mean": Producer(mean),
    "sums of columns": Producer(lambda b: b.add(Reduce("sum", (1,)), "x")),
    "softmax": Producer(lambda b: b.add(Softmax((3,)), "x")),
    "norm": Producer(lambda b: b.add(Normalise((3,)), "x")),
    "lrn": Producer(lambda b: b.add(Lrn(3), "x")),
    "resize": Producer(resized("linear", 2.0), rounds=True),
    "repeat": Producer(resized("nearest", 2.0)),
    "shared conv": Producer(lambda b: b.conv("x", 32), "conv2d_workgroup", (1, 16, 12, 12), GPU),
    "sum in parts": Producer(lambda b: b.conv("x", 32, 5), "_p4_", (1, 32, 12, 12), GPU),
    "shared winograd": Producer(
        lambda b: b.conv("x", 32), "winograd_workgroup", (1, 32, 16, 16), GPU
    ),
    "fused winograd": Producer(lambda b: b.conv("x", 32), "fused", (1, 32, 16, 16), GPU),
    "shared separable": Producer(separable, "separable_workgroup", target=GPU, rounds=True),
    "shared product": Producer(product, "gemm_workgroup", (24, 40), GPU),
    "shared mean": Producer(mean, target=GPU),
    "tensor conv": Producer(lambda b: b.conv("x", 32), "mma", (1, 16, 12, 12), CORES),
    "tensor product": Producer(product, "mma", (24, 40), CORES),
}


def operands(shape: tuple[int, ...]) -> list[np.ndarray]:
    """Return what each function of the chain takes besides the running value: whole or of one axis."""
    rng = np.random.default_rng(3)
    found = []
    for number, (_, _, choices) in enumerate(CHAIN):
        small = (1,) * (len(shape) - 1) + shape[-1:]
        found.append(rng.choice(np.array(choices, np.float32), small if number % 3 == 2 else shape))
    return found


def chained(
    producer: Producer, fed: bool
) -> tuple[Graph, str, dict[str, np.ndarray], list[np.ndarray]]:
    """Return the producer with the chain behind it as the importer makes it, its result, and operands.

    fed: the operands are inputs of the graph, else constants. Returns (graph, name of the producer's
    result, what is to be fed besides x, operands).
    """
    b = Builder(x=producer.shape)
    made = producer.made(b)
    value = b.post_ops("sin", made)
    others, feeds = operands(b.types[value].shape), {}
    for number, ((fn, swapped, _), other) in enumerate(zip(CHAIN, others, strict=True)):
        name = f"c{number}" if fed else b.fixed(other)
        if fed:
            feeds[name], b.types[name] = other, TensorType(other.shape)
        value = b.post_ops(fn, *((name, value) if swapped else (value, name)))
    b.inputs += tuple(feeds)
    return b.graph(value), made, feeds, others


def expected(value: np.ndarray, others: list[np.ndarray]) -> np.ndarray:
    """Return the chain's value by what its functions mean, behind a sine, which kernels call."""
    with np.errstate(all="ignore"):
        value = np.sin(value)
        for (fn, swapped, _), other in zip(CHAIN, others, strict=True):
            a, b = (
                (other.astype(np.float64), value) if swapped else (value, other.astype(np.float64))
            )
            value = MEANING[fn](a, b)
    return value


def post_ops_of(node: Node) -> tuple[PostOp, ...]:
    return getattr(node.spec, "post_ops", ())


def check(
    got: np.ndarray, value: np.ndarray, others: list[np.ndarray], error: float, dtype: str
) -> None:
    """Assert that `got` is the chain of what the producer made, which may be off by an error.

    error: relative to the producer's largest value. dtype: in which the result was stored.
    """
    error *= float(np.abs(value).max())
    chains = [expected(value + by, others) for by in (-error, 0.0, error)]
    with np.errstate(all="ignore"):
        low, want, high = (rounded(c.astype(np.float32), dtype).astype(float) for c in chains)
        moved = np.maximum(np.abs(low - want), np.abs(high - want))
        finite = np.isfinite(want)
        certain = ~finite | (moved < (0.01 + ROUNDING[dtype]) * np.abs(want) + 0.01)
        close = np.abs(got - want) <= 2 * moved + (1e-5 + ROUNDING[dtype]) * np.abs(want) + 1e-6
    same = finite & close | (got == want) | (np.isnan(got) & np.isnan(want))
    assert certain.mean() > 0.9
    assert same[certain].all(), f"{(~same & certain).sum()} of {same.size} values are wrong"


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("fed", [False, True], ids=["constant", "computed"])
@pytest.mark.parametrize("name", PRODUCERS)
def test_both_orders_of_operands_behind_every_producer(device, monkeypatch, name, fed, dtype):
    producer = PRODUCERS[name]
    graph, made, feeds, others = chained(producer, fed)
    graph = replace(graph, consts={n: rounded(a, dtype) for n, a in graph.consts.items()})
    fused = store_as(optimise(graph), STORAGE[dtype])
    if producer.target:
        generate_for(monkeypatch, producer.target)
    feeds["x"] = rounded(normal(producer.shape, 5), dtype)
    with Session(fused, select(device), Options(dtype=dtype), producer.pick) as session:
        (got,) = session(feeds).values()
        ran = max((s.node for s in session.plan.scheduled), key=lambda n: len(post_ops_of(n)))
    assert len(post_ops_of(ran)) >= len(CHAIN)
    value = reference_values(graph, {k: a.astype(np.float64) for k, a in feeds.items()})[made]
    error = ROUNDING[dtype] if producer.rounds else 0.0
    stored = dtype if ran.spec.supports_narrow_storage else "f32"
    check(got, value, others, max(error, 1e-5), stored)


def test_the_chain_has_every_binary_function_both_ways():
    wanted = {
        (fn, swapped)
        for fn, rule in FUNCTIONS.items()
        if rule.binary and not rule.of_bytes
        for swapped in (False, True)
    }
    assert {(fn, swapped) for fn, swapped, _ in CHAIN} == wanted
    assert set(MEANING) == {fn for fn, _ in wanted}
