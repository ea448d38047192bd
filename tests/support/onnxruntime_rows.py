"""The table of docs/onnxruntime.md: what programs call, and a trial of it for both engines.

A trial takes a module, onnxruntime or clnn.onnxruntime, and returns what it found as plain values.
"""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper
from onnx import numpy_helper as numbers

X = np.arange(6, dtype=np.float32).reshape(2, 3)
P = ["CPUExecutionProvider"]


@dataclass(frozen=True)
class Row:
    """One line of the table. why: what differs, "" where nothing does."""

    call: str
    trial: Callable[[Any], Any]
    why: str = ""


def value(name: str, dims: Any, kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, dims)


def model(
    nodes: Any = (),
    inputs: Any = (),
    outputs: Any = (),
    stored: Any = (),
    opset: int = 17,
    **head: Any,
) -> bytes:
    """Return a model's bytes: by default y = Relu(x) with x of (N, 3)."""
    graph = helper.make_graph(
        list(nodes) or [helper.make_node("Relu", ["x"], ["y"], "only")],
        "g",
        list(inputs) or [value("x", ("N", 3))],
        list(outputs) or [value("y", ("N", 3))],
        [numbers.from_array(a, n) for n, a in dict(stored).items()],
    )
    made = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8, **head
    )
    entry = made.metadata_props.add()
    entry.key, entry.value = "classes", "a,b"
    made.model_version = 3
    return bytes(made.SerializeToString())


def foreign(
    op: str, inputs: Any, outputs: Any, domain: str = "ai.onnx.ml", version: int = 2, **attrs: Any
) -> bytes:
    """Return a model of one node of another domain than ONNX's, from x to y."""
    node = helper.make_node(op, ["x"], ["y"], domain=domain, **attrs)
    graph = helper.make_graph([node], "g", [inputs], [outputs])
    sets = [helper.make_opsetid("", 17), helper.make_opsetid(domain, version)]
    return bytes(helper.make_model(graph, opset_imports=sets, ir_version=8).SerializeToString())


def session(ort: Any, data: bytes | None = None, options: Any = None, **more: Any) -> Any:
    return ort.InferenceSession(data or model(), options, providers=P, **more)


SCORES = helper.make_map_type_proto(
    TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, None)
)
LABELS = foreign(
    "LabelEncoder",
    value("x", ("N",), TensorProto.STRING),
    value("y", ("N",), TensorProto.INT64),
    keys_strings=["a", "z"],
    values_int64s=[5, 7],
)
ZIPPED = foreign(
    "ZipMap",
    value("x", ("N", 3)),
    helper.make_value_info("y", helper.make_sequence_type_proto(SCORES)),
    classlabels_int64s=[4, 5, 6],
)


def run(ort: Any, feeds: Any, names: Any = None, data: bytes | None = None) -> Any:
    return session(ort, data).run(names, feeds)


def node_of(
    op: str, kind: int = TensorProto.FLOAT, dims: Any = ("N", 3), **attributes: Any
) -> bytes:
    return model(
        [helper.make_node(op, ["x"], ["y"], **attributes)],
        [value("x", dims, kind)],
        [value("y", dims, kind)],
    )


def of_type(kind: int, dims: Any = (None,)) -> bytes:
    return node_of("Identity", kind, dims)


def weighted(ort: Any, feeds: Any) -> Any:
    data = model(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [value("x", ("N", 3)), value("w", (3,))],
        stored={"w": np.float32([1, 2, 3])},
    )
    made = session(ort, data)
    rows = [(p.name, p.shape, p.type) for p in made.get_overridable_initializers()]
    return rows, [p.name for p in made.get_inputs()], made.run(None, feeds)


def ports(ort: Any, dims: Any, out: Any = None) -> Any:
    made = session(ort, model(inputs=[value("x", dims)], outputs=[value("y", out)]))
    return [(p.name, p.shape, p.type) for p in [*made.get_inputs(), *made.get_outputs()]]


