"""tests/support/meeting.py: threads share a program of their kernels, and each gets its own results."""

from __future__ import annotations

import numpy as np
import pytest
from meeting import Meeting

from clnn.errors import BuildError
from clnn.runtime.build.program import Device
from clnn.runtime.device.device import select
from clnn.runtime.drivers.loader import load

pytestmark = pytest.mark.usefixtures("no_cache")
SOURCE = """{pragma}#define ADDEND {number}
__constant int table[1] = {{ {number} }};
static int twice(int x) {{ return 2 * x; }}
__kernel void f(__global int *y)
{{
    y[0] = {statement} + table[0] + ADDEND;
}}
"""


@pytest.fixture
def no_cache(monkeypatch):
    """Programs that an earlier run kept are not built together."""
    monkeypatch.setenv("CLNN_CACHE", "off")


def run(device, number, statement="twice(1)"):
    """What kernel f of a source with a number in it writes, and its program."""
    cl = load()
    pragma = "#pragma OPENCL FP_CONTRACT OFF\n" if number % 2 else ""
    source = SOURCE.format(number=number, statement=statement, pragma=pragma)
    opened = Device.open(select(device))
    opened.build({"f": source})
    y = np.zeros(1, np.int32)
    memory = cl.Buffer(opened.context, cl.mem_flags.WRITE_ONLY, y.nbytes)
    with cl.CommandQueue(opened.context) as queue:
        kernel = opened.kernel(source, "f")
        kernel(queue, (1,), None, memory)
        cl.enqueue_copy(queue, y, memory)
    return int(y[0]), opened.programs[source]


def test_threads_share_programs_and_get_their_own_results(any_device):
    with Meeting(8) as meeting:
        made = meeting.map(lambda number: run(any_device, number), range(8))
    assert [value for value, _ in made] == [2 + 2 * number for number in range(8)]
    assert len({program for _, program in made}) == 2, "one for each set of pragmas"
    assert run(any_device, 3)[0] == 8


def test_a_source_that_does_not_build_is_its_own_thread_s_error(any_device):
    def work(number):
        try:
            return run(any_device, number, "nothing_of_this_name" if number == 2 else "twice(1)")[0]
        except BuildError:
            return "refused"

    with Meeting(4) as meeting:
        assert meeting.map(work, range(4)) == [2, 4, "refused", 8]


def test_work_that_fails_or_builds_nothing_keeps_no_other_waiting(any_device):
    def work(number):
        if number == 1:
            raise ValueError("of number 1")
        return run(any_device, number)[0] if number else 0

    with Meeting(3) as meeting:
        with pytest.raises(ValueError, match="of number 1"):
            meeting.map(work, range(5))
        assert meeting.map(work, (0, 3, 2, 4)) == [0, 8, 6, 10]
