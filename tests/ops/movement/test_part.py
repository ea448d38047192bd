"""Parts of a batch: copies into other orders, with and without a border, of sources at any address."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_op, normal

from clnn.ops.movement.part import Part
from clnn.types import F32, I8, TensorType


@pytest.mark.parametrize("shape", [(5, 3, 7, 20), (4, 16, 3, 5), (3, 40), (6, 1, 1, 1)])
@pytest.mark.parametrize("start, images", [(0, 1), (1, 2), (0, 3)])
def test_part(device, shape, start, images):
    check_op(device, Part(start, images), [normal(shape)])


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1)])
def test_part_with_a_border_in_another_order(device, order):
    check_op(device, Part(1, 2), [normal((4, 3, 6, 16))], border=2, orders={"o0": order})


def test_images_and_their_type():
    part = Part(2, 3)
    assert part.infer([TensorType((6, 4, 5, 5), I8)]) == (TensorType((3, 4, 5, 5), I8),)
    x = normal((6, 4))
    assert np.array_equal(part.reference(x)[0], x[2:5])
    assert part.infer([TensorType((6,), F32)])[0].shape == (3,)
