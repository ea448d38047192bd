"""Every template under Oclgrind: memory, races, barriers, uninitialised values, and numbers."""

from __future__ import annotations

import shutil

import gate
import pytest
from mutants import MUTANTS

pytestmark = [
    pytest.mark.oclgrind,
    pytest.mark.skipif(bool(gate.missing()), reason=gate.missing() or "it is here"),
]
RACE = """
Write-write data race at global memory address 0x1000000000000
\tKernel: copy
\t
\tFirst entity:  Global(1,0,0) Local(1,0,0) Group(0,0,0)
"""
QUERY = """
Oclgrind - OpenCL runtime error detected
\tFunction: clGetDeviceInfo
\tError:    CL_INVALID_VALUE
\tFor argument 'param_name'

"""


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", gate.MODES)
def test_every_template_is_clean(mode, tmp_path):
    """The short form goes through each line of each template, all shapes are for the long one."""
    result = gate.run(mode, tmp_path)
    assert not gate.complaints(result) + gate.incomplete(result)


@pytest.mark.exhaustive
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("mode", gate.MODES)
def test_every_template_is_clean_in_all_shapes(mode, tmp_path):
    result = gate.run(mode, tmp_path, long=True)
    assert not gate.complaints(result) + gate.incomplete(result)


@pytest.mark.parametrize("mode", gate.MODES)
def test_planted_faults_are_found(mode, tmp_path):
    planted = [m for m in MUTANTS if m.mode == mode]
    jobs = [
        {"case": m.case, "target": m.target, "kernels": str(m.plant(tmp_path / m.name))}
        for m in planted
    ]
    result = gate.run(mode, tmp_path, jobs)
    rows = result.report["rows"]
    assert len(rows) == len(planted), gate.complaints(result)
    missed = []
    for mutant, row in zip(planted, rows, strict=True):
        said = [*gate.of_row(result, row), row["error"]]
        if not any(words in text for words in mutant.finds for text in said):
            missed.append(f"{mutant.name}: {said[:1]}, {row['error'][-300:]}")
    assert not missed


def test_a_template_without_a_case_is_named(tmp_path):
    kernels = shutil.copytree(gate.KERNELS, tmp_path / "kernels_cl")
    (kernels / "forgotten.cl.mako").write_text("__kernel void ${name}() {}\n")
    names = [p.relative_to(gate.KERNELS).as_posix() for p in gate.KERNELS.rglob("*.cl.mako")]
    result = gate.Result(
        "optimised", 0, "", "", {"rendered": names, "unused": {"movement/pad.cl.mako": ["3: x"]}}
    )
    found = gate.incomplete(result, kernels)
    assert [text.split(":")[0] for text in found] == ["forgotten.cl.mako", "movement/pad.cl.mako"]


@pytest.mark.parametrize("jobs", [[{"case": "no_such_case", "target": "cpu"}]])
def test_a_run_that_ends_early_is_not_clean(jobs, tmp_path):
    result = gate.run("optimised", tmp_path, jobs)
    assert result.status != 0 and "no_such_case" in "".join(gate.complaints(result))


def test_only_queries_of_unknown_properties_are_filtered():
    assert gate.findings(QUERY * 3) == []
    assert len(gate.findings(QUERY + RACE + QUERY + RACE)) == 2
    other = QUERY.replace("clGetDeviceInfo", "clSetKernelArg")
    assert len(gate.findings(QUERY + other)) == 1
