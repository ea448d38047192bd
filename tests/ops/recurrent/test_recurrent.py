from __future__ import annotations

import numpy as np
import pytest
from harness import check_op, of_cpus, picks, single_node, variant_names
from recurrent_layers import (
    BOTH,
    FORWARD,
    FUNCTIONS,
    REVERSE,
    SIGMOID,
    TANH,
    arrays,
    layer,
    masked,
    rounded_arrays,
)
from targets import GPU, generate_for

from clnn.errors import DTypeError, ShapeError
from clnn.graph.ir import Graph
from clnn.graph.passes.dead import remove_dead
from clnn.ops.problem import Problem
from clnn.ops.recurrent import panels
from clnn.ops.recurrent import steps as steps_module
from clnn.ops.recurrent.cells import CELLS, in_steps
from clnn.ops.recurrent.families import variants
from clnn.ops.recurrent.panels import pack
from clnn.ops.recurrent.steps import Choice, passes_of, steps_variants
from clnn.ops.shared.functions import PostOp
from clnn.options import Options
from clnn.plan.schedule import make_plan
from clnn.runtime.device.device import select
from clnn.runtime.run.session import Session
from clnn.target import Target
from clnn.types import F32, I32, TensorType

pytestmark = pytest.mark.dealt


def run(device, cell, sizes, backward=FORWARD, lengths=None, given=True, **how):
    """Check every kernel of a layer of (hidden, steps, batch)."""
    fields = how.pop("fields", {})
    spec = layer(cell, backward, **fields)
    first = fields.get("batch_first", False)
    inputs = arrays(cell, *sizes, len(backward), lengths, given, first)
    return check_op(device, spec, inputs, **{"consts": (1,), "every": True, **how})


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("backward", [FORWARD, REVERSE, BOTH])
def test_directions(device, cell, backward):
    ran = run(device, cell, (40, 5, 3), backward)
    assert ran[-1].endswith("reference") or any(n.endswith("reference") for n in ran)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("backward", [FORWARD, REVERSE, BOTH])
@pytest.mark.parametrize(
    ("sizes", "given", "batch_first"),
    [((33, 6, 5), True, False), ((16, 7, 1), False, False), ((20, 4, 3), True, True)],
)
def test_masks(device, cell, backward, sizes, given, batch_first):
    spec = layer(cell, backward, batch_first=batch_first)
    inputs = masked(cell, sizes, backward, given, batch_first)
    check_op(device, spec, inputs, consts=(1,), every=True)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("given", [True, False])
def test_masks_of_one_step(device, cell, given):
    ran = check_op(
        device, layer(cell), masked(cell, (24, 1, 4), FORWARD, given), consts=(1,), every=True
    )
    assert not of_cpus(device) or any("once" in n for n in ran)


def test_a_mask_of_ones_is_none():
    spec, inputs = layer("lstm"), arrays("lstm", 8, 5, 3)
    ones = [*inputs, None, np.ones((5, 3), np.int32)]
    for a, b in zip(spec.reference(*inputs), spec.reference(*ones), strict=True):
        assert np.array_equal(a, b)


def test_a_mask_and_lengths_are_refused():
    kinds = [None if a is None else TensorType(a.shape, F32) for a in masked("gru", (8, 5, 3))]
    lengths, mask = TensorType((3,), I32), TensorType((5, 3), I32)
    with pytest.raises(ShapeError, match="lengths and a mask"):
        layer("gru").infer([*kinds[:3], lengths, *kinds[4:8], mask])
    with pytest.raises(ShapeError, match=r"mask of gru are \(3, 5\), must be \(5, 3\)"):
        layer("gru").infer([*kinds[:8], TensorType((3, 5), I32)])


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("backward", [FORWARD, REVERSE, BOTH])
def test_lengths(device, cell, backward):
    run(device, cell, (33, 4, 6), backward, lengths=(4, 0, 1, 3, 2, 4))
    run(device, cell, (16, 3, 2), backward, lengths=(9, -2), given=False)


@pytest.mark.parametrize("cell", CELLS)
def test_batch_first(device, cell):
    run(device, cell, (20, 4, 3), BOTH, (4, 2, 3), fields={"batch_first": True})


@pytest.mark.parametrize("hidden", [1, 2, 3, 5, 8, 15, 17, 48, 100])
def test_hidden_units(device, hidden):
    run(device, "lstm", (hidden, 3, 2))
    run(device, "gru", (hidden, 3, 2))


