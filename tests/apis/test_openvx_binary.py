"""Exported graphs: what is kept, and files that are damaged or hostile."""

from __future__ import annotations

import json
import zipfile

import numpy as np
import pytest
from openvx_tools import EVEN, FLOOR, RELU, SAT, empty, fails, integers, read, tensor, view

from clnn import openvx as vx


@pytest.fixture
def context():
    with vx.vxCreateContext() as made:
        yield made


def every_kind(context):
    """Return a graph with every kind of object, and its tensors by name."""
    graph = vx.vxCreateGraph(context)
    x, w = tensor(context, integers((2, 4, 4))), tensor(context, integers((3, 2, 1, 1), seed=1))
    y = empty(context, 4, 4, 3)
    half = vx.vxCreateVirtualTensor(graph, 3, (4, 4, 1), vx.VX_TYPE_INT16, 8)
    scale = vx.vxCreateScalar(context, vx.VX_TYPE_FLOAT32, 0.1)
    lut = vx.vxCreateLUT(context, vx.VX_TYPE_INT16, 7)
    vx.vxCopyLUT(lut, integers((7,)), vx.VX_WRITE_ONLY)
    vx.vxSetReferenceName(x, "image")
    vx.vxConvolutionLayer(graph, x, w, None, 0, 0, 32, SAT, EVEN, FLOOR, y)
    plane = view(y, (0, 0, 1), (4, 4, 2))
    vx.vxTensorMultiplyNode(graph, plane, plane, scale, SAT, EVEN, half)
    z = empty(context, 4, 4, 1)
    vx.vxTensorTableLookupNode(graph, half, lut, z)
    return graph, {"x": x, "w": w, "y": y, "scale": scale, "lut": lut}


@pytest.fixture
def exported(context, tmp_path):
    graph, names = every_kind(context)
    path = tmp_path / "graph.vx"
    vx.vxExportBinary(graph, path, names)
    return path


def test_everything_comes_back(context, exported):
    imported = vx.vxImportBinary(context, exported)
    graph = vx.vxGetImportReferenceByName(imported, "graph")
    assert graph is vx.vxGetImportReferenceByIndex(imported, 0)
    assert vx.vxIsGraphVerified(graph) and vx.vxQueryGraph(graph, vx.VX_GRAPH_NUMNODES) == 3
    x, w, y = (vx.vxGetImportReferenceByName(imported, n) for n in "xwy")
    assert vx.vxQueryReference(x, vx.VX_REFERENCE_NAME) == "image"
    np.testing.assert_array_equal(read(x), integers((2, 4, 4)))
    np.testing.assert_array_equal(read(w), integers((3, 2, 1, 1), seed=1))
    assert vx.vxQueryTensor(y, vx.VX_TENSOR_DIMS) == (4, 4, 3)
    scale = vx.vxGetImportReferenceByName(imported, "scale")
    assert vx.vxCopyScalar(scale) == np.float32(0.1)
    table = np.empty(7, np.int16)
    lut = vx.vxGetImportReferenceByName(imported, "lut")
    vx.vxCopyLUT(lut, table, vx.VX_READ_ONLY)
    np.testing.assert_array_equal(table, integers((7,)))
    with fails("VX_ERROR_INVALID_PARAMETERS", "no object is named 'q'"):
        vx.vxGetImportReferenceByName(imported, "q")
    vx.vxReleaseImport(imported)
    assert graph.valid and vx.vxQueryReference(x, vx.VX_REFERENCE_COUNT) == 1


def test_releasing_an_import_releases_what_nobody_took(context, exported):
    before = vx.vxQueryContext(context, vx.VX_CONTEXT_REFERENCES)
    vx.vxReleaseImport(vx.vxImportBinary(context, exported))
    assert vx.vxQueryContext(context, vx.VX_CONTEXT_REFERENCES) == before


def test_results_are_not_stored(context, exported):
    with zipfile.ZipFile(exported) as archive:
        names = set(archive.namelist())
        about = json.loads(archive.read("graph.json"))
    kept = [store["dims"] for store in about["stores"] if store["data"]]
    assert kept == [[4, 4, 2], [1, 1, 2, 3]]
    assert names == {"graph.json", "0.bin", "1.bin", "lut_0.bin"}


def test_an_unverified_graph_is_not_exported(context, tmp_path):
    graph = vx.vxCreateGraph(context)
    vx.vxActivationLayer(graph, empty(context, 3), RELU, 0, 0, empty(context, 4))
    with fails("VX_ERROR_INVALID_DIMENSION"):
        vx.vxExportBinary(graph, tmp_path / "bad.vx")
    assert not list(tmp_path.iterdir())


def test_the_other_arithmetic_is_refused(exported):
    with vx.vxCreateContext(conformance=True) as other:
        with fails("VX_ERROR_NOT_COMPATIBLE"):
            vx.vxImportBinary(other, exported)
        assert vx.vxQueryContext(other, vx.VX_CONTEXT_REFERENCES) == 0


