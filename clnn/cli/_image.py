"""Pictures in and out of a network: which input takes one, how pixels become values and back.

A value is (pixel - mean) * scale / std with pixels of 0 to 255. Layouts are the orders of a
tensor's axes: NCHW, NHWC, CHW or HWC.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from clnn.errors import MissingPackageError, SettingError
from clnn.records import dataclass

if TYPE_CHECKING:
    from clnn.importers.onnx.info import ValueInfo
    from clnn.types import Array

LAYOUTS = {4: ("NCHW", "NHWC"), 3: ("CHW", "HWC")}
MODES = {1: "L", 3: "RGB", 4: "RGBA"}
LEAST_SIDE = 2
PRESETS = {
    "unit": {"scale": "0.00392156862745098"},
    "signed": {"mean": "127.5", "scale": "0.00784313725490196"},
    "imagenet": {"mean": "123.675,116.28,103.53", "std": "58.395,57.12,57.375", "scale": "1"},
    "raw": {"scale": "1"},
}


@dataclass(frozen=True)
class Scaling:
    """How pixels become values; one number per channel, or one for all. channels: RGB or BGR."""

    mean: tuple[float, ...] = (0.0,)
    scale: tuple[float, ...] = (1 / 255,)
    std: tuple[float, ...] = (1.0,)
    channels: str = "RGB"

    def values(self, pixels: Array) -> Array:
        """Return float32 values of pixels (height, width, channels)."""
        mean, factor = self._fitted(pixels.shape[-1])
        return ((pixels.astype(np.float64) - mean) * factor).astype(np.float32)

    def pixels(self, values: Array) -> Array:
        """Return the pixels, not rounded, that `values` (height, width, channels) stand for."""
        mean, factor = self._fitted(values.shape[-1])
        return values.astype(np.float64) / factor + mean

    def _fitted(self, channels: int) -> tuple[Array, Array]:
        """Return mean and factor for that many channels; their average where counts differ."""

        def fit(values: tuple[float, ...]) -> Array:
            array = np.array(values, np.float64)
            return array if len(array) in (1, channels) else array.mean(keepdims=True)

        mean, scale, std = fit(self.mean), fit(self.scale), fit(self.std)
        return mean, scale / std


@dataclass(frozen=True)
class ImageInput:
    """An input that takes a picture; height or width None: any. dims: as the model states them."""

    name: str
    dtype: str
    layout: str
    dims: tuple[int | str, ...]
    sizes: Mapping[str, int | None] = field(compare=False)

    @property
    def channels(self) -> int:
        """Number of channels."""
        return self.sizes["C"] or 3

    def shape(self, height: int, width: int) -> tuple[int, ...]:
        """Return the shape for a picture of that size; an open batch is 1."""
        extents = {"N": self.sizes.get("N") or 1, "C": self.channels, "H": height, "W": width}
        return tuple(extents[axis] for axis in self.layout)


def scaling_of(
    metadata: Mapping[str, str], preset: str | None, given: Mapping[str, str | None]
) -> Scaling:
    """Return the scaling: what is `given`, else the preset, else the model's metadata.

    Raises SettingError for what is no list of numbers, or would divide by zero.
    """
    keys = ("mean", "scale", "std", "channels")
    own = {k: v for k, v in metadata.items() if k in keys} if preset is None else PRESETS[preset]
    texts = {**own, **{k: v for k, v in given.items() if v is not None}}
    if "std" in texts and "scale" not in texts:
        texts["scale"] = "1"
    numbers = {k: _numbers(k, texts[k]) for k in ("mean", "scale", "std") if k in texts}
    if any(0 in numbers.get(k, ()) for k in ("scale", "std")):
        raise SettingError(f"scale {texts.get('scale')} and std {texts.get('std')} must not be 0.")
    channels = texts.get("channels", "RGB").upper()
    if channels not in ("RGB", "BGR"):
        raise SettingError(f"channels is {channels!r}. Use RGB or BGR.")
    return Scaling(channels=channels, **numbers)


def _numbers(name: str, text: str) -> tuple[float, ...]:
    try:
        found = tuple(float(t) for t in text.replace(",", " ").split())
    except ValueError:
        found = ()
    if len(found) not in (1, 3, 4) or not np.isfinite(found).all():
        raise SettingError(f"{name} is {text!r}. It must be one number, or one per channel: 1,2,3.")
    return found


def find_input(inputs: Sequence[ValueInfo], name: str | None, layout: str | None) -> ImageInput:
    """Return the input that takes a picture: the one named, else the first that can.

    Raises SettingError that lists all inputs where there is none.
    """
    for value in inputs:
        if name in (None, value.name):
            found = _as_image(value, layout)
            if found is not None:
                return found
    listed = ", ".join(f"{v.name} {v.dtype or '?'} {list(v.dims or ())}" for v in inputs)
    wanted = f"input {name!r} takes no picture" if name else "no input takes a picture"
    raise SettingError(
        f"{wanted}{f' in layout {layout}' if layout else ''}: that needs 4 or 3 axes, one of which"
        f" is 1, 3 or 4 channels, of float or uint8. The inputs are: {listed}."
        " Name the layout with --layout, or pass arrays with --input."
    )


def _as_image(value: ValueInfo, layout: str | None) -> ImageInput | None:
    if value.dims is None or value.dtype not in ("float32", "float16", "uint8"):
        return None
    for order in LAYOUTS.get(len(value.dims), ()):
        if layout is not None and order.lstrip("N") != layout.lstrip("N"):
            continue
        extents = dict(zip(order, value.dims, strict=True))
        sizes = {axis: d if isinstance(d, int) else None for axis, d in extents.items()}
        if sizes["C"] in MODES or (layout is not None and sizes["C"] is None):
            return ImageInput(value.name, value.dtype, order, value.dims, sizes)
    return None


def output_layout(shape: tuple[int, ...], like: str) -> str | None:
    """Return the layout in which a tensor is one picture, None where it is none.

    `like`: the input's layout, which is tried first.
    """
    orders = LAYOUTS.get(len(shape), ()) if len(shape) == len(like) else ()
    for order in sorted(orders, key=lambda o: o != like):
        extents = dict(zip(order, shape, strict=True))
        sides = min(extents["H"], extents["W"])
        if extents["C"] in MODES and sides >= LEAST_SIDE:
            return order
    return None


def load_picture(path: str | Path) -> Any:
    """Return the picture of a file, upright. Raises SettingError, MissingPackageError."""
    pillow = pil()
    from PIL import ImageOps

    try:
        with pillow.open(path) as opened:
            opened.load()
            return ImageOps.exif_transpose(opened)
    except FileNotFoundError:
        raise SettingError(f"no picture at {path}. Check the path.") from None
    except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError) as err:
        raise SettingError(f"{path} cannot be read as a picture: {err}. Use PNG or JPEG.") from err


def pil() -> ModuleType:
    """Return PIL.Image. Raises MissingPackageError."""
    try:
        from PIL import Image
    except ImportError as err:
        raise MissingPackageError(
            f"Pillow cannot be imported: {err}. It reads and writes pictures. "
            "Run: pip install pillow"
        ) from err
    module: ModuleType = Image
    return module


def picture_to_array(
    picture: Any, port: ImageInput, height: int, width: int, scaling: Scaling, crop: bool
) -> Array:
    """Return the array for an input: resized (stretched, or cropped to fit first) and scaled."""
    from PIL import ImageOps

    picture = _in_mode(picture, MODES[port.channels])
    method = pil().Resampling.BICUBIC
    if picture.size != (width, height):
        if crop:
            picture = ImageOps.fit(picture, (width, height), method)
        else:
            picture = picture.resize((width, height), method)
    pixels = np.asarray(picture).reshape(height, width, port.channels)
    if scaling.channels == "BGR" and port.channels >= 3:
        pixels = pixels[..., [2, 1, 0, *range(3, port.channels)]]
    values = pixels if port.dtype == "uint8" else scaling.values(pixels).astype(port.dtype)
    return arranged(values, port)


def arranged(values: Array, port: ImageInput) -> Array:
    """Return (height, width, channels) values in the input's layout, repeated over its batch."""
    order = port.layout.lstrip("N")
    moved = values.transpose(["HWC".index(axis) for axis in order])
    if "N" in port.layout:
        moved = np.repeat(moved[None], port.sizes["N"] or 1, axis=0)
    return np.ascontiguousarray(moved)