@pytest.mark.parametrize("batch", [1, 2, 7, 8, 9, 17, 25])
def test_batches(device, batch):
    run(device, "late_gru", (16, 2, batch))


@pytest.mark.parametrize("cell", CELLS)
def test_weights_that_are_no_constant(device, cell):
    run(device, cell, (24, 3, 2), BOTH, consts=())


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("cell", CELLS)
def test_storage_in_16_bits(device, cell, dtype):
    run(device, cell, (24, 3, 2), BOTH, (1, 3), dtype=dtype)
    run(device, cell, (32, 2, 1), dtype=dtype, given=False)


@pytest.mark.parametrize("cell", CELLS)
def test_any_layout(device, cell):
    """Values whose last axis is not the innermost one take the reference kernel."""
    orders = {"i0": (2, 1, 0), "i4": (2, 0, 1), "o0": (3, 0, 1, 2), "o1": (1, 2, 0)}
    run(device, cell, (6, 3, 4), BOTH, (3, 1, 0, 2), orders=orders, consts=())


def test_outputs_alone(device):
    for outputs in ((0,), (1,), (2,), (0, 2)):
        run(device, "lstm", (24, 3, 2), fields={"outputs": outputs})


def test_functions_of_each_direction(device):
    relu, steep = (PostOp("relu"),), (PostOp("mul", (2.0,)), PostOp("tanh"))
    clipped = (PostOp("clip", (-0.3, 0.3)), PostOp("sigmoid"))
    run(device, "rnn", (20, 3, 2), BOTH, fields={"functions": ((TANH,), (steep,))})
    functions = ((clipped, TANH, relu), (SIGMOID, steep, TANH))
    run(device, "lstm", (20, 3, 2), BOTH, fields={"functions": functions, "input_forget": True})
    run(device, "gru", (20, 3, 2), BOTH, fields={"functions": ((SIGMOID, TANH), (clipped, relu))})


ROUNDED = [
    ((40, 5, 3), FORWARD, None),
    ((16, 4, 2), REVERSE, None),
    ((33, 4, 5), BOTH, (4, 0, 1, 3, 2)),
    ((5, 3, 1), BOTH, None),
]


@pytest.mark.parametrize(("sizes", "backward", "lengths"), ROUNDED)
def test_states_rounded_to_bytes(device, sizes, backward, lengths):
    """As DynamicQuantizeLSTM has them, with peepholes and first states."""
    inputs = rounded_arrays(*sizes, backward, lengths)
    for consts in ((1,), ()):
        check_op(device, layer("lstm", backward), inputs, consts=consts, every=True)


@pytest.mark.parametrize(("sizes", "backward", "lengths"), [*ROUNDED, ((64, 3, 9), FORWARD, None)])
def test_rounded_states_by_weights_of_bytes(device, sizes, backward, lengths):
    """Four products at a time, with sums of weights for the states' zero points; -128 is a byte, 128 not."""
    inputs = rounded_arrays(*sizes, backward, lengths, reach=127)
    inputs[1][0, 0, 0] = -128
    ran = check_op(device, layer("lstm", backward), inputs, consts=(1,), every=True)
    assert any(is_packed(name) for name in ran)
    inputs[1][0, 0, 0] = 128
    ran = check_op(device, layer("lstm", backward), inputs, consts=(1,), every=True)
    assert not any(is_packed(name) for name in ran)


def is_packed(name):
    return name.endswith(("vnni4", "madd4", "plain4"))


def test_states_rounded_to_bytes_on_work_groups(device, monkeypatch):
    generate_for(monkeypatch, GPU)
    inputs = rounded_arrays(40, 4, 3, BOTH, (4, 0, 2))
    ran = check_op(device, layer("lstm", BOTH), inputs, consts=(1,), every=True)
    assert "group" in ran[0]


def test_states_rounded_to_bytes_in_any_layout(device):
    inputs = rounded_arrays(6, 3, 4, BOTH, (3, 1, 0, 2))
    orders = {"i0": (2, 1, 0), "i4": (2, 0, 1), "o0": (3, 0, 1, 2), "o1": (1, 2, 0)}
    check_op(device, layer("lstm", BOTH), inputs, orders=orders, every=True)


