#!/usr/bin/env python3
"""What each target of clnn.quantize makes of a network: accuracy, layers, images per second.

    python tools/benchmarks/target_accuracy.py [--mobilenet MODEL.onnx --input INPUT.npz] [--out FILE.md]

Digits: the project's own network over its whole test set, which took no part in its training;
calibration is its training set. A second network is calibrated with variations of one input (moved,
mirrored, dimmed) and compared with the float network over others. Times are the least of several
rounds with one image each.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from int8_accuracy import variations

import clnn
from clnn.bridges.quantize import TARGETS
from clnn.bridges.report import LayerRow, Report

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "tools" / "examples" / "models" / "digits.onnx"
TEST_PART, SPLIT_SEED, LARGEST_PIXEL = 0.25, 0, 16.0  # as tools/examples/train_digits.py has them
CALIBRATION, OTHERS, ROUNDS = 16, 32, 30


BY_CHANNEL = ", per channel"
WAYS_TOLD = (
    "8-bit weights by how they are made: largest element kept, SNR (of the first depthwise layer)."
)
EVERY = [*TARGETS, *(name + BY_CHANNEL for name in ("tidl-8", "espdl-int8"))]
WAYS: dict[str, dict[str, Any]] = {
    "as they are": {"equalise": False, "correct_bias": False},
    "equalised": {"equalise": True, "correct_bias": False},
    "biases corrected": {"equalise": False},
    "both": {"equalise": True},
    "a scale for each channel": {
        "equalise": False,
        "correct_bias": False,
        "per_channel": True,
    },
    "that, biases corrected": {"equalise": False, "per_channel": True},
}


def quantized(model: Path, calibration: list[Any], target: str, *where: Any, **how: Any) -> Any:
    """Return a simulation; the target's name may end with BY_CHANNEL."""
    name = target.removesuffix(BY_CHANNEL)
    return clnn.quantize(model, calibration, name, *where, **how, per_channel=name != target)


@dataclass
class Result:
    """One network on one target. accuracy: share of right labels, None without labels."""

    report: Report
    accuracy: float | None
    rate: float


def digits() -> tuple[list[Any], list[Any], np.ndarray]:
    """Return calibration feeds, test feeds (all images in one), and the labels of these."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    pixels, labels = load_digits(return_X_y=True)
    images = (pixels / LARGEST_PIXEL).astype(np.float32).reshape(-1, 1, 8, 8)
    train, test, _, wanted = train_test_split(
        images, labels, test_size=TEST_PART, random_state=SPLIT_SEED, stratify=labels
    )
    count = len(test)
    parts = [train[k : k + count] for k in range(0, len(train) - count + 1, count)]
    return [{"image": p} for p in parts], [{"image": test}], wanted


def rate(network: Any, feed: dict[str, np.ndarray]) -> float:
    """Return images per second, one image at a time."""
    network(feed)
    least = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter()
        network(feed)
        least = min(least, time.perf_counter() - began)
    return 1 / least


def on_digits(target: str, device: str | None) -> Result:
    """Return what a target makes of the digits."""
    calibration, tests, labels = digits()
    shapes = {"image": tests[0]["image"].shape}
    with quantized(DIGITS, calibration, target, device, shapes=shapes) as network:
        (found,) = network(tests[0]).values()
        report = network.report(tests)
    one = {"image": tests[0]["image"][:1]}
    single = [{"image": c["image"][:1]} for c in calibration]
    with quantized(DIGITS, single, target, device, shapes={"image": (1, 1, 8, 8)}) as network:
        speed = rate(network, one)
    return Result(report, float((found.argmax(1) == labels).mean()), speed)


def on_other(model: Path, data: Path, target: str, device: str | None) -> Result:
    """Return what a target makes of a network without labelled data."""
    with np.load(data) as stored:
        feed = {n.removeprefix("in:"): stored[n] for n in stored.files if n.startswith("in:")}
    calibration = variations(feed, CALIBRATION, 0)
    with quantized(model, calibration, target, device) as network:
        report = network.report([feed, *variations(feed, OTHERS - 1, 1)])
        return Result(report, None, rate(network, feed))


def by_ways(model: Path, data: Path, device: str | None) -> list[str]:
    """Return the lines of a table: what each way of making weights keeps, on targets of 8-bit weights."""
    with np.load(data) as stored:
        feed = {n.removeprefix("in:"): stored[n] for n in stored.files if n.startswith("in:")}
    calibration, tests = (
        variations(feed, CALIBRATION, 0),
        [feed, *variations(feed, OTHERS - 1, 1)],
    )
    names = ["mli-sa8", "mli-fx16-fx8", "tidl-8", "espdl-int8"]
    lines = [f"| weights | {' | '.join(names)} |", f"| --- |{' --- |' * len(names)}"]
    for way, how in WAYS.items():
        cells = []
        for target in names:
            if "per_channel" in how and target.startswith("mli"):
                cells.append("")
                continue
            with clnn.quantize(model, calibration, target, device, **how) as network:
                report = network.report(tests)
            ((snr, same),) = report.outputs.values()
            second = next(row.snr for row in report.layers if row.op == "depthwise")
            cells.append(f"{100 * same:.0f} %, {snr:.1f} dB ({second:.1f})")
        lines.append(f"| {way} | {' | '.join(cells)} |")
    return lines


def kept(folder: Path | None, name: str, make: Callable[[], Result]) -> Result:
    """Return a result, from a folder where it was kept before, else made and kept there."""
    path = None if folder is None else folder / f"{name}.json"
    if path is not None and path.exists():
        stored = json.loads(path.read_text("utf-8"))
        about = stored["report"]
        layers = tuple(LayerRow(**row) for row in about["layers"])
        outputs = {n: (snr, same) for n, (snr, same) in about["outputs"].items()}
        report = Report(about["target"], about["samples"], layers, outputs)
        return Result(report, stored["accuracy"], stored["rate"])
    made = make()
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(made)), "utf-8")
    return made


def float_accuracy(device: str | None) -> tuple[float, float]:
    """Return the float network's accuracy on the digits, and its images per second."""
    _, tests, labels = digits()
    with clnn.compile_model(DIGITS, device, shapes={"image": tests[0]["image"].shape}) as session:
        (found,) = session(tests[0]).values()
    with clnn.compile_model(DIGITS, device, shapes={"image": (1, 1, 8, 8)}) as session:
        speed = rate(session, {"image": tests[0]["image"][:1]})
    return float((found.argmax(1) == labels).mean()), speed


