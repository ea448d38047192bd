"""Cases of sums over trees."""

from __future__ import annotations

import numpy as np
from harness import normal
from table import add

from clnn.ops.trees.packed import Ensemble, packed
from clnn.ops.trees.spec import TreeSums

# Three trees: a branch with a leaf and a branch of two leaves, a leaf alone, a branch of two leaves.
YES = np.array([1, 1, 3, 3, 4, 5, 7, 7, 8])
NO = np.array([2, 1, 4, 3, 4, 5, 8, 7, 8])
FEATURES = np.array([0, 0, 2, 0, 0, 0, 1, 0, 0])
SPLITS = np.array([0.1, 0, -0.3, 0, 0, 0, 0.2, 0, 0], np.float32)
MISSING = np.array([1, 0, 0, 0, 0, 0, 1, 0, 0], bool)
LEAVES = np.array([1, 3, 4, 5, 7, 8])
COLUMN = np.array([0, 0, 0, 1, 0, 0])


def _case(name: str, count: int, missing: bool, spread: bool) -> None:
    owners = np.repeat(LEAVES, 2) if spread else LEAVES
    columns = np.tile([0, 1], len(LEAVES)) if spread else COLUMN
    weights = normal((len(owners),), 3)
    flags = MISSING & missing
    trees = Ensemble(
        np.array([0, 5, 6]), YES, NO, FEATURES, SPLITS, flags, owners, columns, weights
    )
    made, x = packed(trees, 2), normal((count, 3), 1)
    x[::2, 0] = np.nan
    spec = TreeSums.of(made, 2, "<=")
    add(name, spec, [x, made.nodes, made.roots, made.weights], consts=(1, 2, 3))


_case("trees", 11, False, False)
_case("trees_missing", 11, True, False)
_case("trees_spread", 9, False, True)
_case("trees_few_rows", 3, True, True)
