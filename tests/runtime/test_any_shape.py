"""One network at many shapes: kernels that are built once, and results as for each shape alone."""

from __future__ import annotations

import random
import threading

import numpy as np
import onnx.parser
import pytest
from launch import run_source
from onnx_models import run
from open_images import Net, resizing, segmentation, separable

import clnn
from clnn.arith.quantised_maps import Dequantise
from clnn.codegen.render import render
from clnn.codegen.runtime_numbers import Texts
from clnn.compile import load_graph
from clnn.errors import PlanError, TemplateError
from clnn.layout import TensorLayout
from clnn.ops.launch import In, KernelText, Out
from clnn.ops.shared.elementwise_launch import Walked, walk_launch
from clnn.plan import schedule
from clnn.target import Target


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


@pytest.mark.parametrize("net", [segmentation, resizing])
@pytest.mark.parametrize("options", [{}, {"merge": False}, {"guard": 64}], ids=str)
@pytest.mark.parametrize("count", [2, pytest.param(8, marks=pytest.mark.exhaustive)])
def test_shapes_give_what_networks_of_their_own_give(device, joined_programs, net, options, count):
    """To the bit what the same kernels give whose texts hold for one shape alone."""
    dice = random.Random(
        f"{net.__name__} {options}"
    )  # few shapes each, of which no two cases have the same
    shapes = [(1, 3, 64, 48), *images(dice, count)]
    model, options = net(), clnn.Options(**options)
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
            slow = [row["node"] for row in session.placement.nodes if "reference" in row["variant"]]
            assert session.build_counts == built and not slow, shape


def strided():
    net = Net()
    x = net.conv("x", 3, 16, stride=2)
    x = net.conv(net.conv(x, 16, 16, stride=2), 16, 32)
    return net.model(net.add("MaxPool", net.conv(x, 32, 32, stride=2), kernel_shape=[2, 2]))


def test_sizes_that_strides_do_not_divide_build_nothing(device):
    """Where the first one is divided by all of them."""
    model = strided()
    with clnn.compile_model(model, device, clnn.Options(specialise="never")) as session:
        session(fed((1, 3, 96, 128)))
        built = session.build_counts
        for shape in ((2, 3, 95, 99), (1, 3, 102, 121), (3, 3, 100, 101)):
            got = session(fed(shape))
            assert session.build_counts == built, shape
            want = run(load_graph(model, {"x": shape}), **fed(shape))
            assert close(got, want) and [a.shape for a in got.values()] == [
                a.shape for a in want.values()
            ]


@pytest.mark.parametrize(
    ("first", "others"),
    [
        ((2, 3, 96, 128), [(1, 3, 16, 16), (3, 3, 18, 96), (2, 3, 64, 16), (1, 3, 16, 31)]),
        ((1, 3, 40, 17), [(2, 3, 16, 200), (4, 3, 121, 73), (1, 3, 95, 18), (1, 3, 16, 16)]),
    ],
    ids=str,
)
def test_narrow_images_build_nothing(device, first, others):
    """A last window that takes all of an image is a window still, and few columns may become many."""
    model = strided()
    with clnn.compile_model(model, device, clnn.Options(specialise="background")) as session:
        session(fed(first))
        assert session._gears.wait(600)
        built = session.build_counts[1]
        for shape in others:
            got = session(fed(shape))
            assert session.build_counts[1] == built, shape
            assert close(got, run(load_graph(model, {"x": shape}), **fed(shape)))


LARGE = (1, 3, 64, 64), (2, 3, 96, 80), (1, 3, 192, 160), (3, 3, 128, 96)
SMALL = (1, 3, 8, 8), (2, 3, 8, 12), (3, 3, 12, 8)


@pytest.mark.parametrize(
    ("net", "shapes"), [(segmentation, LARGE), (segmentation, SMALL), (strided, LARGE)]
)
def test_a_new_shape_takes_the_constants_that_are_there(device, net, shapes):
    with clnn.compile_model(net(), device) as session:
        session(fed(LARGE[0]))
        first, *others = (session.at({"x": shape})._constants for shape in shapes)
        for other in others:
            assert other.whole is first.whole and other.own is None
            assert set(other._found) == set(other.recipes.values())


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


def test_a_network_may_be_as_large_as_a_device_takes(any_device, monkeypatch):
    """Larger ones, from which others learn what differs, are not needed then."""
    monkeypatch.setattr(schedule, "MAX_ELEMENTS", 40 * 40 * 64)
    with clnn.compile_model(segmentation(), any_device) as session:
        assert close(session(fed((1, 3, 32, 32))), session(fed((1, 3, 32, 32))))
        assert session(fed((1, 3, 16, 32)))
        with pytest.raises(PlanError, match="more than kernels can index"):
            session(fed((4, 3, 64, 64)))


