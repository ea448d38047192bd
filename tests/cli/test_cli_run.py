from __future__ import annotations

import sys

import cli_models
import numpy as np
import pytest
from PIL import Image

from clnn.cli import _common
from clnn.cli import _image as image
from clnn.errors import SettingError
from clnn.importers.onnx.info import ValueInfo


def picture(path, width=5, height=4, mode="RGB"):
    bands = len(Image.new(mode, (1, 1)).getbands())
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, bands), np.uint8)
    Image.fromarray(pixels.squeeze(), mode).save(path)
    return pixels


def written(path) -> np.ndarray:
    return np.asarray(Image.open(path))


def test_picture_to_picture_of_any_size(clnn, files, tmp_path, device):
    """The doubler's right answer is each pixel four times, exactly."""
    pixels = picture(tmp_path / "in.png")
    result = clnn(
        "run",
        files["doubler"],
        "--image",
        tmp_path / "in.png",
        "--out",
        tmp_path / "out.png",
        "-d",
        device,
    )
    assert result.code == 0, result.err
    np.testing.assert_array_equal(written(tmp_path / "out.png"), pixels.repeat(2, 0).repeat(2, 1))
    assert "picture  5x4 -> image 1x3x4x5 NCHW" in result.out
    assert "latency  median" in result.out
    assert "written to" in result.out


def test_channels_last_and_the_range_of_the_output(clnn, files, tmp_path, any_device):
    """1 - value of pixels / 255 is the negative, which --out-range can turn over again."""
    pixels = picture(tmp_path / "in.png")
    words = ("run", files["channels_last"], "--image", tmp_path / "in.png", "-d", any_device)
    result = clnn(*words, "--out", tmp_path / "out.png")
    assert result.code == 0, result.err
    np.testing.assert_array_equal(written(tmp_path / "out.png"), 255 - pixels)
    assert clnn(*words, "--out", tmp_path / "auto.png", "--out-range", "auto").code == 0
    stretched = written(tmp_path / "auto.png")
    assert (stretched.min(), stretched.max()) == (0, 255)
    dark = clnn(*words, "--out", tmp_path / "dark.png", "--out-range", "0.5,1")
    assert "were clipped" in dark.err
    want = np.clip(np.rint((1 - pixels / 255.0 - 0.5) * 2 * 255), 0, 255)
    assert np.abs(written(tmp_path / "dark.png") - want).max() <= 1


def test_classes_with_labels_from_metadata_and_file(clnn, tmp_path, any_device):
    Image.new("RGB", (9, 9), (10, 200, 30)).save(tmp_path / "green.png")
    path = cli_models.classifier(tmp_path / "net.onnx", {"labels": "red,green,blue,dark"})
    words = ("run", path, "--image", tmp_path / "green.png", "-d", any_device, "--top", 3)
    found = clnn(*words, "--json").data["outputs"][0]
    assert [best["label"] for best in found["top"]] == ["green", "blue", "red"]
    np.testing.assert_allclose(
        [best["value"] for best in found["top"]], [16 * v / 255 for v in (200, 30, 10)], rtol=1e-5
    )
    (tmp_path / "names.txt").write_text("rot\ngrün\nblau\ndunkel\n", encoding="utf-8")
    text = clnn(*words, "--labels", tmp_path / "names.txt").out
    assert "class 1  grün" in text
    (tmp_path / "names.txt").write_text("one\n", encoding="utf-8")
    short = clnn(*words, "--labels", tmp_path / "names.txt")
    assert "1 labels for 4 classes" in short.err
    assert short.code == 0


def test_scaling_by_metadata_preset_and_options(clnn, tmp_path, any_device):
    """Sums over 16 equal pixels show what each pixel became."""
    Image.new("RGB", (4, 4), (51, 102, 204)).save(tmp_path / "flat.png")
    given = {"mean": "51", "scale": "0.01", "labels": "r,g,b,d"}
    path = cli_models.classifier(tmp_path / "net.onnx", given)

    def values(*options):
        result = clnn(
            "run",
            path,
            "--image",
            tmp_path / "flat.png",
            "-d",
            any_device,
            "--output-npz",
            tmp_path / "out.npz",
            *options,
        )
        assert result.code == 0, result.err
        return np.load(tmp_path / "out.npz")["scores"][0, :3] / 16

    close = {"rtol": 1e-5, "atol": 1e-6}
    np.testing.assert_allclose(values(), [0, 0.51, 1.53], **close)
    np.testing.assert_allclose(values("--preset", "unit"), [0.2, 0.4, 0.8], **close)
    np.testing.assert_allclose(values("--preset", "signed"), [-0.6, -0.2, 0.6], **close)
    imagenet = (np.array([51, 102, 204]) - [123.675, 116.28, 103.53]) / [58.395, 57.12, 57.375]
    np.testing.assert_allclose(values("--preset", "imagenet"), imagenet, **close)
    np.testing.assert_allclose(
        values("--mean", "0", "--std", "51,51,51"), [0.01, 0.02, 0.04], **close
    )
    np.testing.assert_allclose(
        values("--preset", "raw", "--channels", "bgr"), [204, 102, 51], **close
    )


