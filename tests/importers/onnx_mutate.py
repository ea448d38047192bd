"""Mutates models and imports them, in a process of its own: python onnx_mutate.py SEED EXAMPLES.

Bytes of a file are changed, cut and copied; and fields of the parsed model are set to hostile
values, which reaches what lies behind the parser. Every import must end within seconds in a Graph
that can be planned or in an error of clnn's. Prints counts; a failure prints the example.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS.parent), str(TESTS / "support")]
os.environ["CLNN_MAX_BYTES"] = str(64 * 2**20)

import numpy as np
import onnx
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from onnx import helper as make
from onnx_models import BOOL, conv, ints, model, relu, tensor, value

from clnn.errors import ClnnError, OpenShapeError, UnsupportedOpError
from clnn.graph.passes import optimise
from clnn.importers.onnx.importer import import_onnx
from clnn.importers.onnx.stages.build import read_program
from clnn.plan.schedule import make_plan
from clnn.target import Target

SECONDS = 5
HOSTILE_INTS = [
    0,
    1,
    -1,
    2,
    3,
    7,
    16,
    127,
    255,
    2**16,
    2**31 - 1,
    2**31,
    -(2**31),
    2**32,
    2**40,
    2**62,
    2**63 - 1,
    -(2**63),
]
HOSTILE_TEXT = [
    "",
    "x",
    "y",
    "w",
    "\0",
    "../x",
    "/dev/zero",
    "\N{SNOWMAN}",
    "Relu",
    "Conv",
    "If",
    "Concat",
    "Reshape",
    "ConstantOfShape",
    "Range",
    "Tile",
    "Attention",
    "NOTSET",
    "SAME_UPPER",
    "n" * 300,
]


def seeds() -> list[onnx.ModelProto]:
    """Return sound models that together reach most of the importer."""
    shapes = [
        make.make_node("Shape", ["x"], ["s"], start=1),
        make.make_node("Gather", ["s", "i"], ["g"]),
        make.make_node("Unsqueeze", ["g", "ax"], ["u"]),
        make.make_node("Concat", ["u", "r"], ["t"], axis=0),
        make.make_node("ConstantOfShape", ["t2"], ["k"]),
        make.make_node("Reshape", ["x", "t"], ["z"]),
        make.make_node("Add", ["z", "k"], ["q"]),
        make.make_node("Slice", ["q", "a", "b", "ax"], ["y"]),
    ]
    stored = [
        tensor("i", np.int64(0)),
        ints("ax", 0),
        ints("r", -1),
        ints("t2", 1, 32),
        ints("a", 0),
        ints("b", 2),
    ]
    branches = [
        make.make_graph([make.make_node(op, ["x"], ["o"])], op, [], [value("o", None)])
        for op in ("Relu", "Neg")
    ]
    choice = make.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1])
    body = [make.make_node("Neg", ["a"], ["n"]), make.make_node("Mul", ["n", "a"], ["b"])]
    function = make.make_function("own", "F", ["a"], ["b"], body, [make.make_opsetid("", 21)])
    norm = make.make_node("LayerNormalization", ["x", "w"], ["y"], axis=-1)
    clip = make.make_node("Clip", ["x", "", "h"], ["y"])
    return [
        relu(),
        conv(pads=[1, 1, 1, 1], strides=[2, 2], dilations=[1, 1], group=1),
        model(shapes, [value("x", (1, 2, 4, 4))], initializers=stored),
        model([choice], [value("x", (2, 2))], initializers=[tensor("c", np.array(True))]),
        model([choice], [value("x", (2, 2)), value("c", (), BOOL)]),
        model(
            [make.make_node("F", ["x"], ["y"], domain="own")],
            [value("x", ("n", 3))],
            functions=[function],
            domains={"own": 1},
        ),
        model([norm], [value("x", (2, 8))], initializers=[tensor("w", np.ones(8, np.float32))]),
        model([clip], [value("x", (2, 8))], initializers=[tensor("h", np.float32(1))], opset=13),
        model(
            [
                make.make_node("Pad", ["x", "p"], ["t"]),
                make.make_node("Transpose", ["t"], ["u"], perm=[1, 0]),
                make.make_node("Expand", ["u", "e"], ["y"]),
            ],
            [value("x", (2, 3))],
            initializers=[ints("p", 0, 1, 0, 1), ints("e", 2, 5, 2)],
        ),
        model(
            [
                make.make_node("DepthToSpace", ["x"], ["t"], blocksize=2),
                make.make_node("Split", ["t"], ["y", "z"], num_outputs=2, axis=1),
            ],
            [value("x", (1, 8, 2, 2))],
            ["y", "z"],
        ),
    ]


SEEDS = seeds()


@st.composite
def mutated_bytes(draw: st.DrawFn) -> bytes:
    """A model file with bytes set, cut out, copied or put in."""
    data = bytearray(draw(st.sampled_from(SEEDS)).SerializeToString(deterministic=True))
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        how = draw(st.sampled_from(("set", "flip", "cut", "copy", "insert")))
        if how == "set" and data:
            data[at] = draw(st.integers(0, 255))
        elif how == "flip" and data:
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif how == "cut":
            del data[at : at + draw(st.integers(1, 40))]
        elif how == "copy":
            start = draw(st.integers(0, max(len(data) - 1, 0)))
            data[at:at] = data[start : start + draw(st.integers(1, 40))]
        else:
            data[at:at] = draw(st.binary(min_size=1, max_size=12))
    return bytes(data)


def messages(root):
    """Return every message inside of a protobuf message, itself included."""
    found = [root]
    for descriptor, content in root.ListFields():
        if descriptor.message_type is not None:
            inner = content if descriptor.is_repeated else [content]
            for item in inner:
                found += messages(item)
    return found


def hostile(draw, descriptor):
    kind = descriptor.cpp_type
    if kind in (descriptor.CPPTYPE_INT32, descriptor.CPPTYPE_ENUM):
        return draw(st.sampled_from([n for n in HOSTILE_INTS if -(2**31) <= n < 2**31]))
    if kind == descriptor.CPPTYPE_INT64:
        return draw(st.sampled_from(HOSTILE_INTS))
    if kind == descriptor.CPPTYPE_UINT64:
        return abs(draw(st.sampled_from(HOSTILE_INTS)))
    if kind in (descriptor.CPPTYPE_FLOAT, descriptor.CPPTYPE_DOUBLE):
        return draw(st.sampled_from([0.0, -1.0, 1e38, float("inf"), float("nan")]))
    text = draw(st.sampled_from(HOSTILE_TEXT))
    return text.encode() if descriptor.type == descriptor.TYPE_BYTES else text


@st.composite
def mutated_fields(draw: st.DrawFn) -> bytes:
    """A model whose fields have been set, removed, repeated or swapped."""
    proto = onnx.ModelProto()
    proto.CopyFrom(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(1, 4))):
        message = draw(st.sampled_from(messages(proto)))
        descriptor = draw(st.sampled_from(list(message.DESCRIPTOR.fields)))
        change(draw, message, descriptor)
    return proto.SerializeToString()


def change(draw, message, descriptor) -> None:
    content = getattr(message, descriptor.name)
    if draw(st.integers(0, 9)) == 0:
        message.ClearField(descriptor.name)
    elif descriptor.message_type is not None:
        if descriptor.is_repeated and len(content):
            place = draw(st.integers(0, len(content) - 1))
            if draw(st.booleans()):
                content.add().CopyFrom(content[place])
            else:
                del content[place]
    elif descriptor.is_repeated:
        if len(content) and draw(st.booleans()):
            content[draw(st.integers(0, len(content) - 1))] = hostile(draw, descriptor)
        else:
            content.append(hostile(draw, descriptor))
    else:
        try:
            setattr(message, descriptor.name, hostile(draw, descriptor))
        except ValueError:  # an enum without that number
            return


COUNTS: Counter[str] = Counter()


def attempt(data: bytes) -> None:
    """Import a model, and plan what was accepted."""
    COUNTS["tried"] += 1
    signal.alarm(SECONDS)
    try:
        make_plan(optimise(import_onnx(data)), Target())
        COUNTS["accepted"] += 1
    except ClnnError as err:
        COUNTS["refused"] += 1
        assert len(str(err)) < 20_000
        if isinstance(err, (UnsupportedOpError, OpenShapeError)):
            with contextlib.suppress(ClnnError):
                read_program(data)
    finally:
        signal.alarm(0)


def late(*_: object) -> None:
    raise RuntimeError(f"an import took more than {SECONDS} s")


def main() -> None:
    number, examples = int(sys.argv[1]), int(sys.argv[2])
    signal.signal(signal.SIGALRM, late)
    options = settings(
        max_examples=examples // 2,
        deadline=None,
        database=None,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )
    for source in (mutated_bytes(), mutated_fields()):
        seed(number)(options(given(source)(attempt)))()
    # ru_maxrss would hold the peak of the process that started this one, too.
    lines = Path("/proc/self/status").read_text().splitlines()
    peak = int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) // 1024
    print(
        f"tried={COUNTS['tried']} refused={COUNTS['refused']} accepted={COUNTS['accepted']} "
        f"peak_mib={peak}"
    )


if __name__ == "__main__":
    main()
