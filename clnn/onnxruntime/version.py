"""Versions: of onnxruntime's interface that is followed, and of clnn."""

from __future__ import annotations

from clnn._version import __version__ as clnn_version

__version__ = "1.32.0"


def get_version_string() -> str:
    """Return the version of onnxruntime's Python interface that this one follows."""
    return __version__


def get_build_info() -> str:
    """Return what this is, with clnn's own version."""
    return f"clnn {clnn_version}, with the Python interface of onnxruntime {__version__}"
