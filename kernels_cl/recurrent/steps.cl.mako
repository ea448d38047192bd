<%doc>
recurrent/steps: all steps of a recurrent layer in one launch, for CPUs.

A chain is one direction of some sequences. With one share, a work-item walks a chain by itself. With
several, the slices of the hidden units are divided into shares, and work-items of the chain claim them
step by step: a ticket for each share says which turn (step and phase) it is due for, a counter how many
shares are done. A work-item waits only for shares that a running one has claimed, and takes over what
nobody claims, so that one alone gets through. Slices are walked to and fro, so that those met last in
one step, which the caches still hold, come first in the next.

    step  h_old [sequence][row] x panel of a slice  ->  sums of gates  ->  h_new [sequence][slice]

Tensors  products: pitches (step, sequence, element), elements [direction][gate][hidden], pitch 1
         panels: recurrent weights as recurrent/pack makes them
         q (scales): scratch, [direction][share][sequence][row + LINE], rounded states, each with its worth
         h, c: scratch, [step parity][direction][sequence][row]; rh, z (gru): [direction][sequence][row]
         extras: late_bias (direction, hidden), lengths (sequence), peepholes (direction, gate * hidden),
                 mask (step, sequence), scales (direction, gate * hidden): states are rounded to bytes, weights are integers.
                With a dot, panels hold four elements in an int and, last in a pass, the weights' sums
         outputs: every, last_state, last_cell: pitches (step, direction, sequence, element)
Index    sequence b at step t reads products[backward ? length[b] - 1 - t : t, b], and writes every there;
         behind its length every is 0 and the state stays; of length 0, last_state and last_cell are 0.
         Where its mask is 0, every is the state, which stays
Launch   global (directions * parts * shares * helpers)
Params   name | wg | kind, functions, backward, input_forget: as clnn/ops/recurrent has them
         hidden | row: elements of a state in scratch | steps | batch
         products  (type, pitches); weights_type: of panels
         first     name -> (type, pitches) of first states; none with several shares, where recurrent/start
                   has put them into h and c before
         extras    name -> (type, pitches); outputs  name -> (type, pitches)
         passes    for each phase: tuples of gates that are summed together; gates: of the cell
         slices    of nv * vw hidden units
         ahead     elements by which panels of floats are read ahead into the cache, the first of a next phase
                   before it is waited for; 0: none
         fetches   whether a turn begins with reading ahead what others made of its states
         dot       how bytes of states and of weights are multiplied (_common/dot.cl.mako), "" as floats
Tunables vw {1,2,4,8,16}   lanes: neighbouring hidden units
         nv {1,2,4}        vectors of a slice
         tiles             sequences taken together, widest first: the first that is not more than are left
         parts, shares     chains of a direction, and shares of a chain
         helpers           work-items for each share
         patience          looks at what others did before what is not claimed is taken over; halved each time
