"""Layers of a simulation once more: by calls of clnn.mli and clnn.openvx, and by plain numpy."""

from __future__ import annotations

import math

import numpy as np

from clnn import mli
from clnn import openvx as vx
from clnn.bridges.fixed import scaled

EL = {
    ("int8", True): mli.MliElementType.MLI_EL_SA_8,
    ("int16", False): mli.MliElementType.MLI_EL_FX_16,
    ("int8", False): mli.MliElementType.MLI_EL_FX_8,
    ("int32", True): mli.MliElementType.MLI_EL_SA_32,
}
RELUS = {"": 0, "relu": 1, "relu6": 3}


def image(values):
    """Return (1, c, h, w) as a contiguous (h, w, c)."""
    return np.ascontiguousarray(values[0].transpose(1, 2, 0))


def tensor(values, quant):
    """Return an MLI tensor of integers on a grid's quantisation."""
    if quant.affine:
        params = mli.SaParams((quant.scale,), (quant.zero,), (quant.frac,))
    else:
        params = mli.FxParams(quant.frac)
    data = np.ascontiguousarray(values)
    return mli.MliTensor(data.reshape(-1), data.shape, EL[str(data.dtype), quant.affine], params)


def constants(layer, weights, axis):
    """Return weights and bias as MLI tensors; axis: of the output channels."""
    data, x = layer.data, layer.grids[0].quant
    if x.affine:
        scales, fracs = zip(*data["scales"], strict=True)
        zeros = (0,) * len(scales)
        w = mli.SaParams(scales, zeros, fracs, axis)
        pairs = [scaled(math.ldexp(s * x.scale, -f - x.frac)) for s, f in data["scales"]]
        b = mli.SaParams(tuple(s for s, _ in pairs), zeros, tuple(f for _, f in pairs), 0)
    else:
        w, b = (mli.FxParams(f) for f in data["fractions"])
    made = []
    for values, params in ((weights, w), (data["bias"], b)):
        values = np.ascontiguousarray(values)
        el_type = EL[str(values.dtype), x.affine]
        made.append(mli.MliTensor(values.reshape(-1), values.shape, el_type, params))
    return made


def by_mli(layer, inputs):
    """Return what MLI's own function gives for a layer's integers."""
    x, out = layer.grids[0].quant, layer.grid.quant
    fmt = "sa8" if x.affine else "fx16"
    kinds = {"sa8": "sa8_sa8_sa32", "fx16": "fx16"}[fmt]
    if "weights" in layer.data and layer.data["weights"].dtype == np.int8 and not x.affine:
        kinds = "fx16_fx8_fx8"
    first = inputs[0]
    if layer.op in ("conv", "depthwise"):
        return _mli_convolution(layer, first, kinds, x, out)
    if layer.op == "fully_connected":
        weights = layer.data["weights"]
        w, b = constants(layer, weights.reshape(len(weights), -1).T, 1)
        cfg = mli.MliFullyConnectedCfg(mli.MliReluCfg(RELUS[layer.data["activation"]]))
        y = tensor(np.zeros(len(weights), first.dtype), out)
        ok(getattr(mli, f"mli_krn_fully_connected_{kinds}")(tensor(first[0], x), w, b, cfg, y))
        return y.view()[None]
    if layer.op in ("max_pool", "average_pool"):
        return _mli_pool(layer, first, fmt, x, out)
    y = tensor(np.zeros(first.shape, first.dtype), out)
    if layer.op in ("add", "sub", "mul"):
        two = tensor(inputs[1], layer.grids[1].quant)
        ok(getattr(mli, f"mli_krn_eltwise_{layer.op}_{fmt}")(tensor(first, x), two, y))
    elif layer.op in ("relu", "relu6"):
        cfg = mli.MliReluCfg(RELUS[layer.op])
        ok(getattr(mli, f"mli_krn_relu_{fmt}")(tensor(first, x), cfg, y))
    elif layer.op == "softmax":
        cfg = mli.MliAxisCfg(layer.data["axis"])
        ok(getattr(mli, f"mli_krn_softmax_{fmt}")(tensor(first, x), cfg, y))
    else:
        name = {"sigmoid": "sigm", "tanh": "tanh"}[layer.op]
        ok(getattr(mli, f"mli_krn_{name}_{fmt}")(tensor(first, x), y))
    return y.view()


def ok(status):
    assert status == mli.MliStatus.MLI_STATUS_OK, mli.last_error()


def _shape(window, shape):
    return window.output(shape)


def _mli_convolution(layer, x_values, kinds, x, out):
    data, window = layer.data, layer.data["window"]
    weights = data["weights"].transpose(2, 3, 1, 0)  # HWCN
    w, b = constants(layer, weights, 3)
    sizes = window.output(x_values.shape[2:])
    y = tensor(np.zeros((*sizes, weights.shape[3]), x_values.dtype), out)
    cfg = mli.MliConv2dCfg(
        mli.MliReluCfg(RELUS[data["activation"]]),
        window.strides[1],
        window.strides[0],
        window.before[1],
        window.after[1],
        window.before[0],
        window.after[0],
        window.dilations[1],
        window.dilations[0],
    )
    stem = {"conv": "conv2d", "depthwise": "depthwise_conv2d"}[layer.op]
    function = getattr(mli, f"mli_krn_{stem}_hwcn_{kinds}")
    ok(function(tensor(image(x_values), x), w, b, cfg, y))
    return y.view().transpose(2, 0, 1)[None]


