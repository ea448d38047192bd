<%doc>
recurrent/once: one phase of a recurrent layer of one step, for CPUs: no work-item waits for another.

    state [sequence][element] x panel of a slice  ->  sums of gates  ->  what is behind the step, or z and rh

Tensors  products: pitches (step, sequence, element), elements [direction][gate][hidden], pitch 1
         panels: recurrent weights as recurrent/pack makes them, a pass for each phase; not without a first state
         state, cell (if given): pitches (direction, sequence, element), the last 1
         extras: late_bias (direction, hidden), lengths (sequence), peepholes (direction, gate * hidden),
                 mask (step, sequence)
         outputs: every, last_state, last_cell: pitches (step, direction, sequence, element), the last 1
         rh_kept, z_kept (two phases): scratch, [direction][sequence][row]: written in the first, read in the second
Index    of a sequence of length 0 all outputs are 0; of one whose mask is 0 they are the first state
Launch   global (tiles of sequences, slices, directions)
Params   name | wg | kind, functions, input_forget: as clnn/ops/recurrent has them | hidden | batch
         products  (type, pitches); weights_type: of panels
         first     name -> (type, pitches) of first states; not given: zeros
         extras    name -> (type, pitches); outputs  name -> (type, pitches)
         phases    tuples of gates whose sums are made together; phase: which one this is
         row       elements of a state in scratch; slices: of vw hidden units
         panels_move  whether panels lie in scratch memory
         ahead     elements by which panels are read ahead into the cache; 0: none
Tunables vw {1,2,4,8,16}   lanes: neighbouring hidden units
         rows              sequences of a tile
         chains {1,2}      sums of each gate, of every other element
</%doc>
<%namespace name="gt" file="/_common/cells.cl.mako"/>
<%namespace name="pf" file="/_common/prefetch.cl.mako"/>
<%!
LINE = 64  # bytes of a cache line
%>\
<%
    xt, (_, x_b, _) = products
    wt, V = weights_type, vec_type("float", vw)
    own, gates, last, has_cell = phases[phase], sum(map(len, phases)), phase + 1 == len(phases), kind == "lstm"
    panel, before = hidden * vw * len(own), slices * hidden * vw * sum(map(len, phases[:phase]))
    ends, holds, peeps, late = (n in extras for n in ("lengths", "mask", "peepholes", "late_bias"))
    masked = ends or holds
    multiplied = "state" in first
    assert 0 < rows <= batch and hidden % chains == 0 and len(own) * rows * chains <= 32, (rows, hidden, chains)
    assert multiplied or len(phases) == 1, phases
    whole, tail = hidden % vw == 0, batch % rows
    read = {"products": (xt, None)} | {n: first[n] for n in first}
    read |= {n: extras[n] for n in ("peepholes", "late_bias") if n in extras and last}
    cuts = {stored_as(t) or "float": t for t, _ in read.values()}
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
    def at(name, b):
        """Where sequence b begins in a first state."""
        _, (pd, pb, _) = first[name]
        return f"d * {pd} + {b} * {pb}"
    scratch = ["rh_kept", "z_kept"] * (len(phases) > 1)
    kept_at = f"(d * {batch} + b + r) * {row} + j"
    results = outputs if last else {}
    given = {n: a for n, a in {**first, **extras}.items() if last or n == "state"}
%>
<%def name="sums_of(mr)">\
%  for r in range(mr):
%   if phase:
    __global const float *from${r} = rh_kept + (d * ${batch} + b + ${r}) * ${row};
%   elif multiplied:
    __global const ${cell(first["state"][0])} *from${r} = state + ${at("state", f"(b + {r})")};
%   endif
%   for g in own:
%    for c in range(chains):
    ${V} s${g}_${r}_${c} = (${V})(0.0f);
