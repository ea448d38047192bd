"""Why two engines keep other boxes: comparisons of a suppression that float32 rounding decides.

Both engines and a float64 evaluation of the same file tell the boxes and scores that each NonMaxSuppression
of it was given. Where an engine kept another box, it is followed to the comparison in which they part: two
overlapping boxes in another order, or an overlap on the other side of the threshold. That is a tie where in
float64 the two compared numbers lie nearer to each other than the engine's largest error there can move them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

NEAR_PX, NEAR_SCORE = 0.25, 2.5e-3  # within which a box of one engine is a box of another
ROUNDING = 1e-3  # errors of float32, of the largest magnitude; what is above is no rounding
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Given:
    """What a NonMaxSuppression was given in one engine, and which boxes it kept, in its order."""

    boxes: Array
    scores: Array
    kept: Sequence[int]


@dataclass(frozen=True)
class Tie:
    """A comparison in which engines part.

    of: what was compared. margins: the difference of the two numbers in float64, and in each engine. moves: by
    which the largest error of each engine can move it; infinite where that is too large to be rounding.
    """

    of: str
    margins: tuple[float, float, float]
    moves: tuple[float, float]

    @property
    def is_one(self) -> bool:
        """Whether rounding decides it: in the engine that is on the other side than float64, it can."""
        exact = self.margins[0]
        sides = zip(self.margins[1:], self.moves, strict=True)
        other = [move for margin, move in sides if (margin > 0) != (exact > 0)]
        return max(self.moves) < np.inf and all(abs(exact) <= move for move in other)

    def __str__(self) -> str:
        exact, one, other = self.margins
        return (
            f"{self.of}: {exact:+.1e} in float64, {one:+.1e} and {other:+.1e} in the engines,"
            f" whose errors move it by up to {self.moves[0]:.1e} and {self.moves[1]:.1e}"
        )


def straight(model: onnx.ModelProto) -> list[tuple[str, str, str, float]]:
    """Put the nodes of each If's else branch in its place, and give what suppressions read and keep as outputs.

    A detector's branches ask whether there are boxes at all. Returns boxes, scores, result and threshold of each
    suppression, in order.
    """
    graph, nodes, found = model.graph, [], []
    for node in graph.node:
        if node.op_type != "If":
            nodes.append(node)
            continue
        branch = next(a.g for a in node.attribute if a.name == "else_branch")
        graph.initializer.extend(branch.initializer)
        nodes += branch.node
        pairs = zip(branch.output, node.output, strict=True)
        nodes += [helper.make_node("Identity", [inner.name], [outer]) for inner, outer in pairs]
    del graph.node[:]
    graph.node.extend(nodes)
    values = _constants(graph)
    for node in graph.node:
        if node.op_type == "NonMaxSuppression":
            boxes, scores, _, threshold, *_ = node.input
            found.append((boxes, scores, node.output[0], float(values[threshold].ravel()[0])))
            kinds = TensorProto.FLOAT, TensorProto.FLOAT, TensorProto.INT64
            graph.output.extend(
                helper.make_tensor_value_info(name, kind, None)
                for name, kind in zip(found[-1], kinds, strict=False)
            )
    return found


def in_float64(model: onnx.ModelProto, names: Sequence[str], feeds: Mapping[str, Array]) -> Any:
    """Return values of a model, name -> array, computed in float64 by ONNX's reference evaluator."""
    from onnx.reference import ReferenceEvaluator

    made = {out: node for node in model.graph.node for out in node.output}
    needed, todo = set[int](), [*names]
    while todo:
        node = made.get(todo.pop())
        if node is not None and id(node) not in needed:
            needed.add(id(node))
            todo += node.input
    graph = onnx.GraphProto(name="wide")
    graph.node.extend(node for node in model.graph.node if id(node) in needed)
    for node in graph.node:
        _widen(node)
    graph.initializer.extend(map(_wide, model.graph.initializer))
    for given, into in ((feeds, graph.input), (names, graph.output)):
        into.extend(helper.make_tensor_value_info(name, TensorProto.DOUBLE, None) for name in given)
    wide = helper.make_model(graph, opset_imports=model.opset_import)
    found = ReferenceEvaluator(wide).run(
        None, {name: array.astype(np.float64) for name, array in feeds.items()}
    )
    return dict(zip(names, found, strict=True))


def ties(one: Given, other: Given, exact: Given, threshold: float) -> list[Tie] | None:
    """Return the comparisons in which a suppression parts in two engines, none where it keeps the same.

    exact: what it is given in float64. None where boxes of one have no counterpart in another.
    """
    places = [_matched(engine, exact) for engine in (one, other)]
    if None in [place if place is None else 0 for place in places]:
        return None
    mine, its = (_in_order(e, p) for e, p in zip((one, other), places, strict=True))
    found = _Search((mine, its), exact, threshold)
    for box in sorted({*mine.kept} ^ {*its.kept}):
        found.follow(box)
    return found.ties if found.is_whole else None


