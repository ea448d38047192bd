"""A profile as a Chrome trace: device and host as processes, arrows from enqueue to execution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clnn.runtime.run.commands import Enqueue
from clnn.runtime.run.spans import Span, TimedRun
from clnn.runtime.run.work import Work

DEVICE, HOST, QUEUE, MAIN = 1, 2, 1, 1
Event = dict[str, Any]


def chrome_trace(
    title: str,
    compiled: Mapping[str, tuple[int, int]],
    runs: Sequence[TimedRun],
    launches: Sequence[Enqueue],
    work: Mapping[str, Work],
) -> dict[str, Any]:
    """Return a dict in the Trace Event Format.

    title: of the device. compiled: begin and end in ns of what came before the runs. launches: those
    of each run. work: by node. Times are microseconds on the host's clock: each run's device times
    are moved so that its first command is queued when the host began the run.
    """
    events = [
        _name("process_name", DEVICE, 0, title),
        _name("thread_name", DEVICE, QUEUE, "queue"),
        _name("process_name", HOST, 0, "host"),
        _name("thread_name", HOST, MAIN, "caller"),
    ]
    for what, (begin, end) in compiled.items():
        events.append(_slice(what, "compile", HOST, MAIN, begin, end, {}))
    for number, run in enumerate(runs):
        events += _run_events(number, run, launches, work)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def joined_trace(
    traces: Sequence[tuple[str, Mapping[str, Any]]], steps: Sequence[tuple[str, str, int, int]]
) -> dict[str, Any]:
    """Return traces of chrome_trace as one, each with processes of its own that begin with its name.

    steps: name, category, begin and end in ns on the host's clock, of what the host does around them.
    """
    events = [_name("process_name", HOST, 0, "steps"), _name("thread_name", HOST, MAIN, "caller")]
    events += [_slice(what, of, HOST, MAIN, begin, end, {}) for what, of, begin, end in steps]
    for number, (title, trace) in enumerate(traces, 1):
        for event in trace["traceEvents"]:
            moved = {**event, "pid": event["pid"] + HOST * number}
            if event["name"] == "process_name":
                moved["args"] = {"name": f"{title}: {event['args']['name']}"}
            if "id" in event:  # an arrow's, of all traces
                moved["id"] = f"{number}.{event['id']}"
            events.append(moved)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _run_events(
    number: int, run: TimedRun, launches: Sequence[Enqueue], work: Mapping[str, Work]
) -> list[Event]:
    events = [_slice(f"run {number}", "run", HOST, MAIN, run.began, run.ended, {})]
    shift = run.began - _first_queued(run)
    for value, span in run.uploads:
        events.append(_command(f"upload {value}", "transfer", span, shift, {}))
    seen: set[str] = set()
    for at, (ready, span) in enumerate(zip(launches, run.launches, strict=True)):
        what, first = work[ready.node], ready.node not in seen
        seen.add(ready.node)
        args = {
            "shape": what.shape,
            "variant": what.variant,
            "kernel": ready.title,
            "flops": what.flops if first else 0,
            "bytes": what.nbytes if first else 0,
            "global": list(ready.global_size),
            "local": list(ready.local_size),
        }
        events.append(_command(ready.node, what.op, span, shift, args))
        events += _arrow(number * len(run.launches) + at, run.enqueued[at], span.start + shift)
    for value, span in run.downloads:
        events.append(_command(f"download {value}", "transfer", span, shift, {}))
    return events


def _first_queued(run: TimedRun) -> int:
    spans = [*(s for _, s in run.uploads), *run.launches, *(s for _, s in run.downloads)]
    return min((s.queued for s in spans), default=run.began)


def _command(name: str, category: str, span: Span, shift: int, args: Event) -> Event:
    times = {"queued": (span.queued + shift) / 1e3, "submit": (span.submit + shift) / 1e3}
    return _slice(
        name, category, DEVICE, QUEUE, span.start + shift, span.end + shift, {**args, **times}
    )


def _slice(
    name: str, category: str, process: int, thread: int, begin: int, end: int, args: Event
) -> Event:
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": process,
        "tid": thread,
        "ts": begin / 1e3,
        "dur": (end - begin) / 1e3,
        "args": args,
    }


def _arrow(number: int, enqueued: int, started: int) -> list[Event]:
    """Return the two ends of a flow arrow from the host's enqueue to the device's start."""
    common: Event = {"name": "launch", "cat": "launch", "id": number}
    tail = {**common, "ph": "s", "pid": HOST, "tid": MAIN, "ts": enqueued / 1e3}
    head = {**common, "ph": "f", "bp": "e", "pid": DEVICE, "tid": QUEUE, "ts": started / 1e3}
    return [tail, head]


def _name(what: str, process: int, thread: int, text: str) -> Event:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": text}}
