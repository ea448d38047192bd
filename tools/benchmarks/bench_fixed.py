#!/usr/bin/env python3
"""Speed of convolution in fixed point beside float32: GMAC/s per layer, interleaved in one run.

Layers are ResNet's. Formats: float32, embARC MLI's sa8 and fx16_fx8_fx8 and fx16. Times are the
device's own, of the convolution alone, the median of all rounds.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean, median

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from clnn.arith._base import FLOAT, Arithmetic
from clnn.arith.mli import MliAffine, MliFixed
from clnn.graph.ir import Graph, Node, check
from clnn.ops.conv.spec import Conv2d
from clnn.ops.shared.window import Window
from clnn.options import Options
from clnn.runtime.doctor.selection import select_device
from clnn.runtime.run.session import Session
from clnn.types import TensorType, dtype_of

LAYERS = (  # channels in and out, kernel, stride, extent of the input
    (64, 64, 3, 1, 56),
    (128, 128, 3, 1, 28),
    (256, 256, 3, 1, 14),
    (512, 512, 3, 1, 7),
    (64, 256, 1, 1, 56),
    (256, 64, 1, 1, 56),
    (512, 128, 1, 1, 28),
    (256, 1024, 1, 1, 14),
    (2048, 512, 1, 1, 7),
    (128, 128, 3, 2, 56),
)


@dataclass(frozen=True)
class Format:
    """One format of a convolution: its arithmetic and the types of input, weights and bias."""

    arith: Arithmetic
    types: tuple[str, str, str]


def formats(oc: int) -> dict[str, Format]:
    """Return the formats of a convolution with `oc` output channels."""
    scales = {"in_scale": 24494, "in_frac": 21, "out_scale": 20291, "out_frac": 14}
    affine = MliAffine(w_scale=(17000,) * oc, w_frac=(25,) * oc, zero_in=-43, low=0, **scales)
    return {
        "float32": Format(FLOAT, ("float32",) * 3),
        "sa8": Format(affine, ("int8", "int8", "int32")),
        "fx16_fx8_fx8": Format(MliFixed(8, 4, 11), ("int16", "int8", "int8")),
        "fx16": Format(MliFixed(16, 4, 15), ("int16",) * 3),
    }


def session(layer: tuple[int, ...], form: Format, device: str) -> tuple[Session, np.ndarray]:
    """Return a session of one convolution without Winograd, and an input for it."""
    ic, oc, kernel, stride, extent = layer
    random, pad = np.random.default_rng(0), (kernel // 2,) * 2
    spec = Conv2d(Window((kernel,) * 2, (stride,) * 2, (1, 1), pad, pad), arith=form.arith)
    shapes = ((1, ic, extent, extent), (oc, ic, kernel, kernel), (oc,))
    data = [
        random.integers(-99, 99, shape).astype(t)
        for shape, t in zip(shapes, form.types, strict=True)
    ]
    types = {f"i{k}": TensorType(a.shape, dtype_of(a.dtype)) for k, a in enumerate(data)}
    types["y"] = spec.infer(list(types.values()))[0]
    node = Node("conv", spec, ("i0", "i1", "i2"), ("y",), "conv")
    graph = check(Graph((node,), types, {"i1": data[1], "i2": data[2]}, ("i0",), {"y": "y"}))
    return Session(graph, select_device(device), Options(winograd=False)), data[0]


def measure(layer: tuple[int, ...], device: str, rounds: int) -> dict[str, float]:
    """Return format -> seconds of one convolution, the median of interleaved rounds."""
    made = {name: session(layer, form, device) for name, form in formats(layer[1]).items()}
    times: dict[str, list[float]] = {name: [] for name in made}
    for number in range(rounds + 2):
        for name, (sess, x) in made.items():
            with sess.profile() as profile:
                sess({"i0": x})
            row = next(r for r in profile.rows() if r.node == "conv")
            if number > 1:
                times[name].append(row.seconds)
    for sess, _ in made.values():
        sess.close()
    return {name: median(found) for name, found in times.items()}


def main(argv: Sequence[str] | None = None) -> int:
    """Print GMAC/s per layer and format, and the geometric means of the ratios to float32."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args(argv)
    names = list(formats(1))
    print(f"{'layer':<22}" + "".join(f"{n:>14}" for n in names) + "   GMAC/s")
    found = []
    for layer in LAYERS:
        seconds = measure(layer, args.device, args.rounds)
        ic, oc, kernel, stride, extent = layer
        macs = ic * oc * kernel**2 * (extent // stride) ** 2
        rates = {name: macs / s * 1e-9 for name, s in seconds.items()}
        title = f"{ic}-{oc} k{kernel} s{stride} {extent}"
        found.append({"layer": title, **rates})
        print(f"{title:<22}" + "".join(f"{rates[n]:>14.1f}" for n in names), flush=True)
    means = {n: geometric_mean(r[n] / r["float32"] for r in found) for n in names}
    print(f"{'against float32':<22}" + "".join(f"{means[n]:>13.2f}x" for n in names))
    if args.json:
        about = {"device": select_device(args.device).title, "layers": found, "ratios": means}
        args.json.write_text(json.dumps(about, indent=1) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
