"""dl::Tensor: memory, padding and pointers, by the formulas of its document."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clnn import espdl
from clnn.errors import DTypeError, ShapeError

sizes = st.integers(1, 5)
paddings = st.lists(st.integers(0, 4), min_size=4, max_size=4)


def filled(shape, kind=np.int16):
    array = np.arange(1, np.prod(shape) + 1).astype(kind)
    return espdl.Tensor(kind).set_shape(shape).set_element(array.reshape(-1).copy())


@given(st.tuples(sizes, sizes, sizes), st.lists(paddings, min_size=1, max_size=4), st.data())
@settings(max_examples=150, deadline=None)
def test_padding_grows_and_pointers_follow_the_formulas(shape, grown, data):
    tensor, plain = filled(shape), np.arange(1, np.prod(shape) + 1).reshape(shape)
    for padding in grown:
        assert tensor.set_padding_size(padding) is tensor
    top, bottom, left, right = (max(p[k] for p in grown) for k in range(4))
    h, w, c = shape
    assert tensor.padding == [top, bottom, left, right]
    assert tensor.shape == [h, w, c]
    assert tensor.shape_with_padding == [h + top + bottom, w + left + right, c]
    assert tensor.get_size() == np.prod(tensor.shape_with_padding) == tensor.element.size
    assert tensor.axis_offset == tensor.get_axis_offset() == [(w + left + right) * c, c, 1]
    assert (tensor.view() == plain).all()
    around = np.pad(plain, ((top, bottom), (left, right), (0, 0)))
    assert (tensor.element.reshape(around.shape) == around).all()
    inner = [data.draw(st.integers(0, p)) for p in tensor.padding]
    wide = tensor.shape_with_padding[1]
    start = ((top - inner[0]) * wide + left - inner[2]) * c
    assert tensor.get_element_offset(inner) == start
    assert tensor.get_element_ptr(inner).ctypes.data == tensor.element.ctypes.data + 2 * start
    y, x, k = (data.draw(st.integers(0, d - 1)) for d in shape)
    place = ((y + top) * wide + x + left) * c + k
    assert tensor.get_element_index([y, x, k]) == place
    assert tensor.get_axis_index(place) == [y + top, x + left, k]
    assert tensor.get_element_value([y, x, k]) == plain[y, x, k] == tensor.get_element_value(place)
    assert tensor.get_element_value([y + top, x + left, k], True) == plain[y, x, k]
    tensor.set_padding_value(inner, -7)
    seen = np.zeros(around.shape, bool)
    seen[top - inner[0] : top + h + inner[1], left - inner[2] : left + w + inner[3]] = True
    seen[top : top + h, left : left + w] = False
    assert (tensor.element.reshape(around.shape) == np.where(seen, -7, around)).all()


def test_memory_is_the_callers_or_the_tensors_own():
    memory = np.zeros(6, np.int8)
    tensor = espdl.Tensor(np.int8).set_shape((1, 2, 3)).set_exponent(-3).set_element(memory)
    memory[5] = 9
    assert tensor.get_element_value([0, 1, 2]) == 9 and not tensor.auto_free
    tensor.free_element()
    assert tensor.element is not None, "it is the caller's"
    with pytest.raises(ShapeError, match="an element already"):
        tensor.set_element(memory)
    same, copy = espdl.Tensor(tensor, False), espdl.Tensor(tensor)
    memory[0] = 4
    assert (same.get_element_value(0), copy.get_element_value(0)) == (4, 0)
    assert same.exponent == copy.exponent == -3
    own = espdl.Tensor(np.int8).set_shape((1, 2, 3))
    assert own.apply_element(5) and not own.apply_element() and not own.malloc_element()
    own.copy_element(tensor, True)
    assert (own.view() == tensor.view()).all() and own.element is not memory
    own.set_auto_free(True).free_element()
    assert own.element is None
    assert own.calloc_element(False) and not own.auto_free
    own.assign(tensor)
    assert own.exponent == -3 and (own.view() == tensor.view()).all()
    own.copy_element(tensor, False).get_element_ptr()[1] = 77
    assert memory[1] == 77
    assert own.reset().shape == [0] and own.element is None and own.exponent == 0
    padded = espdl.Tensor(np.int8).set_shape((1, 1, 1)).set_padding_size([1, 0, 0, 1])
    assert padded.apply_element(3)
    assert padded.element.tolist() == [3, 3, 0, 3]


def test_shapes_and_values_change_in_place():
    tensor = filled((2, 3, 4))
    plain = np.arange(1, 25).reshape(2, 3, 4)
    assert tensor.reshape((4, 6)).shape == [4, 6] and tensor.flatten().shape == [24]
    tensor.reshape((2, 3, 4)).expand_dims(0)
    assert tensor.shape == [1, 2, 3, 4] and tensor.squeeze().shape == [2, 3, 4]
    assert tensor.expand_dims([1, -1]).shape == [2, 1, 3, 4, 1]
    assert tensor.squeeze(1).squeeze(-1).shape == [2, 3, 4]
    assert (tensor.transpose().view() == plain.T).all()
    assert (tensor.transpose([2, 1, 0]).view() == plain).all()
    other = espdl.Tensor(np.int16).transpose(tensor, [1, 0, 2])
    assert (other.view() == plain.transpose(1, 0, 2)).all() and (tensor.view() == plain).all()
    assert (tensor.reverse([0, 2]).view() == plain[::-1, :, ::-1]).all()
    part = tensor.reverse([0, 2]).slice([0, 2, 1, 3, 0, 1])
    assert (part.view() == plain[:, 1:3, :1]).all()
    tensor.set_value([0, 1, 0, 3, 0, 4], 9).set_value(
        [1, 2, 1, 3, 0, 1], part.slice([0, 1, 0, 2, 0, 1])
    )
    assert (tensor.view()[0] == 9).all() and (tensor.view()[1, 1:3, 0] == plain[0, 1:3, 0]).all()
    assert (tensor.set_value(1).view() == 1).all()
    assert espdl.Tensor.arange(4).view().tolist() == [0, 1, 2, 3]
    assert tensor.is_same_shape(filled((2, 3, 4))) and not tensor.is_same_shape(part)


def test_elements_are_printed_and_checked(capsys):
    tensor = filled((2, 2, 2)).set_padding_size([0, 1, 2, 0])
    tensor.print_shape()
    tensor.print([0, 1, 0, 2, 1, 2], "part")
    tensor.print_all("all")
    text = capsys.readouterr().out
    assert "shape = (0 + 2 + 1, 2 + 2 + 0, 2(2))" in text
    assert "part[0, 1, 0, 2, 1, 2]" in text and "1 2 3 4 5 6 7 8" in text
    wanted = np.arange(1, 9)
    assert tensor.check_element(wanted + 2) and "PASS" in capsys.readouterr().out
    assert not tensor.check_element(wanted + np.eye(1, 8, 3, np.int16)[0] * 9, 2, False)
    assert "element[0, 1, 1]: 4 v.s. 13" in capsys.readouterr().out
    espdl.Filter(np.arange(8, dtype=np.int8), -3, (2, 2, 1, 2)).print2d_n(1, "w")
    assert "w filter 1, exponent -3" in capsys.readouterr().out


@pytest.mark.parametrize(
    "call, error",
    [
        (lambda t: t.set_padding_size([1, 1, 1]), ShapeError),
        (lambda t: t.set_padding_size([1, 1, 1, -1]), ShapeError),
        (lambda t: t.set_padding_value([1, 0, 0, 0], 1), ShapeError),
        (lambda t: t.get_element_ptr([0, 0, 1, 0]), ShapeError),
        (lambda t: t.get_element_value([2, 0, 0]), ShapeError),
        (lambda t: t.get_axis_index(99), ShapeError),
        (lambda t: t.set_shape((2, -1)), ShapeError),
        (lambda t: t.reshape((7,)), ShapeError),
        (lambda t: t.squeeze(1), ShapeError),
        (lambda t: t.transpose([0, 0, 1]), ShapeError),
        (lambda t: t.expand_dims([0, 0]), ShapeError),
        (lambda t: t.slice([0, 1]), ShapeError),
        (lambda t: t.copy_element(filled((1, 1, 1))), ShapeError),
        (lambda t: espdl.Tensor(np.int16).view(), ShapeError),
        (lambda t: espdl.Tensor(np.float64), DTypeError),
        (lambda t: espdl.Tensor(np.int8).set_element(np.zeros(3)), DTypeError),
        (lambda t: t.set_shape((9, 9, 9)).view(), ShapeError),
    ],
)
def test_what_does_not_fit_is_refused(call, error):
    with pytest.raises(error):
        call(filled((2, 3, 4)))
