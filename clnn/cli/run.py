"""`clnn run`: run a model on a picture or on arrays; write a picture, or print what it found."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from clnn.cli import _common
from clnn.cli import _image as image
from clnn.errors import InputNameError, SettingError, ShapeError
from clnn.records import dataclass

if TYPE_CHECKING:
    from clnn.importers.onnx.info import ModelInfo
    from clnn.runtime.run.session import Session
    from clnn.runtime.stages.session import StagedSession
    from clnn.types import Array

LATENCY_RUNS, LATENCY_SECONDS = 10, 1.0
MUCH_CLIPPED = 0.01


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand to the parser of `clnn`."""
    parser = subparsers.add_parser(
        "run",
        help="run a model on a picture or on arrays",
        description="Runs a model. A picture is fitted to the input that takes one: value ="
        " (pixel - mean) * scale / std, with pixels of 0 to 255. What the options leave out, the"
        " model's metadata says (mean, scale, std, layout, channels, labels), else scale 1/255.",
    )
    _common.add_model(parser)
    parser.add_argument("--image", metavar="[NAME=]PICTURE", help="picture for the (named) input")
    parser.add_argument("--out", metavar="PICTURE", help="write the output that is a picture")
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME=FILE.npy",
        help="data of an input, or a FILE.npz with several (default: the golden inputs of an .espdl"
        " file)",
    )
    parser.add_argument("--output-npz", metavar="FILE", help="write all outputs as arrays")
    parser.add_argument("--top", type=int, default=5, metavar="N", help="classes to print")
    parser.add_argument("--labels", metavar="FILE", help="names of the classes, one on a line")
    _add_scaling(parser)


