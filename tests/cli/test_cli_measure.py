"""bench and profile: what they print and write. No test depends on how long anything takes."""

from __future__ import annotations

import csv
import io
import json
import re
import warnings
from pathlib import Path

import cli_models
import numpy as np
import pytest
from small_graphs import Builder

import clnn as library
from clnn.cli import _measure
from clnn.errors import UnsupportedOpError
from clnn.runtime.device.device import select
from clnn.runtime.measure import peak

FAST = ("--runs", 4, "--warmup", 1)


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CLNN_CACHE_DIR", str(tmp_path / "cache"))


def test_bench_prints_every_figure(clnn, files, device):
    result = clnn("bench", files["network"], "-d", device, *FAST)
    assert result.code == 0, result.err
    for pattern in (
        r"device +\d+ +\S+.*driver",
        r"model +\S+network\.onnx  f32  x:1x3x6x7",
        r"load \S+ ms +plan \S+ ms +build \S+ ms \((\d+)/(\d+) from cache\) +first inference \S+ ms"
        r" +arena \S+ MB",
        r"latency +n=4 +median \S+ +p90 \S+ +p99 \S+ +min \S+ +max \S+ ms",
        r"device-only median \S+ ms +H2D \S+ +D2H \S+ +launch gap \S+",
        r"throughput \S+ inf/s +\S+ \S*FLOP/s.* \S+ \S*B/s",
    ):
        assert re.search(pattern, result.out), f"{pattern} not in\n{result.out}"


def test_bench_writes_the_same_as_json(clnn, files, tmp_path, any_device):
    target = tmp_path / "out.json"
    result = clnn("bench", files["network"], "-d", any_device, *FAST, "--json", target)
    data = json.loads(target.read_text())
    assert "latency  n=4" in result.out
    assert data["latency"]["n"] == 4
    assert data["latency"]["min"] <= data["latency"]["median"] <= data["latency"]["p99"]
    assert data["latency"]["p99"] <= data["latency"]["max"]
    assert data["other"] is None
    # 3x3 convolution of 3 to 8 channels with bias, 1x1 of 8 to 3, on 42 places.
    assert data["flops"] >= 2 * 42 * (8 * 27 + 3 * 8)
    assert data["flops_per_s"] == pytest.approx(data["flops"] * data["throughput"])
    assert clnn("bench", files["network"], "-d", any_device, *FAST, "--json").data["model"]


def test_bench_finds_its_programs_in_the_cache(clnn, files, any_device, own_cache):
    first = clnn("bench", files["network"], "-d", any_device, *FAST, "--json").data
    second = clnn("bench", files["network"], "-d", any_device, *FAST, "--json").data
    assert first["programs"][0] == 0
    assert second["programs"] == [first["programs"][1], 0]


def test_bench_takes_turns_with_onnxruntime(clnn, files, any_device):
    result = clnn(
        "bench",
        files["network"],
        "-d",
        any_device,
        *FAST,
        "--against",
        "onnxruntime",
        "--threads",
        2,
        "--json",
    )
    other = result.data["other"]
    assert (other["engine"], other["threads"], other["rounds"]) == ("onnxruntime", 2, 4)
    assert other["latency"]["n"] == 4
    ratio = result.data["latency"]["median"] / other["latency"]["median"]
    assert other["ratio"] == pytest.approx(ratio)
    text = clnn("bench", files["network"], "-d", any_device, *FAST, "--against", "onnxruntime").out
    assert re.search(r"ratio +\S+ \(clnn / onnxruntime", text)


def test_bench_runs_several_callers(clnn, files, any_device):
    result = clnn(
        "bench",
        files["network"],
        "-d",
        any_device,
        *FAST,
        "--hint",
        "throughput",
        "--streams",
        3,
        "--json",
    )
    assert result.data["streams"] == 3
    assert result.data["latency"]["n"] == 12


def test_a_caller_that_fails_ends_the_measurement(files, any_device):
    plan = _measure.MeasurePlan(warmup=0, runs=2, streams=2)
    broken = {"x": np.zeros((1, 3, 6, 6), np.float32)}
    session = library.compile_model(files["network"], any_device)
    with session, pytest.raises(library.ClnnError, match="axis 3 is 6"):
        _measure._streamed(plan, session, broken)


