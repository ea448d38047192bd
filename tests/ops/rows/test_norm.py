from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from harness import check_op, check_subgroups, normal, of_cpus, rng
from reference_engines import one_node, onnx_result
from targets import GPU, generate_for
from together import chain, check_together, evaluate, imported

from clnn.errors import DTypeError, ShapeError
from clnn.importers.onnx.importer import import_onnx
from clnn.ops.onnx_registry import Unsupported
from clnn.ops.rows.norm import Normalise
from clnn.ops.shared.functions import PostOp
from clnn.options import Options
from clnn.runtime.device.device import select
from clnn.runtime.run.session import Session
from clnn.types import F16, TensorType

NHWC = {"i0": (0, 2, 3, 1), "o0": (0, 2, 3, 1)}
AFFINE = (PostOp("mul", operand=1), PostOp("add", operand=2))

GEOMETRIES = {  # shape, axes, groups, shape of scale and shift, memory orders
    "tokens": ((5, 100), (1,), 0, (100,), {}),
    "odd tokens": ((2, 3, 21), (2,), 0, (21,), {}),
    "instances": ((2, 24, 5, 7), (2, 3), 0, (24, 1, 1), NHWC),
    "planes": ((2, 5, 5, 7), (2, 3), 0, (5, 1, 1), {}),
    "groups": ((2, 24, 3, 5), (2, 3), 2, (24, 1, 1), NHWC),
    "group planes": ((2, 6, 5, 3), (2, 3), 3, (6, 1, 1), {}),
    "columns": ((17, 20), (0,), 0, (20,), {}),
}


def affine(name, seed=0, **changes):
    shape, axes, groups, small, orders = GEOMETRIES[name]
    inputs = [normal(shape, seed) * 2 + 3, normal(small, seed + 1), normal(small, seed + 2)]
    return Normalise(axes, 1e-5, groups, post_ops=AFFINE, **changes), inputs, orders


@pytest.mark.parametrize("name", GEOMETRIES)
def test_geometries(device, name):
    spec, inputs, orders = affine(name)
    check_op(device, spec, inputs, orders=orders)


@pytest.mark.parametrize("name", ["odd tokens", "instances"])
def test_without_a_centre(device, name):
    spec, inputs, orders = affine(name, centre=False)
    check_op(device, spec, inputs, orders=orders, border=1)


@pytest.mark.parametrize("centre", [True, False])
def test_rows_in_parts(device, centre):
    """Few long rows are divided between work-items, which join their measures."""
    spec = Normalise((2, 3), centre=centre, post_ops=AFFINE)
    inputs = [normal((1, 19, 93, 77)) + 5, normal((19, 1, 1), 1), normal((19, 1, 1), 2)]
    across = check_op(device, spec, inputs, orders=NHWC, border=1)
    ran = check_op(device, Normalise((1,), centre=centre), [normal((1, 90001)) * 2 - 3])
    assert ("_p" in across[0] and "along" in ran[0] and "_p" in ran[0]) or not of_cpus(device)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_storage_in_16_bits(device, dtype, name):
    spec, inputs, orders = affine(name)
    check_op(device, spec, inputs, orders=orders, dtype=dtype)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("centre", [True, False])
def test_rows_in_parts_in_16_bits(device, dtype, centre):
    ran = check_op(device, Normalise((1,), centre=centre), [normal((1, 90001)) * 2], dtype=dtype)
    assert any("_p" in name for name in ran) or not of_cpus(device), ran


def test_a_large_mean_does_not_drown_the_variance(device):
    """Sums of squares would leave nothing of a variance a millionth of the mean's square."""
    x = (normal((3, 401)) + 1000).astype(np.float32)
    check_together(device, {"y": Normalise((1,))}, [x.astype(np.float64)], 1e-12)
    check_op(device, Normalise((1,)), [x], tolerance=2e-5)
    check_op(device, Normalise((0,)), [x.T.copy()], tolerance=2e-5)


def test_nan_infinity_and_rows_of_one_value(device):
    x = normal((20, 21))
    x[1, 20], x[2, 3], x[3], x[4] = np.nan, np.inf, 7, 0
    for axis in (0, 1):
        check_op(device, Normalise((axis,)), [x], tolerance=2e-5)


@pytest.mark.parametrize("name", ["tokens", "odd tokens", "instances", "groups", "columns"])
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_code_for_gpus(device, as_gpu, name, dtype):
    spec, inputs, orders = affine(name)
    check_op(device, spec, inputs, orders=orders, dtype=dtype)


def test_groups_and_parts_of_gpus(device, as_gpu):
    ran = check_op(device, Normalise((1,)), [normal((1, 70001)) + 1])
    assert "_g256" in ran[0] and "_p" in ran[0]
    ran = check_op(device, Normalise((0,)), [normal((901, 37)) + 1])
    assert "_g" not in ran[0] and "_p" in ran[0]


@pytest.mark.parametrize("rows,units,marks", [(1001, 4, "_g8"), (3001, 64, "_g8_p5")])
def test_members_of_groups_share_rows_that_lie_across(device, monkeypatch, rows, units, marks):
    target = replace(GPU, compute_units=units)
    generate_for(monkeypatch, target)
    x = normal((rows, 24)) * 3 + 100
    ran = check_op(device, Normalise((0,)), [x], tolerance=2e-5)
    assert "across" in ran[0] and ran[0].endswith(marks)