def attribute(name: str, given: Any) -> Callable[[Any], Any]:
    """Return a trial: the default, what is set, a run with it, a wrong type."""

    def trial(ort: Any) -> Any:
        options = ort.SessionOptions()
        before = getattr(options, name)
        kind = getattr(ort, given.partition(".")[0], None) if isinstance(given, str) else None
        new = given if kind is None else getattr(kind, given.partition(".")[2])
        setattr(options, name, new)
        made = session(ort, None, options).run(None, {"x": X})
        return str(before), str(getattr(options, name)), made, raised(setattr, options, name, {})

    return trial


def raised(call: Callable[..., Any], *arguments: Any, **more: Any) -> str:
    """Return the name of the exception of a call: onnxruntime's, else Python's; "" for none."""
    try:
        call(*arguments, **more)
    except Exception as err:
        return name_of(err)
    return ""


def name_of(err: Exception) -> str:
    for kind in type(err).__mro__:
        if kind.__module__ == "builtins" or "onnxruntime_pybind11_state" in kind.__module__:
            return kind.__name__
        if kind.__module__ == "clnn.onnxruntime.errors" and hasattr(kind, "number"):
            return kind.__name__
    return "Exception"


def tried(row: Row, ort: Any) -> Any:
    """Return what a trial found, exceptions by name."""
    try:
        return row.trial(ort)
    except Exception as err:
        return "raised", name_of(err)


def bound(ort: Any) -> Any:
    made = session(ort)
    binding = made.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("y")
    made.run_with_iobinding(binding)
    first = binding.copy_outputs_to_cpu()
    kinds = [(v.shape(), v.device_name(), v.data_type()) for v in binding.get_outputs()]
    wrong = raised(binding.bind_cpu_input, "q", X), raised(binding.bind_cpu_input, "x", [1.0])
    return first, kinds, wrong


def bound_memory(ort: Any) -> Any:
    made, out = session(ort), np.zeros((2, 3), np.float32)
    binding = made.io_binding()
    binding.bind_input("x", "cpu", 0, np.float32, X.shape, X.ctypes.data)
    binding.bind_output("y", "cpu", 0, np.float32, out.shape, out.ctypes.data)
    made.run_with_iobinding(binding)
    return out


def bound_values(ort: Any) -> Any:
    made = session(ort)
    held = ort.OrtValue.ortvalue_from_shape_and_type((2, 3), np.float32)
    binding = made.io_binding()
    binding.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(X))
    binding.bind_ortvalue_output("y", held)
    made.run_with_iobinding(binding)
    return held.numpy(), binding.get_outputs()[0].data_ptr() == held.data_ptr()


def cleared(ort: Any) -> Any:
    made = session(ort)
    binding = made.io_binding()
    binding.bind_cpu_input("x", X)
    binding.synchronize_inputs()
    binding.synchronize_outputs()
    nothing = raised(made.run_with_iobinding, binding)
    binding.bind_output("y")
    binding.clear_binding_inputs()
    return nothing, raised(made.run_with_iobinding, binding), binding.clear_binding_outputs()


def asynchronous(ort: Any, names: Any = None, **feeds: Any) -> Any:
    options = ort.SessionOptions()
    done, found = threading.Event(), []

    def callback(outputs: Any, data: Any, error: str) -> None:
        found.append((outputs, data, bool(error)))
        done.set()

    session(ort, None, options).run_async(names, feeds or {"x": X}, callback, "data")
    assert done.wait(60)
    return found


def terminated(ort: Any) -> Any:
    options = ort.RunOptions()
    options.terminate = True
    return raised(session(ort).run, None, {"x": X}, options)


def value_of(ort: Any) -> Any:
    held = ort.OrtValue.ortvalue_from_numpy(X.copy())
    flags = held.is_tensor(), held.has_value(), held.is_sparse_tensor(), held.is_tensor_sequence()
    about = held.shape(), held.data_type(), held.element_type(), held.device_name()
    return flags, about, held.numpy(), held.tensor_size_in_bytes(), np.asarray(held)


