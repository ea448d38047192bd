"""Model files of ESP-DL: written and read back, run by the command line, damaged in every way."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clnn import espdl
from clnn.cli.main import main
from clnn.errors import ClnnError, ModelError, SettingError
from clnn.importers.espdl.filters import packed, unpacked
from clnn.importers.espdl.model import read_espdl
from clnn.importers.espdl.write import stored_filter, write_espdl
from clnn.importers.onnx.from_espdl import chip_of, proto_of
from clnn.importers.onnx.importer import import_onnx
from clnn.verification.reference import reference_values

LAYOUTS = ("NHWC", "(N/16)HWC16", "(N/8)HWC8", "N16HWC16_UNALIGNED", "HWCN")


def integers(shape, seed=0, dtype=np.int8):
    ends = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(ends.min, ends.max, shape, dtype, endpoint=True)


def tensor(name, array, *exponents, layout="UNK"):
    return espdl.EspTensor(name, array.shape, array.reshape(-1), exponents, layout)


def network(bits=8, layout="(N/16)HWC16"):
    """Return a model with a convolution, a depthwise one, a sum, moves and a product of rows."""
    dtype = np.dtype(f"int{bits}")
    kind = np.int32 if bits == 8 else np.int64
    w1, w2, w3 = (
        integers(s, k, dtype) for k, s in enumerate([(20, 3, 3, 3), (20, 1, 3, 3), (5, 160)])
    )
    b1, b3 = (integers(n, 7, np.int16).astype(kind) for n in (20, 5))
    shapes = {
        "x": ((1, 4, 6, 3), -5),
        "a": ((1, 4, 6, 20), -1),
        "b": ((1, 4, 6, 20), -1),
        "c": ((1, 4, 6, 20), -1),
        "d": ((1, 2, 4, 20), -1),
        "t": ((1, 20, 2, 4), -1),
        "f": ((1, 160), -1),
        "y": ((1, 5), 4),
    }
    shapes |= {"a": (shapes["a"][0], 0), "b": (shapes["b"][0], 0), "c": (shapes["c"][0], 0)}
    shapes |= {k: (shapes[k][0], 1) for k in ("d", "t", "f")}
    values = {n: espdl.EspValue(n, str(dtype), s, (e,)) for n, (s, e) in shapes.items()}
    window = {
        "dilations": [1, 1],
        "strides": [1, 1],
        "pads": [1, 1, 1, 1],
        "quant_type": f"S{bits}",
    }
    nodes = (
        espdl.EspNode(
            "n0", "Conv", ("x", "w1", "b1"), ("a",), {**window, "group": 1, "activation": "Relu"}
        ),
        espdl.EspNode(
            "n1", "Conv", ("a", "w2"), ("b",), {**window, "group": 20, "activation": "Linear"}
        ),
        espdl.EspNode("n2", "Add", ("a", "b"), ("c",), {"quant_type": f"S{bits}"}),
        espdl.EspNode(
            "n3",
            "AveragePool",
            ("c",),
            ("d",),
            {
                "kernel_shape": [3, 3],
                "strides": [1, 1],
                "pads": [0, 0, 0, 0],
                "ceil_mode": 0,
                "count_include_pad": 0,
            },
        ),
        espdl.EspNode("n4", "Transpose", ("d",), ("t",), {"perm": [0, 3, 1, 2]}),
        espdl.EspNode("n5", "Flatten", ("t",), ("f",), {"axis": 1}),
        espdl.EspNode(
            "n6",
            "Gemm",
            ("f", "w3", "b3"),
            ("y",),
            {"alpha": 1.0, "beta": 1.0, "transB": 0, "activation": "Linear"},
        ),
    )
    fixed = (
        stored_filter("w1", w1, (-7,), layout),
        stored_filter("w2", w2, (-7,), layout, True),
        stored_filter("w3", w3[:, :, None, None], (-7,), layout),
        tensor("b1", b1, -12),
        tensor("b3", b3, -6),
    )
    model = espdl.EspModel(
        "tests",
        1,
        {"author": "x"},
        "network",
        nodes,
        {t.name: t for t in fixed},
        (values["x"],),
        (values["y"],),
        values,
    )
    x = integers((1, 4, 6, 3), 5, dtype)
    graph = import_onnx(proto_of(model, chip="esp32s3"))
    y = reference_values(graph, {"x": x})[graph.outputs["y"]].astype(dtype)
    tests = {"test_inputs": {"x": tensor("x", x, -5)}, "test_outputs": {"y": tensor("y", y, 4)}}
    return espdl.EspModel(**{**vars(model), **tests})


@pytest.fixture(scope="module")
def whole():
    return write_espdl(network())


def test_what_is_written_is_read(whole):
    model, found = network(), read_espdl(whole)
    for name in ("producer", "version", "metadata", "name", "nodes", "inputs", "outputs", "values"):
        assert getattr(found, name) == getattr(model, name), name
    for name in ("initializers", "test_inputs", "test_outputs"):
        pairs = getattr(model, name), getattr(found, name)
        assert list(pairs[0]) == list(pairs[1])
        for a, b in zip(*(p.values() for p in pairs), strict=True):
            assert (a.dims, a.exponents, a.layout, a.data.dtype) == (
                b.dims,
                b.exponents,
                b.layout,
                b.data.dtype,
            )
            assert (a.data == b.data).all()
    start = whole.index(model.initializers["w1"].data.tobytes()[:64])
    assert (start - 16) % 16 == 0, "data of tensors is aligned in the FlatBuffer"


@given(
    st.integers(1, 40),
    st.integers(1, 5),
    st.lists(st.integers(1, 3), min_size=1, max_size=2),
    st.sampled_from(LAYOUTS),
    st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_filters_come_back_from_every_order(outs, inner, spatial, layout, depthwise):
    inner = 1 if depthwise else inner
    shape = (outs, inner, *spatial)
    filters = np.arange(np.prod(shape)).reshape(shape)
    made = stored_filter("w", filters, (0,), layout, depthwise)
    assert made.dims == (*spatial, *((outs, 1) if depthwise else (inner, outs)))
    assert (unpacked(made.data, made.dims, layout, depthwise) == filters).all()
    if layout.startswith("(N/16)") and outs >= 16:
        corner = filters[(slice(16), *(0,) * (filters.ndim - 1))]
        assert packed(filters, layout, depthwise)[:16].tolist() == corner.tolist()


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("layout", ["NHWC", "(N/16)HWC16"])
def test_the_order_of_filters_changes_nothing(device, bits, layout):
    if bits == 16 and layout != "NHWC":
        layout = "(N/8)HWC8"
    model = network(bits, layout)
    assert len(np.unique(model.golden_outputs["y"])) > 1
    with espdl.compile_model(write_espdl(model), device, "esp32s3") as session:
        found = session(model.golden_inputs)
    assert (found["y"] == model.golden_outputs["y"]).all()


def test_the_command_line_takes_a_file(device, whole, tmp_path, capsys):
    path = str(tmp_path / "net.espdl")
    (tmp_path / "net.espdl").write_bytes(whole)
    assert main(["inspect", path]) == 0
    text = capsys.readouterr().out
    assert "espdl::Conv" in text and "espdl.exponent.y = 4" in text
    for words in (
        ["run"],
        ["verify"],
        ["verify", "--against", "reference"],
        ["bench", "--runs", "3", "--warmup", "0"],
    ):
        assert main([words[0], path, "--device", device, *words[1:]]) == 0, words
    text = capsys.readouterr().out
    assert "against the golden values in the file" in text and "PASSED" in text
    wrong = network()
    wrong.test_outputs["y"].data[2] ^= 1
    (tmp_path / "wrong.espdl").write_bytes(write_espdl(wrong))
    assert main(["verify", str(tmp_path / "wrong.espdl"), "--device", device]) == 1
    assert "FAILED" in capsys.readouterr().out


def refused(data):
    """Read a file, convert and import it; errors other than clnn's are errors of the test."""
    try:
        import_onnx(bytes(data))
    except ClnnError as err:
        assert str(err)
        return True
    return False


