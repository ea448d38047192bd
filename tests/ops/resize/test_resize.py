from __future__ import annotations

import itertools

import numpy as np
import pytest
from harness import check_op, normal, rng
from reference_engines import onnx_result, onnxruntime_result
from together import evaluate, imported

from clnn.errors import DTypeError, ShapeError
from clnn.ops.onnx_registry import Unsupported
from clnn.ops.resize.sampling import COORDINATES, NEAREST, AxisMap, Sampling, axis_taps
from clnn.ops.resize.spec import Resize
from clnn.ops.shared.functions import PostOp
from clnn.types import BOOL, TensorType

pytestmark = pytest.mark.dealt  # kernels that are slow to build

NHWC = {"i0": (0, 2, 3, 1), "o0": (0, 2, 3, 1)}
MIXED = {"i0": (0, 2, 3, 1), "o0": (0, 1, 2, 3)}
SAMPLINGS = {
    "repeat": (Sampling("nearest", "asymmetric", "floor"), (10, 21)),
    "nearest": (Sampling("nearest"), (8, 5)),
    "linear": (Sampling("linear"), (11, 4)),
    "cubic": (Sampling("cubic", cubic_a=-0.5), (8, 13)),
    "antialias": (Sampling("linear", antialias=True), (3, 2)),
    "cubic antialias": (Sampling("cubic", antialias=True, exclude_outside=True), (4, 3)),
}


def resize(x_shape, result, how, roi=(), post_ops=()):
    result = tuple(result)
    scales = tuple(
        float(np.float32(r) / np.float32(d)) if d else 2.0
        for r, d in zip(result, x_shape, strict=True)
    )
    return Resize(result, scales, how, roi, post_ops)


def image(name, channels, batch=2):
    how, (height, width) = SAMPLINGS[name]
    shape = (batch, channels, 5, 7)
    return resize(shape, (batch, channels, height, width), how), normal(shape)


@pytest.mark.parametrize("name", SAMPLINGS)
@pytest.mark.parametrize("orders", [NHWC, {}], ids=["nhwc", "nchw"])
def test_every_variant(device, name, orders):
    spec, x = image(name, 21)
    ran = check_op(device, spec, [x], orders=orders, border=1)
    assert any("any" in variant for variant in ran)
    assert any("repeat" in variant for variant in ran) == (name == "repeat")
    assert any("axes" in variant for variant in ran) or "nearest" in name or name == "repeat"


@pytest.mark.parametrize("channels", [1, 3, 16])
@pytest.mark.parametrize("name", ["repeat", "linear"])
def test_channel_tails(device, name, channels):
    spec, x = image(name, channels, 1)
    check_op(device, spec, [x], orders=NHWC)


@pytest.mark.parametrize("name", ["repeat", "linear"])
def test_from_one_memory_order_to_another(device, name):
    spec, x = image(name, 6, 1)
    check_op(device, spec, [x], orders=MIXED)


STEPS = {
    "relu": ((PostOp("relu"),), None),
    "residual": ((PostOp("add", operand=1), PostOp("relu")), (2, 19, 10, 14)),
    "per channel": ((PostOp("mul", operand=1), PostOp("sigmoid")), (19, 1, 1)),
    "per column": ((PostOp("sub", operand=1, swapped=True),), (10, 14)),
}


