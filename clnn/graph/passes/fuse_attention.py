"""Two products with a softmax between them become one op, whose scores stay in a core's cache.

    q -+                            v -+
       product - steps - softmax - product - [heads behind queries]
    k -+

Between the softmax and the second product zeros may be put where it is NaN; that product may also be the
transposed one, of transposed values and weights. Steps are what was fused behind the first product: a scale,
masks, biases. A Where that replaces scores by a number, as masks are written too, is a step that
replaces them where its operand is below infinity. A factor of all of q or of k
becomes the scale; a reshape that puts axes of extent 1 in front of the scores, and one that takes them
away, as exporters write around a mask, are left out. Addends between a reshape that divides the axes of queries
and keys, and one that joins them, such as the two of decomposed relative positions, are added to each other first.
What was fused behind the second product, such as a residual sum, is a node of its own again.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from clnn.graph.ir import Graph, Node
from clnn.graph.passes.dead import remove_dead
from clnn.graph.passes.fuse_post_ops import operands_from
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.elementwise.logic import Logic
from clnn.ops.gemm.spec import ADDEND, Gemm
from clnn.ops.movement.views import Expand, Reshape, Transpose
from clnn.ops.rows.softmax import Softmax
from clnn.ops.shared.functions import PostOp
from clnn.ops.spec import OpSpec
from clnn.ops.transformer.attend import Attention
from clnn.types import F32, Array, TensorType, broadcast_shapes

# Of a scale of scores; beyond it and its reciprocal factors stay apart, since float32 may lack their product.
LEAST = 2.0**-100


def fuse_attention(graph: Graph) -> Graph:
    """Return `graph` with attention as single nodes, for float32, however it is stored, and extents that are known."""
    return remove_dead(_Fusing(graph).run())


class _Fusing:
    """The pass at work: who makes and who reads each value, and what became of nodes."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.types, self.consts = graph, dict(graph.types), dict(graph.consts)
        self.producers, self.uses = graph.producers(), graph.consumers()
        self.public = set(graph.outputs.values())
        self.views: list[Node] = []

    def run(self) -> Graph:
        """Return the graph with what was found."""
        nodes: list[Node] = []
        behind: dict[str, list[Node]] = {}
        for node in self.graph.nodes:
            if node.name in behind:
                nodes += behind[node.name]
                continue
            self.views = []
            fused = self.attention(node)
            if fused is None:
                for view in self.views:  # made for what turned out to be no attention
                    del self.types[view.name]
                nodes.append(node)
                continue
            nodes += self.views
            turn, spec = self.turns(node), fused.spec
            assert isinstance(spec, Attention)
            if spec.turned:
                nodes += self.turned_back(fused)
            elif turn is None:
                nodes += self.with_steps(fused, node)
            else:
                spec = replace(spec, turned=1)
                origin = f"{fused.origin} + {turn.origin}"
                fused = replace(fused, spec=spec, outputs=turn.outputs, origin=origin)
                behind[turn.name] = self.with_steps(fused, node)
        return self.graph.with_nodes(nodes, types=self.types, consts=self.consts)

    def attention(self, mixing: Node) -> Node | None:
        """Return a product as the end of an attention, None where it is none.

        One that is turned though the product is not: that was the transposed one.
        """
        spec = mixing.spec
        if not isinstance(spec, Gemm) or mixing.inputs[1] == mixing.inputs[0]:
            return None
        plain = Gemm(trans_a=spec.trans_a, trans_b=spec.trans_b, post_ops=spec.post_ops)
        if spec != plain or any(mixing.inputs[ADDEND : ADDEND + 1]):
            return None
        ways = (0, spec.trans_a), (1, not spec.trans_b)
        for which, transposed in ways[: 1 if spec.post_ops else 2]:
            found = self.weights(mixing.inputs[which], transposed)
            made = None if found is None else self.scores(found[0].inputs[0])
            if found is None or made is None:
                continue
            values = mixing.inputs[1 - which]
            trans_v = (spec.trans_b, not spec.trans_a)[which]
            attention = Attention(made[0], trans_v, which == 1, found[1])
            return self.checked(mixing, found[0], attention, (*made[1], values))
        return None

    def checked(
        self, mixing: Node, softmax: Node, spec: Attention, inputs: tuple[str | None, ...]
    ) -> Node | None:
        """Return the node of an attention, None where its shapes are none that it takes."""
        values, made = self.types[inputs[-1] or ""], self.types[mixing.outputs[0]]
        scores = spec.scores.infer([None if n is None else self.types[n] for n in inputs[:-1]])[0]
        if made.dtype != F32 or values.rank < 2 or made.rank < 2 + spec.turned:
            return None
        if scores.shape[:-2] != made.shape[:-2]:
            return None
        origin = f"{softmax.origin} + {mixing.origin}"
        return Node(mixing.name, spec, inputs, mixing.outputs, origin)

    def weights(self, name: str | None, transposed: bool) -> tuple[Node, bool] | None:
        """Return the softmax that a product takes, and whether its NaN become 0; None where there is none.

        transposed: the product takes it as columns, which a transpose in front makes rows again.
        """
        node = self.above(name)
        if transposed:
            rank = self.types[name or ""].rank
            order = (*range(rank - 2), rank - 1, rank - 2)
            turn = node.spec if node is not None else None
            if node is None or not isinstance(turn, Transpose) or tuple(turn.perm) != order:
                return None
            node = self.above(node.inputs[0])
        zeros = node is not None and node.spec == Logic("where")
        if node is not None and zeros:
            node = self.without_nan(node)
        if node is None or not isinstance(node.spec, Softmax):
            return None
        rank = self.types[node.outputs[0]].rank
        return (node, zeros) if node.spec == Softmax((rank - 1,)) else None

    def without_nan(self, where: Node) -> Node | None:
        """Return what makes x of `where(is_nan(x), 0, x)`, None where it is something else."""
        test, zero, name = self.above(where.inputs[0]), where.inputs[1] or "", where.inputs[2] or ""
        if test is None or test.spec != Logic("is_nan") or test.inputs[0] != name:
            return None
        number = self.consts.get(zero)
        if number is None or number.size != 1 or number.any() or name in self.public:
            return None
        same = self.types[where.outputs[0]] == self.types[name] and len(self.uses[name]) == 2
        return self.producers.get(name) if same else None

    def turned_back(self, fused: Node) -> list[Node]:
        """Return an attention whose transposed result is asked for, and the view that makes it of this one."""
        out = fused.outputs[0]
        (kind,) = fused.spec.infer([None if n is None else self.types[n] for n in fused.inputs])
        name = f"{out}:turned"
        self.types[name] = kind
        rank = kind.rank
        order = (*range(rank - 3), rank - 2, rank - 1, rank - 3)
        view = Node(name, Transpose(order), (name,), (out,), f"Transpose {fused.name}")
        return [replace(fused, outputs=(name,)), view]

    def with_steps(self, fused: Node, mixing: Node) -> list[Node]:
        """Return an attention and, as a node of its own, the steps of the product that was its end.

        Their operands are seen in the order of the attention's result.
        """
        assert isinstance(mixing.spec, Gemm) and isinstance(fused.spec, Attention)
        if not mixing.spec.post_ops:
            return [fused]
        post_ops, taken = operands_from(mixing.spec.post_ops, 1)
        operands, self.views = [mixing.inputs[k] for k in taken], []
        if fused.spec.turned:
            rank = self.types[mixing.outputs[0]].rank
            operands = [self.beside_turned(name or "", rank) for name in operands]
        out = fused.outputs[0]
        made = f"{out}:attention"
        self.types[made] = self.types[out]
        steps = Node(f"{out}:steps", Eltwise(post_ops), (made, *operands), (out,), mixing.origin)
        return [*self.views, replace(fused, outputs=(made,)), steps]

    def beside_turned(self, name: str, rank: int) -> str:
        """Return an operand of a product's result as it is beside the result with heads behind queries."""
        kind = self.types[name]
        shape = (*(1 for _ in range(rank - kind.rank)), *kind.shape)
        if shape[-3:-1] == (1, 1):
            return name
        order = (*range(rank - 3), rank - 2, rank - 3, rank - 1)
        turned = TensorType(tuple(shape[a] for a in order), kind.dtype)
        made = f"{name}:turned{rank}"
        if name in self.consts:
            self.consts[made] = self.consts[name].reshape(shape).transpose(order)
            self.types[made] = turned
            return made
        wide = name
        if kind.rank < rank:
            full = TensorType(shape, kind.dtype)
            wide = self.view(Reshape(shape), (name,), full, f"{name}:wide{rank}")
        return self.view(Transpose(order), (wide,), turned, made)

    def scores(self, name: str | None) -> tuple[Gemm, tuple[str | None, ...]] | None:
        """Return the product that makes scores, and its inputs; None where something else does."""
        node = self.above(name)
        if node is not None and isinstance(node.spec, Reshape):
            node = self.between_reshapes(node)
        node = node and self.stepped(node)
        if node is None or not isinstance(node.spec, Gemm):
            return None
        inputs, spec = [*node.inputs], node.spec
        while len(inputs) <= ADDEND:
            inputs.append(None)
        ranks = [self.types[n].rank for n in inputs[:2] if n is not None]
        if min(ranks) < 2 or self.types[inputs[0] or ""].dtype != F32:
            return None
        for which in (0, 1):
            source, factor = self.scaled(inputs[which])
            if LEAST <= abs(spec.alpha * factor) <= 1 / LEAST:
                inputs[which], spec = source, replace(spec, alpha=spec.alpha * factor)
        return spec, tuple(inputs)

    def stepped(self, last: Node) -> Node | None:
        """Return scores of which some are replaced by a number as a product with steps, None where they are not.

        Further elementwise steps may stand in front of the replacement and behind it.
        """
        if isinstance(last.spec, Gemm):
            return last
        where = last.spec == Logic("where")
        which = 0
        if where:
            numbers = [self.number(n) for n in last.inputs[1:]]
            which = 1 if numbers[0] is None else 2
        elif not isinstance(last.spec, Eltwise):
            return None
        inner = self.above(last.inputs[which])
        product = inner and self.stepped(inner)
        if product is None or self.types[last.inputs[which] or ""] != self.types[last.outputs[0]]:
            return None
        if not where:
            return _with_steps(product, last.spec.post_ops, last.inputs)  # type: ignore[attr-defined]
        number = numbers[2 - which]
        if number is None or not number < np.inf:
            return None
        other = self.replacing(last.inputs[0] or "", number, keeps=which == 1)
        replaced = (PostOp("replace", operand=1),)
        return None if other is None else _with_steps(product, replaced, (None, other))

    def number(self, name: str | None) -> float | None:
        """Return the one number that a constant is, None where it is another thing."""
        array = self.consts.get(name or "")
        return None if array is None or array.size != 1 else float(array.reshape(()))

    def replacing(self, mask: str, number: float, keeps: bool) -> str | None:
        """Return infinity where a mask keeps scores, and a number where it replaces them."""
        name, kind = f"{mask}:replacing{number}{keeps}", self.types[mask]
        ends = (np.inf, number) if keeps else (number, np.inf)
        if name in self.types:
            return name
        self.types[name] = TensorType(kind.shape, F32)
        if mask in self.consts:
            self.consts[name] = np.where(self.consts[mask], *map(np.float32, ends))
            return name
        values = []
        for end in ends:
            values.append(f"{name}:{end}")
            self.consts[values[-1]] = np.full((), end, np.float32)
            self.types[values[-1]] = TensorType((), F32)
        self.views.append(Node(name, Logic("where"), (mask, *values), (name,), f"Where {mask}"))
        return name

    def between_reshapes(self, last: Node) -> Node | None:
        """Return scores whose steps stand between two reshapes as a product with these steps.

        The first reshape puts axes of extent 1 in front, the last one takes them away.
        """
        steps = self.above(last.inputs[0])
        if steps is None or not isinstance(steps.spec, Eltwise):
            return None
        first = self.above(steps.inputs[0])
        if first is None or not isinstance(first.spec, Reshape):
            return None
        product = self.above(first.inputs[0])
        if product is None or not isinstance(product.spec, Gemm):
            return None
        shape, wide = self.types[product.outputs[0]].shape, self.types[steps.outputs[0]].shape
        if self.types[last.outputs[0]].shape != shape or self.types[first.outputs[0]].shape != wide:
            return None
        if _bare(shape) != _bare(wide):
            added = self.added(steps, shape, wide)
            plus = (PostOp("add", operand=1),)
            return None if added is None else _with_steps(product, plus, (None, added))
        inputs: list[str | None] = [*product.inputs]
        while len(inputs) <= ADDEND:
            inputs.append(None)
        moved: dict[int, int] = {}
        for step in steps.spec.post_ops:
            if step.operand is None or step.operand in moved:
                continue
            found = self.narrowed(steps.inputs[step.operand], len(shape))
            if step.operand == 0 or found is None:
                return None
            moved[step.operand] = len(inputs)
            inputs.append(found)
        own = tuple(
            s if s.operand is None else replace(s, operand=moved[s.operand])
            for s in steps.spec.post_ops
        )
        spec = replace(product.spec, post_ops=(*product.spec.post_ops, *own))
        return replace(product, spec=spec, inputs=tuple(inputs))

    def added(self, steps: Node, shape: tuple[int, ...], wide: tuple[int, ...]) -> str | None:
        """Return the sum of what is added to scores with divided axes, as it lies before these; else None.

        Axes of the scores along which no addend varies stay of extent 1.
        """
        assert isinstance(steps.spec, Eltwise)
        names = [steps.inputs[s.operand or 0] for s in steps.spec.post_ops]
        plain = all(s.fn == "add" and s.operand and not s.params for s in steps.spec.post_ops)
        groups = _divided(shape, wide)
        if not plain or not names or groups is None:
            return None
        kind = TensorType(broadcast_shapes(*(self.types[n or ""].shape for n in names)), F32)
        made = names[0]
        if len(names) > 1:
            spec = Eltwise(tuple(PostOp("add", operand=k) for k in range(1, len(names))))
            made = self.view(spec, (*names,), kind, f"{steps.name}:addends")
        extents = [1] * (len(wide) - kind.rank) + [*kind.shape]
        whole, joined = [1] * len(wide), [1] * len(shape)
        for axis, group in enumerate(groups):
            if any(extents[a] != 1 for a in group):
                joined[axis] = shape[axis]
                for a in group:
                    whole[a] = wide[a]
        for view in (Expand(tuple(whole)), Reshape(tuple(joined))):
            if self.types[made or ""].shape != view.shape:
                kind = TensorType(view.shape, F32)
                made = self.view(view, (made,), kind, f"{steps.name}:{view.kind}")
        return made

    def view(
        self, spec: OpSpec, inputs: tuple[str | None, ...], kind: TensorType, name: str
    ) -> str:
        """Return what a new node in front of an attention makes."""
        if name not in self.types:
            self.types[name] = kind
            self.views.append(Node(name, spec, inputs, (name,), f"{spec.kind} {name}"))
        return name

    def narrowed(self, name: str | None, rank: int) -> str | None:
        """Return an operand with at most `rank` axes, those in front being of extent 1; else None."""
        assert name is not None
        kind = self.types[name]
        extra = kind.rank - rank
        if extra <= 0:
            return name
        if any(d != 1 for d in kind.shape[:extra]):
            return None
        made = f"{name}:narrow{rank}"
        if made not in self.types:
            shape = kind.shape[extra:]
            self.types[made] = TensorType(shape, kind.dtype)
            if name in self.consts:
                self.consts[made] = self.consts[name].reshape(shape)
            else:
                self.views.append(Node(made, Reshape(shape), (name,), (made,), f"Reshape {name}"))
        return made

    def scaled(self, name: str | None) -> tuple[str | None, float]:
        """Return what a value is a multiple of, and the factor."""
        node = self.above(name)
        if node is None or not isinstance(node.spec, Eltwise) or len(node.spec.post_ops) != 1:
            return name, 1.0
        factor = self.factor(node.spec.post_ops[0], node)
        source = node.inputs[0]
        if factor is None or source is None or self.types[source] != self.types[name or ""]:
            return name, 1.0
        return source, factor

    def factor(self, step: PostOp, node: Node) -> float | None:
        """Return the one number that a step multiplies by, None where it does not."""
        if step.fn not in ("mul", "div") or (step.fn == "div" and step.swapped):
            return None
        value: float | None = step.params[0] if step.operand is None and step.params else None
        if step.operand:
            array: Array | None = self.consts.get(node.inputs[step.operand] or "")
            value = None if array is None or array.size != 1 else float(array.reshape(-1)[0])
        if value is None or not value or not abs(value) < float("inf"):
            return None
        return value if step.fn == "mul" else 1 / value

    def turns(self, mixing: Node) -> Node | None:
        """Return the transpose behind a product that puts heads behind queries, None where there is none."""
        name = mixing.outputs[0]
        if len(self.uses[name]) != 1 or name in self.public:
            return None
        (node,), rank = self.uses[name], self.types[name].rank
        order = (*range(rank - 3), rank - 2, rank - 3, rank - 1)
        is_turn = isinstance(node.spec, Transpose) and rank >= 3 and tuple(node.spec.perm) == order
        return node if is_turn else None

    def above(self, name: str | None) -> Node | None:
        """Return what makes a value that one node reads, None where others do or it is an output."""
        if name is None or name in self.public or len(self.uses.get(name, ())) != 1:
            return None
        return self.producers.get(name)


