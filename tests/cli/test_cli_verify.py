from __future__ import annotations

import shlex

import numpy as np
import pytest

from clnn.ops.conv import direct


@pytest.mark.parametrize("against", ["onnxruntime", "reference"])
def test_right_is_status_0(clnn, files, any_device, against):
    result = clnn("verify", files["network"], "-d", any_device, "--against", against, "--per-layer")
    assert result.code == 0, result.err
    assert result.out.endswith("PASSED\n")
    assert "max abs" in result.out
    assert "no layer diverges" in result.out


def test_wrong_is_status_1_with_a_command_that_repeats_it(clnn, files, any_device, monkeypatch):
    right = direct.pack_weights
    monkeypatch.setattr(direct, "pack_weights", lambda *args: 1.01 * right(*args))
    result = clnn("verify", files["network"], "-d", any_device, "--seed", 3, "--bisect")
    assert result.code == 1
    line = next(text for text in result.out.splitlines() if text.startswith("reproduce: "))
    words = shlex.split(line.removeprefix("reproduce: clnn "))
    assert "--bisect" in words
    again = clnn(*words, "--json")
    assert again.code == 1
    assert again.data["seed"] == 3
    assert again.data["passed"] is False
    assert again.data["bisection"]["node"] == "first"


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_the_accuracy_of_storage_in_16_bits(clnn, files, any_device, dtype):
    command = ("verify", files["network"], "-d", any_device, "--dtype", dtype)
    result = clnn(*command, "--against", "reference", "--per-layer", "--json")
    assert result.code == 0, result.err
    assert 1e-5 < result.data["outputs"][0]["relative"] < 3e-2
    result = clnn(*command, "--tolerance", "1e-5")
    assert result.code == 1
    assert f"--option dtype={dtype}" in result.out


def test_tf32_on_a_device_without_tensor_cores_is_float32(
    clnn, files, any_device, monkeypatch, caplog
):
    monkeypatch.setenv("CLNN_TENSOR_CORES", "off")
    result = clnn("verify", files["network"], "-d", any_device, "--dtype", "tf32", "--json")
    assert result.code == 0, result.err
    assert result.data["outputs"][0]["relative"] < 1e-5
    assert "no tensor cores that clnn uses" in caplog.text


def test_the_accuracy_of_bytes(clnn, files, any_device):
    command = ("verify", files["network"], "-d", any_device, "--dtype", "int8")
    result = clnn(*command, "--calibrate", 2, "--against", "reference", "--per-layer", "--json")
    assert result.code == 0, result.err
    assert 1e-4 < result.data["outputs"][0]["relative"] < 0.1
    result = clnn(*command, "--calibrate", 2, "--tolerance", "1e-5", "--bisect")
    assert result.code == 1 and "--option dtype=int8" in result.out
    assert "--calibrate 2" in result.out and "first wrong node" in result.out
    result = clnn(*command)
    assert result.code == 2 and "needs to know the ranges" in result.err


def test_input_files_and_shapes(clnn, files, any_device, tmp_path):
    np.save(tmp_path / "x.npy", np.ones((2, 3, 4, 5), np.float32))
    result = clnn(
        "verify",
        files["doubler"],
        "-d",
        any_device,
        "--json",
        "--shape",
        "image:2,3,4,5",
        "--input",
        tmp_path / "x.npy",
    )
    assert result.code == 0, result.err
    assert result.data["outputs"][0]["shape"] == [2, 3, 8, 10]
    assert result.data["outputs"][0]["want"] == 1


@pytest.mark.parametrize(
    "options, words",
    [
        (("--tolerance", "0"), "tolerance is 0.0"),
        (("--against", "magic"), "invalid choice: 'magic'"),
        (("-o", "tune=fast"), "tune='fast'"),
        (("-o", "colour=red"), "no option is named 'colour'"),
        (("-o", "fuze=true"), "Did you mean 'fuse'?"),
        (("-o", "fuse=perhaps"), "must be true or false"),
        (("-o", "states=many"), "must be a whole number"),
    ],
)
def test_wrong_options_are_named(clnn, files, any_device, options, words):
    result = clnn("verify", files["network"], "-d", any_device, *options)
    assert result.code == 2
    assert words in result.err
