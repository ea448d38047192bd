"""The trained files in tools/examples/models are what tools/examples/models/README.md says of them."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from common import ROOT
from PIL import Image
from skimage import data
from sklearn.datasets import load_digits, load_sample_image
from sklearn.model_selection import train_test_split

MODELS = ROOT / "tools" / "examples" / "models"
README = (MODELS / "README.md").read_text(encoding="utf-8")
CHOICE = ("stereo_motorcycle", "china", "flower")
HELD_OUT = ("chelsea", "coffee")
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
BORDER = 4
LUMA = np.array([0.299, 0.587, 0.114])

OPS = {
    "digits": {
        "Conv": 4,
        "BatchNormalization": 4,
        "Relu": 4,
        "Add": 1,
        "MaxPool": 1,
        "GlobalAveragePool": 1,
        "Flatten": 1,
        "Gemm": 1,
        "Softmax": 1,
    },
    "superres_x2": {"Conv": 8, "PRelu": 7, "Add": 2, "DepthToSpace": 1, "Resize": 1, "Clip": 1},
}
SIGNATURES = {
    "digits": {"image": ("batch", 1, 8, 8), "probabilities": ("batch", 10)},
    "superres_x2": {
        "image": ("batch", 3, "height", "width"),
        "upscaled": ("batch", 3, "2*height", "2*width"),
    },
}
METADATA = {
    "digits": {
        "layout": "NCHW",
        "mean": "0",
        "scale": str(1 / 255),
        "labels": "0,1,2,3,4,5,6,7,8,9",
    },
    "superres_x2": {
        "layout": "NCHW",
        "mean": "0",
        "scale": str(1 / 255),
        "channels": "RGB",
    },
}
LARGEST_FILE = {"digits": 100_000, "superres_x2": 300 * 1024}

each_model = pytest.mark.parametrize("name", sorted(OPS))


def model_path(name: str) -> Path:
    return MODELS / f"{name}.onnx"


def run_model(model: Path | bytes, image: np.ndarray) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return session.run(None, {"image": image})


def dims(value: onnx.ValueInfoProto) -> tuple[str | int, ...]:
    return tuple(dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim)


def digit_split() -> list[np.ndarray]:
    """Training images, test images, training labels, test labels, as the README says."""
    pixels, labels = load_digits(return_X_y=True)
    images = (pixels / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    return train_test_split(images, labels, test_size=0.25, random_state=0, stratify=labels)


def photograph(name: str) -> Image.Image:
    if name in ("china", "flower"):
        pixels = load_sample_image(f"{name}.jpg")
    else:
        pixels = getattr(data, name)()
    image = Image.fromarray(pixels[0] if isinstance(pixels, tuple) else pixels).convert("RGB")
    return image.crop((0, 0, image.width // 2 * 2, image.height // 2 * 2))


def reduced(image: Image.Image) -> Image.Image:
    return image.resize((image.width // 2, image.height // 2), Image.Resampling.BICUBIC)


def to_planes(image: Image.Image) -> np.ndarray:
    return np.asarray(image, np.float32).transpose(2, 0, 1)[None] / 255


def psnr(image: np.ndarray, original: np.ndarray) -> list[float]:
    """PSNR in dB over RGB and over luma of byte images, without the outer pixels."""
    error = (image.astype(np.float64) - original)[BORDER:-BORDER, BORDER:-BORDER]
    return [20 * np.log10(255 / np.sqrt(np.mean(e**2))) for e in (error, error @ LUMA)]


def measured(name: str) -> list[float]:
    """RGB bicubic, RGB network, luma bicubic, luma network: PSNR of one photograph."""
    original = photograph(name)
    low = reduced(original)
    upscaled = run_model(model_path("superres_x2"), to_planes(low))[0][0]
    network = np.rint(upscaled.transpose(1, 2, 0) * 255).astype(np.uint8)
    bicubic = np.asarray(low.resize(original.size, Image.Resampling.BICUBIC))
    before, after = (psnr(image, np.asarray(original)) for image in (bicubic, network))
    return [before[0], after[0], before[1], after[1]]


def readme_row(name: str) -> list[float]:
    """The figures of the photograph's row in the README's table."""
    row = re.search(rf"^\| `{name}` \|(.*)$", README, re.MULTILINE)
    assert row is not None, f"{name} has no row in the README"
    return [float(cell) for cell in row[1].replace("|", " ").split()]


@each_model
def test_file_is_one_valid_float32_model_of_ours(name: str) -> None:
    path = model_path(name)
    model = onnx.load(path, load_external_data=False)
    onnx.checker.check_model(model, full_check=True)
    assert model.producer_name == "clnn"
    assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", 17)]
    assert path.stat().st_size <= LARGEST_FILE[name]
    assert {entry.key: entry.value for entry in model.metadata_props} == METADATA[name]
    assert "clnn" in model.doc_string
    values = [*model.graph.input, *model.graph.output]
    assert {value.name: dims(value) for value in values} == SIGNATURES[name]
    assert {value.type.tensor_type.elem_type for value in values} == {onnx.TensorProto.FLOAT}


@each_model
def test_graph_has_the_documented_nodes_and_no_spare_weights(name: str) -> None:
    graph = onnx.load(model_path(name)).graph
    assert Counter(node.op_type for node in graph.node) == OPS[name]
    assert len({node.name for node in graph.node}) == len(graph.node)
    used = {source for node in graph.node for source in node.input}
    for weight in graph.initializer:
        assert weight.name in used
        assert weight.data_type == onnx.TensorProto.FLOAT
        assert weight.data_location == onnx.TensorProto.DEFAULT
        assert np.isfinite(onnx.numpy_helper.to_array(weight)).all()


@each_model
def test_readme_states_the_size_of_the_file(name: str) -> None:
    size = re.search(rf"`{name}\.onnx`.*?([\d ]+) bytes", README)
    assert size is not None
    assert int(size[1].replace(" ", "")) == model_path(name).stat().st_size


def test_digits_reaches_the_accuracy_of_the_readme_on_the_test_set() -> None:
    _, images, _, labels = digit_split()
    probabilities = run_model(model_path("digits"), images)[0]
    wrong = int((probabilities.argmax(1) != labels).sum())
    stated = re.search(r"(\d+) of (\d+) test digits wrong", README)
    assert stated is not None
    assert (wrong, len(labels)) == (int(stated[1]), int(stated[2]))
    assert wrong / len(labels) <= 0.015


def test_digits_gives_probabilities_that_do_not_depend_on_the_batch() -> None:
    images = digit_split()[1]
    together = run_model(model_path("digits"), images)[0]
    np.testing.assert_allclose(together.sum(1), 1, atol=1e-5)
    for row in (0, 7, len(images) - 1):
        alone = run_model(model_path("digits"), images[row : row + 1])[0]
        np.testing.assert_allclose(alone[0], together[row], atol=1e-5)


def test_digits_normalisation_is_worth_folding() -> None:
    graph = onnx.load(model_path("digits")).graph
    weights = {item.name: onnx.numpy_helper.to_array(item) for item in graph.initializer}
    for layer in ("stem_bn", "depthwise_bn", "pointwise_bn", "wide_bn"):
        gain = weights[f"{layer}_scale"] / np.sqrt(weights[f"{layer}_variance"] + 1e-5)
        assert np.ptp(gain) > 0.1
        assert np.abs(weights[f"{layer}_mean"]).max() > 0.01


@pytest.mark.parametrize("name", HELD_OUT)
def test_superres_beats_bicubic_on_photographs_it_never_saw(name: str) -> None:
    rgb_bicubic, rgb, luma_bicubic, luma = measured(name)
    assert rgb - rgb_bicubic >= 0.7
    assert luma - luma_bicubic >= 0.7


@pytest.mark.parametrize("name", (*TRAINING, *CHOICE, *HELD_OUT))
def test_superres_reaches_the_figures_of_the_readme(name: str) -> None:
    rgb_bicubic, rgb, luma_bicubic, luma = measured(name)
    figures = [rgb_bicubic, rgb, rgb - rgb_bicubic, luma_bicubic, luma, luma - luma_bicubic]
    np.testing.assert_allclose(readme_row(name), figures, atol=0.03)


def test_superres_takes_any_size_and_keeps_the_range() -> None:
    rng = np.random.default_rng(0)
    for batch, height, width in ((1, 1, 1), (1, 2, 9), (2, 17, 23), (3, 40, 5)):
        image = rng.integers(0, 2, (batch, 3, height, width)).astype(np.float32)
        upscaled = run_model(model_path("superres_x2"), image)[0]
        assert upscaled.shape == (batch, 3, 2 * height, 2 * width)
        assert upscaled.min() >= 0
        assert upscaled.max() <= 1
        alone = run_model(model_path("superres_x2"), image[-1:])[0]
        np.testing.assert_allclose(alone[0], upscaled[-1], atol=1e-5)


def test_superres_resize_is_the_enlargement_of_pillow() -> None:
    model = onnx.load(model_path("superres_x2"))
    (resize,) = (node for node in model.graph.node if node.op_type == "Resize")
    model.graph.output.append(
        onnx.helper.make_tensor_value_info(resize.output[0], onnx.TensorProto.FLOAT, [None] * 4)
    )
    planes = np.random.default_rng(0).random((1, 3, 11, 14), np.float32)
    enlarged = run_model(model.SerializeToString(), planes)[1][0]
    for plane, result in zip(planes[0], enlarged, strict=True):
        expected = Image.fromarray(plane).resize((28, 22), Image.Resampling.BICUBIC)
        np.testing.assert_allclose(result, np.asarray(expected), atol=1e-5)
