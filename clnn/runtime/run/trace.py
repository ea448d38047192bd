"""A profile as a Chrome trace: device and host as processes, arrows from enqueue to execution."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clnn.runtime.run.profile import Profile, Run, Span

DEVICE, HOST, QUEUE, MAIN = 1, 2, 1, 1
Event = dict[str, Any]


def chrome_trace(profile: Profile) -> dict[str, Any]:
    """Return a dict in the Trace Event Format.

    Times are microseconds on the host's clock: each run's device times are moved so that its
    first command is queued when the host began the run.
    """
    events = [
        _name("process_name", DEVICE, 0, profile.title),
        _name("thread_name", DEVICE, QUEUE, "queue"),
        _name("process_name", HOST, 0, "host"),
        _name("thread_name", HOST, MAIN, "caller"),
    ]
    for what, (begin, end) in profile.compiled.items():
        events.append(_slice(what, "compile", HOST, MAIN, begin, end, {}))
    for number, run in enumerate(profile.runs):
        events += _run_events(profile, number, run)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _run_events(profile: Profile, number: int, run: Run) -> list[Event]:
    events = [_slice(f"run {number}", "run", HOST, MAIN, run.began, run.ended, {})]
    shift = run.began - _first_queued(run)
    for value, span in run.uploads:
        events.append(_command(f"upload {value}", "transfer", span, shift, {}))
    seen: set[str] = set()
    for at, (ready, span) in enumerate(zip(profile.launches, run.launches, strict=True)):
        work, first = profile.work[ready.node], ready.node not in seen
        seen.add(ready.node)
        args = {
            "shape": work.shape,
            "variant": work.variant,
            "kernel": ready.title,
            "flops": work.flops if first else 0,
            "bytes": work.nbytes if first else 0,
            "global": list(ready.global_size),
            "local": list(ready.local_size),
        }
        events.append(_command(ready.node, work.op, span, shift, args))
        events += _arrow(number * len(run.launches) + at, run.enqueued[at], span.start + shift)
    for value, span in run.downloads:
        events.append(_command(f"download {value}", "transfer", span, shift, {}))
    return events


def _first_queued(run: Run) -> int:
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