def updated(ort: Any) -> Any:
    array = X.copy()
    held = ort.OrtValue.ortvalue_from_numpy(array)
    held.update_inplace(X * 2)
    return held.numpy(), array, raised(held.update_inplace, np.ones(2, np.float32))


def profiled(ort: Any, folder: Path) -> Any:
    import json

    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "trace")
    made = session(ort, model(inputs=[value("x", (2, 3))]), options)
    made.run(None, {"x": X})
    path = Path(made.end_profiling())
    events = json.loads(path.read_text("utf-8"))
    return path.parent == folder, {e["cat"] for e in events}, {e["ph"] for e in events}


def overridden(ort: Any) -> Any:
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_name("N", 2)
    options.add_free_dimension_override_by_name("other", 7)
    made = session(ort, None, options)
    wrong = raised(made.run, None, {"x": X[:1]})
    return made.get_inputs()[0].shape, made.get_outputs()[0].shape, wrong, made.run(None, {"x": X})


def denoted(ort: Any) -> Any:
    import onnx

    proto = onnx.load_from_string(model(inputs=[value("x", (None, 3))]))
    proto.graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_denotation("DATA_BATCH", 2)
    made = session(ort, proto.SerializeToString(), options)
    return made.get_inputs()[0].shape, made.run(None, {"x": X})


def entries(ort: Any) -> Any:
    options, one = ort.SessionOptions(), ort.RunOptions()
    options.add_session_config_entry("session.x", "1")
    one.add_run_config_entry("run.x", "2")
    found = options.get_session_config_entry("session.x"), one.get_run_config_entry("run.x")
    lost = raised(options.get_session_config_entry, "q"), raised(one.get_run_config_entry, "q")
    return found, lost, raised(options.add_session_config_entry, "a", 1)


def initialised(ort: Any) -> Any:
    data = model([helper.make_node("Add", ["x", "w"], ["y"])], stored={"w": np.float32([1, 2, 3])})
    options = ort.SessionOptions()
    held = ort.OrtValue.ortvalue_from_numpy(np.float32([5, 5, 5]))  # which must outlive the session
    options.add_initializer("w", held)
    return session(ort, data, options).run(None, {"x": X})


def head(ort: Any) -> Any:
    meta = session(ort, model(producer_name="maker")).get_modelmeta()
    names = ("producer_name", "graph_name", "domain", "description", "graph_description", "version")
    return [getattr(meta, n) for n in names], meta.custom_metadata_map


def levels(ort: Any) -> Any:
    kinds = ort.GraphOptimizationLevel, ort.ExecutionMode, ort.ExecutionOrder
    return [(n, int(m), m.name, str(m)) for kind in kinds for n, m in kind.__members__.items()]


def severities(ort: Any) -> Any:
    ort.set_default_logger_severity(4)
    ort.set_default_logger_verbosity(0)
    wrong = raised(ort.set_default_logger_severity, 9)
    ort.set_default_logger_severity(2)
    return wrong


def exceptions(ort: Any) -> Any:
    state = ort.capi.onnxruntime_pybind11_state
    again = ort.capi._pybind_state
    names = ("Fail", "InvalidArgument", "NoSuchFile", "NoModel", "EngineError", "RuntimeException")
    more = ("InvalidProtobuf", "ModelLoaded", "NotImplemented", "InvalidGraph", "EPFail")
    return [issubclass(getattr(state, n), Exception) for n in names + more], (
        again.InvalidArgument is state.InvalidArgument,
        raised(session(ort).run, None, {"x": X.astype(np.float64)}),
    )


def sequence(ort: Any) -> Any:
    graph = helper.make_graph(
        [helper.make_node("SequenceAt", ["s", "i"], ["y"])],
        "g",
        [
            helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None),
            value("i", (), TensorProto.INT64),
        ],
        [value("y", None)],
    )
    opset = [helper.make_opsetid("", 17)]
    data = helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()
    made = session(ort, data)
    rows = [(p.name, p.shape, p.type) for p in made.get_inputs()]
    return (
        rows,
        made.run(None, {"s": [X, 2 * X], "i": np.array(1)}),
        (
            raised(made.run, None, {"s": (X,), "i": np.array(0)}),
            raised(made.run, None, {"s": X, "i": np.array(0)}),
        ),
    )


