"""Functions of clnn.mli beside the numpy references that they are made of, in sa8 and with strides."""

from __future__ import annotations

import numpy as np
import pytest

from clnn import mli
from clnn.arith.mli_dense import DenseRule, gate_quant
from clnn.arith.mli_fused import lstm_cell, lstm_out
from clnn.arith.mli_maps import affine_leaky
from clnn.arith.mli_quant import Quant
from clnn.arith.mli_rows import (
    L2Finish,
    L2Rule,
    L2Scale,
    SoftmaxFinish,
    SoftmaxPower,
    SoftmaxRule,
    SoftmaxScale,
)

E, OK = mli.MliElementType, mli.MliStatus.MLI_STATUS_OK
SA8 = mli.SaParams((24590,), (-42,), (20,))


def sa(data, shape, params=SA8, stride=(), kind=E.MLI_EL_SA_8):
    return mli.MliTensor(data, shape, kind, params, stride)


def fx(data, shape, frac, stride=()):
    return mli.MliTensor(data, shape, E.MLI_EL_FX_16, mli.FxParams(frac), stride)


def integers(shape, dtype=np.int8, seed=0, most=None):
    ends = np.iinfo(dtype)
    low, high = (ends.min, ends.max) if most is None else (-most, most)
    return np.random.default_rng(seed).integers(low, high, shape, dtype, endpoint=True)


def strided(shape, seed):
    """Return an sa8 tensor with gaps after each axis, over random memory."""
    stride, step = [], 1
    for extent in reversed(shape):
        stride.append(step)
        step = step * extent + 2
    return sa(integers(step, seed=seed), shape, stride=tuple(reversed(stride)))


@pytest.mark.parametrize("axis", [-1, 1])
def test_softmax_of_bytes(device, axis):
    x, y, axes = strided((3, 4, 5), 1), sa(integers(60), (3, 4, 5)), (0, 1, 2) if axis < 0 else (1,)
    with mli.using(device=device, round_mode="up"):
        assert mli.mli_krn_softmax_sa8(x, mli.MliAxisCfg(axis), y) == OK, mli.last_error()
    rule, v = SoftmaxRule(x.quant(), True), x.view()
    top = np.broadcast_to(v.max(axis=axes, keepdims=True), v.shape)
    power = SoftmaxPower(rule).reference(v, top)
    scale = SoftmaxScale(rule).reference(power.sum(axis=axes, keepdims=True, dtype=np.int32))
    assert (y.view() == SoftmaxFinish(rule).reference(power, np.broadcast_to(scale, v.shape))).all()
    assert y.el_params == mli.SaParams((1,), (-128,), (8,))
    real = (y.view() + 128.0) / 256
    away = (v - v.max(axis=axes, keepdims=True).astype(float)) * 24590 / 2**20
    exact = np.exp(away) / np.exp(away).sum(axis=axes, keepdims=True)
    assert np.abs(real - np.minimum(exact, 255 / 256)).max() < 0.01


@pytest.mark.parametrize("scale, zero", [(1, 0), (-32768, 0), (0, 5000)])
def test_l2_norm_of_bytes(device, scale, zero):
    """Whatever epsilon says: it is not read."""
    x, y = strided((6, 7), 2), sa(integers(42), (6, 7))
    epsilon = sa(np.zeros(1, np.int8), ())
    epsilon.el_params = mli.SaParams((scale,), (zero,), (0,))
    with mli.using(device=device):
        assert mli.mli_krn_l2_normalize_sa8(x, epsilon, mli.MliAxisCfg(1), y) == OK
    rule, v = L2Rule(x.quant()), x.view()
    total = ((v.astype(np.int64) + 42) ** 2).sum(axis=1, keepdims=True)
    scale = np.broadcast_to(L2Scale(rule).reference(total), v.shape)
    assert (y.view() == L2Finish(rule).reference(v, scale)).all()
    exact = (v + 42.0) / np.sqrt(total)
    assert np.abs(y.view() / 128 - exact).max() < 0.02


def test_slopes_along_an_axis(device):
    x, y = (
        strided((3, 4, 5), 3),
        sa(integers(60, seed=4), (3, 4, 5), mli.SaParams((16499,), (7,), (18,))),
    )
    slopes = sa(
        np.array([-128, -5, 0, 127], np.int8), (1, 4, 1), mli.SaParams((20000,), (3,), (17,))
    )
    with mli.using(device=device):
        assert mli.mli_krn_prelu_sa8(x, slopes, mli.MliAxisCfg(1), y) == OK, mli.last_error()
    pairs = [(int(v), slopes.quant()) for v in slopes.data]
    function, scale, shift = affine_leaky(x.quant(), pairs, y.quant(), False)
    wanted = function.reference(x.view(), scale.reshape(4, 1), shift.reshape(4, 1))
    assert (y.view() == wanted).all()


