"""clnn.mli: what a call does to memory, and the status of every call that MLI excludes."""

from __future__ import annotations

import copy
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from common import ROOT

import clnn
from clnn import mli
from clnn.arith.mli import MliAffine, MliFixed
from clnn.errors import SettingError

E, S = mli.MliElementType, mli.MliStatus
FC = mli.mli_krn_fully_connected_sa8_sa8_sa32
RNG = np.random.default_rng(5)


def sa(data, shape, scale=(24494,), zero=(0,), frac=(21,), dim=-1, stride=(), kind=E.MLI_EL_SA_8):
    return mli.MliTensor(data, shape, kind, mli.SaParams(scale, zero, frac, dim), stride)


def fx(data, shape, frac, stride=(), kind=E.MLI_EL_FX_16):
    return mli.MliTensor(data, shape, kind, mli.FxParams(frac), stride)


def bytes_of(count):
    return RNG.integers(-128, 128, count).astype(np.int8)


def dense():
    """Return the operands of a fully connected call in sa8 that is in order."""
    w_scale, w_frac = (29307, 22222), (24, 23)
    exact = [24494 * s * 2.0 ** (30 - 21 - f) for s, f in zip(w_scale, w_frac, strict=True)]
    frac = [30 - max(0, int(np.ceil(np.log2(e / 32767)))) for e in exact]
    scale = tuple(round(e * 2.0 ** (f - 30)) for e, f in zip(exact, frac, strict=True))
    return {
        "given": sa(bytes_of(12), (3, 4), zero=(-43,)),
        "weights": sa(bytes_of(24), (12, 2), w_scale, (0, 0), w_frac, 1),
        "bias": sa(
            np.array([999, -77777], np.int32), (2,), scale, (0,), tuple(frac), 0, (), E.MLI_EL_SA_32
        ),
        "cfg": mli.MliFullyConnectedCfg(mli.MliReluCfg(mli.MliReluType.MLI_RELU_GEN)),
        "out": sa(np.full(2, 55, np.int8), (2,), (20291,), (-12,), (16,)),
    }


def call(function, operands):
    return function(*operands.values())


def wanted(t, full=False, up=False, zero_in=None):
    """Return what numpy's reference makes of a fully connected call."""
    q, o = t["given"].quant(), t["out"].quant()
    arith = MliAffine(
        q.scale,
        q.frac,
        o.scale,
        o.frac,
        t["weights"].el_params.scale,
        t["weights"].el_params.scale_frac_bits,
        q.zero if zero_in is None else zero_in,
        o.zero,
        o.zero,
        127,
        full,
        up,
    )
    columns = t["given"].view().reshape(1, 1, -1, 1)
    weights = t["weights"].view().T.reshape(1, 2, -1, 1)
    return arith.reference(columns, weights, t["bias"].view()).reshape(-1)


@pytest.mark.parametrize("full", [False, True])
def test_fully_connected_bytes(device, full):
    t = dense()
    with mli.using(device=device, full_accu=full):
        assert call(FC, t) == S.MLI_STATUS_OK, mli.last_error()
    assert t["out"].view().tolist() == wanted(t, full).tolist()


def test_the_adjusted_bias_takes_the_zero_point_away(device):
    t = dense()
    adjusted = replace(t["bias"], data=t["bias"].data.copy())
    with mli.using(device=device):
        helped = mli.mli_hlp_fully_connected_ext_bias(t["given"], t["weights"], t["bias"], adjusted)
        assert helped == S.MLI_STATUS_OK
        special = mli.mli_krn_fully_connected_sa8_sa8_sa32_ext_bias
        assert call(special, {**t, "bias": adjusted}) == S.MLI_STATUS_OK
    sums = t["weights"].view().sum(axis=0, dtype=np.int64)
    assert (adjusted.view() == t["bias"].view() + 43 * sums).all()
    assert t["out"].view().tolist() == wanted(t).tolist()


