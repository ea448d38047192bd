"""Layers and models of clnn.espdl beside numpy; what their plans copy."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clnn import espdl
from clnn.apis.espdl.values import session_of
from clnn.errors import DTypeError, SettingError, ShapeError

P, A = espdl.PaddingType, espdl.ActivationType
TYPES = [P.PADDING_VALID, P.PADDING_SAME_BEGIN, P.PADDING_SAME_END, P.PADDING_NOT_SET]


def integers(shape, kind=np.int16, seed=0, most=None):
    ends = np.iinfo(kind)
    low, high = (ends.min, ends.max) if most is None else (-most, most)
    return np.random.default_rng(seed).integers(low, high, shape, kind, endpoint=True)


def tensor(array, exponent=0):
    made = espdl.Tensor(array.dtype).set_shape(array.shape).set_exponent(exponent)
    return made.set_element(array.reshape(-1).copy())


def summed(x, w, strides, padding, dilation, depthwise=False):
    """Return sums of products (h, w, o) of an image with a filter (kh, kw, i, o), as int64."""
    top, bottom, left, right = padding
    x = np.pad(x.astype(np.int64), ((top, bottom), (left, right), (0, 0)))
    reach = [(k - 1) * d + 1 for k, d in zip(w.shape[:2], dilation, strict=True)]
    outs = [(x.shape[a] - reach[a]) // strides[a] + 1 for a in (0, 1)]
    found = np.zeros((*outs, x.shape[2] if depthwise else w.shape[3]), np.int64)
    for ky, kx in product(*map(range, w.shape[:2])):
        part = x[ky * dilation[0] :, kx * dilation[1] :][:: strides[0], :: strides[1]]
        part = part[: outs[0], : outs[1]]
        tap = w[ky, kx].astype(np.int64)
        found += part * tap[:, 0] if depthwise else part @ tap
    return found


def saturated(values, kind):
    ends = np.iinfo(kind)
    return np.clip(values, ends.min, ends.max).astype(kind)


def shifted(sums, shift):
    """Return sums / 2**shift, rounded down."""
    return sums >> shift if shift >= 0 else sums << -shift


@given(
    st.integers(1, 9),
    st.integers(1, 5),
    st.integers(1, 3),
    st.sampled_from(TYPES),
    st.lists(st.integers(0, 3), min_size=4, max_size=4),
)
@settings(max_examples=200, deadline=None)
def test_sizes_and_padding(extent, reach, stride, kind, explicit):
    """Of both axes alike, by the rules of TensorFlow and MXNet."""
    shape = (extent, extent + 1, 3)
    room = extent + (
        min(explicit[0] + explicit[1], explicit[2] + explicit[3]) if kind == TYPES[3] else 0
    )
    if kind not in TYPES[1:3] and room < reach:
        with pytest.raises(ShapeError):
            espdl.get_output_shape(shape, (reach, reach), stride, stride, kind, None, explicit)
        return
    outs = espdl.get_output_shape(shape, (reach, reach), stride, stride, kind, 7, explicit)
    pads = espdl.get_pad_size(outs, shape, (reach, reach), stride, stride, kind, explicit)
    assert outs[2] == 7 and min(pads) >= 0
    for axis in (0, 1):
        begin, end = pads[2 * axis : 2 * axis + 2]
        assert outs[axis] == (shape[axis] + begin + end - reach) // stride + 1
        if kind in TYPES[1:3]:
            assert outs[axis] == -(-shape[axis] // stride)
            assert end - begin in ((0, 1) if kind == P.PADDING_SAME_END else (0, -1))


CASES = [
    (np.int16, TYPES[0], (1, 1), (1, 1), None),
    (np.int16, TYPES[1], (2, 2), (1, 1), A.ReLU),
    (np.int16, TYPES[2], (2, 1), (2, 1), A.LeakyReLU),
    (np.int8, TYPES[2], (1, 2), (1, 1), A.PReLU),
    (np.int8, TYPES[3], (1, 1), (1, 2), A.ReLU),
]


@pytest.mark.parametrize("kind, padding, strides, dilation, activation", CASES)
@pytest.mark.parametrize("depthwise", [False, True])
def test_convolutions(device, kind, padding, strides, dilation, activation, depthwise):
    bits = 8 * np.dtype(kind).itemsize
    x, count = integers((7, 8, 5), kind), 5 if depthwise else 6
    w = integers((3, 2, 5, 1 if depthwise else 6), kind, 1)
    b = integers(count, kind, 2)
    slopes = integers(1 if activation == A.LeakyReLU else count, kind, 3)
    held = None
    if activation is not None:
        sloped = activation != A.ReLU
        held = espdl.Activation(activation, slopes if sloped else None, -bits if sloped else 0)
    filter_ = espdl.Filter(w, -bits, w.shape, dilation)
    layer_type = espdl.DepthwiseConv2D if depthwise else espdl.Conv2D
    layer = layer_type(
        -bits + 4, filter_, espdl.Bias(b, -bits + 4), held, padding, *strides, padding=(1, 0, 2, 1)
    )
    given_ = tensor(x, -bits + 2)
    layer.build(given_)
    assert given_.padding == layer.padding, "the input's padding grew"
    sums = summed(x, w, strides, layer.padding, dilation, depthwise)
    wanted = saturated(shifted(sums, bits + 2) + b, kind).astype(np.int64)
    if activation == A.ReLU:
        wanted = np.maximum(wanted, 0)
    elif activation is not None:
        wanted = saturated(np.where(wanted < 0, wanted * slopes >> bits, wanted), kind)
    with espdl.using(device=device):
        found = layer.call(given_).view()
    assert found.dtype == kind and (found == wanted).all()
    assert len(np.unique(found)) > 10


def rounded(sums, shifts, way):
    """Return sums / 2**shifts by the rounding of a chip, with float64 halves that are exact here."""
    halves = sums / np.exp2(shifts)
    return {"up": np.floor(halves + 0.5), "even": np.rint(halves), "down": np.floor(halves)}[
        way
    ].astype(np.int64)


@pytest.mark.parametrize("chip, way", [("esp32s3", "up"), ("esp32p4", "even"), ("c", "up")])
def test_generation_and_chip_say_how_sums_are_rounded(device, chip, way):
    x, w, b = (
        integers((5, 5, 8), np.int8),
        integers((1, 1, 8, 9), np.int8, 1),
        integers(9, np.int16, 2),
    )
    layer = espdl.Conv2D(-2, espdl.Filter(w, -6, w.shape), espdl.Bias(b.astype(np.int32), -11))
    given_ = tensor(x, -5)
    layer.build(given_)
    with espdl.using(generation="3.x", chip=chip, device=device):
        found = layer.call(given_).view()
    wanted = saturated(rounded(summed(x, w, (1, 1), (0,) * 4, (1, 1)) + b, 9, way), np.int8)
    assert (found == wanted).all() and len(np.unique(found)) > 20
    exponents = tuple(-6 - k % 4 for k in range(9))
    biases = tuple(-5 + e + 4 for e in exponents)
    channels = espdl.Conv2D(
        -2, espdl.Filter(w, exponents, w.shape), espdl.Bias(b.astype(np.int32), biases)
    )
    channels.build(given_)
    with espdl.using(generation="3.x", chip=chip, device=device):
        found = channels.call(given_).view()
    shifts = np.array([-2 + 5 - e for e in exponents])
    sums = (summed(x, w, (1, 1), (0,) * 4, (1, 1)) >> 4) + b
    assert (found == saturated(sums >> (shifts - 4), np.int8)).all(), "channels are rounded down"


def test_lanes_of_the_esp32s3(device):
    x, w = np.full((3, 3, 40), -128, np.int8), np.full((1, 1, 40, 3), -128, np.int8)
    w[:, :, 33:] = 127
    layer = espdl.Conv2D(13, espdl.Filter(w, 0, w.shape))
    given_ = tensor(x)
    layer.build(given_)
    with espdl.using(generation="3.x", chip="esp32s3", lanes=True, device=device):
        narrow = int(layer.call(given_).view()[0, 0, 0])
    with espdl.using(generation="3.x", chip="esp32s3", device=device):
        wide = int(layer.call(given_).view()[0, 0, 0])
    assert wide == (33 * 2**14 - 7 * 128 * 127 + 2**12) >> 13
    assert narrow == (2**19 - 1 - 7 * 128 * 127 + 2**12) >> 13 != wide


def test_rows_with_filters_of_a_file(device):
    x, w = integers((2, 3, 4), most=999), integers((1, 1, 4, 19), seed=1, most=99)
    packed = np.concatenate(
        [
            w[0, 0, :, :16].reshape(4, 2, 8).transpose(1, 0, 2).reshape(-1),
            w[0, 0, :, 16:].T.reshape(-1),
        ]
    )
    rows = espdl.FullyConnected(
        -3, espdl.Filter(packed, -8, w.shape, layout="(N/8)HWC8"), flatten=False
    )
    given_ = tensor(x, -1)
    rows.build(given_)
    with espdl.using(device=device):
        found = rows.call(given_).view()
    assert (found == saturated(x.astype(np.int64) @ w[0, 0] >> 6, np.int16)).all()
    whole = integers((1, 1, 24, 5), seed=3, most=99)
    flat = espdl.FullyConnected(-3, espdl.Filter(whole, -8, whole.shape))
    flat.build(given_)
    with espdl.using(device=device):
        found = flat.call(given_).view()
    assert (
        found.tolist()
        == saturated(x.reshape(-1).astype(np.int64) @ whole[0, 0] >> 6, np.int16).tolist()
    )


@pytest.mark.parametrize("kind", [np.int8, np.int16])
def test_functions_of_elements(device, kind):
    a, b = integers((3, 4, 6), kind), integers((3, 4, 6), kind, 1)
    x, y, bits = tensor(a, -3), tensor(b, -5), 8 * np.dtype(kind).itemsize
    same = tensor(b, -3)
    wide, other = a.astype(np.int64), b.astype(np.int64)
    relu = espdl.Activation(A.ReLU)
    expected = {
        "add": (espdl.Add2D(-3, relu), (x, y), np.maximum(wide * 4 + other >> 2, 0)),
        "sub": (espdl.Sub2D(-2), (x, same), wide - other >> 1),
        "mul": (espdl.Mul2D(bits - 9), (x, y), wide * other >> bits - 1),
        "max": (espdl.Max2D(), (x, same), np.maximum(wide, other)),
        "min": (espdl.Min2D(), (x, same), np.minimum(wide, other)),
        "relu": (espdl.ReLU(), (x,), np.maximum(wide, 0)),
        "leaky": (espdl.LeakyReLU(11, -5), (x,), np.where(wide < 0, wide * 11 >> 5, wide)),
        "prelu": (
            espdl.PReLU([9, -8, 7, 0, 1, 2], -4),
            (x,),
            np.where(wide < 0, wide * [9, -8, 7, 0, 1, 2] >> 4, wide),
        ),
        "sigmoid": (espdl.Sigmoid(-7), (x,), np.floor(np.float32(128 / (1 + np.exp(-wide / 8.0))))),
        "tanh": (espdl.Tanh(-7), (x,), np.floor(np.float32(128 * np.tanh(wide / 8.0)))),
    }
    with espdl.using(device=device):
        for layer, inputs, _ in expected.values():
            layer.build(*inputs)
            layer.call(*inputs)
        espdl.settle(*(layer.output for layer, _, _ in expected.values()))
    for name, (layer, _, wanted) in expected.items():
        assert (layer.output.view() == saturated(wanted, kind)).all(), name


def test_softmax_of_integers_and_of_real_numbers(device):
    x = tensor(integers((2, 3, 7), np.int8), -4)
    real, whole = espdl.Softmax(), espdl.Softmax(-8)
    with espdl.using(generation="3.x", chip="esp32p4", device=device):
        for layer in (real, whole):
            layer.build(x)
            layer.call(x)
        espdl.settle(real.output, whole.output)
    powers = np.exp(x.view() / 16.0)
    wanted = powers / powers.sum(-1, keepdims=True)
    assert real.output.dtype == np.float32 and np.abs(real.output.view() - wanted).max() < 1e-6
    assert np.abs(whole.output.view() - np.minimum(wanted * 256, 127)).max() <= 0.51


@pytest.mark.parametrize("generation", ["1.x", "3.x"])
def test_pooling(device, generation):
    a = integers((7, 6, 5), np.int8)
    x = tensor(a, -3)
    layers = [
        espdl.MaxPool2D((3, 2), P.PADDING_SAME_END, 2, 1),
        espdl.AvgPool2D(-4, (3, 2), P.PADDING_SAME_BEGIN, 2, 1),
        espdl.AvgPool2D(-4, (3, 2), P.PADDING_SAME_BEGIN, 2, 1, count_include_pad=False),
        espdl.GlobalMaxPool2D(),
        espdl.GlobalAvgPool2D(-5),
    ]
    with espdl.using(generation=generation, chip="esp32s3", device=device):
        for layer in layers:
            layer.build(x)
            layer.call(x)
        espdl.settle(*(layer.output for layer in layers))

    def average(total, count, steps):
        if generation == "1.x":
            return np.clip(total * steps // count, -128, 127)
        scaled = np.float32(total) * (np.float32(1) / np.float32(count) * np.float32(steps))
        return np.clip(np.floor(scaled + np.float32(0.5)), -128, 127)

    biggest, all_counted, inside = (layer.output.view() for layer in layers[:3])
    for y, z, c in product(range(4), range(6), range(5)):
        top = 2 * y - 1  # of SAME_BEGIN and SAME_END alike: one row above and below
        rows = a[max(top, 0) : top + 3]
        assert biggest[y, z, c] == rows[:, z : z + 2, c].max()
        part = rows[:, max(z - 1, 0) : z + 1, c].astype(int)
        assert all_counted[y, z, c] == average(part.sum(), 6, 2)
        assert inside[y, z, c] == average(part.sum(), part.size, 2)
    assert (layers[3].output.view()[0, 0] == a.max(axis=(0, 1))).all()
    sums = a.astype(int).sum(axis=(0, 1))
    assert layers[4].output.view()[0, 0].tolist() == [average(s, 42, 4) for s in sums]
    assert x.padding == [1, 1, 1, 1], "padding is that of the largest consumer on each side"


def test_moves(device):
    a = integers((2, 1, 12))
    x = tensor(a, -3)
    layers = {
        espdl.Reshape((4, -1)): a.reshape(4, 6),
        espdl.Flatten(): a.reshape(-1),
        espdl.Squeeze(): a[:, 0],
        espdl.Squeeze(1): a[:, 0],
        espdl.ExpandDims([0, -1]): a[None, ..., None],
        espdl.Transpose([2, 0, 1]): a.transpose(2, 0, 1),
        espdl.Transpose(): a.T,
        espdl.Pad((1, 0, 0, 2, 3, 1), -7): np.pad(a, ((1, 0), (0, 2), (3, 1)), constant_values=-7),
        espdl.Pad((1, 0, 0, 0, 2, 2), mode="reflect"): np.pad(
            a, ((1, 0), (0, 0), (2, 2)), "reflect"
        ),
    }
    with espdl.using(device=device):
        for layer in layers:
            layer.build(x)
            layer.call(x)
        espdl.settle(*(layer.output for layer in layers))
    for layer, wanted in layers.items():
        assert layer.output.exponent == -3
        assert layer.output.shape == list(wanted.shape) and (layer.output.view() == wanted).all()


class Branches(espdl.Model):
    """Two convolutions side by side, concatenated (within another concatenation), then two more."""

    def __init__(self):
        super().__init__()
        w = [
            espdl.Filter(integers((1, 1, 4, n), seed=n, most=99), -7, (1, 1, 4, n))
            for n in (3, 5, 2)
        ]
        self.one, self.two, self.three = (
            espdl.Conv2D(-5, f, name=f"c{k}") for k, f in enumerate(w)
        )
        self.inner, self.outer = espdl.Concat2D(), espdl.Concat2D()
        wide = espdl.Filter(integers((3, 3, 10, 4), seed=9, most=99), -7, (3, 3, 10, 4))
        self.last = espdl.Conv2D(-1, wide, None, None, P.PADDING_SAME_END)
        deep = espdl.Filter(integers((5, 3, 3, 1), seed=8, most=99), -7, (5, 3, 3, 1))
        self.side = espdl.DepthwiseConv2D(-1, deep, None, None, P.PADDING_SAME_END)

    def build(self, x):
        for layer in (self.one, self.two, self.three):
            layer.build(x)
        self.inner.build([self.one.output, self.two.output])
        self.outer.build([self.inner.output, self.three.output])
        self.last.build(self.outer.output)
        self.side.build(self.one.output)
        for concat in (self.outer, self.inner, self.outer):
            concat.backward()

    def call(self, x):
        self.outer.calloc_element()
        for layer in (self.one, self.two, self.three):
            layer.call(x)
        return self.last.call(self.outer.output), self.side.call(self.one.output)


def test_a_concatenation_copies_nothing(device):
    """One memory, channels at their offsets, the largest padding everywhere; no copy in the plan."""
    net, a = Branches(), integers((6, 5, 4), most=999)
    x = tensor(a, -3)
    with espdl.using(device=device):
        net.build(x)
        parts = [net.one.output, net.two.output, net.three.output]
        every = [*parts, net.inner.output, net.outer.output]
        assert all(t.padding == [2, 2, 1, 1] for t in every), [t.padding for t in every]
        assert all(t.shape_with_padding == [10, 7, 10] for t in every)
        results = net.call(x)
        session, feeds = session_of([t.value() for t in results])
        whole = net.outer.output._memory
        starts = [t._memory.ctypes.data - whole.ctypes.data for t in parts]
        assert starts == [0, 2 * 3, 2 * 8], "each part begins at its channels"
        rows = [row for row in session.placement.nodes if "concat" in str(row).lower()]
        assert rows and session.placement.copied_bytes == 0, session.placement
        assert not [r for r in rows if r["variant"] != "view"]
        found = session(feeds)
        espdl.settle(*results)
    for k, result in enumerate(results):
        assert (result.view() == found[f"y{k}"]).all()
    sums = [
        summed(a, layer.filter.array, (1, 1), (0,) * 4, (1, 1)) >> 5
        for layer in (net.one, net.two, net.three)
    ]
    joined = np.concatenate([saturated(s, np.int16) for s in sums], axis=2)
    assert (net.outer.output.view() == joined).all()
    assert (net.inner.output.view() == joined[..., :8]).all()
    around = whole.reshape(10, 7, 10)
    assert (around[2:8, 1:6] == joined).all() and not around[:2].any() and not around[:, :1].any()


def test_a_model_is_one_session(device):
    net = Branches()
    with espdl.using(device=device):
        for seed in (1, 2):
            a = integers((6, 5, 4), seed=seed, most=999)
            last, side = net.forward(tensor(a, -3))
            assert [id(t) for t in net.outputs] == [id(last), id(side)]
            assert not last.pending and net.one.output.pending
            sums = summed(net.outer.output.view(), net.last.filter.array, (1, 1), (1,) * 4, (1, 1))
            assert (last.view() == saturated(sums >> 11, np.int16)).all()
        other = tensor(integers((3, 4, 4), most=999), -3)
        last, _ = net.forward(other, free_input=True)
        assert last.shape == [3, 4, 4] and last.view().any()
    espdl.clear()


def test_values_are_taken_when_a_layer_is_called(device):
    a = integers((2, 2, 3))
    x = tensor(a)
    relu = espdl.ReLU()
    relu.build(x)
    with espdl.using(device=device):
        relu.call(x)
        x.view()[...] = -1
        assert (relu.output.view() == np.maximum(a, 0)).all()
        x.view()[...] = 5
        assert (relu.call(x).view() == 5).all()


W = np.zeros((3, 3, 2, 4), np.int16)


@pytest.mark.parametrize(
    "call, error, text",
    [
        (lambda x: espdl.Conv2D(0, espdl.Filter(W, 0, W.shape)).call(x), ShapeError, "build"),
        (lambda x: espdl.Conv2D(0, espdl.Filter(W, 0, W.shape)).build(x), ShapeError, "2 channels"),
        (
            lambda x: espdl.Conv2D(0, espdl.Filter(W, 0, W.shape), espdl.Bias(W[0, 0, 0, :3], 0)),
            ShapeError,
            "3 for 4",
        ),
        (lambda x: espdl.Filter(W, 0, (3, 3, 2)), ShapeError, "shape"),
        (lambda x: espdl.Filter(W.astype(float), 0, W.shape), DTypeError, "quantised"),
        (
            lambda x: espdl.FullyConnected(0, espdl.Filter(W[:1, :1], 0, (1, 1, 2, 4))).build(x),
            ShapeError,
            "elements",
        ),
        (lambda x: espdl.FullyConnected(0, espdl.Filter(W, 0, W.shape)), ShapeError, "1, 1"),
        (lambda x: espdl.Add2D(0).build(x, tensor(W)), ShapeError, "equal"),
        (lambda x: espdl.Max2D().build(x, tensor(x.view(), 5)), ShapeError, "exponents"),
        (lambda x: espdl.Concat2D().build([]), ShapeError, "nothing"),
        (lambda x: espdl.Concat2D().build([x, tensor(x.view(), 5)]), ShapeError, "exponents"),
        (lambda x: espdl.Concat2D().build([x, tensor(W[0])]), ShapeError, "height"),
        (lambda x: espdl.MaxPool2D((9, 9)).build(x), ShapeError, "fit"),
        (lambda x: espdl.Reshape((5, -1)).build(x), ShapeError, "Reshape"),
        (lambda x: espdl.Pad((1, 1)).build(x), ShapeError, "each axis"),
        (lambda x: espdl.Pad((1, 1), mode="symmetric"), ShapeError, "symmetric"),
        (lambda x: espdl.Activation(A.LeakyReLU), ShapeError, "slopes"),
        (lambda x: espdl.PReLU([1, 2], 0).operands(x), ShapeError, "slopes"),
        (lambda x: espdl.Modes(generation="2"), SettingError, "generation"),
        (lambda x: espdl.Modes(chip="z80"), SettingError, "z80"),
        (lambda x: espdl.Modes(lanes=True), SettingError, "lanes"),
        (lambda x: espdl.Model().forward(x), NotImplementedError, "build"),
        (lambda x: espdl.read("/no/such.espdl"), ValueError, "such.espdl"),
    ],
)
def test_what_does_not_fit_is_refused(call, error, text):
    with pytest.raises(error, match=text):
        call(tensor(integers((2, 3, 4))))