def test_a_file_cut_off_anywhere_is_refused(whole):
    for end in range(4, len(whole)):
        with pytest.raises(ModelError):
            read_espdl(whole[:end])
    body = len(whole) - 16
    for end in [*range(20, 400), *range(400, body, 61)]:  # with a header that says so
        try:
            read_espdl(whole[:8] + struct.pack("<II", end, 0) + whole[16 : 16 + end])
        except ModelError:
            continue
        pytest.fail(f"a FlatBuffer of {end} of {body} bytes was read")


@pytest.mark.parametrize("value", [0, 0xFFFFFFFF, 0x7FFFFFFF, 0x80000000, 5])
def test_words_with_other_values_give_one_error_or_a_model(whole, value):
    rng, count = np.random.default_rng(value), 0
    places = rng.choice(np.arange(0, len(whole) - 4, 4), 40, replace=False)
    for place in places:
        count += refused(whole[:place] + struct.pack("<I", value) + whole[place + 4 :])
    assert count > 3


@pytest.mark.exhaustive
@pytest.mark.parametrize("value", [0, 0xFFFFFFFF, 0x7FFFFFFF, 12])
def test_every_word_with_other_values(whole, value):
    for place in range(0, len(whole) - 4, 4):
        refused(whole[:place] + struct.pack("<I", value) + whole[place + 4 :])