@pytest.mark.parametrize("post_ops,operand", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize(
    "how",
    [Sampling("nearest", "asymmetric", "floor"), Sampling("linear")],
    ids=["repeat", "linear"],
)
@pytest.mark.parametrize("orders", [NHWC, {}], ids=["nhwc", "nchw"])
def test_fused_steps(device, how, orders, post_ops, operand):
    shape = (2, 19, 5, 7)
    inputs = [normal(shape)] + ([] if operand is None else [normal(operand, 1)])
    check_op(device, resize(shape, (2, 19, 10, 14), how, post_ops=post_ops), inputs, orders=orders)


RANKS = [
    ((6,), (15,)),
    ((4, 5), (7, 3)),
    ((2, 3, 5), (2, 3, 10)),
    ((1, 2, 3, 4, 5), (1, 2, 6, 3, 7)),
    ((2, 6, 3, 4), (3, 4, 5, 7)),
    ((2, 3, 4, 5), (4, 3, 4, 5)),
    ((1, 1, 1, 1), (1, 1, 4, 3)),
    ((2, 3, 4, 4), (2, 3, 4, 4)),
    ((2, 3, 0, 4), (2, 3, 0, 8)),
]


@pytest.mark.parametrize("shape,result", RANKS)
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_any_rank_and_axes(device, shape, result, mode):
    check_op(device, resize(shape, result, Sampling(mode)), [normal(shape)])


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_crops_take_the_extrapolation_value_outside(device, mode):
    how = Sampling(mode, "tf_crop_and_resize", extrapolation=-7.5)
    roi = ((0.0, 1.0), (0.0, 1.0), (-0.25, 0.8), (0.3, 1.4))
    shape = (1, 18, 5, 6)
    spec = resize(shape, (1, 18, 7, 6), how, roi)
    x = normal(shape)
    check_op(device, spec, [x], orders=NHWC)
    assert (spec.reference(x)[0] == -7.5).any()


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "int64", "float16", "float64", "bool"])
def test_nearest_moves_any_type(device, dtype):
    x = rng().integers(0, 2 if dtype == "bool" else 100, (1, 3, 4, 5)).astype(dtype)
    for shape in ((1, 3, 8, 10), (1, 3, 5, 3)):
        check_op(device, resize(x.shape, shape, Sampling("nearest")), [x], tolerance=0)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32"])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_interpolated_integers_round_and_saturate(device, dtype, mode):
    """Sums that are exact in binary, so that halves are halves on any device."""
    info = np.iinfo(np.int8 if dtype == "int8" else np.uint8)
    x = rng().integers(info.min, info.max, (1, 17, 4, 5), endpoint=True).astype(dtype)
    check_op(device, resize(x.shape, (1, 17, 8, 10), Sampling(mode)), [x], orders=NHWC, tolerance=0)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("size", [(9, 4), (3, 17), (5, 5)])
def test_weights_of_few_bits(device, dtype, size):
    """Sums of integers, whatever is last in memory, and what lies outside."""
    info = np.iinfo(dtype)
    x = rng().integers(info.min, info.max, (2, 5, 6, 19), endpoint=True).astype(dtype)
    for coordinates in ("half_pixel", "tf_crop_and_resize"):
        roi = ((0.0, 1.0), (-0.1, 0.9), (0.2, 1.3), (0.0, 1.0)) if "crop" in coordinates else ()
        how = Sampling("linear", coordinates, extrapolation=77.6, bits=10)
        spec = resize(x.shape, (2, *size, 19), how, roi)
        check_op(device, spec, [x], tolerance=0)
        check_op(device, spec, [x], orders=NHWC, tolerance=0)


def test_weights_of_few_bits_are_cut_off():
    """A third is 341 of 1024: of 255 and 0 the sums are 84.9 and 170.1, of -255 and 0 alike."""
    how = Sampling("linear", "align_corners", bits=10)
    spec = Resize((1, 4, 1, 1), (1.0, 2.0, 1.0, 1.0), how)
    for dtype, most in ((np.uint8, 255), (np.int8, -128)):
        x = np.array([0, most], dtype).reshape(1, 2, 1, 1)
        want = [0, int(most * 341 / 1024), int(most * 682 / 1024), most]
        assert spec.reference(x)[0].reshape(-1).tolist() == want


@pytest.mark.parametrize("dtype,tolerance", [("float16", 2e-3), ("float64", 1e-7)])
def test_other_real_types(device, dtype, tolerance):
    x = normal((1, 5, 4, 6)).astype(dtype)
    check_op(device, resize(x.shape, (1, 5, 7, 9), Sampling("linear")), [x], tolerance=tolerance)


