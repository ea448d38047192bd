"""BitCast: the bits stay."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_op, rng
from together import imported

from clnn.errors import DTypeError
from clnn.ops.elementwise.bitcast import BitCast
from clnn.types import BOOL, F32, I8, I16, I32, U8, U16, U32, TensorType


@pytest.mark.parametrize("given,wanted", [
    *((F32, I32), (F32, U32), (I32, F32), (U32, I32), (I8, U8), (U16, I16), (BOOL, U8)),
])  # fmt: skip
@pytest.mark.parametrize("shape", [(), (3, 20)])
def test_bits_stay(device, given, wanted, shape):
    whole = rng().integers(0, 2 if given == BOOL else 120, shape)
    x = np.asarray(whole, given.numpy) if given != F32 else np.asarray(whole - 60.5, np.float32)
    check_op(device, BitCast(wanted), [x], tolerance=0)


def test_one_byte_where_tensor_cores_are(device, monkeypatch):
    """Images of bytes lie in pieces there: a byte without axes does not."""
    monkeypatch.setenv("CLNN_TENSOR_CORES", "emulated")
    check_op(device, BitCast(U8), [np.asarray(-5, np.int8)], tolerance=0)


def test_widths_that_differ_are_refused():
    x = np.zeros(3, np.float32)
    source = imported("BitCast", [x], {"to": 3}, 26)
    with pytest.raises(DTypeError, match="not as many"):
        source.spec.infer([TensorType.of(x)])
