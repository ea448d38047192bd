"""Which values of a program the host reads. All others may stay on the device."""

from __future__ import annotations

from collections.abc import Iterable

from clnn.importers.onnx.stages.program import (
    Choice,
    DeviceStage,
    HostStep,
    Program,
    Repeat,
    Step,
    Sweep,
    inner_programs,
)

Wanted = frozenset[str]


def read_by_host(program: Program, wanted: Wanted | None = None) -> Wanted:
    """Return the names whose elements the host reads. wanted: outputs that it reads (None: all)."""
    read = set(program.outputs if wanted is None else wanted)
    for step in reversed(program.steps):  # what reads a value stands behind what makes it
        read |= _read_by(step, frozenset(read))
    return frozenset(read - {""})


def bodies_of(step: Step, read: Wanted) -> list[tuple[Program, Wanted]]:
    """Return the programs inside of a step, each with its outputs that the host reads.

    read: the names that the host reads around it.
    """
    if isinstance(step, Choice):
        return [(branch, _named(branch, step, read)) for branch in inner_programs(step)]
    if isinstance(step, Repeat):
        return [(step.body, _of_loop(step, read, step.n_carried, 1))]
    if isinstance(step, Sweep) and not step.batched:
        return [(step.body, _of_loop(step, read, step.n_inputs - step.n_sequences, 0))]
    return [(body, frozenset(body.outputs)) for body in inner_programs(step)]


def _named(branch: Program, step: Step, read: Wanted) -> Wanted:
    pairs = zip(branch.outputs, step.outputs, strict=False)
    return frozenset(inner for inner, outer in pairs if outer in read)


def _of_loop(step: Repeat | Sweep, read: Wanted, n_carried: int, first: int) -> Wanted:
    """Return what the host reads of a body's outputs in each turn. first: place of the first carried one.

    A carried value that the body reads on the host is read there in the next turn. What is read behind
    the loop only is read once, so it is not among them.
    """
    body = step.body
    made = body.outputs[first:]
    wanted = set(body.outputs[:first])
    scans = zip(made[n_carried:], step.outputs[n_carried:], strict=False)
    wanted |= {inner for inner, outer in scans if outer in read}
    if isinstance(step, Sweep):  # slices along other axes are stacked on the host
        wanted |= {n for n, a in zip(made[n_carried:], step.out_axes, strict=True) if a}
    carried = list(zip(body.inputs[2 * first :], made[:n_carried], strict=False))
    while True:
        inside = read_by_host(body, frozenset(wanted))
        more = {after for before, after in carried if before in inside} - wanted
        if not more:
            return frozenset(wanted)
        wanted |= more


def _read_by(step: Step, read: Wanted) -> set[str]:
    """Return what the host reads for a step."""
    if isinstance(step, DeviceStage):
        return set(step.fixed)
    if isinstance(step, HostStep):
        return set() if step.shape_only else set(step.inputs)
    found = set(_own(step))
    for body, wanted in bodies_of(step, read):
        inside = read_by_host(body, wanted)
        found |= inside & set(body.captures)
        if isinstance(step, (Repeat, Sweep)):
            found |= {a for a, b in zip(step.inputs, body.inputs, strict=False) if b in inside}
    return found


def _own(step: Step) -> Iterable[str]:
    """Return what a step with bodies reads itself."""
    if isinstance(step, Choice):
        return step.inputs[:1]
    if isinstance(step, Repeat):
        return step.inputs[:2]
    if isinstance(step, Sweep) and not step.batched:
        sequences = step.inputs[step.n_inputs - step.n_sequences : step.n_inputs]
        return [n for n, axis in zip(sequences, step.in_axes, strict=True) if axis]
    return step.inputs