def test_nan_stays_where_it_is_read(device):
    x = normal((1, 4, 5, 5))
    x[0, 1, 2, 2], x[0, 2, 0, 0] = np.nan, np.inf
    for how in (Sampling("linear"), Sampling("nearest")):
        spec = resize(x.shape, (1, 4, 10, 10), how)
        check_op(device, spec, [x], orders=NHWC)
        with np.errstate(invalid="ignore"):
            bad = ~np.isfinite(spec.reference(x)[0])
        assert 0 < bad.sum() < 60


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "mode,coordinates", [*itertools.product(("nearest", "linear", "cubic"), COORDINATES)]
)
def test_every_small_shape(device, mode, coordinates):
    for before, after, channels in itertools.product((1, 2, 5), (1, 2, 3, 10), (1, 3, 17)):
        shape = (1, channels, before, 4)
        spec = resize(shape, (1, channels, after, 6), Sampling(mode, coordinates))
        check_op(device, spec, [normal(shape)], orders=NHWC)


def random_case(seed):
    """Inputs, attributes and opset of a Resize with any attributes."""
    g = rng(seed)
    opset = int(g.choice([11, 13, 18, 19]))
    mode = str(g.choice(["nearest", "linear", "cubic"]))
    attrs = {"mode": mode, "coordinate_transformation_mode": str(g.choice(COORDINATES))}
    x = g.standard_normal((1, 2, *g.integers(1, 12, 2))).astype(np.float32)
    if mode == "nearest":
        attrs["nearest_mode"] = str(g.choice(NEAREST[:-1]))
    if mode == "cubic":
        attrs |= {
            "cubic_coeff_a": float(g.choice([-0.75, -0.5])),
            "exclude_outside": int(g.integers(2)),
        }
    if opset >= 18 and mode != "nearest" and g.random() < 0.5:
        attrs |= {"antialias": 1, "exclude_outside": int(g.integers(2))}
    low, high = g.uniform(-0.2, 0.5, 2), g.uniform(0.6, 1.3, 2)
    roi = np.array([0, 0, *low, 1, 1, *high], np.float32)
    attrs["extrapolation_value"] = 7.5
    scales = g.choice([0.3, 0.5, 0.6, 1.5, 2.0, 2.3, 3.0], 2)
    sizes = g.integers(1, 25, 2)
    return x, attrs, opset, roi, scales, sizes, g.random() < 0.5


def has_kept_extent(x, y):
    """Whether an axis keeps its extent: onnxruntime copies it then, whatever the scale and region."""
    return any(a == b for a, b in zip(x.shape[2:], y.shape[2:], strict=True))


