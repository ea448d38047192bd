"""The pass that makes one op of two products and the softmax between them: spellings of exporters."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from harness import normal, of_cpus
from onnx import helper, numpy_helper
from reference_engines import exact_session
from targets import with_tiles

import clnn
from clnn.compile import load_graph, prepare
from clnn.graph.passes import fuse_attention
from clnn.ops.transformer.attend import Attention
from clnn.options import Options

HEADS, LENGTH, SIZE = 3, 18, 8
WIDTH = HEADS * SIZE
LOWEST = float(np.finfo(np.float32).min)


@dataclass
class Spelling:
    """The nodes of a model as they are written, and its constants; `x` is the input, `y` the output."""

    nodes: list = field(default_factory=list)
    consts: dict = field(default_factory=dict)
    feeds: dict = field(default_factory=lambda: {"x": normal((1, LENGTH, WIDTH))})
    outputs: tuple = ("y",)

    def add(self, op, inputs, out, **attrs):
        self.nodes.append(helper.make_node(op, inputs, [out], **attrs))
        return out

    def const(self, name, array):
        self.consts[name] = np.asarray(array)
        return name

    def heads(self, name, order=(0, 2, 1, 3), source="x"):
        """A projection of the input as heads: views of it in another order."""
        weight = self.const(f"w_{name}", normal((WIDTH, WIDTH), len(self.consts)) / 4)
        self.add("MatMul", [source, weight], f"p_{name}")
        self.const(f"s_{name}", np.array([0, -1, HEADS, SIZE]))
        self.add("Reshape", [f"p_{name}", f"s_{name}"], f"r_{name}")
        return self.add("Transpose", [f"r_{name}"], name, perm=order)

    def joined(self, heads):
        """The result as tokens again."""
        self.add("Transpose", [heads], "turned", perm=(0, 2, 1, 3))
        self.const("s_out", np.array([0, -1, WIDTH]))
        self.add("Reshape", ["turned", "s_out"], "y")
        return self

    def bytes(self):
        kind = helper.np_dtype_to_tensor_dtype
        ins = [
            helper.make_tensor_value_info(n, kind(a.dtype), a.shape) for n, a in self.feeds.items()
        ]
        outs = [helper.make_empty_tensor_value_info(n) for n in self.outputs]
        held = [numpy_helper.from_array(a, n) for n, a in self.consts.items()]
        graph = helper.make_graph(self.nodes, "net", ins, outs, held)
        opsets = [helper.make_opsetid("", 17)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def bert():
    """Scores divided, a mask of keys added, as older exporters write it."""
    s = Spelling()
    s.feeds["mask"] = (
        np.where(np.arange(LENGTH) > 11, -10000, 0).astype(np.float32).reshape(1, 1, 1, -1)
    )
    q, k, v = s.heads("q"), s.heads("k", (0, 2, 3, 1)), s.heads("v")
    s.add("MatMul", [q, k], "raw")
    s.add("Div", ["raw", s.const("root", np.float32(SIZE**0.5))], "scaled")
    s.add("Add", ["scaled", "mask"], "scores")
    s.add("Softmax", ["scores"], "weights", axis=-1)
    return s.joined(s.add("MatMul", ["weights", v], "mixed"))


def sdpa(root=SIZE**-0.25, fed=False):
    """Queries and keys scaled, a mask of -infinity, NaN made 0: scaled_dot_product_attention.

    fed: queries and keys as inputs.
    """
    s = Spelling()
    s.feeds["mask"] = np.where(np.arange(LENGTH) % 5 == 4, -np.inf, 0).astype(np.float32)[
        None, None, None
    ]
    if fed:
        s.feeds["q"] = normal((1, HEADS, LENGTH, SIZE), 1)
        s.feeds["k"] = normal((1, HEADS, SIZE, LENGTH), 2)
    q, k = ("q", "k") if fed else (s.heads("q"), s.heads("k", (0, 2, 3, 1)))
    v = s.heads("v")
    root = s.const("root", np.float32(root))
    s.add("MatMul", [s.add("Mul", [q, root], "qs"), s.add("Mul", [k, root], "ks")], "raw")
    s.add("Add", ["raw", "mask"], "scores")
    s.add("Softmax", ["scores"], "soft", axis=-1)
    s.add("IsNaN", ["soft"], "nan")
    s.add("Where", ["nan", s.const("zero", np.float32(0)), "soft"], "weights")
    return s.joined(s.add("MatMul", ["weights", v], "mixed"))


def causal():
    """A constant mask of what stands behind a query."""
    s = Spelling()
    behind = np.where(np.arange(LENGTH) > np.arange(LENGTH)[:, None], -np.inf, 0).astype(np.float32)
    q, k, v = s.heads("q"), s.heads("k", (0, 2, 3, 1)), s.heads("v")
    s.add("MatMul", [s.add("Mul", [q, s.const("root", np.float32(0.3))], "qs"), k], "raw")
    s.add("Add", ["raw", s.const("mask", behind)], "scores")
    s.add("Softmax", ["scores"], "weights", axis=3)
    return s.joined(s.add("MatMul", ["weights", v], "mixed"))


def swin(fed=False):
    """A bias of positions, then a mask of windows between two reshapes; fed: as an input."""
    s = Spelling(feeds={"x": normal((4, LENGTH, WIDTH))})
    q, k, v = s.heads("q"), s.heads("k", (0, 2, 3, 1)), s.heads("v")
    s.add("MatMul", [q, k], "raw")
    s.add("Add", ["raw", s.const("bias", normal((1, HEADS, LENGTH, LENGTH), 7))], "biased")
    s.const("wide", np.array([1, 4, HEADS, LENGTH, LENGTH]))
    s.const("narrow", np.array([4, HEADS, LENGTH, LENGTH]))
    mask = np.where(normal((1, 4, 1, LENGTH, LENGTH), 8) > 1, -100, 0).astype(np.float32)
    s.add("Reshape", ["biased", "wide"], "windows")
    (s.feeds if fed else s.consts)["mask"] = mask
    s.add("Add", ["windows", "mask"], "masked")
    s.add("Softmax", [s.add("Reshape", ["masked", "narrow"], "scores")], "weights", axis=-1)
    return s.joined(s.add("MatMul", ["weights", v], "mixed"))


def coatnet():
    """Values times weights, both transposed: channels before pixels."""
    s = Spelling()
    q, k, v = s.heads("q"), s.heads("k", (0, 2, 3, 1)), s.heads("v", (0, 2, 3, 1))
    s.add("MatMul", [q, k], "scores")
    s.add("Softmax", ["scores"], "weights", axis=-1)
    s.add("Transpose", ["weights"], "columns", perm=(0, 1, 3, 2))
    s.add("MatMul", [v, "columns"], "mixed")
    s.add("Reshape", ["mixed", s.const("s_out", np.array([1, WIDTH, LENGTH]))], "y")
    return s


def placed(one_head=False):
    """Relative positions of rows and columns added to scores with divided axes, queries to the result."""
    s, rows, columns = Spelling(), 3, 6
    q, k, v = s.heads("q"), s.heads("k", (0, 2, 3, 1)), s.heads("v")
    s.add("MatMul", [q, k], "raw")
    grid = s.const("grid", np.array([1, HEADS, rows, columns, rows, columns]))
    s.add("Reshape", ["raw", grid], "divided")
    heads = 1 if one_head else HEADS
    s.feeds["along_rows"] = normal((1, heads, rows, columns, rows, 1), 5)
    s.feeds["along_columns"] = normal((1, heads, rows, columns, 1, columns), 6)
    s.add("Add", ["divided", "along_rows"], "one")
    s.add("Add", ["one", "along_columns"], "both")
    s.add("Reshape", ["both", s.const("flat", np.array([1, HEADS, LENGTH, LENGTH]))], "scores")
    s.add("Softmax", ["scores"], "weights", axis=-1)
    s.add("MatMul", ["weights", v], "mixed")
    return s.joined(s.add("Add", ["mixed", q], "more"))


def placed_by_rows():
    """One addend of keys' rows alone, the same for all heads and queries, and a constant behind the result."""
    s = Spelling()
    q, k, v = s.heads("q"), s.heads("k", (0, 2, 3, 1)), s.heads("v")
    s.add("MatMul", [q, k], "raw")
    s.add("Reshape", ["raw", s.const("grid", np.array([1, HEADS, LENGTH, 3, 6]))], "divided")
    s.add("Add", ["divided", s.const("bias", normal((3, 1), 5))], "both")
    s.add("Reshape", ["both", s.const("flat", np.array([1, HEADS, LENGTH, LENGTH]))], "scores")
    s.add("Softmax", ["scores"], "weights", axis=-1)
    s.add("MatMul", ["weights", v], "mixed")
    return s.joined(s.add("Add", ["mixed", s.const("end", normal((LENGTH, SIZE), 9))], "more"))


