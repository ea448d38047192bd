"""Objects of clnn.openvx on the host: counts, queries, copies, views, images."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openvx_tools import empty, fails, integers, read, tensor, view, write

from clnn import openvx as vx


@pytest.fixture
def context():
    with vx.vxCreateContext() as made:
        yield made


def test_maximum_dimensions_and_enumerations(context):
    assert vx.vxQueryContext(context, vx.VX_CONTEXT_MAX_TENSOR_DIMENSIONS) == 6
    assert vx.vxQueryContext(context, vx.VX_CONTEXT_TENSOR_MAX_DIMENSION) == 6
    assert (vx.VX_SUCCESS, vx.VX_ERROR_OPTIMIZED_AWAY, vx.VX_ERROR_INVALID_REFERENCE) == (
        0,
        -9,
        -12,
    )
    assert vx.VX_TENSOR_FIXED_POINT_POS - vx.VX_TENSOR_NUM_OF_DIMS == 4
    names = [n for n in dir(vx) if n.startswith("VX_CONVOLUTIONAL_NETWORK_ACTIVATION_")]
    assert len(names) == 9


def test_query_tensor(context):
    made = vx.vxCreateTensor(context, 3, (5, 4, 3), vx.VX_TYPE_INT16, 8)
    asked = [
        vx.VX_TENSOR_NUM_OF_DIMS,
        vx.VX_TENSOR_DIMS,
        vx.VX_TENSOR_DATA_TYPE,
        vx.VX_TENSOR_FIXED_POINT_POS,
    ]
    assert [vx.vxQueryTensor(made, a) for a in asked] == [3, (5, 4, 3), vx.VX_TYPE_INT16, 8]
    with fails("VX_ERROR_INVALID_PARAMETERS", "attribute"):
        vx.vxQueryTensor(made, 5)


def test_reference_counts(context):
    made = empty(context, 4)
    assert vx.vxQueryReference(made, vx.VX_REFERENCE_COUNT) == 1
    vx.vxRetainReference(made)
    assert vx.vxReleaseTensor(made) == vx.VX_SUCCESS
    assert vx.vxQueryReference(made, vx.VX_REFERENCE_COUNT) == 1
    vx.vxReleaseTensor(made)
    for call in (
        lambda: vx.vxReleaseTensor(made),
        lambda: read(made),
        lambda: vx.vxRetainReference(made),
    ):
        with fails("VX_ERROR_INVALID_REFERENCE", "was released"):
            call()


def test_releasing_a_context_invalidates_all(context):
    other = vx.vxCreateContext()
    made, scalar = empty(other, 4), vx.vxCreateScalar(other, vx.VX_TYPE_FLOAT32, 1.5)
    assert vx.vxQueryContext(other, vx.VX_CONTEXT_REFERENCES) == 2
    vx.vxReleaseContext(other)
    for call in (lambda: read(made), lambda: vx.vxCopyScalar(scalar), lambda: empty(other, 1)):
        with fails("VX_ERROR_INVALID_REFERENCE"):
            call()
    assert context.valid


def test_context_manager_releases_once(context):
    with empty(context, 3) as made:
        assert made.valid
    assert not made.valid
    with empty(context, 3) as made:
        vx.vxReleaseTensor(made)
    assert made.count == 0


def test_a_view_outlives_its_parent(context):
    parent = tensor(context, integers((3, 4)))
    part = view(parent, (1, 0), (3, 2))
    want = read(parent)[0:2, 1:3]
    vx.vxReleaseTensor(parent)
    np.testing.assert_array_equal(read(part), want)


def test_updates_reach_parent_and_siblings(context):
    parent = empty(context, 6, 5)
    left, inner = view(parent, (0, 0), (4, 5)), view(parent, (2, 1), (6, 4))
    nested = view(inner, (0, 0), (2, 2))  # columns 2..3, rows 1..2 of the parent
    write(nested, np.array([[1, 2], [3, 4]], np.int16))
    whole = np.zeros((5, 6), np.int16)
    whole[1:3, 2:4] = [[1, 2], [3, 4]]
    np.testing.assert_array_equal(read(parent), whole)
    np.testing.assert_array_equal(read(left), whole[:, :4])
    np.testing.assert_array_equal(read(inner), whole[1:4, 2:6])
    write(parent, whole + 1)
    np.testing.assert_array_equal(read(nested), [[2, 3], [4, 5]])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_patches_under_any_view_and_strides(data):
    """Writing and reading a patch through user strides is numpy's indexing."""
    rank = data.draw(st.integers(1, 6))
    dims = data.draw(st.lists(st.integers(1, 4), min_size=rank, max_size=rank))
    starts = [data.draw(st.integers(0, d - 1)) for d in dims]
    ends = [data.draw(st.integers(a + 1, d)) for a, d in zip(starts, dims, strict=True)]
    extents = [b - a for a, b in zip(starts, ends, strict=True)]
    strides, least = [], 2
    for extent in extents:
        strides.append(least + data.draw(st.integers(0, 3)))
        least = strides[-1] * extent
    with vx.vxCreateContext() as context:
        before, patch = integers(dims[::-1]), integers(extents[::-1], seed=1)
        made = tensor(context, before)
        box = vx.vxCreateTensorView(context, starts, ends, rank)
        layout = vx.vxCreateTensorAddressing(context, extents, strides, rank)
        memory = bytearray(least)
        np.ndarray(patch.shape, "<i2", memory, strides=strides[::-1])[...] = patch
        vx.vxCopyTensorPatch(made, box, layout, memory, vx.VX_WRITE_ONLY)
        want = before.copy()
        cut = tuple(slice(a, b) for a, b in zip(starts[::-1], ends[::-1], strict=True))
        want[cut] = patch
        np.testing.assert_array_equal(read(made), want)
        target = bytearray(b"\x55" * least)
        vx.vxCopyTensorPatch(made, box, layout, target, vx.VX_READ_ONLY)
        untouched = bytearray(b"\x55" * least)
        np.ndarray(patch.shape, "<i2", untouched, strides=strides[::-1])[...] = patch
        assert target == untouched