def _with_steps(
    product: Node, steps: tuple[PostOp, ...], sources: tuple[str | None, ...]
) -> Node | None:
    """Return a product with elementwise steps behind its own; sources: of their operands, from 1 on."""
    inputs: list[str | None] = [*product.inputs]
    while len(inputs) <= ADDEND:
        inputs.append(None)
    renamed, taken = operands_from(steps, len(inputs))
    if 0 in taken or not isinstance(product.spec, Gemm):
        return None
    inputs += (sources[k] for k in taken)
    spec = replace(product.spec, post_ops=(*product.spec.post_ops, *renamed))
    return replace(product, spec=spec, inputs=tuple(inputs))


def _divided(shape: tuple[int, ...], wide: tuple[int, ...]) -> list[range] | None:
    """Return which axes of a wider shape each axis is divided into, None where they are no such."""
    groups, start = [], 0
    for extent in shape:
        end, found = start, 1
        while end < len(wide) and (found < extent or (end == start and wide[end] == 1)):
            found *= wide[end]
            end += 1
        if found != extent:
            return None
        groups.append(range(start, end))
        start = end
    return groups if all(d == 1 for d in wide[start:]) else None


def _bare(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape without the ones in front."""
    place = next((a for a, d in enumerate(shape) if d != 1), len(shape))
    return shape[place:]
