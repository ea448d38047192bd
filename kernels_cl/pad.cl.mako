<%doc>
pad: a tensor with elements added (or taken away) on the sides of its axes.

Index    output index i of an axis reads input index i - before; outside of the input `mode` decides
Launch   global (elements of dst); one work-item per element
Params   name | ctype | src, dst: TensorLayout | before, after: per axis | value | count | wg
         mode: constant, reflect (the edge is not repeated), edge, wrap
</%doc>
<% rank = dst.rank %>
${group_size(wg)}
__kernel void ${name}(
    __global const ${ctype} *src, const int src_offset, __global ${ctype} *dst, const int dst_offset)
{
    const int k = get_global_id(0);
    if (k >= ${count}) return;
    int rest = k, to = 0, from = 0, inside = 1;
% for a in reversed(range(rank)):
    {
        const int o = rest % ${dst.shape[a]};
        rest /= ${dst.shape[a]};
        to += o * ${dst.pitches[a]};
        int i = o - ${scalar(before[a], "int")};
<% d = src.shape[a] %>\
%  if mode == "constant":
        inside = inside && i >= 0 && i < ${d};
%  elif mode == "edge":
        i = clamp(i, 0, ${d - 1});
%  elif mode == "reflect":
        i = i < 0 ? -i : i;
        i = i >= ${d} ? ${2 * (d - 1)} - i : i;
%  else:
        i = (i % ${d} + ${d}) % ${d};
%  endif
        from += i * ${src.pitches[a]};
    }
% endfor
    dst[dst_offset + to] = inside ? src[src_offset + from] : ${scalar(value, ctype)};
}