def copies(context):
    """Return bad copies of a 4 x 3 tensor: status, part of the message, arguments."""
    box = vx.vxCreateTensorView(context, (0, 0), (4, 3), 2)
    space = np.zeros(12, np.int16)

    def layout(dims, strides):
        return vx.vxCreateTensorAddressing(context, dims, strides, len(dims))

    beyond = vx.vxCreateTensorView(context, (0, 0), (5, 3), 2)
    flat = vx.vxCreateTensorView(context, (0,), (4,), 1)
    wrong = "VX_ERROR_INVALID_PARAMETERS"
    read_only = np.zeros(12, np.int16)
    read_only.flags.writeable = False
    return [
        (wrong, "beyond", (beyond, None, space, vx.VX_WRITE_ONLY)),
        (wrong, "dimensions", (flat, None, space, vx.VX_WRITE_ONLY)),
        (wrong, "sizes", (box, layout((3, 3), (2, 8)), space, vx.VX_WRITE_ONLY)),
        (wrong, "row-major", (box, layout((4, 3), (2, 6)), space, vx.VX_WRITE_ONLY)),
        (wrong, "row-major", (box, layout((4, 3), (1, 8)), space, vx.VX_WRITE_ONLY)),
        (wrong, "23 bytes", (box, None, bytearray(23), vx.VX_WRITE_ONLY)),
        (wrong, "contiguous", (box, None, np.zeros((4, 6), np.int16)[:, ::2], vx.VX_WRITE_ONLY)),
        (wrong, "contiguous", (box, None, None, vx.VX_WRITE_ONLY)),
        (wrong, "read-only", (box, None, read_only, vx.VX_READ_ONLY)),
        (wrong, "READ_AND_WRITE", (box, None, space, vx.VX_READ_AND_WRITE)),
        (wrong, "usage", (box, None, space, 7)),
        (wrong, "HOST", (box, None, space, vx.VX_WRITE_ONLY, vx.VX_MEMORY_TYPE_NONE)),
        ("VX_ERROR_INVALID_REFERENCE", "view", (space, None, space, vx.VX_WRITE_ONLY)),
        ("VX_ERROR_INVALID_REFERENCE", "user_addr", (box, box, space, vx.VX_WRITE_ONLY)),
    ]


