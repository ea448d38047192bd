"""Vectors of ESP-DL: a network of 1.x with the numbers of chips, and models of 3.x with golden values.

DIR holds v1_*.json and v3_cases.json with an .npz for each network. Those of 1.x run as classes of
clnn.espdl, in one session; those of 3.x are written as .espdl files, read and run as such.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from clnn.apis import espdl
from clnn.importers.espdl.filters import packed
from clnn.importers.espdl.write import stored_filter, write_espdl
from vectors import Case, Outcome

PADDING = espdl.PaddingType
Arrays = Mapping[str, np.ndarray]
CHIPS = {"half to even": "esp32p4", "half up": "esp32s3"}


def cases(folder: Path) -> Iterator[Case]:
    """Yield each network."""
    for listing in sorted(folder.glob("v1_*.json")):
        yield Case("1.x", listing.stem, (folder, json.loads(listing.read_text("utf-8"))))
    for listing in sorted(folder.glob("v3_*.json")):
        for about in json.loads(listing.read_text("utf-8"))["cases"]:
            yield Case("3.x", about["case"], (folder, about))


def run(case: Case, device: str | None) -> Outcome:
    """Run one network and compare all that is known of it."""
    folder, about = case.data
    with np.load(folder / about.get("npz", f"{case.name}.npz"), allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    if case.kernel == "3.x":
        return run_file(about, arrays, device)
    with espdl.using(generation="1.x", device=device):
        return run_classes(about, arrays)


def differing(found: Arrays, wanted: Arrays) -> Outcome:
    """Return whether all arrays are equal, or the first that is not."""
    for name, array in wanted.items():
        wrong = int((found[name].reshape(-1) != array.reshape(-1)).sum())
        if wrong:
            return Outcome("failed", f"{wrong} of {array.size} elements of {name} differ")
    return Outcome("exact")


# 1.x


class Network(espdl.Model):
    """A network by its listing: layers one after the other, and branches where `graph` says so."""

    def __init__(self, about: Mapping[str, Any], arrays: Arrays) -> None:
        super().__init__()
        self.layers = {
            entry["name"]: layer(entry, about["tensors"], arrays) for entry in about["layers"]
        }
        self.sources = sources(list(self.layers))
        self.concat = espdl.Concat2D()

    def _input(self, name: str, input: espdl.Tensor) -> espdl.Tensor:
        source = self.sources[name]
        if source == "":
            return input
        return self.concat.output if isinstance(source, tuple) else self.layers[source].output

    def build(self, input: espdl.Tensor) -> None:
        """Build all layers, the concatenation before the first that takes it."""
        for name, one in self.layers.items():
            joined = self.sources[name]
            if isinstance(joined, tuple):
                self.concat.build([self.layers[k].output for k in joined])
            one.build(self._input(name, input))
        if self.concat.output.members:
            self.concat.backward()

    def call(self, input: espdl.Tensor) -> espdl.Tensor:
        """Call all layers; return the output of the last."""
        if self.concat.output.members:
            self.concat.calloc_element()
        for name, one in self.layers.items():
            last = one.call(self._input(name, input))
        return last


def sources(names: list[str]) -> dict[str, Any]:
    """Return what each layer takes: a layer, "" for the input, several that are concatenated."""
    found: dict[str, Any] = {}
    for before, name in zip(["", *names], names, strict=False):
        found[name] = before
    if "l3_a_depth" in found:
        found |= {
            "l3_a_depth": "l2_compress",
            "l3_b_depth": "l2_compress",
            "l3_c_depth": "l3_b_compress",
            "l3_d_depth": "l3_b_compress",
            "l4_depth": ("l3_a_compress", "l3_c_compress", "l3_e_compress"),
        }
    return found


def layer(entry: Mapping[str, Any], tensors: Mapping[str, Any], arrays: Arrays) -> espdl.Layer:
    """Return a layer of 1.x. Its filter is given in the order of the ESP32-S3, where that is there."""
    name = entry["name"]
    about = tensors[f"{name}_filter"]
    depthwise = entry["type"] == "DepthwiseConv2D"
    stored, order = arrays.get(f"{name}_filter__esp32s3_order"), "(N/8)HWC8"
    if stored is None:
        stored, order = arrays[f"{name}_filter"], "HWIO"
    filter_ = espdl.Filter(
        stored, about["exponent"], about["shape"], about.get("dilation", (1, 1)), order
    )
    bias = None
    if f"{name}_bias" in arrays:
        bias = espdl.Bias(arrays[f"{name}_bias"], tensors[f"{name}_bias"]["exponent"])
    kind, activation = entry.get("activation"), None
    if kind:
        slope = tensors[f"{name}_activation"]
        activation = espdl.Activation(
            espdl.ActivationType[kind], arrays.get(f"{name}_activation"), slope.get("exponent") or 0
        )
    exponent = entry["output_exponent"]
    rows = arrays["input"].ndim != 3 and tuple(about["shape"][:2]) == (1, 1)
    if entry["type"] == "FullyConnected" or rows:
        return espdl.FullyConnected(exponent, filter_, bias, activation, name=name)
    made = espdl.DepthwiseConv2D if depthwise else espdl.Conv2D
    padding, stride = PADDING[entry.get("padding", "PADDING_VALID")], entry.get("stride", 1)
    return made(exponent, filter_, bias, activation, padding, stride, stride, name)


def run_classes(about: Mapping[str, Any], arrays: Arrays) -> Outcome:
    """Run a network of 1.x: what the chip printed, then each layer's output."""
    network = Network(about, arrays)
    given = arrays["input"]
    input_ = espdl.Tensor(given.dtype).set_shape(given.shape)
    input_.set_exponent(about["layers"][0]["input_exponent"]).set_element(given.copy())
    last = network.forward(input_)
    outcome = differing(
        {"output": last.view().astype(np.int64)}, {"output": np.array(about["device_output"])}
    )
    known = {k.removeprefix("out__"): v for k, v in arrays.items() if k.startswith("out__")}
    if outcome.status != "exact" or not known:
        return outcome
    outputs = {name: network.layers[name].output for name in known if name in network.layers}
    espdl.settle(*outputs.values())
    found = {name: tensor.view() for name, tensor in outputs.items()}
    if "concat" in known:
        found["concat"] = network.concat.output.view()
    return differing(found, {name: known[name] for name in found})


