"""Simulations in the target's own form, and the command line."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from test_bit_exact import LARGE, NET, POINT, RNG, SAMPLES, simulated

import clnn
from clnn import espdl, tidl
from clnn import openvx as vx
from clnn.cli.main import main
from clnn.errors import UnsupportedOpError
from clnn.graph.builder import GraphBuilder
from clnn.ops.conv.spec import Conv2d
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.movement.views import Concat, Slice, Transpose
from clnn.ops.pool.spec import Pool
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.window import Window
from clnn.types import F32, TensorType


def arrays_of(text):
    """Return the arrays that C text defines."""
    found = re.findall(r"const int\d+_t (\w+)\[(\d+)\] = \{([^}]*)\};", text)
    arrays = {name: [int(v) for v in body.split(",")] for name, _, body in found}
    assert all(len(arrays[name]) == int(count) for name, count, _ in found)
    return arrays


@pytest.mark.parametrize("target", ["mli-sa8", "mli-fx16-fx8"])
def test_c_arrays_hold_what_is_computed(device, target, tmp_path):
    with clnn.quantize(NET, SAMPLES, target, device) as network:
        header, source = network.export(tmp_path, "net")
        arrays = arrays_of(source.read_text())
        for layer in network.layers:
            name = re.sub(r"\W", "_", layer.name)
            assert layer.name in header.read_text()
            if "weights" in layer.data:
                weights = layer.data["weights"]
                moved = weights.transpose(2, 3, 1, 0) if layer.op != "fully_connected" else None
                moved = weights.reshape(len(weights), -1).T if moved is None else moved
                assert arrays[f"{name}_weights"] == moved.reshape(-1).tolist()
                assert arrays[f"{name}_bias"] == layer.data["bias"].tolist()
                assert f"extern const int8_t {name}_weights[{weights.size}];" in header.read_text()
                scale = (
                    f"{name}_weights_scale" if target == "mli-sa8" else f"{name}_weights_frac_bits"
                )
                assert scale in arrays


def test_an_exported_graph_computes_the_same(device, tmp_path):
    with clnn.quantize(NET, SAMPLES, "openvx-q78", device) as network:
        (path,) = network.export(tmp_path)
        for feed, values in zip(
            (SAMPLES[1], LARGE), network.values([SAMPLES[1], LARGE]), strict=True
        ):
            first, last = network.layers[0].inputs[0], network.layers[-1].integers
            with vx.vxCreateContext() as context:
                read = vx.vxImportBinary(context, path)
                graph, x, y = (
                    vx.vxGetImportReferenceByName(read, n) for n in ("graph", "input0", "output")
                )
                given = np.ascontiguousarray(values[first][0])
                vx.vxCopyTensorPatch(x, None, None, given, vx.VX_WRITE_ONLY)
                vx.vxVerifyGraph(graph)
                vx.vxProcessGraph(graph)
                got = np.empty(values[last].shape[1:], np.int16)
                vx.vxCopyTensorPatch(y, None, None, got, vx.VX_READ_ONLY)
            np.testing.assert_array_equal(got, values[last][0])
            np.testing.assert_array_equal(network(feed)["y"], values[last] / np.float32(256))


@pytest.mark.parametrize("target", ["espdl-int8", "espdl-int16", "espdl-int8 by channel"])
def test_an_espdl_file_computes_the_same(device, target, tmp_path, capsys):
    with simulated(target, device) as network:
        (path,) = network.export(tmp_path, "net")
        model = espdl.read(path)
        by_channel = target.endswith("channel")
        assert path.name == ("net_p4.espdl" if by_channel else "net_s3.espdl")
        assert {n.op_type for n in model.nodes} >= {"Conv", "Gemm", "Add", "AveragePool", "Softmax"}
        exponents = [len(t.exponents) for t in model.initializers.values() if "weight" in t.name]
        assert max(exponents) == (8 if by_channel else 1)
        assert model.inputs[0].dims == (1, 12, 12, 3)
        with espdl.compile_model(path, device) as session:
            for feed in (SAMPLES[0], SAMPLES[2], LARGE):
                (values,) = network.values([feed])
                x = values[network.layers[0].inputs[0]]
                got = session({"x": np.ascontiguousarray(x.transpose(0, 2, 3, 1))})
                np.testing.assert_array_equal(got["y"], network(feed)["y"])
                if feed is SAMPLES[0]:
                    np.testing.assert_array_equal(
                        model.golden_inputs["x"][0], x[0].transpose(1, 2, 0)
                    )
                    np.testing.assert_array_equal(model.golden_outputs["y"], got["y"])
    assert main(["verify", str(path), "--device", device]) == 0
    assert main(["run", str(path), "--device", device]) == 0
    assert "y" in capsys.readouterr().out


@pytest.mark.parametrize("bits", [8, 16])
def test_an_espdl_file_of_branches_tables_and_views(device, bits, tmp_path):
    build = GraphBuilder()
    x = build.input("x", TensorType((2, 3, 6, 5), F32))
    y = build.input("y", TensorType((2, 3, 6, 5), F32))

    def point(value, count, group=1):
        shape = (count, build.shape(value)[1] // group, 1, 1)
        made = build.const(RNG.normal(0, 0.6, shape).astype(np.float32))
        return build.add(Conv2d(POINT, group), value, made)

    def step(value, fn, *others):
        operand = {"operand": 1} if others else {}
        return build.add(Eltwise((PostOp(fn, **operand),)), value, *others)

    one, two = step(point(x, 4), "sigmoid"), step(point(y, 4, 1), "tanh")
    both = build.add(Concat(1), step(one, "mul", two), step(one, "sub", two), x)
    scale = build.const(RNG.normal(0, 1, (1, 11, 1, 1)).astype(np.float32))
    scaled = step(both, "mul", scale)
    window = Window((2, 3), (2, 1), (1, 1), (0, 1), (0, 1))
    small = build.add(Pool(window, "average"), scaled)
    part = build.add(Slice((0, 1, 0, 4), (2, 8, 3, 5), (1, 1, 1, -1)), small)
    turned = build.add(Transpose((0, 3, 1, 2)), part)
    graph = build.graph({"z": turned, "w": step(both, "relu"), "twin": turned})
    feeds = [{n: RNG.normal(0, 1, (2, 3, 6, 5)).astype(np.float32) for n in "xy"} for _ in range(3)]
    with clnn.quantize(graph, feeds[:2], f"espdl-int{bits}", device) as network:
        (path,) = network.export(tmp_path)
        model = espdl.read(path)
        assert list(model.golden_outputs) == ["z", "w", "twin"]
        first = {n: i for la in network.layers for n, i in [(la.value, la.grid)]}
        steps = {v.name: v.exponents[0] for v in (*model.inputs, *model.outputs)}
        assert first and {n.op_type for n in model.nodes} >= {
            "Sigmoid",
            "Tanh",
            "Mul",
            "Sub",
            "Slice",
        }
        with espdl.compile_model(path, device) as session:
            for feed in (*feeds, {n: v * 9 for n, v in feeds[2].items()}):
                ints = {}
                for name, array in feed.items():
                    ends = np.iinfo(f"int{bits}")
                    q = np.floor(
                        np.ldexp(array.transpose(0, 2, 3, 1), -steps[name]) + np.float32(0.5)
                    )
                    ints[name] = np.clip(q, ends.min, ends.max).astype(f"int{bits}")
                got = session(ints)
                for name, want in network(feed).items():
                    real = np.ldexp(got[name].astype(np.float32), steps[name])
                    np.testing.assert_array_equal(real.transpose(0, 3, 1, 2), want)


def test_a_network_that_espdl_lacks_is_refused(any_device, tmp_path):
    build = GraphBuilder()
    x = build.input("x", TensorType((1, 4), F32))
    graph = build.graph({"y": build.add(Eltwise((PostOp("exp"),)), x)})
    feed = {"x": np.ones((1, 4), np.float32)}
    with (
        clnn.quantize(graph, [feed], "espdl-int8", any_device) as network,
        pytest.raises(UnsupportedOpError, match="eltwise"),
    ):
        network.export(tmp_path)


def test_a_graph_of_layers_that_openvx_lacks_is_refused(any_device, tmp_path):
    build = GraphBuilder()
    x = build.input("x", TensorType((1, 4), F32))
    graph = build.graph({"y": build.add(Eltwise((PostOp("exp"),)), x)})
    feed = {"x": np.ones((1, 4), np.float32)}
    with (
        clnn.quantize(graph, [feed], "openvx-q78", any_device) as network,
        pytest.raises(UnsupportedOpError, match="eltwise"),
    ):
        network.export(tmp_path)


def test_a_descriptor_names_the_integers_of_the_simulation(device, tmp_path):
    with clnn.quantize(NET, SAMPLES, "tidl-8", device) as network:
        (path,) = network.export(tmp_path, "net")
        read = tidl.sTIDL_IOBufDesc_t.read(path)
        (x,), (y,) = read.inputs, read.outputs
        assert path.name == "net_io_1.bin" and (x.name, y.name) == ("x", "y")
        (values,) = network.values(SAMPLES[:1])
        ours = values[network.layers[0].inputs[0]]
        assert x.shape == (1, 1, 1, 3, 12, 12) and x.dtype == ours.dtype
        np.testing.assert_array_equal(tidl.quantise(SAMPLES[0]["x"], x), ours)
        assert y.dtype == np.float32 and y.width == 5  # softmax is none of TIDL's integers


def test_the_command_writes_a_report_and_exports(any_device, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("CLNN_DEVICE", any_device)
    digits = clnn.__file__.replace("clnn/__init__.py", "tools/examples/models/digits.onnx")
    samples = tmp_path / "samples"
    samples.mkdir()
    for k in range(3):
        image = RNG.random((1, 1, 8, 8)).astype(np.float32)
        np.savez(samples / f"{k}.npz", image=image)
    common = ["quantize", digits, "--samples", str(samples), "--target", "mli-sa8"]
    shape = ["--shape", "image:1,1,8,8"]
    report, out = tmp_path / "r.html", tmp_path / "c"
    assert main([*common, *shape, "--report", str(report), "--export", str(out)]) == 0
    assert "classifier" in report.read_text() and len(list(out.iterdir())) == 2
    assert "report of" in capsys.readouterr().out
    assert main([*common, *shape, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["target"] == "mli-sa8"
    for wrong in (["--report", "r.pdf"], ["--out", "q.onnx"]):
        assert main([*common, *shape, *wrong]) != 0
    assert main(["quantize", digits, "--samples", str(samples)]) != 0
