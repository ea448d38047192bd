"""Models of one node, run by onnxruntime and by clnn."""

from __future__ import annotations

import numpy as np
import pytest
from harness import rng
from onnx import helper, numpy_helper

import clnn

ort = pytest.importorskip("onnxruntime")


def normal(*shape, seed=0):
    return (rng(seed).standard_normal(shape) / 2).astype(np.float32)


def model(op, feeds, consts, order, outputs, domain, attrs, opset=20):
    """Return the bytes of a model of one node; order: names of its inputs, "" for left out."""
    kind = helper.np_dtype_to_tensor_dtype
    node = helper.make_node(op, order, outputs, domain=domain, **attrs)
    ins = [helper.make_tensor_value_info(n, kind(a.dtype), a.shape) for n, a in feeds.items()]
    outs = [helper.make_empty_tensor_value_info(n) for n in outputs if n]
    held = [numpy_helper.from_array(a, n) for n, a in consts.items()]
    graph = helper.make_graph([node], "one", ins, outs, held)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()


def check(
    device,
    op,
    feeds,
    consts=None,
    outputs=("y",),
    domain="com.microsoft",
    order=None,
    tolerance=1e-5,
    opset=20,
    **attrs,
):
    """Run one node on both engines and compare."""
    consts = consts or {}
    order = order or [*feeds, *consts]
    made = model(op, feeds, consts, order, list(outputs), domain, attrs, opset)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(made, options, providers=["CPUExecutionProvider"])
    with clnn.compile_model(made, device) as mine:
        got = mine(feeds)
    for name, want in zip([o for o in outputs if o], session.run(None, feeds), strict=True):
        assert got[name].shape == want.shape and got[name].dtype == want.dtype, name
        about = {"rtol": tolerance, "atol": tolerance, "err_msg": f"{name} {attrs}"}
        np.testing.assert_allclose(got[name], want, **about)
