<%doc>
universal/winograd_input: input tiles of Winograd's F(m x m, 3 x 3), transformed; extents are arguments.

Tensors  src: image whose channels are neighbours, with a border as wide as the pads
         dst: [tile][(m + 2) ** 2][channels]
Index    tile t of an image begins at row t / wide * m - pad_y, column t % wide * m - pad_x. Inputs beyond the border,
         on which only outputs beyond the image depend, are the border's last row or column
Launch   global (channels / vw, tiles of all images)
Params   name     kernel name
         wg       local size
Tunables vw       channels of a vector
         m        outputs of a tile along an axis
</%doc>
<%namespace name="wg_" file="/_common/winograd.cl.mako"/>
<%!
from clnn.ops.conv.winograd import matrices
%>
<%
    n, V, bt = m + 2, vec_type("float", vw), matrices(m).bt
%>
${group_size(wg)}
__kernel void ${name}(
    __global const float *src_base, const int src_offset,
    __global float *dst_base, const int dst_offset,
    const int channels, const int high, const int wide,
    const int sn, const int sy, const int sx,
    const int pad_y, const int pad_x, const int reach_y, const int reach_x)
{
    typedef ${V} V;
    const int c = get_global_id(0) * ${vw}, tile = get_global_id(1);
    const int image = tile / wide / high, top = tile / wide % high * ${m} - pad_y, left = tile % wide * ${m} - pad_x;
    __global const float *src = src_base + src_offset + image * sn + c;
    __global float *dst = dst_base + dst_offset + tile * ${n * n} * channels + c;
% for i in range(n):
    const int y${i} = min(top + ${i}, reach_y) * sy, x${i} = min(left + ${i}, reach_x) * sx;
% endfor
    V ${", ".join(f"h{i}_{j}" for i in range(n) for j in range(n))};
% for j in range(n):
    {
%  for i in range(n):
        const V d${i} = vload${vw}(0, src + y${i} + x${j});
%  endfor
        ${wg_.by_rows(bt, lambda i: f"h{i}_{j}", lambda k: f"d{k}")}
    }
% endfor
% for i in range(n):
    {
        V ${", ".join(f"r{j}" for j in range(n))};
        ${wg_.by_rows(bt, lambda j: f"r{j}", lambda k: f"h{i}_{k}")}
%  for j in range(n):
        vstore${vw}(r${j}, 0, dst + ${i * n + j} * channels);
%  endfor
    }
% endfor
}
