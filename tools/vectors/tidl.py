"""Layouts of TIDL's structures: read, written, and buffers addressed on the device as they say.

DIR holds iobufdesc_layouts.json. For each version of sTIDL_IOBufDesc_t there are cases of four kinds:
its size and offsets, structures of random values read and written byte by byte, tensors of every element
type that go through a network on the device, and damaged files. Elements are found here by the loop of
the document.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from clnn.apis import tidl
from clnn.errors import ClnnError
from clnn.graph.builder import GraphBuilder
from clnn.graph.ir import Graph
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.shared.functions import PostOp
from clnn.types import TensorType, dtype_of
from vectors import Case, Outcome

SEEDS = 3
ROUNDS = 12  # damaged files of each kind


def cases(folder: Path) -> Iterator[Case]:
    """Yield the cases of every layout, and those of the structures of detections."""
    about = json.loads((folder / "iobufdesc_layouts.json").read_text("utf-8"))
    for name, layout in about["layouts"].items():
        yield Case("structure", name, layout)
        for seed in range(SEEDS):
            yield Case("values", f"{name}[{seed}]", (layout, seed))
        for kind in about["enums"]["eTIDL_ElementType"]:
            for order in about["enums"]["eTIDL_TensorLayout"]:
                yield Case(
                    "buffers", f"{name}/{kind}/{order}", (layout, about["enums"], kind, order)
                )
        yield Case("damaged", name, layout)
    for name, enum in about["enums"].items():
        yield Case("enums", name, (name, enum))
    yield Case("detections", "structures", about["od_structs"])


def generator(text: str) -> np.random.Generator:
    """Return random numbers that depend on a name alone."""
    return np.random.default_rng(zlib.crc32(text.encode()))


def run(case: Case, device: str | None) -> Outcome:
    """Return what became of one case; "buffers" runs on the device."""
    why = CHECKS[case.kernel](case, device)
    return Outcome("failed", why) if why else Outcome("exact")


def _structure(case: Case, device: str | None) -> str:
    layout = case.data
    version = tidl.version_of_size(layout["sizeof"])
    ours = [(f.name, f.kind, f.count, f.offset, f.nbytes) for f in version.fields]
    theirs = [
        (f["field"], "S" if f["type"][0] == "S" else f["type"], f["count"], f["offset"], f["bytes"])
        for f in layout["fields"]
    ]
    if ours != theirs:
        return f"fields differ: {[a for a, b in zip(ours, theirs, strict=False) if a != b][:3]}"
    room = {f["field"]: f["count"] for f in layout["fields"]}
    found = version.inputs, version.outputs, version.cores, version.nbytes
    wanted = room["inWidth"], room["outWidth"], layout["max_cores"], layout["sizeof"]
    return "" if found == wanted else f"inputs, outputs, cores and bytes are {found}, not {wanted}"


def _values(case: Case, device: str | None) -> str:
    layout, _ = case.data
    rng = generator(case.name)
    data = bytearray(rng.integers(0, 256, layout["sizeof"], np.uint8).tobytes())
    extremes = np.array([0, 1, -1, 2**31 - 1, -(2**31)], "<i4")
    wanted: dict[str, Any] = {}
    for f in layout["fields"]:
        at, count = f["offset"], f["count"]
        if f["type"] == "i4":
            values = rng.integers(-(2**31), 2**31, count).astype("<i4")
            values = np.where(rng.random(count) < 0.3, rng.choice(extremes, count), values)
            data[at : at + f["bytes"]] = values.astype("<i4").tobytes()
            wanted[f["field"]] = values.tolist()
        elif f["type"] == "f4":
            floats = rng.normal(0, 10.0 ** rng.integers(-30, 30), count).astype("<f4")
            data[at : at + f["bytes"]] = floats.tobytes()
            wanted[f["field"]] = floats.tolist()
        else:
            names = [f"tensor_{k}_ä"[: int(rng.integers(0, 12))] for k in range(count)]
            rows = [name.encode().ljust(512, b"\0") for name in names]
            data[at : at + f["bytes"]] = b"".join(rows)
            wanted[f["field"]] = names
    read = tidl.sTIDL_IOBufDesc_t.from_bytes(bytes(data))
    for name, values in wanted.items():
        found = getattr(read, name)
        if (found if isinstance(found, list) else [found]) != list(values):
            return f"{name} is {found}, not {values}"
    made = tidl.sTIDL_IOBufDesc_t(
        read.version, **{n: v[0] if len(v) == 1 else v for n, v in wanted.items()}
    )
    same = read.to_bytes() == made.to_bytes() == bytes(data)
    return "" if same else "what is written differs from what was read"


def _doubled(kind: TensorType) -> Graph:
    build = GraphBuilder()
    x = build.input("x", kind)
    return build.graph({"y": build.add(Eltwise((PostOp("add", operand=1),)), x, x)}, "doubled")


def _fields(side: str, order: int, number: int, rng: np.random.Generator) -> dict[str, int]:
    """Return random fields of a small tensor, without the side's name."""
    sizes = {n: int(rng.integers(1, 4)) for n in ("NumBatches", "DIM1", "DIM2", "NumChannels")}
    sizes |= {n: int(rng.integers(1, 7)) for n in ("Height", "Width")}
    pads = {n: int(rng.integers(0, 4)) for n in ("PadL", "PadT", "PadR", "PadB", "PadCh")}
    row = sizes["Width"] + pads["PadL"] + pads["PadR"]
    plane = row * (sizes["Height"] + pads["PadT"] + pads["PadB"])
    more = {
        "ChannelPitch": plane + int(rng.integers(0, 20)),
        "Layout": order,
        "ElementType": number,
    }
    return sizes | pads | more


