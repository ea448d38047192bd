"""Shared by the tests of clnn.openvx: tensors from arrays, statuses of failed calls."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest

from clnn import openvx as vx

KINDS = {
    "i2": (vx.VX_TYPE_INT16, 8),
    "u1": (vx.VX_TYPE_UINT8, 0),
    "i1": (vx.VX_TYPE_INT8, 0),
    "f4": (vx.VX_TYPE_FLOAT32, 0),
}
SAT, WRAP = vx.VX_CONVERT_POLICY_SATURATE, vx.VX_CONVERT_POLICY_WRAP
ZERO, EVEN = vx.VX_ROUND_POLICY_TO_ZERO, vx.VX_ROUND_POLICY_TO_NEAREST_EVEN
FLOOR = vx.VX_CONVOLUTIONAL_NETWORK_DS_SIZE_ROUNDING_FLOOR
CEIL = vx.VX_CONVOLUTIONAL_NETWORK_DS_SIZE_ROUNDING_CEILING
MAX, AVG = vx.VX_CONVOLUTIONAL_NETWORK_POOLING_MAX, vx.VX_CONVOLUTIONAL_NETWORK_POOLING_AVG
RELU = vx.VX_CONVOLUTIONAL_NETWORK_ACTIVATION_RELU


def empty(context, *dims, kind="i2", position=None):
    """Return a tensor of zeros; dims innermost first."""
    number, known = KINDS[kind]
    return vx.vxCreateTensor(
        context, len(dims), dims, number, known if position is None else position
    )


def tensor(context, array, position=None):
    """Return a tensor that holds an array, whose last axis is dimension 0."""
    made = empty(context, *array.shape[::-1], kind=array.dtype.str[1:], position=position)
    write(made, array)
    return made


def write(made, array):
    vx.vxCopyTensorPatch(made, None, None, np.ascontiguousarray(array), vx.VX_WRITE_ONLY)


def read(made):
    """Return a tensor's elements, the last axis being dimension 0."""
    kind = vx.vxQueryTensor(made, vx.VX_TENSOR_DATA_TYPE)
    code = next(code for code, (number, _) in KINDS.items() if number == kind)
    found = np.empty(vx.vxQueryTensor(made, vx.VX_TENSOR_DIMS)[::-1], code)
    vx.vxCopyTensorPatch(made, None, None, found, vx.VX_READ_ONLY)
    return found


def view(made, starts, ends):
    """Return the tensor of a view."""
    return vx.vxCreateTensorFromView(
        made, vx.vxCreateTensorView(made.home, starts, ends, len(starts))
    )


def integers(shape, code="i2", seed=0, most=None):
    """Return integers over the whole range of their type, or of at most `most` in magnitude."""
    bounds = np.iinfo(code)
    low, high = (bounds.min, bounds.max) if most is None else (max(-most, bounds.min), most)
    return np.random.default_rng(seed).integers(low, high + 1, shape).astype(code)


@contextmanager
def fails(status, match=None):
    """Check that the block raises VxError with a status; `match` is part of the message."""
    with pytest.raises(vx.VxError, match=match) as caught:
        yield
    assert caught.value.status == getattr(vx, status), caught.value
    assert str(caught.value).startswith(f"{status}: ")
