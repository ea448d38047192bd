"""Measured choices that come with clnn: clnn/tune/defaults/<devices>.jsonl, one line per problem.

The first line of a file says which devices it is for; each other line gives a problem's key and the
variant that beat the estimate's choice within a network, twice, on such a device. A name is a guess
all the same: a variant must exist for the problem at hand, else the estimate chooses.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from clnn.cache.lines import SUFFIX, Record
from clnn.runtime.device.device import DeviceInfo
from clnn.tune.contest import GAIN
from clnn.tune.signature import title

FOLDER = Path(__file__).parent / "defaults"
Defaults = Mapping[str, str]  # variants by problem key
NONE: Defaults = MappingProxyType({})


def device_class(info: DeviceInfo) -> dict[str, str | int]:
    """Return what devices must share for the measurements of one to hold for another."""
    return {
        "platform": info.platform,
        "type": info.type,
        "name": info.name,
        "compute_units": info.compute_units,
        "half_rate": bool(info.caps.half_rate),
    }


def defaults_for(info: DeviceInfo, folder: Path = FOLDER) -> Defaults:
    """Return the shipped choices for a device; empty where there are none for its class."""
    return next((d for kind, d in _load(folder) if kind == device_class(info)), NONE)


@cache
def _load(folder: Path) -> tuple[tuple[dict[str, str | int], Defaults], ...]:
    files = sorted(folder.glob(f"*{SUFFIX}")) if folder.is_dir() else []
    return tuple(parse(path.read_text("utf-8").splitlines()) for path in files)


def parse(lines: Sequence[str]) -> tuple[dict[str, str | int], Defaults]:
    """Return the devices that the lines of a file are for, and its choices."""
    head, *rows = [json.loads(line) for line in lines if line.strip()]
    return head["devices"], MappingProxyType({row["key"]: row["variant"] for row in rows})


def export_lines(info: DeviceInfo, results: Iterable[Record]) -> str:
    """Return the text of a file of defaults from the result lines of a device's store.

    A result counts where another variant than the estimate's was at least 2 % faster in the network.
    """
    head = {"devices": device_class(info), "driver": info.driver_version}
    rows = [
        {
            "about": title(r["problem"]),
            "variant": r["tops"][0]["name"],
            "gain": round(gain, 2),
            "key": r["key"],
        }
        for r in results
        if (gain := _gain(r)) >= GAIN
    ]
    rows.sort(key=lambda row: (row["about"], row["key"]))
    return "".join(f"{_line(row)}\n" for row in (head, *rows))


def _gain(result: Record) -> float:
    """Return how many times as long the estimate's choice takes in the network; 0 where unknown."""
    inside = {top["name"]: top.get("network") for top in result["tops"]}
    best, ranked = inside[result["tops"][0]["name"]], inside.get(result["ranked"])
    return float(ranked / best) if best and ranked else 0.0


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=True)
