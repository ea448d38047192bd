<%doc>
universal/fill: writes the padding of a padded tensor and nothing else, as movement/border_fill does.

Tensor   seen as lines: front | real | back elements; a line outside of an outer axis is filled whole
Launch   global (lines)
Params   name     kernel name
         wg       local size
</%doc>
<%!
from clnn.ops.universal.fill import OUTER
%>
${group_size(wg)}
__kernel void ${name}(
    __global float *base, const int offset,
    const float value, const int front, const int real, const int back,
    ${", ".join(f"const int {n}{k}" for k in range(OUTER) for n in ("extent", "low", "high", "pitch"))})
{
    int rest = get_global_id(0), start = 0, inside = 1;
% for k in reversed(range(OUTER)):
    {
        const int at = rest % extent${k};
        rest /= extent${k};
        start += at * pitch${k};
        inside = inside && at >= low${k} && at < high${k};
    }
% endfor
    __global float *p = base + offset + start;
    const int first = inside ? front : front + real;
    for (int i = 0; i < first; ++i) p[i] = value;
    for (int i = front + real; i < front + real + back; ++i) p[i] = value;
}
