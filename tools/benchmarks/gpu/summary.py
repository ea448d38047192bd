"""What each stage of a report found, in a line or two: the beginning of the page."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

from engines.report import means
from engines.rounds import Result, Row

Data = Mapping[str, Any]
LAUNCHES = {
    "enqueue_us": "to enqueue",
    "queued_us": "in a full queue",
    "alone_us": "waited for",
}


def summary(found: Data) -> list[str]:
    """Return the lines; found: step -> what it left. What a step did not leave is left out."""
    parts: dict[str, Callable[[Data], list[str]]] = {
        "facts": of_facts,
        "families": of_families,
        "sweep": of_sweep,
        "networks": of_networks,
        "tests": of_tests,
        "engines": of_networks,
    }
    lines = [
        f"- {text}" for name, part in parts.items() if name in found for text in part(found[name])
    ]
    return ["## Summary", "", *lines, ""] if lines else []


def of_facts(data: Data) -> list[str]:
    """The probe's capabilities, and what a launch costs."""
    lines = []
    capabilities, launches = data.get("capabilities", {}), data.get("launches", {})
    if capabilities and "error" not in capabilities:
        have = sum(value == "yes" for value in capabilities.values())
        lines.append(f"the probe passed; {have} of {len(capabilities)} capabilities")
    times = [f"{launches[k]:.1f} us {how}" for k, how in LAUNCHES.items() if k in launches]
    return lines + ([f"a launch takes {', '.join(times)}"] if times else [])


def of_families(data: Data) -> list[str]:
    """How many families are right, and which are not."""
    lines = []
    for dtype in dict.fromkeys(row["dtype"] for row in data["rows"]):
        rows = [row for row in data["rows"] if row["dtype"] == dtype]
        wrong = [row["family"] for row in rows if not row["passed"]]
        text = f"{len(rows) - len(wrong)} of {len(rows)} families are right in {dtype}"
        lines.append(text + (f"; not {', '.join(wrong)}" if wrong else ""))
    return lines


def of_sweep(data: Data) -> list[str]:
    """What the device reaches at most, and the shares of it that layers reach."""
    most = data["ceilings"]
    rates = [f"{kind} {rate / 1e12:.3g} TFLOP/s" for kind, rate in most["rates"].items()]
    bandwidth = f"copies {most['bandwidth'] / 1e9:.3g} GB/s" if most["bandwidth"] else ""
    measured = [text for text in (bandwidth, *rates) if text]
    lines = [f"at most: {', '.join(measured)}"] if measured else []
    for kind in ("gemm", "conv", "depthwise"):
        for dtype in dict.fromkeys(row["dtype"] for row in data["rows"]):
            shares = [
                row["of_bound"]
                for row in data["rows"]
                if (row["kind"], row["dtype"]) == (kind, dtype) and row["of_bound"] is not None
            ]
            if shares:
                lines.append(
                    f"{kind}, {dtype}: {100 * statistics.median(shares):.0f} % of the bound (median"
                    f" of {len(shares)}; {100 * min(shares):.0f} to {100 * max(shares):.0f} %)"
                )
    faults = sum(bool(row["fault"]) for row in data["rows"])
    return lines + ([f"{faults} layers failed"] if faults else [])


def of_networks(data: Data) -> list[str]:
    """The ratios to the best other engine of each batch."""
    lines = []
    for batch in dict.fromkeys(r["batch"] for r in data["results"]):
        results = [
            Result(
                r["model"], r["shapes"], [Row(**row) for row in r["rows"]], batch, r["reference"]
            )
            for r in data["results"]
            if r["batch"] == batch
        ]
        lines += [f"batch {batch}, {text}" for text in means(results)]
    return lines


def of_tests(data: Data) -> list[str]:
    """Counts of the tests."""
    counts = [f"{data[name]} {name}" for name in ("passed", "failed", "errors", "skipped")]
    return [f"tests: {', '.join(counts)}"]