def _mli_pool(layer, x_values, fmt, x, out):
    window = layer.data["window"]
    sizes = window.output(x_values.shape[2:])
    y = tensor(np.zeros((*sizes, x_values.shape[1]), x_values.dtype), out)
    cfg = mli.MliPoolCfg(
        window.kernel[1],
        window.kernel[0],
        window.strides[1],
        window.strides[0],
        window.before[1],
        window.after[1],
        window.before[0],
        window.after[0],
    )
    stem = {"max_pool": "maxpool", "average_pool": "avepool"}[layer.op]
    ok(getattr(mli, f"mli_krn_{stem}_hwc_{fmt}")(tensor(image(x_values), x), cfg, y))
    return y.view().transpose(2, 0, 1)[None]


def by_openvx(layer, inputs, want):
    """Return what OpenVX's own node gives for a layer's integers; want: of the result's shape."""
    with vx.vxCreateContext() as context:
        if layer.op == "depthwise":
            return np.stack(
                [_channel(context, layer, inputs[0], c) for c in range(want.shape[1])], 1
            )
        data = layer.data
        if layer.op == "conv":
            made = _vx_conv(context, inputs[0], data["weights"], data["bias"], data)
            return _vx_activated(context, made, data["activation"])
        run = {
            "fully_connected": _vx_fully_connected,
            "max_pool": _vx_pool,
            "average_pool": _vx_pool,
            "softmax": _vx_softmax,
            "add": _vx_add,
        }
        if layer.op in ("relu", "relu6"):
            return _vx_activated(context, inputs[0], layer.op)
        return run[layer.op](context, layer, inputs, want)


def vx_tensor(context, values):
    dims = values.shape[::-1]
    made = vx.vxCreateTensor(context, len(dims), dims, vx.VX_TYPE_INT16, 8)
    vx.vxCopyTensorPatch(made, None, None, np.ascontiguousarray(values, np.int16), vx.VX_WRITE_ONLY)
    return made


def vx_result(context, shape, add):
    """Return the elements that a node writes; add(graph, out) adds it."""
    graph = vx.vxCreateGraph(context)
    out = vx_tensor(context, np.zeros(shape, np.int16))
    add(graph, out)
    vx.vxVerifyGraph(graph)
    vx.vxProcessGraph(graph)
    found = np.empty(shape, np.int16)
    vx.vxCopyTensorPatch(out, None, None, found, vx.VX_READ_ONLY)
    return found


SATURATE, EVEN = vx.VX_CONVERT_POLICY_SATURATE, vx.VX_ROUND_POLICY_TO_NEAREST_EVEN
FLOOR = vx.VX_CONVOLUTIONAL_NETWORK_DS_SIZE_ROUNDING_FLOOR
CEILING = vx.VX_CONVOLUTIONAL_NETWORK_DS_SIZE_ROUNDING_CEILING


def _rounding(window):
    return FLOOR if window.before == window.after else CEILING


def _vx_conv(context, x, weights, bias, data):
    window = data["window"]
    shape = (len(weights), *window.output(x.shape[2:]))
    tensors = [vx_tensor(context, v) for v in (x[0], weights, bias)]
    top, left = window.before

    def add(graph, out):
        how = (SATURATE, EVEN, _rounding(window), out)
        vx.vxConvolutionLayer(graph, *tensors, left, top, 32, *how)

    return vx_result(context, shape, add)[None]


def _channel(context, layer, x, c):
    data = layer.data
    one = np.ascontiguousarray(x[:, c : c + 1])
    made = _vx_conv(context, one, data["weights"][c : c + 1], data["bias"][c : c + 1], data)
    return _vx_activated(context, made, data["activation"])[:, 0]


def _vx_activated(context, x, activation):
    if not activation:
        return x
    func = {
        "relu": vx.VX_CONVOLUTIONAL_NETWORK_ACTIVATION_RELU,
        "relu6": vx.VX_CONVOLUTIONAL_NETWORK_ACTIVATION_BRELU,
    }[activation]
    source = vx_tensor(context, x)
    return vx_result(
        context,
        x.shape,
        lambda graph, out: vx.vxActivationLayer(graph, source, func, 6, 0, out),
    )


def _vx_fully_connected(context, layer, inputs, want):
    weights = layer.data["weights"]
    parts = (inputs[0][0], weights.reshape(len(weights), -1), layer.data["bias"])
    tensors = [vx_tensor(context, v) for v in parts]

    def add(graph, out):
        vx.vxFullyConnectedLayer(graph, *tensors, 0, 32, SATURATE, EVEN, FLOOR, out)

    made = vx_result(context, want.shape[1:], add)[None]
    return _vx_activated(context, made, layer.data["activation"])


