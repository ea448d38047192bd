"""Models that run sooner in the thread that calls than PoCL's threads wake: which these are, and where they run.

Somewhat larger ones run there, too, where calls follow each other so closely that threads of PoCL's are awake to
help (clnn.runtime.run.helped).

It follows from the network's work, from options and settings, never from a measurement: a model runs the same way
each time. Python's other threads stand still while a kernel runs in the thread that calls, and no deadline holds
there, so the work that is allowed is bounded.
"""

from __future__ import annotations

from dataclasses import replace
from platform import machine

from clnn.graph.ir import Graph, Node
from clnn.options import Options
from clnn.runtime.device.device import DeviceInfo, has_caller
from clnn.runtime.device.processor import lists
from clnn.runtime.drivers.pinning import PINNED
from clnn.runtime.run.helped import MOST_HELPERS
from clnn.runtime.run.universal import asks_for_set
from clnn.runtime.run.watch import timeout_of
from clnn.settings import setting

# What one core does in a nanosecond: operations of products of few rows, and bytes that it reads or writes in
# the caches near it. A node takes a while besides.
FLOPS, BYTES, NODE_NS = 200, 100, 500
BYTE_PRODUCTS = 2  # as many of bytes as of float32
# Of the largest model that runs so: beyond it a second core gains more than waking it costs.
MOST_NS = 80_000
# Of models for which helpers are worth what they cost: the least has some calls to share, the largest holds up
# Python's other threads for no longer than half of that.
LEAST_HELPED_NS, MOST_HELPED_NS = 12_000, 800_000
HELPED_ON = ("x86_64", "AMD64")
ASKED_BY = "rdtscp"  # the instruction that tells a kernel which processor runs it


def placed_on(graph: Graph, info: DeviceInfo, options: Options) -> DeviceInfo:
    """Return the device of a session, which runs a small graph in the thread that calls where it can."""
    return stored_on(_is_small(graph), info, options)


def is_small(graph: Graph, info: DeviceInfo, options: Options) -> bool:
    """Whether a graph whose kernels are made for a device's threads is to run in the thread that calls."""
    return may_call(info, options) and _is_small(graph)


def _is_small(graph: Graph) -> bool:
    return setting("CLNN_CALLING_THREAD") == "always" or estimate_ns(graph) <= MOST_NS


def stored_on(in_caller: bool, info: DeviceInfo, options: Options) -> DeviceInfo:
    """Return the device of a session that is to run in the thread that calls, or not, where it can."""
    return replace(info, in_caller=True) if in_caller and may_call(info, options) else info


def may_call(info: DeviceInfo, options: Options) -> bool:
    """Whether a device and options let a session of one shape run in the thread that calls.

    They do not with a deadline, with what checks want (guards, separate arenas), and on the universal set, which
    sessions of open shapes share.
    """
    checked = options.guard or "separate" in (options.arena, setting("CLNN_ARENA"))
    if checked or asks_for_set(options) or timeout_of(options) is not None:
        return False
    return setting("CLNN_CALLING_THREAD") != "never" and has_caller(info)


def helpers_of(graph: Graph, info: DeviceInfo, options: Options) -> int:
    """Return how many threads may help the one that calls a session, 0 where it runs without help."""
    fits = LEAST_HELPED_NS <= estimate_ns(graph) <= MOST_HELPED_NS
    if not fits or info.compute_units < 2 or not may_call(info, options):
        return 0
    return min(info.compute_units - 1, MOST_HELPERS) if can_be_helped(info) else 0


def is_long(graph: Graph) -> bool:
    """Whether a graph holds up Python's other threads for too long in the thread that calls, helped or not."""
    return estimate_ns(graph) > MOST_HELPED_NS


def can_be_helped(info: DeviceInfo) -> bool:
    """Whether a device's compiler takes kernels that can be helped: they ask x86 where and when they run."""
    return info.platform == PINNED and machine() in HELPED_ON and lists(ASKED_BY)


def estimate_ns(graph: Graph) -> float:
    """Return the nanoseconds that a graph takes one core, roughly."""
    return sum(_node_ns(graph, node) for node in graph.nodes)


def _node_ns(graph: Graph, node: Node) -> float:
    names = {name for name in (*node.inputs, *node.outputs) if name is not None}
    flops = node.spec.work(graph.input_types(node), graph.output_types(node))
    nbytes = sum(graph.types[name].size * graph.memory(name).itemsize for name in names)
    first = next((name for name in node.inputs if name is not None), None)
    of_bytes = first is not None and graph.memory(first).itemsize == 1
    return flops / (FLOPS * (BYTE_PRODUCTS if of_bytes else 1)) + nbytes / BYTES + NODE_NS