def table(folder: Path) -> list[Row]:
    """Return all rows. folder: an empty one, for files."""
    path, empty, other = folder / "m.onnx", folder / "empty.onnx", folder / "other.onnx"
    path.write_bytes(model())
    empty.write_bytes(b"")
    other.write_bytes(b"no model at all")
    return [*sessions(path, empty, other), *feeds(), *options_rows(folder), *values(), *whole()]


def sessions(path: Path, empty: Path, other: Path) -> list[Row]:
    make = helper.make_node
    unknown = model([make("Foo", ["x"], ["y"])])
    return [
        Row(
            "`InferenceSession(path)`, as text or `os.PathLike`",
            lambda o: (
                session(o, str(path)).run(None, {"x": X}),
                session(o, path).run(None, {"x": X}),
            ),
        ),
        Row("`InferenceSession(bytes)`", lambda o: run(o, {"x": -X})),
        Row(
            "`InferenceSession` of other objects: TypeError",
            lambda o: [raised(session, o, v) for v in (bytearray(b"x"), 3)],
        ),
        Row(
            "no file: NoSuchFile; no model: InvalidProtobuf; empty: InvalidArgument",
            lambda o: [
                raised(session, o, v) for v in ("gone.onnx", str(other), b"no model", str(empty))
            ],
        ),
        Row(
            "unknown operator or attribute, wrong type or number of inputs: InvalidGraph",
            lambda o: [
                raised(session, o, v)
                for v in (
                    unknown,
                    node_of("Relu", foo=1),
                    node_of("Not"),
                    model([make("Relu", ["x", "x"], ["y"])]),
                )
            ],
        ),
        Row(
            "a cycle, a value made twice, an output that nothing makes or of a wrong type: Fail",
            lambda o: [
                raised(session, o, v)
                for v in (
                    model([make("Relu", ["y"], ["z"]), make("Relu", ["z"], ["y"])]),
                    model([make("Relu", ["x"], ["y"]), make("Abs", ["x"], ["y"])]),
                    model(outputs=[value("q", (2,))]),
                    model(outputs=[value("y", (2, 3), 7)]),
                )
            ],
        ),
        Row(
            "a node that reads what nothing makes",
            lambda o: raised(session, o, model([make("Relu", ["q"], ["y"])])),
            "Fail, as other faults of structure; onnxruntime raises InvalidArgument",
        ),
        Row(
            "nodes in any order",
            lambda o: run(
                o, {"x": -X}, None, model([make("Neg", ["z"], ["y"]), make("Relu", ["x"], ["z"])])
            ),
        ),
        Row(
            "`providers=` names, tuples, none of them there",
            lambda o: (
                session(o).get_providers(),
                o.InferenceSession(model(), providers=["CUDAExecutionProvider"]).get_providers(),
                o.InferenceSession(model(), providers=[(P[0], {})]).get_providers(),
            ),
        ),
        Row(
            "no `providers=`",
            lambda o: o.InferenceSession(model()).get_providers(),
            "clnn's own, `ClnnExecutionProvider`, comes first: the device that CLNN_DEVICE names",
        ),
        Row(
            "`get_available_providers()`, `get_all_providers()`",
            lambda o: (o.get_available_providers(), len(o.get_all_providers()) > 2),
            "`ClnnExecutionProvider`, CPU's, and CUDA's where there is an OpenCL GPU",
        ),
        Row(
            "`set_providers`, unknown ones: RuntimeError",
            lambda o: (
                (lambda s: (s.set_providers(P), s.get_providers(), s.run(None, {"x": X})))(
                    session(o)
                ),
                raised(session(o).set_providers, ["Foo"]),
            ),
        ),
        Row("`get_provider_options`", lambda o: session(o).get_provider_options()),
        Row("`get_session_options`", lambda o: type(session(o).get_session_options()).__name__),
        Row(
            "`get_inputs`, `get_outputs`: names, types, shapes with names and None",
            lambda o: [
                ports(o, d) for d in (("N", 3), (None, 3), ("?", "?"), (-1, 2), (), None, (2, 3))
            ],
        ),
        Row(
            "outputs of which the model says less, or the contrary",
            lambda o: [
                ports(o, d, e)
                for d, e in ((("N", 3), ("M", "K")), ((2, 3), (5, 3)), ((None, 3), ("M", 4)))
            ],
        ),
        Row(
            "outputs of another rank than the model says",
            lambda o: ports(o, ("N", 3), (5,)),
            "the shape that follows from the nodes; onnxruntime says []",
        ),
        Row(
            "`get_overridable_initializers`, and feeds for them",
            lambda o: [weighted(o, f) for f in ({"x": X}, {"x": X, "w": np.float32([5, 5, 5])})],
        ),
        Row("`get_modelmeta`, `custom_metadata_map`", head),
        Row(
            "`disable_fallback`, `enable_fallback`",
            lambda o: (session(o).disable_fallback(), session(o).enable_fallback()),
        ),
        Row(
            "`get_tuning_results`, `set_tuning_results`",
            lambda o: (session(o).get_tuning_results(), session(o).set_tuning_results([])),
        ),
        Row(
            "`set_ep_dynamic_options`",
            lambda o: raised(session(o).set_ep_dynamic_options, {"a": "b"}),
            "",
        ),
    ]