def test_a_state_of_zeros_has_steps_of_one():
    state, worth = in_steps(np.zeros(4, np.float32))
    assert worth == 1 and not state.any()


def test_states_as_dynamic_quantisation_rounds_them():
    state = np.array([-1.0, 0.0, 0.24, 1.55], np.float32)
    made, worth = in_steps(state)
    assert worth == np.float32(2.55) / 255  # a hundredth; the zero point is 100
    assert made.tolist() == [-100, 0, 24, 155]


def test_long_sequences(device):
    run(device, "lstm", (32, 700, 1))
    run(device, "gru", (32, 301, 2), REVERSE)


def test_not_a_number_stays_in_its_sequence(device):
    inputs = arrays("lstm", 20, 4, 3)
    inputs[0][2, 1, 5] = np.nan
    check_op(device, layer("lstm"), inputs, consts=(1,))


@pytest.mark.parametrize("cell", CELLS)
def test_tiles_round_alike(device, monkeypatch, cell):
    """Slices, sequences taken together and shares do not say in which order a sum is made."""
    choices = [
        Choice(*c) for c in ((4, 1, 1, 1), (4, 4, 1, 1), (4, 2, 1, 1), (4, 1, 3, 1), (4, 1, 1, 2))
    ]
    monkeypatch.setattr(steps_module, "_choices", lambda problem: iter(choices))
    inputs = arrays(cell, 27, 6, 11)
    graph = single_node(layer(cell), inputs, (1,))
    names = [n for n in variant_names(graph, device, every=True) if "_steps_" in n]
    feeds = {f"i{k}": a for k, a in enumerate(inputs) if f"i{k}" in graph.inputs}
    found = set()
    for name in names:
        with Session(graph, select(device), Options(), picks(name)) as session:
            got = session(feeds)
        found.add(b"".join(got[n].tobytes() for n in sorted(got)))
    assert len(names) == len(choices) and len(found) == 1


def test_shares_take_turns_in_any_order(device, monkeypatch):
    """More shares than the device has threads: each work-item gets through alone."""
    rounded = rounded_arrays(20, 12, 2, BOTH)
    shares = lambda problem: iter([Choice(4, 1, 1, n) for n in (2, 3, 5)])  # noqa: E731
    monkeypatch.setattr(steps_module, "_choices", shares)
    for cell in CELLS:
        run(device, cell, (20, 40, 2), BOTH)
    check_op(device, layer("lstm", BOTH), rounded, consts=(1,), every=True)


@pytest.mark.parametrize("cell", CELLS)
def test_work_groups(device, monkeypatch, cell):
    generate_for(monkeypatch, GPU)
    ran = run(device, cell, (40, 4, 3), BOTH, (4, 0, 2))
    assert next(n for n in ran if "group" in n) == ran[0]
    run(device, cell, (33, 3, 9), REVERSE, given=False, consts=(), only="group")
    run(device, cell, (20, 2, 2), dtype="f16", only="group")


def reference_by_hand(weights, products, functions):
    """An LSTM of one direction, written out for one sequence."""
    (hidden,) = {weights.shape[1]}
    h = c = np.zeros(hidden)
    states = []
    for x in products:
        i, o, f, g = np.split(x + weights @ h, 4)
        sigmoid = lambda v: 1 / (1 + np.exp(-v))  # noqa: E731
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        states.append(h)
    return np.array(states), c


def test_reference_of_an_lstm():
    inputs = arrays("lstm", 5, 6, 2, given=False)
    inputs = [None if a is None else a.astype(np.float64) for a in inputs]
    every, last, cells = layer("lstm").reference(*inputs)
    for b in range(2):
        states, cell = reference_by_hand(inputs[1][0], inputs[0][:, b], FUNCTIONS["lstm"])
        np.testing.assert_allclose(every[:, 0, b], states, atol=1e-12)
        np.testing.assert_allclose(last[0, b], states[-1], atol=1e-12)
        np.testing.assert_allclose(cells[0, b], cell, atol=1e-12)


def problem_of(spec, inputs, target, consts=(1,)):
    found = []

    def note(node, problem, variants):
        found.append(problem)
        return variants[0]

    make_plan(single_node(spec, inputs, consts), target, note)
    (problem,) = [p for p in found if isinstance(p, Problem)]
    return spec.problem(problem)


