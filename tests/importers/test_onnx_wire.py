"""Large tensors taken out of a model before it is parsed: nothing is lost, nothing mistaken."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx import helper as make
from onnx_models import model, run, tensor, value

from clnn.graph.mapped import forget, mapped_files
from clnn.importers.onnx.importer import import_onnx
from clnn.importers.onnx.wire import separate

LARGE = np.random.default_rng(0).integers(-99, 99, (40, 50)).astype(np.float32)
OTHER = np.arange(2000, dtype=np.float32).reshape(40, 50)
SMALL = np.float32([[2.0]])


def net() -> onnx.ModelProto:
    """(x + large) * small - other, a name of several bytes' length in front of all."""
    nodes = [
        make.make_node("Add", ["x", "large"], ["a"]),
        make.make_node("Mul", ["a", "small"], ["b"]),
        make.make_node("Sub", ["b", "other"], ["y"]),
    ]
    given = [tensor("large", LARGE), tensor("small", SMALL), tensor("other", OTHER)]
    made = model(nodes, [value("x", (40, 50))], initializers=given)
    made.doc_string = "text " * 100
    return made


def split(data: bytes) -> tuple[onnx.ModelProto, dict[int, memoryview]]:
    small, large = separate(memoryview(data))
    made = onnx.ModelProto()
    made.ParseFromString(small)
    return made, large


def test_what_was_taken_out_makes_the_model_whole_again():
    want = net()
    made, large = split(want.SerializeToString())
    assert sorted(large) == [0, 2]
    for place, data in large.items():
        assert made.graph.initializer[place].raw_data == b""
        assert made.graph.initializer[place].HasField("raw_data")
        made.graph.initializer[place].raw_data = bytes(data)
    assert made == want


def field(number: int, data: bytes) -> bytes:
    out, length = bytes([number << 3 | 2]), len(data)
    while length > 127:
        out, length = out + bytes([length & 127 | 128]), length >> 7
    return out + bytes([length]) + data


def tensor_twice() -> bytes:
    """A model whose tensor has its data twice, of which the parser takes the second."""
    proto = tensor("w", OTHER)
    twice = field(9, LARGE.tobytes()) + proto.SerializeToString()
    graph = make.make_graph(
        [make.make_node("Add", ["x", "w"], ["y"])],
        "g",
        [value("x", (40, 50))],
        [onnx.ValueInfoProto(name="y")],
    )
    whole = make.make_model(graph, opset_imports=[make.make_opsetid("", 21)], ir_version=10)
    whole.ClearField("graph")
    return whole.SerializeToString() + field(7, graph.SerializeToString() + field(5, twice))


def graph_twice() -> bytes:
    """A model in two parts, which the parser joins."""
    whole = net()
    first, second = onnx.ModelProto(), onnx.ModelProto()
    first.CopyFrom(whole)
    del first.graph.initializer[:]
    second.graph.initializer.extend(whole.graph.initializer)
    return first.SerializeToString() + second.SerializeToString()


@pytest.mark.parametrize(
    ("data", "want"),
    [(tensor_twice(), OTHER), (graph_twice(), LARGE * 2 - OTHER)],
    ids=["data twice", "graph twice"],
)
def test_what_only_the_parser_understands_is_left_to_it(data, want):
    assert separate(memoryview(data)) == (data, {})
    y = run(import_onnx(data), x=np.zeros((40, 50), np.float32))["y"]
    np.testing.assert_array_equal(y, want)


def test_a_file_cut_anywhere_comes_back_whole_or_with_all_its_data():
    data = net().SerializeToString()
    for length in range(0, len(data), 97):
        small, large = separate(memoryview(data[:length]))
        assert (small, large) == (data[:length], {})
    for junk in (b"\x0b\x0c", b"\xff" * 20, b"\x00\x01", b"\x3a\xff\xff\xff\xff\x0f"):
        assert separate(memoryview(junk)) == (junk, {})


@pytest.mark.parametrize("mapped", [False, True])
def test_the_values_are_those_of_the_file(mapped, tmp_path):
    path = tmp_path / "net.onnx"
    onnx.save(net(), path)
    graph = import_onnx(path, mapped=mapped)
    files = mapped_files(graph.consts.values())
    assert len(files) == int(mapped)
    x = np.ones((40, 50), np.float32)
    want = (x + LARGE) * 2 - OTHER
    np.testing.assert_array_equal(run(graph, x=x)["y"], want)
    forget(files)
    np.testing.assert_array_equal(run(graph, x=x)["y"], want)


def test_an_inner_graphs_tensor_of_the_same_name_is_its_own():
    """The branch's `large` is empty, and no data of the main graph is taken for it."""
    empty = TensorProto(name="large", data_type=TensorProto.FLOAT, dims=(40, 50), raw_data=b"")
    branch = make.make_graph(
        [make.make_node("Add", ["a", "large"], ["z"])],
        "then",
        [],
        [onnx.ValueInfoProto(name="z")],
        [empty],
    )
    nodes = [
        make.make_node("Add", ["x", "large"], ["a"]),
        make.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch),
    ]
    given = [tensor("large", LARGE), tensor("c", np.array(True))]
    data = model(nodes, [value("x", (40, 50))], initializers=given).SerializeToString()
    with pytest.raises(Exception, match="holds 0 bytes"):
        import_onnx(data)


@pytest.mark.parametrize("offset", [0, 4, 4096])
def test_large_external_data_is_mapped(offset: int, tmp_path: Path):
    weights = np.arange(1 << 18, dtype=np.float32).reshape(512, 512)
    (tmp_path / "w.bin").write_bytes(bytes(offset) + weights.tobytes())
    proto = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=weights.shape)
    proto.data_location = TensorProto.EXTERNAL
    for key, text in {"location": "w.bin", "offset": offset}.items():
        proto.external_data.add(key=key, value=str(text))
    node = make.make_node("Add", ["x", "w"], ["y"])
    path = tmp_path / "net.onnx"
    onnx.save(model([node], [value("x", (512, 512))], initializers=[proto]), path)
    graph = import_onnx(path, mapped=True)
    assert len(mapped_files(graph.consts.values())) == 1
    y = run(graph, x=np.zeros((512, 512), np.float32))["y"]
    np.testing.assert_array_equal(y, weights)