@pytest.mark.parametrize(
    "options, words",
    [
        (("--warmup", "-1"), "--warmup is -1"),
        (("--streams", "0"), "--streams is 0"),
        (("--time", "nan"), "--time is nan"),
        (("--time", "0"), "--time is 0.0"),
        (("--against", "onnxruntime", "--hint", "throughput"), "one caller at a time"),
        (("--shape", "x:1,3"), "does not fit"),
        (("--shape", "z:1,3,6,7"), "z"),
        (("--shape", "nothing"), "is no shape"),
        (("--input", "x=gone.npy"), "no file at gone.npy"),
    ],
)
def test_wrong_options_are_named(clnn, files, any_device, options, words):
    result = clnn("bench", files["network"], "-d", any_device, *FAST, *options)
    assert result.code == 2
    assert words in result.err


def test_open_shapes_are_given_by_input_or_by_dimension(clnn, files, any_device):
    words = ("bench", files["doubler"], "-d", any_device, *FAST)
    refused = clnn(*words)
    assert refused.code == 2
    assert "--shape NAME:1,3,224,224 or --shape DIMENSION:4" in refused.err
    whole = clnn(*words, "--shape", "image:2,3,4,5", "--json")
    assert whole.data["shapes"] == "image:2x3x4x5"
    parts = clnn(
        *words, "--shape", "batch:2", "--shape", "height:4", "--shape", "width:5", "--json"
    )
    assert parts.data["shapes"] == "image:2x3x4x5"


def test_profile_prints_layers_slowest_first(clnn, files, device):
    result = clnn("profile", files["network"], "-d", device, "--runs", 3, "--json")
    assert result.code == 0, result.err
    layers = result.data["layers"]
    assert sum(layer["share"] for layer in layers) == pytest.approx(1)
    assert {"first", "second"} <= {layer["node"] for layer in layers}
    assert result.data["summary"]["runs"] == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        text = clnn("profile", files["network"], "-d", device, "--runs", 3).out
    times = [float(m[1]) for m in re.finditer(r"x\d+ +(\d+\.\d) +\d+\.\d\d ", text)]
    assert len(times) == len(layers)
    assert times == sorted(times, reverse=True)
    short = clnn("profile", files["network"], "-d", device, "--runs", 3, "--top", 1).out
    assert f"... {len(layers) - 1} more layers" in short


def test_profile_counts_work_and_cached_programs(clnn, files, tmp_path, any_device, own_cache):
    words = ("profile", files["network"], "-d", any_device, "--runs", 3)
    assert clnn(*words, "--csv", tmp_path / "t.csv").code == 0
    rows = {
        row["node"]: row for row in csv.DictReader(io.StringIO((tmp_path / "t.csv").read_text()))
    }
    flops = float(rows["first"]["gflops"]) * 1e9 * float(rows["first"]["seconds"])
    assert flops == pytest.approx(2 * 42 * 8 * 27, rel=0.05)
    nbytes = float(rows["first"]["gbytes"]) * 1e9 * float(rows["first"]["seconds"])
    assert nbytes == pytest.approx(4 * (42 * 3 + 8 * 27 + 8 + 42 * 8), rel=1e-3)
    assert {row["cached"] for row in rows.values()} == {"False"}
    assert all(layer["cached"] for layer in clnn(*words, "--json").data["layers"])


PHASES = {
    "M": {"name", "pid", "tid", "args"},
    "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"},
    "s": {"name", "cat", "id", "pid", "tid", "ts"},
    "f": {"name", "cat", "id", "pid", "tid", "ts", "bp"},
}


def test_trace_follows_the_trace_event_format(clnn, files, tmp_path, device):
    path = tmp_path / "trace.json"
    clnn("profile", files["network"], "-d", device, "--runs", 2, "--trace", path)
    trace = json.loads(path.read_text())
    assert trace["displayTimeUnit"] == "ms"
    events = trace["traceEvents"]
    for event in events:
        assert event.keys() - {"ph"} == PHASES[event["ph"]]
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0
    slices = [e for e in events if e["ph"] == "X"]
    runs = [e for e in slices if e["cat"] == "run"]
    assert [e["name"] for e in runs] == ["run 0", "run 1"]
    assert {e["name"] for e in slices if e["cat"] == "compile"} == {"plan", "build", "pack"}
    assert {"upload", "download"} == {
        e["name"].split()[0] for e in slices if e["cat"] == "transfer"
    }
    first = next(e for e in slices if e["name"] == "first")
    assert {"shape", "variant", "kernel", "flops", "bytes", "queued", "submit"} <= first[
        "args"
    ].keys()
    check_arrows(events, runs)


