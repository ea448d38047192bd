from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from clnn.errors import SettingError
from clnn.settings import SETTINGS, setting, warn_unknown

ROOT = Path(__file__).resolve().parent.parent


def test_environment_table_is_current():
    command = [sys.executable, str(ROOT / "tools" / "gen_environment.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_default_is_allowed():
    assert all(setting(name, {}) is not None for name in SETTINGS)


def test_wrong_value_names_variable_value_and_meaning():
    with pytest.raises(SettingError, match="CLNN_CACHE is 'maybe': must be one of off, ro, rw"):
        setting("CLNN_CACHE", {"CLNN_CACHE": "maybe"})


def test_unknown_variable_is_warned_about():
    with pytest.warns(
        UserWarning, match="CLNN_DEVISE is not one of clnn's. Did you mean CLNN_DEVICE"
    ):
        assert warn_unknown({"CLNN_DEVISE": "0", "CLNN_DEVICE": "0"}) == ["CLNN_DEVISE"]


def test_every_page_is_in_the_table_of_contents():
    listed = (ROOT / "docs" / "index.md").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert page.stem == "index" or f"\n{page.stem}\n" in listed, (
            f"docs/index.md lacks {page.stem}"
        )
