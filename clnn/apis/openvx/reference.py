"""References: counted handles of one context, and the context itself."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from clnn.apis.openvx.enums import ContextAttribute, ReferenceAttribute, Status, Type
from clnn.apis.openvx.status import VxError, member, parameters
from clnn.apis.sessions import SessionStore

if TYPE_CHECKING:
    from clnn.runtime.run.session import Session

MAX_DIMENSIONS = 6
SESSIONS = 16  # compiled graphs that a context keeps

_R = TypeVar("_R", bound="Reference")


class Reference:
    """An OpenVX object: valid while its reference count and that of its context are above 0.

    A context manager: leaving the block releases one reference, if one is left. What a graph or a
    node uses stays in use there after the application has released it.
    """

    type: ClassVar[Type] = Type.VX_TYPE_REFERENCE

    def __init__(self, context: Context | None) -> None:
        self.count = 1
        self.name = ""
        self.home: Context = context if context is not None else self  # type: ignore[assignment]
        if context is not None:
            context.references.add(self)

    @property
    def valid(self) -> bool:
        """Whether the application still holds a reference."""
        return self.count > 0 and self.home.count > 0

    def destroy(self) -> None:
        """Free what the object holds; called when its count becomes 0."""
        self.home.references.discard(self)

    def __enter__(self: _R) -> _R:
        return self

    def __exit__(self, *error: object) -> None:
        if self.valid:
            release(self)

    def __repr__(self) -> str:
        return f"<{self.type.name} {self.name or hex(id(self))} count {self.count}>"


class Context(Reference):
    """The implementation: a device, a way of computing, and every object made in it.

    device: as in clnn.compile_model. conformance: whether nodes compute as the conformance suite
    does where that differs from the specification. Safe to process from several threads: runs of
    one context take turns.
    """

    type = Type.VX_TYPE_CONTEXT

    def __init__(self, device: str | int | None, conformance: bool) -> None:
        super().__init__(None)
        self.device = device
        self.conformance = conformance
        self.references: set[Reference] = set()
        self.sessions: SessionStore[Session] = SessionStore(SESSIONS)
        self.lock = threading.RLock()

    def destroy(self) -> None:
        """Invalidate every object made in this context and free device memory."""
        for reference in list(self.references):
            reference.count = 0
        self.references.clear()
        self.sessions.clear()


def require(kind: type[_R], reference: Any, what: str) -> _R:
    """Return a reference after checking its type and that it is alive.

    Raises VxError (invalid reference).
    """
    if not isinstance(reference, kind):
        raise VxError(
            Status.VX_ERROR_INVALID_REFERENCE,
            f"{what} is {reference!r}: it must be a {kind.type.name.lower()[8:]}.",
        )
    if not reference.valid:
        raise VxError(
            Status.VX_ERROR_INVALID_REFERENCE, f"{what} was released. Keep it while it is used."
        )
    return reference


def same_context(context: Context, reference: Reference, what: str) -> None:
    """Raise VxError (invalid scope) where a reference is of another context."""
    if reference.home is not context:
        raise VxError(
            Status.VX_ERROR_INVALID_SCOPE,
            f"{what} was made in another context. Make it in the context of the graph.",
        )


def release(reference: Reference) -> Status:
    """Take one reference away; the object is gone when none is left."""
    reference.count -= 1
    if reference.count == 0:
        reference.destroy()
    return Status.VX_SUCCESS


def vxCreateContext(device: str | int | None = None, conformance: bool = False) -> Context:
    """Return a new context.

    device: "auto", "cpu", "gpu", an index or part of a name (default: CLNN_DEVICE); looked for
    when a graph runs. conformance: compute as the conformance suite does where that differs from
    the specification's formulas (see docs/openvx.md).
    """
    return Context(device, bool(conformance))


def vxReleaseContext(context: Context) -> Status:
    """Release a context; with its last reference every object made in it becomes invalid."""
    return release(require(Context, context, "context"))


def vxQueryContext(context: Context, attribute: int) -> int:
    """Return an attribute: the maximum number of tensor dimensions, or the live references."""
    require(Context, context, "context")
    which = member(ContextAttribute, attribute, "attribute")
    if which is ContextAttribute.VX_CONTEXT_MAX_TENSOR_DIMENSIONS:
        return MAX_DIMENSIONS
    return len(context.references)


def vxRetainReference(reference: Reference) -> Status:
    """Take one more reference to an object."""
    require(Reference, reference, "reference").count += 1
    return Status.VX_SUCCESS


def vxReleaseReference(reference: Reference) -> Status:
    """Release one reference to any object."""
    return release(require(Reference, reference, "reference"))


def vxQueryReference(reference: Reference, attribute: int) -> Any:
    """Return the count, the type or the name of an object."""
    require(Reference, reference, "reference")
    which = member(ReferenceAttribute, attribute, "attribute")
    if which is ReferenceAttribute.VX_REFERENCE_COUNT:
        return reference.count
    return reference.type if which is ReferenceAttribute.VX_REFERENCE_TYPE else reference.name


def vxSetReferenceName(reference: Reference, name: str) -> Status:
    """Name an object; the name appears in messages, and exported graphs keep it."""
    require(Reference, reference, "reference")
    if not isinstance(name, str) or len(name) > 64:
        raise parameters(f"name is {name!r}: it must be text of at most 64 characters.")
    reference.name = name
    return Status.VX_SUCCESS
