"""GroupQueryAttention gives onnxruntime's numbers: prompts, tokens behind a past, and open dimensions."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnxruntime_nodes import check, model, normal, ort

import clnn
from clnn.errors import ClnnError

NAMES = (
    "q",
    "k",
    "v",
    "past_k",
    "past_v",
    "lengths",
    "total",
    "cos",
    "sin",
    "places",
    "bias",
    "sink",
)
OUTPUTS = ("y", "present_k", "present_v")
# length of the call, tokens by now of each sample, most of these, room of the past
CALLS = {
    "prompt": (4, [4, 4], 4, 0),
    "prompt_into_room": (4, [4, 4], 4, 7),
    "token": (1, [3, 6], 6, 5),
    "token_in_room": (1, [3, 6], 6, 8),
    "chunk": (3, [7], 7, 4),
    "short_chunk": (3, [6], 7, 9),
}
FORMS = {
    "plain": {},
    "window": {"local_window_size": 2},
    "capped": {"softcap": 2.0, "scale": 0.4},
    "smooth": {"smooth_softmax": 1},
    "both_ways": {"causal": 0},
}


def inputs(call, heads=4, shared=2, size=8, packed=False):
    length, lengths, total, room = CALLS[call]
    batch = len(lengths)
    if packed:
        feeds = {"q": normal(batch, length, (heads + 2 * shared) * size)}
    else:
        wide = (heads, shared, shared)
        feeds = {
            n: normal(batch, length, w * size, seed=w) for n, w in zip("qkv", wide, strict=True)
        }
    if room:
        feeds |= {n: normal(batch, shared, room, size, seed=7) for n in ("past_k", "past_v")}
    counts = {"lengths": np.array(lengths, np.int32) - 1, "total": np.array(total, np.int32)}
    return feeds | counts


def compare(device, feeds, heads=4, shared=2, constant=(), **attrs):
    order = [n if n in feeds else "" for n in NAMES]
    while not order[-1]:
        order.pop()
    consts = {n: feeds[n] for n in constant}
    fed = {n: a for n, a in feeds.items() if n not in consts}
    heads = {"num_heads": heads, "kv_num_heads": shared}
    check(device, "GroupQueryAttention", fed, consts, OUTPUTS, order=order, **heads, **attrs)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("form", FORMS)
def test_forms(device, call, form):
    compare(device, inputs(call), constant=("total",), **FORMS[form])


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("heads, shared", [(2, 2), (3, 1)])
@pytest.mark.parametrize("interleaved", [0, 1])
def test_packed_and_rotary(device, call, heads, shared, interleaved):
    feeds = inputs(call, heads, shared, 16, packed=True)
    feeds |= {"cos": normal(20, 8, seed=3), "sin": normal(20, 8, seed=4)}
    attrs = {"do_rotary": 1, "rotary_interleaved": interleaved}
    compare(device, feeds, heads, shared, ("total",), **attrs)
    places = np.arange(feeds["q"].shape[0] * feeds["q"].shape[1])
    feeds["places"] = places.reshape(feeds["q"].shape[:2]) + 3
    compare(device, feeds, heads, shared, ("total",), **attrs)


@pytest.mark.parametrize("call", ["prompt", "token_in_room"])
def test_biases_and_sinks(device, call):
    feeds = inputs(call)
    length, lengths, total, _ = CALLS[call]
    compare(device, feeds | {"sink": normal(4)}, constant=("total",))
    for shape in ((1, 1), (len(lengths), 4)):
        compare(device, feeds | {"bias": normal(*shape, length, total)}, constant=("total",))


def test_total_that_the_run_gives(device):
    compare(device, inputs("token_in_room"))


def test_refusals(device):
    for attrs in ({"sliding_window_cache": 1}, {"kv_num_heads": 3}):
        heads = {"num_heads": 4, "kv_num_heads": 2} | attrs
        feeds = inputs("token")
        held = {"total": feeds.pop("total")}
        made = model("GroupQueryAttention", feeds, held, NAMES[:7], OUTPUTS, "com.microsoft", heads)
        with pytest.raises(ClnnError):
            clnn.compile_model(made, device)


def test_tokens_one_after_the_other(device):
    """All extents are open; the total is the extent of a mask, as decoders have it."""
    nothing = np.zeros((1, 1, 1, 1), np.float32)
    feeds = inputs("prompt", packed=True) | {"past_k": nothing, "past_v": nothing}
    made = onnx.load_from_string(
        model(
            "GroupQueryAttention",
            feeds,
            {},
            ["q", "", "", "past_k", "past_v", "lengths", "total"],
            OUTPUTS,
            "com.microsoft",
            {"num_heads": 4, "kv_num_heads": 2},
        )
    )
    graph = made.graph
    kept = [v for v in graph.input if v.name != "total"]
    open_shape = {
        "q": ["b", "s", 64],
        "past_k": ["b", 2, "p", 8],
        "past_v": ["b", 2, "p", 8],
        "lengths": ["b"],
        "mask": ["b", "t"],
    }
    kinds = {v.name: v.type.tensor_type.elem_type for v in kept} | {"mask": onnx.TensorProto.INT64}
    del graph.input[:]
    graph.input.extend(
        onnx.helper.make_tensor_value_info(n, kinds[n], shape) for n, shape in open_shape.items()
    )
    nodes = [
        onnx.helper.make_node("Shape", ["mask"], ["extents"]),
        onnx.helper.make_node("Gather", ["extents", "one"], ["most"]),
        onnx.helper.make_node("Cast", ["most"], ["total"], to=onnx.TensorProto.INT32),
        *graph.node,
    ]
    graph.initializer.append(onnx.numpy_helper.from_array(np.array(1), "one"))
    del graph.node[:]
    graph.node.extend(nodes)
    stored = made.SerializeToString()
    session = ort.InferenceSession(stored, providers=["CPUExecutionProvider"])
    with clnn.compile_model(stored, device) as mine:
        past = [np.zeros((2, 2, 0, 8), np.float32)] * 2
        lengths, length = np.array([2, 3], np.int32), 4
        for step in range(4):
            now = length if step == 0 else 1
            fed = {
                "q": normal(2, now, 64, seed=step),
                "past_k": past[0],
                "past_v": past[1],
                "lengths": lengths,
                "mask": np.ones((2, length + step), np.int64),
            }
            want = dict(zip(OUTPUTS, session.run(None, fed), strict=True))
            got = mine(fed)
            for sample in range(2):
                rows = slice(0, lengths[sample] + 1 if step == 0 else 1)
                for name in OUTPUTS:
                    a, b = got[name][sample], want[name][sample]
                    a, b = (a[rows], b[rows]) if name == "y" else (a, b)
                    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5, err_msg=f"{name} {step}")
            past, lengths = [want["present_k"], want["present_v"]], lengths + 1
