"""Running a verified graph: one session for the whole graph, made when it is first needed."""

from __future__ import annotations

import hashlib

import numpy as np

from clnn.apis.openvx.builder import Watch, extents, shape_of
from clnn.apis.openvx.lower import lower
from clnn.apis.openvx.model import Graph
from clnn.apis.openvx.reference import Context
from clnn.apis.openvx.tensor import Box, Store, Tensor
from clnn.graph.ir import Graph as Network
from clnn.graph.passes import optimise
from clnn.options import Options
from clnn.records import dataclass
from clnn.runtime.doctor.selection import select_device
from clnn.runtime.run.session import Session


@dataclass(frozen=True)
class Compiled:
    """What a verified graph was lowered to, valid while all watches still hold."""

    key: str
    network: Network
    sources: dict[str, tuple[Store, Box]]
    outputs: dict[str, Tensor]
    watches: tuple[Watch, ...]

    @property
    def current(self) -> bool:
        """Whether everything that constants were made from is as it was."""
        return all(state() == seen for state, seen in self.watches)


def digest(network: Network) -> str:
    """Return a hash of everything that shapes a graph, its constants included."""
    total = hashlib.sha256()
    for node in network.nodes:
        total.update(repr((node.spec, node.inputs, node.outputs)).encode())
    total.update(repr((network.inputs, network.outputs, sorted(network.types.items()))).encode())
    for name, array in sorted(network.consts.items()):
        total.update(f"{name} {array.dtype} {array.shape}".encode())
        total.update(array.tobytes())
    return total.hexdigest()


def compiled(graph: Graph) -> Compiled:
    """Return the lowered graph, lowered anew where constants have changed."""
    kept: Compiled | None = graph.lowered
    if kept is None or not kept.current:
        build = lower(graph.verified)
        network = build.graph({public: value for public, (value, _) in build.outputs.items()})
        outputs = {public: tensor for public, (_, tensor) in build.outputs.items()}
        watches = tuple(build.watches)
        kept = Compiled(digest(network), network, build.sources, outputs, watches)
        graph.lowered = kept
    return kept


def session_of(context: Context, graph: Compiled) -> Session:
    """Return the session of a lowered graph: one that is kept, or a new one."""
    session = context.sessions.get(graph.key)
    if session is None:
        session = Session(optimise(graph.network), select_device(context.device), Options())
        context.sessions.put(graph.key, session)
    return session


def process(graph: Graph) -> None:
    """Run a verified graph once; tensors are written when all of it has succeeded."""
    lowered = compiled(graph)
    if not lowered.outputs:
        return
    session = session_of(graph.home, lowered)
    feeds = {
        name: np.ascontiguousarray(store.part(box)).reshape(shape_of(extents(box)))
        for name, (store, box) in lowered.sources.items()
    }
    results = session(feeds)
    for name, tensor in lowered.outputs.items():
        tensor.store.part(tensor.place)[...] = results[name].reshape(tensor.dims[::-1])
        tensor.store.version += 1
