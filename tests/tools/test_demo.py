"""tools/examples/demo.py on its real networks and pictures: what it prints, writes and refuses."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

TOOL = Path(__file__).parents[2] / "tools" / "examples" / "demo.py"


@pytest.fixture(scope="module")
def demo():
    spec = importlib.util.spec_from_file_location("clnn_demo", TOOL)
    module = importlib.util.module_from_spec(spec)
    sys.modules["clnn_demo"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["clnn_demo"]


@pytest.fixture
def run(demo, monkeypatch, capsys, any_device, tmp_path):
    def call(*words: object, device: str = any_device) -> tuple[int, str, str]:
        argv = ["demo.py", "--device", device, "--out", str(tmp_path / "out"), *map(str, words)]
        monkeypatch.setattr(sys, "argv", argv)
        monkeypatch.setattr(demo, "ROUNDS", 1)
        code = demo.main()
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_both_networks_do_their_work(run, tmp_path):
    code, out, err = run()
    assert (code, err) == (0, ""), err
    assert re.search(r"^Device: \[\d\] ", out)
    assert float(re.search(r"450 held-out images, \d+ wrong, accuracy (\S+) %", out)[1]) > 98.5
    bicubic, network = (float(m) for m in re.findall(r"PSNR (\S+) dB", out))
    assert network > bicubic + 1
    differences = [float(m) for m in re.findall(r"largest difference (\S+)", out)]
    assert len(differences) == 2
    assert max(differences) < 1e-4
    for word in ("kernel variant", "latency", "ONNX Runtime: ", "programs built"):
        assert out.count(word) >= 2
    for layer in ("stem", "classifier", "head_conv", "tail_conv"):
        assert re.search(rf"^  [a-z]\w+ .*\b{layer}\b", out, re.MULTILINE), f"no kernel for {layer}"
    sheet = Image.open(tmp_path / "out" / "superres.png")
    assert sheet.width == 4 * (450 + 4)
    assert Image.open(tmp_path / "out" / "digits.png").size == (25 * 40, 18 * 40)


@pytest.fixture
def small_photograph(demo, monkeypatch):
    pixels = np.random.default_rng(0).integers(0, 256, (32, 48, 3), np.uint8)
    monkeypatch.setattr(demo, "photograph", lambda _: Image.fromarray(pixels))


@pytest.mark.usefixtures("small_photograph")
def test_results_that_differ_are_status_1(run, demo, monkeypatch):
    right = demo.OnnxRuntime.__call__

    def wrong(self, feeds, names=None):
        return {name: array + np.float32(0.01) for name, array in right(self, feeds, names).items()}

    monkeypatch.setattr(demo.OnnxRuntime, "__call__", wrong)
    code, out, _ = run()
    assert code == 1
    assert "FAILED: results differ" in out


@pytest.mark.usefixtures("small_photograph")
def test_it_runs_without_onnxruntime(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    code, out, _ = run()
    assert code == 0
    assert out.count("ONNX Runtime is not installed") == 2


def test_a_picture_of_ones_own(run, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (41, 51, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "mine.png")
    code, out, _ = run("--picture", tmp_path / "mine.png")
    assert code == 0
    assert "25x20 -> 50x40 pixels" in out


@pytest.mark.parametrize("size, words", [((9, 9), "too small"), (None, "no picture at")])
def test_pictures_that_will_not_do(run, demo, monkeypatch, tmp_path, size, words):
    monkeypatch.setattr(demo, "digits", lambda *_: None)
    if size:
        Image.new("RGB", size).save(tmp_path / "mine.png")
    code, _, err = run("--picture", tmp_path / "mine.png")
    assert code == 2
    assert words in err


def test_no_device_is_status_3(run):
    code, _, err = run(device="abacus")
    assert code == 3
    assert err.startswith("NoDeviceError")


def test_psnr_is_that_of_the_inner_pixels(demo):
    one = Image.new("RGB", (20, 20), (100, 100, 100))
    two = Image.new("RGB", (20, 20), (90, 100, 100))
    rgb, luma = demo.psnr(two, one)
    assert rgb == pytest.approx(20 * np.log10(255 / np.sqrt(100 / 3)))
    assert luma == pytest.approx(20 * np.log10(255 / 2.99))
    edge = one.copy()
    edge.putpixel((1, 1), (0, 0, 0))
    assert demo.psnr(edge, one) == (np.inf, np.inf)


def test_digits_as_text(demo):
    image = np.zeros((1, 2, 3), np.float32)
    image[0, 0] = [0, 0.5, 1]
    text = demo.text_pictures(np.concatenate([image, image]), np.array([3, 4]), np.array([3, 5]))
    lines = text.splitlines()
    assert lines[0] == "   =@    =@"
    assert lines[2].split() == ["3", "4,", "is", "5"]


def test_the_detail_shown_is_where_bicubic_lacks_most(demo):
    plain = np.zeros((64, 80, 3), np.uint8)
    busy = plain.copy()
    busy[40:50, 10:20] = 255
    left, top, right, bottom = demo.detail_box(Image.fromarray(plain), Image.fromarray(busy))
    assert left <= 10
    assert right >= 20
    assert top <= 40
    assert bottom >= 50
    assert (right - left, bottom - top) == (20, 16)