def _descriptor(layout: dict[str, Any], tensors: dict[str, dict[str, int]]) -> bytes:
    """Return the bytes of a structure of one input and one output, at the offsets of the layout."""
    data = bytearray(layout["sizeof"])
    places = {f["field"]: f["offset"] for f in layout["fields"]}

    def put(name: str, value: bytes) -> None:
        if name in places:
            data[places[name] : places[name] + len(value)] = value

    put("numInputBuf", np.int32(1).tobytes())
    put("numOutputBuf", np.int32(1).tobytes())
    for side, fields in tensors.items():
        put(f"{side}DataName", b"x" if side == "in" else b"y")
        put(f"{side}TensorScale", np.float32(1).tobytes())
        for name, value in fields.items():
            put(f"{side}{name}", np.int32(value).tobytes())
    return bytes(data)


def places_of(fields: dict[str, int]) -> dict[tuple[int, ...], int]:
    """Return where each element lies by the loop of the document, from the first real row on."""
    get = fields.__getitem__
    wide = get("Width") + get("PadL") + get("PadR")
    channels = get("NumChannels") + get("PadCh")
    pixel, channel = (channels, 1) if get("Layout") else (1, get("ChannelPitch"))
    line = wide * pixel
    dim2 = get("ChannelPitch") * channels
    dim1 = dim2 * get("DIM2")
    batch = dim1 * get("DIM1")
    start = (get("PadT") * wide + get("PadL")) * pixel
    names = ("NumBatches", "DIM1", "DIM2", "NumChannels", "Height", "Width")
    pitches = (batch, dim1, dim2, channel, line, pixel)
    return {
        at: start + sum(i * p for i, p in zip(at, pitches, strict=True))
        for at in product(*(range(get(n)) for n in names))
    }


def _buffers(case: Case, device: str | None) -> str:
    layout, enums, kind, order = case.data
    rng, number = generator(f"{kind}/{order}"), enums["eTIDL_ElementType"][kind]
    code = enums["eTIDL_TensorLayout"][order]
    given, wanted = (_fields(side, code, number, rng) for side in ("in", "out"))
    names = {f["field"] for f in layout["fields"]}
    if "inDIM1" not in names:
        given |= {"DIM1": 1, "DIM2": 1}
    same = ("NumBatches", "DIM1", "DIM2", "NumChannels", "Height", "Width")
    wanted |= {n: given[n] for n in same}
    row = wanted["Width"] + wanted["PadL"] + wanted["PadR"]
    wanted["ChannelPitch"] = row * (wanted["Height"] + wanted["PadT"] + wanted["PadB"])
    descriptor = tidl.sTIDL_IOBufDesc_t.from_bytes(
        _descriptor(layout, {"in": given, "out": wanted})
    )
    dtype = descriptor.inputs[0].dtype
    graph = _doubled(TensorType(tuple(given[n] for n in same), dtype_of(dtype)))
    with tidl.Network(graph, descriptor, device) as network:
        (x,), (y,) = network.allocate()
        network.bind([x], [y])
        values = rng.integers(0, 60, x.tensor.shape).astype(dtype)
        for at, place in places_of(given).items():
            x.flat[place] = values[at]
        network.run()
    expected = np.zeros_like(y.flat)
    for at, place in places_of(wanted).items():
        expected[place] = values[at] * 2
    wrong = int((y.flat != expected).sum())
    return f"{wrong} of {expected.size} elements differ" if wrong else ""


