"""Faults planted in copies of the templates, to show that the gate sees each kind."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from gate import KERNELS

UNINITIALISED = ("Uninitialized value", "Controlflow depends on uninitialized value")
DST = "{index(dst, 'n', 'oc', 'y', 'x')}"


@dataclass(frozen=True)
class Mutant:
    """`old` replaced by `new` in a template; `case` on `target` in `mode` must show one of `finds`."""

    name: str
    template: str
    old: str
    new: str
    case: str
    target: str
    mode: str
    finds: tuple[str, ...]

    def plant(self, folder: Path) -> Path:
        """Copy all templates to `folder`, this one changed. Raises AssertionError if it cannot."""
        shutil.copytree(KERNELS, folder)
        path = folder / self.template
        text = path.read_text("utf-8")
        assert text.count(self.old) == 1, (
            f"mutant {self.name}: {self.template} has {text.count(self.old)} times the text that is"
            f" to be replaced; it must have it once. Adapt tests/oclgrind/mutants.py: {self.old!r}"
        )
        path.write_text(text.replace(self.old, self.new), "utf-8")
        return folder


BARRIER = "    barrier(CLK_LOCAL_MEM_FENCE);\n"
SHARED = '    shared_[${at("member")}] = ${name};\n'

MUTANTS = (
    Mutant(
        "write_past_the_end",
        "movement/border_fill.cl.mako",
        "i < ${front + real + back}; ++i",
        "i <= ${front + real + back}; ++i",
        "conv_border",
        "cpu",
        "optimised",
        ("Invalid write",),
    ),
    Mutant(
        "read_before_the_buffer",
        "_common/pixels.cl.mako",
        "image + (top * ${strides[0]} - ${pads[0]})",
        "image + (top * ${strides[0]} - ${pads[0] + 1})",
        "conv_border",
        "cpu",
        "optimised",
        ("Invalid read",),
    ),
    Mutant(
        "no_bounds_check",
        "conv/reference.cl.mako",
        "    if (k >= ${n_ * oc_ * oh * ow}) return;\n",
        "",
        "conv_any_order",
        "gpu",
        "optimised",
        ("Invalid write",),
    ),
    Mutant(
        "two_items_write_one_element",
        "movement/copy_flat.cl.mako",
        "to = d;",
        "to = d / 2;",
        "reshape_flat",
        "cpu",
        "optimised",
        ("Write-write data race",),
    ),
    Mutant(
        "two_items_write_the_same_value",
        "_common/product_finish.cl.mako",
        "        if (m0 + r < first) continue;",
        "",
        "gemm_uneven",
        "cpu",
        "unoptimised",
        ("Write-write data race",),
    ),
    Mutant(
        "no_barrier_in_a_tree",
        "_common/row_folds.cl.mako",
        f"{SHARED}{BARRIER}",
        SHARED,
        "reduce_along",
        "gpu",
        "unoptimised",
        ("Read-write data race",),
    ),
    Mutant(
        "no_barrier_before_sums",
        "gemm/tiled.cl.mako",
        BARRIER,
        "",
        "gemm_parts",
        "gpu",
        "unoptimised",
        ("Read-write data race",),
    ),
    Mutant(
        "barrier_in_a_branch",
        "gemm/tiled.cl.mako",
        BARRIER,
        "    if (live)\n" + BARRIER,
        "gemm_parts",
        "gpu",
        "optimised",
        ("Work-group divergence",),
    ),
    Mutant(
        "read_of_rows_beyond_the_last",
        "gemm/workgroup.cl.mako",
        'return f"min({name}_o{i}, {ends.extent - 1})" if',
        'return f"{name}_o{i}" if',
        "group_direct_small",
        "gpu",
        "optimised",
        ("Invalid read",),
    ),
    Mutant(
        "tiles_reach_beyond_the_border",
        "conv/winograd_input.cl.mako",
        'return f"min({first}, {reach[axis]})" if is_traced(last)',
        "return first if is_traced(last)",
        "group_winograd_four",
        "gpu",
        "optimised",
        ("Invalid read",),
    ),
    Mutant(
        "no_barrier_between_fused_slices",
        "conv/winograd_fused.cl.mako",
        "        ${wk.multiply(t, fetches, 0)}\n        barrier(CLK_LOCAL_MEM_FENCE);\n",
        "        ${wk.multiply(t, fetches, 0)}\n",
        "group_winograd_fused",
        "gpu",
        "unoptimised",
        ("Read-write data race",),
    ),
    Mutant(
        "tiles_store_beyond_the_image",
        "conv/winograd_output.cl.mako",
        "% if inside(y, x):\n    if (${inside(y, x)})\n% endif\n",
        "",
        "group_winograd",
        "gpu",
        "optimised",
        ("Invalid write", "Write-write data race", "border was changed"),
    ),
    Mutant(
        "two_groups_store_one_row",
        "_common/workgroup.cl.mako",
        'return f"{at} >= {first}" if self.shift else f"{at} < {self.extent}"',
        'return "1" if self.shift else f"{at} < {self.extent}"',
        "group_packed",
        "gpu",
        "unoptimised",
        ("Write-write data race",),
    ),
    Mutant(
        "uninitialised_accumulator",
        "conv/reference.cl.mako",
        "v = ${ar.start(arith, 1, rows, row)};",
        "v;",
        "conv_any_order",
        "cpu",
        "unoptimised",
        UNINITIALISED,
    ),
    Mutant(
        "border_without_values",
        "movement/border_fill.cl.mako",
        "const int count = inside ? ${front + back}",
        "const int count = inside ? 0",
        "conv_border",
        "gpu",
        "unoptimised",
        UNINITIALISED,
    ),
    Mutant(
        "write_to_the_border",
        "conv/reference.cl.mako",
        f'    ${{store(1, value, "dst_base", f"dst_offset + {DST}", yt)}}\n',
        f'    ${{store(1, value, "dst_base", f"dst_offset + {DST}", yt)}}\n'
        f"    if (x == 0) dst_base[dst_offset + ${DST} - ${{dst.pitches[3]}}] = ${{value}};\n",
        "conv_border",
        "cpu",
        "optimised",
        ("border was changed",),
    ),
    Mutant(
        "wrong_value",
        "_common/epilogue.cl.mako",
        '"{v} = {v} < {T}(0) ? {p0} * {v} : {v};"',
        '"{v} = {v} < {T}(0) ? {v} : {v};"',
        "steps_activations",
        "cpu",
        "optimised",
        ("relative to the largest value",),
    ),
    Mutant(
        "no_barrier_between_slices",
        "_common/workgroup.cl.mako",
        "        barrier(CLK_LOCAL_MEM_FENCE);\n    }\n% else:",
        "    }\n% else:",
        "group_packed",
        "gpu",
        "unoptimised",
        ("Read-write data race",),
    ),
)
