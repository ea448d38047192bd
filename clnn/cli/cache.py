"""`clnn cache`: show, empty, check, export and import built programs and tuning results."""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from clnn.cache import files
from clnn.cache.archive import Transfer, export_entries, import_entries, tuning_files
from clnn.cache.envelope import FORMAT_VERSION
from clnn.cache.lines import LineFile
from clnn.cache.privacy import CacheWarning
from clnn.cache.store import Store, cache_dir, stored_kinds
from clnn.errors import CacheError
from clnn.settings import setting

Report = dict[str, Any]


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add the `cache` command to the subparsers of `clnn`; return its parser."""
    about = "show, empty, check, export or import built programs and tuning results"
    parser: argparse.ArgumentParser = subparsers.add_parser("cache", help=about, description=about)
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, (_, text) in _ACTIONS.items():
        action = actions.add_parser(name, help=text, description=text)
        action.add_argument("--json", action="store_true", help="print JSON")
        if name in ("export", "import"):
            action.add_argument("file", type=Path, metavar="FILE")
    return parser


def run(args: argparse.Namespace) -> int:
    """Do one action of `clnn cache`; return 0, or 1 when an entry failed its check.

    Raises CacheError when the action cannot be done, SettingError for a bad CLNN_ variable.
    """
    act, _ = _ACTIONS[args.action]
    root = _root()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CacheWarning)
        report = act(root, getattr(args, "file", None))
    print(json.dumps(report, indent=2) if args.json else _text(report))
    return 1 if report.get("bad") else 0


def _root() -> Path:
    try:
        return cache_dir()
    except OSError as err:
        raise CacheError(f"{err}. Set CLNN_CACHE_DIR to a folder.") from err


def _stores(root: Path) -> list[Store]:
    return [Store(root, "rw", kind) for kind in stored_kinds(root)]


def _info(root: Path, _file: Path | None) -> Report:
    shown = ("entries", "bytes", "quarantined")
    stats = {store.kind: asdict(store.stats()) for store in _stores(root)}
    return {
        "folder": str(root),
        "format": FORMAT_VERSION,
        "mode": setting("CLNN_CACHE"),
        "max_bytes": setting("CLNN_CACHE_MAX_BYTES"),
        "kinds": {kind: {name: of[name] for name in shown} for kind, of in stats.items()},
        "tuning": {path.stem: _lines(path) for path in tuning_files(root)},
    }


def _lines(path: Path) -> dict[str, int]:
    """Return how many problems and failures a device's file holds, and lines that are damaged."""
    lines = LineFile(path, "ro")
    records = lines.read()
    results = {(r.get("driver"), r.get("key")) for r in records if r.get("kind") == "result"}
    failures = sum(r.get("kind") == "failure" for r in records)
    return {"results": len(results), "failures": failures, "damaged": lines.bad}


def _clear(root: Path, _file: Path | None) -> Report:
    removed = {s.kind: s.clear() for s in _stores(root)}
    tuned = [path for path in tuning_files(root) if files.remove(path)]
    return {"folder": str(root), "removed": removed | ({"tuning": len(tuned)} if tuned else {})}


def _verify(root: Path, _file: Path | None) -> Report:
    done = {store.kind: store.verify() for store in _stores(root)}
    return {
        "folder": str(root),
        "checked": sum(v.checked for v in done.values()) + len(tuning_files(root)),
        "bad": [f"{kind}/{key}" for kind, v in done.items() for key in v.bad]
        + [f"tuning/{path.name}" for path in tuning_files(root) if _lines(path)["damaged"]],
    }


def _export(root: Path, file: Path | None) -> Report:
    assert file is not None
    return _transfer(root, file, export_entries(root, file))


def _import(root: Path, file: Path | None) -> Report:
    assert file is not None
    return _transfer(root, file, import_entries(root, file))


def _transfer(root: Path, file: Path, done: Transfer) -> Report:
    return {
        "folder": str(root),
        "file": str(file),
        "entries": done.entries,
        "bytes": done.bytes,
        "bad": list(done.left_out),
    }


_ACTIONS: dict[str, tuple[Callable[[Path, Path | None], Report], str]] = {
    "info": (_info, "show where the cache is and what it holds"),
    "clear": (_clear, "remove all entries"),
    "verify": (_verify, "check all entries; bad ones go to quarantine"),
    "export": (_export, "write all entries to one zip file"),
    "import": (_import, "take over the entries of such a file; import only from someone you trust"),
}


def _text(report: Report) -> str:
    """Return a report as lines `name  value`, tables and lists indented below their name."""
    lines = []
    for name, value in report.items():
        if isinstance(value, dict):
            lines.append(f"{name:<10} {'' if value else 'none'}".rstrip())
            lines += [f"  {key:<10} {_line(item)}" for key, item in value.items()]
        elif isinstance(value, list):
            lines.append(f"{name:<10} {len(value)}")
            lines += [f"  {item}" for item in value]
        else:
            lines.append(f"{name:<10} {value}")
    return "\n".join(lines)


def _line(item: Any) -> str:
    if isinstance(item, dict):
        return "  ".join(f"{name} {value}" for name, value in item.items())
    return str(item)
