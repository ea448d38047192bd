from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clnn.errors import ShapeError
from clnn.layout import TensorLayout, channels_last, reshape_groups, row_major
from clnn.traced import Open


def elements(layout: TensorLayout) -> np.ndarray:
    """Storage element of every logical index, by the definition."""
    out = np.empty(layout.shape, np.int64)
    for where in np.ndindex(*layout.shape):
        out[where] = layout.offset + sum(i * p for i, p in zip(where, layout.pitches, strict=True))
    return out


def test_the_picture_in_the_module():
    layout = TensorLayout.make((1, 2, 2, 2), channels_last(4), (0, 0, 1, 1), (0, 0, 1, 1))
    assert layout.pitches == (32, 1, 8, 2)
    assert (layout.offset, layout.size) == (10, 32)
    assert elements(layout)[0].tolist() == [[[10, 12], [18, 20]], [[11, 13], [19, 21]]]


def test_line_pitch_is_rounded_up():
    layout = TensorLayout.make((3, 5, 6), align={2: 8})
    assert layout.pitches == (40, 8, 1) and layout.size == 120


def test_element_offset_is_the_first_element_seen_with_a_padding():
    layout = TensorLayout.make((4, 4, 3), None, (2, 2, 0), (2, 2, 0))
    assert layout.element_offset((2, 2, 0)) == 0
    assert layout.element_offset((0, 0, 0)) == layout.offset == 2 * 24 + 2 * 3
    assert layout.element_offset((1, 0, 0)) == layout.offset - 24
    with pytest.raises(ShapeError, match="padding 3 on axis 0 is asked, the layout has 2"):
        layout.element_offset((3, 0, 0))


SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple)


@st.composite
def layouts(draw) -> TensorLayout:
    shape = draw(SHAPES)
    order = draw(st.permutations(range(len(shape))))
    pads = st.lists(st.integers(0, 2), min_size=len(shape), max_size=len(shape))
    return TensorLayout.make(shape, order, draw(pads), draw(pads))


@given(layouts())
@settings(derandomize=True)
def test_elements_are_distinct_and_inside(layout):
    where = elements(layout).reshape(-1)
    assert len(set(where.tolist())) == where.size
    low, high = layout.span
    assert (where.min(), where.max() + 1) == (low, high)
    assert low >= 0 and high <= layout.size


@given(layouts(), st.data())
@settings(derandomize=True)
def test_views_address_what_numpy_views_do(layout, data):
    where = elements(layout)
    perm = data.draw(st.permutations(range(layout.rank)))
    np.testing.assert_array_equal(elements(layout.transpose(perm)), where.transpose(perm))
    axis = data.draw(st.integers(0, layout.rank - 1))
    start = data.draw(st.integers(0, layout.shape[axis] - 1))
    step = data.draw(st.sampled_from([-2, -1, 1, 2]))
    picked = list(range(start, layout.shape[axis] if step > 0 else -1, step))
    part = layout.slice(axis, start, len(picked), step)
    np.testing.assert_array_equal(elements(part), np.take(where, picked, axis))
    grown = (3, *layout.shape)
    np.testing.assert_array_equal(elements(layout.broadcast(grown)), np.broadcast_to(where, grown))


@given(layouts(), st.data())
@settings(derandomize=True, max_examples=300)
def test_reshape_is_a_view_or_refused(layout, data):
    total = math.prod(layout.shape)
    divisors = [d for d in range(1, total + 1) if total % d == 0]
    first = data.draw(st.sampled_from(divisors))
    rest = total // first
    second = data.draw(st.sampled_from([d for d in range(1, rest + 1) if rest % d == 0]))
    new = data.draw(st.permutations([first, second, rest // second]))
    view = layout.reshape(new)
    if view is not None:
        np.testing.assert_array_equal(elements(view), elements(layout).reshape(new))
    dense = TensorLayout.make(layout.shape).reshape(new)
    assert dense is not None and dense.is_dense


@given(layouts())
@settings(derandomize=True)
def test_padding_that_a_view_claims_is_padding_of_the_root(layout):
    real = set(elements(layout).reshape(-1).tolist())
    for axis in range(layout.rank):
        part = layout.slice(axis, 0, 1)
        for step in range(1, part.before[axis] + 1):
            outside = elements(part) - step * part.pitches[axis]
            assert not real & set(outside.reshape(-1).tolist())


def test_reshape_keeps_padding_of_untouched_axes():
    layout = TensorLayout.make((1, 6, 5, 7), channels_last(4), (0, 0, 1, 2), (0, 0, 1, 2))
    view = layout.reshape((1, 2, 3, 5, 7))
    assert view is not None and view.before == (0, 0, 0, 1, 2)
    assert layout.reshape((1, 6, 35)) is None


def test_reshape_groups_are_the_finest():
    assert reshape_groups((1, 6, 5), (1, 2, 3, 5)) == [((0,), (0,)), ((1,), (1, 2)), ((2,), (3,))]
    assert reshape_groups((4, 1), (2, 2)) == [((0,), (0, 1)), ((1,), ())]


def test_some_axes_of_a_layout():
    layout = TensorLayout.make((2, 3, 4), None, (0, 1, 1), (0, 1, 0))
    assert layout.along((2, 0)) == TensorLayout.of_pitches((4, 2), (1, 25), 6, 50)
    np.testing.assert_array_equal(elements(layout.along((0, 2))), elements(layout)[:, 0])


def test_dense_ignores_axes_of_extent_one():
    assert TensorLayout.make((1, 1, 4, 5), channels_last(4)).is_dense
    assert not TensorLayout.make((1, 2, 4, 5), channels_last(4)).is_dense
    assert row_major((2, 3, 4)) == (12, 4, 1)


@pytest.mark.parametrize(
    "call,words",
    [
        (lambda: TensorLayout.make((2, 3), (0, 0)), "not a permutation"),
        (lambda: TensorLayout.make((2, 3), None, (-1, 0)), "numbers >= 0"),
        (lambda: TensorLayout.make((2, 3)).reshape((4, 2)), "element counts differ"),
        (lambda: TensorLayout.make((2, 3)).slice(1, 2, 2), "leaves axis 1 of extent 3"),
        (lambda: TensorLayout.make((2, 3)).broadcast((2, 4)), "cannot broadcast"),
        (lambda: TensorLayout.make((2, 3)).transpose((0, 2)), "does not fit rank 2"),
    ],
)
def test_wrong_geometry_is_named(call, words):
    with pytest.raises(ShapeError, match=words):
        call()


def test_axes_that_are_one_at_another_shape_are_stretched_there_alone():
    here_one, there_one = Open(1, 6), Open(6, 1)
    for extent, pitch in ((here_one, (0, 1)), (there_one, (1, 0))):
        layout = TensorLayout.make((5, extent)).broadcast((5, 6))
        assert isinstance(layout.pitches[1], Open)
        assert (int(layout.pitches[1]), layout.pitches[1].other) == pitch
    # What fits at this shape only says nothing about the other one.
    fixed = TensorLayout.make((9, 6)).broadcast((5, 9, Open(6, 38)))
    assert fixed.pitches == (0, 6, 1)
    assert TensorLayout.make((5, 1)).broadcast((5, Open(6, 38))).pitches[1] == 0
    assert TensorLayout.make((5, Open(1, 1))).broadcast((5, 6)).pitches[1] == 0
