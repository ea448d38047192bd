from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from clnn.codegen.filters import cl_text, index, load, scalar
from clnn.codegen.render import render, template_folders
from clnn.errors import TemplateError
from clnn.layout import TensorLayout, channels_last


@pytest.mark.parametrize(
    "value,ctype,text",
    [
        (0.1, "float", "0.10000000149011612f"),
        (1, "float", "1.0f"),
        (-2.5, "float", "(-2.5f)"),
        (1e30, "float", "1.0000000150474662e+30f"),
        (np.inf, "float", "INFINITY"),
        (-np.inf, "float", "(-INFINITY)"),
        (np.nan, "float", "NAN"),
        (0.1, "double", "0.1"),
        (1e300, "float", "INFINITY"),
        (3, "int", "3"),
        (-3, "long", "(-3L)"),
        (-(2**63), "long", "LONG_MIN"),
        (-(2**31), "int", "INT_MIN"),
        (7, "ulong", "7UL"),
    ],
)
def test_literals(value, ctype, text):
    assert scalar(value, ctype) == text


@pytest.mark.parametrize("value", [None, True, "1.0"])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(TypeError):
        scalar(value)


@pytest.mark.parametrize("value", [None, True, 1.5, np.float32(1)])
def test_unfiltered_floats_bools_and_none_never_reach_the_source(value):
    with pytest.raises(TypeError, match="a template printed"):
        cl_text(value)


def test_index_folds_and_drops():
    layout = TensorLayout.make((1, 4, 5, 6), channels_last(4))
    assert index(layout, "n", "c", "y", "x") == "c + (y) * 24 + (x) * 4"
    assert index(layout, 0, 2, 1, 0) == "26"
    assert index(layout.broadcast((3, 4, 5, 6)), "n", 0, 0, 0) == "0"


def test_load_of_broadcast_spreads_one_element():
    assert load("float", 4, "p", "i", 0) == "(float4)(p[i])"
    with pytest.raises(TypeError):
        load("float", 4, "p", "i", 3)


def test_a_missing_parameter_is_named():
    with pytest.raises(TemplateError, match=r"'\w+' is not defined"):
        render("movement/border_fill.cl.mako", {"ctype": "float"})


def test_source_is_a_function_of_template_and_parameters():
    params = {
        "name": "border_fill",
        "ctype": "float",
        "fill": 0.0,
        "wg": (1,),
        "wide": 1,
        "lines": 4,
        "outer": (4,),
        "low": (1,),
        "high": (3,),
        "pitches": (8,),
        "front": 1,
        "real": 6,
        "back": 1,
    }
    one, two = (
        render("movement/border_fill.cl.mako", params),
        render("movement/border_fill.cl.mako", dict(params)),
    )
    assert one == two and "#line" not in one


def test_kernel_path_comes_first(tmp_path, monkeypatch):
    (tmp_path / "movement").mkdir()
    (tmp_path / "movement" / "border_fill.cl.mako").write_text("// mine ${name}\n")
    monkeypatch.setenv("CLNN_KERNEL_PATH", str(tmp_path))
    assert render("movement/border_fill.cl.mako", {"name": "x"}) == "// mine x\n"


def test_folders_exist():
    assert template_folders("")


def test_rendering_loads_no_colours():
    """Where pygments is installed, mako would load it for its HTML pages."""
    pytest.importorskip("pygments")
    code = (
        "import sys\n"
        "from clnn.codegen import render\n"
        "render._lookup(render.template_folders())\n"
        "assert not any(m.startswith(('pygments', 'mako.ext')) for m in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
