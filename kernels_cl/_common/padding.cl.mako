<%doc>
Padding: which input index an output index reads.

source(i, inside, before, extent, result, mode)
    i: variable that holds an output index and becomes the input index. inside: variable that becomes
    0 where the value is the constant. extent, result: of the axis in the input and the output.
</%doc>
<%def name="source(i, inside, before, extent, result, mode)">\
% if not is_zero(before):
        ${i} -= ${before};
% endif
% if extent != result:
%  if mode == "constant":
        ${inside} &= ${i} >= 0 && ${i} < ${extent};
%  elif mode == "edge":
        ${i} = clamp(${i}, 0, ${extent - 1});
%  elif mode == "reflect":
        ${i} = abs(${i});
        ${i} = ${i} < ${extent} ? ${i} : ${2 * (extent - 1)} - ${i};
%  elif mode == "wrap":
        ${i} = (${i} % ${extent} + ${extent}) % ${extent};
%  endif
% endif
</%def>