class _Search:
    """Follows boxes that one of two engines keeps to the comparisons in which these part."""

    def __init__(self, engines: tuple[Given, Given], exact: Given, threshold: float) -> None:
        self._engines, self._exact, self._threshold = engines, exact, threshold
        self._kept = [{*e.kept} for e in engines]
        self._seen: set[int] = set()
        self.ties: list[Tie] = []
        self.is_whole = True  # whether each was followed to its comparison

    def follow(self, box: int) -> None:
        """Find why one engine keeps a box and the other does not."""
        if box in self._seen:
            return
        self._seen.add(box)
        keeps = self._kept.index(next(kept for kept in self._kept if box in kept))
        there, here = self._engines[1 - keeps], self._engines[keeps]
        better = [
            k
            for k in there.kept
            if k != box
            and there.scores[k] >= there.scores[box]
            and overlap(there.boxes, k, box) > self._threshold
        ]
        if not better:
            self.is_whole = False
        for k in better[:1]:
            if overlap(here.boxes, k, box) <= self._threshold:
                self._note_overlap(k, box)
            elif here.scores[k] <= here.scores[box]:
                self._seen.add(k)  # which the one that keeps this box drops for it
                self._note_order(k, box)
            elif k in self._kept[keeps]:
                self.is_whole = False
            else:
                self.follow(k)

    def _note_order(self, a: int, b: int) -> None:
        every = (self._exact, *self._engines)
        margins = [float(e.scores[a] - e.scores[b]) for e in every]
        moves = [2 * self._error(e.scores, self._exact.scores) for e in self._engines]
        self._note(f"scores of {self._exact.scores[a]:.4f}", margins, moves)

    def _note_overlap(self, a: int, b: int) -> None:
        every = (self._exact, *self._engines)
        margins = [overlap(e.boxes, a, b) - self._threshold for e in every]
        moves = [
            overlap_moves(self._exact.boxes, a, b, self._error(e.boxes, self._exact.boxes))
            for e in self._engines
        ]
        self._note(f"an overlap and {self._threshold:.2f}", margins, moves)

    def _note(self, of: str, margins: Sequence[float], moves: Sequence[float]) -> None:
        exact, *engines = margins
        self.ties.append(Tie(of, (exact, engines[0], engines[1]), (moves[0], moves[1])))

    def _error(self, values: Array, exact: Array) -> float:
        """Return the largest error, infinite where that is none of rounding."""
        error = float(np.abs(values - exact).max())
        return error if error <= ROUNDING * float(np.abs(exact).max()) else np.inf


def overlap(boxes: Array, a: int, b: int) -> float:
    """Return the area that two boxes share, of the area that either has."""
    both = float(_shared(boxes, a, b).prod())
    areas = [float((boxes[k, 2:] - boxes[k, :2]).prod()) for k in (a, b)]
    return both / (sum(areas) - both)


def overlap_moves(boxes: Array, a: int, b: int, error: float) -> float:
    """Return by how much an overlap moves, to first order, where each edge of both boxes moves by `error`."""
    shared = _shared(boxes, a, b)
    either = [boxes[k, 2:] - boxes[k, :2] for k in (a, b)]
    both = float(shared.prod())
    area = sum(float(sides.prod()) for sides in either) - both
    by_both, by_either = (2 * error * float(np.sum(sides)) for sides in (shared, either))
    return (by_both + both / area * (by_either + by_both)) / area


def _shared(boxes: Array, a: int, b: int) -> Array:
    """Return the sides of what two boxes share."""
    low = np.maximum(boxes[a, :2], boxes[b, :2])
    return np.clip(np.minimum(boxes[a, 2:], boxes[b, 2:]) - low, 0, None)


def _matched(engine: Given, exact: Given) -> Array | None:
    """Return which exact box each of an engine's is, None where that is not told."""
    if engine.boxes.shape != exact.boxes.shape:
        return None
    apart = np.abs(engine.boxes[:, None] - exact.boxes[None]).max(2) / NEAR_PX
    apart = np.maximum(apart, np.abs(engine.scores[:, None] - exact.scores[None]) / NEAR_SCORE)
    nearest = apart.argmin(1)
    is_one_to_one = len(np.unique(nearest)) == len(nearest) and (apart.min(1) < 1).all()
    return nearest if is_one_to_one else None


def _in_order(engine: Given, places: Array) -> Given:
    """Return what an engine was given in the order of the exact boxes."""
    back = places.argsort()
    return Given(engine.boxes[back], engine.scores[back], [int(places[k]) for k in engine.kept])


def _constants(graph: onnx.GraphProto) -> dict[str, Array]:
    found = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            found[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
    return found


def _wide(tensor: onnx.TensorProto) -> onnx.TensorProto:
    if tensor.data_type != TensorProto.FLOAT:
        return tensor
    return numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name)


def _widen(node: onnx.NodeProto) -> None:
    """Have a node compute in float64 what it computes in float32."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.TENSOR:
            attribute.t.CopyFrom(_wide(attribute.t))
        elif node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
            attribute.i = TensorProto.DOUBLE


def explain(path: str, image: Array, clnn_session: Any, engine_of: Any) -> list[Tie] | None:
    """Return the comparisons of an image in which clnn and another engine part; None where they are not found.

    clnn_session, engine_of: return what runs a model's bytes, from feeds to name -> array.
    """
    model = onnx.load(path)
    suppressions = straight(model)
    feeds = {"image": image}
    runs = [make(model.SerializeToString())(feeds) for make in (clnn_session, engine_of)]
    names = [name for boxes, scores, _, _ in suppressions for name in (boxes, scores)]
    exact = in_float64(model, names, feeds)
    for boxes, scores, kept, threshold in suppressions:
        one, other = (
            Given(run[boxes][0], run[scores][0, 0], run[kept][:, 2].tolist()) for run in runs
        )
        found = ties(one, other, Given(exact[boxes][0], exact[scores][0, 0], ()), threshold)
        if found is None or found:
            return found
    return None