def test_bad_copies_change_nothing(context):
    made, before = tensor(context, integers((3, 4))), integers((3, 4))
    for status, match, arguments in copies(context):
        with fails(status, match):
            vx.vxCopyTensorPatch(made, *arguments)
        np.testing.assert_array_equal(read(made), before)
    with fails("VX_ERROR_INVALID_REFERENCE"):
        vx.vxCopyTensorPatch(None, None, None, before, vx.VX_READ_ONLY)


@pytest.mark.parametrize(
    "arguments,match",
    [
        ((0, (), vx.VX_TYPE_INT16, 8), "num_of_dims"),
        ((7, (1,) * 7, vx.VX_TYPE_INT16, 8), "num_of_dims"),
        ((2, (3,), vx.VX_TYPE_INT16, 8), "sizes"),
        ((2, (3, 0), vx.VX_TYPE_INT16, 8), "sizes"),
        ((2, (3, 1.5), vx.VX_TYPE_INT16, 8), "sizes"),
        ((2, (2**20, 2**20), vx.VX_TYPE_INT16, 8), "elements"),
        ((1, (3,), vx.VX_TYPE_INT32, 0), "data_format"),
        ((1, (3,), 99999, 0), "data_format"),
        ((1, (3,), vx.VX_TYPE_INT16, 16), "fixed_point_pos"),
        ((1, (3,), vx.VX_TYPE_UINT8, 1), "fixed_point_pos"),
    ],
)
def test_bad_tensors(context, arguments, match):
    with fails("VX_ERROR_INVALID_PARAMETERS", match):
        vx.vxCreateTensor(context, *arguments)
    assert vx.vxQueryContext(context, vx.VX_CONTEXT_REFERENCES) == 0


def test_bad_views_and_layouts(context):
    made = empty(context, 4, 3)
    for arguments in (((0, 2), (4, 2), 2), ((0,), (4, 3), 2), ((-1, 0), (4, 3), 2), ((), (), 0)):
        with fails("VX_ERROR_INVALID_PARAMETERS"):
            vx.vxCreateTensorView(context, *arguments)
    with fails("VX_ERROR_INVALID_PARAMETERS", "stride"):
        vx.vxCreateTensorAddressing(context, (4, 3), (2, 0), 2)
    with fails("VX_ERROR_INVALID_PARAMETERS", "beyond"):
        view(made, (0, 0), (4, 4))
    with fails("VX_ERROR_INVALID_REFERENCE"):
        vx.vxCreateTensorFromView(made, None)
    with vx.vxCreateContext() as other, fails("VX_ERROR_INVALID_SCOPE"):
        vx.vxCreateTensorFromView(made, vx.vxCreateTensorView(other, (0, 0), (1, 1), 2))


def test_virtual_tensors(context):
    graph = vx.vxCreateGraph(context)
    made = vx.vxCreateVirtualTensor(graph, 2, (4, 3), vx.VX_TYPE_INT16, 8)
    with fails("VX_ERROR_OPTIMIZED_AWAY"):
        vx.vxCopyTensorPatch(made, None, None, bytearray(24), vx.VX_READ_ONLY)
    with fails("VX_ERROR_OPTIMIZED_AWAY"):
        vx.vxCreateImageObjectArrayFromTensor(made, (0, 0, 1, 1), 1, 24, vx.VX_DF_IMAGE_S16)
    assert vx.vxQueryTensor(view(made, (1, 0), (3, 2)), vx.VX_TENSOR_DIMS) == (2, 2)
    open_ = vx.vxCreateVirtualTensor(graph, 0, None, vx.VX_TYPE_INVALID, 0)
    with fails("VX_ERROR_INVALID_DIMENSION"):
        view(open_, (0,), (1,))
    with fails("VX_ERROR_INVALID_REFERENCE"):
        vx.vxCreateVirtualTensor(context, 0, None, 0, 0)


