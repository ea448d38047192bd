"""Functions of the universal set against the references of ops, in guarded memory and as rows of one kernel."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_universal, normal

from clnn.ops.conv.spec import Conv2d
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.gemm.spec import Gemm
from clnn.ops.movement.views import Concat, Copy, Slice, Transpose
from clnn.ops.pool.spec import Pool
from clnn.ops.rows.reduce import Reduce
from clnn.ops.shared.functions import FUNCTIONS, PostOp
from clnn.ops.shared.window import Window
from clnn.ops.universal.post_ops import CODES, MOST

NHWC, NCHW = (0, 2, 3, 1), (0, 1, 2, 3)
PARAMS = {
    "clip": (-0.5, 0.75),
    "selu": (1.67, 1.05),
    "hard_sigmoid": (0.2, 0.5),
    "shrink": (0.4, 0.1),
}
POSITIVE = {"log", "sqrt", "pow", "acosh"}
SMALL = {"asin", "acos", "atanh"}


def window(kernel, strides=(1, 1), dilations=(1, 1), before=(0, 0), after=(0, 0), ceil=False):
    return Window(kernel, strides, dilations, before, after, ceil)


def orders(order):
    return {"i0": order, "o0": order}


CONVOLUTIONS = {
    "point": (window((1, 1)), 1, 24, 20),
    "stride": (window((3, 3), (2, 1), before=(1, 1), after=(1, 1)), 1, 9, 33),
    "dilated": (window((3, 2), (1, 2), (2, 3), (2, 0), (2, 3)), 1, 70, 5),
    "groups": (window((3, 3), before=(1, 1), after=(1, 1)), 3, 12, 51),
    "filters": (window((3, 3), (2, 2), before=(0, 1), after=(1, 1)), 37, 37, 37),
    "few_filters": (window((5, 3), (1, 1), (1, 2), (2, 2), (2, 2)), 5, 5, 5),
    "stem": (window((7, 7), (2, 2), before=(3, 3), after=(3, 3)), 1, 3, 16),
}


@pytest.mark.parametrize("order", (NHWC, NCHW), ids=("nhwc", "nchw"))
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolutions(device, case, order):
    win, group, channels, made = CONVOLUTIONS[case]
    weights = normal((made, channels // group, *win.kernel), 1)
    spec = Conv2d(win, group, (PostOp("add", operand=3), PostOp("clip", (-1.0, 3.0))))
    x = normal((2, channels, 11, 13))
    (out,) = (t.shape for t in spec.infer([_type(a) for a in (x, weights, normal((made,)))]))
    inputs = [x, weights, normal((made,), 2), normal(out, 3)]
    check_universal(device, spec, inputs, consts=(1, 2), orders=orders(order))


LIMITS = {
    "none": (),
    "relu": (PostOp("relu"),),
    "clip": (PostOp("clip", (-0.5, 0.75)),),
    "below": (PostOp("clip", (-np.inf, 0.75)), PostOp("neg")),
    "behind": (PostOp("tanh"), PostOp("relu")),
}


@pytest.mark.parametrize("order", (NHWC, NCHW), ids=("nhwc", "nchw"))
@pytest.mark.parametrize("width", (9, 11))
@pytest.mark.parametrize("made", (8, 16, 32, 51))
@pytest.mark.parametrize("limit", LIMITS)
def test_limits_of_results(device, limit, made, width, order):
    """Results that leave the registers for their places, and those that do not; NaN and infinity pass limits."""
    channels = 70 if limit == "none" else 9  # sums of several pieces, and of one
    spec = Conv2d(window((3, 3), before=(1, 1), after=(1, 1)), 1, LIMITS[limit])
    x = normal((2, channels, 5, width))  # the last tile of pixels is half a one, of 14 or of 6
    x[0, 0, 0, 0], x[1, 3, 4, 6] = np.nan, np.inf
    inputs = [x, normal((made, channels, 3, 3), 1), normal((made,), 2)]
    check_universal(device, spec, inputs, consts=(1, 2), orders=orders(order))


@pytest.mark.parametrize("order", (NHWC, NCHW), ids=("nhwc", "nchw"))
@pytest.mark.parametrize("height, width", ((13, 27), (24, 14)))
def test_transformed_convolutions(device, height, width, order):
    """Winograd's products: tiles that end behind the image, operands and results in other orders."""
    spec = Conv2d(
        window((3, 3), before=(1, 0), after=(1, 2)),
        1,
        (PostOp("add", operand=3), PostOp("leaky_relu", (0.1,))),
    )
    x, weights = normal((2, 48, height, width)), normal((64, 48, 3, 3), 1)
    inputs = [x, weights, normal((64,), 2), normal((2, 64, height, width), 3)]
    placed = {"i0": NHWC, "i3": order, "o0": order}
    name = check_universal(device, spec, inputs, consts=(1, 2), orders=placed)
    assert name == "universal_winograd"


