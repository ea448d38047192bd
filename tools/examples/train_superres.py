"""Train the x2 super-resolution network of the demo and write tools/examples/models/superres_x2.onnx.

Run from the root of the repository, in an environment of its own:

    python3 -m venv build/train
    build/train/bin/pip install torch==2.13.0 onnx onnxruntime scikit-image scikit-learn pillow
    build/train/bin/python tools/examples/train_superres.py

Data: photographs that are inside the scikit-image wheel, nothing is downloaded. Those in
`TRAINING` are dedicated to the public domain or have no known copyright restrictions according
to their documentation there. Those in `CHOICE`, two of them from the scikit-learn wheel, take no
part in training; they serve to choose the size of the network. Those in `HELD_OUT` take part in
neither and are looked at once, by the finished file.

Task: the low-resolution image is Pillow's antialiased BICUBIC reduction by two of the original,
rounded to bytes. The network adds what a bicubic enlargement lacks:

    image [n,3,h,w] -+- Resize cubic x2 ------------------------------------ Add - Clip - upscaled
                     +- Conv PRelu -+- (Conv PRelu) x 6 - Add - Conv - DepthToSpace -+
                                    +---------------------+

One thread and one seed: the same machine and the same package versions give the same file.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from skimage import data
from sklearn.datasets import load_sample_image
from torch import nn

MODELS = Path(__file__).resolve().parent / "models"
SCALE = 2
FEATURES = 32
BODY_CONVS = 6

TRAINING = (
    "astronaut",
    "brick",
    "camera",
    "coins",
    "grass",
    "gravel",
    "hubble_deep_field",
    "immunohistochemistry",
    "retina",
    "rocket",
)
CHOICE = ("stereo_motorcycle", "china", "flower")
HELD_OUT = ("chelsea", "coffee")
REDUCTIONS = (1.0, 0.8, 0.6, 0.45, 0.35)  # of the photograph, before it becomes a training target

PATCH = 24  # low-resolution pixels
PATCH_STRIDE = 8
BATCH = 28
LEARNING_RATE = 2e-3
BORDER = 4  # pixels left out when the error is measured
LUMA = np.array([0.299, 0.587, 0.114])  # ITU-R BT.601


@dataclass(frozen=True)
class Sample:
    """One training picture: float32 arrays [3, height, width] in 0..1."""

    low: np.ndarray
    enlarged: np.ndarray  # bicubic enlargement of `low`, not rounded
    target: np.ndarray


def photograph(name: str) -> Image.Image:
    """The named photograph as RGB, cut to even sides; of a stereo pair, the left one."""
    if name in ("china", "flower"):
        pixels = load_sample_image(f"{name}.jpg")
    else:
        pixels = getattr(data, name)()
    image = Image.fromarray(pixels[0] if isinstance(pixels, tuple) else pixels).convert("RGB")
    return image.crop((0, 0, image.width // SCALE * SCALE, image.height // SCALE * SCALE))


def reduce_image(image: Image.Image) -> Image.Image:
    size = (image.width // SCALE, image.height // SCALE)
    return image.resize(size, Image.Resampling.BICUBIC)


def to_planes(image: Image.Image) -> np.ndarray:
    """RGB image as float32 [3, height, width] in 0..1."""
    return np.asarray(image, np.float32).transpose(2, 0, 1) / 255


def to_bytes(planes: np.ndarray) -> np.ndarray:
    """Float [3, height, width] in 0..1 as uint8 [height, width, 3]."""
    return np.rint(planes.transpose(1, 2, 0).clip(0, 1) * 255).astype(np.uint8)


def enlarge_planes(low: np.ndarray) -> np.ndarray:
    """Bicubic enlargement in float32: what the graph's Resize node computes."""
    size = (low.shape[2] * SCALE, low.shape[1] * SCALE)
    planes = [Image.fromarray(plane).resize(size, Image.Resampling.BICUBIC) for plane in low]
    return np.stack([np.asarray(plane, np.float32) for plane in planes])


def training_sample(image: Image.Image, reduction: float) -> Sample:
    width, height = (round(side * reduction / SCALE) * SCALE for side in image.size)
    target = image.resize((width, height), Image.Resampling.LANCZOS)
    low = to_planes(reduce_image(target))
    return Sample(low, enlarge_planes(low), to_planes(target))


