"""Train the digit classifier of the demo and write tools/examples/models/digits.onnx.

Run from the root of the repository, in an environment of its own:

    python3 -m venv build/train
    build/train/bin/pip install torch==2.13.0 numpy onnx onnxruntime scikit-learn
    build/train/bin/python tools/examples/train_digits.py

Data: the 1797 digits of 8x8 pixels that come with scikit-learn. A quarter of them, drawn
class by class with a fixed seed, is the test set: it takes no part in training and is looked at
once, by the finished file.

    image [n,1,8,8] - Conv BN Relu -+- depthwise Conv BN Relu - 1x1 Conv BN - Add - Relu - MaxPool
                                    +---------------------------------------+
        - Conv BN Relu - GlobalAveragePool - Flatten - Gemm - Softmax - probabilities [n,10]

One thread and one seed: the same machine and the same package versions give the same file.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

MODELS = Path(__file__).resolve().parent / "models"
LARGEST_PIXEL = 16.0
CLASSES = 10
WIDTH, WIDE = 32, 64
BATCH = 64
LEARNING_RATE = 4e-3
TEST_PART, SPLIT_SEED = 0.25, 0
BATCH_NORM_EPSILON = 1e-5


def load_split() -> list[np.ndarray]:
    """Training images, test images, training labels, test labels; images [n, 1, 8, 8] in 0..1."""
    pixels, labels = load_digits(return_X_y=True)
    images = (pixels / LARGEST_PIXEL).astype(np.float32).reshape(-1, 1, 8, 8)
    return train_test_split(
        images, labels, test_size=TEST_PART, random_state=SPLIT_SEED, stratify=labels
    )


class DigitNet(nn.Module):
    """Logits [n, 10] of images [n, 1, 8, 8]."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, WIDTH, 3, padding=1, bias=False)
        self.stem_bn = nn.BatchNorm2d(WIDTH, BATCH_NORM_EPSILON)
        self.depthwise = nn.Conv2d(WIDTH, WIDTH, 3, padding=1, groups=WIDTH, bias=False)
        self.depthwise_bn = nn.BatchNorm2d(WIDTH, BATCH_NORM_EPSILON)
        self.pointwise = nn.Conv2d(WIDTH, WIDTH, 1, bias=False)
        self.pointwise_bn = nn.BatchNorm2d(WIDTH, BATCH_NORM_EPSILON)
        self.wide = nn.Conv2d(WIDTH, WIDE, 3, padding=1, bias=False)
        self.wide_bn = nn.BatchNorm2d(WIDE, BATCH_NORM_EPSILON)
        self.classifier = nn.Linear(WIDE, CLASSES)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        first = self.stem_bn(self.stem(image)).relu()
        inner = self.depthwise_bn(self.depthwise(first)).relu()
        joined = (first + self.pointwise_bn(self.pointwise(inner))).relu()
        pooled = nn.functional.max_pool2d(joined, 2)
        features = self.wide_bn(self.wide(pooled)).relu().mean((2, 3))
        return self.classifier(features)


def augment(images: torch.Tensor) -> torch.Tensor:
    """Each image turned, slanted, scaled and moved by small random amounts."""
    count = len(images)

    def spread(limit: float) -> torch.Tensor:
        return (torch.rand(count) * 2 - 1) * limit

    angle, shear = spread(math.radians(12)), spread(0.15)
    width, height = 1 + spread(0.12), 1 + spread(0.12)
    matrix = torch.zeros(count, 2, 3)
    matrix[:, 0, 0] = width * angle.cos()
    matrix[:, 0, 1] = height * (shear * angle.cos() - angle.sin())
    matrix[:, 1, 0] = width * angle.sin()
    matrix[:, 1, 1] = height * (shear * angle.sin() + angle.cos())
    matrix[:, :, 2] = (torch.rand(count, 2) * 2 - 1) * 0.2
    grid = nn.functional.affine_grid(matrix, list(images.shape), align_corners=False)
    return nn.functional.grid_sample(images, grid, align_corners=False)


