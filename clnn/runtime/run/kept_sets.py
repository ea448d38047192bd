"""What sets of kernels for all shapes were learned to be, kept in the cache folder between processes.

Kept are hints alone: the names of the variants that were chosen, and which numbers of launches differ
between shapes. A hint that does not fit costs time and changes no result.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from clnn._version import __version__
from clnn.cache.keys import fields_key
from clnn.cache.store import Store
from clnn.graph.ir import Graph
from clnn.graph.variations import nodes_of
from clnn.options import Options
from clnn.plan.repeat import Key
from clnn.records import dataclass
from clnn.runtime.device.device import DeviceInfo
from clnn.runtime.device.target import allowed, target_of

KIND = "families"
MOST_SETS = 2


@dataclass(frozen=True)
class KeptSet:
    """Of one set of kernels: at which shapes of inputs it was chosen, which variant each node has and
    why, which did not fit somewhere, and where the numbers of each launch differ (Texts.known)."""

    shapes: Mapping[str, tuple[int, ...]]
    names: Mapping[Key, tuple[str, str]]
    misfits: tuple[str, ...]
    known: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Kept:
    """What is kept of one network: its sets, and what was looked at to make them.

    sets: the first, and that for small images. small: whether those were looked at. many: the set for
    other batches; looked_at_many: whether that was looked at.
    """

    sets: Sequence[KeptSet] = ()
    small: bool = False
    many: KeptSet | None = None
    looked_at_many: bool = False


@dataclass(frozen=True)
class KeptSets:
    """Where the sets of one network on one device are kept, for first extents of one size."""

    key: str

    @staticmethod
    def of(
        graph: Graph,
        info: DeviceInfo,
        options: Options,
        extents: Mapping[str, int],
        measured: object,
    ) -> KeptSets:
        """extents: of open dimensions at the first shape; sizes within a factor of two share sets.

        measured: what choices by measurement depend on.
        """
        driver = info.platform, info.name, info.driver_version, info.platform_version
        sizes = [(name, extent.bit_length()) for name, extent in extents.items()]
        target = allowed(target_of(info), options)
        about = [(f, sorted(v) if isinstance(v, frozenset) else v) for f, v in vars(target).items()]
        consts = [(name, a.shape, a.dtype.str) for name, a in graph.consts.items()]
        parts = (__version__, driver, about, options, sizes, measured, nodes_of(graph), consts)
        return KeptSets(fields_key("clnn family", map(repr, parts)))

    def load(self) -> Kept:
        """Return what is kept; without sets: nothing is."""
        entry = Store(kind=KIND).get(self.key)
        if entry is None:
            return Kept()
        try:
            found = json.loads(entry.payload)
            sets = [_read(one) for one in found["sets"]][:MOST_SETS]
            many = [_read(one) for one in found["many"] or ()][:1]
            small, looked = found["small"] is True, isinstance(found["many"], list)
            return Kept(sets, small, next(iter(many), None), looked) if sets else Kept()
        except (ValueError, TypeError, KeyError, AttributeError):  # of another clnn
            return Kept()

    def save(self, kept: Kept) -> None:
        """Keep sets. Never fails."""
        many = [_written(kept.many)] if kept.many else []
        rows = {
            "small": kept.small,
            "sets": [*map(_written, kept.sets)],
            "many": many if kept.looked_at_many else None,
        }
        payload = json.dumps(rows, separators=(",", ":")).encode()
        Store(kind=KIND).put(self.key, payload, {})


def _written(one: KeptSet) -> dict[str, Any]:
    return {
        "shapes": {name: [*shape] for name, shape in one.shapes.items()},
        "names": [[*key, *found] for key, found in one.names.items()],
        "misfits": [*one.misfits],
        "known": {told: [*where] for told, where in one.known.items()},
    }


def _read(row: Mapping[str, Any]) -> KeptSet:
    """Return a set as it was written. Raises ValueError, TypeError, KeyError or AttributeError."""
    names = {(_text(n), _text(kind)): (_text(v), _text(why)) for n, kind, v, why in row["names"]}
    shapes, known = (
        {name: tuple(map(_natural, numbers)) for name, numbers in row[what].items()}
        for what in ("shapes", "known")
    )
    return KeptSet(shapes, names, tuple(map(_text, row["misfits"])), known)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def _natural(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no number of that kind")
    return value
