#!/usr/bin/env python3
"""Write docs/environment.md from the table in clnn/settings.py (--check: only compare)."""

from __future__ import annotations

import sys
from pathlib import Path

from clnn.settings import GIVEN, SETTINGS

PATH = Path(__file__).resolve().parent.parent / "docs" / "environment.md"


def text() -> str:
    rows = [
        f"| `{s.name}` | {f'`{s.default}`' if s.default else 'empty'} | {s.meaning} |"
        for s in SETTINGS.values()
    ]
    head = [
        "# Environment variables",
        "",
        "A variable that begins with `CLNN_` and is not in this table is warned about.",
        "",
        "| variable | default | meaning |",
        "| --- | --- | --- |",
    ]
    given = [
        f"| `{name}` | {f'`{value}`' if value else 'a folder'} | {why} |"
        for name, (value, why) in GIVEN.items()
    ]
    more = [
        "",
        "## Variables of others",
        "",
        "clnn reads two, which name the processor that a driver compiles for: `CL_CONFIG_CPU_TARGET_ARCH`",
        "(Intel's CPU runtime, such as `core-avx2`) and `POCL_LLVM_CPU_NAME` (PoCL, such as `haswell`, with",
        "`POCL_KERNELLIB_NAME=avx2`). Kernels are made for its registers, and programs, measurements and tuning",
        "results are kept apart from the host's; `clnn devices` shows it.",
        "",
        "clnn sets these in its own process and in its children where they are not set.",
        "",
        "| variable | value | why |",
        "| --- | --- | --- |",
    ]
    return "\n".join([*head, *rows, *more, *given]) + "\n"


def main() -> int:
    if "--check" in sys.argv[1:]:
        current = PATH.exists() and PATH.read_text() == text()
        if not current:
            print(
                f"{PATH.name} is not current: run python tools/gen_environment.py", file=sys.stderr
            )
        return 0 if current else 1
    PATH.write_text(text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
