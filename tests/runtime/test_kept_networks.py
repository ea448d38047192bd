"""Compiled networks in the cache: found where all is as it was, made anew where anything differs."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import clnn
from clnn import entry
from clnn.cache.sections import PAGE
from clnn.cache.store import Store
from clnn.runtime.run import kept


def write(path: Path, scale: float = 1.0, shape: tuple = (1, 2, 6, 6), **tensor: object) -> Path:
    """Write y = relu(conv(x)) as a model."""
    weights = scale * np.random.default_rng(0).standard_normal((4, 2, 3, 3)).astype(np.float32)
    x, y = (
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s)
        for n, s in (("x", shape), ("y", None))
    )
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "net", [x], [y], [numpy_helper.from_array(weights, "w")])
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, path, **tensor)
    return path


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CLNN_CACHE_DIR", str(tmp_path / "cache"))
    return lambda: Store(kind=kept.KIND).entries()


@pytest.fixture
def anew(monkeypatch):
    """How often a model was compiled anew."""
    times: list[object] = []
    whole = entry._anew
    monkeypatch.setattr(entry, "_anew", lambda *args: times.append(args) or whole(*args))
    return times


X = {"x": np.random.default_rng(1).standard_normal((1, 2, 6, 6)).astype(np.float32)}


def run(path, device, **asked) -> np.ndarray:
    with clnn.compile_model(path, device, **asked) as session:
        return session(X)["y"]


def test_the_second_start_finds_what_the_first_one_made(cache, anew, device, tmp_path):
    path = write(tmp_path / "net.onnx")
    first = run(path, device)
    assert len(anew) == 1 and len(cache()) == 1
    assert (run(str(path), device) == first).all()
    again = clnn.compile_model(path, device, clnn.Options(states=2, timeout=60))
    assert (again(X)["y"] == first).all() and len(anew) == 1
    assert again.placement.nodes and again.build_counts[1] == 0
    again.close()
    payload = Store(kind=kept.KIND).mapped(cache()[0].key)
    assert (
        np.frombuffer(payload, np.uint8).ctypes.data % PAGE == 0
    )  # so that it is used where it lies


def test_whatever_differs_makes_it_anew(cache, anew, any_device, tmp_path, monkeypatch):
    path = write(tmp_path / "net.onnx")
    first = run(path, any_device)
    ways = (
        lambda: run(path, any_device, options=clnn.Options(fuse=False)),
        lambda: run(path, any_device, shapes={"x": (1, 2, 6, 6)}),
        lambda: run(write(path, 2.0), any_device),
        lambda: monkeypatch.setenv("CLNN_ARENA", "separate") or run(path, any_device),
    )
    for number, way in enumerate(ways, 2):
        way()
        assert len(anew) == number
    monkeypatch.delenv("CLNN_ARENA")
    monkeypatch.setattr(kept, "own_files", lambda extra: "those of another version")
    assert (run(path, any_device) == 2 * first).all() and len(anew) == len(ways) + 2


def test_damage_is_passed_over(cache, anew, any_device, tmp_path):
    path = write(tmp_path / "net.onnx")
    first = run(path, any_device)
    entry_path = Store(kind=kept.KIND).path(cache()[0].key)
    blob = entry_path.read_bytes()
    for damage in (blob[:-100], blob[: len(blob) // 2], b"", blob[:5000] + b"\1" + blob[5001:]):
        entry_path.write_bytes(damage)
        os.chmod(entry_path, 0o600)
        before = len(anew)
        with pytest.warns(clnn.cache.CacheWarning) if before == 1 else nullcontext():
            assert (run(path, any_device) == first).all()
        assert len(anew) == before + 1
    whole = Store(kind=kept.KIND).get(cache()[0].key)
    other = whole.payload.replace(b'"tensor"', b'"sensor"')
    Store(kind=kept.KIND).put(cache()[0].key, other, {})
    assert (run(path, any_device) == first).all()


def test_what_cannot_be_kept_is_not(cache, any_device, tmp_path, monkeypatch):
    far = write(tmp_path / "far.onnx", save_as_external_data=True, size_threshold=0)
    run(far, any_device)
    open_ = write(tmp_path / "open.onnx", shape=("batch", 2, 6, 6))
    run(open_, any_device)
    run(write(tmp_path / "net.onnx").read_bytes(), any_device)
    run(write(tmp_path / "net.onnx"), any_device, options=clnn.Options(guard=64))
    assert not cache()
    monkeypatch.setenv("CLNN_CACHE", "off")
    run(write(tmp_path / "net.onnx"), any_device)
    assert not cache()


def test_a_model_without_a_device_is_told_what_is_wrong_with_it(tmp_path):
    (tmp_path / "net.onnx").write_bytes(b"nothing")
    with pytest.raises(clnn.errors.ModelError):
        clnn.compile_model(tmp_path / "net.onnx", "a device that is not there")
