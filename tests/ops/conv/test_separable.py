from __future__ import annotations

import re

import numpy as np
import pytest
from harness import check_op, normal, of_cpus, single_node

from clnn.codegen.render import render
from clnn.errors import ShapeError
from clnn.ops.conv.separable import Separable
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.window import Window
from clnn.plan.schedule import make_plan
from clnn.target import Target
from clnn.types import TensorType

pytestmark = pytest.mark.dealt  # kernels that are slow to build

CONSTS = (1, 2, 3, 4)
NHWC = {"i0": (0, 2, 3, 1), "o0": (0, 2, 3, 1)}
PLAIN = {"o0": (0, 1, 2, 3)}
RELU = (PostOp("relu"),)
RESIDUAL = (PostOp("add", operand=5), PostOp("relu"))


def window(kernel, strides=(1, 1), dilations=(1, 1), before=(0, 0), after=(0, 0)):
    return Window(kernel, strides, dilations, before, after)


SAME = window((3, 3), before=(1, 1), after=(1, 1))


def case(n, c, oc, h, w, win=SAME, first=RELU, post_ops=(), biases=(True, True), extra=None):
    inputs = [
        normal((n, c, h, w)),
        normal((c, 1, *win.kernel), 1),
        normal((c,), 2) if biases[0] else None,
        normal((oc, c, 1, 1), 3) / np.float32(np.sqrt(c)),
        normal((oc,), 4) if biases[1] else None,
    ]
    if extra:
        inputs.append(normal(extra, 5))
    return Separable(win, tuple(first), tuple(post_ops)), inputs


def is_fused(name):
    return name.startswith("separable")


def test_every_variant_with_borders(device):
    spec, inputs = case(2, 21, 35, 9, 15)
    ran = check_op(device, spec, inputs, consts=CONSTS, border=1)
    assert any("+" in name and "reference" in name for name in ran)


GEOMETRIES = {
    "stride": window((3, 3), (2, 2), (1, 1), (0, 0), (1, 1)),
    "dilated": window((3, 3), (1, 1), (2, 2), (2, 2), (2, 2)),
    "tall": window((5, 2), (1, 2), (1, 1), (2, 0), (2, 1)),
    "wide": window((1, 7), (2, 1), (1, 1), (0, 3), (0, 3)),
    "none": window((3, 3)),
    "point": window((1, 1)),
}


@pytest.mark.parametrize("name", GEOMETRIES)
def test_geometries(device, name):
    spec, inputs = case(1, 18, 20, 11, 16, GEOMETRIES[name], biases=(False, True))
    check_op(device, spec, inputs, consts=CONSTS, orders=NHWC)


@pytest.mark.parametrize(
    "channels,out", [(2, 3), (3, 17), (16, 16), (33, 64), (40, 7), (512, 8), (18, 80)]
)
def test_channel_tails(device, channels, out):
    spec, inputs = case(1, channels, out, 5, 9, biases=(True, False))
    check_op(device, spec, inputs, consts=CONSTS)


STEPS = {
    "residual": (RESIDUAL, (1, 24, 7, 10)),
    "per channel": ((PostOp("mul", operand=5), PostOp("sigmoid")), (24, 1, 1)),
    "heavy": ((PostOp("swish", (1.0,)),), None),
}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("orders", [NHWC, PLAIN], ids=["nhwc", "to planes"])
def test_steps(device, name, orders):
    post_ops, extra = STEPS[name]
    spec, inputs = case(
        1, 16, 24, 7, 10, first=(PostOp("clip", (0.0, 6.0)),), post_ops=post_ops, extra=extra
    )
    check_op(device, spec, inputs, consts=CONSTS, orders=orders)


GATES = {  # shapes of the gate and of the operand behind
    "images": ((2, 21, 1, 1), None),
    "all images": ((1, 21, 1, 1), (2, 24, 5, 9)),
    "channels": ((21, 1, 1), (24, 1, 1)),
}


@pytest.mark.parametrize("name", GATES)
@pytest.mark.parametrize("win", [SAME, window((1, 1))], ids=["k3", "k1"])
def test_gates(device, name, win):
    """A factor per channel between the convolutions, as of squeeze and excitation."""
    gate, extra = GATES[name]
    first = (PostOp("relu"), PostOp("mul", operand=6 if extra else 5), PostOp("sub", params=(0.1,)))
    post_ops = RESIDUAL if extra else ()
    spec, inputs = case(2, 21, 24, 5, 9, win, first=first, post_ops=post_ops, extra=extra)
    fixed = (*CONSTS, len(inputs)) if name == "channels" else CONSTS
    ran = check_op(device, spec, [*inputs, normal(gate, 6)], consts=fixed, orders=NHWC)
    assert not of_cpus(device) or (any(map(is_fused, ran)) and any("+" in name for name in ran))


def test_a_gate_per_pixel_is_refused():
    spec, inputs = case(1, 4, 4, 5, 9, first=(PostOp("mul", operand=5),))
    types = [TensorType(a.shape) for a in inputs]
    with pytest.raises(
        ShapeError, match=r"is \(1, 4, 5, 9\): it must have one element for each of 4"
    ):
        spec.infer([*types, TensorType((1, 4, 5, 9))])


@pytest.mark.parametrize("dtype,rounding", [("f16", 2**-11), ("bf16", 2**-8)])
def test_storage_in_16_bits(device, dtype, rounding):
    spec, inputs = case(1, 20, 12, 6, 9, post_ops=RESIDUAL, extra=(1, 12, 6, 9))
    # Two kernels store what is between in 16 bits too.
    check_op(device, spec, inputs, consts=CONSTS, dtype=dtype, tolerance=2 * rounding)


