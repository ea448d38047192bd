"""Einsum gives numpy's numbers in every form, and matrix products end in the gemm family."""

from __future__ import annotations

import numpy as np
import pytest
from harness import rng
from onnx import TensorProto, helper
from onnx_models import model, value
from reference_engines import one_node, onnxruntime_result
from together import evaluate, imported

import clnn
from clnn.compile import load_graph
from clnn.errors import ClnnError, ShapeError
from clnn.ops.onnx_registry import Unsupported

FORMS = [
    ("ij,jk->ik", (3, 4), (4, 5)),
    ("ij,jk", (3, 4), (4, 5)),
    ("ij,jk->ki", (3, 4), (4, 5)),
    ("ij,jk->ij", (3, 4), (4, 5)),
    ("ij,jk->ik", (3, 1), (4, 5)),
    ("ij,jk->ik", (3, 0), (0, 5)),
    ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)),
    ("bhid,bhjd->bhij", (2, 3, 4, 5), (2, 3, 6, 5)),
    ("bhwc,hkc->bhwk", (2, 3, 4, 5), (3, 6, 5)),
    ("b i d , b j d -> b i j", (2, 3, 4), (2, 5, 4)),
    ("...ij,...jk->...ik", (2, 3, 4), (2, 4, 5)),
    ("...ij,jk", (2, 3, 4), (4, 5)),
    ("a...,b...->ab...", (2, 3, 4), (5, 3, 4)),
    ("i...->...", (3, 4)),
    ("i,i->", (5,), (5,)),
    ("i,j->ij", (3,), (4,)),
    ("i,ij->j", (3,), (3, 4)),
    ("ij,j->i", (3, 4), (4,)),
    ("ij,k->ijk", (2, 3), (4,)),
    ("ij,ij->ij", (3, 4), (1, 4)),
    ("ij,ij->ji", (3, 4), (3, 4)),
    ("ijk,ijk->i", (2, 3, 4), (2, 3, 4)),
    ("bij,bij->b", (2, 3, 4), (2, 3, 4)),
    ("ab,bc,cd->ad", (2, 3), (3, 4), (4, 5)),
    ("ab,bc,cd,de->ea", (2, 3), (3, 4), (4, 5), (5, 2)),
    ("ar,br,cr->abc", (2, 3), (4, 3), (5, 3)),
    ("ij->ji", (3, 4)),
    ("ij->", (2, 3)),
    ("ijk->kj", (2, 3, 4)),
    ("ii->i", (4, 4)),
    ("ii", (4, 4)),
    ("...ii->...i", (2, 3, 3)),
    ("iii->i", (3, 3, 3)),
    ("ijij->ij", (2, 3, 2, 3)),
    ("iij,jk->ik", (3, 3, 4), (4, 5)),
    ("ij,jj->i", (2, 3), (3, 3)),
    ("ii,ii->i", (3, 3), (3, 3)),
    ("abcdef,abcdgf->abcdeg", (2, 1, 2, 3, 2, 3), (2, 1, 2, 3, 4, 3)),
    ("abcdefg,abcdefg->abcdef", (2, 1, 2, 1, 2, 3, 2), (2, 1, 2, 1, 2, 3, 2)),
]


def drawn(shapes, dtype, seed=0):
    return [(4 * rng(seed + k).standard_normal(s)).astype(dtype) for k, s in enumerate(shapes)]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("equation,shapes", [(e, s) for e, *s in FORMS])
def test_forms_agree_with_onnxruntime(equation, shapes, dtype):
    arrays = drawn(shapes, dtype)
    (want,) = onnxruntime_result("Einsum", arrays, {"equation": equation}, 12)
    got = evaluate(imported("Einsum", arrays, {"equation": equation}, 12), arrays)
    assert got.dtype == want.dtype and got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)
    last = len(arrays) - 1
    fixed = evaluate(imported("Einsum", arrays, {"equation": equation}, 12, (last,)), arrays)
    np.testing.assert_allclose(fixed, want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "uint32", "uint64"])
def test_sums_of_small_integers_wrap(dtype):
    arrays = [rng(k).integers(0, 120, s).astype(dtype) for k, s in enumerate([(3, 9), (9, 2)])]
    got = evaluate(imported("Einsum", arrays, {"equation": "ij,jk->ki"}, 12), arrays)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, np.einsum("ij,jk->ki", *arrays))


@pytest.mark.parametrize("equation,a,b", [
    ("...ij,...jk->...ik", (2, 1, 3, 4), (3, 4, 5)),
    ("...,...->...", (2, 3), (3,)),
    (",ij->ij", (), (2, 3)),
    ("Aa,ab", (2, 3), (3, 4)),
])  # fmt: skip
def test_forms_that_onnxruntime_lacks_are_numpys(equation, a, b):
    arrays = drawn([a, b], "float32")
    got = evaluate(imported("Einsum", arrays, {"equation": equation}, 12), arrays)
    np.testing.assert_allclose(got, np.einsum(equation, *arrays), rtol=1e-5, atol=1e-4)