def _in_mode(picture: Any, mode: str) -> Any:
    """Return the picture in 8 bits with the channels of `mode`; 16-bit grey keeps its range."""
    if picture.mode.startswith("I"):
        wide = np.asarray(picture).astype(np.float64)
        picture = pil().fromarray(np.rint(wide.clip(0, 65535) / 257).astype(np.uint8))
    return picture.convert(mode)


def array_to_picture(
    array: Array, layout: str, scaling: Scaling, limits: tuple[float, float] | None
) -> tuple[Any, float]:
    """Return the first picture of an array, and the share of values that had to be clipped.

    limits: the values of black and white; None: as the input's scaling has them.
    """
    first = array[0] if "N" in layout else array
    values = first.transpose([layout.lstrip("N").index(axis) for axis in "HWC"])
    if limits is not None:
        low, high = limits
        pixels = (values.astype(np.float64) - low) * (255 / (high - low))
    else:
        pixels = values if array.dtype.kind in "iu" else scaling.pixels(values)
    if scaling.channels == "BGR" and pixels.shape[-1] >= 3:
        pixels = pixels[..., [2, 1, 0, *range(3, pixels.shape[-1])]]
    rounded = np.rint(np.nan_to_num(pixels.astype(np.float64)))
    clipped = float(np.mean((rounded < 0) | (rounded > 255)))
    whole = rounded.clip(0, 255).astype(np.uint8)
    whole = whole[..., 0] if whole.shape[-1] == 1 else whole
    return pil().fromarray(np.ascontiguousarray(whole)), clipped


def check_target(path: str) -> None:
    """Refuse a file name whose ending is no picture format that can be written. SettingError."""
    pillow = pil()
    known = pillow.registered_extensions()
    form = known.get(Path(path).suffix.lower())
    if form not in pillow.SAVE:
        raise SettingError(
            f"{path} ends in {Path(path).suffix!r}, which is no picture format that can be written."
            " Use .png or .jpg."
        )
    if not Path(path).absolute().parent.is_dir():
        raise SettingError(f"there is no folder {Path(path).absolute().parent}. Make it first.")