def overlapping(t):
    memory = np.zeros(16, np.int8)
    return {
        **t,
        "given": replace(t["given"], data=memory),
        "out": replace(t["out"], data=memory[11:]),
    }


def changed(t, name, fields, params):
    """Return operands of which one has other fields, and other fields of its el_params."""
    operand = t[name]
    if params:
        operand = replace(operand, el_params=replace(operand.el_params, **params))
    fields = {k: v(operand) if callable(v) else v for k, v in fields.items()}
    return {**t, name: replace(operand, **fields)}


def along(dim, count):
    return {"dim": dim, "scale": (1,) * count, "scale_frac_bits": (1,) * count}


def first(count):
    return {"data": lambda x: x.data[:count]}


def shaped(*shape):
    return {"shape": shape, "mem_stride": mli.tensor.contiguous(shape)}


def gaps(*stride, dtype=np.int8):
    return {"data": np.zeros(99, dtype), "mem_stride": stride}


BAD, SHAPE, TENSORS, TYPE = "BAD_TENSOR", "SHAPE_MISMATCH", "INCOMPATEBLE_TENSORS", "TYPE_MISMATCH"
FX8 = {"el_type": E.MLI_EL_FX_8, "el_params": mli.FxParams(3)}
REFUSED = {  # status, operand, its fields, fields of its quantisation
    "memory too small for its shape": (BAD, "given", first(11), {}),
    "elements that overlap": (BAD, "weights", {"mem_stride": (1, 1)}, {}),
    "no scales": (BAD, "given", {"el_params": None}, {}),
    "too few scales": (BAD, "weights", {}, {"scale": (1,)}),
    "a scale of 0": (BAD, "out", {}, {"scale": (0,)}),
    "quantisation of no axis": (BAD, "given", {}, {"dim": 2}),
    "five axes": (BAD, "given", shaped(1, 1, 1, 3, 4), {}),
    "strides of too few axes": (BAD, "given", {"mem_stride": (1,)}, {}),
    "an unknown format": (BAD, "given", {"el_type": 99}, {}),
    "memory with gaps of its own": (BAD, "given", {"data": np.zeros(24, np.int8)[::2]}, {}),
    "out that cannot be written": (BAD, "out", {"data": np.frombuffer(b"ab", np.int8)}, {}),
    "out without room": ("NOT_ENGH_MEM", "out", first(1), {}),
    "input of another format": (TYPE, "given", FX8, {}),
    "weights of another format": (TYPE, "weights", FX8, {}),
    "bias of another format": (TYPE, "bias", {"el_type": E.MLI_EL_SA_8}, {}),
    "out of another format": (TYPE, "out", FX8, {}),
    "input of another size": (SHAPE, "given", shaped(11), {}),
    "weights of three axes": (SHAPE, "weights", shaped(3, 4, 2), {"dim": 2}),
    "bias of two axes": (SHAPE, "bias", shaped(1, 2), {"dim": 1}),
    "bias of another length": (SHAPE, "bias", shaped(1), {"dim": -1}),
    "out of two axes": (SHAPE, "out", shaped(1, 2), {}),
    "out of another length": (SHAPE, "out", shaped(1), {}),
    "input with gaps": (TENSORS, "given", gaps(5, 1), {}),
    "out with gaps": (TENSORS, "out", gaps(2), {}),
    "weights with gaps inside": (TENSORS, "weights", gaps(4, 2), {}),
    "bias with gaps": (TENSORS, "bias", gaps(2, dtype=np.int32), {}),
    "input quantised along an axis": (TENSORS, "given", {}, along(0, 3)),
    "out quantised along an axis": (TENSORS, "out", {}, along(0, 2)),
    "zero point of the input above a byte": (TENSORS, "given", {}, {"zero_point": (128,)}),
    "zero point of the input below a byte": (TENSORS, "given", {}, {"zero_point": (-129,)}),
    "zero point of out above a byte": (TENSORS, "out", {}, {"zero_point": (128,)}),
    "zero point of out below a byte": (TENSORS, "out", {}, {"zero_point": (-129,)}),
    "weights with a zero point": (TENSORS, "weights", {}, {"zero_point": (0, 1)}),
    "bias with a zero point": (TENSORS, "bias", {}, {"zero_point": (1,)}),
    "weights quantised along inputs": (TENSORS, "weights", {}, along(0, 12)),
    "weights and bias at other levels": (TENSORS, "weights", {}, {"dim": -1}),
    "bias of another scale": (TENSORS, "bias", {}, {"scale": (31000, 17000)}),
}


