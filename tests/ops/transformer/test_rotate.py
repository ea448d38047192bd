"""Rotary positions as one op, in every layout."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_op, normal

from clnn.errors import ShapeError
from clnn.ops.transformer.rotate import Rotate
from clnn.types import F64, TensorType


@pytest.mark.parametrize("beside", [False, True], ids=["halves", "pairs"])
@pytest.mark.parametrize("size", [2, 4, 6, 16, 40, 64])
@pytest.mark.parametrize("whole", [False, True], ids=["of_pairs", "of_values"])
def test_pairs_are_turned_in_any_layout(device, beside, size, whole):
    x = normal((2, 3, 5, size))
    tables = [normal((5, size if whole else size // 2), k) for k in (1, 2)]
    for orders in ({}, {"i0": (0, 2, 1, 3)}, {"i0": (0, 1, 3, 2)}, {"o0": (0, 3, 2, 1)}):
        check_op(device, Rotate(beside), [x, *tables], orders=orders)


@pytest.mark.parametrize("beside", [False, True], ids=["halves", "pairs"])
def test_tables_are_computed_and_broadcast(device, beside):
    x = normal((2, 3, 5, 32))
    for shape in ((2, 1, 5, 32), (1, 32), (16,), (2, 3, 1, 16)):
        check_op(device, Rotate(beside), [x, normal(shape, 1), normal((1, *shape)[-4:], 2)])


def test_a_row_longer_than_a_share(device):
    x = normal((1, 9000))
    check_op(device, Rotate(True), [x, normal((1, 9000), 1), normal((1, 9000), 2)])
    check_op(device, Rotate(), [x, normal((4500,), 1), normal((4500,), 2)])


def test_not_a_number_stays_in_its_pair(device):
    x = normal((1, 2, 4, 16))
    x[0, 1, 2, 3], x[0, 0, 0, 5] = np.nan, np.inf
    check_op(device, Rotate(), [x, normal((4, 16), 1), normal((4, 16), 2)])


@pytest.mark.parametrize(
    "shapes",
    [((2, 5), (5,), (5,)), ((2, 4), (3,), (2,)), ((2, 4), (3, 4), (4,)), ((2, 4), (), (4,))],
)
def test_what_does_not_fit_is_refused(shapes):
    with pytest.raises(ShapeError, match=r"rotation of|broadcast"):
        Rotate().infer([TensorType(s) for s in shapes])


def test_other_types_are_refused():
    with pytest.raises(ShapeError, match="float32"):
        Rotate().infer([TensorType((2, 4), F64)] * 3)
