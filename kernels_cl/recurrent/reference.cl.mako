<%doc>
recurrent/reference: any layouts; a work-item walks one sequence in one direction, a hidden unit at a time.

Tensors  products, weights, extras, first states and outputs: any pitches, as in recurrent/steps and
         recurrent/start
         q (scales): scratch, [direction][sequence][hidden], rounded states
         h, c: scratch, [step parity][direction][sequence][hidden]; rh, z (gru): [direction][sequence][hidden]
Launch   global (directions * batch)
Params   name | wg | kind, functions, backward, input_forget, gates: as clnn/ops/recurrent has them
         hidden | steps | batch
         products (type, pitches) | weights (type, pitches): (direction, gate * hidden + unit, element)
         first     name -> (type, pitches), of what is given
         extras    name -> (type, pitches) | outputs  name -> (type, pitches)
         phases    tuples of gates whose sums are known at once
</%doc>
<%namespace name="gt" file="/_common/cells.cl.mako"/>
<%
    xt, (x_t, x_b, x_e) = products
    wt, (w_d, w_g, w_e) = weights
    has_cell, ends, same = kind == "lstm", "lengths" in extras, all(f == functions[0] for f in functions)
    masked, behind = ends or "mask" in extras, "0.0f" if ends else "h_old"  # what a step that is not gives
    turns, plane = len(backward), len(backward) * batch * hidden
    peeps, late = "peepholes" in extras, "late_bias" in extras
    rounds = "scales" in extras
    given = {"products": xt, "weights": wt, **{n: t for n, (t, _) in {**first, **extras}.items()}}
%>
<%def name="unit(phase)">\
%  for g in phases[phase]:
            const float x${g} = ${element(xt, "x", f"(d * {gates * hidden} + {g * hidden} + j) * {x_e}")};
            float s${g} = 0.0f;
%  endfor
            for (int k = 0; k < ${hidden}; ++k) {
                const float e = ${"rh_kept[line + k]" if phase else "q_kept[line + k]" if rounds else "h_from[line + k]"};
%  for g in phases[phase]:
                s${g} = fma(e, ${element(wt, "w", f"({g * hidden} + j) * {w_g} + k * {w_e}")}, s${g});
%  endfor
            }
%  if rounds:
<% pt, (pd, pe) = extras["scales"] %>\
%   for g in phases[phase]:
            s${g} *= worth * ${element(pt, "scales", f"d * {pd} + ({g * hidden} + j) * {pe}")};
%   endfor
%  endif
            const float h_old = h_from[line + j]${", c_old = c_from[line + j]" if has_cell else ""};
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
%   if phase + 1 < len(phases):
            rh_kept[line + j] = rh;
            z_kept[line + j] = z;
%   else:
            h_to[line + j] = ${"live ? h : h_old" if masked else "h"};
%    if has_cell:
            c_to[line + j] = ${"live ? c : c_old" if masked else "c"};
%    endif
%    if "every" in outputs:
<% yt, (pt, pd, pb, pe) = outputs["every"] %>\
            ${store(1, f"live ? h : {behind}" if masked else "h", "every", f"place * {pt} + d * {pd} + b * {pb} + j * {pe}", yt)}
%    endif
%   endif
            }
%  endfor
</%def>
${group_size(wg)}
__kernel void ${name}(
% for which, ctype in given.items():
    __global const ${cell(ctype)} *${which}_base, const int ${which}_offset,
% endfor
% for which, (ctype, _) in outputs.items():
    __global ${cell(ctype)} *${which}_base, const int ${which}_offset,
% endfor
% if rounds:
    __global float *q_base, const int q_offset,
% endif
% if has_cell:
    __global float *c_base, const int c_offset,
% endif
% if len(phases) > 1:
    __global float *rh_base, const int rh_offset, __global float *z_base, const int z_offset,
% endif
    __global float *h_base, const int h_offset)
{
    if (get_global_id(0) >= ${turns * batch}) return;
    const int d = get_global_id(0) / ${batch}, b = get_global_id(0) % ${batch}, line = get_global_id(0) * ${hidden};
% for which, ctype in given.items():
    __global const ${cell(ctype)} *${which} = ${which}_base + ${which}_offset;
% endfor
% for which, (ctype, _) in outputs.items():
    __global ${cell(ctype)} *${which} = ${which}_base + ${which}_offset;
% endfor
% if len(phases) > 1:
    __global float *rh_kept = rh_base + rh_offset, *z_kept = z_base + z_offset;
% endif
% if rounds:
    __global float *q_kept = q_base + q_offset;
% endif
    __global const ${cell(wt)} *w = weights + d * ${w_d};
    for (int k = 0; k < ${hidden}; ++k) {
% for which, kept in (("state", "h"), ("cell", "c")):
%  if which in first:
<% ctype, (pd, pb, pe) = first[which] %>\
        ${kept}_base[${kept}_offset + line + k] = ${element(ctype, which, f"d * {pd} + b * {pb} + k * {pe}")};
%  elif kept == "h" or has_cell:
        ${kept}_base[${kept}_offset + line + k] = 0.0f;
%  endif
% endfor
    }
    for (int t = 0; t < ${steps}; ++t) {
        __global const float *h_from = h_base + h_offset + (t & 1) * ${plane};
        __global float *h_to = h_base + h_offset + (~t & 1) * ${plane};
% if has_cell:
        __global const float *c_from = c_base + c_offset + (t & 1) * ${plane};
        __global float *c_to = c_base + c_offset + (~t & 1) * ${plane};
% endif
${gt.whereabouts(extras, backward, steps, "b")}
        __global const ${cell(xt)} *x = products + place * ${x_t} + b * ${x_b};
% if rounds:
        float low = 0.0f, high = 0.0f;
        for (int k = 0; k < ${hidden}; ++k) {
            low = fmin(low, h_from[line + k]);
            high = fmax(high, h_from[line + k]);
        }
${gt.rounding("low", "high")}
        for (int k = 0; k < ${hidden}; ++k) q_kept[line + k] = ${gt.module.rounded("h_from[line + k]")};
% endif
% for phase in range(len(phases)):
        for (int j = 0; j < ${hidden}; ++j) {
${unit(phase)}
        }
% endfor
    }
    for (int k = 0; k < ${hidden}; ++k) {
% for out, kept in (("last_state", "h"), ("last_cell", "c")):
%  if out in outputs:
<% yt, (_, pd, pb, pe) = outputs[out] %>\
        const float ${kept}_last = ${f"lengths[b * {extras['lengths'][1][0]}] <= 0 ? 0.0f : " if ends else ""}${kept}_base[${kept}_offset + (${steps} & 1) * ${plane} + line + k];
        ${store(1, f"{kept}_last", out, f"d * {pd} + b * {pb} + k * {pe}", yt)}
%  endif
% endfor
    }
}
