"""DFT, STFT and the tables of signal processing give onnxruntime's numbers."""

from __future__ import annotations

import numpy as np
import pytest
from harness import rng
from onnx import TensorProto, helper
from onnx_models import model, tensor, value
from reference_engines import one_node, onnxruntime_result
from together import evaluate, imported

import clnn
from clnn.errors import HostMemoryError, ShapeError
from clnn.runtime.run.session import Session

# shape, attributes, length, axis of opset 20
FORMS = [
    ((2, 8, 1), {}, None, None),
    ((2, 8, 1), {"onesided": 1}, None, None),
    ((2, 7, 1), {"onesided": 1}, None, None),
    ((2, 8, 1), {"inverse": 1}, None, None),
    ((2, 8, 2), {}, None, None),
    ((2, 9, 2), {"inverse": 1}, None, None),
    ((2, 5, 2), {"inverse": 1, "onesided": 1}, None, None),
    ((2, 8, 2), {}, 5, -2),
    ((2, 8, 1), {"onesided": 1}, 11, None),
    ((3, 6, 4, 1), {}, None, 0),
    ((3, 6, 4, 2), {"inverse": 1}, None, -3),
    ((8, 1), {}, None, None),
    ((1, 1, 1), {}, None, None),
    ((2, 600, 2), {}, None, None),
    ((2, 1024, 1), {"onesided": 1}, None, None),
    ((600, 2, 2), {"inverse": 1}, None, 0),
    ((1, 521, 1), {}, None, None),
    ((1, 600, 1), {}, 640, None),
]


def wanted(x, inverse=0, onesided=0, length=None, axis=None, **_):
    """Return numpy's transform in float64."""
    wide, axis = x.astype(np.float64), -2 if axis is None else axis
    z = wide[..., 0] if x.shape[-1] == 1 else wide[..., 0] + 1j * wide[..., 1]
    axis += x.ndim if axis < 0 else 0
    if inverse and onesided:
        return np.fft.irfft(z, length, axis)[..., None]
    function = np.fft.ifft if inverse else np.fft.rfft if onesided else np.fft.fft
    found = function(z, length, axis)
    return np.stack([found.real, found.imag], -1)


def given(x, length, axis):
    inputs = [x, None if length is None else np.array(length), None]
    if axis is not None:
        inputs[2] = np.array(axis)
    while inputs[-1] is None:
        inputs.pop()
    return inputs


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("shape,attrs,length,axis", FORMS)
def test_transforms_agree_with_numpy_and_onnxruntime(shape, attrs, length, axis, dtype):
    x = rng().standard_normal(shape).astype(dtype)
    inputs = given(x, length, axis)
    got = evaluate(imported("DFT", inputs, attrs, 20, range(1, len(inputs))), inputs)
    want = wanted(x, length=length, axis=axis, **attrs)
    assert got.dtype == dtype and got.shape == want.shape
    bound = 1e-12 if dtype == "float64" else 3e-6
    assert np.abs(got - want).max() <= bound * max(np.abs(want).max(), 1)
    (theirs,) = onnxruntime_result("DFT", inputs, attrs, 20, range(1, len(inputs)))
    assert theirs.shape == want.shape and theirs.dtype == dtype
    assert np.abs(theirs - want).max() <= 1e-3 * max(np.abs(want).max(), 1)


@pytest.mark.parametrize("length", [7, 12])
def test_spectra_of_one_side_are_cut_or_continued_as_numpy_does(length):
    x = rng().standard_normal((2, 5, 2))
    attrs = {"inverse": 1, "onesided": 1}
    got = evaluate(imported("DFT", given(x, length, None), attrs, 20, (1,)), given(x, length, None))
    np.testing.assert_allclose(got, wanted(x, length=length, **attrs), atol=1e-12)


