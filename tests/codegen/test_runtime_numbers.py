"""Kernel texts that serve many parameters: when one is taken again, and what it is given."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from clnn.arith.quantised_maps import Quantise, QuantisedSum
from clnn.codegen import render as renderer
from clnn.codegen import runtime_numbers
from clnn.codegen.kernels import as_ints
from clnn.codegen.runtime_numbers import Texts
from clnn.errors import TemplateError
from clnn.layout import TensorLayout
from clnn.ops.launch import In, Out
from clnn.ops.shared.elementwise_launch import Walked, walk_launch
from clnn.target import Target
from clnn.traced import Open
from clnn.types import I8

KERNEL = """
${group_size((1, 1, 1))}
__kernel void ${name}(__global float *dst)
{
    dst[get_global_id(0)] = %s;
}
"""


@dataclass(frozen=True)
class Tile:
    rows: int
    mode: str = "row"


@pytest.fixture
def template(tmp_path, monkeypatch):
    """Write a template whose kernel stores an expression; return its name."""
    monkeypatch.setenv("CLNN_KERNEL_PATH", str(tmp_path))

    def write(value, head=""):
        (tmp_path / "made.cl.mako").write_text(head + KERNEL % value)
        renderer._lookup.cache_clear()
        return "made.cl.mako"

    return write


def texts_of(template, *rows, key="node"):
    texts = Texts()
    for params in rows:
        texts.see(key, template, {"name": "k", **params})
    return texts, [texts.kernel(key, template, {"name": "k", **p}) for p in rows]


def test_what_differs_is_an_argument(template):
    name = template("${a} + ${b} * ${a * 2}")
    _, (first, second) = texts_of(name, {"a": 5, "b": 3}, {"a": 9, "b": 3})
    assert first.source == second.source
    assert "x0_ + 3 * x1_" in first.source
    assert "const int x0_,\n    const int x1_)\n{" in first.source
    assert (first.numbers, second.numbers) == ((5, 10), (9, 18))


def test_what_is_the_same_everywhere_stays_a_number(template):
    name = template("${a} + ${b}")
    _, (first, second) = texts_of(name, {"a": 5, "b": 3}, {"a": 5, "b": 3})
    assert first == second and not first.numbers and "5 + 3" in first.source


def test_decisions_part_texts(template):
    name = template("${a if a > 6 else 0} + ${a}")
    texts, (small, large) = texts_of(name, {"a": 5}, {"a": 9})
    assert small.source != large.source
    assert texts.kernel("node", name, {"name": "k", "a": 4}).source == small.source
    assert texts.kernel("node", name, {"name": "k", "a": 70}).source == large.source


def test_other_parameters_part_texts(template):
    name = template("${a} + ${len(mode)} + ${len(t.mode)}")
    rows = [{"a": k, "mode": mode, "t": Tile(k, mode)} for mode in ("x", "y") for k in (3, 4)]
    _, kernels = texts_of(name, *rows)
    assert kernels[0].source == kernels[1].source and kernels[2].source == kernels[3].source
    assert len({k.numbers for k in kernels}) == 2


def test_launches_learn_apart(template):
    """What differs between shapes of one launch stays a number in another one's text."""
    name, texts = template("${a}"), Texts()
    for key, values in (("one", (2, 3)), ("two", (7, 7))):
        for value in values:
            texts.see(key, name, {"name": "k", "a": value})
    assert texts.kernel("one", name, {"name": "k", "a": 2}).numbers == (2,)
    assert texts.kernel("two", name, {"name": "k", "a": 7}).numbers == ()


def test_what_differs_later_is_learned(template):
    name, texts = template("${a} + ${b}"), Texts()
    first = texts.kernel("n", name, {"name": "k", "a": 1, "b": 2})
    second = texts.kernel("n", name, {"name": "k", "a": 1, "b": 3})
    third = texts.kernel("n", name, {"name": "k", "a": 1, "b": 9})
    assert first.numbers == () and second.numbers == (3,) and third.numbers == (9,)
    assert second.source == third.source != first.source


def test_layouts_and_floats(template):
    name = template("${scalar(s)} * ${index(src, 'i', 'j')}", "<% src.offset %>")
    rows = [
        {"s": scale, "src": TensorLayout.make((height, 4))}
        for scale, height in ((0.5, 3), (0.25, 7))
    ]
    _, (first, second) = texts_of(name, *rows)
    assert first.source == second.source and "const float x0_" in first.source
    assert (first.numbers, second.numbers) == ((0.5,), (0.25,))


@pytest.mark.parametrize(
    "value, head",
    [
        ("lost(1)", "float lost(int k)\n{\n    return k + ${a};\n}\n"),
        ("t[0]", "__constant float t[2] = {${a}, 1};\n"),
    ],
)
def test_numbers_beside_the_kernel_are_part_of_the_text(template, value, head):
    name = template(value, head)
    _, (first, second) = texts_of(name, {"a": 5}, {"a": 6})
    assert first.source != second.source and not first.numbers
    assert "x0_" not in first.source + second.source