def changed(path, change, entries=None):
    """Write the file again with graph.json changed by a function, and other entries replaced."""
    with zipfile.ZipFile(path) as archive:
        held = {n: archive.read(n) for n in archive.namelist()}
    about = json.loads(held["graph.json"])
    change(about)
    held["graph.json"] = json.dumps(about).encode()
    held.update(entries or {})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in held.items():
            if content is not None:
                archive.writestr(name, content)


def setter(*keys, value):
    def change(about):
        for key in keys[:-1]:
            about = about[key]
        about[keys[-1]] = value

    return change


def view_of_an_open_tensor(about):
    number = next(k for k, store in enumerate(about["stores"]) if store["virtual"])
    about["stores"][number]["dims"] = []
    about["tensors"].append({"store": number, "box": [], "name": ""})


FORMAT, WRONG = "VX_ERROR_INVALID_FORMAT", "VX_ERROR_INVALID_PARAMETERS"
HOSTILE = {
    "no format": (FORMAT, setter("format", value="x")),
    "version": (FORMAT, setter("version", value=2)),
    "nodes": (FORMAT, setter("nodes", value=3)),
    "kernel": (FORMAT, setter("nodes", 0, "kernel", value="__class__")),
    "kernel type": (FORMAT, setter("nodes", 0, "kernel", value=[])),
    "values": (FORMAT, setter("nodes", 0, "values", value=[])),
    "group": (FORMAT, setter("nodes", 0, "values", "inputs", value={"nodes": 0})),
    "two keys": (FORMAT, setter("nodes", 0, "values", "inputs", value={"tensors": 0, "luts": 0})),
    "text": (FORMAT, setter("nodes", 0, "values", "pad_x", value="0")),
    "number": (WRONG, setter("nodes", 0, "values", "inputs", value={"tensors": 99})),
    "negative": (WRONG, setter("nodes", 0, "values", "inputs", value={"tensors": -1})),
    "policy": (WRONG, setter("nodes", 0, "values", "overflow_policy", value=1)),
    "pad": (WRONG, setter("nodes", 0, "values", "pad_x", value=-1)),
    "not a tensor": ("VX_ERROR_INVALID_REFERENCE", setter("nodes", 0, "values", "inputs", value=5)),
    "missing": ("VX_ERROR_INVALID_REFERENCE", setter("nodes", 0, "values", value={})),
    "dims": (WRONG, setter("stores", 0, "dims", value=[4, 4, -2])),
    "rank": (WRONG, setter("stores", 0, "dims", value=[1] * 7)),
    "dims text": (WRONG, setter("stores", 0, "dims", value="444")),
    "size": (FORMAT, setter("stores", 0, "dims", value=[4, 4, 3])),
    "huge": (FORMAT, setter("stores", 0, "dims", value=[2**31, 4, 3])),
    "type": (WRONG, setter("stores", 0, "type", value=9)),
    "box": (FORMAT, setter("tensors", 3, "box", value=[[0, 4], [0, 4], [2, 2]])),
    "box beyond": (WRONG, setter("tensors", 3, "box", value=[[0, 4], [0, 4], [0, 4]])),
    "store": (WRONG, setter("tensors", 0, "store", value=17)),
    "box of nothing": (FORMAT, view_of_an_open_tensor),
    "names": (FORMAT, setter("names", value=[])),
    "name": (FORMAT, setter("names", "x", value=4)),
    "graph name": (FORMAT, setter("names", "graph", value={"tensors": 0})),
    "table": (WRONG, setter("luts", 0, "count", value=70000)),
    "scalar": (WRONG, setter("scalars", 0, "value", value="1")),
    "cycle": ("VX_ERROR_INVALID_GRAPH", setter("nodes", 2, "values", "in1", value={"tensors": 5})),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_descriptions(context, exported, name):
    status, change = HOSTILE[name]
    changed(exported, change)
    before = vx.vxQueryContext(context, vx.VX_CONTEXT_REFERENCES)
    with fails(status):
        vx.vxImportBinary(context, exported)
    assert vx.vxQueryContext(context, vx.VX_CONTEXT_REFERENCES) == before


@pytest.mark.parametrize(
    "entries",
    [
        {"0.bin": b""},
        {"0.bin": b"\0" * 65},
        {"0.bin": None},
        {"lut_0.bin": b"\0" * 13},
        {"graph.json": b"[]"},
        {"graph.json": b"{"},
        {"graph.json": None},
        {"graph.json": b"[" * 10**6},
    ],
)
def test_damaged_entries(context, exported, entries):
    changed(exported, lambda about: None, entries)
    with fails(FORMAT):
        vx.vxImportBinary(context, exported)


def test_damaged_bytes(context, exported):
    """Every cut, and a flipped bit in many places, is refused or leaves the file's meaning."""
    whole = exported.read_bytes()
    for size in range(0, len(whole), 37):
        exported.write_bytes(whole[:size])
        with fails(FORMAT):
            vx.vxImportBinary(context, exported)
    for place in range(0, len(whole), 23):
        flipped = bytearray(whole)
        flipped[place] ^= 16
        exported.write_bytes(flipped)
        try:
            vx.vxReleaseImport(vx.vxImportBinary(context, exported))
        except vx.VxError as error:
            assert error.status < 0
    with pytest.raises(OSError):
        vx.vxImportBinary(context, exported.with_name("none.vx"))
