"""Two networks on real input: handwritten digits are read, a photograph gets twice its size.

    python tools/examples/demo.py [--device D] [--out DIR] [--picture FILE]

The digits and the photograph were not used in training. Prints accuracy, the gain over bicubic
enlargement, the kernels that ran, times, and how far ONNX Runtime's results are. Writes
digits.png and superres.png to DIR. Exit status: 0, 1 when results differ from ONNX Runtime's,
2 wrong use, 3 no device.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

import clnn
from clnn.cli._image import load_picture
from clnn.errors import ClnnError, MissingPackageError, NoDeviceError, SettingError
from clnn.runtime.doctor.selection import select_device
from clnn.verification.onnxruntime import OnnxRuntime

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "tools" / "examples" / "models"
TEST_PART, SPLIT_SEED, LARGEST_PIXEL = 0.25, 0, 16.0
HELD_OUT = "chelsea"
BORDER = 4  # pixels left out when the error is measured
LUMA = np.array([0.299, 0.587, 0.114])  # ITU-R BT.601
ROUNDS = 11
ZOOM = 4
LARGEST_DIFFERENCE = 1e-4
SHADES = " .:-=+*#%@"
EXIT_OK, EXIT_DIFFERENT, EXIT_USAGE, EXIT_NO_DEVICE = 0, 1, 2, 3
GREEN, RED, BLACK, WHITE = (0, 128, 0), (200, 0, 0), (0, 0, 0), (255, 255, 255)
Array = np.ndarray[Any, Any]


@dataclass
class Answer:
    """What a network gave, and how clnn compares with ONNX Runtime (None: not installed)."""

    output: Array
    session: clnn.Session
    median: float
    other_median: float | None
    difference: float | None


def run_model(path: Path, image: Array, device: int) -> Answer:
    """Run a network whose input is `image`, in turns with ONNX Runtime."""
    session = clnn.compile_model(path, device, shapes={"image": image.shape})
    feeds = {"image": image}
    output = next(iter(session(feeds).values()))
    other = onnxruntime_or_none(path)
    mine, its = in_turns(session, other, feeds)
    difference = None
    if other is not None:
        wanted = next(iter(other(feeds).values()))
        difference = float(np.abs(output - wanted).max())
    return Answer(output, session, mine, its, difference)


def onnxruntime_or_none(path: Path) -> OnnxRuntime | None:
    try:
        return OnnxRuntime(path)
    except MissingPackageError:
        return None


def in_turns(
    mine: Callable[..., Any], other: Callable[..., Any] | None, feeds: Mapping[str, Array]
) -> tuple[float, float | None]:
    """Return the median seconds of both engines, called in turns."""
    engines = [mine] if other is None else [mine, other]
    times: list[list[float]] = [[] for _ in engines]
    for _ in range(ROUNDS):
        for engine, taken in zip(engines, times, strict=True):
            begin = perf_counter()
            engine(feeds)
            taken.append(perf_counter() - begin)
    medians = [statistics.median(taken) for taken in times]
    return medians[0], medians[1] if other is not None else None


def report(answer: Answer) -> None:
    """Print kernels, times and the comparison with ONNX Runtime."""
    placement = answer.session.placement
    print(f"  {'kernel variant':<48} nodes")
    for variant, nodes in variants(placement.nodes).items():
        print(f"  {variant[:48]:<48} {', '.join(nodes)}")
    cached, built = answer.session.build_counts
    print(
        f"  {placement.launches} launches, memory {placement.arena_bytes / 1e6:.2f} MB,"
        f" {built} programs built in {placement.seconds['build']:.1f} s, {cached} from the cache"
    )
    print(f"  latency   {answer.median * 1e3:.2f} ms (median of {ROUNDS})")
    if answer.difference is None or answer.other_median is None:
        print("  ONNX Runtime is not installed: nothing to compare with")
        return
    ratio = answer.median / answer.other_median
    print(
        f"  ONNX Runtime: {answer.other_median * 1e3:.2f} ms on the CPU (ratio {ratio:.2f}),"
        f" largest difference {answer.difference:.1e}"
    )


def variants(nodes: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return kernel variant -> nodes, of the nodes that launch kernels."""
    found: dict[str, list[str]] = {}
    for node in nodes:
        if node["launches"]:
            found.setdefault(node["variant"], []).append(node["node"])
    return found


