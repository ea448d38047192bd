#!/usr/bin/env python3
"""What `clnn quantize` costs networks in accuracy by method and options, beside onnxruntime's quantiser.

    python tools/benchmarks/quantised_accuracy.py [FOLDER...] [--engine clnn|onnxruntime] [--count N]

The example networks are measured by what they are for: digits by the share of held-out ones that are
right, super-resolution by PSNR in dB of a held-out photograph. FOLDER holds model.onnx and expected.npz,
of which one input is varied (moved, mirrored, dimmed): signal to noise in dB against float32, and the share of
inputs whose largest element stays where it was. Calibration takes other samples than the measurement.
Weights have a scale for each output channel, then one; "rounded": without equalisation and correction of biases.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools" / "benchmarks"), str(ROOT / "tools" / "examples")]

import numpy as np
from int8_accuracy import variations

import clnn
from clnn.cli.main import main as command
from clnn.graph.histograms import METHODS
from clnn.verification.onnxruntime import OnnxRuntime

Feed = dict[str, np.ndarray]
Run = Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]
Score = Callable[[Run], str]
PEER_METHODS = ("MinMax", "Percentile", "Entropy")
SAMPLES = 16
# What `clnn quantize` is told besides: nothing, or what it is to leave out.
OPTIONS = {
    "": (),
    "rounded": ("--no-equalise", "--no-bias-correction"),
    "corrected": ("--no-equalise",),
    "equalised": ("--equalise", "--no-bias-correction"),
}


@dataclass(frozen=True)
class Subject:
    """A network, samples to calibrate with, and what says how good a run of it is."""

    name: str
    model: Path
    samples: Sequence[Feed]
    score: Score


def digits() -> Subject:
    """Return the network of digits; the share of held-out ones that are right."""
    import demo

    images, labels = demo.held_out_digits()
    kept = images[SAMPLES:]

    def score(run: Run) -> str:
        found = [int(run({"image": image[None]})["probabilities"].argmax()) for image in kept]
        return f"{100 * np.mean(np.array(found) == labels[SAMPLES:]):.1f} % right"

    samples = [{"image": image[None]} for image in images[:SAMPLES]]
    return Subject("digits", demo.MODELS / "digits.onnx", samples, score)


def super_resolution(size: int = 96) -> Subject:
    """Return the network that doubles pictures; PSNR of a part of a held-out photograph."""
    import demo
    from PIL import Image
    from skimage import data

    def low_of(image: Image.Image) -> np.ndarray:
        half = image.resize((image.width // 2, image.height // 2), Image.Resampling.BICUBIC)
        planes = np.asarray(half, np.float32).transpose(2, 0, 1)[None] / 255
        return np.ascontiguousarray(planes)

    def part(image: Image.Image, k: int) -> Image.Image:
        left, top = 31 * k % (image.width - 2 * size), 17 * k % (image.height - 2 * size)
        return image.crop((left, top, left + 2 * size, top + 2 * size))

    held_out = [part(demo.photograph(None), k) for k in (1, 4, 7)]
    others = Image.fromarray(data.astronaut()).convert("RGB")

    def score(run: Run) -> str:
        found = []
        for image in held_out:
            made = run({"image": low_of(image)})["upscaled"][0].transpose(1, 2, 0)
            pixels = Image.fromarray(np.rint(made.clip(0, 1) * 255).astype(np.uint8))
            found.append(demo.psnr(pixels, image)[0])
        return f"{np.mean(found):.2f} dB"

    samples = [{"image": low_of(part(others, k))} for k in range(SAMPLES)]
    return Subject("super-resolution", demo.MODELS / "superres_x2.onnx", samples, score)


def recorded(folder: Path, count: int) -> Subject:
    """Return a network of a folder; its agreement with float32 on variations of its input."""
    with np.load(folder / "expected.npz", allow_pickle=False) as stored:
        feed = {k[3:]: stored[k] for k in stored.files if k.startswith("in:")}
    plain = OnnxRuntime(folder / "model.onnx")
    feeds = [feed, *variations(feed, count - 1, seed=2)]
    wanted = [plain(f) for f in feeds]

    def score(run: Run) -> str:
        signal = noise = same = 0.0
        for given, right in zip(feeds, wanted, strict=True):
            got = run(given)
            for name, array in right.items():
                signal += float((array.astype(np.float64) ** 2).sum())
                noise += float(((got[name] - array.astype(np.float64)) ** 2).sum())
                same += float(got[name].argmax() == array.argmax()) / len(right)
        ratio = 10 * np.log10(signal / max(noise, 1e-30 * signal))
        return f"{ratio:.1f} dB, {same:.0f} of {len(feeds)}"

    samples = variations(feed, SAMPLES, seed=1)
    return Subject(folder.name, folder / "model.onnx", samples, score)


@contextlib.contextmanager
def opened(model: Path, feed: Mapping[str, np.ndarray], engine: str) -> Iterator[Run]:
    """Yield a run of a model on an engine, at the shapes of a feed."""
    if engine == "onnxruntime":
        yield OnnxRuntime(model)
        return
    with clnn.compile_model(model, shapes={n: a.shape for n, a in feed.items()}) as session:
        yield session


def quantised(subject: Subject, method: str, work: Path, *more: str) -> Path:
    """Return the file that `clnn quantize` makes with these options."""
    made, folder = work / f"{subject.name}.onnx", work / f"{subject.name}-samples"
    folder.mkdir(exist_ok=True)
    for number, sample in enumerate(subject.samples):
        np.savez(folder / f"{number}.npz", **sample)
    shapes = [f"{n}:{','.join(map(str, a.shape))}" for n, a in subject.samples[0].items()]
    words = ["quantize", str(subject.model), "--samples", str(folder), "--method", method]
    words += ["--out", str(made), *(w for s in shapes for w in ("--shape", s)), *more]
    with contextlib.redirect_stdout(io.StringIO()):
        if command(words):
            raise SystemExit(f"clnn {' '.join(words)} failed")
    return made


def by_peer(subject: Subject, method: str, work: Path, per_channel: bool) -> Path:
    """Return the file that onnxruntime's quantiser makes, with the same types."""
    from onnxruntime import quantization as peer

    class Reader(peer.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = iter(subject.samples)

        def get_next(self) -> Any:
            return next(self.left, None)

    made = work / f"{subject.name}-peer-{method}.onnx"
    logging.disable(logging.WARNING)
    with contextlib.redirect_stdout(io.StringIO()):
        peer.quantize_static(
            str(subject.model),
            str(made),
            Reader(),
            quant_format=peer.QuantFormat.QDQ,
            activation_type=peer.QuantType.QUInt8,
            weight_type=peer.QuantType.QInt8,
            per_channel=per_channel,
            calibrate_method=getattr(peer.CalibrationMethod, method),
        )
    return made


def ways(subject: Subject, work: Path) -> Iterator[tuple[str, Callable[[], Path]]]:
    """Yield (what it is, what makes its file) of float32 and of every way to quantise."""
    yield "float32", lambda: subject.model
    for per_channel, methods in ((True, METHODS), (False, METHODS[:2])):
        scales = "per channel" if per_channel else "per tensor"
        words = () if per_channel else ("--per-tensor",)
        for method in methods:
            for title, more in OPTIONS.items():
                if method == methods[0] or title in ("", "rounded"):
                    name = " ".join(filter(None, (scales, "clnn", method, title)))
                    yield name, partial(quantised, subject, method, work, *words, *more)
        for method in PEER_METHODS:
            make = partial(by_peer, subject, method, work, per_channel)
            yield f"{scales} onnxruntime {method}", make


def rows(subject: Subject, engine: str, work: Path) -> Iterator[tuple[str, str]]:
    """Yield (how, score) of float32 and of every way to quantise."""
    for name, make in ways(subject, work):
        try:
            with opened(make(), subject.samples[0], engine) as run:
                yield name, subject.score(run)
        except Exception as err:  # what one quantiser makes must not hide the others
            yield name, f"failed: {type(err).__name__}: {str(err).splitlines()[0][:80]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER")
    parser.add_argument("--engine", choices=("clnn", "onnxruntime"), default="clnn")
    parser.add_argument("--count", type=int, default=16, help="variations that are measured")
    args = parser.parse_args()
    subjects = [digits(), super_resolution()]
    subjects += [recorded(folder, args.count) for folder in args.folders]
    with tempfile.TemporaryDirectory(prefix="quantised-") as work:
        for subject in subjects:
            for name, score in rows(subject, args.engine, Path(work)):
                print(f"| {subject.name} | {name} | {score} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
