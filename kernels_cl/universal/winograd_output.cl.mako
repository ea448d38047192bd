<%doc>
universal/winograd_output: products of Winograd's F(m x m, 3 x 3) made outputs, with bias and post-ops as arguments.

Tensors  src: [tile][(m + 2) ** 2][channels], bias: [channels]
         e0, e1 (operands of post-ops), dst: any pitches over (n, c, y, x)
Index    tile t of an image holds outputs from row t / wide * m, column t % wide * m on; those beyond the image are
         not stored
Launch   global (channels / vw, tiles of all images)
Params   name     kernel name
         wg       local size
Tunables vw       channels of a vector
         m        outputs of a tile along an axis
</%doc>
<%namespace name="cd" file="/_common/codes.cl.mako"/>
<%namespace name="wg_" file="/_common/winograd.cl.mako"/>
<%!
from clnn.ops.conv.winograd import matrices
%>
<%
    n, V, at = m + 2, vec_type("float", vw), matrices(m).at
    def gather(k):
        return f"""\
            for (int line = 0; line < {m * m}; ++line) read_lanes(other + line * {vw}, e{k}_base, 0, 0, {vw});
            for (int y = 0; y < rows; ++y)
                for (int x = 0; x < columns; ++x) {{
                    __global const float *e = e{k}_base + e{k}_offset + image * e{k}n + c * e{k}c;
                    e += (top + y) * e{k}y + (left + x) * e{k}x;
                    read_lanes(other + (y * {m} + x) * {vw}, e, e{k}c, {vw}, {vw});
                }}"""
%>
#define VW ${vw}
${cd.define(vw)}
${cd.lanes(vw)}
${group_size(wg)}
__kernel void ${name}(
    __global const float *src_base, const int src_offset,
    __global const float *bias,
    __global const float *e0_base, const int e0_offset,
    __global const float *e1_base, const int e1_offset,
    __global float *dst_base, const int dst_offset,
    const int channels, const int high, const int wide, const int height, const int width,
    const int dn, const int dc, const int dy, const int dx,
    const int e0n, const int e0c, const int e0y, const int e0x,
    const int e1n, const int e1c, const int e1y, const int e1x,
${cd.params()})
{
${cd.decode()}\
    typedef ${V} V;
    const int c = get_global_id(0) * ${vw}, tile_at = get_global_id(1);
    const int image = tile_at / wide / high, top = tile_at / wide % high * ${m}, left = tile_at % wide * ${m};
    const int rows = min(${m}, height - top), columns = min(${m}, width - left);
    __global const float *src = src_base + src_offset + tile_at * ${n * n} * channels + c;
    float tile[${m * m * vw}], other[${m * m * vw}];
    V ${", ".join(f"h{y}_{j}" for y in range(m) for j in range(n))};
% for j in range(n):
    {
%  for i in range(n):
        V d${i} = vload${vw}(0, src + ${i * n + j} * channels);
%  endfor
        ${wg_.by_columns(at, lambda y: f"h{y}_{j}", lambda k: f"d{k}")}
    }
% endfor
    const V start = vload${vw}(0, bias + c);
% for y in range(m):
    {
        V ${", ".join(f"r{x}" for x in range(m))};
        ${wg_.by_columns(at, lambda x: f"r{x}", lambda k: f"h{y}_{k}")}
%  for x in range(m):
        vstore${vw}(r${x} + start, ${y * m + x}, tile);
%  endfor
    }
% endfor
${cd.apply("tile", "other", m * m * vw, gather)}
    for (int y = 0; y < rows; ++y)
        for (int x = 0; x < columns; ++x) {
            __global float *d = dst_base + dst_offset + image * dn + (top + y) * dy + (left + x) * dx + c * dc;
            write_lanes(d, tile + (y * ${m} + x) * ${vw}, dc, ${vw});
        }
}
