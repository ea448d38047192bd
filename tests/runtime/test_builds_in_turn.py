"""Builds side by side: Intel's compiler for CPUs has one at a time, others as many as there are."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from common import ROOT, usable_devices
from joined import _renamed

from clnn.runtime.drivers.in_turn import INTEL, built, wait_no_longer

THREADS = 4
# Programs that threads build and let go of.
SIDE_BY_SIDE = """
import sys, random, threading, time
from clnn.runtime.drivers.in_turn import built
from clnn.runtime.drivers.loader import load

cl = load()
device = next(p for p in cl.get_platforms() if p.name == sys.argv[1]).get_devices()[0]
context, end = cl.Context([device]), time.monotonic() + float(sys.argv[2])
LOOP = '''
__kernel void k%d(__global float *a, const int n) {
    float sums[8] = {0};
    for (int i = 0; i < n; ++i) {
        float held[8];
        for (int k = 0; k < 8; ++k) held[k] = a[8 * i + k] * %d;
        for (int k = 0; k < 8; ++k) sums[k] += held[k] > 0 ? sqrt(held[k]) : held[7 - k];
    }
    for (int k = 0; k < 8; ++k) a[k] = sums[k];
}
'''

def work(number):
    made = random.Random(number)
    while time.monotonic() < end:
        count = made.choice((1, 5, 20, 60))
        text = "".join(LOOP % (k, made.randrange(1000)) for k in range(count))
        built(cl.Program(context, text), ["-cl-std=CL3.0"], sys.argv[1])

threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(13)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


class Program:
    """Counts those that build at once; each waits for all that may, and a little for others that may not."""

    def __init__(self, together):
        self._together, self._lock = threading.Barrier(together), threading.Lock()
        self.now = self.most = 0

    def build(self, options, cache_dir):
        """Count, and wait."""
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        self._together.wait(60)
        time.sleep(0.1)
        with self._lock:
            self.now -= 1
        return options


@pytest.mark.parametrize(("platform", "together"), [(INTEL, 1), ("Portable Computing Language", 4)])
def test_builds_of_threads(platform, together):
    program = Program(together)
    with ThreadPoolExecutor(THREADS) as pool:
        ends = [pool.submit(built, program, ("-a",), platform) for _ in range(THREADS)]
        assert [end.result(60) for end in ends] == [["-a"]] * THREADS
    assert program.most == together


def test_nobody_waits_for_one_that_may_never_end():
    stuck = Program(2)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(built, stuck, (), INTEL)
        while not stuck.now:
            time.sleep(0.01)
        wait_no_longer()
        assert built(Program(1), ("-b",), INTEL) == ["-b"]
        assert not first.done()
        stuck.build((), cache_dir=False)
        assert first.result(60) == []


@pytest.mark.exhaustive
@pytest.mark.skipif(INTEL not in usable_devices(), reason="no device of Intel's runtime")
def test_a_minute_of_builds_side_by_side():
    done = subprocess.run(
        [sys.executable, "-c", SIDE_BY_SIDE, INTEL, "60"], cwd=ROOT, timeout=300, check=False
    )
    assert done.returncode == 0


def test_functions_behind_an_attribute_have_names_of_their_own_in_a_joined_program():
    text = "__attribute__((noinline)) void calls(int a) {}\n__kernel void k(int a) { calls(a); }\n"
    renamed, kernels = _renamed(text, 3)
    assert "void calls_3(int a)" in renamed
    assert "{ calls_3(a); }" in renamed
    assert kernels == {"k": "k_3"}
