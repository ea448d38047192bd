"""Verification: every documented bad graph gives its status, before anything runs."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from openvx_tools import (
    AVG,
    CEIL,
    FLOOR,
    MAX,
    RELU,
    SAT,
    ZERO,
    empty,
    fails,
    integers,
    read,
    tensor,
    view,
)

from clnn import openvx as vx
from clnn.apis.openvx.shapes import pool_stride, stride, upscale

DIM, FORMAT, GRAPH = (
    "VX_ERROR_INVALID_DIMENSION",
    "VX_ERROR_INVALID_FORMAT",
    "VX_ERROR_INVALID_GRAPH",
)


@pytest.fixture
def context():
    with vx.vxCreateContext() as made:
        yield made


@pytest.fixture
def graph(context):
    return vx.vxCreateGraph(context)


def conv(graph, x, w, b, y, pads=(0, 0), bits=32, size=FLOOR, dilation=(0, 0)):
    return vx.vxConvolutionLayer(graph, x, w, b, *pads, bits, SAT, ZERO, size, y, *dilation)


def dense(graph, x, w, b, y, pad=0):
    return vx.vxFullyConnectedLayer(graph, x, w, b, pad, 32, SAT, ZERO, FLOOR, y)


def pool(graph, x, y, size=(2, 2), pads=(0, 0), rounding=FLOOR, kind=MAX):
    return vx.vxPoolingLayer(graph, x, kind, *size, *pads, rounding, y)


@pytest.mark.parametrize(
    "extent,out,reach,pad,ceil",
    [
        (10, 4, 3, 0, False),
        (10, 8, 3, 0, True),
        (7, 1, 3, 2, False),
        (5, 3, 3, 1, True),
    ],
)
def test_strides_are_the_smallest_that_fit(extent, out, reach, pad, ceil):
    room = extent + 2 * pad - reach
    fitting = [s for s in range(1, 30) if (room + (s - 1 if ceil else 0)) // s + 1 == out]
    want = fitting[0] if fitting and room >= 0 else None
    assert stride(extent, out, reach, pad, ceil) == want


def test_every_small_stride():
    for extent in range(1, 9):
        for reach in range(1, 6):
            for pad in range(3):
                for out in range(1, 10):
                    for ceil in (False, True):
                        test_strides_are_the_smallest_that_fit(extent, out, reach, pad, ceil)


def test_strides_of_poolings_and_upscalings():
    assert pool_stride(5, 4, 4, 2, False, False) is None
    assert pool_stride(5, 4, 4, 2, False, True) == 2
    assert pool_stride(4, 2, 3, 1, False, True) == 2  # of 2 and 3
    assert pool_stride(4, 2, 3, 1, True, True) == 3
    assert [upscale(3, out, 2, 0, 0) for out in (4, 5, 6, 7, 8)] == [1, None, 2, None, 3]
    assert (upscale(3, 7, 2, 0, 1), upscale(3, 5, 2, 0, 1), upscale(1, 2, 2, 0, 0)) == (2, None, 1)


def shapes(c):
    """Return bad nodes: status, part of the message, a function that adds the node."""
    t = empty
    return {
        "weights": (
            DIM,
            "weights",
            lambda g: conv(g, t(c, 8, 8, 3), t(c, 3, 3, 4, 5), None, t(c, 6, 6, 5)),
        ),
        "maps": (
            DIM,
            "outputs",
            lambda g: conv(g, t(c, 8, 8, 3), t(c, 3, 3, 3, 5), None, t(c, 6, 6, 4)),
        ),
        "rank": (DIM, "inputs", lambda g: conv(g, t(c, 8, 8), t(c, 3, 3, 3, 5), None, t(c, 6, 6))),
        "batch": (
            DIM,
            "outputs",
            lambda g: conv(g, t(c, 8, 8, 3, 2), t(c, 3, 3, 3, 5), None, t(c, 6, 6, 5, 3)),
        ),
        "stride": (
            DIM,
            "no stride makes 7",
            lambda g: conv(g, t(c, 8, 8, 3), t(c, 3, 3, 3, 5), None, t(c, 7, 6, 5)),
        ),
        "ceil": (
            DIM,
            "no stride",
            lambda g: conv(g, t(c, 8, 8, 3), t(c, 3, 3, 3, 5), None, t(c, 1, 6, 5), size=CEIL),
        ),
        "kernel": (
            DIM,
            "window of 9",
            lambda g: conv(
                g, t(c, 8, 8, 3), t(c, 3, 3, 3, 5), None, t(c, 1, 6, 5), dilation=(3, 0)
            ),
        ),
        "padded": (
            DIM,
            "padded",
            lambda g: conv(
                g, t(c, 1, 1, 3), t(c, 1, 1, 3, 5), None, t(c, 2, 2, 5), pads=(30000, 30000)
            ),
        ),
        "bias": (
            DIM,
            "biases",
            lambda g: conv(g, t(c, 8, 8, 3), t(c, 3, 3, 3, 5), t(c, 6, 5), t(c, 6, 6, 5)),
        ),
        "bias type": (
            FORMAT,
            "types",
            lambda g: conv(g, t(c, 8, 8, 3), t(c, 3, 3, 3, 5), t(c, 5, kind="i1"), t(c, 6, 6, 5)),
        ),
        "bias position": (
            FORMAT,
            "position",
            lambda g: conv(g, t(c, 8, 8, 3), t(c, 3, 3, 3, 5), t(c, 5, position=7), t(c, 6, 6, 5)),
        ),
        "fraction": (
            FORMAT,
            "fraction bits",
            lambda g: conv(
                g, t(c, 8, 8, 3, position=2), t(c, 3, 3, 3, 5, position=2), None, t(c, 6, 6, 5)
            ),
        ),
        "bits": (
            "VX_ERROR_INVALID_VALUE",
            "accumulator_bits",
            lambda g: conv(g, t(c, 8, 8, 3), t(c, 3, 3, 3, 5), None, t(c, 6, 6, 5), bits=15),
        ),
        "dense": (DIM, "do not fit", lambda g: dense(g, t(c, 8, 2), t(c, 9, 5), None, t(c, 5, 2))),
        "dense out": (
            DIM,
            "do not fit",
            lambda g: dense(g, t(c, 8, 2), t(c, 8, 5), None, t(c, 2, 5)),
        ),
        "dense pad": (DIM, "pad 1", lambda g: dense(g, t(c, 8), t(c, 8, 5), None, t(c, 5), 1)),
        "dense bias": (DIM, "biases", lambda g: dense(g, t(c, 8), t(c, 8, 5), t(c, 8), t(c, 5))),
        "pool": (DIM, "outputs", lambda g: pool(g, t(c, 8, 8, 3), t(c, 4, 4, 2))),
        "pool size": (DIM, "no stride makes 9", lambda g: pool(g, t(c, 8, 8, 3), t(c, 9, 4, 3))),
        "pool position": (
            FORMAT,
            "position",
            lambda g: pool(g, t(c, 8, 8, 3), t(c, 4, 4, 3, position=7)),
        ),
        "window": (
            DIM,
            "too large",
            lambda g: pool(g, t(c, 4000, 4000, 1), t(c, 1, 1, 1), (4000, 4000), kind=AVG),
        ),
        "activation": (
            DIM,
            "outputs",
            lambda g: vx.vxActivationLayer(g, t(c, 4), RELU, 0, 0, t(c, 5)),
        ),
        "softmax": (FORMAT, "types", lambda g: vx.vxSoftmaxLayer(g, t(c, 4), t(c, 4, kind="u1"))),
        "norm": (
            DIM,
            "inputs",
            lambda g: vx.vxNormalizationLayer(
                g, t(c, 4), vx.VX_CONVOLUTIONAL_NETWORK_NORM_SAME_MAP, 3, 1.0, 0.5, t(c, 4)
            ),
        ),
        "sum": (
            DIM,
            "in1",
            lambda g: vx.vxTensorAddNode(g, t(c, 4, 3), t(c, 4, 2), SAT, t(c, 4, 3)),
        ),
        "sum rank": (
            DIM,
            "in1",
            lambda g: vx.vxTensorSubtractNode(g, t(c, 4, 1), t(c, 4), SAT, t(c, 4, 1)),
        ),
        "sum position": (
            FORMAT,
            "position",
            lambda g: vx.vxTensorAddNode(g, t(c, 4), t(c, 4, position=7), SAT, t(c, 4)),
        ),
        "product": (
            FORMAT,
            "types",
            lambda g: vx.vxTensorMultiplyNode(
                g, t(c, 4), t(c, 4, kind="u1"), 1.0, SAT, ZERO, t(c, 4)
            ),
        ),
        "transpose": (
            DIM,
            "out",
            lambda g: vx.vxTensorTransposeNode(g, t(c, 4, 3), t(c, 4, 3), 0, 1),
        ),
        "transpose axis": (
            "VX_ERROR_INVALID_VALUE",
            "dim2 2",
            lambda g: vx.vxTensorTransposeNode(g, t(c, 4, 3), t(c, 3, 4), 0, 2),
        ),
        "table": (
            "VX_ERROR_INVALID_TYPE",
            "table",
            lambda g: vx.vxTensorTableLookupNode(
                g, t(c, 4, kind="u1"), vx.vxCreateLUT(c, vx.VX_TYPE_INT16, 9), t(c, 4, kind="u1")
            ),
        ),
        "matrices": (
            DIM,
            "columns",
            lambda g: vx.vxTensorMatrixMultiplyNode(g, t(c, 4, 3), t(c, 5, 3), None, t(c, 5, 3)),
        ),
        "matrix sum": (
            DIM,
            "input3",
            lambda g: vx.vxTensorMatrixMultiplyNode(
                g, t(c, 4, 3), t(c, 5, 4), t(c, 3, 5), t(c, 5, 3)
            ),
        ),
        "deconvolution": (
            DIM,
            "no upscaling",
            lambda g: vx.vxDeconvolutionLayer(
                g, t(c, 4, 4, 1), t(c, 2, 2, 1, 1), None, 0, 0, SAT, ZERO, 0, 0, t(c, 6, 5, 1)
            ),
        ),
    }


@pytest.mark.parametrize("name", list(shapes(None)))
def test_bad_shapes_and_formats(context, graph, name):
    status, match, add = shapes(context)[name]
    add(graph)
    with fails(status, match):
        vx.vxVerifyGraph(graph)
    assert not vx.vxIsGraphVerified(graph)
    with fails(status, match):
        vx.vxProcessGraph(graph)


def nodes(c, g):
    """Return calls that add no node: status and call."""
    x, y, other = empty(c, 4), empty(c, 4), vx.vxCreateContext()
    foreign = vx.vxCreateVirtualTensor(vx.vxCreateGraph(c), 1, (4,), vx.VX_TYPE_INT16, 8)
    released = empty(c, 4)
    vx.vxReleaseTensor(released)
    wrong, scope, reference = (
        "VX_ERROR_INVALID_PARAMETERS",
        "VX_ERROR_INVALID_SCOPE",
        "VX_ERROR_INVALID_REFERENCE",
    )
    image = (empty(c, 4, 4, 1), empty(c, 3, 3, 1, 1), None)
    return [
        (reference, lambda: vx.vxSoftmaxLayer(g, None, y)),
        (reference, lambda: vx.vxSoftmaxLayer(g, x, np.zeros(4))),
        (reference, lambda: vx.vxSoftmaxLayer(g, released, y)),
        (reference, lambda: vx.vxSoftmaxLayer(c, x, y)),
        (reference, lambda: vx.vxSoftmaxLayer(None, x, y)),
        (reference, lambda: vx.vxTensorTableLookupNode(g, x, x, y)),
        (scope, lambda: vx.vxSoftmaxLayer(g, x, foreign)),
        (scope, lambda: vx.vxSoftmaxLayer(g, empty(other, 4), y)),
        (wrong, lambda: vx.vxActivationLayer(g, x, MAX, 0, 0, y)),
        (wrong, lambda: vx.vxActivationLayer(g, x, RELU, 2**31, 0, y)),
        (wrong, lambda: vx.vxActivationLayer(g, x, RELU, 0.5, 0, y)),
        (wrong, lambda: vx.vxTensorAddNode(g, x, x, ZERO, y)),
        (wrong, lambda: vx.vxConvolutionLayer(g, *image, -1, 0, 32, SAT, ZERO, FLOOR, y)),
        (wrong, lambda: vx.vxConvolutionLayer(g, *image, 0, 0, 256, SAT, ZERO, FLOOR, y)),
        (wrong, lambda: vx.vxConvolutionLayer(g, *image, 0, 0, 32, ZERO, SAT, FLOOR, y)),
        (wrong, lambda: vx.vxConvolutionLayer(g, *image, 0, 0, 32, SAT, ZERO, MAX, y)),
        (wrong, lambda: vx.vxPoolingLayer(g, x, MAX, 0, 1, 0, 0, FLOOR, y)),
        (wrong, lambda: vx.vxTensorTransposeNode(g, x, y, 0, 6)),
        (
            "VX_ERROR_INVALID_VALUE",
            lambda: vx.vxTensorMultiplyNode(g, x, x, float("nan"), SAT, ZERO, y),
        ),
        ("VX_ERROR_INVALID_VALUE", lambda: vx.vxTensorMultiplyNode(g, x, x, "1", SAT, ZERO, y)),
    ]


def test_bad_nodes_are_not_added(context, graph):
    for status, call in nodes(context, graph):
        with fails(status):
            call()
        assert vx.vxQueryGraph(graph, vx.VX_GRAPH_NUMNODES) == 0


def test_an_empty_graph(graph):
    with fails(GRAPH, "no nodes"):
        vx.vxVerifyGraph(graph)


def test_cycles(context, graph):
    a, b = empty(context, 4), empty(context, 4)
    vx.vxSoftmaxLayer(graph, a, b)
    vx.vxSoftmaxLayer(graph, b, a)
    with fails(GRAPH, r"node 0 \(softmax\), node 1 \(softmax\)"):
        vx.vxVerifyGraph(graph)


def test_in_place_is_a_cycle_but_a_disjoint_view_is_not(context, graph):
    a = empty(context, 4)
    left, right = view(a, (0,), (2,)), view(a, (2,), (4,))
    vx.vxSoftmaxLayer(graph, left, right)
    vx.vxVerifyGraph(graph)
    vx.vxTensorAddNode(graph, right, right, SAT, view(a, (1,), (3,)))
    with fails("VX_ERROR_MULTIPLE_WRITERS", "node 0"):
        vx.vxVerifyGraph(graph)
    other = vx.vxCreateGraph(context)
    vx.vxSoftmaxLayer(other, a, view(a, (0,), (4,)))
    with fails(GRAPH, "wait for each other"):
        vx.vxVerifyGraph(other)


def test_two_writers(context, graph):
    x, y = empty(context, 4), empty(context, 4)
    vx.vxSoftmaxLayer(graph, x, y)
    second = vx.vxSoftmaxLayer(graph, x, y)
    with fails("VX_ERROR_MULTIPLE_WRITERS"):
        vx.vxVerifyGraph(graph)
    vx.vxRemoveNode(second)
    assert vx.vxVerifyGraph(graph) == vx.VX_SUCCESS
    with fails("VX_ERROR_INVALID_REFERENCE"):
        vx.vxRemoveNode(second)


def test_virtual_tensors_that_nothing_writes(context, graph):
    v = vx.vxCreateVirtualTensor(graph, 2, (4, 4), vx.VX_TYPE_INT16, 8)
    vx.vxSoftmaxLayer(graph, v, empty(context, 4, 4))
    with fails(GRAPH, "no node writes"):
        vx.vxVerifyGraph(graph)
    vx.vxSoftmaxLayer(graph, empty(context, 2, 4), view(v, (0, 0), (2, 4)))
    vx.vxSoftmaxLayer(graph, empty(context, 2, 3), view(v, (2, 0), (4, 3)))
    with fails(GRAPH, r"\(\(2, 4\), \(3, 4\)\)"):
        vx.vxVerifyGraph(graph)
    vx.vxSoftmaxLayer(graph, empty(context, 2, 1), view(v, (2, 3), (4, 4)))
    vx.vxVerifyGraph(graph)


def test_open_virtual_tensors_are_completed(context, graph):
    one = vx.vxCreateVirtualTensor(graph, 0, None, vx.VX_TYPE_INVALID, 0)
    two = vx.vxCreateVirtualTensor(graph, 2, (0, 0), vx.VX_TYPE_INT16, 4)
    vx.vxActivationLayer(graph, two, RELU, 0, 0, empty(context, 3, 5, position=4))
    vx.vxActivationLayer(graph, one, RELU, 0, 0, two)
    vx.vxTensorTransposeNode(graph, empty(context, 5, 3), one, 0, 1)
    vx.vxVerifyGraph(graph)
    found = [
        vx.vxQueryTensor(t, a)
        for t in (one, two)
        for a in (vx.VX_TENSOR_DIMS, vx.VX_TENSOR_FIXED_POINT_POS)
    ]
    assert found == [(3, 5), 8, (3, 5), 4]


def test_a_failed_verification_changes_nothing(context, graph):
    one = vx.vxCreateVirtualTensor(graph, 0, None, vx.VX_TYPE_INVALID, 0)
    vx.vxActivationLayer(graph, empty(context, 4), RELU, 0, 0, one)
    vx.vxActivationLayer(graph, one, RELU, 0, 0, empty(context, 5))
    with fails(DIM):
        vx.vxVerifyGraph(graph)
    assert vx.vxQueryTensor(one, vx.VX_TENSOR_DIMS) == ()


def test_sizes_that_fix_a_stride_cannot_be_left_open(context, graph):
    v = vx.vxCreateVirtualTensor(graph, 3, (0, 0, 0), vx.VX_TYPE_INT16, 8)
    pool(graph, empty(context, 4, 4, 1), v)
    with fails(DIM, "no sizes"):
        vx.vxVerifyGraph(graph)


def test_parameters_by_index(context, graph):
    x, y = empty(context, 4), empty(context, 5)
    node = vx.vxSoftmaxLayer(graph, x, y)
    with fails(DIM):
        vx.vxVerifyGraph(graph)
    vx.vxSetParameterByIndex(node, 1, empty(context, 4))
    vx.vxVerifyGraph(graph)
    with fails("VX_ERROR_INVALID_PARAMETERS"):
        vx.vxSetParameterByIndex(node, 2, x)
    with fails("VX_ERROR_INVALID_REFERENCE"):
        vx.vxSetParameterByIndex(node, 0, 3)
    assert vx.vxIsGraphVerified(graph)


def test_released_objects_live_on_in_their_graph(context, graph):
    x = tensor(context, integers((4,)))
    node = vx.vxSoftmaxLayer(graph, x, empty(context, 4))
    vx.vxReleaseTensor(x)
    vx.vxReleaseNode(node)
    vx.vxVerifyGraph(graph)
    assert vx.vxQueryGraph(graph, vx.VX_GRAPH_NUMNODES) == 1
    with fails("VX_ERROR_INVALID_REFERENCE"):
        read(x)
    vx.vxReleaseGraph(graph)
    with fails("VX_ERROR_INVALID_REFERENCE"):
        vx.vxVerifyGraph(graph)


def test_a_long_chain_added_backwards_is_ordered(context, graph):
    links = [vx.vxCreateVirtualTensor(graph, 1, (4,), vx.VX_TYPE_INT16, 8) for _ in range(600)]
    ends = [empty(context, 4), *links, empty(context, 4)]
    for source, result in reversed(list(pairwise(ends))):
        vx.vxActivationLayer(graph, source, RELU, 0, 0, result)
    vx.vxVerifyGraph(graph)
    assert [node.values["inputs"] for node in graph.verified.order] == ends[:-1]


@pytest.mark.parametrize("ceil", [False, True], ids=["floor", "ceiling"])
def test_the_stride_of_a_pooling_is_the_smallest_of_its_rounding(ceil):
    """Of all strides that give the sizes, for every small geometry."""
    for extent, out, size, pad in product(range(1, 12), range(2, 9), range(1, 6), (0, 1, 2)):
        room = extent + 2 * pad - size
        fits = (s for s in range(1, 20) if (-(-room // s) if ceil else room // s) + 1 == out)
        wanted = next(fits, None) if room >= 0 else None
        assert pool_stride(extent, out, size, pad, ceil, False) == wanted, (extent, out, size, pad)