def check_refusal(t, status):
    """Assert the status, a message, and that nothing was written."""
    held = [x.data for x in t.values() if isinstance(x, mli.MliTensor)]
    before, params = [d.copy() for d in held], copy.deepcopy(t["out"].el_params)
    assert call(FC, t) == S[f"MLI_STATUS_{status}"], mli.last_error()
    assert mli.last_error().startswith("mli_krn_fully_connected_sa8_sa8_sa32: ")
    assert all((a == b).all() for a, b in zip(held, before, strict=True))
    assert t["out"].el_params == params


@pytest.mark.parametrize("why", REFUSED)
def test_a_refused_call_changes_nothing(why):
    status, *change = REFUSED[why]
    check_refusal(changed(dense(), *change), status)


def test_other_refusals_of_fully_connected():
    check_refusal(overlapping(dense()), "INCOMPATEBLE_TENSORS")
    check_refusal({**dense(), "given": None}, "BAD_TENSOR")
    check_refusal({**dense(), "cfg": mli.MliPoolCfg()}, "BAD_FUNC_CFG")
    relu = mli.MliFullyConnectedCfg(mli.MliReluCfg(4))
    check_refusal({**dense(), "cfg": relu}, "BAD_FUNC_CFG")


@pytest.mark.parametrize(("name", "frac"), [("bias", 29), ("out", 29)])
def test_more_fraction_bits_than_the_products_have(name, frac):
    fracs = {"given": 14, "weights": 14, "bias": 20, "out": 11, name: frac}
    shapes = {"given": (4,), "weights": (4, 2), "bias": (2,), "out": (2,)}
    t = {n: fx(np.zeros(8, np.int16), shapes[n], fracs[n]) for n in fracs}
    operands = [t["given"], t["weights"], t["bias"], mli.MliFullyConnectedCfg(), t["out"]]
    status = mli.mli_krn_fully_connected_fx16(*operands)
    assert status == S.MLI_STATUS_INCOMPATEBLE_TENSORS
    assert f"{name} has {frac} fraction bits, the products only 28" in mli.last_error()


def image(h, w, c, gaps, seed):
    """Return memory with random bytes, and the strides of an image with gaps in it."""
    stride = (w * (c + gaps) + gaps, c + gaps, 1)
    memory = np.random.default_rng(seed).integers(-999, 999, h * stride[0] + 3).astype(np.int16)
    return memory, stride


def test_holes_between_elements_stay_as_they_are(device):
    memory, stride = image(5, 6, 3, 2, 1)
    x = fx(memory, (5, 6, 3), 11, stride)
    weights = fx(np.arange(-27, 27, dtype=np.int16), (3, 3, 3, 2), 9)
    bias = fx(np.array([50, -70], np.int16), (2,), 13)
    held, out_stride = image(5, 6, 2, 3, 2)
    out = fx(held.copy(), (5, 6, 2), 8, out_stride)
    cfg = mli.MliConv2dCfg(padding_left=1, padding_right=1, padding_top=1, padding_bottom=1)
    with mli.using(device=device):
        assert mli.mli_krn_conv2d_hwcn_fx16(x, weights, bias, cfg, out) == S.MLI_STATUS_OK
    padded = np.pad(x.view(), ((1, 1), (1, 1), (0, 0)))
    seen = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (0, 1))
    columns = seen.transpose(2, 3, 4, 0, 1).reshape(1, 1, 3, 9, 5, 6)
    kernel = weights.view().transpose(3, 2, 0, 1).reshape(1, 2, 3, 9)
    reference = MliFixed(16, 7, 12).reference(columns, kernel, bias.view())[0, 0]
    assert (out.view() == reference.transpose(1, 2, 0)).all()
    out.view()[...] = replace(out, data=held).view()
    assert (out.data == held).all()


