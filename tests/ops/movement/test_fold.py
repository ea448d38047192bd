from __future__ import annotations

import numpy as np
import pytest
from harness import normal, rng
from reference_engines import one_node, onnxruntime_result
from together import evaluate, imported

import clnn
from clnn.errors import ClnnError

INT64 = np.int64


def on_device(device, op, inputs, attrs, opset, consts=()):
    with clnn.compile_model(one_node(op, inputs, attrs, opset, consts), device) as session:
        return session({f"i{k}": a for k, a in enumerate(inputs) if k not in consts})["o0"]


COLUMNS = [
    ((5, 5), (1, 5), {}),
    ((5, 6), (3, 2), {"pads": [1, 0, 2, 1]}),
    ((6, 7), (2, 3), {"strides": [2, 3]}),
    ((8, 7), (2, 3), {"strides": [2, 1], "dilations": [3, 2], "pads": [0, 1, 1, 2]}),
    ((9,), (4,), {"strides": [2]}),
    ((3, 4, 5), (1, 2, 3), {"pads": [0, 1, 1, 0, 1, 0]}),
]


def columns(image, block, attrs):
    """A random input, and the number of its columns by torch's formula."""
    rank, count = len(image), 1
    strides, dilations = (attrs.get(n, [1] * rank) for n in ("strides", "dilations"))
    pads = attrs.get("pads", [0] * 2 * rank)
    for a in range(rank):
        reach = image[a] + pads[a] + pads[a + rank] - dilations[a] * (block[a] - 1) - 1
        count *= reach // strides[a] + 1
    x = normal((2, 3 * int(np.prod(block)), count))
    x[0, 0, 0] = np.inf  # stays where it is
    return [x, np.array(image, INT64), np.array(block, INT64)]


@pytest.mark.parametrize("image, block, attrs", COLUMNS)
def test_col2im(device, image, block, attrs):
    inputs = columns(image, block, attrs)
    (want,) = onnxruntime_result("Col2Im", inputs, attrs, 18, out_types=(1,))
    for got in (
        evaluate(imported("Col2Im", inputs, attrs, 18, consts=(1, 2)), inputs),
        on_device(device, "Col2Im", inputs, attrs, 18, (1, 2)),
    ):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_columns_that_do_not_fit_are_refused():
    inputs = columns((5, 5), (1, 5), {})
    inputs[0] = inputs[0][:, :, :-1]
    with pytest.raises(ClnnError, match="5 columns"):
        imported("Col2Im", inputs, {}, 18, consts=(1, 2))


POOLS = [
    ((7,), {"kernel_shape": [2], "strides": [2]}),
    ((6, 7), {"kernel_shape": [2, 3], "strides": [2, 3]}),
    ((6, 6), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 0, 0]}),
    ((4, 5, 6), {"kernel_shape": [2, 2, 2], "strides": [2, 2, 2]}),
]


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("spatial, attrs", POOLS)
def test_max_unpool(device, spatial, attrs, given):
    """Of what MaxPool made; with the size of the image that it came from, or the least one."""
    x = normal((2, 3, *spatial))
    pooled, places = onnxruntime_result("MaxPool", [x], attrs, 22, n_outputs=2, out_types=(1, 7))
    inputs = [pooled, places, *([np.array(x.shape, INT64)] if given else [])]
    if not given:
        pads = np.reshape(attrs.get("pads", [0] * 2 * len(spatial)), (2, -1)).sum(0)
        out = 6 * np.prod(
            (np.array(pooled.shape[2:]) - 1) * attrs["strides"] + attrs["kernel_shape"] - pads
        )
        inputs[1] = rng(1).permutation(out)[: pooled.size].reshape(pooled.shape)
    (want,) = onnxruntime_result("MaxUnpool", inputs, attrs, 22, out_types=(1,))
    fixed = (2,) if given else ()
    for got in (
        evaluate(imported("MaxUnpool", inputs, attrs, 22, consts=fixed), inputs),
        on_device(device, "MaxUnpool", inputs, attrs, 22, fixed),
    ):
        np.testing.assert_array_equal(got, want)


def test_a_place_outside_is_refused():
    x, places = normal((1, 1, 2)), np.array([[[0, 4]]])
    with pytest.raises(ClnnError, match="index 4"):
        imported("MaxUnpool", [x, places], {"kernel_shape": [2], "strides": [2]}, 22, consts=(1,))


def cached(past, update, begins, axis, mode):
    """As ONNX defines it."""
    out = past.copy()
    for prefix in np.ndindex(*past.shape[:axis]):
        for step in range(update.shape[axis]):
            at = int(begins[prefix[0]]) + step
            out[(*prefix, at % past.shape[axis] if mode == "circular" else at)] = update[
                (*prefix, step)
            ]
    return out


@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize("axis, begins", [(-2, [0, 3, 1]), (1, [2, 0, 1]), (2, None)])
def test_tensor_scatter(device, mode, axis, begins):
    past, count = normal((3, 6, 5, 4)), 2
    where = axis % 4
    update = normal(tuple(count if a == where else d for a, d in enumerate(past.shape)), 1)
    if mode == "circular" and begins:
        begins = [b + 4 for b in begins]
    inputs = [past, update, *([np.array(begins, INT64)] if begins else [])]
    want = cached(past, update, begins or [0] * 3, where, mode)
    attrs = {"axis": axis, "mode": mode}
    for got in (
        evaluate(imported("TensorScatter", inputs, attrs, 24), inputs),
        on_device(device, "TensorScatter", inputs, attrs, 24),
    ):
        np.testing.assert_array_equal(got, want)
