"""Models of known shapes on CPUs that begin on the universal set while their own kernels are built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from clnn.compile import Model, Shapes, compile_fixed, load_graph, prepare
from clnn.graph.ir import Graph
from clnn.options import Options
from clnn.runtime.build.program import Device
from clnn.runtime.device.device import DeviceInfo
from clnn.runtime.device.target import target_of
from clnn.runtime.doctor.selection import select_device
from clnn.runtime.run.geared_session import GearedSession
from clnn.runtime.run.parts import Build
from clnn.runtime.run.session import Session
from clnn.runtime.run.universal import begins_on_set, sets_of
from clnn.timeline import mark
from clnn.tune.choose import chooser

# Characters of programs besides the set's that a model may lack to begin on it: some seconds of a compiler.
MOST_TEXT = 60_000


class _NotWorthItError(Exception):
    """Much of the model is not in the set."""


def compile_geared(
    model: Model,
    device: str | int | None = None,
    options: Options | None = None,
    shapes: Shapes | None = None,
) -> Session:
    """Return what compile_fixed does, from the universal set at first where options ask for that.

    A model of which the set lacks so much that kernels are built for seconds runs on its own at once.
    """
    options, info = options or Options(), select_device(device)
    if not begins_on_set(options, info):
        return compile_fixed(model, device, options, shapes)
    graph = load_graph(model, shapes)  # in memory: its file may change when this has returned
    mark("model")
    on_set, at_once = (replace(options, specialise=choice) for choice in ("never", "always"))
    try:
        first = _session(graph, info, on_set, None, _build_little)
    except _NotWorthItError:
        return compile_fixed(graph, device, at_once)

    def own(opened: Device, build: Build) -> Session:
        return _session(graph, info, at_once, opened, build)

    return GearedSession(first, own)


def _session(
    graph: Graph, info: DeviceInfo, options: Options, opened: Device | None, build: Build
) -> Session:
    """Return the session of a graph before its passes, its programs built on `opened`, else a new context."""
    made = prepare(graph, options, device=info.index)
    mark("passes")
    with chooser(info, options.tune) as choose:
        return Session(made, info, options, choose, device=opened, build=build)


def _build_little(device: Device, sources: Mapping[str, str]) -> None:
    """Build programs unless that takes long; the set's own, too, once for a device. Raises _NotWorthItError."""
    apart = {title: source for title, source in sources.items() if not device.has(source)}
    sets = sets_of(target_of(device.info)) if apart else {}
    lacking = {title: source for title, source in sets.items() if source in apart.values()}
    apart = {title: source for title, source in apart.items() if source not in lacking.values()}
    if sum(map(len, apart.values())) > MOST_TEXT:
        raise _NotWorthItError
    device.build(lacking | apart)  # the set by its own name, whatever runs on it first
    device.build(sources)