def train(images: np.ndarray, labels: np.ndarray, epochs: int) -> DigitNet:
    network = DigitNet()
    all_images, all_labels = torch.from_numpy(images), torch.from_numpy(labels)
    steps = epochs * (len(images) // BATCH)
    optimizer = torch.optim.AdamW(network.parameters(), LEARNING_RATE, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, steps)
    begin = time.monotonic()
    for epoch in range(1, epochs + 1):
        total, right = 0.0, 0
        for rows in torch.randperm(len(images))[: steps // epochs * BATCH].split(BATCH):
            logits = network(augment(all_images[rows]))
            loss = nn.functional.cross_entropy(logits, all_labels[rows], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item() * len(rows)
            right += int((logits.argmax(1) == all_labels[rows]).sum())
        if epoch % 10 == 0:
            seen = steps // epochs * BATCH
            print(
                f"epoch {epoch}/{epochs}  loss {total / seen:.4f}  "
                f"augmented accuracy {100 * right / seen:.2f} %  {time.monotonic() - begin:.0f} s"
            )
    return network.eval()


def batch_norm(name: str, data: str, result: str) -> onnx.NodeProto:
    values = [f"{name}_{part}" for part in ("scale", "shift", "mean", "variance")]
    return helper.make_node(
        "BatchNormalization", [data, *values], [result], name, epsilon=BATCH_NORM_EPSILON
    )


def conv(name: str, data: str, size: int, groups: int = 1) -> onnx.NodeProto:
    return helper.make_node(
        "Conv",
        [data, f"{name}_weight"],
        [f"{name}_out"],
        name,
        kernel_shape=[size, size],
        pads=[size // 2] * 4,
        group=groups,
    )


def graph_nodes() -> list[onnx.NodeProto]:
    """The nodes of `DigitNet` in order, followed by Softmax."""
    node = helper.make_node
    return [
        conv("stem", "image", 3),
        batch_norm("stem_bn", "stem_out", "stem_normal"),
        node("Relu", ["stem_normal"], ["stem_active"], "stem_relu"),
        conv("depthwise", "stem_active", 3, WIDTH),
        batch_norm("depthwise_bn", "depthwise_out", "depthwise_normal"),
        node("Relu", ["depthwise_normal"], ["depthwise_active"], "depthwise_relu"),
        conv("pointwise", "depthwise_active", 1),
        batch_norm("pointwise_bn", "pointwise_out", "pointwise_normal"),
        node("Add", ["stem_active", "pointwise_normal"], ["joined"], "join"),
        node("Relu", ["joined"], ["joined_active"], "join_relu"),
        node("MaxPool", ["joined_active"], ["pooled"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        conv("wide", "pooled", 3),
        batch_norm("wide_bn", "wide_out", "wide_normal"),
        node("Relu", ["wide_normal"], ["wide_active"], "wide_relu"),
        node("GlobalAveragePool", ["wide_active"], ["averaged"], "average"),
        node("Flatten", ["averaged"], ["features"], "flatten", axis=1),
        node(
            "Gemm",
            ["features", "classifier_weight", "classifier_bias"],
            ["logits"],
            "classifier",
            transB=1,
        ),
        node("Softmax", ["logits"], ["probabilities"], "softmax", axis=1),
    ]


def initializers(network: DigitNet) -> list[TensorProto]:
    """Trained arrays under the names that `graph_nodes` uses."""
    parts = {"weight": "scale", "bias": "shift", "running_mean": "mean", "running_var": "variance"}
    arrays = []
    for key, value in network.state_dict().items():
        layer, part = key.split(".")
        if part == "num_batches_tracked":
            continue
        name = parts[part] if layer.endswith("_bn") else part
        arrays.append(numpy_helper.from_array(value.numpy(), f"{layer}_{name}"))
    return arrays


def build_model(network: DigitNet) -> onnx.ModelProto:
    """The finished network as one ONNX file with its weights inside."""
    graph = helper.make_graph(
        graph_nodes(),
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", CLASSES])],
        initializers(network),
        doc_string="8x8 grey images of handwritten digits to the probabilities of 0 to 9.",
    )
    model = helper.make_model(
        graph,
        producer_name="clnn",
        ir_version=8,
        opset_imports=[helper.make_opsetid("", 17)],
        doc_string="Digit classifier of clnn's demo, trained by tools/examples/train_digits.py. "
        "The input is 0 (paper) to 1 (ink): (pixel - mean) * scale for pixels of 0 to 255.",
    )
    labels = ",".join(str(digit) for digit in range(CLASSES))
    metadata = {"layout": "NCHW", "mean": "0", "scale": str(1 / 255), "labels": labels}
    helper.set_model_props(model, metadata)
    onnx.checker.check_model(model, full_check=True)
    return model


def wrong_answers(path: Path, images: np.ndarray, labels: np.ndarray) -> int:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return int((session.run(None, {"image": images})[0].argmax(1) != labels).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the digit classifier of the demo.")
    parser.add_argument("--epochs", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=MODELS / "digits.onnx")
    arguments = parser.parse_args()
    if arguments.epochs < 1:
        parser.error(f"--epochs is {arguments.epochs}: there must be one at least.")
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    train_images, test_images, train_labels, test_labels = load_split()
    network = train(train_images, train_labels, arguments.epochs)
    onnx.save(build_model(network), arguments.output)
    print(f"{arguments.output}: {arguments.output.stat().st_size} bytes")
    for part, images, labels in (
        ("training", train_images, train_labels),
        ("test", test_images, test_labels),
    ):
        wrong = wrong_answers(arguments.output, images, labels)
        accuracy = 100 * (1 - wrong / len(labels))
        print(f"{part}: {wrong} of {len(labels)} wrong, accuracy {accuracy:.2f} %")


if __name__ == "__main__":
    main()