# 3.x


def file_of(about: Mapping[str, Any], arrays: Arrays) -> espdl.EspModel:
    """Return a listed model as a file says it."""
    tensors, golden = about["tensors"], about["case"]
    values = {
        name: espdl.EspValue(
            name, str(arrays[t["array"]].dtype), tuple(t["shape"]), (t["exponent"],)
        )
        for name, t in tensors.items()
        if t["array"].startswith("t__")
    }
    fixed = {
        name: initializer(name, t, arrays[t["array"]])
        for name, t in tensors.items()
        if name not in values
    }
    golden = {k.removeprefix("golden__"): v for k, v in arrays.items() if k.startswith("golden__")}
    named = {plain(name): name for name in values}
    outputs = {named[plain(k)]: v for k, v in golden.items()}
    inputs = {n: arrays[tensors[n]["array"]] for n in values if tensors[n].get("given")}
    nodes = tuple(
        espdl.EspNode(f"node{k}", n["op"], tuple(n["input"]), tuple(n["output"]), n["attributes"])
        for k, n in enumerate(about["nodes"])
    )
    return espdl.EspModel(
        "vectors",
        0,
        {},
        about["case"],
        nodes,
        fixed,
        tuple(values[n] for n in inputs),
        tuple(values[n] for n in outputs),
        values,
        *(
            {
                n: espdl.EspTensor(n, values[n].dims, a.reshape(-1), values[n].exponents)
                for n, a in g.items()
            }
            for g in (inputs, outputs)
        ),
    )


def plain(name: str) -> str:
    """Return a value's name as arrays are named: without slashes."""
    return name.strip("/").replace("/", ".")


def initializer(name: str, about: Mapping[str, Any], array: np.ndarray) -> espdl.EspTensor:
    """Return a constant; filters are listed as (h, w, i, o) and stored as the file has them."""
    exponents, layout = tuple(about["exponents"]), about["stored_layout"]
    dims = tuple(about["dims"])
    if "layout" not in about:
        return espdl.EspTensor(name, dims, array.reshape(-1), exponents, layout)
    depthwise = "depthwise" in about["layout"]
    rows = np.moveaxis(array, -1, 0)[:, None] if depthwise else np.moveaxis(array, (-1, -2), (0, 1))
    if len(dims) == 3:
        rows = rows[:, :, 0]
    made = stored_filter(name, rows, exponents, layout, depthwise)
    assert made.dims == dims and (made.data == packed(rows, layout, depthwise)).all()
    return made


def run_file(about: Mapping[str, Any], arrays: Arrays, device: str | None) -> Outcome:
    """Write a model as a file, read and run it: golden outputs, then all values between nodes."""
    chip = next(chip for text, chip in CHIPS.items() if text in about["rounding"])
    data = write_espdl(file_of(about, arrays))
    model = espdl.read(data)
    with espdl.compile_model(data, device, chip) as session:
        outcome = differing(session(model.golden_inputs), model.golden_outputs)
    between = {n: arrays[t["array"]] for n, t in about["tensors"].items() if n in model.values}
    inner = {n: a for n, a in between.items() if n not in model.golden_inputs}
    if outcome.status != "exact" or len(inner) == len(model.golden_outputs):
        return outcome
    whole = espdl.EspModel(**{**vars(model), "outputs": tuple(model.values[n] for n in inner)})
    with espdl.compile_model(whole, device, chip) as session:
        return differing(session(model.golden_inputs), inner)