def test_flipped_bits_give_one_error_or_a_model(whole):
    rng = np.random.default_rng(1)
    for place in rng.integers(0, len(whole), 60):
        data = bytearray(whole)
        data[place] ^= 1 << int(rng.integers(8))
        refused(data)


def test_parts_that_are_shared_without_end_are_refused():
    """A vector of 4000 nodes that all are one node with 4000 names that all are one long name."""
    count, name = 4000, b"x" * 3000
    offsets = b"".join(struct.pack("<I", 4 * (count - k)) for k in range(count))
    # root -> Model{7: graph} -> Graph{0: nodes} -> the same Node{0: the same names}
    blob = bytearray(4)
    blob += struct.pack("<10H", 20, 8, *[0] * 7, 4)
    model = len(blob)
    blob += struct.pack("<iI", model - 4, 0)
    graph_list = len(blob)
    blob += struct.pack("<3H", 6, 8, 4) + bytes(2)
    graph = len(blob)
    blob += struct.pack("<iI", graph - graph_list, 4)
    struct.pack_into("<I", blob, model + 4, graph - model - 4)
    blob += struct.pack("<I", count) + offsets
    node_at = len(blob)
    blob += struct.pack("<iI", node_at - graph_list, 4)
    blob += struct.pack("<I", count) + offsets
    blob += struct.pack("<I", len(name)) + name
    struct.pack_into("<I", blob, 0, model)
    data = b"EDL2" + struct.pack("<III", 0, len(blob), 0) + bytes(blob)
    with pytest.raises(ModelError, match="again and again"):
        read_espdl(data)


def test_packages_and_encryption(whole):
    assert read_espdl(b"EDL1" + whole[4:12] + whole[16:]).name == "network"
    with pytest.raises(ModelError, match="encrypted"):
        read_espdl(whole[:4] + struct.pack("<I", 1) + whole[8:])
    names = b"onetwo"
    start = 64
    head = b"PDL2" + struct.pack("<7I", 2, start, 32, 3, start + len(whole), 35, 3)
    pack = head.ljust(32, b"\0") + names.ljust(start - 32, b"\0") + whole + whole
    assert read_espdl(pack, "two").name == "network"
    for name in ("", "three"):
        with pytest.raises(ModelError, match="'one', 'two'"):
            read_espdl(pack, name)
    with pytest.raises(ModelError, match="wants"):
        read_espdl(pack[:34])
    with pytest.raises(ModelError, match="packs"):
        read_espdl(b"PDL1" + bytes(64))


def test_the_chip_is_asked_for_or_read_off_the_path(whole, tmp_path, monkeypatch, caplog):
    model = read_espdl(whole)
    assert chip_of(model, tmp_path / "yolo_s8_p4.espdl") == ("esp32p4", False)
    assert chip_of(model, tmp_path / "esp32s3" / "model.espdl") == ("esp32s3", False)
    said = espdl.EspModel(**{**vars(model), "metadata": {"chip": "esp32p4"}})
    assert chip_of(said, tmp_path / "yolo_s3.espdl") == ("esp32p4", False)
    assert chip_of(said, None, "esp32s3") == ("esp32s3", False)
    assert not caplog.records
    assert chip_of(model, None) == ("esp32s3", False)
    assert "does not say for which chip" in caplog.text
    assert chip_of(network(8, "NHWC"), None) == ("c", False)
    monkeypatch.setenv("CLNN_ESPDL_CHIP", "esp32s3+lanes")
    assert chip_of(model, None) == ("esp32s3", True)
    monkeypatch.setenv("CLNN_ESPDL_CHIP", "esp8266")
    with pytest.raises(SettingError, match="esp8266"):
        chip_of(model, None)


@pytest.mark.parametrize(
    "change, text",
    [
        ({"op_type": "Frobnicate"}, "Frobnicate"),
        ({"inputs": ("f", "x", "b3")}, "no constant filter"),
        ({"attributes": {"activation": "PRelu"}}, "PRelu"),
        ({"attributes": {"lut": "none"}}, "'none'"),
        ({"outputs": ()}, "makes nothing"),
    ],
)
def test_nodes_that_clnn_does_not_have_are_named(change, text):
    model = network()
    last = model.nodes[-1]
    nodes = (*model.nodes[:-1], espdl.EspNode(**{**vars(last), **change}))
    with pytest.raises(ClnnError, match=text):
        import_onnx(write_espdl(espdl.EspModel(**{**vars(model), "nodes": nodes})))
