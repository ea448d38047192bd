"""Measured choices that come with clnn: clnn/tune/defaults/<class>.jsonl, one line per problem.

The first line of a file says which devices it is for; the others give a problem's key, its bucket
(kind, window, rounded channels), its size and the names of its fastest variants. A problem that is
not listed takes the nearest in size of its bucket. Names are only guesses: a variant must exist for
the problem at hand, else the estimate chooses.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from clnn.cache.lines import SUFFIX, Record
from clnn.runtime.device import DeviceInfo
from clnn.tune.signature import Signature, title

FOLDER = Path(__file__).parent / "defaults"


@dataclass(frozen=True)
class Defaults:
    """The lines for one class of devices: by problem key, and by bucket."""

    exact: Mapping[str, Sequence[str]]
    buckets: Mapping[str, Sequence[tuple[int, Sequence[str]]]]

    def names(self, sig: Signature) -> Sequence[str]:
        """Return the variants to try for a problem, best first; none where nothing is like it."""
        if sig.key in self.exact:
            return self.exact[sig.key]
        near = self.buckets.get(sig.bucket, ())
        nearest = min(near, key=lambda entry: abs(math.log(entry[0] / sig.size)), default=None)
        return nearest[1] if nearest else ()


NONE = Defaults({}, {})


def device_class(info: DeviceInfo) -> dict[str, str]:
    """Return what devices must share for the measurements of one to be a guess for another."""
    return {"platform": info.platform, "type": info.type}


def defaults_for(info: DeviceInfo, folder: Path = FOLDER) -> Defaults:
    """Return the shipped choices for a device; empty where there are none for its class."""
    return next((d for kind, d in _load(folder) if kind == device_class(info)), NONE)


@cache
def _load(folder: Path) -> tuple[tuple[dict[str, str], Defaults], ...]:
    files = sorted(folder.glob(f"*{SUFFIX}")) if folder.is_dir() else []
    return tuple(_parse(path.read_text("utf-8").splitlines()) for path in files)


def _parse(lines: Sequence[str]) -> tuple[dict[str, str], Defaults]:
    head, *rows = [json.loads(line) for line in lines if line.strip()]
    buckets: dict[str, list[tuple[int, Sequence[str]]]] = {}
    for row in rows:
        buckets.setdefault(row["bucket"], []).append((max(int(row["size"]), 1), row["best"]))
    return head["devices"], Defaults({row["key"]: row["best"] for row in rows}, buckets)


def export_lines(info: DeviceInfo, results: Iterable[Record]) -> str:
    """Return the text of a file of defaults from the result lines of a device's store."""
    head = {"devices": device_class(info), "measured_on": info.name,
            "driver": info.driver_version, "compute_units": info.compute_units}  # fmt: skip
    rows = [
        {"about": title(r["problem"]), "best": [t["name"] for t in r["tops"]],
         "bucket": r["bucket"], "size": r["size"], "key": r["key"]}
        for r in results
    ]  # fmt: skip
    rows.sort(key=lambda row: (row["bucket"], row["size"], row["key"]))
    return "".join(f"{_line(row)}\n" for row in (head, *rows))


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=True)
