"""Cases of recurrent layers."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

from harness import check_op
from recurrent_layers import BOTH, FORWARD, REVERSE, arrays, layer, masked, rounded_arrays
from simulator import DEVICE
from table import add, put

from clnn.ops.recurrent import panels
from clnn.ops.shared.functions import PostOp
from clnn.runtime.run import planning

LENGTHS = (2, 0, 3)
CPU, BOTH_TARGETS = ("cpu",), ("cpu", "gpu")


def case(name, cell, sizes, backward=FORWARD, lengths=None, given=True, fields=None, **about):
    """A layer of (hidden, steps, batch)."""
    fields = fields or {}
    first = fields.get("batch_first", False)
    inputs = arrays(cell, *sizes, len(backward), lengths, given, first)
    about = {"consts": (1,), "every": True, **about}
    add(f"recurrent_{name}", layer(cell, backward, **fields), inputs, **about)


for _cell in ("rnn", "gru", "late_gru", "lstm"):
    case(_cell, _cell, (20, 3, 3), BOTH, LENGTHS)
    case(f"{_cell}_plain", _cell, (32, 2, 1), REVERSE, given=False)
    case(
        f"{_cell}_fed", _cell, (16, 2, 2), consts=(), quick=BOTH_TARGETS if _cell == "gru" else CPU
    )
    case(f"{_cell}_once", _cell, (20, 1, 3), BOTH, (1, 0, 2), quick=CPU)
    case(f"{_cell}_once_plain", _cell, (32, 1, 1), given=False)
    _about = {"consts": (1,), "every": True}
    add(f"recurrent_{_cell}_masked", layer(_cell, BOTH), masked(_cell, (20, 3, 3), BOTH), **_about)
    _inputs = masked(_cell, (20, 1, 3))
    add(f"recurrent_{_cell}_once_masked", layer(_cell), _inputs, quick=CPU, **_about)
case("batch_first", "lstm", (8, 2, 3), BOTH, LENGTHS, fields={"batch_first": True}, quick=("cpu",))
case("last_cell", "lstm", (16, 2, 9), fields={"outputs": (2,), "input_forget": True})
case("stored", "lstm", (20, 2, 2), REVERSE, (1, 2), dtype="f16", quick=("cpu",))
case("stored_bf16", "late_gru", (20, 2, 2), dtype="bf16", quick=("cpu",))
case(
    "two_functions",
    "rnn",
    (20, 2, 2),
    BOTH,
    fields={"functions": (((PostOp("tanh"),),), ((PostOp("relu"),),))},
)


for _name, _sizes, _backward, _lengths, _reach in (
    ("rounded", (20, 3, 3), BOTH, LENGTHS, 255),
    ("rounded_plain", (32, 2, 1), REVERSE, None, 255),
    ("rounded_bytes", (19, 3, 3), BOTH, LENGTHS, 127),
):
    _inputs = rounded_arrays(*_sizes, _backward, _lengths, given=_lengths is not None, reach=_reach)
    add(f"recurrent_{_name}", layer("lstm", _backward), _inputs, consts=(1,), every=True)


def shared(cell, sizes, units, backward=FORWARD, lengths=None, given=True):
    """A layer whose hidden units are divided among `units` shares: one work-item has to do them all."""
    plain = planning.target_of

    def target(info):
        return replace(plain(info), compute_units=units)

    inputs = arrays(cell, *sizes, len(backward), lengths, given)
    with mock.patch.object(planning, "target_of", target):
        only = f"_s{units}"
        check_op(DEVICE, layer(cell, backward), inputs, consts=(1,), every=True, only=only)


for _cell, _sizes, _about in (
    ("rnn", (20, 2, 1), (FORWARD, None, False)),
    ("late_gru", (32, 2, 2), ()),
    ("gru", (32, 2, 2), (REVERSE, (1, 2))),
    ("lstm", (32, 3, 2), (BOTH, (3, 0))),
):
    put(
        f"recurrent_{_cell}_shared",
        lambda cell=_cell, sizes=_sizes, about=_about: shared(cell, sizes, 2, *about),
        targets=CPU,
    )


def far(cell, steps):
    """A layer whose weights are read ahead, as those are that exceed a core's own cache."""
    inputs = arrays(cell, 20, steps, 2, 2, None, True)
    with mock.patch.object(panels, "NEAR", 0):
        check_op(DEVICE, layer(cell, BOTH), inputs, consts=(1,), every=True)


for _cell, _steps in (("lstm", 1), ("gru", 1), ("lstm", 2)):
    put(
        f"recurrent_{_cell}_far_{_steps}",
        lambda cell=_cell, steps=_steps: far(cell, steps),
        targets=CPU,
    )


def far_shared(cell):
    """Shares that ask for the first weights of a next phase before they wait for it."""
    with mock.patch.object(panels, "NEAR", 0):
        shared(cell, (32, 3, 2), 2, BOTH)


put("recurrent_gru_far_shared", lambda: far_shared("gru"), targets=CPU)