@pytest.mark.parametrize("mode", ["L", "RGBA", "I;16", "1"])
def test_pictures_of_every_kind_become_what_the_input_takes(
    clnn, files, tmp_path, any_device, mode
):
    grey = np.array([[0, 255], [128, 64]], np.uint16)
    if mode == "I;16":
        made = Image.fromarray(grey * 257)
    elif mode == "1":
        made, grey = Image.fromarray(grey > 100), np.where(grey > 100, 255, 0)
    else:
        made = Image.fromarray(grey.astype(np.uint8)).convert(mode)
    made.save(tmp_path / "in.png")
    result = clnn(
        "run",
        files["channels_last"],
        "--image",
        tmp_path / "in.png",
        "--out",
        tmp_path / "out.png",
        "-d",
        any_device,
    )
    assert result.code == 0, result.err
    np.testing.assert_array_equal(written(tmp_path / "out.png"), 255 - grey[..., None].repeat(3, 2))


def test_pictures_are_turned_upright(tmp_path):
    pixels = picture(tmp_path / "plain.png", 3, 2)
    tags = Image.Exif()
    tags[0x0112] = 6
    Image.fromarray(pixels).save(tmp_path / "turned.png", exif=tags)
    assert image.load_picture(tmp_path / "turned.png").size == (2, 3)


def test_fixed_sizes_are_met_by_stretching_or_cropping(clnn, files, tmp_path, any_device):
    """A wide picture, white in the middle: cropping keeps the white, stretching mixes in black."""
    wide = np.zeros((4, 12, 3), np.uint8)
    wide[:, 4:8] = 255
    Image.fromarray(wide).save(tmp_path / "wide.png")
    scores = {}
    for fit in ("crop", "stretch"):
        clnn(
            "run",
            files["classifier"],
            "--image",
            tmp_path / "wide.png",
            "--fit",
            fit,
            "-d",
            any_device,
            "--output-npz",
            tmp_path / f"{fit}.npz",
        )
        scores[fit] = np.load(tmp_path / f"{fit}.npz")["scores"][0, 0]
    assert scores["crop"] == pytest.approx(16, abs=0.3)
    assert 3 < scores["stretch"] < 8


def test_size_resizes_an_open_input(clnn, files, tmp_path, any_device):
    picture(tmp_path / "in.png")
    words = ("run", files["doubler"], "--image", tmp_path / "in.png", "-d", any_device)
    found = clnn(*words, "--size", "6x8", "--json").data
    assert found["outputs"][0]["shape"] == [1, 3, 12, 16]
    fixed = clnn("run", files["classifier"], "--image", tmp_path / "in.png", "--size", "9x9")
    assert fixed.code == 2
    assert "fixed to 4x4" in fixed.err


def test_arrays_in_and_out(clnn, files, tmp_path, any_device):
    left, right = cli_models.normal(2, 3), cli_models.normal(2, 3, seed=1)
    np.save(tmp_path / "left.npy", left)
    np.savez(tmp_path / "both.npz", left=left, right=right)
    words = ("run", files["two_inputs"], "-d", any_device, "--output-npz", tmp_path / "out.npz")
    assert clnn(*words, "--input", tmp_path / "both.npz").code == 0
    np.testing.assert_array_equal(np.load(tmp_path / "out.npz")["sum"], left + right)
    partial = clnn(*words, "--input", f"left={tmp_path / 'left.npy'}")
    assert partial.code == 2
    assert "input 'right' is missing" in partial.err
    vague = clnn(*words, "--input", tmp_path / "left.npy")
    assert vague.code == 2
    assert "does not say which input" in vague.err


def test_a_model_that_data_shapes(clnn, files, tmp_path, any_device):
    x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    np.save(tmp_path / "x.npy", x)
    words = ("--input", tmp_path / "x.npy", "--output-npz", tmp_path / "y.npz")
    result = clnn("run", files["staged"], *words, "-d", any_device)
    assert result.code == 0, result.err
    (output,) = clnn("run", files["staged"], *words, "-d", any_device, "--json").data["outputs"]
    with np.load(tmp_path / "y.npz") as arrays:
        assert output["shape"] == [len(arrays["y"])]
        assert (arrays["y"] > 2).any()


def test_outputs_of_any_name_are_written(tmp_path):
    arrays = {"file": np.arange(3), "a/b:0": np.ones((2, 1), np.float32), "": np.array(True)}
    _common.save_arrays(str(tmp_path / "out.npz"), arrays)
    stored = np.load(tmp_path / "out.npz")
    assert stored.files == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(stored[name], array)
        assert stored[name].dtype == array.dtype