def test_each_border_is_filled_at_one_place(device):
    """Once, or in each run: the launch at the other place has nothing to do."""
    with clnn.compile_model(segmentation(), device) as session:
        session(fed((1, 3, 64, 48)))
        plan = session.at({"x": (2, 3, 40, 72)}).plan
        fills = [*plan.first_fills, *(fill for step in plan.scheduled for fill in step.fills)]
        places = {fill.args: [] for fill in fills}
        for fill in fills:
            places[fill.args].append(fill.idle)
        assert places and all(sorted(idle) == [False, True] for idle in places.values())


@pytest.mark.parametrize("guard", [0, 64])
def test_images_may_be_smaller_than_a_tile(device, guard):
    """Of fewer pixels than the tile of a kernel that was chosen for a larger one."""
    with clnn.compile_model(separable(), device, clnn.Options(guard=guard)) as session:
        session(fed((1, 16, 20, 20)))
        for shape in ((1, 16, 2, 3), (2, 16, 1, 5), (1, 16, 1, 1), (3, 16, 1, 40)):
            with clnn.compile_model(separable(), device, shapes={"x": shape}) as alone:
                assert close(session(fed(shape)), alone(fed(shape))), shape
            names = [s.variant.name for s in session.at({"x": shape}).plan.scheduled]
            assert any(name.startswith("separable_") for name in names), names


def of_planes():
    """A convolution that reads the channels of the network's input plane by plane, and one with wide tiles."""
    net = Net()
    x = net.conv(net.conv("x", 3, 16, 1), 16, 64)
    return net.model(x)


def test_one_pixel_is_an_image_like_others(device):
    """Planes of one pixel lie as the channels of a pixel do."""
    with clnn.compile_model(of_planes(), device, clnn.Options(specialise="never")) as session:
        session(fed((1, 3, 40, 64)))
        session(fed((1, 3, 1, 1)))
        built = session.build_counts
        for shape in ((1, 3, 4, 5), (2, 3, 30, 1), (1, 3, 1, 50), (1, 3, 7, 2), (3, 3, 70, 90)):
            with clnn.compile_model(of_planes(), device, shapes={"x": shape}) as alone:
                assert close(session(fed(shape)), alone(fed(shape))), shape
        assert session.build_counts[1] == built[1]


@pytest.mark.parametrize("count", [7804, 5])
def test_functions_walk_extents_of_which_nothing_was_known(device, count):
    """Vectors were chosen for an extent that only a later shape showed to be open."""
    rng = np.random.default_rng(count)
    scale, zero, texts = np.float32([0.37]), np.uint8([113]), Texts()
    one, target = TensorLayout.make((1,)), Target(vector=16)

    def launch_of(size):
        layout = TensorLayout.make((size,))
        kinds = [(layout, "uchar"), (one, "float"), (one, "uchar")]
        sources = [Walked(In(k), a.broadcast((size,)), t) for k, (a, t) in enumerate(kinds)]
        result = Walked(Out(0), layout, "float")
        launch = walk_launch("map_open", sources, result, target, function=Dequantise())
        texts.see("node", launch.template, launch.params)
        return launch

    assert launch_of(3840).params["vec"] == 16
    for size in (3840, count):
        q = rng.integers(0, 255, size).astype(np.uint8)
        launch = launch_of(count) if size == count else launch_of(3840)
        params = {**launch.params, "vec": 16, "chunk": 1920, "rows": 1}
        kernel = texts.kernel("node", launch.template, params)
        args = [q, 0, scale, 0, zero, 0, np.full(size + 8, np.nan, np.float32), 0, *kernel.numbers]
        items = (-(-size // 1920), 1)
        got = run_source(device, kernel.name, kernel.source, args, items, (1, 1))[3]
        np.testing.assert_array_equal(got[:size], (q - np.float32(113)) * scale)
        assert np.isnan(got[size:]).all(), "behind the last element"


def test_products_may_have_no_terms_at_a_later_shape(device):
    text = "(float[rows, terms] x, float[terms, 6] w) => (float[rows, 6] y) { y = MatMul(x, w) }"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> net {text}')
    rng = np.random.default_rng(0)
    with clnn.compile_model(model, device) as session:
        for rows, terms in ((3, 5), (2, 0), (4, 9), (0, 3)):
            x, w = (rng.random(s, np.float32) for s in ((rows, terms), (terms, 6)))
            np.testing.assert_allclose(session({"x": x, "w": w})["y"], x @ w, rtol=1e-5)