def placed_for_all_heads():
    return placed(one_head=True)


def filled(number=LOWEST, fed=False, replaces=True, added=False, spoilt=None):
    """Scores of masked keys replaced by a number; fed: by a mask that is an input.

    spoilt: added to the scores that are replaced.
    """
    s = Spelling()
    q, k, v = s.heads("q"), s.heads("k", (0, 2, 3, 1)), s.heads("v")
    behind = np.arange(LENGTH) > np.arange(LENGTH)[:, None] + 3
    (s.feeds if fed else s.consts)["mask"] = (behind == replaces)[None, None]
    s.add("MatMul", [q, k], "raw")
    s.add("Div", ["raw", s.const("root", np.float32(SIZE**0.5))], "scores")
    low, scores = s.const("low", np.float32(number)), "scores"
    if spoilt is not None:
        with_it = np.where(behind, np.float32(spoilt), np.float32(0))[None, None]
        scores = s.add("Add", [scores, s.const("spoilt", with_it)], "spoilt_scores")
    s.add("Where", ["mask", *((low, scores) if replaces else (scores, low))], "kept")
    last = s.add("Add", ["kept", s.const("bias", normal((1, 1, 1, LENGTH), 4))], "more")
    s.add("Softmax", [last if added else "kept"], "weights", axis=-1)
    return s.joined(s.add("MatMul", ["weights", v], "mixed"))


