"""What was measured, kept: one file of lines for each device, readable by people and machines.

    <cache dir>/tuning/<device>-<hash>.jsonl

Lines are results (the fastest variants of a problem with their times), failures (a variant that
did not build, hung, crashed or was wrong) and marks after which earlier failures are forgotten. A
result holds for the driver and the templates it was measured with; under another driver it is a
prior, worth to be tried first.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from clnn.cache.archive import TUNING
from clnn.cache.keys import fields_key
from clnn.cache.lines import SUFFIX, LineFile, Record
from clnn.cache.store import cache_dir
from clnn.records import dataclass
from clnn.runtime.device.device import DeviceInfo
from clnn.settings import setting
from clnn.tune.signature import SCHEMA, Signature

LEVELS = ("quick", "full")
TOP = 3
_FORGOTTEN = "pardon"  # the kind of line after which earlier failures do not count
_SPARE_LINES = 256  # lines beyond those in force that call for compaction


@dataclass(frozen=True)
class Timed:
    """A variant with its time: seconds alone, and in the network it was measured in (None: not)."""

    name: str
    seconds: float
    templates: str
    network: float | None = None


@dataclass(frozen=True)
class Result:
    """The fastest variants of a problem, best first. ranked: what the estimate chose.

    level: how thoroughly it was searched. tried: candidates measured.
    """

    tops: tuple[Timed, ...]
    ranked: str
    level: str
    tried: int


def identity(info: DeviceInfo) -> dict[str, Any]:
    """Return what makes a device the same one, whatever its driver."""
    return {
        "platform": info.platform,
        "vendor": info.vendor,
        "device": info.name,
        "compute_units": info.compute_units,
    }


def driver_of(info: DeviceInfo) -> str:
    """Return the version of what builds and runs kernels."""
    return f"{info.driver_version} / {info.platform_version}"


def file_name(info: DeviceInfo) -> str:
    """Return the name of the file that a device's lines are in."""
    parts = identity(info)
    digest = fields_key("clnn tuned device", [f"{k}={v}" for k, v in parts.items()])[:12]
    words = re.sub(r"[^a-z0-9]+", "-", f"{info.platform} {info.name}".lower()).strip("-")
    return f"{words[:60]}-{digest}{SUFFIX}"


def tuning_folder(root: Path | None = None) -> Path:
    """Return the folder of all devices' files. Raises FileNotFoundError without a home folder."""
    return (cache_dir() if root is None else root) / TUNING