@pytest.mark.parametrize("block", range(8))
def test_reference_agrees_with_onnxruntime(block):
    for seed in range(block * 60, block * 60 + 60):
        x, attrs, opset, roi, scales, sizes, by_sizes = random_case(seed)
        empty = np.zeros(0, np.float32)
        inputs = [x, roi, np.array([1, 1, *scales], np.float32)]
        if by_sizes:
            inputs = [x, roi, empty if opset == 11 else None, np.array([1, 2, *sizes])]
        want = onnxruntime_result("Resize", inputs, attrs, opset, consts=(1, 2, 3))[0]
        got = evaluate(imported("Resize", inputs, attrs, opset, consts=(1, 2, 3)), inputs)
        assert got.shape == want.shape, seed
        if not has_kept_extent(x, want):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4, err_msg=f"{seed} {attrs}")


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("scales", [(1.67, 1.8), (3, 2.3), (0.7, 1.25), (1.3, 0.6), (2, 3)])
def test_linear_integers_equal_onnxruntime(device, dtype, scales):
    """Also where sums are next to whole numbers, as in flat images."""
    info = np.iinfo(dtype)
    for seed, (high, wide) in enumerate(((3, 5), (7, 4), (11, 12))):
        numbers = np.random.default_rng(seed)
        x = numbers.integers(info.min, info.max, (1, 3, high, wide)).astype(dtype)
        x[:, 0] = 37
        inputs = [x, None, np.array([1, 1, *scales], np.float32)]
        attrs = {"mode": "linear"}
        want = onnxruntime_result("Resize", inputs, attrs, 18, consts=(2,))[0]
        made = imported("Resize", inputs, attrs, 18, consts=(2,))
        np.testing.assert_array_equal(evaluate(made, inputs), want)
        how = Sampling("linear", nearest="floor")
        spec = Resize(want.shape, tuple(float(np.float32(s)) for s in (1, 1, *scales)), how)
        np.testing.assert_array_equal(spec.reference(x)[0], want)
        check_op(device, spec, [x], tolerance=0)
        check_op(device, spec, [x], tolerance=0, orders=NHWC)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize(
    "coordinates", ["half_pixel", "tf_crop_and_resize", "asymmetric", "half_pixel_symmetric"]
)
@pytest.mark.parametrize("sizes", [(5, 6), (5, 9), (3, 6), (11, 2)])
def test_reference_agrees_with_the_definition(mode, coordinates, sizes):
    """Also where an axis keeps its extent and only its region is cut."""
    roi = np.array([0, 0, 0.1, -0.2, 1, 1, 0.75, 0.9], np.float32)
    attrs = {
        "mode": mode,
        "coordinate_transformation_mode": coordinates,
        "extrapolation_value": 3.0,
    }
    inputs = [normal((1, 2, 5, 6)), roi, None, np.array([1, 2, *sizes])]
    want = onnx_result("Resize", inputs, attrs, 19, consts=(1, 2, 3))[0]
    got = evaluate(imported("Resize", inputs, attrs, 19, consts=(1, 2, 3)), inputs)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("policy", ["stretch", "not_larger", "not_smaller"])
@pytest.mark.parametrize("axes", [[2, 3], [3, 2], [-1, -2], [1, 2, 3]])
def test_aspect_ratio_policies(policy, axes):
    sizes = np.array([8, 5, 4][: len(axes)])
    attrs = {"mode": "linear", "axes": [a % 4 for a in axes], "keep_aspect_ratio_policy": policy}
    inputs = [normal((1, 2, 5, 6)), None, None, sizes]
    want = onnx_result("Resize", inputs, attrs, 18, consts=(3,))[0]
    got = evaluate(imported("Resize", inputs, attrs | {"axes": axes}, 18, consts=(3,)), inputs)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "op,opset,mode,scales",
    [
        ("Upsample", 7, "nearest", [1.0, 1.0, 2.0, 3.0]),
        ("Upsample", 9, "nearest", [1, 1, 2.5, 1.7]),
        ("Upsample", 9, "linear", [1, 1, 33, 7.787879]),
        ("Upsample", 9, "linear", [1, 1, 2, 2]),
        ("Resize", 10, "nearest", [1, 1, 0.6, 2.3]),
        ("Resize", 10, "nearest", [1, 1, 2, 0.4]),
        ("Resize", 10, "linear", [1, 1, 0.6, 2.3]),
    ],
)
def test_older_forms_agree_with_onnxruntime(op, opset, mode, scales):
    x = normal((1, 2, 5, 6))
    values = np.array(scales, np.float32)
    inputs, attrs = ([x], {"scales": scales}) if opset == 7 else ([x, values], {})
    attrs["mode"] = mode
    want = onnxruntime_result(op, inputs, attrs, opset, consts=(1,))[0]
    got = evaluate(imported(op, inputs, attrs, opset, consts=(1,)), inputs)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_scales_of_one_are_an_alias():
    inputs = [normal((1, 2, 5, 6)), None, np.ones(4, np.float32)]
    assert imported("Resize", inputs, {"mode": "linear"}, 13, consts=(2,)) == 0


