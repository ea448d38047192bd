"""Choices that serve several extents: what they cost there, and which of them is taken."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from clnn.graph.builder import GraphBuilder
from clnn.ops.conv.spec import Conv2d
from clnn.ops.shared.window import Window
from clnn.plan.open_extents import opened
from clnn.plan.repeat import FITTING, LESS, NEAR, Choices, Problems, Rivals
from clnn.plan.schedule import DoesNotFitError, first_variant, lay_out, make_plan
from clnn.target import Target
from clnn.traced import is_open
from clnn.types import F32, TensorType

CPU = Target("cpu", 8, 2, 256, 2**19)


def network(size, channels=64, kernel=3, stride=1, weight=1.0):
    """One convolution over an image of size x size."""
    pads = (kernel // 2,) * 2
    net = GraphBuilder()
    x = net.input("x", TensorType((1, channels, size, size), F32))
    weights = net.const(np.full((channels, channels, kernel, kernel), weight, np.float32))
    bias = net.const(np.zeros(channels, np.float32))
    window = Window((kernel, kernel), (stride, stride), (1, 1), pads, pads)
    return net.graph({"y": net.add(Conv2d(window), x, weights, bias)})


def of(size, like=None, **how):
    """Return the node and its problem; extents are open where there is another network beside it."""
    graph = network(size, **how)
    if like is not None:
        graph = opened(graph, network(like, **how), graph)
    laid = lay_out(graph, CPU)
    found = [*zip(laid.graph.nodes, laid.problems, strict=True)]
    return next((node, problem) for node, problem in found if node.spec.kind == "conv2d")


@pytest.mark.parametrize("how", [{}, {"stride": 2}, {"kernel": 1}, {"channels": 256}], ids=str)
def test_a_kernel_costs_elsewhere_what_the_equal_one_costs_there(how):
    (node, here), (_, there) = of(28, **how), of(20, **how)
    known = {v.name: v.cost for v in node.spec.candidates(there)}
    variants = [v for v in node.spec.candidates(here) if v.cost_at is not None]
    costs = dict(zip([v.name for v in variants], node.spec.costs(there, variants), strict=True))
    assert len(costs) > 10
    both = costs.keys() & known.keys()
    assert both and all(math.isclose(costs[name], known[name], rel_tol=1e-9) for name in both)
    again = node.spec.costs(here, variants)
    assert again == pytest.approx([v.cost for v in variants])


def test_what_does_not_fit_costs_more_than_anything():
    (node, here), (_, there) = of(28, kernel=1, stride=2), of(4, kernel=1, stride=2)
    variants = [v for v in node.spec.candidates(here) if v.cost_at is not None]
    for variant, cost in zip(variants, node.spec.costs(there, variants), strict=True):
        assert math.isinf(cost) == (node.spec.repeat(there, variant) is None)


def test_fast_kernels_do_not_fit_where_the_reference_alone_does():
    (node, here), (_, there) = of(28), of(28, weight=np.inf)
    assert len(node.spec.variants(there)) == 1
    variants = [v for v in node.spec.candidates(here) if v.again is not None]
    assert variants
    assert all(node.spec.repeat(there, variant) is None for variant in variants)
    assert all(math.isinf(cost) for cost in node.spec.costs(there, variants) if cost is not None)


def test_what_lies_behind_the_last_window_is_open_though_it_is_nothing_at_both_shapes():
    """Of even sizes a stride of 2 leaves nothing; an odd one would be a text of its own otherwise."""
    _, problem = of(28, like=40, stride=2)
    after = problem.input(0).layout.after
    assert after == (0, 0, 0, 0) and [*map(is_open, after)] == [False, False, True, True]
    _, odd = of(29, like=40, stride=2)
    assert odd.input(0).layout.after == (0, 0, 1, 1)


def test_sets_of_tiles_follow_extents_where_these_are_open():
    node, here = of(28, like=40)
    _, there = of(40, like=56)
    found = [v for v in node.spec.candidates(here) if "winograd" in v.name and "_s3" in v.name]
    assert found
    for variant in found:
        other = node.spec.repeat(there, variant)
        assert other is not None and other.name == variant.name
        before, after = (v.launches[-1].params for v in (variant, other))
        assert before["most_sets"] == after["most_sets"] >= after["sets"]
        assert {k: before[k] for k in ("mr", "nv", "m")} == {k: after[k] for k in ("mr", "nv", "m")}


def problems(size, like):
    graph = opened(network(size), network(like), network(size))

    def plan(repeat):
        return make_plan(graph, CPU, repeat=repeat)

    return Problems.of(plan)[0]


@pytest.mark.parametrize("size", [20, 28, 36])
def test_little_is_given_up_for_less_cost_elsewhere(size):
    node, here = of(size, like=50)
    variants, weighed = node.spec.variants(here), problems(17, 50)
    key = next(key for key in weighed.problems if key[1] == "conv2d")
    node = replace(node, name=key[0])
    best = first_variant(node, here, variants)
    made = Choices(weighed=[weighed]).chooser(first_variant)(node, here, variants)
    costs = weighed.costs(key, [best, made])
    assert made.cost <= NEAR * best.cost and costs is not None
    assert made.cost / best.cost + costs[1] / costs[0] <= 2 + 1e-9


def test_what_was_measured_is_not_weighed():
    node, here = of(28, like=50)
    variants, weighed = node.spec.variants(here), problems(17, 50)

    def measured(node, problem, variants):
        return replace(variants[-1], why="tuned")

    made = Choices(weighed=[weighed]).chooser(measured)(node, here, variants)
    assert made.name == variants[-1].name


def at_sizes(*sizes):
    """Return the node at the first size and its problem, as they are in a network, and problems at the others."""
    first, *there = [problems(size, 50) for size in sizes]
    key = next(key for key in first.problems if key[1] == "conv2d")
    return key, *first.problems[key], there


@pytest.mark.parametrize("why", ["ranked", "default"])
def test_what_fits_extents_that_count_may_cost_more(why):
    """Measured or not: an image for which one node has no kernel would take another set for all nodes."""
    key, node, here, (smaller,) = at_sizes(28, 4)
    rows = [v for v in node.spec.candidates(here) if "_row_" in v.name and not smaller.fits(key, v)]
    best = replace(rows[0], why=why)
    made = Choices(weighed=[smaller]).chooser(lambda *asked: best)(node, here, [best])
    assert smaller.fits(key, made) and made.cost <= NEAR * FITTING * best.cost
    cheapest = min(
        v.cost for v in node.spec.candidates(here) if v.cost_at is not None and smaller.fits(key, v)
    )
    assert made.cost <= NEAR * max(cheapest, best.cost)


def test_of_what_fits_the_cheapest_is_taken():
    """Not the first family that fits, nor what fits the others alone where it costs much more."""
    key, node, here, (smaller,) = at_sizes(28, 4)
    variants = node.spec.variants(here)
    wide = [v for v in node.spec.candidates(here) if not smaller.fits(key, v)]
    asked = [wide[0], *reversed(variants[:-1]), variants[-1]]
    made = Choices(others=[smaller]).chooser(first_variant)(node, here, asked)
    fitting = [v for v in node.spec.candidates(here) if smaller.fits(key, v)]
    assert wide and smaller.fits(key, made)
    assert made.cost == min(v.cost for v in fitting)


def chosen_at(size, name):
    """Return choices of the first candidate with `name` in its name at an extent, and the node's key."""
    there = problems(size, 50)
    key = next(key for key in there.problems if key[1] == "conv2d")
    node, problem = there.problems[key]
    variant = next(v for v in node.spec.candidates(problem) if name in v.name)
    made = Choices()
    made.chooser(lambda *asked: variant)(node, problem, [variant])
    return made, key