def _vx_pool(context, layer, inputs, want):
    window, x = layer.data["window"], inputs[0]
    kind = {
        "max_pool": vx.VX_CONVOLUTIONAL_NETWORK_POOLING_MAX,
        "average_pool": vx.VX_CONVOLUTIONAL_NETWORK_POOLING_AVG,
    }[layer.op]
    source = vx_tensor(context, x[0])
    shape = (x.shape[1], *window.output(x.shape[2:]))

    def add(graph, out):
        sizes = (window.kernel[1], window.kernel[0], window.before[1], window.before[0])
        vx.vxPoolingLayer(graph, source, kind, *sizes, _rounding(window), out)

    return vx_result(context, shape, add)[None]


def _vx_softmax(context, layer, inputs, want):
    source = vx_tensor(context, inputs[0][0])
    return vx_result(
        context, want.shape[1:], lambda graph, out: vx.vxSoftmaxLayer(graph, source, out)
    )[None]


def _vx_add(context, layer, inputs, want):
    one, two = (vx_tensor(context, x) for x in inputs)
    return vx_result(
        context, want.shape, lambda graph, out: vx.vxTensorAddNode(graph, one, two, SATURATE, out)
    )


def by_shift(layer, x, even=False):
    """Return products with scales of powers of two by Python's integers: one shift, ties up or to even."""
    data, window = layer.data, layer.data["window"]
    given, out = layer.grids[0], layer.grid
    weights = data["weights"].astype(np.int64)
    if "exponents" in data:
        step, bias_left = 2.0 ** np.array(data["exponents"][0], np.float64), 0
    elif "scales" in data:
        step = np.array([math.ldexp(scale, -frac) for scale, frac in data["scales"]])
        bias_left = 0
    else:
        frac, bias_frac = data["fractions"]
        step, bias_left = 2.0**-frac, given.quant.frac + frac - bias_frac
    shift = np.rint(np.log2(out.step / (given.step * step))).astype(int).reshape(-1, 1, 1)
    images = x.astype(np.int64).reshape(*x.shape, 1, 1) if x.ndim == 2 else x.astype(np.int64)
    before, after = window.before, window.after
    padded = np.pad(images - given.zero, ((0, 0), (0, 0), *zip(before, after, strict=True)))
    sizes, per = window.output(images.shape[2:]), weights.shape[1]
    total = np.zeros((len(x), len(weights), *sizes), np.int64)
    for k, filters in enumerate(weights):
        first = k // (len(weights) // data["group"]) * per
        for c, i, j in np.ndindex(*filters.shape):
            rows = slice(i, i + (sizes[0] - 1) * window.strides[0] + 1, window.strides[0])
            columns = slice(j, j + (sizes[1] - 1) * window.strides[1] + 1, window.strides[1])
            total[:, k] += filters[c, i, j] * padded[:, first + c, rows, columns]
    total += (data["bias"].astype(np.int64) << bias_left).reshape(1, -1, 1, 1)
    right = np.maximum(shift, 0)
    if "exponents" in data and len(set(data["exponents"][0])) > 1:
        moved = (total >> 4 << 4 >> right) << np.maximum(
            -shift, 0
        )  # the ESP32-P4, channel by channel
    elif even:
        moved = np.rint(total / 2.0**shift).astype(np.int64)
    else:
        moved = (total + (1 << right >> 1) >> right) << np.maximum(-shift, 0)
    least, most = out.limits
    if data["activation"]:
        least = max(least, out.zero)
    if data["activation"] == "relu6":
        most = min(most, int(6 / out.step) + out.zero)
    return np.clip(moved + out.zero, least, most).reshape(-1, len(weights), *sizes)


def by_esp(layer, inputs, even=False):
    """Return a layer of ESP-DL by plain numpy: exact sums, or one rounding of float32 with ties up or to even."""
    if "weights" in layer.data:
        return by_shift(layer, inputs[0], even)
    given, out = layer.grids, layer.grid
    first = inputs[0].astype(np.int64)
    if layer.op in ("relu", "relu6"):
        top = out.limits[1] if layer.op == "relu" else min(out.limits[1], int(6 / out.step))
        return np.clip(first, 0, top)
    if layer.op == "add":
        moved = [
            _nearest(x.astype(np.float64) * (grid.step / out.step), out, even)
            for x, grid in zip(inputs, given, strict=True)
        ]
        return np.clip(sum(moved), *out.limits)
    window = layer.data["window"]
    strided = np.lib.stride_tricks.sliding_window_view(first, window.kernel, (2, 3))
    parts = strided[:, :, :: window.strides[0], :: window.strides[1]]
    if layer.op == "max_pool":
        return parts.max((-2, -1))
    total = parts.sum((-2, -1)).astype(np.float32)
    count = np.float32(np.prod(window.kernel))
    factor = np.float32(1) / count * np.float32(given[0].step / out.step)
    return _nearest(total * factor, out, even)


def _nearest(values, grid, even):
    """Return numbers rounded to nearest, ties up or to even, and saturated."""
    half = values.dtype.type(0.5)
    steps = np.rint(values) if even else np.floor(values + half)
    return np.clip(steps, *grid.limits).astype(np.int64)
