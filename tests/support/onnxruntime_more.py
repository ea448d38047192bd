"""Further rows of the table in docs/onnxruntime.md: ports, types and bindings in their details."""

from __future__ import annotations

import types
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx import numpy_helper as numbers
from onnxruntime_rows import P, Row, X, model, of_type, raised, run, session, tried, value

MAKE = helper.make_node
TWO = model(
    [MAKE("Relu", ["x"], ["a"]), MAKE("Neg", ["x"], ["b"])],
    outputs=[value("b", ("N", 3)), value("a", ("N", 3))],
)
ADD = model([MAKE("Add", ["x", "w"], ["y"])], stored={"w": np.arange(3, dtype=np.float32)})
FOLDER = "session.model_external_initializers_file_folder_path"
ARRAYS = (
    (TensorProto.BOOL, np.array([True, False])),
    *((helper.np_dtype_to_tensor_dtype(np.dtype(t)), np.array([1, 2], t)) for t in (
        "f2", "f8", "i1", "i2", "u2", "u4", "u8"
    )),
    (TensorProto.STRING, np.array(["a", "é"], object)),
)  # fmt: skip


class Other(Mapping[str, Any]):
    """A mapping that is no dict."""

    def __getitem__(self, name: str) -> Any:
        return {"x": X}[name]

    def __iter__(self) -> Any:
        return iter(["x"])

    def __len__(self) -> int:
        return 1


def with_outputs(*outputs: Any, nodes: Any = (), inputs: Any = None, **stored: Any) -> bytes:
    """Return a model with these outputs; by default y = Relu(x)."""
    graph = helper.make_graph(
        list(nodes) or [MAKE("Relu", ["x"], ["y"])],
        "g",
        [value("x", ("N", 3))] if inputs is None else inputs,
        list(outputs),
        [numbers.from_array(array, name) for name, array in stored.items()],
    )
    sets = [helper.make_opsetid("", 17)]
    return bytes(helper.make_model(graph, opset_imports=sets, ir_version=8).SerializeToString())


def beside(ort: Any, folder: Path) -> Any:
    """Run a model whose weights lie in another file: by its path, by its bytes, with others in place."""
    path = folder / "beside.onnx"
    onnx.save(
        onnx.load_from_string(ADD), path, save_as_external_data=True, location="w.bin", size_threshold=0
    )  # fmt: skip
    data, feeds = path.read_bytes(), {"x": X}
    options, other = ort.SessionOptions(), ort.SessionOptions()
    options.add_session_config_entry(FOLDER, str(folder))
    held = ort.OrtValue.ortvalue_from_numpy(np.float32([7, 8, 9]))
    other.add_external_initializers(["w"], [held])
    made = session(ort, data, options), session(ort, data, other)
    return session(ort, str(path)).run(None, feeds), [s.run(None, feeds) for s in made]


def overridden(ort: Any) -> Any:
    options, other = ort.SessionOptions(), ort.SessionOptions()
    for extent in (2, 4):
        options.add_free_dimension_override_by_name("N", extent)
    other.add_free_dimension_override_by_name("N", 0)
    made = session(ort, None, other)
    wrong = [(3, 3), ("N", 2.5), ("N", 2, 3)]
    return (
        session(ort, None, options).get_inputs()[0].shape,
        (made.get_inputs()[0].shape, made.run(None, {"x": X[:0]})),
        raised(made.run, None, {"x": X}),
        [raised(options.add_free_dimension_override_by_name, *given) for given in wrong],
    )


def providers(ort: Any) -> Any:
    given: list[dict[str, Any]] = [
        {"providers": P, "provider_options": [{}]},
        {"providers": P, "provider_options": [{}, {}]},
        {"providers": P * 2},
        {"providers": [(P[0],)]},
    ]
    return [ort.InferenceSession(model(), **one).get_providers() for one in given]


def sparse(ort: Any) -> Any:
    values = helper.make_tensor("w", TensorProto.FLOAT, [2], [5.0, 6.0])
    places = helper.make_tensor("places", TensorProto.INT64, [2], [0, 2])
    proto = onnx.load_from_string(ADD)
    del proto.graph.initializer[:]
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [3]))
    return session(ort, proto.SerializeToString()).run(None, {"x": X})


def bound_twice(ort: Any) -> Any:
    """Outputs in the order in which they were bound; a second run reads the memory again."""
    made, x = session(ort, TWO), X.copy()
    binding = made.io_binding()
    binding.bind_cpu_input("x", x)
    for name in ("a", "b", "a"):
        binding.bind_output(name, "cpu")
    made.run_with_iobinding(binding, ort.RunOptions())
    first = binding.copy_outputs_to_cpu()
    x[:] = 5
    made.run_with_iobinding(binding)
    return first, binding.copy_outputs_to_cpu(), len(binding.get_outputs())


def bound_wrongly(ort: Any) -> Any:
    found, out = [], np.zeros((3, 3), np.float32)
    small = ort.OrtValue.ortvalue_from_numpy(np.zeros((2, 3)))
    for bind in (
        lambda b: (b.bind_cpu_input("x", X.astype(np.float64)), b.bind_output("a")),
        lambda b: (
            b.bind_cpu_input("x", X),
            b.bind_output("a", "cpu", 0, np.float32, out.shape, out.ctypes.data),
        ),
        lambda b: (b.bind_cpu_input("x", X), b.bind_ortvalue_output("a", small)),
    ):
        made = session(ort, TWO)
        binding = made.io_binding()
        bind(binding)
        found.append(raised(made.run_with_iobinding, binding))
    return found, raised(
        session(ort, TWO).io_binding().bind_input, "q", "cpu", 0, np.float32, (1,), 1
    )


