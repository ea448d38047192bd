<%doc>
recurrent/start: first states and cells into scratch memory, where the shares of recurrent/steps find them;
their tickets to zero.

Tensors  state, cell (if given): pitches (direction, sequence, element)
         h, c: [direction][sequence][row], elements behind `hidden` become 0
         tickets: `tickets` ints
Launch   global (directions * sequences)
Params   name | wg | hidden, row, directions, batch
         first     name ("state", "cell") -> (type, pitches), of what is given
         has_cell  whether there are cells
         tickets   ints to be zeroed
</%doc>
<%
    made = ["state"] + (["cell"] if has_cell else [])
    kept = {"state": "h", "cell": "c"}
%>
${group_size(wg)}
__kernel void ${name}(
% for which, (ctype, _) in first.items():
    __global const ${cell(ctype)} *${which}_base, const int ${which}_offset,
% endfor
    __global int *tickets_base, const int tickets_offset,
% if has_cell:
    __global float *c_base, const int c_offset,
% endif
    __global float *h_base, const int h_offset)
{
    const int line = get_global_id(0);
    if (line >= ${directions * batch}) return;
    if (line == 0)
        for (int k = 0; k < ${tickets}; ++k) tickets_base[tickets_offset + k] = 0;
% if first:
    const int d = line / ${batch}, b = line % ${batch};
% endif
% for which in made:
    {
        __global float *to = ${kept[which]}_base + ${kept[which]}_offset + line * ${row};
%  if which in first:
<% ctype, (pd, pb, pe) = first[which] %>\
        __global const ${cell(ctype)} *from = ${which}_base + ${which}_offset + d * ${pd} + b * ${pb};
        for (int k = 0; k < ${hidden}; ++k) to[k] = ${element(ctype, "from", f"k * {pe}")};
        for (int k = ${hidden}; k < ${row}; ++k) to[k] = 0.0f;
%  else:
        for (int k = 0; k < ${row}; ++k) to[k] = 0.0f;
%  endif
    }
% endfor
}
