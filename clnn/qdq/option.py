"""The model that Options(dtype="int8") stands for: what `clnn quantize` writes, without the file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from clnn.errors import InputNameError, SettingError
from clnn.graph.calibration import check_ranges, missing_range, read_ranges
from clnn.graph.rounding import Range
from clnn.importers.onnx.info import read_info
from clnn.importers.onnx.load import load_model
from clnn.importers.onnx.qdq.model import QdqModel
from clnn.importers.onnx.qdq.whole import whole
from clnn.importers.onnx.qdq.write import quantised
from clnn.qdq.bench import Bench, Feed, SessionOf
from clnn.qdq.search import choose

# Samples as feeds, ranges by value name, or the file of such ranges.
Calibration = Iterable[Mapping[str, Any]] | Mapping[str, Any] | str | os.PathLike[str]
NEEDED = (
    "Options(dtype='int8') needs to know the ranges of values. Give compile_model"
    " calibration=SAMPLES, an iterable of typical feeds, or what clnn.calibrate returned for"
    " them, or its JSON file as Options(calibration=FILE)."
)


def ranges_or_samples(given: Calibration) -> dict[str, Range] | list[Feed]:
    """Return ranges of values, or the samples that give them. Raises SettingError for neither."""
    if isinstance(given, str) and not given:
        raise SettingError(NEEDED)
    if isinstance(given, (str, os.PathLike)):
        return read_ranges(given)
    return check_ranges(given) if isinstance(given, Mapping) else list(given)


def quantised_model(model: Any, given: Calibration, session: SessionOf) -> Any:
    """Return an ONNX model as `clnn quantize` writes it, None where nothing of it can be bytes.

    given: samples, which choose all that the command chooses by default; or ranges, for which values are
    rounded to nearest. session: returns that of a variant.
    Raises SettingError for ranges that lack a value and for samples that are none, InputNameError for
    samples of other inputs, and what the sessions raise.
    """
    known, source = ranges_or_samples(given), source_of(model)
    if not source.wanted():
        return None
    if isinstance(known, dict):
        return quantised(source, _of(source, known))
    check_samples(source.model, known)
    choice = choose(Bench(known, session), source, "minmax", None, True, False)
    return quantised(choice.model, choice.measured.ranges)


def observed_ranges(
    model: Any, samples: Sequence[Feed], session: SessionOf, method: str
) -> dict[str, Range]:
    """Return the ranges of the values of an ONNX model that become bytes. Errors are those of quantised_model."""
    source = source_of(model)
    if not source.wanted():
        return {}
    check_samples(source.model, samples)
    return Bench(samples, session).measure(source, method).ranges


def source_of(model: Any, per_channel: bool = True) -> QdqModel:
    """Return an ONNX model to be quantised. Raises ModelError."""
    return QdqModel(whole(*load_model(model)), per_channel)


def check_samples(model: Any, samples: Sequence[Feed]) -> None:
    """Raise for no samples, or such of other inputs than those of an ONNX model."""
    if not samples:
        raise SettingError(
            "calibration got no samples. Give a list of feeds, {input name: array}; for one feed [feed]."
        )
    names = [value.name for value in read_info(model).inputs]
    for feed in samples:
        if set(feed) != set(names):
            raise InputNameError(
                f"a sample has inputs {', '.join(feed)}, the model {', '.join(names)}."
            )


def _of(source: QdqModel, known: Mapping[str, Range]) -> dict[str, Range]:
    """Return the ranges of the values that are wanted."""
    wanted = source.wanted()
    missing = [name for name in wanted if name not in known]
    if missing:
        raise missing_range(missing)
    return {name: known[name] for name in wanted}
