"""Hostile and broken models are refused, at once, without memory, and in words."""

from __future__ import annotations

import resource
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from onnx_corpus import CORPUS
from onnx_models import model, relu, value

from clnn.errors import ClnnError, ShapeError
from clnn.importers.onnx.importer import import_onnx

MEMORY = 400 * 2**20


@pytest.mark.parametrize("name", CORPUS)
def test_every_model_of_the_corpus_is_refused(name, tmp_path):
    build, kind, words = CORPUS[name]
    path = tmp_path / "net.onnx"
    path.write_bytes(build().SerializeToString())
    tracemalloc.start()
    try:
        with pytest.raises(kind) as caught:
            import_onnx(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    text = str(caught.value)
    assert words in text
    assert text.endswith(".") or "docs/operators.md" in text
    assert len(text) < 3000
    assert peak < MEMORY, f"{peak} bytes were allocated before the refusal"
    cause = caught.value.__cause__
    assert isinstance(cause, ClnnError) or not isinstance(cause, MemoryError)


def test_no_opencl_is_touched_before_a_refusal(tmp_path):
    """A fresh process imports every model of the corpus; pyopencl is never loaded."""
    for number, (build, _, _) in enumerate(CORPUS.values()):
        (tmp_path / f"{number}.onnx").write_bytes(build().SerializeToString())
    code = (
        "import sys, pathlib, clnn\n"
        "from clnn.compile import compile_fixed\n"
        "for path in sorted(pathlib.Path(sys.argv[1]).glob('*.onnx')):\n"
        "    try: compile_fixed(path)\n"
        "    except clnn.ClnnError: continue\n"
        "    sys.exit(f'{path} was accepted')\n"
        "sys.exit('pyopencl' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr[-2000:]


# Shapes around the limits of 32-bit indices: (dims, accepted).
EDGES = [
    ((2**31 - 1,), True),
    ((2**31 - 1, 1), True),
    ((46340, 46340), True),
    ((46341, 46341), False),
    ((2**16, 2**15), False),
    ((2**30, 2), False),
    ((2**15, 2**15, 2), False),
    ((2**31 - 1, 2), False),
    ((65536, 65536), False),
    ((2**21, 2**21, 2**21), False),
    ((2**31 - 1, 2**31 - 1, 2**31 - 1), False),
]


@pytest.mark.parametrize(("dims", "accepted"), EDGES, ids=str)
def test_tensors_beyond_32_bit_indices_are_refused(dims, accepted, monkeypatch):
    monkeypatch.setenv("CLNN_MAX_BYTES", str(1 << 60))
    if accepted:
        assert import_onnx(relu(dims)).types["x"].shape == dims
        return
    with pytest.raises(ShapeError, match="kernels index with 32 bits"):
        import_onnx(relu(dims))


@pytest.mark.parametrize(("dims", "accepted"), EDGES, ids=str)
def test_results_beyond_32_bit_indices_are_refused(dims, accepted, monkeypatch):
    """The input is small; a node makes the large tensor."""
    from onnx import helper as make
    from onnx_models import ints

    monkeypatch.setenv("CLNN_MAX_BYTES", str(1 << 60))
    proto = model(
        [make.make_node("Expand", ["x", "s"], ["y"])],
        [value("x", (1,) * len(dims))],
        initializers=[ints("s", *dims)],
    )
    if accepted:
        graph = import_onnx(proto)
        assert graph.types[graph.outputs["y"]].shape == dims
        return
    with pytest.raises(ShapeError, match="kernels index with 32 bits"):
        import_onnx(proto)


def test_tensor_over_the_byte_limit_is_refused(monkeypatch):
    monkeypatch.setenv("CLNN_MAX_BYTES", "4000")
    assert import_onnx(relu((1000,))).inputs == ("x",)
    with pytest.raises(
        ShapeError, match=r"float32\[1001\]: 1001 elements, 4004 bytes; the limit is"
    ):
        import_onnx(relu((1001,)))


@pytest.mark.parametrize(
    ("seeds", "examples"),
    [(1, 250), pytest.param(12, 4000, marks=pytest.mark.exhaustive)],
    ids=["short", "long"],
)
def test_mutated_models_never_crash_hang_or_fill_memory(seeds, examples):
    """A child process with a cap on its memory mutates models; see onnx_mutate.py."""
    script = Path(__file__).with_name("onnx_mutate.py")
    for seed in range(seeds):
        done = subprocess.run(
            [sys.executable, str(script), str(seed), str(examples)],
            capture_output=True,
            text=True,
            cwd=Path(__file__).parents[2],
            preexec_fn=_cap,
            timeout=1800,
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
        counts = dict(pair.split("=") for pair in done.stdout.split())
        assert int(counts["tried"]) >= examples
        assert int(counts["refused"]) > examples // 4
        assert int(counts["accepted"]) > 0
        assert int(counts["peak_mib"]) < 1024


def _cap() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (4 * 2**30, 4 * 2**30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def test_errors_of_the_importer_are_the_project_s_own():
    assert all(
        issubclass(k, ClnnError)
        for _, kinds, _ in CORPUS.values()
        for k in (kinds if isinstance(kinds, tuple) else (kinds,))
    )