def check_arrows(events, runs):
    """Every launch has an arrow from the host, inside a run, to the device, in time."""
    tails = {e["id"]: e for e in events if e["ph"] == "s"}
    heads = {e["id"]: e for e in events if e["ph"] == "f"}
    launches = [e for e in events if e["ph"] == "X" and "kernel" in e["args"]]
    assert tails.keys() == heads.keys()
    assert len(heads) == len(launches)
    for tail in tails.values():
        assert any(r["ts"] <= tail["ts"] <= r["ts"] + r["dur"] for r in runs)
    assert {e["ts"] for e in heads.values()} == {e["ts"] for e in launches}


@pytest.mark.parametrize("words", [("--runs", "0"), ("--warmup", "-1"), ("--top", "-2")])
def test_profile_refuses_wrong_counts(clnn, files, any_device, words):
    result = clnn("profile", files["network"], "-d", any_device, *words)
    assert result.code == 2
    assert f"{words[0]} is {words[1]}" in result.err or f"{words[0]} {words[1]}" in result.err


def test_session_profile_measures_the_calls_of_its_thread(files, any_device, tmp_path):
    feeds = {"x": cli_models.normal(1, 3, 6, 7)}
    with library.compile_model(files["network"], any_device) as session:
        want = session(feeds)["y"]
        with session.profile(tmp_path / "trace.json") as profile:
            for _ in range(3):
                assert session(feeds)["y"].tobytes() == want.tobytes()
        session(feeds)
        assert len(profile.runs) == 3
        assert {row.node for row in profile.rows()} >= {"first", "second"}
        assert all(row.bound == "" for row in profile.rows())
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def test_profile_of_a_model_in_stages(clnn, files, tmp_path, device):
    """Layers of each stage, what takes time beside them, and both in one trace."""
    trace, table = tmp_path / "t.json", tmp_path / "t.csv"
    words = "profile", files["staged"], "-d", device, "--runs", 3
    told = clnn(*words, "--trace", trace, "--csv", table, "--json")
    assert told.code == 0, told.err
    (stage,) = told.data["stages"]["stage 1"]
    assert {"convolve"} <= {layer["node"] for layer in stage["layers"]}
    assert stage["summary"]["runs"] == told.data["summary"]["runs"] == 3
    steps = {step["name"]: step for step in told.data["steps"]}
    assert steps["stage 1"]["op"] == "stage" and steps["branch"]["op"] == "If"
    assert all(step["calls"] == 3 and step["seconds"] >= 0 for step in steps.values())
    whole = sum(step["seconds"] for step in steps.values())
    assert 0 < whole <= told.data["summary"]["host"]
    rows = list(csv.DictReader(io.StringIO(table.read_text())))
    assert {row["node"] for row in rows if row["stage"] == "stage 1"} >= {"convolve"}
    assert {row["node"] for row in rows if not row["stage"]} == set(steps)
    events = json.loads(trace.read_text())["traceEvents"]
    assert all(PHASES[event["ph"]] == event.keys() - {"ph"} for event in events)
    check_arrows(events, [e for e in events if e.get("cat") == "run"])
    titles = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert len(titles) == 3 and "stage 1: host" in titles.values()
    stages = [e for e in events if e["name"] == "stage 1"]
    launches = [e for e in events if e["name"] == "convolve"]
    assert len(stages) == len(launches) == 3
    text = clnn(*words).out
    assert "stage 1, profile 1 of 1" in text and "beside launches" in text
    assert re.search(r"3 runs: \d+\.\d+ ms in launches of stages", text)


def test_bench_of_a_model_in_stages(clnn, files, any_device):
    words = "bench", files["staged"], "-d", any_device, "--runs", 3, "--warmup", 1
    told = clnn(*words, "--json")
    assert told.code == 0, told.err
    assert told.data["latency"]["n"] == 3 and told.data["flops"] > 0
    assert 0 < told.data["kernels"] < told.data["latency"]["max"]
    assert told.data["plan"] > 0 and told.data["load"] > 0
    assert "device-only mean" in clnn(*words, "--hint", "throughput").out


@pytest.mark.parametrize("command", ["tune", "compile"])
def test_commands_that_want_one_plan_say_so(clnn, files, any_device, command):
    refused = clnn(command, files["staged"], "-d", any_device)
    assert refused.code == 2
    assert re.search(
        rf"^SettingError: .*runs in stages.*`clnn {command}` wants one plan", refused.err
    )
    unknown = clnn(command, files["unsupported"], "-d", any_device)
    assert unknown.err.startswith("UnsupportedOpError")