class TuningStore:
    """The tuning results of one device.

    root: cache folder (default: cache_dir()); mode: "off", "ro" or "rw" (default: CLNN_CACHE).
    Reads its file when first asked; `reload` reads what others wrote since.
    """

    def __init__(self, info: DeviceInfo, root: Path | None = None, mode: str | None = None) -> None:
        self.info, self.driver = info, driver_of(info)
        mode = str(setting("CLNN_CACHE")) if mode is None else mode
        try:
            path = tuning_folder(root) / file_name(info)
        except OSError:
            mode, path = "off", Path(TUNING) / file_name(info)
        self.lines = LineFile(path, mode)
        self._records: list[Record] | None = None

    @property
    def writable(self) -> bool:
        """Whether results are kept."""
        return self.lines.mode == "rw"

    @property
    def stamp(self) -> tuple[int, int] | None:
        """Time and size of the file, None where there is none."""
        try:
            status = self.lines.path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size

    def reload(self) -> None:
        """Forget what was read, so that the next question reads the file again."""
        self._records = None

    def _read(self) -> list[Record]:
        if self._records is None:
            self._records = [r for r in self.lines.read() if r.get("v") == SCHEMA]
        return self._records

    def result(self, key: str) -> Result | None:
        """Return the newest result of a problem under the present driver."""
        return self._newest(key, lambda driver: driver == self.driver)

    def prior(self, key: str) -> Result | None:
        """Return the newest result of a problem under another driver."""
        return self._newest(key, lambda driver: driver != self.driver)

    def _newest(self, key: str, fits: Any) -> Result | None:
        for record in reversed(self._read()):
            if record.get("kind") == "result" and record.get("key") == key:
                result = _result(record) if fits(record.get("driver")) else None
                if result is not None:
                    return result
        return None

    def failures(self, key: str) -> dict[tuple[str, str], str]:
        """Return (variant, templates) -> reason of what failed under the present driver."""
        reasons: dict[tuple[str, str], str] = {}
        for record in self._read():
            if record.get("driver") != self.driver:
                continue
            if record.get("kind") == _FORGOTTEN:
                reasons.clear()
            elif record.get("kind") == "failure" and record.get("key") == key:
                reasons[str(record.get("name")), str(record.get("templates"))] = str(
                    record["reason"]
                )
        return reasons

    def put(self, sig: Signature, result: Result) -> bool:
        """Keep a result; tell whether it is kept for good."""
        tops = [
            {
                "name": t.name,
                "seconds": t.seconds,
                "templates": t.templates,
                **({} if t.network is None else {"network": t.network}),
            }
            for t in result.tops[:TOP]
        ]
        return self._append(
            {
                "kind": "result",
                "key": sig.key,
                "tops": tops,
                "ranked": result.ranked,
                "level": result.level,
                "tried": result.tried,
                "bucket": sig.bucket,
                "size": sig.size,
                "problem": sig.parts,
            }
        )

    def put_failure(self, key: str, name: str, templates: str, reason: str) -> bool:
        """Keep that a variant is not to be tried again with this driver and these templates."""
        return self._append(
            {
                "kind": "failure",
                "key": key,
                "name": name,
                "templates": templates,
                "reason": reason[:300],
            }
        )

    def forget_failures(self) -> int:
        """Let all failures under the present driver be tried again; return how many there were."""
        keys = {r.get("key") for r in self._read() if r.get("kind") == "failure"}
        count = sum(len(self.failures(str(key))) for key in keys)
        if count:
            self._append({"kind": _FORGOTTEN})
        return count

    def _append(self, record: Mapping[str, Any]) -> bool:
        head = {"v": SCHEMA, "driver": self.driver, "time": round(time.time())}
        whole = {**head, **record}
        self._read().append(dict(whole))
        return self.lines.append([whole])

    def compact(self) -> None:
        """Replace the file by the lines in force, where there are many others."""
        records = self.lines.read()
        if len(records) - len(in_force(records)) > _SPARE_LINES:
            self.lines.rewrite(in_force)
            self.reload()

    def results(self) -> list[Record]:
        """Return the newest result line of every problem under the present driver."""
        mine = [r for r in self._read() if r.get("driver") == self.driver and _result(r)]
        return list({r["key"]: r for r in mine}.values())


def _result(record: Record) -> Result | None:
    """Return the result of a line; None where it is not one that this version writes."""
    try:
        tops = tuple(
            Timed(str(t["name"]), float(t["seconds"]), str(t["templates"]), t.get("network"))
            for t in record["tops"]
        )
        level = str(record["level"])
        result = Result(tops, str(record["ranked"]), level, int(record["tried"]))
    except (KeyError, TypeError, ValueError):
        return None
    return result if record.get("kind") == "result" and tops and level in LEVELS else None


def in_force(records: Iterable[Record]) -> list[Record]:
    """Return the lines that count: newest results, failures that are not forgotten, in order."""
    kept: dict[tuple[Any, ...], Record] = {}
    for record in records:
        kind, driver = record.get("kind"), record.get("driver")
        if kind == _FORGOTTEN:
            kept = {k: r for k, r in kept.items() if k[:2] != ("failure", driver)}
            continue
        name = (
            kind,
            driver,
            record.get("v"),
            record.get("key"),
            record.get("name"),
            record.get("templates"),
        )
        kept.pop(name, None)
        kept[name] = record
    return list(kept.values())
