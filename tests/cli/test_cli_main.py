from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from clnn import __version__, logs
from clnn.cli import main as command


def python(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    import os

    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **env},
    )


def test_help_lists_every_command_with_what_it_does(clnn):
    result = clnn("--help")
    assert result.code == 0
    for name in ("bench", "cache", "devices", "doctor", "inspect", "profile", "run", "verify"):
        assert name in command.names()
        assert name in result.out
        assert command.summary(name).split()[0] in result.out


def test_every_command_has_a_summary_and_a_parser():
    for name in command.names():
        assert command.summary(name), f"the docstring of clnn/cli/{name}.py lacks its summary"
        parser, module = command.parser_for(name)
        assert module is not None
        text = parser.format_help()
        assert name in text


def test_the_command_as_a_module():
    done = python("-m", "clnn", "--version")
    assert (done.returncode, done.stdout.split()[-1]) == (0, __version__), done.stderr
    assert python("-m", "clnn", "nothing").returncode == 2


@pytest.mark.parametrize("words", [("--help",), ("--version",), ("bench", "--help")])
def test_help_loads_neither_opencl_nor_onnx(words):
    code = (
        "import sys\nfrom clnn.cli.main import main\n"
        f"try: main({list(words)!r})\nexcept SystemExit: pass\n"
        "slow = {'pyopencl', 'onnx', 'onnxruntime', 'mako', 'PIL'} & set(sys.modules)\n"
        "sys.exit(f'loaded {slow}' if slow else 0)"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr


def test_version(clnn):
    result = clnn("--version")
    assert (result.code, result.out.strip()) == (0, f"clnn {__version__}")


@pytest.mark.parametrize(
    "words", [(), ("nonsense",), ("bench",), ("bench", "a", "b"), ("--", "bench")]
)
def test_wrong_use_is_status_2_with_the_usage(clnn, words):
    result = clnn(*words)
    assert result.code == 2
    assert "usage: clnn" in result.err
    assert "Traceback" not in result.err


def test_json_may_stand_before_the_model(clnn, files):
    result = clnn("inspect", "--json", files["network"])
    assert result.code == 0
    assert result.data["model"] == str(files["network"])


def test_errors_are_one_message_unless_debugging(clnn, tmp_path, monkeypatch):
    missing = tmp_path / "missing.onnx"
    result = clnn("inspect", missing)
    assert result.code == 2
    assert result.err.startswith("ModelFileError: ")
    assert "Traceback" not in result.err
    monkeypatch.setenv("CLNN_DEBUG", "1")
    done = python("-m", "clnn.cli.main", "inspect", str(missing))
    assert "Traceback" in done.stderr
    assert "ModelFileError" in done.stderr


def test_no_device_is_status_3(clnn, files):
    result = clnn("bench", files["network"], "-d", "quantum abacus")
    assert result.code == 3
    assert result.err.startswith("NoDeviceError: ")


def test_unknown_variables_are_told_once(clnn, files, any_device, monkeypatch):
    monkeypatch.setenv("CLNN_CASHE", "off")
    result = clnn("run", files["two_inputs"], "-d", any_device)
    warned = [line for line in result.err.splitlines() if line.startswith("warning: ")]
    assert len(warned) == 1
    assert "CLNN_CASHE" in warned[0]
    assert "CLNN_CACHE" in warned[0]


def test_a_closed_pipe_ends_quietly(files):
    script = f"{sys.executable} -m clnn.cli.main inspect {files['network']} --json | head -c 1"
    done = subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.stdout == "{"
    assert done.stderr == ""


@pytest.fixture
def clean_logger(monkeypatch):
    """The logger "clnn" as it is before anyone arranges it."""
    monkeypatch.setattr(logs.log, "handlers", [logging.NullHandler()])
    level = logs.log.level
    yield logs.log
    logs.log.setLevel(level)


def test_debug_ladder(clnn, files, any_device, monkeypatch, clean_logger):
    """Each rung shows what is below it, and one thing more."""
    signs = {1: "launches, arena", 2: " us  first", 3: "first (conv2d): ", 4: "__kernel void"}
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    for rung in range(5):
        monkeypatch.setenv("CLNN_DEBUG", str(rung))
        clean_logger.handlers = [logging.NullHandler()]
        result = clnn("profile", files["network"], "-d", any_device, "--runs", 1)
        assert result.code == 0
        shown = {at for at, sign in signs.items() if sign in result.err}
        assert shown == set(range(1, rung + 1)), f"CLNN_DEBUG={rung}: {result.err}"


def test_debug_respects_a_program_that_arranged_logging(monkeypatch, clean_logger):
    monkeypatch.setenv("CLNN_DEBUG", "1")
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.NullHandler()])
    assert logs.configure() == 1
    assert all(isinstance(handler, logging.NullHandler) for handler in clean_logger.handlers)
    assert clean_logger.isEnabledFor(logs.PLAN)
    assert not clean_logger.isEnabledFor(logs.TIMES)


@pytest.mark.parametrize("command", ["run", "bench", "profile", "tune", "verify", "inspect"])
def test_every_command_on_a_model_takes_a_dtype(clnn, files, command):
    result = clnn(command, files["network"], "--dtype", "f8")
    assert result.code == 2 and "choose from 'f32', 'tf32', 'f16', 'bf16'" in result.err


def test_dtype_is_the_option_of_that_name(clnn, files):
    by_name = clnn("inspect", files["network"], "--plan", "--dtype", "bf16").out
    assert "convert_bf16_float" in by_name and "] as bf16 " in by_name
    assert by_name == clnn("inspect", files["network"], "--plan", "-o", "dtype=bf16").out
    both = ("--dtype", "bf16", "-o", "dtype=f32")
    assert by_name == clnn("inspect", files["network"], "--plan", *both).out