def shared_keys():
    """Keys and values of one head for all queries."""
    s = Spelling()
    q, k, v = s.heads("q"), s.heads("k", (0, 2, 3, 1)), s.heads("v")
    for name in (k, v):
        ends = [
            s.const(f"{name}_{at}", np.array([number]))
            for at, number in (("a", 0), ("b", 1), ("c", 1))
        ]
        s.add("Slice", [name, *ends], f"{name}_one")
    s.add("MatMul", [q, "k_one"], "scores")
    s.add("Softmax", ["scores"], "weights", axis=-1)
    return s.joined(s.add("MatMul", ["weights", "v_one"], "mixed"))


def prepared(spelling, **options):
    return prepare(load_graph(spelling.bytes()), Options(**options))


def found(graph):
    return [n.spec for n in graph.nodes if isinstance(n.spec, Attention)]


PLACED = [placed, placed_for_all_heads, placed_by_rows]


@pytest.mark.parametrize("spell", [bert, sdpa, causal, swin, coatnet, shared_keys, *PLACED])
def test_spellings_are_one_op_and_give_onnxruntimes_numbers(device, spell):
    spelling = spell()
    graph = prepared(spelling)
    (spec,) = found(graph)
    assert spec.turned and not [n for n in graph.nodes if n.spec.kind in ("softmax", "logic")]
    assert spec.zeros_for_nan == (spell is sdpa)
    (want,) = exact_session(spelling.bytes()).run(None, spelling.feeds)
    with clnn.compile_model(spelling.bytes(), device) as session:
        np.testing.assert_allclose(session(spelling.feeds)["y"], want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("way", ["x86", "plain"])
@pytest.mark.parametrize("spell", [bert, causal, swin, coatnet, shared_keys])
def test_in_bfloat16_where_a_device_has_tiles_of_registers(device, spell, way, monkeypatch):
    spelling, options = spell(), clnn.Options(dtype="bf16")
    (want,) = exact_session(spelling.bytes()).run(None, spelling.feeds)
    with clnn.compile_model(spelling.bytes(), device, options) as session:
        apart = session(spelling.feeds)["y"]
    with_tiles(monkeypatch, device, way)
    with clnn.compile_model(spelling.bytes(), device, options) as session:
        got = session(spelling.feeds)["y"]
        kinds = [s.node.spec.kind for s in session.plan.scheduled]
    assert ("attention" in kinds and "softmax" not in kinds) == of_cpus(device), kinds
    scale = np.abs(want).max()
    assert np.abs(got - want).max() <= max(2 * np.abs(apart - want).max(), 0.01 * scale)


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("replaces", [False, True])
@pytest.mark.parametrize("fed", [False, True])
@pytest.mark.parametrize("number", [LOWEST, -np.inf, -10000.0, 0.0])
def test_replaced_scores(device, number, fed, replaces, added):
    spelling = filled(number, fed, replaces, added)
    graph = prepared(spelling)
    (spec,) = found(graph)
    steps = [step.fn for step in spec.scores.post_ops]
    assert steps[-2:] == (["replace", "add"] if added else [*steps[-2:-1], "replace"])
    assert [n.spec.kind for n in graph.nodes].count("logic") == fed
    (want,) = exact_session(spelling.bytes()).run(None, spelling.feeds)
    with clnn.compile_model(spelling.bytes(), device) as session:
        np.testing.assert_allclose(session(spelling.feeds)["y"], want, rtol=1e-5, atol=1e-5)


def test_masked_queries_weigh_all_keys_alike(device):
    spelling = filled(fed=True)
    spelling.feeds["mask"] = np.ones_like(spelling.feeds["mask"])
    (want,) = exact_session(spelling.bytes()).run(None, spelling.feeds)
    with clnn.compile_model(spelling.bytes(), device) as session:
        np.testing.assert_allclose(session(spelling.feeds)["y"], want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("spoilt", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("replaces", [False, True])
def test_scores_that_are_no_numbers_are_replaced(device, replaces, spoilt):
    spelling = filled(replaces=replaces, spoilt=spoilt)
    assert found(prepared(spelling))
    (want,) = exact_session(spelling.bytes()).run(None, spelling.feeds)
    assert np.isfinite(want).all()
    with clnn.compile_model(spelling.bytes(), device) as session:
        np.testing.assert_allclose(session(spelling.feeds)["y"], want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("number", [np.inf, np.nan])
def test_numbers_that_are_not_below_infinity_stay_a_where(number):
    assert not found(prepared(filled(number)))


def test_factors_of_queries_and_keys_are_the_scale():
    (spec,) = found(prepared(sdpa(fed=True)))
    assert spec.scores.alpha == pytest.approx(SIZE**-0.5)
    (spec,) = found(prepared(bert()))
    assert [step.fn for step in spec.scores.post_ops] == ["div", "add"] or spec.scores.alpha != 1


def test_factors_behind_views_of_products_join_these():
    graph = prepared(sdpa())
    (spec,) = found(graph)
    assert spec.scores.alpha == 1
    products = [n.spec.post_ops for n in graph.nodes if n.spec.kind == "gemm"]
    assert [[s.fn for s in steps] for steps in products] == [["mul"], ["mul"], []]


def test_views_made_for_what_is_no_attention_are_forgotten(monkeypatch):
    """Another attention that shares the mask makes them again."""
    seen = []
    monkeypatch.setattr("clnn.compile.fuse_attention", lambda graph: seen.append(graph) or graph)
    prepared(swin(fed=True))
    passing = fuse_attention._Fusing(seen[0])
    assert any(":narrow" in node.name for node in passing.run().nodes)
    monkeypatch.setattr(fuse_attention._Fusing, "checked", lambda *_: None)
    refused = fuse_attention._Fusing(seen[0])
    refused.run()
    assert not any(":narrow" in name for name in refused.types)


def test_factors_whose_product_float32_lacks_stay_apart():
    (spec,) = found(prepared(sdpa(1e25, fed=True)))
    assert spec.scores.alpha == pytest.approx(1e25)


def test_a_query_without_keys_is_zero(device):
    spelling = sdpa()
    spelling.feeds["mask"] = np.full((1, 1, 1, LENGTH), -np.inf, np.float32)
    with clnn.compile_model(spelling.bytes(), device) as session:
        np.testing.assert_array_equal(session(spelling.feeds)["y"], np.zeros((1, LENGTH, WIDTH)))


def public(s, name):
    s.outputs = ("y", name)


def read_twice(s, name):
    public(s, s.add("Neg", [name], "besides"))


def other_axis(s, _):
    softmax = next(n for n in s.nodes if n.op_type == "Softmax")
    softmax.attribute[0].i = 2


def other_number(s, _):
    s.consts["zero"] = np.float32(1)


@pytest.mark.parametrize(
    "spell, change, name",
    [
        (bert, public, "weights"),
        (bert, public, "scores"),
        (bert, read_twice, "weights"),
        (bert, other_axis, ""),
        (sdpa, public, "soft"),
        (sdpa, other_number, ""),
        (coatnet, public, "columns"),
    ],
)
def test_what_others_read_or_something_else_stays(spell, change, name):
    spelling = spell()
    change(spelling, name)
    graph = prepared(spelling)
    assert not found(graph)
    assert [n.spec.kind for n in graph.nodes].count("softmax") == 1


@pytest.mark.parametrize("options", [{"dtype": "f16"}, {"dtype": "tf32"}, {"fuse": False}])
def test_other_numbers_keep_their_products(options):
    assert not found(prepared(bert(), **options))


def test_addends_that_are_the_same_for_all_heads_are_added_once():
    """Their sum is no larger than they are, but for the axes along which one of them varies."""
    graph = prepared(placed_for_all_heads())
    (node,) = [n for n in graph.nodes if isinstance(n.spec, Attention)]
    operand = node.inputs[node.spec.scores.post_ops[-1].operand]
    assert graph.types[operand].shape == (1, 1, LENGTH, LENGTH)
    graph = prepared(placed_by_rows())
    (node,) = [n for n in graph.nodes if isinstance(n.spec, Attention)]
    operand = node.inputs[node.spec.scores.post_ops[-1].operand]
    assert graph.types[operand].shape == (1, 1, 1, LENGTH)


def test_other_steps_between_divided_axes_stay():
    spelling = placed()
    (node,) = [n for n in spelling.nodes if n.output[0] == "one"]
    node.op_type = "Mul"
    assert not found(prepared(spelling))
