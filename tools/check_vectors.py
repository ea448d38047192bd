"""Run the golden vectors of a system on a device and compare every output bit.

    python tools/check_vectors.py SYSTEM DIR [--device D] [--only GLOB] [--verbose]

SYSTEM is a module of tools/vectors; DIR holds its vectors. Prints, for each kernel, how many cases
are exact, failed and skipped, with reasons, and a closing count. Exit status: 0, 1 when a case
fails, 2 wrong use, 3 no device.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import traceback
from collections import Counter
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType

sys.path.insert(0, str(Path(__file__).resolve().parent))

from vectors import Case, Outcome

from clnn.errors import NoDeviceError

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_NO_DEVICE = 0, 1, 2, 3
STATES = ("exact", "failed", "skipped")


def systems() -> list[str]:
    """Return the names of the systems that have a module."""
    folder = Path(__file__).resolve().parent / "vectors"
    return sorted(p.stem for p in folder.glob("*.py") if not p.stem.startswith("_"))


def run_case(system: ModuleType, case: Case, device: str | None) -> Outcome:
    """Return the outcome of one case; an exception is a failure."""
    try:
        outcome: Outcome = system.run(case, device)
    except NoDeviceError:
        raise
    except Exception as error:  # the table must show every case
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
        return Outcome("failed", text)
    return outcome


def run_all(
    system: ModuleType, cases: Iterable[Case], device: str | None, verbose: bool
) -> dict[str, Counter[str]]:
    """Run cases, print each that is not exact, and return kernel -> counts by state."""
    counts: dict[str, Counter[str]] = {}
    for case in cases:
        outcome = run_case(system, case, device)
        counts.setdefault(case.kernel, Counter())[outcome.status] += 1
        if verbose or outcome.status != "exact":
            print(
                f"{case.kernel} {case.name}: {outcome.status} {outcome.reason}".rstrip(), flush=True
            )
    return counts


def table(counts: dict[str, Counter[str]]) -> str:
    """Return one line per kernel and the closing count."""
    lines = [f"{'kernel':<34}{'cases':>7}" + "".join(f"{s:>9}" for s in STATES)]
    total: Counter[str] = Counter()
    for kernel, found in sorted(counts.items()):
        total += found
        lines.append(f"{kernel:<34}{found.total():>7}" + "".join(f"{found[s]:>9}" for s in STATES))
    lines.append(f"{'total':<34}{total.total():>7}" + "".join(f"{total[s]:>9}" for s in STATES))
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Run the program; return its exit status."""
    parser = argparse.ArgumentParser(description="Compare golden vectors bit by bit.")
    parser.add_argument("system", choices=systems())
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default=None, help="as clnn.compile_model takes it")
    parser.add_argument("--only", default="*", help="pattern of KERNEL or KERNEL/CASE")
    parser.add_argument("--verbose", action="store_true", help="print exact cases too")
    given = parser.parse_args(arguments)
    if not given.folder.is_dir():
        print(f"{given.folder} is not a folder.", file=sys.stderr)
        return EXIT_USAGE
    system = importlib.import_module(f"vectors.{given.system}")
    wanted = (
        case
        for case in system.cases(given.folder)
        if fnmatch(case.kernel, given.only) or fnmatch(f"{case.kernel}/{case.name}", given.only)
    )
    try:
        counts = run_all(system, wanted, given.device, given.verbose)
    except NoDeviceError as error:
        print(error, file=sys.stderr)
        return EXIT_NO_DEVICE
    if not counts:
        print("no case was found: nothing was checked.", file=sys.stderr)
        return EXIT_USAGE
    print(table(counts))
    return EXIT_FAILED if any(c["failed"] for c in counts.values()) else EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