def test_panels_hold_each_weight_once():
    inputs = arrays("lstm", 20, 2, 8)
    problem = problem_of(layer("lstm"), inputs, Target())
    choice = Choice(8, 2, 1, 1)
    (passes,) = passes_of(problem, choice)
    assert sorted(g for gates in passes for g in gates) == [0, 1, 2, 3]
    panels = pack(inputs[1], 8, 2, (passes,))
    weights = inputs[1].reshape(4, 20, 20)
    at = 0
    for part in range(2):
        for gates in passes:
            for k in range(20):
                for gate in gates:
                    for unit in range(part * 16, part * 16 + 16):
                        want = weights[gate, unit, k] if unit < 20 else 0
                        assert panels[at] == want
                        at += 1
    assert at == panels.size


def test_panels_of_a_phase_lie_side_by_side():
    """Whoever walks some slices of a phase reads one block: [phase][slice][pass][element][gate][lane]."""
    weights = arrays("gru", 24, 2, 1)[1]
    panels = pack(weights, 8, 1, (((1,), (0,)), ((2,),)))
    of_gates = weights.reshape(3, 3, 8, 24).transpose(0, 1, 3, 2)  # gate, slice, element, lane
    first, second = panels[: 2 * 24 * 24].reshape(3, 2, 24, 8), panels[2 * 24 * 24 :]
    np.testing.assert_array_equal(first[:, 0], of_gates[1])
    np.testing.assert_array_equal(first[:, 1], of_gates[0])
    np.testing.assert_array_equal(second.reshape(3, 24, 8), of_gates[2])


def test_estimates_choose_by_size():
    """A short batch is divided by its units; directions and sequences where they are enough."""

    def best(cell, sizes, backward=FORWARD):
        inputs = arrays(cell, *sizes, len(backward))
        return next(steps_variants(problem_of(layer(cell, backward), inputs, Target()))).name

    assert best("lstm", (512, 16, 1)).endswith("p1_s2")
    assert best("lstm", (128, 16, 1), BOTH).endswith("p1_s1")
    assert best("gru", (64, 16, 16)).endswith("p2_s1")


def test_few_steps_of_small_layers_are_not_shared():
    """Sharing begins with a launch, and with a thread that may come late."""
    avx2 = Target(vector=8)

    def best(cell, sizes):
        return next(steps_variants(problem_of(layer(cell), arrays(cell, *sizes, 1), avx2))).name

    assert best("lstm", (128, 16, 1)).endswith("p1_s1")
    assert best("lstm", (128, 274, 1)).endswith("p1_s2")
    assert best("lstm", (256, 16, 1)).endswith("p1_s2")
    assert best("gru", (64, 16, 1)).endswith("p1_s1")


@pytest.mark.parametrize("vector", [4, 8, 16])
def test_sums_fit_the_registers(vector):
    target = Target(vector=vector)
    for cell in CELLS:
        problem = problem_of(layer(cell), arrays(cell, 64, 2, 8, 1), target)
        for choice in steps_module._choices(problem):
            rows = max(steps_module.tiles_of(problem, choice))
            for phase, gates in zip(passes_of(problem, choice), problem.kind.phases, strict=True):
                assert sorted(g for group in phase for g in group) == sorted(gates)
                sums = max(map(len, phase)) * rows * choice.nv
                assert sums <= target.registers * 3 // 4 or max(map(len, phase)) == 1


def test_estimates_take_the_kernels_of_one_step():
    """They need no scratch memory for states, and GPUs have none of them."""

    def chosen(cell, sizes, target):
        return variants(problem_of(layer(cell), arrays(cell, *sizes, 1), target))[0]

    for cell, launches in (("lstm", 1), ("late_gru", 1), ("rnn", 1), ("gru", 2)):
        best = chosen(cell, (128, 1, 8), Target())
        assert "_once_" in best.name and len(best.launches) == launches
    assert "_once_" not in chosen("lstm", (128, 2, 8), Target()).name
    assert "_once_" not in chosen("lstm", (128, 1, 8), GPU).name


def test_outputs_that_nothing_reads_are_left_out():
    graph = single_node(layer("lstm"), arrays("lstm", 4, 3, 2), (1,))
    pruned = remove_dead(Graph(graph.nodes, graph.types, graph.consts, graph.inputs, {"o1": "o1"}))
    (node,) = pruned.nodes
    assert (node.outputs, node.spec.outputs) == (("o1",), (1,))
    assert "o0" not in pruned.types