def summary(results: dict[str, Result]) -> list[str]:
    """Return the lines of a table: a target each."""
    labelled = any(r.accuracy is not None for r in results.values())
    first = "| right |" if labelled else "|"
    lines = [
        f"| target {first} largest element kept | SNR, dB | images/s |",
        f"| --- {'| --- ' * labelled}| --- | --- | --- |",
    ]
    for target, result in results.items():
        ((snr, same),) = result.report.outputs.values()
        right = f"| {100 * result.accuracy:.2f} % " if result.accuracy is not None else ""
        lines.append(f"| {target} {right}| {100 * same:.2f} % | {snr:.1f} | {result.rate:.0f} |")
    return lines


def layer_table(results: dict[str, Result]) -> list[str]:
    """Return the lines of a table: a layer each, with SNR in dB and saturated elements by target."""
    lines = [f"| layer | op | {' | '.join(results)} |", f"| --- | --- |{' --- |' * len(results)}"]
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for target, result in results.items():
        for row in result.report.layers:
            text = "float32" if row.grid == "float32" else f"{row.snr:.1f} / {row.saturated}"
            cells.setdefault((row.name, row.op), {})[target] = text
    for (name, op), found in cells.items():
        lines.append(f"| {name} | {op} | {' | '.join(found.get(t, '') for t in results)} |")
    return lines


def section(title: str, results: dict[str, Result], more: Sequence[str] = ()) -> list[str]:
    """Return the lines of one network's part of the page."""
    count = next(iter(results.values())).report.samples
    told = f"Each layer over {count} feed{'s' * (count > 1)}: SNR in dB / elements at an end of their type."
    return [f"## {title}", "", *more, *summary(results), "", told, "", *layer_table(results), ""]


def main() -> int:
    """Run the program; return its exit status."""
    parser = argparse.ArgumentParser(description="Accuracy of every target.")
    parser.add_argument("--device", default=None)
    parser.add_argument("--mobilenet", type=Path, help="a second network, ONNX")
    parser.add_argument(
        "--input", type=Path, help="its input, an .npz with names that begin with in:"
    )
    parser.add_argument("--targets", nargs="*", default=EVERY, choices=EVERY)
    parser.add_argument(
        "--keep", type=Path, help="folder of results; those there are not made again"
    )
    parser.add_argument("--out", type=Path, default=None, help="file to write instead of printing")
    given = parser.parse_args()
    right, speed = float_accuracy(given.device)
    found = {
        target: kept(given.keep, f"digits-{target}", partial(on_digits, target, given.device))
        for target in given.targets
    }
    more = [f"In float32 {100 * right:.2f} % are right, at {speed:.0f} images per second.", ""]
    lines = section("Digits, the whole test set of 450 images", found, more)
    if given.mobilenet and given.input:
        name, files = given.mobilenet.parent.name, (given.mobilenet, given.input)
        other = {
            t: kept(given.keep, f"{name}-{t}", partial(on_other, *files, t, given.device))
            for t in given.targets
        }
        title = f"{given.mobilenet.parent.name}, {OTHERS} variations of one image"
        ways = by_ways(*files, given.device)
        lines += section(title, other, [WAYS_TOLD, "", *ways, ""])
    text = "\n".join(lines)
    print(text) if given.out is None else given.out.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
