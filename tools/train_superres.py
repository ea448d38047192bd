"""Train the x2 super-resolution network of the demo and write tools/models/superres_x2.onnx.

Run from the root of the repository, in an environment of its own:

    python3 -m venv .train && .train/bin/pip install \
        torch==2.13.0 numpy onnx onnxruntime scikit-image pillow
    .train/bin/python tools/train_superres.py

Data: photographs that are inside the scikit-image wheel, nothing is downloaded. Those in
`TRAINING` are dedicated to the public domain or have no known copyright restrictions according
to their documentation there; those in `HELD_OUT` are never seen in training or used for a choice.

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
from torch import nn

MODELS = Path(__file__).resolve().parent / "models"
SCALE = 2
FEATURES = 32
BODY_CONVS = 6

TRAINING = (
    "astronaut", "brick", "camera", "coins", "grass", "gravel", "hubble_deep_field",
    "immunohistochemistry", "retina", "rocket",
)  # fmt: skip
HELD_OUT = ("chelsea", "coffee")
REDUCTIONS = (1.0, 0.8, 0.6, 0.45)  # of the photograph, before it becomes a training target

PATCH = 32  # low-resolution pixels
PATCH_STRIDE = 8
BATCH = 16
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
    """The named photograph of scikit-image as RGB, cut to even sides."""
    image = Image.fromarray(getattr(data, name)()).convert("RGB")
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
