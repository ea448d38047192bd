"""Sessions of a model's variants over the samples: ranges, average errors, outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np

from clnn.graph.histograms import RangeObserver
from clnn.graph.rounding import Range
from clnn.importers.onnx.qdq.model import QdqModel
from clnn.importers.onnx.qdq.observe import observed, scales_as_observed
from clnn.importers.onnx.qdq.write import quantised
from clnn.qdq.signals import Signals, compared
from clnn.records import dataclass
from clnn.types import Array

COMPARED = 32  # samples of which outputs are kept and compared
MOST_ROWS = 256  # whose average errors are kept
OnProgress = Callable[[str, int, int], None]  # what is done, how many of how many
Feed = Mapping[str, Array]
SessionOf = Callable[[Any], Any]  # of a model


@dataclass
class Measured:
    """What a float32 model shows over samples.

    ranges: of the values that are wanted. peaks: the largest magnitude of each channel of other values.
    errors: of products, by their results, (rows, channels): what rounding of weights adds on the average.
    outputs: of each sample that is compared.
    """

    ranges: dict[str, Range]
    peaks: dict[str, Array]
    errors: dict[str, Array]
    outputs: list[dict[str, Array]]


class Bench:
    """Runs variants of one model over the same samples.

    session: returns a session of a model, to be closed. compared: samples whose outputs are. tell: is told
    how far a run is.
    """

    def __init__(
        self, samples: Sequence[Feed], session: SessionOf, on_progress: OnProgress | None = None
    ) -> None:
        self.samples, self.session = samples, session
        self.compared = spread(samples, COMPARED)
        self.tell = on_progress or (lambda what, done, total: None)

    def run(
        self, model: Any, what: str, samples: Sequence[Feed] = ()
    ) -> Iterator[dict[str, Array]]:
        """Yield the outputs of a model for each sample; `samples`: others than the bench's."""
        samples = samples or self.samples
        self.tell(what, 0, len(samples))
        with closing(self.session(model)) as session:
            for place, feed in enumerate(samples, 1):
                yield dict(session(feed))
                self.tell(what, place, len(samples))

    def counted(self, what: str, names: Sequence[Any]) -> Iterator[Any]:
        """Yield these, and tell how many are done."""
        self.tell(what, 0, len(names))
        for place, name in enumerate(names, 1):
            yield name
            self.tell(what, place, len(names))

    def measure(
        self, model: QdqModel, method: str, peaks: Sequence[str] = (), errors: bool = False
    ) -> Measured:
        """Return what a float32 model shows over the samples; peaks: values of which these are wanted."""
        observer = RangeObserver(model.wanted(), method)
        public = [v.name for v in model.model.graph.output if v.type.HasField("tensor_type")]
        proto, places = observed(model, [*peaks, *public], errors)
        found = Measured({}, {}, {}, [])
        rows: dict[str, list[Array]] = {key: [] for key in places}
        what = "measuring values"
        kept = places_of(len(self.samples), COMPARED)
        for place, values in enumerate(self.run(proto, what)):
            observer.see(values)
            if place in kept:
                found.outputs.append({name: values[name] for name in public})
            for name in peaks:
                top = _tops(values[name])
                found.peaks[name] = np.maximum(found.peaks.get(name, top), top)
            for key, name in places.items():
                if sum(map(len, rows[key])) < MOST_ROWS:
                    rows[key].append(values[name].astype(np.float64))
        if observer.counts:
            for values in self.run(proto, "counting values"):
                observer.count(values)
        found.ranges = observer.ranges()
        found.errors = {key: np.concatenate(parts) for key, parts in rows.items()}
        return found

    def cost(self, model: QdqModel, ranges: Mapping[str, Range], wanted: Sequence[Feed]) -> Signals:
        """Return what the quantised file of a model keeps of the outputs that are wanted."""
        made = self.run(quantised(model, ranges), "comparing", self.compared)
        return compared(wanted, made)


def spread(samples: Sequence[Feed], count: int) -> list[Feed]:
    """Return so many of the samples at most, evenly spread."""
    return [samples[k] for k in places_of(len(samples), count)]


def places_of(total: int, count: int) -> list[int]:
    """Return so many places of a row at most, evenly spread."""
    return [int(x) for x in np.linspace(0, total - 1, min(count, total)).round()]


def corrections(model: QdqModel, measured: Measured) -> dict[str, Array]:
    """Return what takes average errors from biases, by the results of products.

    A mean of few rows that differ says little of other inputs: it is lessened by as much of its square as
    is the variance that it has itself. So what is corrected lowers the error over the samples, and can be
    expected to elsewhere. One row alone says nothing of that, and corrects nothing.
    """
    steps, found = model.steps(measured.ranges), {}
    for node in model.products():
        key = node.output[0]
        rows = measured.errors.get(key)
        if rows is None or len(rows) < 2:
            continue
        mean = rows.mean(0)
        doubt = rows.var(0, ddof=1) / len(rows)
        square = np.maximum(mean**2, np.finfo(np.float64).tiny)
        share = np.maximum(0.0, 1.0 - doubt / square)
        share = share * scales_as_observed(model, node, float(steps[node.input[0]][0]))
        if np.isfinite(mean).all() and (mean * share).any():
            found[key] = -mean * share
    return found


def _tops(values: Array) -> Array:
    """Return the largest magnitude of each channel, axis 1."""
    magnitudes = np.abs(values.astype(np.float64))
    return np.asarray(magnitudes.max((0, *range(2, values.ndim)), initial=0.0))
