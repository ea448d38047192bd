"""Running a verified graph: one session for the whole graph, made when it is first needed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from clnn.apis.openvx.builder import Builder, Watch, extents, shape_of
from clnn.apis.openvx.graph import Graph
from clnn.apis.openvx.lower import lower
from clnn.apis.openvx.reference import Context
from clnn.apis.openvx.tensor import Box, Store, Tensor
from clnn.graph.ir import Graph as Network
from clnn.graph.passes import optimise
from clnn.options import Options
from clnn.runtime.device.device import select
from clnn.runtime.run.session import Session


@dataclass(frozen=True)
class Compiled:
    """What a verified graph was lowered to, valid while all watches still hold."""

    key: str
    network: Network
    inputs: dict[str, tuple[Store, Box]]
    outputs: dict[str, Tensor]
    watches: tuple[Watch, ...]

    @property
    def current(self) -> bool:
        """Whether everything that constants were made from is as it was."""
        return all(state() == seen for state, seen in self.watches)


def digest(network: Network) -> str:
    """Return a hash of everything that shapes a graph, its constants included."""
    found = hashlib.sha256()
    for node in network.nodes:
        found.update(repr((node.spec, node.inputs, node.outputs)).encode())
    found.update(repr((network.inputs, network.outputs, sorted(network.types.items()))).encode())
    for name, array in sorted(network.consts.items()):
        found.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    return found.hexdigest()


def compiled(graph: Graph) -> Compiled:
    """Return the lowered graph, made anew where constants have changed."""
    before: Compiled | None = graph.lowered
    if before is not None and before.current:
        return before
    builder: Builder = lower(graph, graph.verified)
    network = builder.graph()
    outputs = {name: tensor for name, (_, tensor) in builder.outputs.items()}
    made = Compiled(digest(network), network, dict(builder.inputs), outputs, tuple(builder.watches))
    graph.lowered = made
    return made


def session_of(context: Context, made: Compiled) -> Session:
    """Return the session of a lowered graph: one that is kept, or a new one."""
    session: Session | None = context.sessions.get(made.key)
    if session is None:
        session = Session(optimise(made.network), select(context.device), Options())
        context.remember(made.key, session)
    context.sessions.move_to_end(made.key)
    return session


def process(graph: Graph) -> None:
    """Run a verified graph once; tensors are written when all of it has succeeded."""
    made = compiled(graph)
    if not made.outputs:
        return
    session = session_of(graph.home, made)
    feeds = {
        name: np.ascontiguousarray(store.part(box)).reshape(shape_of(extents(box)))
        for name, (store, box) in made.inputs.items()
    }
    results = session(feeds)
    for name, tensor in made.outputs.items():
        tensor.store.part(tensor.place)[...] = results[name].reshape(tensor.dims[::-1])
        tensor.store.version += 1