@pytest.mark.parametrize("command", ["run", "bench", "profile", "verify"])
def test_commands_that_take_stages_say_what_is_wrong_inside(clnn, files, command, monkeypatch):
    def refused(*_):
        raise UnsupportedOpError("a node inside")

    monkeypatch.setattr(f"clnn.cli.{command}.run", refused)
    assert clnn(command, files["staged"]).err.startswith("UnsupportedOpError: a node inside")


def test_layers_are_bound_by_what_takes_longest():
    peaks = peak.Peaks(flops=1e9, bandwidth=1e8, launch=1e-6)
    assert peaks.bound(10**6, 10**3, 1e-3) == "compute"
    assert peaks.bound(10**4, 10**6, 1e-2) == "mem"
    assert peaks.bound(10**6, 10**3, 2e-6) == "launch"


@pytest.fixture
def quick_peaks(monkeypatch):
    monkeypatch.setattr(peak, "ENOUGH_S", 1e-5)
    monkeypatch.setattr(peak, "COPY_BYTES", 1 << 21)
    monkeypatch.setattr(peak, "REPEATS", 1)


def test_profile_compares_layers_with_the_rate_between_its_runs(
    clnn, files, device, own_cache, quick_peaks, monkeypatch
):
    rates = iter([1e9, 0.0, 3e9, 2e9] * 2)
    monkeypatch.setattr(peak.PeakBench, "flops_again", lambda bench: lambda: next(rates))
    words = ("profile", files["network"], "-d", device, "--runs", 4, "--in-turns")
    result = clnn(*words, "--json")
    assert result.data["peaks"]["flops"] == 2e9
    for layer in result.data["layers"]:
        assert layer["of_peak"] == pytest.approx(layer["gflops"] / 2)
    assert re.search(r"convolutions: 2 layers, at the median \d+\.\d+ of", clnn(*words).out)


def test_profile_marks_shares_that_no_kernel_can_reach(
    clnn, files, any_device, own_cache, monkeypatch
):
    """A rate that was measured while the machine did other things makes layers look too fast."""
    words = ("profile", files["network"], "-d", any_device, "--runs", 2)
    for flops, reliable in ((1e3, False), (1e18, True)):
        peaks = peak.Peaks(flops=flops, bandwidth=1e9, launch=1e-9)
        monkeypatch.setattr(peak, "known_peaks", lambda info, peaks=peaks: peaks)
        layers = [r for r in clnn(*words, "--json").data["layers"] if r["op"] == "conv2d"]
        assert len(layers) == 2 and all(r["reliable"] is reliable for r in layers)
        text = clnn(*words).out
        assert bool(re.search(r" [\d.]+! ", text)) is not reliable
        assert ("!: unreliable," in text) is not reliable


@pytest.mark.parametrize(
    "most,of_peak,reliable", [(1, 1.04, 1), (1, 1.2, 0), (4, 3.9, 1), (4, 5, 0)]
)
def test_what_a_kernel_can_reach_depends_on_its_products(any_device, most, of_peak, reliable):
    node = Builder(x=(1, 16, 32, 32))
    graph = node.graph(node.conv("x", 16))
    options = library.Options(winograd=most > 1, tune="off")
    with library.compile_model(graph, any_device, options) as session, session.profile() as profile:
        session({"x": np.zeros((1, 16, 32, 32), np.float32)})
    (work,) = (w for w in profile.work.values() if w.op == "conv2d")
    if most > 1 and "winograd" not in work.variant:
        pytest.skip("this device takes another kernel")
    assert work.most == most
    (row,) = (r for r in profile.rows() if r.op == "conv2d")
    peaks = peak.Peaks(row.gflops * 1e9 / of_peak, 1e9, 1e-9)
    (row,) = (r for r in profile.rows(peaks) if r.op == "conv2d")
    assert row.of_peak == pytest.approx(of_peak) and row.reliable == bool(reliable)


def test_the_multiply_add_rate_can_be_measured_again(any_device, monkeypatch):
    monkeypatch.setattr(peak, "REPEATS", 1)
    bench = peak.PeakBench(select(any_device))
    again = bench.flops_again()
    assert again() > 0 and again() > 0
    monkeypatch.setattr(bench, "_times", lambda *args: [0.0, 0.0])
    assert again() == 0


