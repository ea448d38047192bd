"""TreeSums: what the leaves of all trees that rows of features reach add to columns."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from clnn.errors import DTypeError, ShapeError
from clnn.ops.launch import Arg, Const, In, Launch, Out, Variant, grid
from clnn.ops.problem import Problem, required
from clnn.ops.spec import OpSpec
from clnn.ops.trees.packed import LEAF, Packed
from clnn.records import dataclass
from clnn.types import F32, I32, Array, TensorType

TESTS = {
    "<=": np.less_equal,
    "<": np.less,
    ">=": np.greater_equal,
    ">": np.greater,
    "==": np.equal,
    "!=": np.not_equal,
}
WALKS = 8  # that a work-item goes on with by turns, so that each waits for memory while others run
BLOCK = 64  # rows of a work-item on a CPU: a tree is read once for all of them
STEP = 100  # operations of a product that take as long as a step of a walk


@dataclass(frozen=True)
class TreeSums(OpSpec):
    """Inputs: x (n, features), nodes, roots, weights. Output: sums (n, columns), in the order of the trees.

    A row goes from node to node of each tree: to the yes-node where its feature passes `test` against the node's
    split, else to the node behind that. nodes: pairs of int32: the bits of the split, and yes << shift | feature,
    where yes counts from the tree's root; of a leaf: a number, and LEAF. missing: the highest of the `shift` bits says
    that NaN passes. roots: pairs of int32: a tree's first node, and its column. spread: a leaf's number is a row of
    weights (leaves, columns), of which each is added to its column; else the bits of what it adds to the tree's column.
    steps: of one row's walks, on average.
    """

    columns: int
    shift: int
    test: str = "<="
    missing: bool = False
    spread: bool = False
    steps: int = 1

    kind = "trees"

    @staticmethod
    def of(tables: Packed, columns: int, test: str) -> TreeSums:
        """Return the op that reads tables."""
        more = tables.missing, tables.spread, tables.steps
        return TreeSums(columns, tables.shift, test, *more)

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the type of the sums. Raises ShapeError or DTypeError."""
        x, nodes, roots, weights = (required(inputs, k) for k in range(4))
        if x.dtype != F32 or weights.dtype != F32 or nodes.dtype != I32 or roots.dtype != I32:
            raise DTypeError(f"trees over {x.dtype.name}: features must be float32.")
        if x.rank != 2 or any(t.rank != 2 or t.shape[1] != 2 for t in (nodes, roots)):
            raise ShapeError(f"trees over features {x.shape}: these must be (n, features).")
        return (TensorType((x.shape[0], self.columns), F32),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return what walks of all rows through one tree after the other add."""
        x, nodes, roots, weights = (required(inputs, k) for k in range(4))
        splits = np.ascontiguousarray(nodes[:, 0]).view(np.float32)
        sums = np.zeros((len(x), self.columns), x.dtype)
        rows = np.arange(len(x))
        for root, column in roots:
            at = np.full(len(x), root)
            while (going := nodes[at, 1] != LEAF).any():
                at = np.where(going, root + self._next(x, nodes[at, 1], splits[at], rows), at)
            if self.spread:
                sums += weights[nodes[at, 0]]
            else:
                sums[:, column] += splits[at]
        return (sums,)

    def _next(self, x: Array, ways: Array, splits: Array, rows: Array) -> Array:
        """Return where rows go from branches, counted from the root."""
        nan_passes = 1 << self.shift - 1
        feature = ways & ((nan_passes if self.missing else 2 * nan_passes) - 1)
        value = x[rows, np.where(ways == LEAF, 0, feature)]
        passes = TESTS[self.test](value.astype(np.float32), splits)
        if self.missing:
            passes = passes | (np.isnan(value) & (ways & nan_passes != 0))
        return np.asarray((ways >> self.shift) + ~passes)

    def variants(self, problem: Problem) -> list[Variant]:
        """Return the one kernel: some walks by turns, of several rows or, where these are few, of trees."""
        x, target = problem.input(0), problem.target
        tables = [problem.input(k).const for k in (1, 2, 3)]
        assert all(table is not None for table in tables), "trees are constants"
        block = BLOCK if target.is_cpu else 1
        count = x.type.shape[0]
        global_size, local = grid(target, (count + block - 1) // block)
        name = f"trees_{'spread' if self.spread else 'columns'}_b{block}"
        params: dict[str, Any] = {
            "name": name,
            "src": x.layout.unpadded(),
            "dst": problem.outputs[0].layout.unpadded(),
            "block": block,
            "walks": WALKS,
            "trees": problem.input(2).type.shape[0],
            "shift": self.shift,
            "test": self.test,
            "missing": self.missing,
            "spread": self.spread,
            "wg": local,
        }
        packed = [Const(partial(np.ascontiguousarray, table)) for table in tables]
        args: tuple[Arg, ...] = (In(0), *packed, Out(0))
        return [Variant(name, (Launch("trees/trees.cl.mako", params, args, global_size, local),))]

    def flops(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        """A comparison and an address for each step, and an addition for each leaf."""
        return outputs[0].shape[0] * 2 * self.steps

    def work(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        """Steps wait for memory."""
        return outputs[0].shape[0] * STEP * self.steps
