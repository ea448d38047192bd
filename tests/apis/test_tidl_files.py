"""Descriptor files of TIDL, and what malformed ones give."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clnn import tidl
from clnn.errors import ClnnError, ModelError, ShapeError


def described(version=None):
    made = tidl.sTIDL_IOBufDesc_t(version or tidl.version_of("11_01"))
    pads = {"pads": (2, 1, 3, 1), "pad_channels": 1}
    made.add(tidl.IOTensor.make("in", "image", (1, 3, 4, 5), element_type=0, scale=2.0, **pads))
    made.add(tidl.IOTensor.make("out", "scores", (1, 10)))
    return made


@pytest.mark.parametrize("version", tidl.VERSIONS, ids=str)
def test_a_file_is_read_as_it_was_written(version, tmp_path):
    made = described(version)
    made.write(tmp_path / "net_io_1.bin")
    read = tidl.sTIDL_IOBufDesc_t.read(tmp_path / "net_io_1.bin")
    assert read == made and read.version == version
    assert (tmp_path / "net_io_1.bin").stat().st_size == version.nbytes
    (image,), (scores,) = read.inputs, read.outputs
    assert (image.name, image.shape, image.pads) == ("image", (1, 1, 1, 3, 4, 5), (2, 1, 3, 1))
    assert scores.width == 10 and scores.dtype == np.float32


def test_sizes_name_releases():
    sizes = [tidl.version_of(sdk).nbytes for sdk in ("08_06", "09_00", "09_02", "10_01", "11_02")]
    assert sizes == [37256, 37272, 93976, 94616, 378392]
    for wrong in (("07_00", 1), ("09_02", 3)):
        with pytest.raises(ModelError, match="no layout"):
            tidl.version_of(*wrong)


def test_bytes_behind_names_stay():
    data = bytearray(described().to_bytes())
    place = next(f.offset for f in described().version.fields if f.name == "inDataName")
    data[place + 6 : place + 512] = bytes(range(250)) + bytes(range(256))
    data[place + 5] = 0
    read = tidl.sTIDL_IOBufDesc_t.from_bytes(bytes(data))
    assert read.inDataName[0] == "image" and read.to_bytes() == data
    read.inDataName[0] = "another"
    assert tidl.sTIDL_IOBufDesc_t.from_bytes(read.to_bytes()).inDataName[0] == "another"


def test_a_file_cut_at_any_place_is_one_error(tmp_path):
    data, path = described().to_bytes(), tmp_path / "cut_io_1.bin"
    for size in [*range(3000), *range(3000, len(data), 997), len(data) - 1]:
        with pytest.raises(ModelError, match=rf"^{size} bytes are no"):
            tidl.sTIDL_IOBufDesc_t.from_bytes(data[:size])
    for content in (data[:-1], data + b"\0", b"\0" * 10**6):
        path.write_bytes(content)
        with pytest.raises(ModelError, match="are no sTIDL_IOBufDesc_t"):
            tidl.sTIDL_IOBufDesc_t.read(path)
    with pytest.raises(ModelError, match="cannot be read"):
        tidl.sTIDL_IOBufDesc_t.read(tmp_path)


@pytest.mark.parametrize(
    "field,value,word",
    [
        ("numInputBuf", -1, "from 0 to 32"),
        ("numOutputBuf", 2**31 - 1, "from 0 to 128"),
        ("inWidth", 0, "at least 1"),
        ("inWidth", 2**31 - 1, "share elements"),
        ("inHeight", 2**31 - 1, "share elements"),
        ("inNumChannels", 2**30, "more than TIDL counts"),
        ("inDIM1", 2**31 - 1, "more than TIDL counts"),
        ("inNumBatches", -5, "at least 1"),
        ("inChannelPitch", 3, "share elements"),
        ("inChannelPitch", -(2**31), "share elements"),
        ("inPadL", -1, "negative"),
        ("inPadCh", 2**31 - 1, "more than TIDL counts"),
        ("inBufSize", 7, "buffer of 7"),
        ("inBufSize", -7, "negative"),
        ("inElementType", 9, "element type 9"),
        ("inLayout", 2, "layout 2"),
    ],
)
def test_values_that_describe_no_buffer_are_one_error(field, value, word, tmp_path):
    made = described()
    if isinstance(getattr(made, field), list):
        getattr(made, field)[0] = value
    else:
        setattr(made, field, value)
    (tmp_path / "bad_io_1.bin").write_bytes(made.to_bytes())
    with pytest.raises(ModelError, match=word):
        tidl.sTIDL_IOBufDesc_t.read(tmp_path / "bad_io_1.bin")


def test_flipped_bytes_are_a_structure_or_one_error():
    rng, data = np.random.default_rng(3), described(tidl.version_of("08_06")).to_bytes()
    refused = 0
    for _ in range(300):
        other = bytearray(data)
        for at in rng.integers(0, len(data), 3):
            other[int(at)] = int(rng.integers(0, 256))
        for field in rng.choice(tidl.version_of("08_06").fields, 2):
            if field.kind != "S":
                other[field.offset : field.offset + 4] = rng.bytes(4)
        read = tidl.sTIDL_IOBufDesc_t.from_bytes(bytes(other))
        assert read.to_bytes() == other
        try:
            read.check()
            for tensor in read.inputs:
                tidl.sTIDLRT_Tensor_t.allocate(tensor) if tensor.allocation < 10**6 else None
        except ClnnError:
            refused += 1
    assert refused > 100


def test_what_a_field_does_not_hold_is_refused():
    made = described()
    for name in ("a" * 513, "a\0b"):
        made.inDataName[0] = name
        with pytest.raises(ModelError, match="inDataName"):
            made.to_bytes()
    made.inDataName[0] = "x"
    made.inPadL[0] = 2**31
    with pytest.raises(ModelError, match="32 bits"):
        made.to_bytes()
    with pytest.raises(ModelError, match="has room for"):
        tidl.sTIDL_IOBufDesc_t(inWidth=[1] * 33)
    old = tidl.sTIDL_IOBufDesc_t(tidl.version_of("08_06"))
    with pytest.raises(ShapeError, match="no DIM1"):
        old.add(tidl.IOTensor.make("in", "x", (1, 2, 1, 1, 2, 2)))
    with pytest.raises(ShapeError, match="7 axes"):
        tidl.IOTensor.make("in", "x", (1,) * 7)


def test_start_formulas_agree_without_rows_above():
    tensor = tidl.IOTensor.make("out", "y", (1, 2, 3, 4), pads=(2, 0, 1, 0))
    assert tensor.start("rows") == tensor.start("document") == 2
    padded = replace(tensor, pads=(2, 1, 1, 0), channel_pitch=28, buffer_size=0)
    assert (padded.start("rows"), padded.start("document")) == (9, 3)
    assert not padded.layout("document").has_padding and padded.layout().before[4:] == (1, 2)


def test_objects_are_parsed_by_the_size_that_the_header_says():
    points = tuple(tidl.TIDL_ODLayerKeyPoint(k, k + 0.5, 1.0) for k in range(3))
    objects = [
        tidl.TIDL_ODLayerObjInfo(k, 1.0, 0.5, 0.0, 0.25, 0.5, 1.0, points) for k in (0.0, 1.0)
    ]
    memory = np.full(400, 7, np.uint8)
    tidl.write_objects(objects, memory, key_points=3)
    header, found = tidl.parse_objects(memory)
    assert found == objects and header.objInfoSize == 64
    data = bytearray(memory)
    data[20 + 64 :] = bytes(data[20 + 64 - 36 :])[
        : 400 - 84
    ]  # objects further apart than their size
    assert tidl.parse_objects(bytes(data))[1][0] == objects[0]
    for at, value in ((0, 9.0), (0, np.nan), (4, 8.0), (8, 40.0), (12, 1e9), (12, 3.0), (4, -1.0)):
        other = bytearray(memory)
        other[at : at + 4] = np.float32(value).tobytes()
        with pytest.raises(ModelError):
            tidl.parse_objects(bytes(other))
    for size in range(20):
        with pytest.raises(ModelError, match="no header"):
            tidl.parse_objects(bytes(memory[:size]))
    with pytest.raises(ShapeError, match="take"):
        tidl.write_objects(objects, memory[:100], key_points=3)