%    endfor
%   endfor
%  endfor
%  if multiplied:
    __global const ${cell(wt)} *w = panels + d * ${slices * hidden * vw * gates} + ${before} + slice * ${panel};
    for (int k = 0; k < ${hidden}; k += ${chains}, w += ${chains * len(own) * vw}) {
%   for c in range(chains):
%    for n, g in enumerate(own):
        const ${V} w${g}_${c} = ${load(wt, vw, "w", str((c * len(own) + n) * vw))};
%    endfor
%    for r in range(mr):
        const ${V} e${r}_${c} = (${V})(${element("float" if phase else first["state"][0], f"from{r}", f"k + {c}")});
%     for g in own:
        s${g}_${r}_${c} = fma(e${r}_${c}, w${g}_${c}, s${g}_${r}_${c});
%     endfor
%    endfor
%   endfor
%   for lane in range(0, chains * len(own) * vw, LINE // size_of(wt)) if ahead else ():
        ${pf.fetch(f"w + {ahead + lane}")}
%   endfor
    }
%  endif
%  for r in range(mr):
%   for n, g in enumerate(own):
    sums[${r * len(own) + n}] = ${" + ".join(f"s{g}_{r}_{c}" for c in range(chains))};
%   endfor
%  endfor
</%def>
% if not whole:
${gt.first_lanes(cuts, vw)}
% endif
${group_size(wg)}
__kernel void ${name}(
    __global const ${cell(xt)} *products_base, const int products_offset,
% if multiplied:
    __global const ${cell(wt)} *panels${"_base, const int panels_offset" if panels_move else ""},
% endif
% for which, (ctype, _) in given.items():
    __global const ${cell(ctype)} *${which}_base, const int ${which}_offset,
% endfor
    ${", ".join([f"__global {cell(t)} *{n}_base, const int {n}_offset" for n, (t, _) in results.items()] + [f"__global float *{n}_base, const int {n}_offset" for n in scratch])})
{
    const int slice = get_global_id(1), j = slice * ${vw}, b = get_global_id(0) * ${rows}, d = get_global_id(2);
% for which in ("products", *(["panels"] if panels_move and multiplied else [])):
    __global const ${cell(xt if which == "products" else wt)} *${which} = ${which}_base + ${which}_offset;
% endfor
% for which, (ctype, _) in given.items():
    __global const ${cell(ctype)} *${which} = ${which}_base + ${which}_offset;
% endfor
% for which, (ctype, _) in results.items():
    __global ${cell(ctype)} *${which} = ${which}_base + ${which}_offset;
% endfor
% for which in scratch:
    __global float *${which} = ${which}_base + ${which}_offset;
% endfor
    ${V} sums[${rows * len(own)}];
    const int count = ${f"min({rows}, {batch} - b)" if tail else rows};
% if tail:
    if (count == ${rows}) {
${sums_of(rows)}
    } else {
${sums_of(tail)}
    }
% else:
    {
${sums_of(rows)}
    }
% endif
    for (int r = 0; r < count; ++r) {
        __global const ${cell(xt)} *x = products + (b + r) * ${x_b} + d * ${gates * hidden};
% for n, g in enumerate(own):
        const ${V} x${g} = ${lanes(xt, "x", f"{g * hidden} + j")}, s${g} = sums[r * ${len(own)} + ${n}];
% endfor
        const ${V} h_old = ${lanes(first["state"][0], "state", f"{at('state', '(b + r)')} + j") if multiplied else f"({V})(0.0f)"};
% if has_cell:
        const ${V} c_old = ${lanes(first["cell"][0], "cell", f"{at('cell', '(b + r)')} + j") if "cell" in first else f"({V})(0.0f)"};
% endif
% if peeps:
<% pt, (pd, _) = extras["peepholes"] %>\
%  for g in range(3):
        const ${V} p${g} = ${lanes(pt, "peepholes", f"d * {pd} + {g * hidden} + j")};
%  endfor
% endif
% if late:
<% pt, (pd, _) = extras["late_bias"] %>\
        const ${V} lb = ${lanes(pt, "late_bias", f"d * {pd} + j")};
% endif
% if phase:
        const ${V} z = ${load("float", vw, "z_kept", kept_at)};
% endif
% for d_ in range(len(functions)):
        ${f"if (d == {d_}) " if len(functions) > 1 else ""}{
${gt.finish(kind, functions[d_], vw, phase, input_forget, peeps, late)}
%  if last:
%   if masked:
<% zero = f"({V})(0.0f)" %>\
        const int live = ${f"lengths[(b + r) * {extras['lengths'][1][0]}] > 0" if ends else f"mask[(b + r) * {extras['mask'][1][1]}] != 0"};
        h = live ? h : ${zero if ends else "h_old"};
%    if has_cell:
        const ${V} c_end = live ? c : ${zero if ends else "c_old"};
%    endif
%   endif
%   for out, (yt, (_, pd, pb, _)) in results.items():
        ${put(yt, ("c_end" if masked else "c") if out == "last_cell" else "h", out, f"d * {pd} + (b + r) * {pb} + j")}
%   endfor
%  else:
        ${store(vw, "rh", "rh_kept", kept_at, "float")}
        ${store(vw, "z", "z_kept", kept_at, "float")}
%  endif
        }
% endfor
    }
}