def test_calls_in_place(device):
    x = fx(np.array([-9000, -3, 0, 20000], np.int16), (4,), 11)
    with mli.using(device=device):
        assert mli.mli_krn_relu_fx16(x, mli.MliReluCfg(mli.MliReluType.MLI_RELU_6), x) == 0
    assert x.data.tolist() == [0, 0, 0, 12288]
    moved = fx(x.data[1:], (3,), 11)
    status = mli.mli_krn_relu_fx16(fx(x.data, (3,), 11), mli.MliReluCfg(), moved)
    assert status == S.MLI_STATUS_INCOMPATEBLE_TENSORS and "do not lie alike" in mli.last_error()


CONV = {
    "stride of 0": ("BAD_FUNC_CFG", {"stride_width": 0}, (5, 5, 2)),
    "padding as wide as the window": ("BAD_FUNC_CFG", {"padding_left": 3}, (5, 5, 2)),
    "an output larger than the input gives": ("SHAPE_MISMATCH", {}, (4, 3, 2)),
    "other channels": ("SHAPE_MISMATCH", {}, (3, 3, 4)),
}


@pytest.mark.parametrize("why", CONV)
def test_convolutions_that_are_refused(why):
    status, fields, shape = CONV[why]
    x = fx(np.zeros(75, np.int16), (5, 5, 3), 11)
    weights, bias = fx(np.zeros(54, np.int16), (3, 3, 3, 2), 9), fx(np.zeros(2, np.int16), (2,), 13)
    out = fx(np.zeros(200, np.int16), shape, 8)
    given = mli.mli_krn_conv2d_hwcn_fx16(x, weights, bias, mli.MliConv2dCfg(**fields), out)
    assert given == S[f"MLI_STATUS_{status}"], mli.last_error()


def test_kernels_for_one_window_refuse_another():
    x, out = fx(np.zeros(75, np.int16), (5, 5, 3), 11), fx(np.zeros(75, np.int16), (3, 3, 3), 11)
    cfg = mli.MliPoolCfg(kernel_width=3, kernel_height=3)
    status = mli.mli_krn_maxpool_hwc_fx16_k2x2(x, cfg, out)
    assert status == S.MLI_STATUS_SPEC_PARAM_MISMATCH


def test_modes_hold_inside_their_block_only():
    with mli.using(round_mode="up", full_accu=True) as inside:
        assert mli.modes() is inside and inside.up
    assert not mli.modes().up
    with (
        pytest.raises(SettingError, match="round_mode 'down' is not allowed"),
        mli.using(round_mode="down"),
    ):
        pass


def test_parts_of_a_tensor_share_its_memory():
    whole = fx(np.arange(24, dtype=np.int16), (2, 3, 4), 7)
    part = mli.mli_hlp_create_subtensor(whole, (1, 1, 2), (1, 2, 2), 2)
    assert part.view().tolist() == [[18, 19], [22, 23]] and part.shape == (2, 2)
    part.view()[0, 0] = -5
    assert whole.view()[1, 1, 2] == -5
    assert mli.mli_hlp_count_elem_num(whole, 1) == 12
    assert mli.mli_hlp_tensor_element_size(whole) == 2


def test_importing_clnn_does_not_import_mli():
    code = "import sys, clnn; sys.exit(any(name.startswith('clnn.apis') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
    assert clnn.mli is mli and "mli_krn_lstm_cell_fx16" in dir(mli)