def _add_scaling(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("pictures")
    group.add_argument("--mean", metavar="X[,X,X]", help="subtracted from pixels of 0 to 255")
    group.add_argument("--scale", metavar="X[,X,X]", help="multiplies (default 1/255)")
    group.add_argument("--std", metavar="X[,X,X]", help="divides")
    group.add_argument(
        "--preset",
        choices=tuple(image.PRESETS),
        help="unit: 0 to 1; signed: -1 to 1; imagenet: its mean and std; raw: 0 to 255",
    )
    group.add_argument("--layout", type=str.upper, choices=("NCHW", "NHWC", "CHW", "HWC"))
    group.add_argument("--channels", type=str.upper, choices=("RGB", "BGR"))
    group.add_argument("--size", type=_size, metavar="HxW", help="resize the picture to this")
    group.add_argument(
        "--fit",
        choices=("stretch", "crop"),
        default="stretch",
        help="how a picture meets a fixed size of other aspect",
    )
    group.add_argument(
        "--out-range",
        type=_range,
        metavar="LOW,HIGH",
        help="output values of black and white, or auto (default: as the input)",
    )


def _size(text: str) -> tuple[int, int]:
    height, _, width = text.lower().partition("x")
    if not (height.isdecimal() and width.isdecimal() and int(height) and int(width)):
        raise argparse.ArgumentTypeError(f"{text!r} is no size. Write HEIGHTxWIDTH: 224x224.")
    return int(height), int(width)


def _range(text: str) -> tuple[float, float] | str:
    if text == "auto":
        return text
    try:
        low, high = (float(t) for t in text.split(","))
    except ValueError:
        low = high = 0.0
    if not (np.isfinite((low, high)).all() and low < high):
        raise argparse.ArgumentTypeError(f"{text!r} is no range. Write LOW,HIGH, or auto.")
    return low, high


@dataclass(frozen=True)
class _Picture:
    """The picture to run on: which input takes it, at what size, with what scaling."""

    port: image.ImageInput
    array: Array
    size: tuple[int, int]
    scaling: image.Scaling


def run(args: argparse.Namespace) -> int:
    """Run the model, print and write what it gives; return the exit status."""
    from clnn.cli._stored import info_of
    from clnn.verification.golden import golden_of

    _common.settle(args)
    _check(args)
    info = info_of(args.model)
    picture = _load_picture(args, info)
    feeds = _common.given_inputs(args.input, [value.name for value in info.inputs])
    if picture is not None:
        if picture.port.name in feeds:
            raise InputNameError(f"input {picture.port.name!r} is given by --image and by --input.")
        feeds[picture.port.name] = picture.array
    if picture is None:
        golden = golden_of(args.model)
        feeds = (golden.golden_inputs if golden is not None else {}) | feeds
    fixed = [(name, array.shape) for name, array in feeds.items() if _is_open(info, name)]
    args.shape = [*fixed, *args.shape]
    with _common.compile_any(args) as session:
        outputs, first, times = _measure(session, feeds)
        report = _report(args, session, picture, outputs, first, times, _labels(args, info))
    if args.output_npz:
        _common.save_arrays(args.output_npz, outputs)
    _common.write_result(args, report, _text(report))
    return 0


def _check(args: argparse.Namespace) -> None:
    if args.top < 1:
        raise SettingError(f"--top is {args.top}. It must be at least 1.")
    if args.out:
        if not args.image:
            raise SettingError("--out wants a picture to start from. Add --image PICTURE.")
        image.check_target(args.out)


def _load_picture(args: argparse.Namespace, info: ModelInfo) -> _Picture | None:
    if not args.image:
        return None
    name, equals, path = args.image.partition("=")
    if not equals or Path(args.image).exists():
        name, path = "", args.image
    layout = args.layout or _metadata_layout(info)
    port = image.find_input(info.inputs, name or None, layout)
    picture = image.load_picture(path)
    height, width = args.size or (picture.height, picture.width)
    height, width = port.sizes["H"] or height, port.sizes["W"] or width
    if args.size not in (None, (height, width)):
        raise ShapeError(
            f"--size is {args.size[0]}x{args.size[1]}; the model's input {port.name!r} is fixed to"
            f" {height}x{width}. Leave --size away."
        )
    given = {k: getattr(args, k) for k in ("mean", "scale", "std", "channels")}
    scaling = image.scaling_of(info.metadata, args.preset, given)
    array = image.picture_to_array(picture, port, height, width, scaling, args.fit == "crop")
    return _Picture(port, array, picture.size, scaling)


def _metadata_layout(info: ModelInfo) -> str | None:
    layout = info.metadata.get("layout", "").upper()
    return layout if layout in ("NCHW", "NHWC", "CHW", "HWC") else None


def _is_open(info: ModelInfo, name: str) -> bool:
    dims = next((v.dims for v in info.inputs if v.name == name), ())
    return dims is None or any(isinstance(d, str) for d in dims)


def _measure(
    session: Session | StagedSession, feeds: Mapping[str, Array]
) -> tuple[dict[str, Array], float, list[float]]:
    """Return the outputs, the first run's seconds, and those of some more runs."""
    times: list[float] = []
    begin = perf_counter()
    outputs = session(feeds)
    first = perf_counter() - begin
    end = perf_counter() + LATENCY_SECONDS
    while len(times) < LATENCY_RUNS and (not times or perf_counter() < end):
        begin = perf_counter()
        session(feeds)
        times.append(perf_counter() - begin)
    return outputs, first, times


def _labels(args: argparse.Namespace, info: ModelInfo) -> list[str]:
    if args.labels:
        try:
            return Path(args.labels).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as err:
            raise SettingError(f"--labels {args.labels} cannot be read: {err}.") from err
    text = info.metadata.get("labels", "")
    parts = text.splitlines() if "\n" in text else text.split(",")
    return [part.strip() for part in parts] if text else []


def _report(
    args: argparse.Namespace,
    session: Session | StagedSession,
    picture: _Picture | None,
    outputs: Mapping[str, Array],
    first: float,
    times: Sequence[float],
    labels: Sequence[str],
) -> dict[str, Any]:
    found = {name: _output(name, array, args, labels) for name, array in outputs.items()}
    if picture is not None:
        _write_picture(args, picture, outputs, found)
    return {
        "device": session.placement.device,
        "model": args.model,
        "picture": picture
        and {
            "input": picture.port.name,
            "layout": picture.port.layout,
            "from": list(picture.size),
            "shape": list(picture.array.shape),
        },
        "latency": {"first": first, "median": statistics.median(times), "runs": len(times)},
        "outputs": list(found.values()),
    }


def _output(
    name: str, array: Array, args: argparse.Namespace, labels: Sequence[str]
) -> dict[str, Any]:
    """Return an output's figures, and its best classes where it is one vector."""
    data: dict[str, Any] = {"name": name, "shape": list(array.shape), "dtype": str(array.dtype)}
    if not array.size:
        return data
    data |= {"min": array.min(), "max": array.max(), "mean": array.mean(dtype=np.float64)}
    classes = array.reshape(-1) if array.size == max(array.shape, default=1) > 1 else None
    if classes is not None and array.dtype.kind != "b":
        data["top"] = _top(classes, args.top, labels)
    return data


def _top(values: Array, count: int, labels: Sequence[str]) -> list[dict[str, Any]]:
    if labels and len(labels) != len(values):
        _common.tell(
            f"warning: there are {len(labels)} labels for {len(values)} classes; numbers are shown."
        )
        labels = ()
    best = np.argsort(-values.astype(np.float64), kind="stable")[:count]
    return [
        {"index": int(i), "label": labels[i] if labels else "", "value": values[i]} for i in best
    ]


def _write_picture(
    args: argparse.Namespace,
    picture: _Picture,
    outputs: Mapping[str, Array],
    found: Mapping[str, dict[str, Any]],
) -> None:
    """Mark the outputs that are pictures; write the first one where --out is given."""
    layouts = {n: image.output_layout(a.shape, picture.port.layout) for n, a in outputs.items()}
    pictures = [(name, layout) for name, layout in layouts.items() if layout is not None]
    for name, layout in pictures:
        found[name]["layout"] = layout
    if not args.out:
        return
    if not pictures:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in outputs.items())
        raise ShapeError(
            f"no output is a picture (1, 3 or 4 channels, height and width): {shapes}."
            " Leave --out away, or use --output-npz."
        )
    name, layout = pictures[0]
    array = outputs[name]
    limits = args.out_range
    if limits == "auto":
        low, high = float(np.nanmin(array)), float(np.nanmax(array))
        limits = (low, high if high > low else low + 1)
    made, clipped = image.array_to_picture(array, layout, picture.scaling, limits)
    made.save(args.out)
    found[name] |= {"picture": args.out, "size": list(made.size), "clipped": clipped}
    if clipped > MUCH_CLIPPED:
        _common.tell(
            f"warning: {clipped:.0%} of the values of output {name!r} lie outside of black to white"
            " and were clipped. Set --out-range LOW,HIGH or --out-range auto."
        )