@pytest.mark.parametrize("size", [8, 12, 20, 28, 44])
@pytest.mark.parametrize("names", [("direct", "winograd"), ("winograd", "direct")])
def test_of_two_sets_the_one_that_costs_less_is_taken(size, names):
    (first, key), (other, _) = (chosen_at(28, name) for name in names)
    there, both = problems(size, 50), [one._made[key] for one in (first, other)]
    costs = there.costs(key, both)
    assert costs is not None and first.unlike(other) == {key} and not first.unlike(first)
    rivals = Rivals(first, other, first.unlike(other))
    node, problem = there.problems[key]
    if math.isinf(costs[0]):
        with pytest.raises(DoesNotFitError):
            rivals.repeat(node, problem)
    elif costs[1] < LESS * costs[0]:
        with pytest.raises(DoesNotFitError):
            rivals.repeat(node, problem)
        assert rivals.is_other
    else:
        assert rivals.repeat(node, problem).name == both[0].name
        assert not rivals.is_other


def test_what_a_set_loses_elsewhere_is_told():
    there = problems(28, 50)
    best, key = chosen_at(28, "")  # candidates come by rising cost
    assert best.over_best(there) == pytest.approx(1)
    worse, _ = chosen_at(28, "k3x3_s1x1_t4x16_row")
    costs = there.costs(key, [worse._made[key], best._made[key]])
    assert costs is not None and worse.over_best(there) == pytest.approx(costs[0] / costs[1])
    assert costs[0] > costs[1] and Choices().over_best(there) == 1
