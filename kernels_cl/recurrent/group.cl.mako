<%doc>
recurrent/group: all steps in one launch, for GPUs: a work-group walks some sequences in one direction.

    members  0 1 2 ...      a member has every members-th hidden unit; all read the states of the
    units    0 1 2 ...      group from local memory, and neighbours read neighbouring weights

Tensors  products: pitches (step, sequence, element); panels: recurrent weights as recurrent/pack makes them
         first states, extras and outputs: as in recurrent/reference
Index    as in recurrent/steps
Launch   global (members, groups of sequences, directions), local (members, 1, 1)
Params   name | wg | kind, functions, backward, input_forget, gates: as clnn/ops/recurrent has them
         hidden | steps | batch
         products (type, pitches) | weights_type: of panels | panels_move: they are scratch memory
         first, extras, outputs   name -> (type, pitches)
         phases    tuples of gates whose sums are known at once
         lanes     of a panel's slices
Tunables rows {1,2,4,8}   sequences of a group
</%doc>
<%namespace name="gt" file="/_common/cells.cl.mako"/>
<%
    (xt, (x_t, x_b, x_e)), wt, members = products, weights_type, wg[0]
    has_cell, ends, same = kind == "lstm", "lengths" in extras, all(f == functions[0] for f in functions)
    masked, behind = ends or "mask" in extras, "0.0f" if ends else "h_old"  # what a step that is not gives
    peeps, late, size = "peepholes" in extras, "late_bias" in extras, rows * hidden
    rounds = "scales" in extras
    panel, slices = gates * hidden * lanes, -(-hidden // lanes)
    given = {"products": xt, **{n: t for n, (t, _) in {**first, **extras}.items()}}
%>
<%def name="phase_of(phase)">\
<% own = phases[phase] ; at = slices * hidden * lanes * sum(len(p) for p in phases[:phase]) %>\
        for (int j = get_local_id(0); j < ${hidden}; j += ${members}) {
            __global const ${cell(wt)} *w = panels + d * ${slices * panel} + ${at} + j / ${lanes} * ${hidden * lanes * len(own)} + j % ${lanes};
            float sums[${rows * len(own)}];
            for (int n = 0; n < ${rows * len(own)}; ++n) sums[n] = 0.0f;
            for (int k = 0; k < ${hidden}; ++k) {
%  for place, g in enumerate(own):
                const float w${g} = ${element(wt, "w", f"k * {len(own) * lanes} + {place * lanes}")};
%  endfor
%  for r in range(rows):
                const float e${r} = ${"reset_h" if phase else "q_kept" if rounds else "h_from"}[${r * hidden} + k];
%   for place, g in enumerate(own):
                sums[${r * len(own) + place}] = fma(e${r}, w${g}, sums[${r * len(own) + place}]);
%   endfor
%  endfor
            }
            for (int r = 0; r < ${rows}; ++r) {
                const int b = b_first + r, line = r * ${hidden};
                if (b >= ${batch}) break;
${gt.whereabouts(extras, backward, steps, "b")}
                __global const ${cell(xt)} *x = products + place * ${x_t} + b * ${x_b};
%  for k, g in enumerate(own):
                const float x${g} = ${element(xt, "x", f"(d * {gates * hidden} + {g * hidden} + j) * {x_e}")};
                float s${g} = sums[r * ${len(own)} + ${k}];
%   if rounds:
<% pt, (pd, pe) = extras["scales"] %>\
                s${g} *= worths[r] * ${element(pt, "scales", f"d * {pd} + ({g * hidden} + j) * {pe}")};
%   endif
%  endfor
                const float h_old = h_from[line + j]${", c_old = c_kept[line + j]" if has_cell else ""};
%  if peeps:
<% pt, (pd, pe) = extras["peepholes"] %>\
%   for g in range(3):
                const float p${g} = ${element(pt, "peepholes", f"d * {pd} + ({g * hidden} + j) * {pe}")};
%   endfor
%  endif
%  if late:
<% pt, (pd, pe) = extras["late_bias"] %>\
                const float lb = ${element(pt, "late_bias", f"d * {pd} + j * {pe}")};
%  endif
%  if phase:
                const float z = z_kept[line + j];
%  endif
%  for k, of_direction in enumerate(functions[:1] if same else functions):
                ${"" if same else f"if (d == {k}) "}{
${gt.finish(kind, of_direction, 1, phase, input_forget, peeps, late)}
${kept(phase)}
                }
%  endfor
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE);
</%def>
<%def name="kept(phase)">\
%  if phase + 1 < len(phases):
                reset_h[line + j] = rh;
                z_kept[line + j] = z;
%  else:
                const float h_new = ${"live ? h : h_old" if masked else "h"};
                h_to[line + j] = h_new;
%   if has_cell:
                const float c_new = ${"live ? c : c_old" if masked else "c"};
                c_kept[line + j] = c_new;
%   endif
%   if "every" in outputs:
<% yt, (pt, pd, pb, pe) = outputs["every"] %>\
                ${store(1, f"live ? h : {behind}" if masked else "h", "every", f"place * {pt} + d * {pd} + b * {pb} + j * {pe}", yt)}
%   endif
                if (t == ${steps} - 1) {
%   for out, value in (("last_state", "h_new"), ("last_cell", "c_new")):
%    if out in outputs:
<% yt, (_, pd, pb, pe) = outputs[out] %>\
                    ${store(1, f"length ? {value} : 0.0f" if ends else value, out, f"d * {pd} + b * {pb} + j * {pe}", yt)}
%    endif
%   endfor
                }
%  endif
</%def>
<%def name="rounded_states()">\
        for (int r = get_local_id(0); r < ${rows}; r += ${members}) {
            float low = 0.0f, high = 0.0f;
            for (int k = 0; k < ${hidden}; ++k) {
                low = fmin(low, h_from[r * ${hidden} + k]);
                high = fmax(high, h_from[r * ${hidden} + k]);
            }
${gt.rounding("low", "high")}
            worths[r] = worth;
            for (int k = 0; k < ${hidden}; ++k) q_kept[r * ${hidden} + k] = ${gt.module.rounded(f"h_from[r * {hidden} + k]")};
        }
        barrier(CLK_LOCAL_MEM_FENCE);
</%def>
${group_size(wg)}
__kernel void ${name}(
    __global const ${cell(wt)} *panels${"_base, const int panels_offset" if panels_move else ""},
% for which, ctype in given.items():
    __global const ${cell(ctype)} *${which}_base, const int ${which}_offset,
% endfor
% for which, (ctype, _) in outputs.items():
    __global ${cell(ctype)} *${which}_base, const int ${which}_offset${"" if which == list(outputs)[-1] else ","}
% endfor
    )
{
    __local float states[${2 * size}];
% if has_cell:
    __local float c_kept[${size}];
% endif
% if rounds:
    __local float q_kept[${size}], worths[${rows}];
% endif
% if len(phases) > 1:
    __local float reset_h[${size}];
    __local float z_kept[${size}];
% endif
    const int b_first = get_group_id(1) * ${rows}, d = get_group_id(2);
% if panels_move:
    __global const ${cell(wt)} *panels = panels_base + panels_offset;
% endif
% for which, ctype in given.items():
    __global const ${cell(ctype)} *${which} = ${which}_base + ${which}_offset;
% endfor
% for which, (ctype, _) in outputs.items():
    __global ${cell(ctype)} *${which} = ${which}_base + ${which}_offset;
% endfor
    for (int n = get_local_id(0); n < ${size}; n += ${members}) {
        const int b = min(b_first + n / ${hidden}, ${batch} - 1), k = n % ${hidden};
        states[n] = 0.0f;
        states[n + ${size}] = 0.0f;
% if len(phases) > 1:
        reset_h[n] = 0.0f;
% endif
% for which, kept_ in (("state", "states"), ("cell", "c_kept")):
%  if which in first:
<% ctype, (pd, pb, pe) = first[which] %>\
        ${kept_}[n] = ${element(ctype, which, f"d * {pd} + b * {pb} + k * {pe}")};
%  elif which == "cell" and has_cell:
        c_kept[n] = 0.0f;
%  endif
% endfor
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int t = 0; t < ${steps}; ++t) {
        __local const float *h_from = states + (t & 1) * ${size};
        __local float *h_to = states + (~t & 1) * ${size};
% if rounds:
${rounded_states()}
% endif
% for phase in range(len(phases)):
${phase_of(phase)}
% endfor
    }
}
