from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cli_models
import pytest


@dataclass
class Result:
    """What a command left: exit status, standard output and standard error."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def clnn(capsys, monkeypatch):
    """Run the command line in this process: clnn("bench", path, ...) -> Result."""
    monkeypatch.delenv("CLNN_DEVICE", raising=False)
    monkeypatch.delenv("CLNN_DEBUG", raising=False)

    def run(*words: object) -> Result:
        from clnn.cli.main import main

        capsys.readouterr()
        try:
            code = main([str(word) for word in words])
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        out, err = capsys.readouterr()
        return Result(code, out, err)

    return run


@pytest.fixture(scope="session")
def files(tmp_path_factory) -> dict[str, Path]:
    """All models of cli_models.py by name."""
    folder = tmp_path_factory.mktemp("models")
    makers = (
        "network",
        "doubler",
        "classifier",
        "channels_last",
        "two_inputs",
        "unsupported",
        "staged",
    )
    return {name: getattr(cli_models, name)(folder / f"{name}.onnx") for name in makers}