@pytest.mark.parametrize("pixels", (1, 3, 7, 8, 29))
@pytest.mark.parametrize("terms, made", ((7, 9), (70, 40), (1300, 330)))
def test_products_of_few_rows(device, pixels, terms, made):
    """Tiles that are whole, halves, and of one row; sums in pieces; more channels than share a panel."""
    inputs = [normal((pixels, terms)), normal((made, terms), 1), normal((made,), 2)]
    check_universal(device, Gemm(trans_b=True), inputs, consts=(1,))


def test_convolution_of_a_line_without_bias(device):
    spec = Conv2d(Window((4,), (2,), (1,), (2,), (1,)))
    check_universal(device, spec, [normal((3, 6, 17)), normal((7, 6, 4), 1), None], consts=(1,))


def _type(array):
    from clnn.types import TensorType, dtype_of

    return TensorType(array.shape, dtype_of(array.dtype))


@pytest.mark.parametrize("fn", CODES)
def test_each_post_op(device, fn):
    x = normal((2, 3, 5, 19)) * 2
    if fn in SMALL:
        x = np.tanh(x)
    if fn in POSITIVE:
        x = np.abs(x) + 1
    x[0, 0, 0, :3] = np.nan, 0.0, -0.0
    binary = FUNCTIONS[fn].binary
    params = () if binary else PARAMS.get(fn, _parameters(fn))
    post_op = PostOp(fn, params, 1 if binary else None)
    check_universal(device, Eltwise((post_op,)), [x, normal((3, 1, 19), 1)][: 1 + binary])


def _parameters(fn):
    """As many parameters as the function takes."""
    count = (
        FUNCTIONS[fn].numpy.__code__.co_argcount - 1
        if hasattr(FUNCTIONS[fn].numpy, "__code__")
        else 0
    )
    return (0.7, 0.3)[: max(0, count)]


def test_a_chain_of_all_kinds_of_operands(device):
    chain = (
        PostOp("mul", operand=1),
        PostOp("sub", operand=2, swapped=True),
        PostOp("div", (3.0,)),
        PostOp("sub", (0.5,), swapped=True),
        PostOp("leaky_relu", (0.1,)),
        PostOp("max", operand=1),
    )
    assert len(chain) == MOST
    inputs = [normal((2, 70, 3, 5)), normal((1, 70, 1, 1), 1), normal((3, 5), 2)]
    for order in (NHWC, NCHW):
        check_universal(device, Eltwise(chain), inputs, orders=orders(order))


def test_a_value_with_itself(device):
    check_universal(device, Eltwise((PostOp("mul", operand=0),)), [normal((5, 77))])


@pytest.mark.parametrize("order", (NHWC, NCHW), ids=("nhwc", "nchw"))
def test_chains_of_more_than_one_launch(device, order):
    """More operands, and more post-ops, than a launch takes."""
    chain = [
        PostOp("relu"),
        PostOp("sub", operand=1),
        PostOp("mul", operand=2, swapped=True),
        PostOp("add", operand=3),
        PostOp("max", operand=4),
    ]
    shapes = ((2, 70, 3, 5), (1, 70, 1, 1), (2, 70, 3, 5), (3, 5), (1,))
    inputs = [normal(shape, k) for k, shape in enumerate(shapes)]
    check_universal(device, Eltwise(tuple(chain)), inputs, orders=orders(order))
    longer = (PostOp("mul", operand=0), *(PostOp("add", (float(k),)) for k in range(15)))
    check_universal(device, Eltwise(longer), inputs[:1], orders=orders(order))


WINDOWS = {
    "halves": window((2, 2), (2, 2), ceil=True),
    "uneven": window((3, 2), (1, 3), (2, 3), (2, 0), (1, 4), True),
    "behind": window((4, 7), (3, 3), before=(3, 0), after=(3, 6), ceil=True),
}


@pytest.mark.parametrize("order", (NHWC, NCHW), ids=("nhwc", "nchw"))
@pytest.mark.parametrize("mode", (("max", False), ("average", False), ("average", True)))
@pytest.mark.parametrize("case", WINDOWS)
def test_pooling(device, case, mode, order):
    x = normal((2, 21, 9, 13))
    x[0, 3, 4, 5] = np.nan
    spec = Pool(WINDOWS[case], mode[0], mode[1], post_ops=(PostOp("relu"),))
    check_universal(device, spec, [x], orders=orders(order))


@pytest.mark.parametrize("fn", ("mean", "max"))
def test_reductions_of_images(device, fn):
    check_universal(device, Reduce(fn, (2, 3)), [normal((2, 19, 7, 5))], orders=orders(NHWC))


@pytest.mark.parametrize("rows", (1, 5, 40))
@pytest.mark.parametrize("turned", (False, True))
def test_products(device, rows, turned):
    b = normal((23, 70), 1) if turned else normal((70, 23), 1)
    spec = Gemm(alpha=0.5, trans_b=turned, post_ops=(PostOp("gelu"),))
    check_universal(device, spec, [normal((rows, 70)), b, normal((23,), 2)], consts=(1, 2))


