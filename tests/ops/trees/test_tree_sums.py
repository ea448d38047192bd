"""Sums over trees: the kernel against numpy, its tables against a walk from node to node, and onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_op, normal

from clnn.ops.trees.packed import Ensemble, NotPackedError, packed
from clnn.ops.trees.spec import TESTS, TreeSums


class Grown:
    """Trees drawn by chance. spread: leaves have a weight for each column, else for that of their tree."""

    def __init__(self, seed, trees=9, depth=6, features=7, columns=3, spread=False, missing=False):
        self.rng, self.features, self.columns = np.random.default_rng(seed), features, columns
        self.rows, self.entries, self.roots = [], [], []
        self.spread, self.missing = spread, missing
        for tree in range(trees):
            self.roots.append(self.grow(depth if tree % 3 else tree % 2, tree % columns))

    def grow(self, depth, column):
        place = len(self.rows)
        self.rows.append(None)
        if depth == 0 or self.rng.random() < 0.15:
            self.rows[place] = (place, place, 0, 0.0, False)
            for c in range(self.columns) if self.spread else [column]:
                self.entries.append((place, c, self.rng.standard_normal()))
            return place
        yes, no = self.grow(depth - 1, column), self.grow(depth - 1, column)
        missing = self.missing and self.rng.random() < 0.5
        split = np.round(self.rng.standard_normal(), 1)
        self.rows[place] = (yes, no, int(self.rng.integers(self.features)), split, missing)
        return place

    @property
    def ensemble(self):
        yes, no, features, splits, missing = zip(*self.rows, strict=True)
        owners, columns, weights = zip(*self.entries, strict=True)
        whole = [np.array(v) for v in (self.roots, yes, no, features)]
        rest = np.array(splits, np.float32), np.array(missing)
        return Ensemble(
            *whole, *rest, np.array(owners), np.array(columns), np.array(weights, np.float32)
        )

    def sums(self, x, test):
        """Return what a walk of each row through each tree adds."""
        out = np.zeros((len(x), self.columns))
        for row, features in enumerate(x):
            for root in self.roots:
                at = root
                while self.rows[at][0] != at:
                    yes, no, feature, split, missing = self.rows[at]
                    value = features[feature]
                    passes = TESTS[test](value, np.float32(split)) or (missing and np.isnan(value))
                    at = yes if passes else no
                for leaf, column, weight in self.entries:
                    if leaf == at:
                        out[row, column] += np.float32(weight)
        return out


def features(count, columns=7, seed=1):
    return np.round(normal((count, columns), seed), 1)


def op_of(grown, test="<="):
    """Return the op and the tables that it reads."""
    made = packed(grown.ensemble, grown.columns)
    return TreeSums.of(made, grown.columns, test), [made.nodes, made.roots, made.weights]


def check(device, grown, x, test="<=", **more):
    spec, tables = op_of(grown, test)
    check_op(device, spec, [x, *tables], consts=(1, 2, 3), **more)


@pytest.mark.parametrize("test", TESTS)
@pytest.mark.parametrize("spread", [False, True])
def test_tables_are_what_walks_find(test, spread):
    grown, x = Grown(2, spread=spread, missing=True), features(40)
    x[3, 2], x[7] = np.nan, np.nan
    spec, arrays = op_of(grown, test)
    assert spec.spread is spread and spec.missing
    (got,) = spec.reference(x, *arrays)
    np.testing.assert_allclose(got, grown.sums(x, test), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("count", [1, 7, 8, 64, 75, 130])
@pytest.mark.parametrize("spread", [False, True])
def test_rows(device, count, spread):
    check(device, Grown(3, spread=spread), features(count))


@pytest.mark.parametrize("test", TESTS)
def test_comparisons(device, test):
    check(device, Grown(4), features(21), test)


@pytest.mark.parametrize("missing", [False, True])
def test_nan_and_infinity(device, missing):
    x = features(19)
    x[::3, 1], x[4], x[5, 2], x[6, 2] = np.nan, np.nan, np.inf, -np.inf
    check(device, Grown(5, missing=missing), x)


def test_features_in_another_order_of_memory(device):
    check(device, Grown(6), features(21), orders={"i0": (1, 0), "o0": (1, 0)})


@pytest.mark.parametrize("trees", [1, 2, 8, 17])
def test_few_trees_and_one_column(device, trees):
    check(device, Grown(7, trees=trees, columns=1), features(11))


def test_leaves_alone(device):
    check(device, Grown(8, trees=3, depth=0), features(9))


def test_columns_that_rows_decide_have_no_tables():
    """What has no weight is not zero for a classifier."""
    grown = Grown(9, spread=True)
    deepest = max(leaf for leaf, _, _ in grown.entries)
    grown.entries = [e for e in grown.entries if e[1] != 1 or e[0] == deepest]
    with pytest.raises(NotPackedError, match="column 1"):
        packed(grown.ensemble, 3)
    grown.entries = [e for e in grown.entries if e[1] != 1]
    assert packed(grown.ensemble, 3).reached.tolist() == [True, False, True]


def test_too_many_nodes_for_their_features():
    grown = Grown(10)
    grown.rows = [(*row[:2], row[2] * 2**27, *row[3:]) for row in grown.rows]
    with pytest.raises(NotPackedError, match="features"):
        packed(grown.ensemble, 3)
