"""What a fused kernel has around its calls so that it can run in the thread that calls, with helpers on other threads.

Such a kernel is enqueued in one of three ways, which its argument `role` says:

    ALL     as any fused kernel: work-groups of one launch share the calls.
    CALLS   one work-group, which opens a run for helpers, does all calls with those that come, closes the run, and
            waits for who is in it. So it gets through alone, and nobody joins a run that has ended.
    HELPS   work-groups, one more than are to help, which join every run that is opened, and stay for `ticks` of the
            processor's clock behind each for the next one. A caller that comes again by then need not wake a thread.

Whoever meets the caller on its own processor leaves: they would take turns there, and each wait for the other. One
that comes there first lets the others come, for a while, as its thread would take their work-groups, too.
What they tell each other lies behind the counters, a line of it for each who writes:

    OPENED   the number of the run that is open, 0 for none; CALLER, its processor; RUNS, the last number
    INSIDE   helpers in a run; WAITS, whether one on the caller's processor is to wait for others, set by who sends
    PRESENT  helpers that are there
"""

from __future__ import annotations

from collections.abc import Sequence

from clnn.codegen.kernels import (
    CALLER,
    CALLS,
    CLOCK,
    HELPS,
    INSIDE,
    OPENED,
    PRESENT,
    ROLE,
    RUNS,
    TICKS,
    WAITS,
)

WAKING = 2  # the part of `ticks` in which a thread that sleeps should have come
_PAUSE = '__asm__ volatile("pause");'


def around(body: Sequence[str], last: int, line: int, shares: int, scratch: int) -> list[str]:
    """Return the statements of a kernel whose calls are `body`.

    last: the last counter, at which groups that end count, with those that began a `line` before it; the desk
    begins a line behind it. shares: of a call's items. scratch: bytes of each group.
    """
    turns = max(shares - 1, 1)
    return [
        f"    volatile __global int *desk = next + {last + line};",
        f"    const int helps = {ROLE} == {HELPS}, group = work_group + helps;",
        f"    __global char *scratch = scratch_base + group * {scratch};",
        "    uint since, now;",
        "    int here, run = 0;",
        f"    {CLOCK.format('since')}",
        *_come(turns),
        "    for (;;) {",
        *_look(),
        f"    const int own = helps ? (1 + (group - 1) % {turns}) % {shares}",
        f"        : {ROLE} == {CALLS} ? 0 : atomic_inc(next + {last - line}) % {shares};",
        *body,
        "    if (helps) {",
        f"        atomic_dec(desk + {INSIDE});",
        f"        {CLOCK.format('since')}",
        "        continue;",
        "    }",
        f"    if ({ROLE} == {CALLS}) {{",
        f"        atomic_xchg(desk + {OPENED}, 0);",
        f"        while (atomic_add(desk + {INSIDE}, 0)) ;",
        "    }",
        f"    if ({ROLE} == {CALLS} || atomic_inc(next + {last}) == work_groups - 1)",
        f"        for (int k = 0; k <= {last}; k += {line}) atomic_xchg(next + k, 0);",
        "    return;",
        "    }",
    ]


def _come(most: int) -> list[str]:
    """Return what a group does first: it opens a run, or becomes one of the helpers, `most` of them."""
    return [
        f"    if ({ROLE} == {CALLS}) {{",
        f"        desk[{CALLER}] = here;",
        f"        desk[{RUNS}] = (int)((uint)desk[{RUNS}] + 2u) | 1;",
        f"        atomic_xchg(desk + {OPENED}, desk[{RUNS}]);",
        "    }",
        "    if (helps) {",
        f"        const int waits = here == desk[{CALLER}] && atomic_xchg(desk + {WAITS}, 0);",
        f"        while (here == desk[{CALLER}]) {{",
        f"            {CLOCK.format('now')}",
        f"            if (!waits || now - since > {TICKS} / {WAKING} || desk[{PRESENT}]) return;",
        f"            {_PAUSE}",
        "        }",
        f"        if (atomic_inc(desk + {PRESENT}) >= {most}) {{ atomic_dec(desk + {PRESENT}); return; }}",
        "    }",
    ]


def _look() -> list[str]:
    """Return how a helper looks for the next run, and leaves where none comes."""
    return [
        "    while (helps) {",
        f"        {CLOCK.format('now')}",
        f"        if (now - since > {TICKS} || here == desk[{CALLER}]) {{",
        f"            atomic_dec(desk + {PRESENT});",
        "            return;",
        "        }",
        f"        const int opened = desk[{OPENED}];",
        "        if (opened && opened != run) {",
        f"            atomic_inc(desk + {INSIDE});",
        f"            if (atomic_add(desk + {OPENED}, 0) == opened) {{ run = opened; break; }}",
        f"            atomic_dec(desk + {INSIDE});",
        "        }",
        f"        {_PAUSE}",
        "    }",
    ]
