"""Bounds of loops, read from sources: exact for plain loops, never too small, infinite where nothing tells."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from small_graphs import GRAPHS
from targets import GPU

from clnn.codegen.kernels import text_of
from clnn.codegen.rounds import most_rounds
from clnn.compile import prepare
from clnn.errors import DeviceError
from clnn.options import Options
from clnn.plan.schedule import make_plan
from clnn.runtime.device.device import select
from clnn.runtime.run.session import Session
from clnn.target import Target

HEAD = "__attribute__((reqd_work_group_size(8, 2, 1)))\n__kernel void k(__global int *x)\n{\n"


def kernel(*lines: str) -> str:
    return HEAD + "\n".join(lines) + "\n}\n"


@pytest.mark.parametrize(
    ("body", "rounds"),
    [
        ("x[0] = 1;", 0),
        ("for (int i = 0; i < 10; ++i) x[i] = 1;", 11),
        ("for (int i = 2; i <= 10; i += 3) { x[i] = 1; }", 4),
        ("for (int i = -3; i < 2; ++i) x[i] = 1;", 6),
        ("for (int i = 0; i < 10; ++i)\nfor (int j = 0; j < 5; ++j) { x[i] = j; }", 71),
        ("for (int i = 0; i < 4; ++i) { if (i > 2) { x[0] = 1; } else x[1] = 2; }\nx[0] = 1;", 5),
        ("for (int i = 0; i < 3; ++i) x[i] = 1;\nfor (int i = 0; i < 4; ++i) x[i] = 1;", 9),
        ("const int a = get_global_id(0) * 9, to = min(a + 9, 35);\nfor (int s = a; s < to; ++s) x[s] = 1;", 36),
        ("const int b = get_global_id(1) * 4;\nfor (int r = b; r < min(b + 4, 9000); ++r) x[r] = 1;", 5),
        ("const int i = get_global_id(0) * 4;\nif (i > 44) return;\nconst int stop = i == 44 ? 48 : i + 4;\n"
         "for (int j = i; j < stop; j += 4) x[j] = 1;", 13),
        ("for (int n = get_local_id(0); n < 64; n += 16) x[n] = 1;", 5),
        ("const int len = min(100, 250 - get_group_id(0) % 3 * 100);\nint i = 0;\n"
         "for (; i + 4 <= len; i += 4) x[i] = 1;", 27),
        ("for (int h = 32; h > 0; h >>= 1) x[h] = 1;", 33),
        ("const int n = get_global_id(0);\nfor (int i = 0; i < n; ++i) x[i] = 1;", math.inf),
        ("int n = 3;\nn = x[0];\nfor (int i = 0; i < n; ++i) x[i] = 1;", math.inf),
        ("while (x[0]) x[1] = 2;", math.inf),
        ("do { x[1] = 2; } while (x[0]);", math.inf),
        ("for (int i = 9; i != 0; --i) x[i] = 1;", math.inf),
    ],
)  # fmt: skip
def test_rounds_of_a_kernel(body: str, rounds: float) -> None:
    assert most_rounds(kernel(body)) == rounds


def test_functions_count_where_they_are_called() -> None:
    helper = "int f(int n, int m)\n{\n    for (int i = 0; i < n; ++i) m += i;\n    return m;\n}\n"
    called = kernel("for (int a = 0; a < 5; ++a) { x[a] = f(7, a) + f(2, a); }")
    assert most_rounds(helper + called) == 6 + 5 * (8 + 3)
    assert most_rounds(helper + kernel("x[0] = 1;")) == 0
    assert most_rounds("#define LOOP(n) for (int i = 0; i < n; ++i)\n" + called) == math.inf
    assert most_rounds("#define END 12\n" + kernel("for (int i = 0; i < END; ++i) x[i] = 1;")) == 13


def test_the_kernels_of_small_networks_have_bounds() -> None:
    bounds = {}
    for make in GRAPHS.values():
        for target in (Target(), GPU):
            for step in make_plan(prepare(make(), Options()), target).scheduled:
                for launch in (planned.launch for planned in step.launches):
                    text = text_of(launch).source
                    bounds[target.kind, str(launch.params["name"])] = most_rounds(text)
    gpu = [rounds for (kind, _), rounds in bounds.items() if kind == "gpu"]
    assert max(gpu) < 1000 and sum(map(math.isinf, bounds.values())) < len(bounds) / 10


def test_a_session_takes_kernels_that_the_device_ends(device: str) -> None:
    """What cannot be told, or is too long, gives way to the next kernel; a node without one is refused."""
    info = select(device)
    graph = GRAPHS["classifier"]()
    plain = Session(graph, info, Options())
    feeds = {i.name: np.ones(i.shape, np.float32) for i in plain.inputs}
    bounded = Session(graph, replace(info, max_rounds=65535), Options())
    for name, array in plain(feeds).items():
        np.testing.assert_allclose(bounded(feeds)[name], array, rtol=1e-4, atol=1e-5)
    rounds = [
        most_rounds(text_of(planned.launch).source)
        for step in bounded._plan.scheduled
        for planned in step.launches
    ]
    assert max(rounds) <= 65535
    with pytest.raises(DeviceError, match="ends the loops of a work-item after 2 rounds"):
        Session(graph, replace(info, max_rounds=2), Options())