def _damaged(case: Case, device: str | None) -> str:
    rng = generator(case.name)
    tensors = {side: _fields(side, 0, 6, rng) for side in ("in", "out")}
    if not any(f["field"] == "inDIM1" for f in case.data["fields"]):
        for fields in tensors.values():
            fields |= {"DIM1": 1, "DIM2": 1}
    data = _descriptor(case.data, tensors)
    cut = [data[: int(n)] for n in rng.integers(0, len(data), ROUNDS)]
    faults = [*cut, data + b"\0"]
    for f in case.data["fields"]:
        values = (-1, 2**31 - 1, -(2**31)) if f["type"] == "i4" else ()
        for value in values:
            other = bytearray(data)
            other[f["offset"] : f["offset"] + 4] = np.array(value, "<i4").tobytes()
            faults.append(bytes(other))
    for fault in faults:
        try:
            read = tidl.sTIDL_IOBufDesc_t.from_bytes(fault)
            read.check()
            _ = [t.layout(s) for t in (*read.inputs, *read.outputs) for s in ("rows", "document")]
        except ClnnError as err:
            if not str(err):
                return "an error says nothing"
    return ""


def _enums(case: Case, device: str | None) -> str:
    name, values = case.data
    ours = {
        "eTIDL_ElementType": tidl.ElementType,
        "eTIDL_TensorLayout": tidl.TensorOrder,
        "eTIDL_inDataFormat": tidl.InDataFormat,
        "eTIDL_inResizeType": tidl.InResizeType,
        "eTIDL_inferenceMode": tidl.InferenceMode,
    }[name]
    found = {int(v): v.name for v in ours}
    wrong = [n for n, v in values.items() if not found.get(v, "").endswith(n)]
    return f"{wrong} are not {found}" if wrong or len(found) != len(values) else ""


def _detections(case: Case, device: str | None) -> str:
    rng, about = generator(case.name), case.data
    points = tuple(
        tidl.TIDL_ODLayerKeyPoint(*rng.random(3).astype("<f4").tolist()) for _ in range(32)
    )
    objects = [
        tidl.TIDL_ODLayerObjInfo(*rng.random(7).astype("<f4").tolist(), points) for _ in range(5)
    ]
    memory = np.zeros(20 + 5 * about["TIDL_ODLayerObjInfo_sizeof"], np.uint8)
    tidl.write_objects(objects, memory, 32)
    data = memory.tobytes()
    header, found = tidl.parse_objects(data)
    if found != objects:
        return "objects differ from those that were written"
    for f in about["TIDL_ODLayerHeaderInfo"]:
        value = np.frombuffer(data, f"<{f['type']}", 1, f["offset"])[0]
        if value != getattr(header, f["field"]):
            return f"{f['field']} is {value}"
    begin = int(header.objInfoOffset)
    for f in about["TIDL_ODLayerObjInfo"][:-1]:
        value = np.frombuffer(data, "<f4", 1, begin + f["offset"])[0]
        if value != np.float32(getattr(objects[0], f["field"])):
            return f"{f['field']} is {value}"
    sizes = header.objInfoSize, len(header.to_bytes())
    wanted = about["TIDL_ODLayerObjInfo_sizeof"], about["TIDL_ODLayerHeaderInfo_sizeof"]
    return "" if sizes == wanted else f"sizes are {sizes}, not {wanted}"


CHECKS = {
    "structure": _structure,
    "values": _values,
    "buffers": _buffers,
    "damaged": _damaged,
    "enums": _enums,
    "detections": _detections,
}