def test_images_inside_a_tensor(context):
    array = integers((4, 5, 6))
    made = tensor(context, array)
    images = vx.vxCreateImageObjectArrayFromTensor(
        made, (1, 2, 5, 5), 2, 2 * 5 * 6 * 2, vx.VX_DF_IMAGE_S16
    )
    assert vx.vxQueryObjectArray(images, vx.VX_OBJECT_ARRAY_NUMITEMS) == 2
    second = vx.vxGetObjectArrayItem(images, 1)
    assert vx.vxQueryReference(second, vx.VX_REFERENCE_COUNT) == 2
    sizes = [vx.vxQueryImage(second, a) for a in (vx.VX_IMAGE_WIDTH, vx.VX_IMAGE_HEIGHT)]
    assert sizes == [4, 3]
    pixels = np.empty((3, 4), np.int16)
    vx.vxCopyImagePatch(second, None, pixels, vx.VX_READ_ONLY)
    np.testing.assert_array_equal(pixels, array[2, 2:5, 1:5])
    vx.vxCopyImagePatch(second, (0, 0, 2, 1), np.array([7, 9], np.int16), vx.VX_WRITE_ONLY)
    array[2, 2, 1:3] = [7, 9]
    np.testing.assert_array_equal(read(made), array)
    vx.vxReleaseObjectArray(images)
    assert vx.vxQueryReference(second, vx.VX_REFERENCE_COUNT) == 1
    with fails("VX_ERROR_INVALID_REFERENCE"):
        vx.vxGetObjectArrayItem(images, 0)


@pytest.mark.parametrize(
    "rect,count,stride,form,match",
    [
        ((0, 0, 7, 5), 1, 60, "S16", "rect"),
        ((2, 0, 2, 5), 1, 60, "S16", "rect"),
        ((0, 0, 6, 5), 5, 60, "S16", "array_size"),
        ((0, 0, 6, 5), 3, 120, "S16", "planes"),
        ((0, 0, 6, 5), 1, 61, "S16", "multiple"),
        ((0, 0, 6, 5), 1, 60, "U8", "match"),
    ],
)
def test_bad_image_arrays(context, rect, count, stride, form, match):
    made = empty(context, 6, 5, 4)
    with fails("VX_ERROR_INVALID_PARAMETERS", match):
        vx.vxCreateImageObjectArrayFromTensor(
            made, rect, count, stride, getattr(vx, f"VX_DF_IMAGE_{form}")
        )


def test_scalars_and_tables(context):
    scalar = vx.vxCreateScalar(context, vx.VX_TYPE_FLOAT32, 0.1)
    assert vx.vxCopyScalar(scalar) == np.float32(0.1)
    assert vx.vxCopyScalar(scalar, 2.5) == vx.vxCopyScalar(scalar) == 2.5
    with fails("VX_ERROR_INVALID_PARAMETERS"):
        vx.vxCopyScalar(scalar, "x")
    with fails("VX_ERROR_INVALID_PARAMETERS"):
        vx.vxCreateScalar(context, vx.VX_TYPE_UINT8, 1)
    lut = vx.vxCreateLUT(context, vx.VX_TYPE_INT16, 11)
    attributes = (vx.VX_LUT_COUNT, vx.VX_LUT_SIZE, vx.VX_LUT_OFFSET, vx.VX_LUT_TYPE)
    assert [vx.vxQueryLUT(lut, a) for a in attributes] == [11, 22, 5, vx.VX_TYPE_INT16]
    vx.vxCopyLUT(lut, integers(11), vx.VX_WRITE_ONLY)
    found = np.empty(11, np.int16)
    vx.vxCopyLUT(lut, found, vx.VX_READ_ONLY)
    np.testing.assert_array_equal(found, integers(11))
    with fails("VX_ERROR_INVALID_PARAMETERS", "bytes"):
        vx.vxCopyLUT(lut, integers(10), vx.VX_WRITE_ONLY)
    with fails("VX_ERROR_INVALID_PARAMETERS", "count"):
        vx.vxCreateLUT(context, vx.VX_TYPE_UINT8, 257)