</%doc>
<%namespace name="gt" file="/_common/cells.cl.mako"/>
<%namespace name="pf" file="/_common/prefetch.cl.mako"/>
<%namespace name="ss" file="/_common/state_sums.cl.mako"/>
<%
    xt, (x_t, x_b, _) = products
    wt, V, unit = weights_type, vec_type("float", vw), nv * vw
    turns, phases, has_cell, ends = len(backward), len(passes), kind == "lstm", "lengths" in extras
    masked = ends or "mask" in extras
    summed = [[g for group in phase for g in group] for phase in passes]
    terms = -(-hidden // 4) if dot else hidden
    deep = terms + bool(dot)
    panels_of = [deep * unit * len(gates_) for gates_ in summed]
    starts_of = [slices * sum(panels_of[:phase]) for phase in range(phases)]
    plane = turns * batch * row
    LINE = 16
    same = all(f == functions[0] for f in functions)
    peeps, late, rounds = "peepholes" in extras, "late_bias" in extras, "scales" in extras
    assert row % vw == 0 and row >= slices * unit and tiles[-1] >= 1, (row, slices, unit, tiles)
    whole = hidden % unit == 0
    cuts = {stored_as(t) or "float": t for t in (xt, *(extras[n][0] for n in ("peepholes", "late_bias", "scales") if n in extras))}
    def lanes(ctype, pointer, where):
        """A vector of neighbouring units, of which those behind the last one are 0."""
        if whole:
            return load(ctype, vw, pointer, where)
        return f"first_{stored_as(ctype) or 'float'}({pointer} + ({where}), {hidden} - j)"
    def put(ctype, value, pointer, where):
        if whole:
            return store(vw, value, pointer, where, ctype)
        each = store(1, "l_[k_]", pointer, f"{where} + k_", ctype)
        return f"{{ float l_[{vw}]; vstore{vw}({value}, 0, l_); for (int k_ = 0; k_ < min({vw}, {hidden} - j); ++k_) {{ {each} }} }}"
    floats = ["q"] * rounds + ["c"] * has_cell + ["rh", "z"] * (phases > 1) + ["h"]
    scratch = [("int", "tickets")] * (shares > 1) + [("float", name_) for name_ in floats]
    def spread(name):
        return f"{name}_base + {name}_offset"
%>
<%def name="products_of(phase, mr)">\
<% at = 0 %>\
%  for group in passes[phase]:
                {
%   for r in range(mr):
                __global const float *from${r} = ${f"q_kept + (b + {r}) * {row + LINE}" if rounds else f"{'rh_kept' if phase else 'h_from'} + (at_d + b + {r}) * {row}"};
%   endfor
                __global const ${cell(wt)} *w = panel + ${at};
${ss.byte_sums(dot, group, nv, vw, mr, terms, row) if dot else ss.float_sums(wt, group, nv, vw, mr, terms, ahead, len(summed[phase]))}
%   for r in range(mr):
%    for g in group:
%     for v in range(nv):
                sums[${((r * nv) + v) * len(summed[phase]) + summed[phase].index(g)}] = s${g}_${v}_${r};
%     endfor
%    endfor
%   endfor
                }
<% at += deep * len(group) * unit %>\
%  endfor
</%def>
<%def name="finished(phase)">\
<% own, outs = summed[phase], len(summed[phase]) %>\
                for (int r = 0; r < rows; ++r) {
                const int line = (at_d + b + r) * ${row};
%  if rounds:
                const float worth = q_kept[(b + r) * ${row + LINE} + ${row}];
%  endif
${gt.whereabouts(extras, backward, steps, "b + r")}
                __global const ${cell(xt)} *x = products + place * ${x_t} + (b + r) * ${x_b} + d * ${gates * hidden};
                for (int v = 0; v < ${nv}; ++v) {
                const int j = slice * ${unit} + v * ${vw};
%  if not whole:
                if (j >= ${hidden}) continue;
%  endif
%  for k, g in enumerate(own):
                const ${V} x${g} = ${lanes(xt, "x", f"{g * hidden} + j")};
                ${V} s${g} = sums[(r * ${nv} + v) * ${outs} + ${k}];
%   if rounds:
<% pt, (pd, _) = extras["scales"] %>\
                s${g} *= worth * ${lanes(pt, "scales", f"d * {pd} + {g * hidden} + j")};
%   endif
%  endfor
                const ${V} h_old = ${load("float", vw, "h_from", "line + j")};
                ${f"const {V} c_old = {load('float', vw, 'c_from', 'line + j')};" if has_cell else ""}
%  if peeps:
<% pt, (pd, _) = extras["peepholes"] %>\
%   for g in range(3):
                const ${V} p${g} = ${lanes(pt, "peepholes", f"d * {pd} + {g * hidden} + j")};
%   endfor
%  endif
%  if late:
<% pt, (pd, _) = extras["late_bias"] %>\
                const ${V} lb = ${lanes(pt, "late_bias", f"d * {pd} + j")};
%  endif
%  if phase:
                const ${V} z = ${load("float", vw, "z_kept", "line + j")};
%  endif
%  for k, of_direction in enumerate(functions[:1] if same else functions):
                ${"" if same else f"if (d == {k}) "}{
${gt.finish(kind, of_direction, vw, phase, input_forget, peeps, late)}
%   if phase + 1 < phases:
                ${store(vw, "rh", "rh_kept", "line + j", "float")}
                ${store(vw, "z", "z_kept", "line + j", "float")}
%   else:
${stored("h", "c")}
%   endif
                }
%  endfor
                }
                }
</%def>
<%def name="stored(h, c)">\
<% h_new, c_new, y = ("h_new", "c_new", "y") if masked else ("h", "c", "h") %>\
%  if masked:
                const ${V} h_new = live ? h : h_old, y = ${f"live ? h : ({V})(0.0f)" if ends else "h_new"};
                ${f"const {V} c_new = live ? c : c_old;" if has_cell else ""}
%  endif
                ${store(vw, h_new, "h_to", "line + j", "float")}
%  if has_cell:
                ${store(vw, c_new, "c_to", "line + j", "float")}
%  endif
%  if "every" in outputs:
<% yt, (pt, pd, pb, _) = outputs["every"] %>\
                ${put(yt, y, "every", f"place * {pt} + d * {pd} + (b + r) * {pb} + j")}
%  endif
%  if "last_state" in outputs or "last_cell" in outputs:
                if (t == ${steps} - 1) {
%   for out, value in (("last_state", h_new), ("last_cell", c_new)):
%    if out in outputs:
<% yt, (_, pd, pb, _) = outputs[out] %>\
                    const ${V} ${out}_ = ${f"length ? {value} : ({V})(0.0f)" if ends else value};
                    ${put(yt, f"{out}_", out, f"d * {pd} + (b + r) * {pb} + j")}
%    endif
%   endfor
                }
%  endif
</%def>
<%def name="slices_of(phase, first, end, share=0)">\
%  if rounds:
                __global float *q_kept = q_base + q_offset + (d * ${shares} + ${share}) * ${batch * (row + LINE)};
                for (int b = b_first; b < b_end; ++b) {
${gt.rounded_state(f"h_from + (at_d + b) * {row}", f"q_kept + b * {row + LINE}", hidden, row, vw, bool(dot))}
                }
%  endif
                for (int n = ${first}; n < ${end}; ++n) {
                const int slice = t & 1 ? ${end} - 1 - (n - ${first}) : n;
                __global const ${cell(wt)} *panel = panels + d * ${slices * sum(panels_of)} + ${starts_of[phase]} + slice * ${panels_of[phase]};
                ${V} sums[${tiles[0] * nv * len(summed[phase])}];
                for (int b = b_first, rows; b < b_end; b += rows) {
%  for k, mr in enumerate(tiles):
                ${"else " if k else ""}${f"if (b + {mr} <= b_end) " if k + 1 < len(tiles) else ""}{
                rows = ${mr};
${products_of(phase, mr)}
                }
%  endfor
${finished(phase)}
                }
                }
</%def>
% if not whole:
${gt.first_lanes(cuts, vw)}
% endif
${group_size(wg)}
__kernel void ${name}(
    __global const ${cell(xt)} *products_base, const int products_offset,
    __global const ${cell(wt)} *panels${"_base, const int panels_offset" if panels_move else ""},
% for which, (ctype, _) in {**first, **extras}.items():
    __global const ${cell(ctype)} *${which}_base, const int ${which}_offset,
% endfor
% for which, (ctype, _) in outputs.items():
    __global ${cell(ctype)} *${which}_base, const int ${which}_offset,
% endfor
    ${", ".join(f"__global {ctype} *{which}_base, const int {which}_offset" for ctype, which in scratch)})
{
    const int member = get_global_id(0);
    const int chain = member / ${shares * helpers}, d = chain / ${parts};
    const int b_first = chain % ${parts} * ${batch} / ${parts}, b_end = (chain % ${parts} + 1) * ${batch} / ${parts};
    const int at_d = d * ${batch};
% if shares == 1:
    for (int b = b_first; b < b_end; ++b) {
        __global float *to = h_base + h_offset + (at_d + b) * ${row};
%  if has_cell:
        __global float *cell_to = c_base + c_offset + (at_d + b) * ${row};
%  endif
        for (int k = 0; k < ${row}; ++k) {
%  for which, to in (("state", "to"), ("cell", "cell_to")):
%   if which in first:
<% ctype, (pd, pb, pe) = first[which] %>\
            ${to}[k] = ${f"k < {hidden} ? " if row > hidden else ""}${element(ctype, f"{which}_base", f"{which}_offset + d * {pd} + b * {pb} + k * {pe}")}${" : 0.0f" if row > hidden else ""};
%   elif which == "state" or has_cell:
            ${to}[k] = 0.0f;
%   endif
%  endfor
        }
    }
% endif
    __global const ${cell(xt)} *products = ${spread("products")};
% if panels_move:
    __global const ${cell(wt)} *panels = ${spread("panels")};
% endif
% for which, (ctype, _) in extras.items():
    __global const ${cell(ctype)} *${which} = ${spread(which)};
% endfor
% for which, (ctype, _) in outputs.items():
    __global ${cell(ctype)} *${which} = ${spread(which)};
% endfor
% if phases > 1:
    __global float *rh_kept = ${spread("rh")}, *z_kept = ${spread("z")};
% endif
% if shares > 1:
    volatile __global int *tickets = ${spread("tickets")} + chain * ${2 * shares * LINE};
    volatile __global int *done = tickets + ${shares * LINE};
    const int own = member / ${helpers} % ${shares};
    int turn = ${steps * phases}, patience = ${patience};
    for (int k = 0; k < ${shares}; ++k) turn = min(turn, atomic_add(done + k * ${LINE}, 0));
    for (; turn < ${steps * phases}; ++turn) {
    const int t = ${"turn" if phases == 1 else f"turn / {phases}"};
% else:
    for (int t = 0; t < ${steps}; ++t) {
% endif
    __global const float *h_from = ${spread("h")} + (t & 1) * ${plane};
    __global float *h_to = ${spread("h")} + (~t & 1) * ${plane};
% if has_cell:
    __global const float *c_from = ${spread("c")} + (t & 1) * ${plane};
    __global float *c_to = ${spread("c")} + (~t & 1) * ${plane};
% endif
% if shares > 1:
%  if fetches:
    for (int line = (at_d + b_first) * ${row}; line < (at_d + b_end) * ${row}; line += ${LINE})
        ${pf.fetch(f"{'(turn % 2 ? rh_kept : h_from)' if phases > 1 else 'h_from'} + line")}
%  endif
    for (int share = own, met = 0; met < ${shares}; share = (share + 1) % ${shares}) {
        if (atomic_cmpxchg(tickets + share * ${LINE}, turn, turn + 1) == turn) {
            const int first = share * ${slices} / ${shares}, end = (share + 1) * ${slices} / ${shares};
%  for phase in range(phases):
            ${f"if (turn % {phases} == {phase}) " if phases > 1 else ""}{
${slices_of(phase, "first", "end", "share")}
            }
%  endfor
            mem_fence(CLK_GLOBAL_MEM_FENCE);
            atomic_xchg(done + share * ${LINE}, turn + 1);
            patience = share == own ? patience : max(patience / 2, 4);
%  if ahead and phases > 1:
            const int place = (turn + 1) / 2 % 2 ? end - 1 : first;
            __global const ${cell(wt)} *next = panels + d * ${slices * sum(panels_of)}
                + (turn % 2 ? place * ${panels_of[0]} : ${starts_of[1]} + place * ${panels_of[1]});
            for (int n = 0; n < ${ahead}; n += ${64 // size_of(wt)}) ${pf.fetch("next + n")}
%  endif
        }
        for (int idle = 0; met < ${shares} && idle < patience; ++idle)
            while (met < ${shares} && atomic_add(done + (own + met) % ${shares} * ${LINE}, 0) > turn) ++met;
    }
    atomic_add(tickets + own * ${LINE}, 0);
    mem_fence(CLK_GLOBAL_MEM_FENCE);
% else:
%  for phase in range(phases):
${slices_of(phase, "0", str(slices))}
%  endfor
% endif
    }
}