def test_peaks_are_measured_once_and_shown_as_shares(clnn, files, device, own_cache, quick_peaks):
    words = ("bench", files["network"], "-d", device, *FAST)
    assert "of measured" not in clnn(*words).out
    assert peak.known_peaks(select(device)) is None
    measured = clnn(*words, "--measure")
    assert re.search(r"\d+ % of measured peak.*\d+ % of measured bandwidth", measured.out)
    peaks = peak.known_peaks(select(device))
    assert min(peaks.flops, peaks.bandwidth, peaks.launch) > 0
    again = clnn(*words, "--json").data
    assert again["share_of_flops"] == pytest.approx(again["flops_per_s"] / peaks.flops)
    layers = clnn("profile", files["network"], "-d", device, "--json").data["layers"]
    assert {layer["bound"] for layer in layers} <= {"mem", "compute", "launch"}


@pytest.mark.usefixtures("any_device")
def test_devices_measures_and_shows_peaks(clnn, own_cache, quick_peaks):
    before = clnn("devices", "--json")
    assert all(d["peaks"] is None for d in before.data)
    assert "GFLOP/s" not in clnn("devices").out
    measured = clnn("devices", "--measure", "--json").data
    assert all((d["peaks"] is not None) == d["usable"] for d in measured)
    text = clnn("devices").out
    assert text.count("GFLOP/s (float32)") == sum(d["usable"] for d in measured)


def test_damaged_peaks_are_not_believed(any_device, own_cache, quick_peaks):
    info = select(any_device)
    peak.measure_peaks(info)
    for text in (
        b"",
        b"[]",
        b'{"flops": 1}',
        b'{"flops": "x", "bandwidth": 1, "launch": 1}',
        b'{"flops": 0, "bandwidth": 1, "launch": 1}',
    ):
        peak.Store(kind="peaks").put(peak._key(info), text, {})
        assert peak.known_peaks(info) is None


def test_peak_kernels_do_the_work_they_claim(any_device):
    """The multiply-add kernel's result after n rounds is the recurrence's."""
    bench = peak.PeakBench(select(any_device))
    cl = peak.load()
    for kernel in peak._fma_kernels(bench.info):
        bench.build([kernel])
        ready = bench.device.kernel(kernel.source, kernel.name)
        items, rounds = kernel.params["wg"][0] * 8, 5
        out = bench.buffer(4 * items)
        ready.set_args(out, np.int32(rounds), np.float32(0.5), np.float32(0.25))
        bench.best(ready, items, kernel.params["wg"][0])
        got = np.empty(items, np.float32)
        cl.enqueue_copy(bench.queue, got, out)
        x = 1 + 0.001 * (np.arange(items) % 7)[:, None] + 0.01 * np.arange(kernel.params["chains"])
        for _ in range(rounds):
            x = 0.5 * x + 0.25
        np.testing.assert_allclose(got, x.sum(1) * kernel.params["vec"], rtol=1e-5)


def test_copy_kernels_copy_everything(any_device):
    bench = peak.PeakBench(select(any_device))
    cl = peak.load()
    for kernel in peak._copy_kernels(bench.info):
        p = kernel.params
        count = p["vec"] * p["chunk"] * p["wg"][0] * 3
        bench.build([kernel])
        source, target = bench.buffer(4 * count), bench.buffer(4 * count)
        data = np.arange(count, dtype=np.float32)
        cl.enqueue_copy(bench.queue, source, data)
        ready = bench.device.kernel(kernel.source, kernel.name)
        ready.set_args(source, target)
        bench.best(ready, count // (p["vec"] * p["chunk"]), p["wg"][0])
        got = np.empty_like(data)
        cl.enqueue_copy(bench.queue, got, target)
        np.testing.assert_array_equal(got, data)


def test_files_that_cannot_be_written_are_user_errors(clnn, files, any_device, tmp_path):
    target = Path(tmp_path, "no", "folder", "t.json")
    result = clnn("profile", files["network"], "-d", any_device, "--runs", 1, "--json", target)
    assert result.code == 2
    assert str(target) in result.err


def test_bench_says_where_the_time_of_a_start_goes(clnn, files, any_device):
    words = "bench", files["network"], "-d", any_device, "--start", "--runs", 1
    told = clnn(*words, "--json").data
    steps = [step["step"] for step in told["steps"]]
    assert steps[:3] == ["python", "numpy", "pyopencl"] and steps[-1] == "first run"
    assert told["wall"] == pytest.approx(sum(step["wall"] for step in told["steps"]))
    assert told["programs"][0] > 0 and told["programs"][1] == 0
    assert "in all" in clnn(*words).out
    refused = clnn("bench", files["unsupported"], "-d", any_device, "--start")
    assert refused.code != 0 and "UnsupportedOpError" in refused.err