def test_computed_weights_take_any_layout(device):
    spec, inputs = case(1, 6, 5, 4, 5)
    check_op(device, spec, inputs, consts=())


def test_one_axis(device):
    spec = Separable(Window((3,), (2,), (1,), (1,), (1,)))
    inputs = [normal((2, 10, 17)), normal((10, 1, 3), 1), None, normal((6, 10, 1), 3), None]
    check_op(device, spec, inputs, consts=CONSTS)


@pytest.mark.exhaustive
@pytest.mark.parametrize("shape", [(1, 24, 40, 14, 14), (2, 16, 33, 13, 9), (1, 64, 16, 3, 30)])
def test_all_candidates(device, shape):
    spec, inputs = case(*shape)
    check_op(device, spec, inputs, consts=CONSTS, every=True)


def names(target, shape=(1, 32, 64, 28, 28)):
    spec, inputs = case(*shape)
    found = []

    def note(node, problem, variants):
        if node.name == "node":
            found.extend([v.name for v in variants])
            found.extend(v.name for v in node.spec.candidates(problem))
        return variants[0]

    make_plan(single_node(spec, inputs, CONSTS), target, note)
    return found


def test_cpus_keep_what_is_between_in_the_cache():
    found = names(Target("cpu", 16, 2, 256, 2**20))
    assert is_fused(found[0]) and sum(map(is_fused, found[3:])) > 4
    assert any("+" in name for name in found)


@pytest.mark.parametrize("images", [1, 8])
def test_weights_of_a_megabyte_are_read_again_for_each_image_by_two_kernels_too(images):
    assert is_fused(names(Target("cpu", 16, 2, 256, 2**20), (images, 512, 512, 14, 14))[0])


@pytest.mark.parametrize("before,behind,most", [(True, True, 28), (True, False, 32)])
def test_functions_before_and_behind_leave_registers_for_their_numbers(before, behind, most):
    """Else sums are spilled within the products."""
    swish = (PostOp("swish", (1.0,)),)
    first, post_ops = (swish if given else RELU for given in (before, behind))
    spec, inputs = case(1, 192, 256, 28, 28, first=first, post_ops=post_ops)
    found = []

    def note(node, problem, variants):
        if node.name == "node":
            found.extend(v.name for v in node.spec.candidates(problem) if is_fused(v.name))
        return variants[0]

    make_plan(single_node(spec, inputs, CONSTS), Target("cpu", 16, 2, 256, 2**20), note)
    tiles = [re.search(r"_t(\d+)x(\d+)", name) for name in found]
    held = [int(t[1]) * int(t[2]) // 16 + int(t[2]) // 16 + 1 for t in tiles if t]
    assert held and max(held) <= most and (most < 32 or max(held) > 28)


def test_a_band_that_does_not_fit_near_is_not_offered():
    assert not any(map(is_fused, names(Target("cpu", 16, 2, 256, 2**11))))


def test_gpus_have_kernels_of_their_own():
    found = names(Target("gpu", 4, 16, 256, 2**15))
    assert any("+" in name for name in found)
    assert all("separable_workgroup" in name for name in found if is_fused(name))


def test_shapes_that_do_not_fit():
    types = [TensorType(s) for s in ((1, 4, 5, 5), (4, 1, 3, 3), (4,), (6, 4, 1, 1), (6,))]
    assert Separable(SAME).infer(types) == (TensorType((1, 6, 5, 5)),)
    with pytest.raises(ShapeError, match="one filter per channel"):
        Separable(SAME).infer([types[0], TensorType((8, 1, 3, 3)), *types[2:]])
    with pytest.raises(ShapeError, match="is None: it must have one element"):
        Separable(SAME, (PostOp("add", operand=5),)).infer(types)


@pytest.mark.parametrize("size", [(14, 14), (7, 7), (28, 28)])
def test_products_ask_for_the_next_blocks_weights(size):
    """Tiles of a band ask for all lines of the next block's, filters for those of the first's or for none."""
    channels, line, checked = 512, 16, 0
    spec, inputs = case(1, channels, 128, *size)
    found = []

    def note(node, problem, variants):
        if node.name == "node":
            found.extend(v for v in node.spec.candidates(problem) if is_fused(v.name))
        return variants[0]

    target = Target("cpu", 16, 2, 256, 2**20, features=frozenset({"prefetch"}))
    make_plan(single_node(spec, inputs, CONSTS), target, note)
    for launch in (v.launches[0] for v in found):
        how, text = launch.params, render(launch.template, launch.params)
        block = channels * how["nv"] * how["vw"]
        tiles, columns = -(-how["band"] * size[1] // how["mr"]), -(-size[1] // how["tx"])
        for step in map(int, re.findall(r"prefetch.*following \+ c \* (\d+)", text)):
            assert step <= line and block <= tiles * channels * step
            checked += 1
        first = re.findall(r"prefetch.*\(weights \+ .* \* (\d+) \+ (\d+)\)", text)
        if first:
            assert how["band"] * columns * channels * int(first[0][0]) >= block
            asked = dict.fromkeys(int(at) for _, at in first)  # by each tile that is written out
            assert list(asked) == list(range(0, how["vw"] * int(first[0][0]), line))
    assert checked, [v.name for v in found]
