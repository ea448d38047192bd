"""Puts clnn.onnxruntime in the place of onnxruntime, for programs that import that."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

from clnn.logs import log

NAME, OWN = "onnxruntime", "clnn.onnxruntime"
PARTS = (
    "",
    ".capi",
    ".capi._pybind_state",
    ".capi.onnxruntime_pybind11_state",
    ".capi.onnxruntime_inference_collection",
)


class _Refusal:
    """Finder for the rest of onnxruntime's package, which would mix the two."""

    stands_for = NAME

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Refuse submodules of onnxruntime that clnn has not; leave all else to other finders."""
        if not name.startswith(f"{NAME}."):
            return None
        raise ModuleNotFoundError(
            f"{name} is not part of clnn.onnxruntime, which stands for onnxruntime in this process. "
            "docs/onnxruntime.md lists what there is; run this program with onnxruntime itself.",
            name=name,
        )


_refusal = _Refusal()


def install() -> None:
    """Have `import onnxruntime` give clnn.onnxruntime in this process, whether it is installed or not.

    Call it before the program imports onnxruntime: modules that have imported it keep what they have.
    """
    before = sys.modules.get(NAME)
    if before is not None and before.__name__ == NAME:
        log.warning(
            "clnn.onnxruntime: onnxruntime was imported before; modules that did so keep it."
        )
    for name in [n for n in sys.modules if n == NAME or n.startswith(f"{NAME}.")]:
        del sys.modules[name]
    for part in PARTS:
        sys.modules[NAME + part] = importlib.import_module(OWN + part)
    if _refusal not in sys.meta_path:
        sys.meta_path.insert(0, _refusal)


def uninstall() -> None:
    """Undo `install`: later imports of onnxruntime give the package of that name."""
    for name in [n for n in sys.modules if n == NAME or n.startswith(f"{NAME}.")]:
        del sys.modules[name]
    if _refusal in sys.meta_path:
        sys.meta_path.remove(_refusal)
