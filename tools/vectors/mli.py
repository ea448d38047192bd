"""Vectors of embARC MLI 2.0: recorded calls, in the four modes of build.

DIR holds a folder per kernel with cases.json and an .npz per case; see run() for what is compared.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from clnn.apis import mli
from vectors import Case, Outcome
from vectors._moves import found_move

MODES = {
    "conv": {"round_mode": "convergent", "full_accu": False},
    "up": {"round_mode": "up", "full_accu": False},
    "convfull": {"round_mode": "convergent", "full_accu": True},
    "upfull": {"round_mode": "up", "full_accu": True},
}
TYPES = {
    "fx8": mli.MliElementType.MLI_EL_FX_8,
    "fx16": mli.MliElementType.MLI_EL_FX_16,
    "sa8": mli.MliElementType.MLI_EL_SA_8,
    "sa32": mli.MliElementType.MLI_EL_SA_32,
    "fp32": mli.MliElementType.MLI_EL_FP_32,
}


APART = ("mli_krn_prelu",)  # recorded with an output of its own


def cases(folder: Path) -> Iterator[Case]:
    """Yield each recorded call once for each mode of build."""
    for listing in sorted(folder.glob("*/cases.json")):
        found = json.loads(listing.read_text("utf-8"))
        for call in found["cases"]:
            for mode in MODES:
                yield Case(found["kernel"], f"{call['case']}[{mode}]", (listing.parent, call, mode))


def tensor(about: dict[str, Any], data: np.ndarray) -> mli.MliTensor:
    """Return the tensor that a record describes, over `data`."""
    params: mli.FxParams | mli.SaParams | None = None
    if about["format"].startswith("fx"):
        params = mli.FxParams(about["frac_bits"])
    elif about["format"].startswith("sa"):
        params = mli.SaParams(
            about["scale"], about["zero_point"], about["scale_frac_bits"], about["sa_dim"]
        )
    return mli.MliTensor(
        data, tuple(about["shape"]), TYPES[about["format"]], params, tuple(about["mem_stride"])
    )


class Call:
    """One recorded call in one mode."""

    def __init__(self, folder: Path, about: dict[str, Any], mode: str) -> None:
        self.about, self.mode = about, mode
        with np.load(folder / about["npz"], allow_pickle=False) as stored:
            self.arrays = {name: stored[name] for name in stored.files}
        self.cfg: dict[str, Any] = about["cfg"] or {}
        self.format = self._format()
        self.tensors = {name: self._given(name) for name in about["tensors"] if name != "out"}
        self.wanted = self._recorded("out", "conv" if mode in about["out_same_as_conv"] else mode)
        self.out = tensor(about["tensors"]["out"], self._memory())

    def _format(self) -> str:
        formats = {n: t["format"] for n, t in self.about["tensors"].items()}
        first = (
            formats.get("input") or formats.get("input1") or formats.get("inputs0") or formats["in"]
        )
        other = formats.get("weights") or formats.get("weights0") or formats.get("weights_in")
        if other is None or first == other == "fx16":
            return first
        return "sa8_sa8_sa32" if first == "sa8" else "fx16_fx8_fx8"

    def _given(self, name: str) -> mli.MliTensor:
        raw = self.arrays.get(f"{name}__raw")
        data = np.array(raw if raw is not None else self.arrays[name])
        return tensor(self.about["tensors"][name], np.atleast_1d(data))

    def _recorded(self, name: str, mode: str) -> np.ndarray:
        raw = self.arrays.get(f"{name}__{mode}__raw")
        found = raw if raw is not None else self.arrays[f"{name}__{mode}"]
        return np.ascontiguousarray(found).reshape(-1).view(np.uint8)

    def _memory(self) -> np.ndarray:
        """Return the output's memory: that of the input where the call computes in place."""
        if self.about["case"].endswith("_ipc") and self.about["kernel"] not in APART:
            return self.tensors["input"].data.reshape(-1).view(np.uint8)
        return self._fresh()

    def _fresh(self) -> np.ndarray:
        """Return the output's memory before the call: the recorded holes, other bytes elsewhere."""
        data = self.wanted.copy()
        out = tensor(self.about["tensors"]["out"], data)
        view = out.view()
        view[...] = ~view if view.dtype.kind != "f" else -1 - view
        return data

    def crc(self) -> int:
        """Return the checksum over the memory of all tensors, in the recorded order."""
        value = 0
        for name in self.about["crc_order"]:
            memory = self.out.data if name == "out" else self.tensors[name].data
            value = zlib.crc32(np.ascontiguousarray(memory).tobytes(), value)
        return value