@pytest.mark.parametrize(
    "place,shape,said",
    [
        (0, (3, 2, 21), "21"),
        (0, (0, 2, 20), "no steps"),
        (1, (1, 20, 4), "weights"),
        (3, (3,), "lengths"),
        (4, (1, 3, 5), "state"),
        (6, (1, 20), "peepholes"),
    ],
)
def test_shapes_that_do_not_fit(place, shape, said):
    types = [None if a is None else TensorType(a.shape, F32) for a in arrays("lstm", 5, 3, 2)]
    types[place] = TensorType(shape, F32 if place != 3 else TensorType)
    with pytest.raises((ShapeError, DTypeError), match=said):
        layer("lstm").infer(types)


def test_lengths_are_int32():
    types = [None if a is None else TensorType(a.shape, F32) for a in arrays("rnn", 5, 3, 2)]
    types[3] = TensorType((2,), F32)
    with pytest.raises(DTypeError, match="int32"):
        layer("rnn").infer(types)


def test_work_is_counted():
    inputs = arrays("gru", 8, 3, 2)
    types = [None if a is None else TensorType(a.shape, F32) for a in inputs]
    assert layer("gru").flops(types, ()) == 2 * 3 * 2 * 3 * 8 * 8


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize(
    ("sizes", "backward", "lengths"),
    [
        ((32, 1, 1), FORWARD, None),
        ((33, 1, 9), BOTH, None),
        ((20, 1, 5), REVERSE, (1, 0, 3, 0, 1)),
        ((7, 1, 25), BOTH, (1, 0) * 12 + (2,)),
    ],
)
def test_one_step(device, cell, given, sizes, backward, lengths):
    """Its work-items wait for nobody: one launch, two where a gate multiplies what others made."""
    consts = (1,) if sizes[0] != 20 else ()
    ran = run(device, cell, sizes, backward, lengths, given, consts=consts)
    assert any("_once_" in name for name in ran) or not of_cpus(device)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("steps", [1, 3])
def test_weights_read_ahead(device, cell, steps, monkeypatch):
    """Where they do not stay in a core's own cache; what lies ahead of the last ones is not there to be read."""
    monkeypatch.setattr(panels, "NEAR", 0)
    run(device, cell, (33, steps, 2), BOTH)
    run(device, cell, (24, steps, 2), consts=())
    run(device, cell, (32, steps, 1), dtype="f16", given=False)


def test_far_weights_are_read_ahead():
    """Those of two cores' caches are not; nor where the compiler has no such builtin."""

    def ahead(hidden, features, units=2):
        inputs = arrays("lstm", hidden, 1, 1, 1)
        return panels.ahead(problem_of(layer("lstm"), inputs, Target(features=features)), units)

    fetching = frozenset({"prefetch"})
    assert ahead(512, fetching) * F32.itemsize == panels.AHEAD
    assert ahead(512, frozenset()) == ahead(128, fetching) == 0
    assert ahead(256, fetching) == 0 < ahead(256, fetching, 1)


@pytest.mark.parametrize("cell", ["rnn", "lstm"])
def test_states_are_held_to_one(device, cell):
    """tanh of wide vectors is a quotient of polynomials: its ends, NaN and infinities are tanh's."""
    inputs = arrays(cell, 32, 1, 2, 1, given=False)
    inputs[0] *= 1000
    inputs[0][0, 0, :2] = np.inf, -np.inf
    inputs[0][0, 1, ::7] = np.nan
    check_op(device, layer(cell), inputs, consts=(1,), every=True)


def test_one_step_of_other_forms(device):
    run(device, "lstm", (20, 1, 3), BOTH, (1, 0, 1), fields={"batch_first": True})
    run(device, "late_gru", (24, 1, 2), dtype="f16")
    run(device, "gru", (24, 1, 2), BOTH, (1, 0), dtype="bf16")
    for outputs in ((0,), (1,), (2,), (0, 2)):
        run(device, "lstm", (24, 1, 2), fields={"outputs": outputs})
    functions = ((SIGMOID, TANH), ((PostOp("clip", (-0.3, 0.3)),), (PostOp("relu"),)))
    run(device, "gru", (20, 1, 2), BOTH, fields={"functions": functions})
