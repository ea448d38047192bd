"""Call functions of kernel objects are made once for a name and a number of arguments."""

from __future__ import annotations

import linecache
from types import SimpleNamespace

import numpy as np
import pytest

from clnn.runtime.build.program import Device
from clnn.runtime.device.device import select
from clnn.runtime.drivers import invokers

TEXT = """
__kernel void first(__global int *x) { x[0] = 1; }
__kernel void two(__global int *x, int y) { x[0] = y; }
"""


@pytest.fixture
def maker(monkeypatch):
    """pyopencl's module, with a function that notes its calls."""
    calls = []

    def made(*args, **named):
        calls.append((args, named))
        return len(calls), "set"

    module = SimpleNamespace(generate_enqueue_and_set_args=made, calls=calls)
    monkeypatch.setattr(invokers.importlib, "import_module", lambda name: module)
    invokers.keep_invokers.__wrapped__()
    return module


def test_equal_kernels_get_the_functions_that_are_there(maker):
    make = maker.generate_enqueue_and_set_args
    one = make("network", 3, 3, None, False, False, devs=["a"])
    assert make("network", 3, 3, None, False, warn_about_arg_count_bug=False, devs=["a"]) == one
    assert len(maker.calls) == 1
    others = [("other", 3, 3), ("network", 4, 4), ("network", 3, 4)]
    made = [make(*which, None, False, False, devs=["a"]) for which in others]
    assert len({one, *made}) == 4


def test_given_types_and_unknown_arguments_are_pyopencls_own(maker):
    make = maker.generate_enqueue_and_set_args
    for named in ({"arg_types": (np.int32,)}, {"arg_types": None, "new": 1}):
        first, second = (make("network", 1, 1, devs=(), **named) for _ in range(2))
        assert first != second


def test_it_is_wrapped_once(maker):
    before = maker.generate_enqueue_and_set_args
    invokers.keep_invokers.__wrapped__()
    assert maker.generate_enqueue_and_set_args is before


def test_kernels_leave_no_texts_behind(device):
    opened = Device.open(select(device))
    opened.build({"two": TEXT})
    first, two = (opened.kernel(TEXT, name) for name in ("first", "two"))
    before = len(linecache.cache)
    assert {opened.kernel(TEXT, "two").num_args for _ in range(50)} == {two.num_args} == {2}
    assert len(linecache.cache) == before and first.num_args == 1