def test_product_with_a_constant_on_the_left(device):
    check_universal(device, Gemm(), [normal((9, 33)), normal((33, 14), 1)], consts=(0,))


def test_copies(device):
    check_universal(device, Transpose((0, 2, 3, 1)), [normal((2, 5, 6, 7))])
    check_universal(device, Copy(), [normal((2, 5, 6, 7))], orders={"i0": NHWC, "o0": NCHW})
    ints = np.arange(2 * 3 * 4 * 5, dtype=np.int32).reshape(2, 3, 4, 5) - 50
    check_universal(device, Transpose((3, 1, 0, 2)), [ints])
    check_universal(device, Concat(1), [normal((1, 3, 4, 5)), normal((1, 18, 4, 5), 1)])
    check_universal(
        device, Slice((0, 4, 0, 2), (1, 3, 2, 3), (1, -2, 2, 1)), [normal((1, 6, 4, 9))]
    )


PRODUCTS = {
    "plain": ((7, 70), (70, 33), {}),
    "turned": ((29, 9), (40, 9), {"trans_b": True}),
    "both": ((9, 29), (40, 9), {"trans_a": True, "trans_b": True}),
    "heads": ((3, 29, 20), (3, 20, 17), {"alpha": 0.25}),
    "windows": ((4, 3, 15, 8), (4, 3, 8, 15), {}),
    "shared": ((4, 3, 15, 8), (1, 3, 8, 15), {}),
    "axes": ((2, 3, 2, 3, 4, 5), (3, 1, 3, 5, 33), {}),
    "column": ((2, 30, 650), (2, 650, 1), {}),
    "row": ((650,), (3, 650, 5), {}),
    "infinite": ((7, 9), (9, 40), {}),
}


@pytest.mark.parametrize("turned", (False, True), ids=("", "turned"))
@pytest.mark.parametrize("case", PRODUCTS)
def test_products_of_two_computed_matrices(device, case, turned):
    left, right, about = PRODUCTS[case]
    a, b = normal(left), normal(right, 1)
    if case == "infinite":
        b[3, 4], b[4, 39] = np.inf, np.nan
    ops = (PostOp("add", operand=3), PostOp("relu")) if case in ("windows", "heads") else ()
    more = {"windows": [None, normal((1, 3, 15, 15), 2)], "heads": [None, normal((29, 17), 3)]}
    last = (*range(b.ndim - 2), b.ndim - 1, b.ndim - 2)
    name = check_universal(
        device,
        Gemm(post_ops=ops, **about),
        [a, b, *more.get(case, ())],
        orders={"i1": last} if turned else None,
    )
    assert name == "universal_computed_product"


@pytest.mark.parametrize("case", ("stride", "groups", "filters", "dilated"))
def test_inputs_without_a_border_are_copied(device, monkeypatch, case):
    monkeypatch.setattr(Conv2d, "padding_needs", lambda self, inputs: {})
    win, group, channels, made = CONVOLUTIONS[case]
    inputs = [
        normal((2, channels, 11, 13)),
        normal((made, channels // group, *win.kernel), 1),
        normal((made,), 2),
    ]
    spec = Conv2d(win, group, (PostOp("relu"),))
    for order in (NHWC, NCHW):
        name = check_universal(device, spec, inputs, consts=(1, 2), orders=orders(order))
        assert name.endswith("_bordered")


def test_more_post_ops_than_a_function_takes(device):
    """The first ones are applied to its tile, the others by walks over the result."""
    made, ops = (2, 19, 5, 7), []
    for k, fn in enumerate(("add", "mul", "sub", "max", "add")):
        ops += [PostOp(fn, operand=3 + k), PostOp("tanh")]
    shapes = (made, (1, 19, 1, 1), (5, 7), made, (2, 1, 1, 1))
    more = [normal(shape, 4 + k) for k, shape in enumerate(shapes)]
    x, weights = normal((2, 9, 5, 7)), normal((19, 9, 1, 1), 1)
    spec = Conv2d(window((1, 1)), 1, tuple(ops))
    name = check_universal(device, spec, [x, weights, None, *more], consts=(1,))
    assert name.endswith("_walked")
    rows = Gemm(post_ops=tuple(ops))
    check_universal(device, rows, [normal((2, 19, 5, 3)), normal((3, 7), 1), None, *more])
    e = normal(made, 9)
    spec = Pool(
        window((3, 3), before=(1, 1), after=(1, 1)),
        "average",
        post_ops=(PostOp("sub", operand=1), PostOp("mul", operand=2), PostOp("add", operand=3)),
    )
    check_universal(device, spec, [e, e * 2, normal((19, 1, 1)), more[0]])


@pytest.mark.parametrize("order", ["columns", "quads"])
def test_sums_in_another_order_than_the_set_has_are_not_on_it(device, order):
    spec = Pool(window((5, 7)), "average", order=order)
    with pytest.raises(AssertionError, match="not on the set"):
        check_universal(device, spec, [normal((2, 9, 5, 7))])
