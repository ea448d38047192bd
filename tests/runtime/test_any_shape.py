"""One network at many shapes: kernels that are built once, and results as for each shape alone."""

from __future__ import annotations

import random
import threading
from functools import cache

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import clnn
from clnn.codegen.render import render
from clnn.codegen.runtime_numbers import Texts
from clnn.errors import TemplateError
from clnn.ops.launch import KernelText

DIMS = ("batch", 3, "height", "width")


class Net:
    """An ONNX network in the making: each method adds a node and returns its output."""

    def __init__(self, seed=0):
        self.rng = np.random.default_rng(seed)
        self.nodes, self.weights = [], []

    def weight(self, *shape):
        scale = np.sqrt(2 / max(np.prod(shape[1:]), 1))
        name = f"w{len(self.weights)}"
        array = (scale * self.rng.standard_normal(shape)).astype(np.float32)
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def add(self, op, *inputs, **attributes):
        out = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [out], name=out, **attributes))
        return out

    def conv(self, x, ic, oc, kernel=3, stride=1, group=1, relu=True):
        weights = self.weight(oc, ic // group, kernel, kernel), self.weight(oc)
        pads = [kernel // 2] * 4
        y = self.add("Conv", x, *weights, pads=pads, strides=[stride] * 2, group=group)
        return self.add("Relu", y) if relu else y

    def model(self, *outputs, dims=DIMS):
        graph = helper.make_graph(
            self.nodes,
            "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
            self.weights,
        )
        opset = [helper.make_opsetid("", 17)]
        return helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()


@cache
def segmentation():
    """Convolutions of every CPU family, pooling, and back up to the image's size."""
    net = Net()
    x = net.conv("x", 3, 16, stride=2)
    y = net.conv(net.conv(x, 16, 16, group=16), 16, 32, kernel=1)
    y = net.add("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2])
    z = net.conv(y, 32, 32, relu=False)
    y = net.add("Relu", net.add("Add", y, z))
    mean = net.add("AveragePool", y, kernel_shape=[3, 3], pads=[1] * 4)
    y = net.add("Concat", y, mean, axis=1)
    y = net.add("ConvTranspose", y, net.weight(64, 16, 2, 2), strides=[2, 2])
    y = net.add("Concat", y, x, axis=1)
    return net.model(net.conv(y, 32, 5, kernel=1, relu=False))


def images(rng, count):
    """Random shapes whose sides are multiples of 4, small ones among them; from 8 on it is one network."""
    sides = [8, 12, 16, 20, 28, 36, 44, 60, 92]
    return [(rng.randrange(1, 4), 3, rng.choice(sides), rng.choice(sides)) for _ in range(count)]


def fed(shape, seed=0):
    return {"x": np.random.default_rng(seed).standard_normal(shape).astype(np.float32)}


def close(got, want):
    return all(
        np.abs(got[name] - want[name]).max(initial=0) <= 1e-4 * np.abs(want[name]).max(initial=1)
        for name in want
    )


@pytest.mark.parametrize("options", [{}, {"merge": False}, {"guard": 64}], ids=str)
def test_shapes_give_what_networks_of_their_own_give(device, options):
    """To the bit what the same kernels give whose texts hold for one shape alone."""
    shapes = [(1, 3, 64, 48), *images(random.Random(1), 5)]
    model, options = segmentation(), clnn.Options(**options)
    with clnn.compile_model(model, device, options) as session:
        got = [session(fed(shape)) for shape in shapes]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Texts, "kernel", plain_where_there_is_one)
        with clnn.compile_model(model, device, options) as session:
            for shape, outputs in zip(shapes, got, strict=True):
                want = session(fed(shape))
                assert all(np.array_equal(outputs[name], want[name]) for name in want), shape
    for shape, outputs in zip(shapes, got, strict=True):
        with clnn.compile_model(model, device, options, shapes={"x": shape}) as alone:
            assert close(outputs, alone(fed(shape))), shape


MANY_SHAPES = Texts.kernel


def plain_where_there_is_one(texts, launch, template, params):
    """The text for one shape alone; some parameters of open networks have none."""
    try:
        return KernelText(render(template, params), str(params["name"]))
    except TemplateError:
        return MANY_SHAPES(texts, launch, template, params)


def test_a_new_shape_builds_nothing(device):
    with clnn.compile_model(segmentation(), device) as session:
        for shape in ((1, 3, 64, 64), (1, 3, 8, 8)):  # large images and small ones
            session(fed(shape))
        built = session.build_counts
        for shape in images(random.Random(2), 20):
            session(fed(shape))
        assert session.build_counts == built


def test_a_new_shape_takes_the_constants_that_are_there(device):
    with clnn.compile_model(segmentation(), device) as session:
        first = session.at({"x": (1, 3, 64, 64)})._constants
        second = session.at({"x": (2, 3, 96, 80)})._constants
        assert second._found and second.whole is first.whole
        assert len(second._found) > 0.9 * len(second.recipes)


def test_calls_of_several_threads_with_new_shapes(device):
    shapes = images(random.Random(3), 6)
    wrong = []
    with clnn.compile_model(segmentation(), device, clnn.Options(states=2)) as session:

        def calls(number):
            for k in range(len(shapes)):
                shape = shapes[(k + number) % len(shapes)]
                outputs = session(fed(shape, number))
                again = session(fed(shape, number))
                if not all(np.array_equal(outputs[name], again[name]) for name in outputs):
                    wrong.append(shape)

        threads = [threading.Thread(target=calls, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_a_file_is_read_once(device, tmp_path):
    """Shapes met later are of the network that was given, whatever became of its file."""
    path = tmp_path / "net.onnx"
    path.write_bytes(segmentation())
    with clnn.compile_model(path, device) as session:
        first = session(fed((1, 3, 16, 16)))
        (tmp_path / "other.onnx").write_bytes(segmentation())
        path.unlink()
        assert close(session(fed((1, 3, 20, 16))), session(fed((1, 3, 20, 16))))
        assert close(session(fed((1, 3, 16, 16))), first)