def run(case: Case, device: str | None) -> Outcome:
    """Make the call and compare the output's memory, holes included, and the checksum."""
    folder, about, mode = case.data
    call = Call(folder, about, mode)
    with mli.using(device=device, **MODES[mode]):
        status = CALLS[case.kernel](call)
    if status != mli.MliStatus.MLI_STATUS_OK:
        return Outcome("failed", f"{status.name}: {mli.last_error()}")
    got = call.out.data.view(np.uint8)
    wrong = int((got != call.wanted).sum())
    if wrong:
        return Outcome("failed", f"{wrong} of {got.size} bytes differ")
    if call.crc() != int(about["crc"][mode], 16):
        return Outcome("failed", "the output is equal, the checksum is not")
    return Outcome("exact")


def _function(name: str) -> Any:
    return getattr(mli, name)


def _relu(call: Call) -> Any:
    cfg = mli.MliReluCfg(call.cfg["relu"])
    return _function(f"mli_krn_relu_{call.format}")(call.tensors["input"], cfg, call.out)


def _eltwise(call: Call) -> Any:
    op = call.about["case"].split("_")[3]
    one, two = call.tensors["input1"], call.tensors["input2"]
    return _function(f"mli_krn_eltwise_{op}_{call.format}")(one, two, call.out)


def _leaky(call: Call) -> Any:
    function = _function(f"mli_krn_leaky_relu_{call.format}")
    return function(call.tensors["input"], call.tensors["slope_coeff"], call.out)


def _prelu(call: Call) -> Any:
    cfg = mli.MliAxisCfg(call.cfg["axis"])
    function = _function(f"mli_krn_prelu_{call.format}")
    return function(call.tensors["input"], call.tensors["slope_coeff"], cfg, call.out)


def _unary(name: str) -> Any:
    return lambda call: _function(f"{name}_{call.format}")(call.tensors["input"], call.out)


def _convert(call: Call) -> Any:
    return _function("mli_hlp_convert_tensor")(call.tensors["input"], call.out)


def _softmax(call: Call) -> Any:
    cfg = mli.MliAxisCfg(call.cfg["axis"])
    return _function(f"mli_krn_softmax_{call.format}")(call.tensors["input"], cfg, call.out)


def _l2(call: Call) -> Any:
    cfg = mli.MliAxisCfg(call.cfg["axis"])
    function = _function(f"mli_krn_l2_normalize_{call.format}")
    return function(call.tensors["input"], call.tensors["epsilon"], cfg, call.out)


def _fields(call: Call, *names: str) -> dict[str, Any]:
    return {name: call.cfg[name] for name in names}


PLACES = (
    "stride_width",
    "stride_height",
    "padding_left",
    "padding_right",
    "padding_top",
    "padding_bottom",
)


def _mac(stem: str) -> Any:
    def make(call: Call) -> Any:
        relu = mli.MliReluCfg(call.cfg["relu"])
        cfg: Any = mli.MliFullyConnectedCfg(relu)
        if "stride_width" in call.cfg:
            cfg = mli.MliConv2dCfg(
                relu, **_fields(call, *PLACES, "dilation_width", "dilation_height")
            )
        name = f"{stem}_{call.format}"
        if stem.endswith("connected") and call.about["case"].endswith("_spec"):
            name += "_ext_bias"
        t = call.tensors
        return _function(name)(t["input"], t["weights"], t["bias"], cfg, call.out)

    return make