def feeds() -> list[Row]:
    long = of_type(TensorProto.INT64)
    scalar = of_type(TensorProto.INT64, ())
    every = (TensorProto.INT32, TensorProto.DOUBLE, TensorProto.BOOL, TensorProto.UINT8)

    class Other:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return X

    return [
        Row(
            "`run(None or [] or names, feeds)`; a name twice",
            lambda o: [run(o, {"x": X}, n) for n in (None, [], ["y"], ("y",), ["y", "y"])],
        ),
        Row(
            "`run(name, feeds)` with one text",
            lambda o: run(o, {"x": X}, "y"),
            "taken as one name; onnxruntime raises TypeError",
        ),
        Row(
            "wrong names: InvalidArgument; missing inputs: ValueError",
            lambda o: [
                raised(run, o, f, n)
                for f, n in (
                    ({"x": X}, ["q"]),
                    ({"x": X}, [""]),
                    ({"x": X}, [0]),
                    ({"x": X, "z": X}, None),
                    ({"z": X}, None),
                    ({}, None),
                )
            ],
        ),
        Row(
            "arrays: contiguous or not, read-only, subclasses, empty",
            lambda o: [
                run(o, {"x": a})[0].shape
                for a in (
                    X,
                    np.asfortranarray(X),
                    X[::-1, ::-1],
                    X[:0],
                    np.matrix(X),
                    np.ma.array(X),
                    np.repeat(X, 2, 1)[:, ::2],
                )
            ],
        ),
        Row(
            "arrays of another type: InvalidArgument, never converted",
            lambda o: [
                raised(run, o, {"x": X.astype(t)}) for t in ("f8", "i8", "f2", "?", "O", "U1")
            ],
        ),
        Row(
            "other shapes: InvalidArgument",
            lambda o: [
                raised(run, o, {"x": a})
                for a in (X[0], X[:, :2], np.float32(1).reshape(()), X[None])
            ],
        ),
        Row(
            "lists, converted to the model's type",
            lambda o: [
                *(run(o, {"x": [1, 0, 2.5][:k]}, None, of_type(t)) for t in every for k in (0, 3)),
                run(o, {"x": [[1, 2, 3]]}),
                run(o, {"x": [X[0], X[1]]}),
                run(o, {"x": [1.5]}, None, long),
            ],
        ),
        Row(
            "lists that make no tensor, tuples, numbers, texts, None, objects: errors",
            lambda o: [
                raised(run, o, {"x": v})
                for v in (
                    ["a"],
                    [[1], [1, 2]],
                    ((1, 2, 3),),
                    1.0,
                    np.float32(1),
                    "abc",
                    None,
                    Other(),
                    [1.0, 2.0, 3.0],
                )
            ],
        ),
        Row(
            "scalar inputs: 0-d arrays, and any other shape",
            lambda o: [
                run(o, {"x": v}, None, scalar) for v in (np.array(7), [7], np.array([[7, 8]]))
            ],
        ),
        Row(
            "names of dimensions that feeds give two extents",
            lambda o: run(
                o,
                {"x": X},
                None,
                model(inputs=[value("x", ("N", "N"))], outputs=[value("y", None)]),
            ),
        ),
        Row(
            "big-endian arrays",
            lambda o: run(o, {"x": X.astype(">f4")}),
            "their values; onnxruntime takes the bytes as little-endian",
        ),
        Row("`OrtValue` as a feed", lambda o: run(o, {"x": o.OrtValue.ortvalue_from_numpy(X)})),
        Row("sequences: lists of arrays; optionals: None", sequence),
        Row(
            "text: arrays of objects or of text, lists",
            lambda o: [
                run(o, {"x": v}, None, LABELS).tolist()
                for v in (np.array(["a", "z"], object), np.array(["a", "z"]), ["z", "a", 1])
            ],
        ),
        Row("maps: lists of dicts from `ZipMap`", lambda o: run(o, {"x": X}, None, ZIPPED)),
        Row(
            "`run_with_ort_values`",
            lambda o: [
                v.numpy()
                for v in session(o).run_with_ort_values(
                    None, {"x": o.OrtValue.ortvalue_from_numpy(X)}
                )
            ],
        ),
        Row(
            "`run_async`: outputs, user data; errors as text",
            lambda o: (
                asynchronous(o),
                asynchronous(o, ["y"]),
                asynchronous(o, None, x=X.astype(np.float64)),
                asynchronous(o, ["q"]),
            ),
        ),
        Row("`RunOptions.terminate` set: Fail", terminated),
        Row("`io_binding`, `IOBinding`, `run_with_iobinding`", bound),
        Row("`bind_input`, `bind_output` at addresses", bound_memory),
        Row("`bind_ortvalue_input`, `bind_ortvalue_output`", bound_values),
        Row("nothing bound: RuntimeError; `clear_binding_*`, `synchronize_*`", cleared),
    ]


