<%doc>
recurrent/pack: recurrent weights from where they lie into panels, as recurrent/steps reads them.

    panel of a slice in a phase = for each pass of its gates: hidden x (gates of the pass) x nv vectors of vw lanes

Tensors  weights: pitches (direction, gate * hidden + unit, element)
         panels: dense, [direction][phase][slice][pass][element][gate][vector][lane]; lanes behind `hidden` are 0
Launch   global (elements of a state, slices, directions)
Params   name | wg | ctype | pitches | hidden | slices
         passes  for each phase: tuples of gates, one behind the other in a panel
Tunables vw, nv as in recurrent/steps
</%doc>
<%
    each = hidden * nv * vw
    pd, pg, pk = pitches
%>
${group_size(wg)}
__kernel void ${name}(
    __global const ${cell(ctype)} *weights_base, const int weights_offset,
    __global float *panels_base, const int panels_offset)
{
    const int k = get_global_id(0), slice = get_global_id(1), d = get_global_id(2);
    if (k >= ${hidden}) return;
    __global const ${cell(ctype)} *weights = weights_base + weights_offset + d * ${pd} + k * ${pk};
    __global float *panels = panels_base + panels_offset + d * ${slices * each * sum(len(g) for p in passes for g in p)};
<% before = 0 %>\
% for phase in passes:
<% panel = each * sum(map(len, phase)) ; inside = 0 %>\
%  for gates in phase:
<% columns = len(gates) * nv * vw %>\
%   for place, gate in enumerate(gates):
    for (int lane = 0; lane < ${nv * vw}; ++lane) {
        const int unit = slice * ${nv * vw} + lane;
        float v = 0.0f;
        if (unit < ${hidden}) v = ${element(ctype, "weights", f"({gate * hidden} + unit) * {pg}")};
        panels[${before + inside} + slice * ${panel} + k * ${columns} + ${place * nv * vw} + lane] = v;
    }
%   endfor
<% inside += hidden * columns %>\
%  endfor
<% before += slices * panel %>\
% endfor
}