def test_lengths_of_arrays_are_part_of_the_text(template):
    name = template("0;\n    float t[${a}];\n    t[0] = ${a}")
    _, (first, second) = texts_of(name, {"a": 5}, {"a": 6})
    assert "float t[5]" in first.source and "float t[6]" in second.source


def test_widths_of_vectors_are_part_of_the_text(template):
    name = template("(${vec_type('float', a)})(0).x")
    _, (first, second) = texts_of(name, {"a": 4}, {"a": 8})
    assert "float4" in first.source and "float8" in second.source


def test_parameters_that_nobody_can_compare_get_a_text_of_their_own(template):
    name = template("${int(table[0])} + ${a}")
    rows = [{"a": k, "table": np.arange(3) + k} for k in (1, 2)]
    _, (first, second) = texts_of(name, *rows)
    assert first.source != second.source and not first.numbers


def test_numbers_are_passed_as_32_bits():
    assert as_ints([1, -(2**31), 2**31 - 1]) == [1, -(2**31), 2**31 - 1]
    assert np.array(as_ints([0.1]), np.int32).view(np.float32)[0] == np.float32(0.1)
    with pytest.raises(TemplateError, match="2147483648"):
        as_ints([2**31])


def test_a_template_without_a_kernel_is_refused(template, tmp_path):
    (tmp_path / "none.cl.mako").write_text("/* ${a} */")
    texts = Texts()
    texts.see("n", "none.cl.mako", {"name": "k", "a": 1})
    with pytest.raises(TemplateError, match="made no kernel"):
        texts.kernel("n", "none.cl.mako", {"name": "k", "a": 2})


def test_forms_tell_types_of_numbers_apart():
    forms = [runtime_numbers._form({"a": a})[0] for a in (1, 1.0, True, "1", (1,), None)]
    assert len(set(forms)) == len(forms)


def test_widths_of_vectors_are_never_arguments(template):
    """In the name of a type or a load, whoever prints it."""
    name = template("*(float${w} *)0 + ${w * a} + vload${w}(0, dst)[0]")
    _, (two, four, again) = texts_of(name, {"w": 2, "a": 3}, {"w": 4, "a": 5}, {"w": 2, "a": 8})
    assert "float2 " in two.source and "vload4(" in four.source
    assert again.source == two.source and "floatx" not in two.source


def test_vectors_are_loaded_by_the_pitch_that_is_there(template):
    name = template("${load('float', 4, 'dst', 'i', p)}.s0")
    _, (spread, along, again) = texts_of(name, {"p": 0}, {"p": 1}, {"p": 0})
    assert "(float4)(dst[i])" in spread.source and "vload4(0, dst + (i))" in along.source
    assert again.source == spread.source
    with pytest.raises(TemplateError, match="cannot load 4 elements of pitch 2"):
        texts_of(name, {"p": 0}, {"p": 2})


def test_a_template_that_refuses_arguments_gets_a_text_of_these_numbers(template):
    name = template("${p + n}", "<% assert is_one(p) or is_zero(p) %>")
    rows = {"p": 1, "n": 2}, {"p": 0, "n": 5}, {"p": 1, "n": 2}
    _, (first, second, again) = texts_of(name, *rows)
    assert first.numbers == second.numbers == ()
    assert first.numbers == second.numbers == () and first.source == again.source != second.source
    with pytest.raises(TemplateError, match="was refused"):
        texts_of(name, {"p": 0, "n": 2}, {"p": 2, "n": 2})


def test_numbers_of_open_extents_stay_open_where_a_template_refuses_arguments_and_known_ones(
    template,
):
    """A share of a row that suits a longer one, say, suits no row that is known to be shorter."""
    head = "<% assert is_one(p) or is_zero(p) %><% assert is_open(n) or n % 16 == 0 %>"
    name = template("${p + n}", head)
    rows = [{"p": p, "n": Open(n, 160)} for p, n in ((1, 126), (0, 130), (1, 126))]
    _, (first, second, again) = texts_of(name, *rows)
    assert first.numbers == second.numbers == () and "= 127;" in first.source
    assert first.source == again.source != second.source
    with pytest.raises(TemplateError, match="was refused"):
        texts_of(name, {"p": 1, "n": 126}, {"p": 0, "n": 126})


@pytest.mark.parametrize(
    "function,ctypes",
    [
        (QuantisedSum(I8, (0.5, 0.25), 1.0), ("char", "char", "char")),
        (Quantise(I8), ("float", "float", "char", "char")),
    ],
)
def test_functions_of_elements_stay_functions_at_other_shapes(function, ctypes):
    """A text with extents of run time walks vectors alone, of which no element is left over."""

    def launch(rows, extent):
        layout = TensorLayout.make((rows, extent))
        sources = [Walked(In(k), layout, ctype) for k, ctype in enumerate(ctypes[:-1])]
        result = Walked(Out(0), layout, ctypes[-1])
        return walk_launch("map", sources, result, Target(), function=function)

    texts, launches = Texts(), [launch(2, 256), launch(2, 320), launch(2, 4096), launch(4, 8000)]
    sources = [texts.kernel("node", one.template, one.params).source for one in launches]
    assert any("x0_" in source for source in sources)
    assert all("steps_ > " in source and "->v = result;" in source for source in sources)