@pytest.mark.parametrize("axis", [1, 2, -2])
def test_the_axis_is_an_attribute_before_opset_20(axis):
    x = rng().standard_normal((2, 6, 4, 2))
    got = evaluate(imported("DFT", [x], {"axis": axis}, 17), [x])
    np.testing.assert_allclose(got, wanted(x, axis=axis), atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("shape,attrs,length,axis", FORMS)
def test_transforms_on_devices(device, shape, attrs, length, axis, dtype):
    x = rng().standard_normal(shape).astype(dtype)
    inputs = given(x, length, axis)
    proto = one_node("DFT", inputs, attrs, 20, range(1, len(inputs)))
    with clnn.compile_model(proto, device) as session:
        (got,) = session({"i0": x}).values()
    want = wanted(x, length=length, axis=axis, **attrs)
    assert got.dtype == dtype and got.shape == want.shape
    bound = 3e-6 if dtype == "float32" else 1e-3
    assert np.abs(got - want).max() <= bound * max(np.abs(want).max(), 1)


def test_long_transforms_take_small_tables():
    x = rng().standard_normal((1, 6000, 2))
    got = evaluate(imported("DFT", [x], {}, 20), [x])
    np.testing.assert_allclose(got, wanted(x), atol=1e-9)
    with pytest.raises(HostMemoryError, match="Fourier transform of length 10007"):
        imported("DFT", [np.zeros((1, 10007, 2), np.float32)], {}, 20)


SHORT = [
    (16, 64, None, {}),
    (5, 20, "hann", {}),
    (7, 20, "hann", {"onesided": 0}),
    (600, 600, "hann", {}),
]


def framed(x, step, length, window, onesided=1):
    frames = np.stack([x[:, k : k + length] for k in range(0, x.shape[1] - length + 1, step)], 1)
    frames = frames if window is None else frames * window[:, None]
    return wanted(frames, onesided=onesided)


@pytest.mark.parametrize("consts", [(1, 2, 3), (1, 3)], ids=["constant", "computed"])
@pytest.mark.parametrize("step,length,kind,attrs", SHORT)
def test_short_time_transforms(device, step, length, kind, attrs, consts):
    x = rng().standard_normal((2, 1300, 1)).astype(np.float32)
    window = None if kind is None else np.hanning(length).astype(np.float32)
    inputs = [x, np.array(step), window, np.array(length)]
    proto = one_node("STFT", inputs, attrs, 17, consts)
    feeds = {"i0": x} | ({} if window is None or 2 in consts else {"i2": window})
    with clnn.compile_model(proto, device) as session:
        (got,) = session(feeds).values()
    (theirs,) = onnxruntime_result("STFT", inputs, attrs, 17, consts)
    want = framed(x.astype(np.float64), step, length, window, **attrs)
    assert got.shape == want.shape == theirs.shape
    np.testing.assert_allclose(theirs, want, atol=1e-2)
    np.testing.assert_allclose(got, want, atol=1e-4)


def test_short_time_transforms_of_any_number_and_length_of_signals(any_device):
    nodes = [
        helper.make_node("HannWindow", ["n"], ["w"]),
        helper.make_node("STFT", ["x", "s", "w"], ["y"]),
    ]
    held = [tensor("n", np.array(32, np.int64)), tensor("s", np.array(8, np.int64))]
    proto = model(nodes, [value("x", ("b", "t", 1))], initializers=held, opset=17)
    with clnn.compile_model(proto, any_device) as session:
        for shape in [(2, 100, 1), (1, 100, 1), (3, 32, 1), (1, 400, 1)]:
            x = rng(shape[1]).standard_normal(shape).astype(np.float32)
            window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(32) / 32)
            (got,) = session({"x": x}).values()
            np.testing.assert_allclose(got, framed(x, 8, 32, window), atol=1e-4)


@pytest.mark.parametrize("op", ["HannWindow", "HammingWindow", "BlackmanWindow"])
@pytest.mark.parametrize("attrs", [{}, {"periodic": 0}, {"output_datatype": TensorProto.DOUBLE}])
def test_windows_of_computed_and_of_constant_sizes(any_device, op, attrs):
    size = np.array(13, np.int32)
    (want,) = onnxruntime_result(op, [size], attrs, 17)
    with clnn.compile_model(one_node(op, [size], attrs, 17), any_device) as session:
        (got,) = session({"i0": size}).values()
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got, want, atol=5e-7)
    nodes = [
        helper.make_node(op, ["n"], ["w"], **attrs),
        helper.make_node("Cast", ["w"], ["c"], to=1),
    ]
    nodes.append(helper.make_node("Mul", ["x", "c"], ["y"]))
    proto = model(nodes, [value("x", (13,))], initializers=[tensor("n", size)], opset=17)
    with clnn.compile_model(proto, any_device) as session:
        assert isinstance(session, Session)
        (got,) = session({"x": np.ones(13, np.float32)}).values()
    np.testing.assert_allclose(got, want, atol=5e-7)


@pytest.mark.parametrize("bands,size,rate,low,high", [
    (8, 16, 8192, 0.0, 4096.0),
    (80, 400, 16000, 0.0, 8000.0),
    (40, 512, 22050, 60.0, 7600.0),
    (3, 64, 8000, 100.0, 200.0),
])  # fmt: skip
def test_weights_of_mel_bands(any_device, bands, size, rate, low, high):
    inputs = [*(np.array(v) for v in (bands, size, rate)), np.float32(low), np.float32(high)]
    inputs = [np.asarray(a) for a in inputs]
    (want,) = onnxruntime_result("MelWeightMatrix", inputs, {}, 17)
    for consts in ((), range(5)):
        proto = one_node("MelWeightMatrix", inputs, {}, 17, consts)
        feeds = {} if consts else {f"i{k}": a for k, a in enumerate(inputs)}
        with clnn.compile_model(proto, any_device) as session:
            (got,) = session(feeds).values()
        np.testing.assert_allclose(got, want, atol=1e-6)


@pytest.mark.parametrize("shape,attrs,length,axis,why", [
    ((2, 8, 3), {}, None, None, "1 or 2 parts"),
    ((2, 8, 1), {}, None, 2, "has the parts"),
    ((2, 8, 2), {"onesided": 1}, None, None, "needs 1 parts"),
    ((2, 8, 1), {"onesided": 1, "inverse": 1}, None, None, "needs 2 parts"),
    ((2, 0, 1), {}, None, None, "at least 1"),
])  # fmt: skip
def test_transforms_that_do_not_fit_are_named(shape, attrs, length, axis, why):
    inputs = given(np.zeros(shape, np.float32), length, axis)
    with pytest.raises(ShapeError, match=why):
        imported("DFT", inputs, attrs, 20, range(1, len(inputs)))


@pytest.mark.parametrize("shape,step,length,why", [
    ((2, 8, 1), 0, 4, "every 0 places"),
    ((2, 8, 1), 2, 9, "frames of 9"),
    ((2, 8, 2), 2, 4, "one side needs real"),
    ((8,), 2, 4, "must be"),
])  # fmt: skip
def test_short_time_transforms_that_do_not_fit_are_named(shape, step, length, why):
    inputs = [np.zeros(shape, np.float32), np.array(step), None, np.array(length)]
    with pytest.raises(ShapeError, match=why):
        imported("STFT", inputs, {}, 17, (1, 3))