class Patches:
    """Random training patches; places rich in detail are drawn more often."""

    def __init__(self, samples: list[Sample], rng: np.random.Generator) -> None:
        self.samples = samples
        self.rng = rng
        self.places: list[tuple[int, int, int]] = []
        detail = []
        for index, sample in enumerate(samples):
            lack = np.abs(sample.target - sample.enlarged).mean(0)
            for y in range(0, sample.low.shape[1] - PATCH + 1, PATCH_STRIDE):
                for x in range(0, sample.low.shape[2] - PATCH + 1, PATCH_STRIDE):
                    self.places.append((index, y, x))
                    detail.append(lack[2 * y : 2 * (y + PATCH), 2 * x : 2 * (x + PATCH)].mean())
        weight = np.sqrt(np.array(detail) + 1e-4)
        self.chance = weight / weight.sum()

    def batch(self) -> list[torch.Tensor]:
        """Low, enlarged and target patches of one step, [BATCH, 3, side, side] each."""
        drawn = self.rng.choice(len(self.places), BATCH, p=self.chance)
        rows = [self._augmented(*self.places[place]) for place in drawn]
        return [
            torch.from_numpy(np.stack(column)).contiguous(memory_format=torch.channels_last)
            for column in zip(*rows, strict=True)
        ]

    def _augmented(self, index: int, y: int, x: int) -> list[np.ndarray]:
        """The patch turned, mirrored and recoloured; all three commute with the enlargement."""
        sample = self.samples[index]
        turns, mirror = self.rng.integers(4), self.rng.integers(2)
        order = self.rng.permutation(3) if self.rng.random() < 0.5 else np.arange(3)
        gain = self.rng.uniform(0.6, 1.0, (3, 1, 1)).astype(np.float32)
        patches = []
        for planes, factor in ((sample.low, 1), (sample.enlarged, SCALE), (sample.target, SCALE)):
            top, left, side = y * factor, x * factor, PATCH * factor
            patch = np.rot90(planes[order, top : top + side, left : left + side], turns, (1, 2))
            patches.append((patch[:, :, ::-1] if mirror else patch) * gain)
        return patches


