<%doc>
universal/bytes_fill: writes the padding of a padded tensor of elements of one or two bytes and nothing else.

Tensor   as universal/fill sees it
Launch   global (lines)
Params   name     kernel name
         wg       local size
         size     bytes of an element
</%doc>
<%!
from clnn.ops.universal.fill import OUTER
%>
${group_size(wg)}
__kernel void ${name}(
    __global uchar *base, const int offset,
    const int size, const int value, const int front, const int real, const int back,
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
    const int first = inside ? front : front + real;
    if (size == 1) {
        __global uchar *p = base + offset + start;
        for (int i = 0; i < first; ++i) p[i] = value;
        for (int i = front + real; i < front + real + back; ++i) p[i] = value;
    } else {
        __global ushort *p = (__global ushort *)base + offset + start;
        for (int i = 0; i < first; ++i) p[i] = value;
        for (int i = front + real; i < front + real + back; ++i) p[i] = value;
    }
}
