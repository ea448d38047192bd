"""Element types that are carried in wider ones: every element, ties, ends and special values, to the bit."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from harness import check_op, rng
from onnx import helper

import clnn
from clnn.arith.elements import Narrow, Widen, bits_of
from clnn.errors import DTypeError
from clnn.ops.elementwise.fixed_map import FixedMap
from clnn.types import BF16, CARRIERS, F16, F32, FLOATS8, TensorType

KINDS = [k for k in CARRIERS if k != F16]
FLOATS = [k for k in KINDS if CARRIERS[k] == F32]
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-39, -1e-45, 1e-3]


def codes(kind):
    """Return every element once; of bfloat16 some of them."""
    if kind == BF16:
        return rng(0).integers(0, 2**16, 4096, np.uint16).view(kind.numpy)
    return (np.arange(256, dtype=np.uint8) & (2 ** bits_of(kind) - 1)).view(kind.numpy)


def around(kind):
    """Return numbers at, between and just beside elements, and special ones."""
    real = codes(kind).astype(np.float32)
    real = np.unique(real[np.isfinite(real)])
    middle = real[1:] / 2 + real[:-1] / 2
    beside = [np.nextafter(middle, np.float32(s) * np.inf, dtype=np.float32) for s in (-1, 1)]
    with np.errstate(over="ignore"):
        largest = real[-1] * np.array(
            [1.01, 1.06, 1.0625, 1.07, 1.125, 1.24, 1.25, 1.5], np.float32
        )
    return np.concatenate([real, middle, *beside, largest, -largest, np.array(SPECIAL, np.float32)])


def cast(kind, saturate, count):
    """Return a model that casts float32 to a type."""
    number = helper.np_dtype_to_tensor_dtype(kind.numpy)
    graph = helper.make_graph(
        [helper.make_node("Cast", ["x"], ["y"], to=number, saturate=int(saturate))],
        "cast",
        [helper.make_tensor_value_info("x", 1, [count])],
        [helper.make_tensor_value_info("y", number, [count])],
    )
    opset = helper.make_opsetid("", 25)
    return helper.make_model(graph, opset_imports=[opset], ir_version=13).SerializeToString()


@pytest.mark.parametrize("kind", KINDS, ids=repr)
def test_widen_every_element(device, kind):
    check_op(device, FixedMap(Widen(kind)), [codes(kind)])


@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize("kind", FLOATS, ids=repr)
def test_narrow_real_numbers(device, kind, saturate):
    if kind == BF16:  # devices may take the least numbers for 0
        x = around(kind)
        check_op(device, FixedMap(Narrow(kind)), [x[(np.abs(x) > 1e-37) | (x == 0)]])
    else:
        spec, x = FixedMap(Narrow(kind, saturate)), around(kind)
        nan = np.isnan(spec.reference(x)[0].astype(np.float32))
        check_op(device, spec, [x[~nan]])
        feeds = {"x": x[nan | (x == 0)]}  # NaN has no equal
        with clnn.compile_model(cast(kind, saturate, len(feeds["x"])), device) as session:
            got = session(feeds)["y"].view(np.uint8)
        np.testing.assert_array_equal(got, spec.reference(feeds["x"])[0].view(np.uint8))


@pytest.mark.parametrize("kind", [k for k in KINDS if k not in FLOATS], ids=repr)
def test_narrow_integers_keeps_the_low_bits(device, kind):
    every = np.arange(256, dtype=np.uint8).view(CARRIERS[kind].numpy)
    check_op(device, FixedMap(Narrow(kind)), [every])


@pytest.mark.parametrize("kind", FLOATS8, ids=repr)
def test_the_reference_rounds_as_the_formats_say(kind):
    most = float(ml_dtypes.finfo(kind.numpy).max)
    x = np.array([most * 4, -most * 4, np.inf], np.float32)
    inside = Narrow(kind).reference(x).astype(np.float32)
    beyond = Narrow(kind, False).reference(x).astype(np.float32)
    assert inside.tolist() == [most, -most, most]
    assert not np.isfinite(beyond).any()


def test_other_operands_are_refused():
    with pytest.raises(DTypeError, match="it takes bfloat16"):
        FixedMap(Widen(BF16)).infer([TensorType((2,))])
    with pytest.raises(DTypeError, match="it takes float32"):
        FixedMap(Narrow(BF16)).infer([TensorType((2,), F16)])