class Detail(nn.Module):
    """Low-resolution image -> detail to be added to its bicubic enlargement."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Conv2d(3, FEATURES, 3, padding=1)
        self.head_slope = nn.PReLU(FEATURES, 0.1)
        self.body = nn.ModuleList(
            nn.Conv2d(FEATURES, FEATURES, 3, padding=1) for _ in range(BODY_CONVS)
        )
        self.body_slopes = nn.ModuleList(nn.PReLU(FEATURES, 0.1) for _ in range(BODY_CONVS))
        self.tail = nn.Conv2d(FEATURES, 3 * SCALE * SCALE, 3, padding=1)
        self.tail.weight.data *= 0.1

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        first = self.head_slope(self.head(image))
        features = first
        for conv, slope in zip(self.body, self.body_slopes, strict=True):
            features = slope(conv(features))
        return nn.functional.pixel_shuffle(self.tail(features + first), SCALE)


def train(patches: Patches, steps: int) -> Detail:
    network = Detail().to(memory_format=torch.channels_last)
    averaged = torch.optim.swa_utils.AveragedModel(
        network, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.998)
    )
    optimizer = torch.optim.Adam(network.parameters(), LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, steps, pct_start=0.05)
    begin, total = time.monotonic(), 0.0
    for step in range(1, steps + 1):
        low, enlarged, target = patches.batch()
        loss = (enlarged + network(low) - target).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        averaged.update_parameters(network)
        total += loss.item()
        if step % 250 == 0:
            rate = schedule.get_last_lr()[0]
            seconds = time.monotonic() - begin
            print(f"step {step}/{steps}  L1 {total / 250:.5f}  rate {rate:.1e}  {seconds:.0f} s")
            total = 0.0
    return averaged.module


def graph_nodes() -> list[onnx.NodeProto]:
    """The nodes of the whole network: detail, enlargement and their sum."""
    node = helper.make_node
    nodes = [conv("head", "image"), prelu("head", "first")]
    features = "first"
    for index in range(BODY_CONVS):
        name = f"body_{index}"
        nodes += [conv(name, features), prelu(name, f"features_{index}")]
        features = f"features_{index}"
    shuffle = {"blocksize": SCALE, "mode": "CRD"}
    cubic = {
        "mode": "cubic",
        "cubic_coeff_a": -0.5,
        "coordinate_transformation_mode": "half_pixel",
        "exclude_outside": 1,
    }
    return [
        *nodes,
        node("Add", [features, "first"], ["joined"], "join"),
        conv("tail", "joined"),
        node("DepthToSpace", ["tail_out"], ["detail"], "shuffle", **shuffle),
        node("Resize", ["image", "", "resize_scales"], ["enlarged"], "enlarge", **cubic),
        node("Add", ["enlarged", "detail"], ["sum"], "add_detail"),
        node("Clip", ["sum", "lowest", "highest"], ["upscaled"], "clip"),
    ]


def conv(name: str, source: str) -> onnx.NodeProto:
    return helper.make_node(
        "Conv",
        [source, f"{name}_weight", f"{name}_bias"],
        [f"{name}_out"],
        f"{name}_conv",
        kernel_shape=[3, 3],
        pads=[1, 1, 1, 1],
    )


def prelu(name: str, result: str) -> onnx.NodeProto:
    return helper.make_node("PRelu", [f"{name}_out", f"{name}_slope"], [result], f"{name}_prelu")


def initializers(network: Detail) -> list[TensorProto]:
    """Trained arrays and constants under the names that `graph_nodes` uses."""
    convs = {"head": network.head, "tail": network.tail}
    slopes = {"head": network.head_slope}
    for index in range(BODY_CONVS):
        convs[f"body_{index}"] = network.body[index]
        slopes[f"body_{index}"] = network.body_slopes[index]
    arrays = {
        "resize_scales": np.array([1, 1, SCALE, SCALE], np.float32),
        "lowest": np.array(0, np.float32),
        "highest": np.array(1, np.float32),
    }
    for name, layer in convs.items():
        arrays[f"{name}_weight"] = layer.weight.detach().contiguous().numpy()
        arrays[f"{name}_bias"] = layer.bias.detach().numpy()
    for name, layer in slopes.items():
        arrays[f"{name}_slope"] = layer.weight.detach().numpy().reshape(-1, 1, 1)
    return [numpy_helper.from_array(array, name) for name, array in arrays.items()]


def build_model(network: Detail) -> onnx.ModelProto:
    """The finished network as one ONNX file with its weights inside."""
    tall, wide = f"{SCALE}*height", f"{SCALE}*width"
    shape_in, shape_out = ["batch", 3, "height", "width"], ["batch", 3, tall, wide]
    graph = helper.make_graph(
        graph_nodes(),
        "superres_x2",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, shape_in)],
        [helper.make_tensor_value_info("upscaled", TensorProto.FLOAT, shape_out)],
        initializers(network),
        doc_string="RGB photograph to the same photograph with twice the height and width.",
    )
    model = helper.make_model(
        graph,
        producer_name="clnn",
        ir_version=8,
        opset_imports=[helper.make_opsetid("", 17)],
        doc_string="Super-resolution network of clnn's demo, trained by tools/examples/train_superres.py. "
        "The input is (pixel - mean) * scale with RGB pixels of 0 to 255.",
    )
    metadata = {"layout": "NCHW", "channels": "RGB", "mean": "0", "scale": str(1 / 255)}
    helper.set_model_props(model, metadata)
    onnx.checker.check_model(model, full_check=True)
    return model


def psnr(image: np.ndarray, original: np.ndarray) -> tuple[float, float]:
    """PSNR in dB over RGB and over luma of byte images, without the outer `BORDER` pixels."""
    inner = slice(BORDER, -BORDER)
    error = (image.astype(np.float64) - original)[inner, inner]
    return tuple(20 * np.log10(255 / np.sqrt(np.mean(e**2))) for e in (error, error @ LUMA))


def report(path: Path) -> None:
    """Print what the written file and Pillow's bicubic enlargement reach on each photograph."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    print("PSNR in dB             RGB bicubic  network   gain   luma bicubic  network   gain")
    parts = {"training": TRAINING, "choice": CHOICE, "held out": HELD_OUT}
    for part, name in ((part, name) for part, names in parts.items() for name in names):
        original = photograph(name)
        low = reduce_image(original)
        upscaled = session.run(None, {"image": to_planes(low)[None]})[0][0]
        enlarged = np.asarray(low.resize(original.size, Image.Resampling.BICUBIC))
        pixels = np.asarray(original)
        row = f"{name:24s}"
        for before, after in zip(
            psnr(enlarged, pixels), psnr(to_bytes(upscaled), pixels), strict=True
        ):
            row += f"{before:10.2f} {after:8.2f} {after - before:+7.2f}"
        print(f"{row}  {part}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the super-resolution network of the demo.")
    parser.add_argument("--steps", type=int, default=7000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=MODELS / "superres_x2.onnx")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    if arguments.steps < 100:
        parser.error(f"--steps is {arguments.steps}: the rise of the learning rate needs 100.")
    samples = [training_sample(photograph(name), r) for name in TRAINING for r in REDUCTIONS]
    patches = Patches(samples, np.random.default_rng(arguments.seed))
    print(f"{len(samples)} pictures, {len(patches.places)} patches", flush=True)
    onnx.save(build_model(train(patches, arguments.steps)), arguments.output)
    print(f"{arguments.output}: {arguments.output.stat().st_size} bytes")
    report(arguments.output)


if __name__ == "__main__":
    main()
