"""Winograd's products of weights that kernels transform: what comes out, and where the estimate takes them."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_op, normal

from clnn.ops.conv import winograd_cpu, winograd_streamed
from clnn.ops.conv.spec import Conv2d
from clnn.ops.conv.winograd import matrices
from clnn.ops.conv.winograd_streamed import StreamedPlan, pack, plans
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.window import Window
from clnn.target import Target

CPU = Target("cpu", 16, 2, 256, 2**20)
SAME = Window((3, 3), (1, 1), (1, 1), (1, 1), (1, 1))


def only(monkeypatch, plan):
    """Let a plan be the only one, however few the weights."""
    monkeypatch.setattr(winograd_streamed, "plans", lambda *_: [plan])
    monkeypatch.setattr(winograd_streamed, "_pays", lambda _: True)


@pytest.mark.parametrize(
    ("my", "mx", "mr", "nv", "chunk", "sets", "parts", "ic", "oc", "group"),
    [
        (2, 2, 8, 2, 16, 2, 2, 32, 64, 1),
        (2, 4, 6, 1, 16, 1, 1, 48, 16, 1),
        (4, 2, 5, 2, 32, 3, 2, 32, 48, 1),  # the last block has one vector of two
        (4, 4, 4, 4, 16, 1, 1, 16, 80, 1),
        (2, 2, 7, 3, 16, 2, 2, 32, 96, 2),
        (2, 2, 4, 1, 16, 4, 2, 32, 32, 3),
    ],
)
def test_tiles(device, monkeypatch, my, mx, mr, nv, chunk, sets, parts, ic, oc, group):
    monkeypatch.setenv("CLNN_CPU_VECTOR", "16")
    plan = StreamedPlan(my, mx, mr, nv, 16, chunk, sets, parts)
    only(monkeypatch, plan)
    post_ops = (PostOp("add", operand=3), PostOp("relu"), PostOp("mul", operand=4))
    channels = group * oc
    bias = normal((channels,), 2) if nv != 1 else None
    inputs = [normal((2, group * ic, 7, 10), 0), normal((channels, ic, 3, 3), 1), bias]
    inputs += [normal((2, channels, 7, 10), 7), normal((channels, 1, 1), 8)]
    (name,) = check_op(
        device,
        Conv2d(SAME, group, post_ops),
        inputs,
        consts=(1, 2),
        orders={"i3": (0, 2, 3, 1)},
        only="winograd_streamed",
    )
    assert f"_f{my}x{mx}_t{mr}x{16 * nv}_c{chunk}_p{parts}" in name


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 3, 1, 2), (3, 2, 1, 0)])
def test_operands_in_any_order(device, monkeypatch, order, dtype):
    monkeypatch.setenv("CLNN_CPU_VECTOR", "16")
    only(monkeypatch, StreamedPlan(2, 4, 4, 2, 16, 16, 2, 1))
    post_ops = (PostOp("add", operand=3), PostOp("relu"))
    inputs = [normal((2, 16, 7, 10), 0), normal((32, 16, 3, 3), 1), None]
    inputs.append(normal((2, 32, 7, 10), 7))
    how = {"orders": {"i3": order, "o0": (0, 2, 3, 1)}, "only": "winograd_streamed"}
    check_op(device, Conv2d(SAME, 1, post_ops), inputs, consts=(1, 2), dtype=dtype, **how)


@pytest.mark.parametrize(
    ("size", "pads"), [((4, 4), (1, 1, 1, 1)), ((5, 9), (0, 0, 0, 0)), ((1, 17), (2, 0, 1, 2))]
)
def test_borders(device, monkeypatch, size, pads):
    monkeypatch.setenv("CLNN_CPU_VECTOR", "16")
    plan = StreamedPlan(2, 4, 4, 2, 16, 16, 2, 1)
    only(monkeypatch, plan)
    win = Window((3, 3), (1, 1), (1, 1), pads[:2], pads[2:])
    inputs = [normal((2, 16, size[0] + 2, size[1] + 2), 0), normal((32, 16, 3, 3), 1)]
    check_op(
        device, Conv2d(win), [*inputs, None], consts=(1, 2), border=2, only="winograd_streamed"
    )


@pytest.mark.parametrize("m", [2, 4])
def test_scaled_matrices_give_the_same(m):
    """Weights are transformed in integers; what these leave out is made up for behind the products."""
    made, (at, g) = matrices(m), winograd_streamed.scaled(m)
    weights, x = normal((3,), 1).astype(np.float64), normal((m + 2,), 2).astype(np.float64)
    there = np.array(at) @ ((np.array(g) @ weights) * (np.array(made.bt) @ x))
    plain = [x[i : i + 3] @ weights for i in range(m)]
    np.testing.assert_allclose(there, plain, rtol=1e-12, atol=1e-12)
    assert all(float(w).is_integer() for row in g for w in row)


@pytest.mark.parametrize(
    ("size", "ic", "oc", "tiles"),
    [(7, 512, 512, (2, 4)), (8, 512, 512, (2, 4)), (10, 384, 384, (4, 4)), (14, 256, 256, (4, 4))],
)
def test_tiles_of_many_weights(size, ic, oc, tiles):
    made = plans((1, oc, size, size), ic, CPU)[0]
    assert (made.my, made.mx) == tiles and made.nv >= 2
    before = winograd_cpu.plan((1, oc, size, size), ic, CPU, 16)
    assert before is None or made.cost < before.cost


@pytest.mark.parametrize(("size", "channels"), [(28, 128), (14, 512), (56, 64)])
def test_tiles_that_no_second_cache_holds_are_left_to_others(size, channels):
    """Weights would be transformed again for each group of tiles."""
    assert not plans((1, channels, size, size), channels, CPU)


def test_packed_weights():
    """Rows of places by channels, with the window's columns transformed and its rows as they were."""
    weights = normal((64, 16, 3, 3), 3)
    packed, g = pack(weights, 2, 2, 16), matrices(2).g
    assert packed.shape == (1, 2, 4, 16, 2, 3, 16)
    there = g @ weights[45, 7].astype(np.float64)
    np.testing.assert_allclose(packed[0, 1, :, 7, 0, :, 13], there, rtol=1e-6)