def options_rows(folder: Path) -> list[Row]:
    nothing = "no effect"
    rows = [
        (
            "enable_cpu_mem_arena",
            False,
            f"{nothing}: one arena of planned offsets holds a run's tensors",
        ),
        ("enable_mem_pattern", False, f"{nothing}, likewise"),
        ("enable_mem_reuse", False, f"{nothing}, likewise"),
        ("execution_mode", "ExecutionMode.ORT_PARALLEL", f"{nothing}: the planner orders launches"),
        ("execution_order", "ExecutionOrder.PRIORITY_BASED", f"{nothing}, likewise"),
        (
            "graph_optimization_level",
            "GraphOptimizationLevel.ORT_DISABLE_ALL",
            "ORT_DISABLE_ALL: no fusing passes; all others: all",
        ),
        ("inter_op_num_threads", 2, f"{nothing}: launches run one after the other"),
        (
            "intra_op_num_threads",
            3,
            "threads of PoCL in the whole process, by the first options that say so",
        ),
        ("log_severity_level", 3, f'{nothing}: CLNN_DEBUG and the logger "clnn"'),
        ("log_verbosity_level", 1, f"{nothing}, likewise"),
        ("logid", "me", nothing),
        (
            "use_deterministic_compute",
            True,
            f"{nothing}: results are the same in each run with the same cache",
        ),
        ("use_per_session_threads", True, f"{nothing}: the device's driver has the threads"),
        ("profile_file_prefix", "p", "names the trace's file"),
        ("enable_profiling", False, "writes a trace, of layers where one plan runs the model"),
    ]
    made = [Row(f"`SessionOptions.{n}`: {why}", attribute(n, v)) for n, v, why in rows]
    return [
        *made,
        Row(
            "`SessionOptions.optimized_model_filepath`",
            lambda o: (
                setattr(
                    x := o.SessionOptions(), "optimized_model_filepath", str(folder / "o.onnx")
                ),
                session(o, None, x) is None,
                (folder / "o.onnx").unlink(missing_ok=True),
                session(o, None, x) is None,
                (folder / "o.onnx").exists(),
            ),
            "no file is written: a plan is no ONNX model",
        ),
        Row(
            "unknown attributes of options: AttributeError",
            lambda o: [raised(setattr, k(), "foo", 1) for k in (o.SessionOptions, o.RunOptions)],
        ),
        Row("`add_session_config_entry`, `add_run_config_entry`, and to get them", entries),
        Row("`add_free_dimension_override_by_name`", overridden),
        Row("`add_free_dimension_override_by_denotation`", denoted),
        Row("`add_initializer`", initialised),
        Row("`has_providers`", lambda o: o.SessionOptions().has_providers()),
        Row(
            "`register_custom_ops_library`: an error",
            lambda o: raised(o.SessionOptions().register_custom_ops_library, "gone.so"),
        ),
        Row(
            "`RunOptions`: log levels, logid, only_execute_path_to_fetches",
            lambda o: [
                getattr(o.RunOptions(), n)
                for n in (
                    "log_severity_level",
                    "log_verbosity_level",
                    "logid",
                    "only_execute_path_to_fetches",
                    "terminate",
                )
            ],
        ),
        Row(
            "keys of entries: 1 to 1024 characters, else RuntimeError",
            lambda o: [
                raised(o.SessionOptions().add_session_config_entry, key, "b")
                for key in ("", "k" * 1024, "k" * 1025)
            ],
        ),
        Row(
            "options and run options of other types: TypeError",
            lambda o: (
                raised(o.InferenceSession, model(), 3),
                raised(session(o).run, None, {"x": X}, 3),
            ),
        ),
        Row(
            "`enable_profiling`, `end_profiling`: a file of trace events",
            lambda o: profiled(o, folder),
        ),
        Row(
            "`get_profiling_start_time_ns`",
            lambda o: session(o).get_profiling_start_time_ns() > 0 or "0 without profiling",
        ),
    ]