def test_taps_of_weight_zero_are_left_out():
    """Doubling with asymmetric coordinates reads one pixel for every other output."""
    taps = axis_taps(AxisMap(4, 8, 2.0), Sampling("linear", "asymmetric"))
    assert taps.count == 2 and not taps.weight[0::2, 1].any() and (taps.weight[1:6:2] == 0.5).all()
    whole = axis_taps(AxisMap(4, 4, 1.0), Sampling("cubic"))
    assert whole.copies and whole.repeats(4) == 1
    assert axis_taps(AxisMap(3, 9, 3.0), Sampling("nearest")).repeats(3) == 3


def test_halves_are_taken_for_halves():
    """20 to 6 pixels: outputs 1 and 4 lie at 4.5 and 14.5 up to rounding in single precision."""
    axis = AxisMap(20, 6, float(np.float32(6) / np.float32(20)))
    up = axis_taps(axis, Sampling("nearest", "half_pixel", "round_prefer_ceil")).index[:, 0]
    down = axis_taps(axis, Sampling("nearest", "half_pixel", "round_prefer_floor")).index[:, 0]
    np.testing.assert_array_equal(up, [1, 5, 8, 11, 15, 18])
    np.testing.assert_array_equal(down, [1, 4, 8, 11, 14, 18])


X = normal((1, 2, 5, 6))
TWO = np.array([1, 1, 2, 2], np.float32)


@pytest.mark.parametrize(
    "inputs,attrs,error,words",
    [
        ([X, None, TWO[:3]], {}, ShapeError, "must be 4 numbers"),
        ([X, None, TWO, np.array([1, 2, 3, 4])], {}, ShapeError, "not both"),
        ([X, None, None, None], {}, ShapeError, "not neither"),
        ([X, None, -TWO], {"mode": "linear"}, ShapeError, "greater than 0"),
        ([X, None, TWO], {"mode": "area"}, Unsupported, "area"),
        ([X, None, TWO], {"nearest_mode": "up"}, Unsupported, "up"),
        ([X, None, TWO], {"coordinate_transformation_mode": "centre"}, Unsupported, "centre"),
        ([X, None, TWO], {"antialias": 1}, Unsupported, "antialias"),
        (
            [X, None, TWO],
            {"coordinate_transformation_mode": "tf_crop_and_resize"},
            ShapeError,
            "region",
        ),
        ([X, None, TWO], {"axes": [2, 2, 1, 3]}, ShapeError, "twice"),
        (
            [X, None, None, np.array([8, 8])],
            {"axes": [2, 3], "keep_aspect_ratio_policy": "fit"},
            Unsupported,
            "fit",
        ),
    ],
)
def test_wrong_arguments_are_named(inputs, attrs, error, words):
    with pytest.raises(error, match=words):
        source = imported("Resize", inputs, attrs, 19, consts=(1, 2, 3))
        source.spec.infer([TensorType(X.shape)])


def test_scales_that_are_fed_are_refused_with_a_reason():
    with pytest.raises(Unsupported, match="scales"):
        imported("Resize", [X, None, TWO], {}, 13)
    with pytest.raises(ShapeError, match=">= 1"):
        imported("Upsample", [X, TWO / 4], {}, 9, consts=(1,))


def test_types_and_shapes_that_do_not_fit_are_named():
    with pytest.raises(DTypeError, match="bool"):
        resize((2, 2), (4, 4), Sampling("linear")).infer([TensorType((2, 2), BOOL)])
    with pytest.raises(ShapeError, match=r"\(2, 2\) to \(4,\)"):
        Resize((4,), (2.0,)).infer([TensorType((2, 2))])
    with pytest.raises(ShapeError, match="empty axis"):
        resize((1, 2), (1, 4), Sampling()).infer([TensorType((1, 0))])