def test_one_operand_may_be_a_single_element(device):
    x, one = strided((4, 6), 5), sa(np.array([99], np.int8), ())
    y, z = sa(integers(24), (4, 6)), sa(integers(24), (4, 6))
    full = sa(np.full(24, 99, np.int8), (4, 6))
    with mli.using(device=device):
        assert mli.mli_krn_eltwise_sub_sa8(one, x, y) == OK, mli.last_error()
        assert mli.mli_krn_eltwise_sub_sa8(full, x, z) == OK
    assert (y.view() == z.view()).all() and len(np.unique(y.view())) > 5


def test_largest_elements_as_offsets_in_memory(device):
    x = fx(integers(200, np.int16, 6), (4, 5, 3), 9, (31, 6, 2))
    out = sa(np.zeros(10, np.int32), (5, 2), mli.SaParams(), kind=E.MLI_EL_SA_32)
    whole = sa(np.zeros(1, np.int32), (1, 1), mli.SaParams(), kind=E.MLI_EL_SA_32)
    with mli.using(device=device):
        assert mli.mli_krn_argmax_fx16(x, mli.MliArgmaxCfg(1, 2), out) == OK, mli.last_error()
        assert mli.mli_krn_argmax_fx16(x, mli.MliArgmaxCfg(-1, 1), whole) == OK
    memory = x.data
    for row, offsets in enumerate(out.view()):
        best = np.sort(x.view()[:, row].reshape(-1))[::-1][:2]
        assert memory[offsets].tolist() == best.tolist()
    assert memory[whole.view()[0, 0]] == x.view().max()


def test_permuted_scales_follow_their_axis(device):
    params = mli.SaParams((1, 2, 3), (0, 1, 2), (9, 8, 7), dim=1)
    x, y = sa(integers(24), (2, 3, 4), params), sa(integers(24), (4, 2, 3))
    with mli.using(device=device):
        assert mli.mli_krn_permute_sa8(x, mli.MliPermuteCfg((2, 0, 1, 3)), y) == OK
    assert (y.view() == x.view().transpose(2, 0, 1)).all() and y.el_params.dim == 2


def test_moves_all_at_once(device):
    x = sa(integers(6 * 9, seed=7), (6, 9))
    y = sa(integers(70, seed=8), (7, 9), stride=(10, 1))
    before = y.view().copy()
    cfg = mli.MliMovCfg(
        offset=(1, 2),
        size=(5, 0),
        sub_sample_step=(2, 3),
        perm_dim=(1, 0),
        padding_pre=(1, 0),
        padding_post=(0, 2),
        dst_offset=(1, 3),
    )
    with mli.using(device=device):
        assert mli.mli_mov_tensor_sync(x, cfg, y) == OK, mli.last_error()
    part = np.pad(x.view()[1:6:2, 2::3], ((1, 0), (0, 2))).T
    before[1:6, 3:7] = part
    assert (y.view() == before).all()
    cfg.dst_offset = (3, 3)
    assert mli.mli_mov_tensor_sync(x, cfg, y) == mli.MliStatus.MLI_STATUS_SHAPE_MISMATCH


def test_maxima_take_the_quantisation_of_their_input(device):
    x, y = strided((5, 6, 3), 9), sa(integers(18), (2, 3, 3), mli.SaParams((1,), (0,), (0,)))
    cfg = mli.MliPoolCfg(2, 3, 2, 2)
    with mli.using(device=device):
        assert mli.mli_krn_maxpool_hwc_sa8(x, cfg, y) == OK, mli.last_error()
    seen = np.lib.stride_tricks.sliding_window_view(x.view(), (3, 2), (0, 1))[::2, ::2]
    assert (y.view() == seen.max(axis=(-1, -2))).all() and y.el_params == SA8