def values() -> list[Row]:
    return [
        Row("`OrtValue.ortvalue_from_numpy` and what it says of itself", value_of),
        Row("`update_inplace`, memory shared with the array", updated),
        Row(
            "`ortvalue_from_shape_and_type`",
            lambda o: [
                (v.shape(), v.data_type())
                for t in (np.float32, 1, np.dtype("int64"), 7)
                for v in [o.OrtValue.ortvalue_from_shape_and_type([2, 2], t, "cpu", 0)]
            ],
        ),
        Row(
            "`ortvalue_from_numpy_with_onnx_type`",
            lambda o: (lambda v: (v.shape(), v.data_type(), v.element_type()))(
                o.OrtValue.ortvalue_from_numpy_with_onnx_type(np.zeros(3, np.uint16), 16)
            ),
        ),
        Row(
            "values of lists or texts, on devices that are not there: errors",
            lambda o: [
                bool(raised(o.OrtValue.ortvalue_from_numpy, *a))
                for a in (([1.0],), (np.array(["a"]),), (X, "cuda", 0), (X, "foo", 0))
            ],
        ),
        Row(
            "`update_inplace` of another type",
            lambda o: (
                v := o.OrtValue.ortvalue_from_numpy(X.copy()),
                v.update_inplace(np.full(X.shape, 2.0)),
                v.numpy(),
            )[2],
            "converted; onnxruntime takes the bytes as they are",
        ),
        Row(
            "values of negative extents: RuntimeError",
            lambda o: raised(o.OrtValue.ortvalue_from_shape_and_type, [-2, 3], np.float32),
        ),
        Row(
            "`OrtDevice`: kinds and numbers",
            lambda o: (
                (d := o.OrtDevice.make("cpu", 0)).device_type(),
                d.device_id(),
                o.capi.onnxruntime_pybind11_state.OrtDevice.cpu(),
            ),
        ),
        Row(
            "DLPack, both ways",
            lambda o: (
                np.from_dlpack(o.OrtValue.ortvalue_from_numpy(X.copy())),
                o.OrtValue.from_dlpack(X.copy()).numpy(),
            ),
        ),
    ]


