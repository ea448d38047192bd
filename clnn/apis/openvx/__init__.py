"""clnn.openvx: OpenVX's neural-network extension, with the names of its documents.

Functions raise VxError, which carries the status, instead of returning it or a null reference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clnn.apis.openvx import (
    binary,
    copies,
    enums,
    graph,
    layers,
    model,
    objects,
    reference,
    tensor,
)
from clnn.apis.openvx.status import VxError

if TYPE_CHECKING:
    from clnn.apis.openvx.binary import *  # noqa: F403
    from clnn.apis.openvx.copies import *  # noqa: F403
    from clnn.apis.openvx.graph import *  # noqa: F403
    from clnn.apis.openvx.layers import *  # noqa: F403
    from clnn.apis.openvx.model import *  # noqa: F403
    from clnn.apis.openvx.objects import *  # noqa: F403
    from clnn.apis.openvx.reference import *  # noqa: F403
    from clnn.apis.openvx.tensor import *  # noqa: F403

    def __getattr__(name: str) -> Any: ...


_MODULES = (reference, tensor, copies, objects, model, graph, layers, binary)
_PUBLIC: dict[str, Any] = {
    name: value
    for module in _MODULES
    for name, value in vars(module).items()
    if name.startswith("vx") and callable(value)
}
for _group in enums.GROUPS:
    _PUBLIC.update(_group.__members__)
globals().update(_PUBLIC)

__all__ = ["VxError", *sorted(_PUBLIC)]