def test_given_arrays_fix_open_dimensions(clnn, files, tmp_path, any_device):
    np.save(tmp_path / "x.npy", np.full((2, 3, 5, 4), 0.5, np.float32))
    result = clnn(
        "run", files["doubler"], "--input", tmp_path / "x.npy", "-d", any_device, "--json"
    )
    assert result.code == 0, result.err
    output = result.data["outputs"][0]
    assert output["shape"] == [2, 3, 10, 8]
    assert (output["min"], output["max"], output["mean"]) == (0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    "options, words",
    [
        (("--out", "x.png"), "--out wants a picture"),
        (("--image", "no-such.png"), "no picture at no-such.png"),
        (("--image", "text.png"), "cannot be read as a picture"),
        (("--image", "in.png", "--out", "x.onnx"), "no picture format"),
        (("--image", "in.png", "--out", "no/such/folder/x.png"), "there is no folder"),
        (("--image", "in.png", "--mean", "a,b"), "mean is 'a,b'"),
        (("--image", "in.png", "--scale", "0"), "must not be 0"),
        (("--image", "in.png", "--top", "0"), "--top is 0"),
        (("--image", "wrong=in.png"), "input 'wrong' takes no picture"),
        (("--image", "in.png", "--size", "0x4"), "is no size"),
        (("--image", "in.png", "--out-range", "1,0"), "is no range"),
        (("--image", "in.png", "--labels", "no.txt"), "--labels no.txt cannot be read"),
        (("--input", "no.npy"), "no file at no.npy"),
        (("--input", "text.png"), "is no .npy or .npz file"),
    ],
)
def test_wrong_options_are_named(clnn, files, tmp_path, monkeypatch, any_device, options, words):
    monkeypatch.chdir(tmp_path)
    picture(tmp_path / "in.png")
    (tmp_path / "text.png").write_text("no picture")
    result = clnn("run", files["classifier"], "-d", any_device, *options)
    assert result.code == 2
    assert words in result.err


def test_out_needs_an_output_that_is_a_picture(clnn, files, tmp_path, any_device):
    picture(tmp_path / "in.png")
    result = clnn(
        "run",
        files["classifier"],
        "--image",
        tmp_path / "in.png",
        "--out",
        tmp_path / "out.png",
        "-d",
        any_device,
    )
    assert result.code == 2
    assert "no output is a picture" in result.err
    assert not (tmp_path / "out.png").exists()


@pytest.mark.parametrize(
    "dims, layout, found",
    [
        ((1, 3, 8, 9), None, ("NCHW", 3, 8, 9)),
        ((1, 8, 9, 3), None, ("NHWC", 3, 8, 9)),
        (("n", 1, "h", "w"), None, ("NCHW", 1, None, None)),
        ((1, 3, 8, 3), None, ("NCHW", 3, 8, 3)),
        ((1, 3, 8, 3), "NHWC", ("NHWC", 3, 3, 8)),
        ((3, 8, 9), None, ("CHW", 3, 8, 9)),
        ((8, 9, 4), None, ("HWC", 4, 8, 9)),
        ((1, "c", 8, 9), "NCHW", ("NCHW", 3, 8, 9)),
    ],
)
def test_the_input_for_a_picture_is_found(dims, layout, found):
    inputs = [ValueInfo("k", "int64", (1, 3, 2, 2)), ValueInfo("x", "float32", dims)]
    port = image.find_input(inputs, None, layout)
    assert (port.layout, port.channels, port.sizes["H"], port.sizes["W"]) == found
    assert port.name == "x"


@pytest.mark.parametrize("dims", [(1, 2, 8, 9), (1, "c", 8, 9), (5,), None, (1, 3, 4, 5, 6)])
def test_inputs_that_take_no_picture_are_listed(dims):
    with pytest.raises(SettingError, match=r"no input takes a picture.*scores float32"):
        image.find_input([ValueInfo("scores", "float32", dims)], None, None)


def test_without_pillow_it_says_what_to_do(clnn, files, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    result = clnn("run", files["doubler"], "--image", "in.png")
    assert result.code == 2
    assert result.err.startswith("MissingPackageError: Pillow cannot be imported")
    assert "pip install pillow" in result.err


def test_a_layout_that_no_input_has_is_named():
    with pytest.raises(SettingError, match="no input takes a picture in layout NHWC"):
        image.find_input([ValueInfo("x", "float32", (1, 3, 8, 9))], None, "NHWC")


@pytest.mark.parametrize(
    "shape, like, layout",
    [
        ((1, 3, 8, 9), "NCHW", "NCHW"),
        ((1, 8, 9, 3), "NCHW", "NHWC"),
        ((1, 21, 8, 9), "NCHW", None),
        ((1, 1, 1, 1), "NCHW", None),
        ((1, 4420, 2), "NCHW", None),
        ((4, 8, 9), "CHW", "CHW"),
    ],
)
def test_outputs_that_are_pictures_are_known(shape, like, layout):
    assert image.output_layout(shape, like) == layout


def test_scaling_goes_back_where_it_came_from():
    scaling = image.Scaling((10, 20, 30), (0.01,), (1, 2, 4))
    pixels = np.random.default_rng(0).integers(0, 256, (3, 4, 3)).astype(np.uint8)
    np.testing.assert_allclose(scaling.pixels(scaling.values(pixels)), pixels, atol=1e-3)
    assert scaling.pixels(np.zeros((1, 1, 1)))[0, 0, 0] == pytest.approx(20)