def _text(report: Mapping[str, Any]) -> str:
    latency, picture = report["latency"], report["picture"]
    lines = [f"device   {report['device']}", f"model    {report['model']}"]
    if picture:
        lines.append(
            f"picture  {picture['from'][0]}x{picture['from'][1]} -> {picture['input']}"
            f" {'x'.join(map(str, picture['shape']))} {picture['layout']}"
        )
    lines.append(
        f"latency  median {latency['median'] * 1e3:.3f} ms of {latency['runs']} runs,"
        f" first {latency['first'] * 1e3:.3f} ms"
    )
    for output in report["outputs"]:
        lines += _output_text(output)
    return "\n".join(lines)


def _output_text(output: Mapping[str, Any]) -> list[str]:
    lines = [f"output   {output['name']} {'x'.join(map(str, output['shape']))} {output['dtype']}"]
    if "min" in output:
        lines[0] += f"  min {output['min']:.6g}  max {output['max']:.6g}  mean {output['mean']:.6g}"
    if "picture" in output:
        lines.append(
            f"         written to {output['picture']} ({'x'.join(map(str, output['size']))})"
        )
    elif "layout" in output:
        lines.append("         it is a picture: --out FILE.png writes it")
    for rank, best in enumerate(output.get("top", ()), 1):
        label = f"  {best['label']}" if best["label"] else ""
        lines.append(f"  {rank:>3}. {best['value']:<12.6g} class {best['index']}{label}")
    return lines
