<%doc>
rows/openvx_norm: local response normalisation of integers, one work-item per element.

    y = x / (1 + share * S) ** beta, S the sum of squares over the window; cut towards zero, clamped

Tensors  src, dst: (n, c, h, w) in any layout | table: [2][64], offsets and slopes in Q1.14 of the
         chords of (1 + t)**-beta over 64 equal parts of 0 <= t <= 128 (sample only)
Launch   global (elements)
Params   name            kernel name
         source, result  Format
         src, dst        TensorLayout
         across          the window is over maps, else over one map
         low, high       window elements on each side
         sample          whether to compute in fixed point, Q7.8
         factor          root of share in Q7.8 (sample)
         share, beta     see above
         real            type to compute in, else
         wg              local size
</%doc>
<%
    n_, c_, h_, w_ = dst.shape
    xt, yt = source.dtype.cl, result.dtype.cl
    axes = (("c", c_),) if across else (("y", h_), ("x", w_))
    at = {"c": "c", "y": "y", "x": "x"} | {a: f"k{a}" for a, _ in axes}
    moved = 2.0 ** (result.fraction - source.fraction)

    def powered(b):
        if beta == 1:
            return b
        if beta == 0.5:
            return f"sqrt({b})"
        if beta == 0.75:
            return f"(sqrt({b}) * sqrt(sqrt({b})))"
        return f"pow({b}, {scalar(beta, real)})"
%>
% if sample:
long vx_q8(const long v)
{
    return clamp((v >> 8) + ((v >> 7) & 1), (long)-32768, (long)32767);
}
% else:
#pragma OPENCL FP_CONTRACT OFF
% endif
${group_size(wg)}
__kernel void ${name}(
    __global const ${xt} *src_base, const int src_offset,
% if sample:
    __global const int *table,
% endif
    __global ${yt} *dst_base, const int dst_offset)
{
    const int k = get_global_id(0);
    if (k >= ${n_ * c_ * h_ * w_}) return;
    const int x = k % ${w_}, y = k / ${w_} % ${h_}, c = k / ${h_ * w_} % ${c_}, n = k / ${c_ * h_ * w_};
    __global const ${xt} *src = src_base + src_offset;
    long sum = 0;
% for a, extent in axes:
    for (int k${a} = max(${a} - ${low}, 0); k${a} <= min(${a} + ${high}, ${extent - 1}); ++k${a})
% endfor
    {
% if sample:
        const long v = vx_q8((long)src[${index(src, "n", at["c"], at["y"], at["x"])}] * ${factor});
% else:
        const long v = src[${index(src, "n", at["c"], at["y"], at["x"])}];
% endif
        sum += v * v;
    }
    const long value = src[${index(src, "n", "c", "y", "x")}];
% if sample:
    const long total = vx_q8(sum);
    const int part = (int)clamp(total >> 9, (long)0, (long)63);
    const long line = total * table[64 + part] + (long)table[part] * 256;
    const long gain = clamp((line >> 14) + ((line >> 13) & 1), (long)-32768, (long)32767);
    const ${yt} v = (${yt})vx_q8(value * gain);
% else:
    const ${real} base = ${scalar(1, real)} + ${scalar(share, real)} * (${real})sum;
    const ${real} scaled = (${real})value * ${scalar(moved, real)} / ${powered("base")};
    const ${yt} v = (${yt})(int)clamp(scaled, ${scalar(result.low, real)}, ${scalar(result.high, real)});
% endif
    dst_base[dst_offset + ${index(dst, "n", "c", "y", "x")}] = v;
}
