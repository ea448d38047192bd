"""How far builds are: told to a listener, by count and title, in this process and from children."""

from __future__ import annotations

from pathlib import Path

import pytest
import small_graphs

import clnn
from clnn.runtime.build import program, progress
from clnn.runtime.build.program import Device
from clnn.runtime.build.progress import BuildProgress
from clnn.runtime.device.device import select


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_every_program_is_told_once(any_device, tmp_path, monkeypatch, jobs):
    monkeypatch.setenv("CLNN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("CLNN_BUILD_JOBS", jobs)
    monkeypatch.setattr(program, "CHILDREN_FROM", 2)
    steps: list[BuildProgress] = []
    options, graph = clnn.Options(merge=False), small_graphs.decoder()
    with clnn.compile_model(graph, any_device, options, progress=steps.append) as session:
        built = session.build_counts[1]
    assert built > 2 and [s.done for s in steps] == list(range(built + 1))
    assert {s.total for s in steps} == {built} and not steps[0].title
    titles = [s.title for s in steps[1:]]
    assert all(titles) and len(set(titles)) == built
    steps.clear()
    with clnn.compile_model(graph, any_device, options, progress=steps.append) as session:
        assert session.build_counts == (built, 0)
    assert not steps


def test_a_listener_that_raises_ends_the_build_and_no_more(any_device, tmp_path, monkeypatch):
    monkeypatch.setenv("CLNN_CACHE_DIR", str(tmp_path / "cache"))

    def refuse(where: BuildProgress) -> None:
        raise RuntimeError("no more")

    graph = small_graphs.classifier()
    with pytest.raises(RuntimeError, match="no more"):
        clnn.compile_model(graph, any_device, progress=refuse)
    clnn.compile_model(graph, any_device).close()


def test_listeners_are_those_of_their_thread():
    heard: list[BuildProgress] = []
    with progress.heard(heard.append), progress.heard(None):
        progress.tell(1, 2, "inner")
    progress.tell(2, 2, "nobody")
    assert heard == [BuildProgress(1, 2, "inner")]


def test_children_take_the_longest_programs_first(device, monkeypatch):
    texts = [f"__kernel void k{k}(__global int *a) {{ {'a[0] += 1; ' * k} }}" for k in (2, 9, 1, 5)]
    seen: list[list[str]] = []

    def look(jobs, run, looks):
        argument = run.args[1]
        folder = Path(argument["folder"])
        seen.append([(folder / f"{k}.cl").read_text() for k in range(argument["count"])])
        return [""]

    monkeypatch.setattr(program, "_at_once", look)
    Device.open(select(device))._build_in_children(texts, 2)
    assert seen == [sorted(texts, key=len, reverse=True)]
