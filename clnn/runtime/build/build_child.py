"""The child process that builds programs; see clnn.runtime.build.program."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clnn.runtime.build import registers
from clnn.runtime.build.program import program_binary
from clnn.runtime.drivers.assembly import taken_by
from clnn.runtime.drivers.loader import load


def main(argument: Mapping[str, Any]) -> None:
    """Build the sources of a folder that no other process has claimed (runs in a child)."""
    if argument["nice"] and hasattr(os, "nice"):
        os.nice(argument["nice"])
    cl = load()
    platform = cl.get_platforms()[argument["platform"]]
    device = platform.get_devices()[argument["device"]]
    context = cl.Context([device])
    for number in range(argument["count"]):
        job = Path(argument["folder"], f"{number}.cl")
        claimed = job.with_suffix(".taken")
        try:
            os.rename(job, claimed)
        except FileNotFoundError:
            continue
        try:
            source = claimed.read_text()
            options = registers.options_with(
                argument["options"], source, bool(argument.get("large"))
            )
            program = cl.Program(context, taken_by(device, source))
            program.build(options, cache_dir=False)
            binary = program_binary(program)
            told = registers.spills_of(registers.build_log(program, device))
        except cl.Error as err:
            print(json.dumps({"job": number, "error": str(err)[:2000]}))
            continue
        if told:
            job.with_suffix(".spills").write_text(told)
        if binary:
            part = job.with_suffix(".part")
            part.write_bytes(binary)
            os.replace(part, job.with_suffix(".bin"))
