"""A report as a Markdown page, from what its steps left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from about import About
from engines.report import engines_of, left_out, markdown_tables, means
from engines.rounds import Result, Row
from sweeps.measure import Ceilings
from sweeps.measure import Row as Layer
from sweeps.report import ceiling_lines, markdown_table

from gpu.plan import stage_of
from gpu.summary import summary

Data = Mapping[str, Any]
MOST_FAILURES = 40


def page(about: About, report: Data) -> str:
    """Return the page. report: as gpu_report.py writes it; what a step did not leave is left out."""
    found = report["data"]
    lines = [
        "---",
        "orphan: true",
        "---",
        "",
        f"# {about.device or 'GPU report'}",
        "",
        *about.lines(),
        "",
        *_notes(report["notes"]),
        *summary(found),
        *_steps(report["steps"]),
    ]
    sections = {
        "families": families_section,
        "networks": networks_section,
        "engines": engines_section,
        "compiled": compiled_section,
        "sweep": sweep_section,
        "tests": tests_section,
        "facts": facts_section,
        "details": details_section,
    }
    for name, section in sections.items():
        if name in found:
            lines += ["", *section(found[name])]
    for name in sorted(n for n in found if n.startswith("tune_")):
        lines += ["", *tune_section(name.removeprefix("tune_"), found[name])]
    for step in report["steps"]:
        if step["name"] == "doctor" and report.get("doctor"):
            lines += ["", "## Doctor", "", "```text", *report["doctor"], "```"]
    lines += _pictures(report["pictures"])
    return "\n".join(lines).rstrip() + "\n"


def _notes(notes: Sequence[str]) -> list[str]:
    return [*(f"- {note}" for note in notes), ""] if notes else []


def _steps(steps: Sequence[Data]) -> list[str]:
    lines = [
        "## Steps",
        "",
        "| stage | step | result | seconds | of at most |",
        "| ---: | --- | --- | ---: | ---: |",
    ]
    for s in steps:
        what = s["status"] + (f": {s['note']}" if s["note"] else "")
        what += f" (status {s['code']})" if s["code"] and s["status"] == "failed" else ""
        times = f"{s['seconds']:.0f} | {s['budget']:.0f}"
        lines.append(f"| {stage_of(s['name'])} | {s['title']} | {what} | {times} |")
    for s in steps:
        if s["status"] in ("failed", "out of time") and s["tail"]:
            lines += ["", f"{s['title']} ended with:", "", "```text", *s["tail"], "```"]
    lines += ["", "Commands:", "", "```sh", *(c for s in steps for c in s["commands"]), "```"]
    return lines


def tests_section(data: Data) -> list[str]:
    """Return the result of the tests, and what failed."""
    ran = sum(data[name] for name in ("passed", "failed", "skipped", "errors"))
    line = ", ".join(f"{data[name]} {name}" for name in ("passed", "failed", "errors", "skipped"))
    ended = f"; {data['ended']}" if data["ended"] else ""
    lines = ["## Tests", "", f"{line}, of {data['collected']} collected ({ran} ran{ended})."]
    failures = data["failures"]
    lines += [""] * bool(failures)
    lines += [f"- `{name}`: {text}" for name, text in failures[:MOST_FAILURES]]
    if len(failures) > MOST_FAILURES:
        lines.append(f"- and {len(failures) - MOST_FAILURES} more")
    return lines


def families_section(data: Data) -> list[str]:
    """Return which families of ops are right."""
    lines = [
        "## Families of ops",
        "",
        "A small network of each, compared with numpy in double precision; seconds to compile and to run"
        " it once.",
        "",
        "| family | numbers | result | error | allowed | seconds | kernels |",
        "| --- | --- | --- | ---: | ---: | ---: | --- |",
    ]
    for r in data["rows"]:
        cells = [r["family"], r["dtype"], "right" if r["passed"] else r["fault"]]
        cells += [f"{r['error']:.1e}", f"{r['allowed']:.0e}", f"{r['seconds']:.2f}"]
        lines.append(f"| {' | '.join([*cells, ', '.join(dict.fromkeys(r['variants']))])} |")
    if data["current"]:
        lines += ["", f"{', '.join(data['current'])}: the process ended in this network"]
    if data["cut"]:
        lines += ["", f"No time was left for {', '.join(data['cut'])}."]
    return lines


def sweep_section(data: Data) -> list[str]:
    """Return ceilings and layers."""
    rows = [Layer(**row) for row in data["rows"]]
    lines = [
        "## What the device reaches at most",
        "",
        *ceiling_lines(Ceilings(**data["ceilings"])),
        "",
        "## Layers",
        "",
        "Each a network of its own. `of`: the ceiling of operations that the kernel is held to;"
        " operations of Winograd's kernels are counted as those of plain sums. `of bound`: the"
        " larger share of both ceilings.",
        "",
        *markdown_table(rows),
    ]
    lines += [f"- {dtype} left out: {why}" for dtype, why in data["lacks"].items()]
    if data["current"]:
        lines.append(f"- {', '.join(data['current'])}: the process ended in this layer")
    if data["cut"]:
        lines.append(f"- no time was left for {len(data['cut'])} more: {data['cut'][0]} and on")
    return lines


def engines_section(data: Data) -> list[str]:
    """Return the comparison with other engines."""
    results = [_result(r) for r in data["results"]]
    lines = ["## Engines", ""]
    if results:
        lines += [*markdown_tables(results), "", *(f"- {text}" for text in means(results))]
        lines += left_out(results, engines_of(results))
        wrong = [(r, x) for r in results for x in r.measured if not x.right]
        lines += [
            f"- {x.engine}, {r.model} b{r.batch}: wrong values, error {x.error:.1e}"
            for r, x in wrong
        ]
    if data["cut"]:
        lines.append(f"- no time was left for: {', '.join(data['cut'])}")
    return lines


def networks_section(data: Data) -> list[str]:
    """Return the comparison of two networks with other engines."""
    return ["## Two networks", *engines_section(data)[1:]]


def compiled_section(data: Data) -> list[str]:
    """Return the comparison with what torch.compile makes."""
    return ["## Beside torch.compile", *engines_section(data)[1:]]


def _result(data: Data) -> Result:
    rows = [Row(**row) for row in data["rows"]]
    return Result(data["model"], data["shapes"], rows, data["batch"], data["reference"])


def facts_section(data: Data) -> list[str]:
    """Return the facts of the device as a list."""
    lines = ["## Facts", ""]
    for name, facts in data.items():
        lines.append(f"- {name}")
        lines += [f"  - {key}: {_plain(value)}" for key, value in facts.items()]
    return lines


def details_section(data: Data) -> list[str]:
    """Return what takes longer to find out."""
    return ["## More facts", *facts_section(data)[1:]]


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return " ".join(str(value).split()) or "-"


def tune_section(name: str, data: Data) -> list[str]:
    """Return what tuning a network found: the scalars of the tuner's report."""
    plain = {k: v for k, v in data.items() if isinstance(v, (int, float, str)) and k != "model"}
    return [f"## Tuner, {name}", "", *(f"- {key}: {_plain(v)}" for key, v in plain.items())]


def _pictures(names: Sequence[str]) -> list[str]:
    lines = ["", "## Pictures", ""] if names else []
    return lines + [
        f"![{name}]({name})" if name.endswith(".png") else f"- {name}" for name in names
    ]