def _pool(stem: str) -> Any:
    def make(call: Call) -> Any:
        cfg = mli.MliPoolCfg(**_fields(call, *PLACES, "kernel_width", "kernel_height"))
        return _function(f"{stem}_{call.format}")(call.tensors["input"], cfg, call.out)

    return make


def _dense(call: Call) -> Any:
    count = call.cfg["inputs_num"]
    t = call.tensors
    lists = [[t[f"{stem}{k}"] for k in range(count)] for stem in ("inputs", "weights")]
    function = _function(f"mli_krn_rnn_dense_{call.format}")
    return function(*lists, t["bias"], mli.MliRnnDenseCfg(count), call.out)


def _cell(stem: str) -> Any:
    def make(call: Call) -> Any:
        t, cfg = call.tensors, mli.MliRnnCellCfg(**_fields(call, "direction", "results", "act"))
        given = [t[n] for n in ("input", "prev_out", "weights_in", "weights_out", "bias")]
        memory = [t["cell"]] if "cell" in t else []
        return _function(f"{stem}_{call.format}")(*given, cfg, *memory, call.out)

    return make


def _permute(call: Call) -> Any:
    cfg = mli.MliPermuteCfg(call.cfg["perm_dim"])
    return _function(f"mli_krn_permute_{call.format}")(call.tensors["in"], cfg, call.out)


def _argmax(call: Call) -> Any:
    cfg = mli.MliArgmaxCfg(**_fields(call, "axis", "topk"))
    return _function(f"mli_krn_argmax_{call.format}")(call.tensors["input"], cfg, call.out)


def _mov(call: Call) -> Any:
    x = call.tensors["input"]
    wanted = tensor(call.about["tensors"]["out"], call.wanted).view()
    fields = found_move(x.view(), wanted)
    if "dst_offset" in fields:  # other calls wrote the rest of the output
        call.out.data[...] = call.wanted
        box = tuple(slice(o, o + d) for o, d in zip(fields["dst_offset"], x.shape, strict=True))
        call.out.view()[box] = ~call.out.view()[box]
    return _function("mli_mov_tensor_sync")(x, mli.MliMovCfg(**fields), call.out)


CALLS: dict[str, Any] = {
    "mli_krn_relu": _relu,
    "mli_krn_eltwise": _eltwise,
    "mli_krn_leaky_relu": _leaky,
    "mli_krn_prelu": _prelu,
    "mli_krn_sigm": _unary("mli_krn_sigm"),
    "mli_krn_tanh": _unary("mli_krn_tanh"),
    "mli_hlp_convert_tensor": _convert,
    "mli_krn_softmax": _softmax,
    "mli_krn_l2_normalize": _l2,
    "mli_krn_fully_connected": _mac("mli_krn_fully_connected"),
    "mli_krn_conv2d": _mac("mli_krn_conv2d_hwcn"),
    "mli_krn_depthwise_conv": _mac("mli_krn_depthwise_conv2d_hwcn"),
    "mli_krn_group_conv2d": _mac("mli_krn_group_conv2d_hwcn"),
    "mli_krn_transpose_conv2d": _mac("mli_krn_transpose_conv2d_hwcn"),
    "mli_krn_permute": _permute,
    "mli_krn_argmax": _argmax,
    "mli_krn_data_movement": _mov,
    "mli_krn_rnn_dense": _dense,
    "mli_krn_lstm_cell": _cell("mli_krn_lstm_cell"),
    "mli_krn_gru_cell": _cell("mli_krn_gru_cell"),
    "mli_krn_maxpool": _pool("mli_krn_maxpool_hwc"),
    "mli_krn_avepool": _pool("mli_krn_avepool_hwc"),
}