@pytest.mark.parametrize("axis", [-1, 1, 0])
@pytest.mark.parametrize("n_outputs", [1, 3])
def test_layer_normalisation(axis, n_outputs):
    x = normal((2, 3, 4))
    shape = x.shape[axis % 3 :]
    inputs, attrs = [x, normal(shape, 1), normal(shape, 2)], {"axis": axis, "epsilon": 0.1}
    for used in (inputs, inputs[:2]):
        want = onnx_result("LayerNormalization", used, attrs, 17, n_outputs=n_outputs)
        made = imported("LayerNormalization", used, attrs, 17, n_outputs=n_outputs)
        sources = made if isinstance(made, list) else [made]
        for source, expected in zip(sources, want, strict=True):
            np.testing.assert_allclose(evaluate(source, used), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("axis", [-1, 1])
def test_rms_normalisation(axis):
    x = normal((2, 3, 4))
    inputs = [x, normal(x.shape[axis:], 1)]
    want = onnx_result("RMSNormalization", inputs, {"axis": axis}, 23)[0]
    made = imported("RMSNormalization", inputs, {"axis": axis}, 23)
    np.testing.assert_allclose(evaluate(made, inputs), want, rtol=1e-5)


@pytest.mark.parametrize("consts", [(), (1, 2)])
@pytest.mark.parametrize("shape", [(2, 6, 5), (2, 6, 4, 3)])
def test_instance_normalisation(shape, consts):
    inputs = [normal(shape), normal(shape[1:2], 1), normal(shape[1:2], 2)]
    want = onnx_result("InstanceNormalization", inputs, {"epsilon": 1e-3})[0]
    made = imported("InstanceNormalization", inputs, {"epsilon": 1e-3}, consts=consts)
    np.testing.assert_allclose(evaluate(made, inputs), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("consts", [(), (1, 2)])
@pytest.mark.parametrize("opset", [18, 21])
def test_group_normalisation(opset, consts):
    count = 3 if opset == 18 else 6
    inputs = [normal((2, 6, 4, 3)), normal((count,), 1), normal((count,), 2)]
    made = imported("GroupNormalization", inputs, {"num_groups": 3}, opset, consts)
    wide = [inputs[0], *(np.repeat(a, 6 // count) for a in inputs[1:])]
    want = onnx_result("GroupNormalization", wide, {"num_groups": 3}, 21)[0]
    np.testing.assert_allclose(evaluate(made, inputs), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("opset,count", [(18, 2), (20, 2), (21, 6)])
def test_models_of_either_group_normalisation(any_device, opset, count):
    """onnx calls the form of opset 18 deprecated, which is no reason to refuse models of that set."""
    inputs = [normal((2, 6, 4)), normal((count,), 1), normal((count,), 2)]
    attrs = {"num_groups": 2, "epsilon": 1e-3}
    model = one_node("GroupNormalization", inputs, attrs, opset, (1, 2))
    with Session(import_onnx(model), select(any_device), Options()) as session:
        (got,) = session({"i0": inputs[0]}).values()
    want = onnx_result("GroupNormalization", inputs, attrs, opset)[0]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_mean_variance_normalisation():
    x = normal((2, 3, 4, 5))
    x[:, 1] = 4
    for attrs in ({}, {"axes": [1]}):
        want = onnx_result("MeanVarianceNormalization", [x], attrs, 13)[0]
        found = evaluate(imported("MeanVarianceNormalization", [x], attrs, 13), [x])
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("power", [1, 2])
def test_lp_normalisation(power):
    x = normal((3, 4))
    x[1] = 0
    norms = np.linalg.norm(x, power, axis=1, keepdims=True)
    made = imported("LpNormalization", [x], {"p": power})
    want = np.divide(x, norms, out=np.zeros_like(x), where=norms > 0)
    np.testing.assert_allclose(evaluate(made, [x]), want, rtol=1e-5)
    assert chain(made)[-1] == "eltwise"
    with pytest.raises(Unsupported, match="p is 3"):
        imported("LpNormalization", [x], {"p": 3})


@pytest.mark.parametrize(
    "op,shapes,attrs,words",
    [
        ("InstanceNormalization", [(2, 3, 4), (4,), (3,)], {}, "must be (3,)"),
        ("GroupNormalization", [(2, 6, 4), (6,), (6,)], {"num_groups": 4}, "into 4 groups"),
        ("GroupNormalization", [(2, 6, 4), (6,), (5,)], {"num_groups": 2}, "(5,)"),
        ("LayerNormalization", [(2, 3), (3,)], {"axis": 2}, "axis 2"),
    ],
)
def test_bad_shapes_name_the_values(op, shapes, attrs, words):
    with pytest.raises(ShapeError) as caught:
        imported(op, [normal(s) for s in shapes], attrs)
    assert words in str(caught.value)


def test_specs_check_what_they_are_given():
    with pytest.raises(ShapeError, match="3 groups"):
        Normalise((2,), groups=3).infer([TensorType((1, 4, 5))])
    with pytest.raises(ShapeError, match=r"\(1, 4\)"):
        Normalise((2,)).infer([TensorType((1, 4))])
    with pytest.raises(DTypeError, match="float16"):
        Normalise((1,)).infer([TensorType((1, 4), F16)])


@pytest.mark.exhaustive
@pytest.mark.parametrize("rows,length", list(itertools.product((1, 2, 15, 16, 33), repeat=2)))
def test_every_small_shape(device, rows, length):
    for middle, centre in itertools.product((1, 3, 17), (False, True)):
        for axes in ((0,), (1,), (2,), (1, 2)):
            x = rng(length).standard_normal((rows, middle, length)).astype(np.float32)
            check_op(device, Normalise(axes, 1e-3, centre=centre), [x], tolerance=5e-5)


@pytest.mark.parametrize("centre", [True, False])
def test_members_of_groups_fold_by_subgroups(device, monkeypatch, centre):
    spec = Normalise((1,), centre=centre)
    check_subgroups(device, monkeypatch, spec, [normal((3, 403)) + 5], tolerance=2e-5)
