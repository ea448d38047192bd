<%doc>
movement/border_fill: writes the padding of a padded tensor and nothing else.

Tensor   seen as lines; a line is the innermost padded axis with all that lies inside it
             front | real | back         elements of one line
Launch   global (lines), or (wide, lines) where wide is more than 1
Params   name            kernel name
         ctype           type moved
         fill            value
         lines           number of lines
         outer           padded extents of the outer axes
         low, high       first and one past the last real index of each
         pitches         of each
         front, real, back
         wide            work-items that share a line
         wg              local size
</%doc>
${group_size(wg)}
__kernel void ${name}(__global ${ctype} *base, const int offset)
{
    const int line = get_global_id(${int(wide > 1)});
    if (line >= ${lines}) return;
    int rest = line, start = 0, inside = 1;
% for extent, lo, hi, pitch in reversed(list(zip(outer, low, high, pitches))):
    {
        const int at = rest % ${extent};
        rest /= ${extent};
        start += at * ${pitch};
        inside = inside && at >= ${lo} && at < ${hi};
    }
% endfor
    __global ${ctype} *p = base + offset + start;
    const ${ctype} v = ${scalar(fill, ctype)};
% if wide > 1:
    const int count = inside ? ${front + back} : ${front + real + back};
    for (int i = get_global_id(0); i < count; i += ${wide}) p[inside && i >= ${front} ? i + ${real} : i] = v;
% else:
    const int first = inside ? ${front} : ${front + real};
    for (int i = 0; i < first; ++i) p[i] = v;
    for (int i = ${front + real}; i < ${front + real + back}; ++i) p[i] = v;
% endif
}
