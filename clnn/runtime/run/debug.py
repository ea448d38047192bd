"""What a session tells under CLNN_DEBUG: device and plan, kernel times, variants, sources."""

from __future__ import annotations

from clnn.codegen.kernels import text_of
from clnn.logs import PLAN, SOURCES, TIMES, VARIANTS, log
from clnn.plan.plan import Plan
from clnn.runtime.build.program import BuildCounts
from clnn.runtime.run.commands import RunEvents
from clnn.runtime.run.placement import Placement
from clnn.runtime.run.state import ExecutionState


def log_compiled(plan: Plan, placement: Placement, counts: BuildCounts) -> None:
    """Log device and plan, the variant of each node, and the sources, as far as they are wanted."""
    if not log.isEnabledFor(PLAN):
        return
    times = ", ".join(f"{what} {s * 1e3:.1f} ms" for what, s in placement.seconds.items())
    log.log(
        PLAN,
        "%s: %d nodes, %d launches, arena %d bytes (at least %d); %s; %d programs from the"
        " cache, %d built",
        placement.device,
        len(placement.nodes),
        placement.launches,
        placement.arena_bytes,
        placement.arena_lower_bound,
        times,
        counts.cached,
        counts.built,
    )
    for r in placement.nodes:
        log.log(VARIANTS, "%s (%s): %s -> %s", r["node"], r["op"], r["variant"], r["output"])
    if log.isEnabledFor(SOURCES):
        sources = {text_of(p.launch).source for p in plan.launches}
        for source in sorted(sources):
            log.log(SOURCES, "source:\n%s", source)


def log_run(state: ExecutionState, events: RunEvents) -> None:
    """Log the time of every kernel of a run that was made by run_timed."""
    for ready, (_, event) in zip(state.launches, events.launches, strict=True):
        micros = (event.profile.end - event.profile.start) / 1e3
        log.log(
            TIMES,
            "%9.1f us  %s: %s %s/%s",
            micros,
            ready.node,
            ready.title,
            ready.global_size,
            ready.local_size,
        )
    log.log(TIMES, "%9.1f us  the whole run", (events.ended - events.began) / 1e3)