def lstm(steps, memory, out_rows):
    """Return the operands of an LSTM in fx16 with 3 inputs and 5 units."""
    units, inputs = 5, 3
    return {
        "in": fx(integers(steps * inputs, np.int16, 1), (steps, inputs), 14),
        "prev": fx(integers(units, np.int16, 2, 9000), (units,), 14),
        "w_in": fx(integers(4 * inputs * units, np.int16, 3), (4, inputs, units), 17),
        "w_out": fx(integers(4 * units * units, np.int16, 4), (4, units, units), 17),
        "bias": fx(integers(4 * units, np.int16, 5), (4, units), 17),
        "cell": fx(memory, (units,), 13),
        "out": fx(np.zeros(out_rows * units, np.int16), (out_rows, units), 15),
    }


def items(t, order):
    """Yield each item's state and memory, as numpy's references make them."""
    x_quant, state, gates = Quant(16, 14), Quant(16, 14), gate_quant(Quant(16, 14), 17)
    memory, h, out = t["cell"].data.copy(), t["prev"].data, Quant(16, 15)
    for step in order:
        first = DenseRule(x_quant, 16, ((1, 17),) * 4, gates, 17)
        second = DenseRule(state, 16, ((1, 17),) * 4, gates)
        p = first(t["in"].view()[step][None], t["w_in"].view(), t["bias"].view())[0]
        r = second(h[None], t["w_out"].view(), None)[0]
        gated = [p[0], r[0], p[1], r[1], p[2], r[2], memory]
        memory = lstm_cell(gates, Quant(16, 13), True, False).reference(*gated)
        h = lstm_out(gates, Quant(16, 13), out, 1, True, False).reference(p[3], r[3], memory)
        state = out
        yield h, memory


def test_lstm_takes_a_sequence_backward(device):
    t = lstm(3, integers(5, np.int16, 6), 3)
    wanted = list(items(t, (2, 1, 0)))
    cfg = mli.MliRnnCellCfg(mli.MliRnnDirection.RNN_DIR_BACKWARD, mli.MliRnnResults.RNN_OUT_ALL)
    with mli.using(device=device):
        given = [t[n] for n in ("in", "prev", "w_in", "w_out", "bias")]
        assert mli.mli_krn_lstm_cell_fx16(*given, cfg, t["cell"], t["out"]) == OK, mli.last_error()
    assert (t["out"].view() == np.stack([h for h, _ in wanted])).all()
    assert (t["cell"].data == wanted[-1][1]).all()


def test_cells_refuse_other_shapes():
    t = lstm(3, np.zeros(5, np.int16), 3)
    given = [t[n] for n in ("in", "prev", "w_in", "w_out", "bias")]
    status = mli.mli_krn_lstm_cell_fx16(*given, mli.MliRnnCellCfg(), t["cell"], t["out"])
    assert status == mli.MliStatus.MLI_STATUS_SHAPE_MISMATCH, "results are the last one only"
    status = mli.mli_krn_lstm_cell_fx16(*given, mli.MliRnnCellCfg(act=3), t["cell"], t["out"])
    assert status == mli.MliStatus.MLI_STATUS_BAD_FUNC_CFG
    status = mli.mli_krn_gru_cell_fx16(*given, mli.MliRnnCellCfg(results=1), t["out"])
    assert status == mli.MliStatus.MLI_STATUS_SHAPE_MISMATCH, "four gates instead of three"


def test_sums_of_products_of_several_inputs(device):
    xs = [sa(integers(7, seed=k), (7,), mli.SaParams((30000,), (5 - k,), (23,))) for k in (1, 2)]
    ws = [sa(integers(21, seed=k), (7, 3), mli.SaParams((20000 + k,), (0,), (20,))) for k in (3, 4)]
    bias = sa(
        integers(3, np.int32, 5, 9999),
        (3,),
        mli.SaParams((18311,), (0,), (28,)),
        kind=E.MLI_EL_SA_32,
    )
    out = sa(np.zeros(3, np.int8), (3,), mli.SaParams((20511,), (-8,), (16,)))
    with mli.using(device=device):
        status = mli.mli_krn_rnn_dense_sa8_sa8_sa32(xs, ws, bias, mli.MliRnnDenseCfg(2), out)
        assert status == OK, mli.last_error()
    total = 0
    for k, (x, w) in enumerate(zip(xs, ws, strict=True)):
        rule = DenseRule(x.quant(), 8, ((w.quant().scale, w.quant().frac),), out.quant())
        total = total + rule(x.view()[None], w.view()[None], None if k else bias.view()[None])[0, 0]
    assert out.view().tolist() == np.clip(total - 8, -128, 127).tolist()
