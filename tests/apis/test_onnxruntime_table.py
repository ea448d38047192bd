"""Each line of the table in docs/onnxruntime.md, tried on onnxruntime and on clnn."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime_more as more
import onnxruntime_rows as rows
import pytest
from common import ROOT

import clnn.onnxruntime as ours

PAGE = ROOT / "docs" / "onnxruntime.md"
FILES = tempfile.TemporaryDirectory()
TABLE = [*rows.table(Path(FILES.name)), *more.table(Path(FILES.name))]


@pytest.fixture(autouse=True)
def _quiet(any_device, monkeypatch):
    monkeypatch.setenv("CLNN_DEVICE", any_device)
    level = logging.getLogger("clnn").level
    yield
    logging.getLogger("clnn").setLevel(level)


def plain(found):
    """Return what a trial found with arrays as lists, to be compared."""
    if isinstance(found, np.ndarray):
        return str(found.dtype), found.shape, found.tolist()
    if isinstance(found, (list, tuple)):
        return [plain(v) for v in found]
    return {k: plain(v) for k, v in found.items()} if isinstance(found, dict) else found


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.call[:48])
def test_row(row):
    theirs = pytest.importorskip("onnxruntime")
    theirs.set_default_logger_severity(4)
    want, got = plain(rows.tried(row, theirs)), plain(rows.tried(row, ours))
    if row.why:
        assert got != want, "the table says that this differs"
    else:
        assert got == want


def test_the_page_has_the_table():
    _, _, behind = PAGE.read_text("utf-8").partition("| call | here |\n| --- | --- |\n")
    lines = behind.partition("\n\n")[0].splitlines()
    assert lines == [
        f"| {row.call} | {f'differs: {row.why}' if row.why else 'same'} |" for row in TABLE
    ]


def test_the_page_lists_what_is_absent():
    page = PAGE.read_text("utf-8")
    assert not [n for names in rows.ABSENT.values() for n in names if f"`{n}`" not in page]


def test_every_public_name_is_there_or_listed_as_absent():
    theirs = pytest.importorskip("onnxruntime")
    absent = {name for names in rows.ABSENT.values() for name in names}
    modules = {"contextlib", "onnxruntime_validation", "import_capi_exception", "cuda_version"}
    public = {n for n in dir(theirs) if not n.startswith("_")} - modules
    missing = {n for n in public if not hasattr(ours, n)}
    assert missing == absent & public
    assert not [n for n in absent if hasattr(ours, n)]


@pytest.mark.parametrize("name", ["SessionOptions", "RunOptions", "IOBinding", "NodeArg"])
def test_every_member_is_there(name):
    theirs = pytest.importorskip("onnxruntime")
    beyond = {
        "add_external_initializers_from_files_in_memory",
        "add_provider_for_devices",
        "clear_ep_context_data_read_func",
        "set_ep_context_data_read_func",
        "set_load_cancellation_flag",
        "set_provider_selection_policy",
        "set_provider_selection_policy_delegate",
        "add_active_adapter",
    }
    public = {n for n in dir(getattr(theirs, name)) if not n.startswith("_")}
    made = {"SessionOptions": ours.SessionOptions, "RunOptions": ours.RunOptions}
    have = dir(made[name]()) if name in made else dir(getattr(ours, name))
    assert public - set(have) - beyond == set()
