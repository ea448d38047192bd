"""Which variant of a float32 model is quantised: equalised or not, with corrected biases or not.

Each variant's quantised file runs over the samples; the one whose outputs keep most signal is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from clnn.importers.onnx.qdq.equalise import WAYS, Pair, equalised, factors, pairs
from clnn.importers.onnx.qdq.model import QdqModel
from clnn.qdq.bench import Bench, Measured, corrections
from clnn.qdq.signals import Signals
from clnn.records import dataclass
from clnn.types import Array

GAIN = 0.5  # dB that equalisation must gain to be taken where it is not asked for
ENOUGH = 1.05  # a factor nearer to 1 equalises nothing


@dataclass(frozen=True)
class Choice:
    """What is quantised, and what it is like.

    model: with corrected biases, and measured its values. plain, signals: what files keep of the outputs,
    without equalisation and correction, and with; None where nothing was to be compared. equalised: the results
    of products whose channels were scaled; way: how, "" not at all.
    """

    model: QdqModel
    measured: Measured
    plain: Signals | None
    signals: Signals | None
    equalised: frozenset[str] = frozenset()
    way: str = ""


def choose(
    bench: Bench,
    model: QdqModel,
    method: str,
    equalise: bool | None,
    correct_bias: bool,
    compare: bool,
) -> Choice:
    """Return the variant to be quantised.

    equalise: None where it helps. compare: measure what files keep also where there is no choice.
    """
    found = pairs(model) if equalise is not False else []
    measured = bench.measure(model, method, [p.value for p in found], correct_bias)
    variants = [("", model, measured, frozenset[str]())]
    for way in WAYS[model.per_channel] if found else ():
        by = factors(model, found, measured.peaks, way)
        used = [p for p in found if max(by[p.value].max(), 1 / by[p.value].min()) > ENOUGH]
        if used:
            variants.append((way, *_scaled(bench, model, method, used, by, correct_bias)))
    best, plain = None, None
    for way, variant, seen, keys in variants:
        if equalise and way == "" and len(variants) > 1 and not compare:
            continue
        made = _corrected(bench, variant, seen, measured.outputs, compare or len(variants) > 1)
        plain = made[0] if way == "" else plain
        choice = Choice(made[1], seen, plain, made[2], keys, way)
        if best is None or (equalise and best.way == "") or _is_better(choice, best):
            best = choice
    assert best is not None
    return best


def _is_better(one: Choice, best: Choice) -> bool:
    assert one.signals is not None and best.signals is not None
    return one.signals.whole >= best.signals.whole + (GAIN if best.way == "" else 0.0)


def _scaled(
    bench: Bench,
    model: QdqModel,
    method: str,
    used: Sequence[Pair],
    by: Mapping[str, Array],
    correct_bias: bool,
) -> tuple[QdqModel, Measured, frozenset[str]]:
    """Return the model with channels divided, what it shows, and whose channels they are."""
    made = model.replaced(equalised(model, used, by))
    keys = frozenset(n.output[0] for p in used for n in (p.first, p.second))
    return made, bench.measure(made, method, errors=correct_bias), keys


def _corrected(
    bench: Bench,
    model: QdqModel,
    measured: Measured,
    wanted: Sequence[Mapping[str, Array]],
    compare: bool,
) -> tuple[Signals | None, QdqModel, Signals | None]:
    """Return what the model's file keeps, the better of the model and the corrected one, and what that keeps."""
    more = corrections(model, measured)
    if not more and not compare:
        return None, model, None
    plain = bench.cost(model, measured.ranges, wanted)
    if not more:
        return plain, model, plain
    fixed = model.corrected(more)
    signals = bench.cost(fixed, measured.ranges, wanted)
    if signals.whole >= plain.whole:
        return plain, fixed, signals
    return plain, model, plain