def test_a_random_table_of_equations():
    chance = rng(5)
    extents = dict(zip("abcdef", (2, 3, 1, 4, 5, 2), strict=True))
    for _ in range(300):
        count = int(chance.integers(1, 5))
        terms = ["".join(chance.choice(list(extents), chance.integers(0, 5))) for _ in range(count)]
        letters = sorted(set("".join(terms)))
        chance.shuffle(letters)
        right = "".join(letters[: int(chance.integers(0, len(letters) + 1))])
        equation = ",".join(terms) + (f"->{right}" if chance.random() < 0.8 else "")
        arrays = [chance.standard_normal([extents[n] for n in term]) for term in terms]
        got = evaluate(imported("Einsum", arrays, {"equation": equation}, 12), arrays)
        np.testing.assert_allclose(got, np.einsum(equation, *arrays), atol=1e-8, err_msg=equation)


@pytest.mark.parametrize("dtype", ["float32", "int32", "float16"])
@pytest.mark.parametrize("equation,shapes", [(e, s) for e, *s in FORMS[::3]])
def test_forms_on_devices(device, equation, shapes, dtype):
    arrays = drawn(shapes, dtype)
    proto = one_node("Einsum", arrays, {"equation": equation}, 12)
    with clnn.compile_model(proto, device) as session:
        (got,) = session({f"i{k}": a for k, a in enumerate(arrays)}).values()
    want = np.einsum(equation.replace(" ", ""), *(a.astype(np.float64) for a in arrays))
    assert got.dtype == dtype and got.shape == want.shape
    bound = 2e-3 if dtype == "float16" else 1e-5
    np.testing.assert_allclose(got, want, rtol=bound, atol=20 * bound)


@pytest.mark.parametrize("equation,shapes", [
    ("bhid,bhjd->bhij", [("b", 3, "n", 4), ("b", 3, "m", 4)]),
    ("bij,jk->bik", [("b", "n", 5), (5, 6)]),
    ("bii->b", [("b", "n", "n")]),
    ("...i,i->...", [("b", "n", 5), (5,)]),
])  # fmt: skip
def test_a_session_of_any_shape(any_device, equation, shapes):
    inputs = [value(f"i{k}", s) for k, s in enumerate(shapes)]
    names = [i.name for i in inputs]
    proto = model([helper.make_node("Einsum", names, ["y"], equation=equation)], inputs)
    with clnn.compile_model(proto, any_device) as session:
        for b, n, m in [(2, 7, 6), (1, 3, 5), (3, 1, 9), (1, 1, 1), (4, 33, 2)]:
            extents = {"b": b, "n": n, "m": m}
            arrays = drawn([[extents.get(d, d) for d in s] for s in shapes], "float32", n)
            (got,) = session(dict(zip(names, arrays, strict=True))).values()
            np.testing.assert_allclose(got, np.einsum(equation, *arrays), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("equation,shapes", [
    ("ij,jk->ik", [(64, 128), (128, 32)]),
    ("bhid,bhjd->bhij", [(2, 3, 4, 5), (2, 3, 6, 5)]),
    ("ab,bc,cd->ad", [(2, 3), (3, 4), (4, 5)]),
])  # fmt: skip
def test_products_are_matrix_products(equation, shapes):
    proto = one_node("Einsum", drawn(shapes, "float32"), {"equation": equation}, 12)
    kinds = [node.spec.kind for node in load_graph(proto).nodes]
    assert kinds.count("gemm") == len(shapes) - 1
    assert not set(kinds) - {"gemm", "transpose", "reshape"}


def test_the_cheap_order_of_three_operands_is_taken():
    arrays = drawn([(40, 2), (2, 40), (40, 3)], "float32")
    graph = load_graph(one_node("Einsum", arrays, {"equation": "ab,bc,cd->ad"}, 12))
    shapes = [graph.types[n.outputs[0]].shape for n in graph.nodes if n.spec.kind == "gemm"]
    assert shapes == [(2, 3), (40, 3)] or shapes == [(3, 2), (40, 3)]


@pytest.mark.parametrize("equation,shapes,why", [
    ("ij,jk->ik", [(2, 3)], "2 terms for 1 inputs"),
    ("ij->ik", [(2, 3)], "'k' cannot stand so"),
    ("ij->ii", [(2, 3)], "'i' cannot stand so"),
    ("ij,jk->ik", [(2, 3), (4, 5)], "'j' is 3 and 4"),
    ("i->i", [(2, 3)], "does not name the axes of rank 2"),
    ("i1->i", [(2, 3)], "is no term"),
    ("i...->i", [(2, 3)], "lacks the ellipsis"),
    ("ii->i", [(1, 3)], "needs equal extents"),
])  # fmt: skip
def test_what_does_not_fit_is_named(equation, shapes, why):
    with pytest.raises(ShapeError, match=why):
        imported("Einsum", drawn(shapes, "float32"), {"equation": equation}, 12)


def test_too_many_axes_are_refused():
    arrays = [np.ones((1,) * 5, np.float32), np.ones((1,) * 5, np.float32)]
    with pytest.raises(Unsupported, match="more than 8 axes"):
        imported("Einsum", arrays, {"equation": "abcde,fghij->abcdefghij"}, 12)


def test_types_that_differ_are_refused():
    inputs = [value("a", (2,)), value("b", (2,), TensorProto.INT32)]
    node = helper.make_node("Einsum", ["a", "b"], ["y"], equation="i,i->")
    with pytest.raises(ClnnError, match="must be equal"):
        load_graph(model([node], inputs))