def kept(o: Any) -> Any:
    """Copies, pickles, and what programs read besides the documented names."""
    made = session(o)
    again = copy.copy(made).run(None, {"x": X})
    return (
        again,
        raised(copy.deepcopy, made),
        raised(pickle.dumps, made),
        made.get_inputs()[0] is made.get_inputs()[0],
        [a.name for a in (*made._inputs_meta, *made._outputs_meta)],
        made._model_path,
    )


def whole() -> list[Row]:
    return [
        Row("sessions: `copy.copy`; `deepcopy` and pickle: TypeError; `_model_path`", kept),
        Row(
            "a severity that is no number: TypeError, above 4: RuntimeError",
            lambda o: [raised(o.set_default_logger_severity, k) for k in ("a", 9)],
        ),
        Row("`GraphOptimizationLevel`, `ExecutionMode`, `ExecutionOrder`", levels),
        Row("`set_default_logger_severity`, `set_default_logger_verbosity`", severities),
        Row(
            "`disable_telemetry_events`, `set_seed`",
            lambda o: (o.disable_telemetry_events(), o.set_seed(3)),
        ),
        Row("`capi.onnxruntime_pybind11_state`, `capi._pybind_state`: exceptions", exceptions),
        Row(
            "`capi.onnxruntime_inference_collection`",
            lambda o: (
                o.capi.onnxruntime_inference_collection.InferenceSession is o.InferenceSession
            ),
        ),
        Row(
            "`isinstance`",
            lambda o: (
                isinstance(session(o), o.InferenceSession),
                isinstance(o.SessionOptions(), o.SessionOptions),
                isinstance(session(o).get_inputs()[0], o.NodeArg),
                isinstance(session(o).get_modelmeta(), o.ModelMetadata),
            ),
        ),
        Row(
            "`__version__`, `get_version_string()`: of the interface that is followed",
            lambda o: (o.get_version_string() == o.__version__, len(o.__version__.split("."))),
        ),
        Row("`get_build_info()`", lambda o: o.get_build_info(), "says that it is clnn"),
    ]


# Names of onnxruntime's that are not there, by what they are for.
ABSENT = {
    "code for onnxruntime's own kernels and models": (
        *("AdapterFormat", "LoraAdapter", "ModelCompiler", "OrtCompileApiFlags"),
        *("ModelPackage", "ModelPackageComponentContext", "ModelPackageContext"),
        *("ModelPackageOptions", "ModelPackageWriteMode", "register_execution_provider_library"),
        *("unregister_execution_provider_library", "OrtExternalInitializerInfo"),
    ),
    "its devices and their memory": (
        *("OrtArenaCfg", "OrtDeviceMemoryType", "OrtDeviceVendorId", "OrtEpAssignedNode"),
        *("OrtEpAssignedSubgraph", "OrtEpContextData", "OrtEpContextDataBuffer", "OrtEpDevice"),
        *("OrtExecutionProviderDevicePolicy", "OrtHardwareDevice", "OrtHardwareDeviceType"),
        *("OrtMemoryInfo", "OrtMemoryInfoDeviceType", "OrtSyncStream", "copy_tensors"),
        *("create_and_register_allocator", "create_and_register_allocator_v2", "get_ep_devices"),
    ),
    "sparse tensors": ("OrtSparseFormat", "SparseTensor"),
}
