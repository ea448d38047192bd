"""Compiled networks where models are taken: which files they are, and what can be asked of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from clnn.cache.sections import is_sectioned
from clnn.errors import ModelError, SettingError
from clnn.options import Options

if TYPE_CHECKING:
    from clnn.runtime.run.session import Session


def is_compiled(model: Any) -> bool:
    """Whether a model is the path of a .clnn file."""
    return isinstance(model, (str, os.PathLike)) and is_sectioned(model)


def load_as(
    path: Any,
    device: str | int | None,
    options: Options | None,
    shapes: Mapping[str, Any] | None,
    calibration: Any,
) -> Session:
    """Return the session of a .clnn file where a model may stand.

    Raises SettingError for what was settled when it was made, and what `load` raises.
    """
    from clnn.runtime.run.loading import load

    options = options or Options()
    plain = Options(states=options.states, timeout=options.timeout)
    given = [name for name, value in (("shapes", shapes), ("calibration", calibration)) if value]
    if replace(options, tune=plain.tune) != plain:
        given.append("options other than states and timeout")
    if given:
        raise SettingError(
            f"{os.fspath(path)!r} is a compiled network, in which {' and '.join(given)} cannot be changed."
            " Compile its model anew with them: clnn compile MODEL -o FILE"
        )
    return load(path, device, states=options.states, timeout=options.timeout)


def refuse_compiled(model: Any) -> None:
    """Raise ModelError for a .clnn file where the model itself is wanted."""
    if is_compiled(model):
        raise ModelError(
            f"{os.fspath(model)!r} is a compiled network: it can be run, measured and inspected. For this"
            " the model is needed that it was made from."
        )
