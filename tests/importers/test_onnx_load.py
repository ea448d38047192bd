from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx_models import model, relu, value

from clnn.errors import ModelError
from clnn.importers.onnx.importer import import_onnx
from clnn.importers.onnx.load import load_model


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    onnx.save(relu(), path)
    return path


def test_path_text_bytes_and_proto_give_the_same_graph(saved):
    data = saved.read_bytes()
    forms = [saved, str(saved), data, bytearray(data), memoryview(data), onnx.load(saved)]
    graphs = [import_onnx(form) for form in forms]
    assert all(g.nodes == graphs[0].nodes and g.types == graphs[0].types for g in graphs)
    assert len(graphs[0].nodes) == 1


def test_given_proto_stays_as_it_is():
    proto = relu()
    before = proto.SerializeToString(deterministic=True)
    import_onnx(proto)
    assert proto.SerializeToString(deterministic=True) == before


NO_MODELS = {
    "lfs": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
        "Git-LFS pointer",
    ),
    "zip": (b"PK\x03\x04" + bytes(40), "ZIP archive"),
    "gzip": (b"\x1f\x8b\x08" + bytes(40), "gzip"),
    "pickle": (b"\x80\x02}q\x00.", "pickle"),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + bytes(40), "HDF5"),
    "tflite": (b"\x1c\0\0\0TFL3" + bytes(40), "TensorFlow Lite"),
    "ort": (b"\x1c\0\0\0ORTM" + bytes(40), "onnxruntime's own format"),
    "html": (b"<!DOCTYPE html><html>404</html>", "web page"),
    "json": (b'{"error": "not found"}', "JSON"),
    "empty": (b"", "It is empty"),
    "noise": (bytes(range(255, 155, -1)), "begins with"),
}


@pytest.mark.parametrize("name", NO_MODELS)
def test_what_is_no_model_is_named_with_size_and_first_bytes(name, tmp_path):
    data, hint = NO_MODELS[name]
    path = tmp_path / "net.onnx"
    path.write_bytes(data)
    with pytest.raises(ModelError) as caught:
        import_onnx(path)
    text = str(caught.value)
    assert hint in text
    assert f"It has {len(data)} bytes" in text
    assert repr(data[:16]) in text


def test_every_prefix_of_a_model_is_refused_or_read(saved):
    """A download that broke off: no prefix crashes, and none but whole models pass."""
    data = saved.read_bytes()
    read = 0
    for length in range(len(data)):
        try:
            load_model(data[:length])
            read += 1
        except ModelError:
            pass
    assert read < len(data) // 2
    assert load_model(data)[0].graph.node[0].op_type == "Relu"


def test_file_over_the_limit_is_refused_before_it_is_read(saved, monkeypatch):
    monkeypatch.setenv("CLNN_MAX_BYTES", str(saved.stat().st_size - 1))
    with pytest.raises(ModelError, match=r"has \d+ bytes; the limit is \d+ \(CLNN_MAX_BYTES"):
        import_onnx(saved)


def test_sparse_file_of_many_gigabytes_is_refused(tmp_path):
    path = tmp_path / "huge.onnx"
    with open(path, "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ModelError, match="the limit is 2147483647"):
        import_onnx(path)


def test_fifo_folder_and_missing_file_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "fifo.onnx")
    with pytest.raises(ModelError, match="not a regular file"):
        import_onnx(tmp_path / "fifo.onnx")
    with pytest.raises(ModelError, match=r"is a folder: pass the \.onnx file in it"):
        import_onnx(tmp_path)
    with pytest.raises(ModelError, match=r"no model file can be read at .*none\.onnx"):
        import_onnx(tmp_path / "none.onnx")
    with pytest.raises(ModelError, match="not a regular file"):
        import_onnx("/dev/zero")
    with pytest.raises(ModelError, match="no model file can be read"):
        import_onnx("net\0.onnx")


def test_other_objects_are_refused():
    with pytest.raises(ModelError, match="was given as ndarray"):
        import_onnx(np.zeros(3))


def test_model_file_may_be_a_link(saved, tmp_path):
    link = tmp_path / "link.onnx"
    link.symlink_to(saved)
    assert len(import_onnx(link).nodes) == 1


@pytest.mark.parametrize(
    ("field", "number", "text"),
    [
        ("ir_version", 0, "IR version 0"),
        ("ir_version", 99, "IR version 99"),
        ("ir_version", -1, "IR version -1"),
    ],
)
def test_ir_version_must_be_known(field, number, text):
    proto = relu()
    setattr(proto, field, number)
    with pytest.raises(ModelError, match=text):
        import_onnx(proto)


def test_opsets_must_be_named_once_and_known():
    proto = relu()
    del proto.opset_import[:]
    with pytest.raises(ModelError, match="names no operator set"):
        import_onnx(proto)
    proto = relu()
    proto.opset_import.add(domain="ai.onnx", version=13)
    with pytest.raises(ModelError, match="with opsets 21 and 13"):
        import_onnx(proto)
    with pytest.raises(ModelError, match=r"uses opset 999; onnx .* knows up to"):
        import_onnx(model([], [value("x", [1])], ["x"], opset=999))


def test_empty_proto_is_refused():
    with pytest.raises(ModelError, match="holds no graph"):
        import_onnx(onnx.ModelProto())
