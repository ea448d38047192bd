"""A model file that changes while it is loaded is one clear error, however it changes and when."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from common import ROOT

import clnn
import clnn.compile as compiling
from clnn.errors import ModelError
from clnn.graph.mapped import MappedFile, map_file, one_of_each, require_unchanged
from clnn.importers.onnx.importer import import_onnx
from clnn.runtime.run import constants

WIDTH = 1 << 20
LATER = 1_000_000  # ns, more than a file system's clock may lack


def write(path: Path, external: bool) -> Path:
    """Write x + a + b + c with large constants; return the file that they lie in."""
    names = ["a", "b", "c"]
    nodes = [
        onnx.helper.make_node("Mul", [before, name], [after])
        for before, name, after in zip(["x", "p", "q"], names, ["p", "q", "y"], strict=True)
    ]
    values = [onnx.helper.make_tensor_value_info(n, 1, (WIDTH,)) for n in ("x", "y")]
    data = np.linspace(1, 2, WIDTH, dtype=np.float32)
    given = [onnx.numpy_helper.from_array(data + k, name) for k, name in enumerate(names)]
    graph = onnx.helper.make_graph(nodes, "g", values[:1], values[1:], given)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save(model, path, save_as_external_data=external, location="w.bin", size_threshold=0)
    return path.with_name("w.bin") if external else path


def touched(path: Path) -> None:
    """Give a file another time of its last change."""
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + LATER))


def test_what_counts_as_a_change(tmp_path):
    path = tmp_path / "data"

    def mapped() -> MappedFile:
        path.write_bytes(bytes(8192))
        with path.open("rb") as file:
            return map_file(file.fileno(), path, 4096, 4096)

    same = mapped()
    require_unchanged([same])
    assert one_of_each([same, same]) == [same]
    path.rename(tmp_path / "moved")
    require_unchanged([same])
    path.write_bytes(b"another file")
    require_unchanged([same])
    for change, told in (
        (lambda: os.truncate(path, 100), "had 8192 bytes and has 100 now"),
        (lambda: os.truncate(path, 9000), "had 8192 bytes and has 9000 now"),
        (lambda: touched(path), "was written to"),
    ):
        file = mapped()
        change()
        with pytest.raises(ModelError, match=f"data' {told}.*Compile again"):
            require_unchanged([same, file])
    both = [mapped()]
    touched(path)
    with path.open("rb") as file:
        both.append(map_file(file.fileno(), path, 4096))
    assert len(one_of_each(both)) == 2
    with path.open("rb") as file, pytest.raises(ModelError, match="has 8192 bytes now"):
        map_file(file.fileno(), path, 8193)


CODE = """
import os, sys
sys.path[:0] = {path!r}
import clnn
import clnn.compile as compiling
from clnn.errors import ModelError
from clnn.runtime.run import constants
def cut(at, name):
    real = getattr(at, name)
    def first(*args, **kwargs):
        made = real(*args, **kwargs)
        os.truncate({file!r}, 5000)
        return made
    setattr(at, name, first)
cut({when})
try:
    clnn.compile_model({model!r}, {device!r})
except ModelError as err:
    print(err)
"""


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("when", ["compiling, 'select_device'", "constants.Constants, '_data'"])
def test_a_file_that_is_cut_short_ends_no_process(tmp_path, any_device, external, when):
    """While the device is opened; between two constants."""
    file = write(tmp_path / "net.onnx", external)
    code = CODE.format(
        path=[str(ROOT), *sys.path],
        file=str(file),
        when=when,
        device=any_device,
        model=str(tmp_path / "net.onnx"),
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert f"{file.name}' had" in done.stdout and "has 5000 now" in done.stdout


@pytest.mark.parametrize("when", ["select_device", "_place_at"])
def test_a_file_that_is_written_to_is_noticed(tmp_path, device, monkeypatch, when):
    """At the beginning, and behind what was read last."""
    file = write(tmp_path / "net.onnx", False)
    at = compiling if when == "select_device" else constants.Constants
    real = getattr(at, when)

    def then(*args):
        made = real(*args)
        touched(file)
        return made

    monkeypatch.setattr(at, when, then)
    with pytest.raises(ModelError, match="was written to"):
        clnn.compile_model(file, device)


def test_an_unchanged_file_is_read_whole(tmp_path, device):
    file = write(tmp_path / "net.onnx", True)
    graph = import_onnx(tmp_path / "net.onnx")
    x = np.full(WIDTH, 0.5, np.float32)
    want = 0.5 * graph.consts["a"] * graph.consts["b"] * graph.consts["c"]
    with clnn.compile_model(tmp_path / "net.onnx", device) as session:
        os.truncate(file, 5000)
        np.testing.assert_allclose(session({"x": x})["y"], want, rtol=1e-6)
