"""Cases of quantised networks: products of bytes, and ops that read and write bytes."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest import mock

from byte_graphs import check_graph, convolution, dp4a_in_c, single
from harness import normal
from simulator import DEVICE
from table import put

from clnn.codegen import render as codegen
from clnn.graph.ir import Graph
from clnn.ops.conv.spec import Conv2d
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.pool.spec import Pool
from clnn.ops.rows.reduce import Reduce
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.window import Window
from clnn.runtime.run import planning

NHWC = (0, 2, 3, 1)
SAME3 = Window((3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
ADD = (PostOp("add", operand=3), PostOp("relu"))


def convolve(
    channels: tuple[int, int], group: int, result: float, bias: float = 1.0, only: str = ""
) -> None:
    """Check a padded 3x3 convolution with a residual in bytes.

    channels: in and out. bias: about how large it is; a large one needs sums of integers.
    only: part of a variant's name.
    """
    from clnn.plan.layouts import Hints

    ic, oc = channels
    shapes = [(1, ic, 3, 5), (oc, ic // group, 3, 3), (oc,), (1, oc, 3, 5)]
    arrays = [normal(shape, k) for k, shape in enumerate(shapes)]
    arrays[2] *= bias
    graph = convolution(Conv2d(SAME3, group, ADD), arrays, (1, 2), {3: 0.03}, result)
    check_graph(DEVICE, graph, arrays, only=only, hints=Hints({}, {"i3:bytes": NHWC}))


def by_dp4a() -> None:
    """Check the kernel with NVIDIA's instruction, a function of what it does in its place."""
    target, render = planning.target_of(None), codegen.render
    target = replace(target, features=target.features | {"ptx_dp4a"})

    def in_c(template: str, params: Any) -> str:
        return dp4a_in_c(render(template, params))[0]

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(codegen, "render", in_c))
        stack.enter_context(mock.patch.object(planning, "target_of", lambda info: target))
        convolve((8, 9), 1, 0.2, only="_dp4a4_")


def alone(graph: Graph, off: float = 0.0) -> None:
    """Check a node of two inputs or one."""
    check_graph(
        DEVICE, graph, [normal(graph.types[n].shape, k) for k, n in enumerate(graph.inputs)], off
    )


X, Y = normal((1, 9, 5, 6)), normal((1, 9, 5, 6), 1)
POOL = Window((3, 3), (2, 2), (1, 1), (1, 1), (1, 1))
SUM = Eltwise((PostOp("add", operand=1), PostOp("relu")))
put("int8_lots", lambda: convolve((8, 9), 1, 0.2))
put("int8_dp4a", by_dp4a, targets=("gpu",))
put("int8_one_by_one", lambda: convolve((6, 5), 1, 0.0))
put("int8_integers", lambda: convolve((6, 5), 1, 0.0, 1e6))
put("int8_depthwise", lambda: convolve((9, 9), 9, 0.1))
put("int8_add", lambda: alone(single(SUM, [X, Y], (0.03, 0.02), 0.04)))
put("int8_pool", lambda: alone(single(Pool(POOL, "max"), [X], (0.03,), 0.03)))
put("int8_mean", lambda: alone(single(Reduce("mean", (2, 3)), [X], (0.03,), 0.01), 0.01))