def held_out_digits() -> tuple[Array, Array]:
    """Return images [n, 1, 8, 8] in 0..1 and labels that took no part in training."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    pixels, labels = load_digits(return_X_y=True)
    images = (pixels / LARGEST_PIXEL).astype(np.float32).reshape(-1, 1, 8, 8)
    _, images, _, labels = train_test_split(
        images, labels, test_size=TEST_PART, random_state=SPLIT_SEED, stratify=labels
    )
    return np.ascontiguousarray(images), labels


def digits(models: Path, device: int, out: Path) -> Answer:
    """Read the held-out digits; print accuracy and some of them, draw all of them."""
    images, labels = held_out_digits()
    answer = run_model(models / "digits.onnx", images, device)
    found = answer.output.argmax(1)
    wrong = np.flatnonzero(found != labels)
    right = 100 * (1 - len(wrong) / len(labels))
    print(f"\nDigits: {len(labels)} held-out images, {len(wrong)} wrong, accuracy {right:.2f} %")
    shown = [*np.flatnonzero(found == labels)[:6], *wrong[:4]]
    print(text_pictures(images[shown, 0], found[shown], labels[shown]))
    target = out / "digits.png"
    draw_digits(images[:, 0], found, labels).save(target)
    report(answer)
    print(f"  picture   {target}")
    return answer


def text_pictures(images: Array, found: Array, labels: Array) -> str:
    """Return images as text beside each other, each above the answer."""
    shades = (images * (len(SHADES) - 1)).round().astype(int)
    rows = [
        "  " + "   ".join("".join(SHADES[v] for v in image[y]) for image in shades)
        for y in range(images.shape[1])
    ]
    answers = (f"{f}" if f == w else f"{f}, is {w}" for f, w in zip(found, labels, strict=True))
    return "\n".join([*rows, "  " + "   ".join(f"{a:<8}" for a in answers)])


def draw_digits(images: Array, found: Array, labels: Array) -> Image.Image:
    """Return a sheet of all digits, enlarged, with the answers: right in green, wrong in red."""
    columns, side, cell = 25, 24, 40
    rows = -(-len(images) // columns)
    sheet = Image.new("RGB", (columns * cell, rows * cell), WHITE)
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(16)
    for number, (image, digit, label) in enumerate(zip(images, found, labels, strict=True)):
        x, y = number % columns * cell, number // columns * cell
        grey = Image.fromarray((255 - 255 * image).astype(np.uint8))
        sheet.paste(grey.resize((side, side), Image.Resampling.NEAREST), (x + 2, y + 8))
        colour = GREEN if digit == label else RED
        pen.text((x + side + 4, y + 10), str(digit), fill=colour, font=font)
        if digit != label:
            pen.rectangle((x, y, x + cell - 2, y + cell - 2), outline=RED)
    return sheet


def photograph(path: str | None) -> Image.Image:
    """Return the picture of a file, or the held-out photograph, with even sides."""
    if path is None:
        from skimage import data

        image = Image.fromarray(getattr(data, HELD_OUT)())
    else:
        image = load_picture(path)
    image = image.convert("RGB")
    if min(image.size) < 4 * BORDER:
        raise SettingError(f"{path} has {image.width}x{image.height} pixels: it is too small.")
    return image.crop((0, 0, image.width // 2 * 2, image.height // 2 * 2))


def superres(models: Path, device: int, out: Path, picture: str | None) -> Answer:
    """Enlarge a reduced photograph; print the gain over bicubic, draw all beside each other."""
    original = photograph(picture)
    low = original.resize((original.width // 2, original.height // 2), Image.Resampling.BICUBIC)
    planes = np.ascontiguousarray(np.asarray(low, np.float32).transpose(2, 0, 1)[None] / 255)
    answer = run_model(models / "superres_x2.onnx", planes, device)
    pixels = np.rint(answer.output[0].transpose(1, 2, 0).clip(0, 1) * 255).astype(np.uint8)
    made = Image.fromarray(pixels)
    bicubic = low.resize(original.size, Image.Resampling.BICUBIC)
    print(f"\nSuper-resolution: {low.width}x{low.height} -> {made.width}x{made.height} pixels")
    for name, image in (("bicubic", bicubic), ("network", made)):
        rgb, luma = psnr(image, original)
        print(f"  {name}   PSNR {rgb:.2f} dB (luma {luma:.2f} dB)")
    panels = {
        "input (nearest)": low.resize(original.size, Image.Resampling.NEAREST),
        "bicubic": bicubic,
        "clnn": made,
        "original": original,
    }
    target = out / "superres.png"
    draw_panels(panels).save(target)
    report(answer)
    print(f"  picture   {target}")
    return answer


def psnr(image: Image.Image, original: Image.Image) -> tuple[float, float]:
    """Return PSNR in dB over RGB and over luma, without the outer pixels."""
    error = np.asarray(image, np.float64) - np.asarray(original, np.float64)
    inner = error[BORDER:-BORDER, BORDER:-BORDER]
    with np.errstate(divide="ignore"):
        values = [20 * np.log10(255 / np.sqrt(np.mean(e**2))) for e in (inner, inner @ LUMA)]
    return values[0], values[1]


def draw_panels(panels: Mapping[str, Image.Image]) -> Image.Image:
    """Return the pictures beside each other with labels, and a detail of each, enlarged."""
    width, height = panels["original"].size
    head, detail = 22, detail_box(panels["bicubic"], panels["original"])
    sheet = Image.new("RGB", (len(panels) * (width + 4), head + 2 * (height + 4)), WHITE)
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(16)
    for number, (label, image) in enumerate(panels.items()):
        x = number * (width + 4)
        pen.text((x + 4, 2), label, fill=BLACK, font=font)
        sheet.paste(image, (x, head))
        large = image.crop(detail).resize((width, height), Image.Resampling.NEAREST)
        sheet.paste(large, (x, head + height + 4))
    return sheet


def detail_box(bicubic: Image.Image, original: Image.Image) -> tuple[int, int, int, int]:
    """Return the quarter of width and height in which bicubic enlargement lacks most."""
    lack = np.abs(np.asarray(original, np.float32) - np.asarray(bicubic, np.float32)).sum(2)
    height, width = lack.shape
    tall, wide = height // ZOOM, width // ZOOM
    places = [
        (y, x)
        for y in range(0, height - tall + 1, max(tall // 4, 1))
        for x in range(0, width - wide + 1, max(wide // 4, 1))
    ]
    top, left = max(places, key=lambda p: float(lack[p[0] : p[0] + tall, p[1] : p[1] + wide].sum()))
    return left, top, left + wide, top + tall


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Two networks on real input.")
    parser.add_argument("--device", default=None, help="as in `clnn devices`")
    parser.add_argument("--out", type=Path, default=ROOT / "out", metavar="DIR")
    parser.add_argument("--picture", metavar="FILE", help="a photograph of your own to enlarge")
    parser.add_argument(
        "--models", type=Path, default=MODELS, metavar="DIR", help=argparse.SUPPRESS
    )
    return parser.parse_args()


def main() -> int:
    args = arguments()
    try:
        args.out.mkdir(parents=True, exist_ok=True)
        begin = perf_counter()
        info = select_device(args.device)
        print(f"Device: {info.title} (driver {info.driver_version})")
        read = digits(args.models, info.index, args.out)
        enlarged = superres(args.models, info.index, args.out, args.picture)
    except (ClnnError, OSError) as err:
        print(f"{type(err).__name__}: {err}", file=sys.stderr)
        return EXIT_NO_DEVICE if isinstance(err, NoDeviceError) else EXIT_USAGE
    print(f"\n{perf_counter() - begin:.0f} s in all")
    differences = [a.difference for a in (read, enlarged) if a.difference is not None]
    if any(not d <= LARGEST_DIFFERENCE for d in differences):
        print(f"FAILED: results differ from ONNX Runtime's by more than {LARGEST_DIFFERENCE}")
        return EXIT_DIFFERENT
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