def by_ort_values(ort: Any) -> Any:
    made, held = session(ort, TWO), {"x": ort.OrtValue.ortvalue_from_numpy(X)}
    names = (["a"], ["a", "b"], None, [])
    return (
        [[v.numpy() for v in made.run_with_ort_values(n, held)] for n in names],
        [raised(made.run_with_ort_values, *a) for a in ((["q"], held), (None, {}), (None, {"z": held["x"]}))],
    )  # fmt: skip


def as_sequence(ort: Any) -> Any:
    nodes = [MAKE("SplitToSequence", ["x"], ["y"], axis=0, keepdims=1)]
    out = helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None)
    made = session(ort, with_outputs(out, nodes=nodes, inputs=[value("x", (2, 3))]))
    held = made.run_with_ort_values(None, {"x": ort.OrtValue.ortvalue_from_numpy(X)})[0]
    port = made.get_outputs()[0]
    return (
        made.run(None, {"x": X}),
        port.type,
        port.shape,
        held.is_tensor_sequence(),
        held.data_type(),
    )


def optional(ort: Any) -> Any:
    kind = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    out = helper.make_value_info("y", helper.make_optional_type_proto(kind))
    return session(
        ort, with_outputs(out, nodes=[MAKE("Optional", [], ["y"], type=kind)], inputs=[])
    ).run(None, {})


def inherited(ort: Any) -> Any:
    class Own(ort.InferenceSession):  # type: ignore[misc, name-defined]
        def __init__(self, data: bytes) -> None:
            super().__init__(data, providers=P)
            self.tag = "own"

        def run(self, *given: Any, **more: Any) -> Any:
            return super().run(*given, **more)

    made = Own(model())
    return made.tag, made.run(None, {"x": X}), isinstance(made, ort.InferenceSession)


def beginnings(ort: Any) -> Any:
    """How texts of exceptions begin."""
    found = []
    for given in ({"x": X[0]}, {"x": X[:, :2]}, {"x": X.astype(np.float64)}, {"x": X, "z": X}, {}):
        try:
            run(ort, given)
        except Exception as err:
            found.append(str(err)[:60])
    return found


def each(ort: Any, given: Any, data: bytes | None = None) -> Any:
    return [tried(Row("", lambda o, one=one: run(o, one, None, data)), ort) for one in given]


def table(folder: Path) -> list[Row]:
    """Return all rows. folder: for files."""
    y, x, w = value("y", ("N", 3)), value("x", ("N", 3)), value("w", (2,))
    constant = with_outputs(w, y, w=np.ones(2, np.float32))
    none = with_outputs(
        value("y", (2,)), nodes=[MAKE("Neg", ["w"], ["y"])], inputs=[], w=np.ones(2, np.float32)
    )
    return [
        Row(
            "weights in other files, of paths and of bytes; `add_external_initializers`",
            lambda o: beside(o, folder),
        ),
        Row(
            "weights in memory: `add_external_initializers_from_files_in_memory`",
            lambda o: hasattr(o.SessionOptions(), "add_external_initializers_from_files_in_memory"),
            "not there",
        ),
        Row("an empty path: TypeError", lambda o: raised(session, o, "")),
        Row(
            "outputs in any order, and twice; values inside the model: InvalidArgument",
            lambda o: (
                [run(o, {"x": X}, n, TWO) for n in (None, ["a", "b"], ["a", "a", "b"])],
                raised(run, o, {"x": X}, ["z"], TWO),
            ),
        ),
        Row(
            "inputs and constants as outputs; no inputs",
            lambda o: (
                run(o, {"x": X}, None, with_outputs(y, x)),
                run(o, {"x": X}, ["w"], constant),
                run(o, {}, None, none),
            ),
        ),
        Row(
            "feeds in mappings of other kinds; what is no mapping",
            lambda o: each(
                o,
                (Other(), OrderedDict(x=X), types.MappingProxyType({"x": X}), [("x", X)], None, 3),
            ),
        ),
        Row(
            "lists of lists, arrays and numbers; a dict for a tensor: InvalidArgument",
            lambda o: each(
                o,
                (
                    {"x": v}
                    for v in (
                        [[np.float32(1), 2, 3]],
                        [np.array([1, 2, 3])],
                        [[True, False, True]],
                        [],
                        {"a": 1},
                    )
                ),
            ),
        ),
        Row(
            "bool, float16, double, whole numbers of 8 to 64 bits, text",
            lambda o: [
                (str(a.dtype), a.shape, a.tolist())
                for kind, given in ARRAYS
                for a in run(o, {"x": given}, None, of_type(kind))
            ],
        ),
        Row("how texts of errors of feeds begin", beginnings),
        Row("sparse initializers", sparse),
        Row("the first of two overrides holds; an extent of 0; wrong ones: TypeError", overridden),
        Row("providers that do not fit their options, twice, half: the CPU's", providers),
        Row("bound outputs in their order, one twice; a second run", bound_twice),
        Row("bound memory of other types and shapes, unknown names: RuntimeError", bound_wrongly),
        Row("`run_with_ort_values`: names, wrong ones, nothing", by_ort_values),
        Row(
            "sequences as `OrtValue`; optional outputs without a value",
            lambda o: (as_sequence(o), optional(o)),
        ),
        Row("classes of one's own made of `InferenceSession`", inherited),
    ]
