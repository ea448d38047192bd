"""The table of cases: named checks of one op or of a whole graph.

Call simulator.install() before this is imported: check_op takes its device from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from harness import check_op
from simulator import DEVICE

from clnn.ops.shared.functions import PostOp
from clnn.ops.spec import OpSpec
from clnn.types import TensorType, dtype_of

BOTH = ("cpu", "gpu")
MODES = ("optimised", "unoptimised")
NHWC = (0, 2, 3, 1)


@dataclass(frozen=True)
class Case:
    """A named check; targets: what it is planned for; long: whether it is of the long form.

    quick: the targets of the short form. modes: the modes of gate.MODES that it is for, where
    Oclgrind fails in one of them.
    """

    name: str
    run: Callable[[], Any]
    targets: tuple[str, ...] = BOTH
    long: bool = False
    modes: tuple[str, ...] = MODES
    quick: tuple[str, ...] = BOTH


FIELDS = {field.name for field in fields(Case)} - {"name", "run"}
CASES: dict[str, Case] = {}


def put(name: str, run: Callable[[], Any], **about: Any) -> None:
    """Add a case; about: more fields of it."""
    assert name not in CASES, f"two cases are named {name}"
    CASES[name] = Case(name, run, **about)


def add(name: str, spec: OpSpec, inputs: Sequence[np.ndarray | None], **about: Any) -> None:
    """Add a case that runs every variant of `spec` on `inputs`.

    about: more fields of Case, and arguments of check_op. An output lies in memory as input 0
    does, where nothing else is said and the op keeps layouts.
    """
    how = {key: value for key, value in about.items() if key not in FIELDS}
    orders = dict(how.get("orders") or {})
    if spec.layout_rule == "same" and "i0" in orders:
        types = [None if a is None else TensorType(a.shape, dtype_of(a.dtype)) for a in inputs]
        if spec.infer(types)[0].rank == len(orders["i0"]):
            how["orders"] = {"o0": orders["i0"], **orders}
    known = {key: value for key, value in about.items() if key in FIELDS}
    put(name, lambda: check_op(DEVICE, spec, list(inputs), **how), **known)


def jobs(long: bool, mode: str) -> list[dict[str, str]]:
    """Return case and target of everything that is to run in `mode`, in the short or the long form."""
    chosen = [c for c in CASES.values() if (long or not c.long) and mode in c.modes]
    return [
        {"case": c.name, "target": t}
        for t in BOTH
        for c in chosen
        if t in c.targets and (long or t in c.quick)
    ]


def steps_of(chain: Iterable[Any]) -> tuple[PostOp, ...]:
    """Return steps from function names, or tuples of a name and its parameters."""
    parts = [(part,) if isinstance(part, str) else part for part in chain]
    return tuple(PostOp(part[0], tuple(part[1:])) for part in parts)


def orders_of(inputs: Sequence[np.ndarray | None], which: Iterable[int]) -> Mapping[str, Any]:
    """Return hints that put the channels of these inputs innermost."""
    found = {}
    for k in which:
        array = inputs[k]
        if array is not None and array.ndim > 2:
            found[f"i{k}"] = (0, *range(2, array.ndim), 1)
    return found
