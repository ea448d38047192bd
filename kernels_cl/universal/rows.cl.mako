<%doc>
universal/rows: softmax, normalisation and reductions of rows, as many rows at once as a vector has elements.

    dst[row] = post_ops(fold of src[row])                           reductions
    dst[row][k] = post_ops(src[row][k] against the row's folds)     all others

Tensors  src, e0, e1 (operands of post-ops), dst: pitches of three outer axes, of the axis that lanes lie along,
         and of three axes within a row, which are 0 for what has one element for each row
Launch   global (vectors of the lanes' axis, positions of the outer axes)
Params   name     kernel name
         wg       local size
         mode     (an argument) one of MODES in clnn/ops/universal/rows.py
Tunables vw       rows of a vector
NaN      propagates; an infinity makes a row of a softmax NaN, as does nothing but -infinity
</%doc>
<%namespace name="cd" file="/_common/codes.cl.mako"/>
<%namespace name="ex" file="/_common/exp.cl.mako"/>
<%!
from clnn.ops.universal.rows import MODES, TENSORS
POSITIONS, BLOCK = 8, 256  # finished together; summed before they are added to the row's sum
%>
<%
    V, m = vec_type("float", vw), MODES
    exp = f"exp_v{vw}"

    def gather(k):
        return f"""\
                for (int p = 0; p < count; ++p)
                    for (int l = 0; l < lanes; ++l)
                        other[p * VW + l] = e{k}[i * e{k}_4 + j * e{k}_5 + (k + p) * e{k}_6 + l * e{k}_3];"""
%>
<%def name="walk(total, body)">\
    for (int i = 0; i < extent4; ++i)
        for (int j = 0; j < extent5; ++j)
            for (int from = 0; from < extent6; from += ${BLOCK}) {
                __global const float *line = s + i * s_4 + j * s_5;
                const int to = min(from + ${BLOCK}, extent6);
                ${V} part = 0.0f;
                for (int k = from; k < to; ++k) {
                    const ${V} t = row_lanes(line + k * s_6, s_3, lanes);
                    ${body}
                }
                ${total} += part;
            }
</%def>
#define VW ${vw}
${cd.define(vw)}
${ex.define([vw])}
${V} row_lanes(__global const float *s, const int pitch, const int lanes)
{
    if (pitch == 1 && lanes == ${vw}) return vload${vw}(0, s);
    float t[${vw}];
    for (int l = 0; l < ${vw}; ++l) t[l] = l < lanes ? s[l * pitch] : 0.0f;
    return vload${vw}(0, t);
}
${group_size(wg)}
__kernel void ${name}(
    __global const float *src_base, const int src_offset,
    __global const float *e0_base, const int e0_offset,
    __global const float *e1_base, const int e1_offset,
    __global float *dst_base, const int dst_offset,
    const int mode, const float epsilon,
% for k in range(7):
    const int extent${k}, ${" ".join(f"const int {n}_{k}," for n in TENSORS)}
% endfor
${cd.params()})
{
${cd.decode()}\
    const int l0 = get_global_id(0) * ${vw}, lanes = min(${vw}, extent3 - l0);
    int rest = get_global_id(1);
    const int a2 = rest % extent2, a1 = rest / extent2 % extent1, a0 = rest / extent2 / extent1;
% for n, base in zip(TENSORS, ("src", "e0", "e1", "dst")):
    __global ${"" if n == "d" else "const "}float *${n} = ${base}_base + ${base}_offset + a0 * ${n}_0 + a1 * ${n}_1 + a2 * ${n}_2 + l0 * ${n}_3;
% endfor
    const float size = (float)extent4 * (float)extent5 * (float)extent6;
    const int softmax = mode == ${m["softmax"]} || mode == ${m["log_softmax"]} || mode == ${m["log_sum_exp"]};
    ${V} top = -INFINITY, total = 0.0f, shift = 0.0f, scale = 1.0f;
    if (softmax || mode == ${m["max"]}) {
        ${V} none = 0.0f;
${walk("none", "top = t > top || t != t ? t : top;")}
    }
    if (softmax) {
        shift = top;
        if (mode == ${m["log_sum_exp"]}) shift = isinf(top) ? (${V})(0.0f) : top;
${walk("total", f"part += {exp}(t - shift);")}
    } else if (mode == ${m["normalise"]} || mode == ${m["rms"]}) {
        if (mode == ${m["normalise"]}) {
${walk("total", "part += t;")}
            shift = total / size;
            total = 0.0f;
        }
${walk("total", "part = fma(t - shift, t - shift, part);")}
        scale = sqrt(total / size + epsilon);
    } else if (mode == ${m["prod"]}) {
        ${V} none = 0.0f;
        total = 1.0f;
${walk("none", "total *= t;")}
    } else if (mode == ${m["min"]}) {
        ${V} none = 0.0f;
        total = INFINITY;
${walk("none", "total = t < total || t != t ? t : total;")}
    } else if (mode == ${m["l1"]}) {
${walk("total", "part += fabs(t);")}
    } else if (mode == ${m["sum_square"]} || mode == ${m["l2"]}) {
${walk("total", "part = fma(t, t, part);")}
    } else if (mode != ${m["max"]}) {
${walk("total", "part += t;")}
    }
    if (mode == ${m["log_softmax"]} || mode == ${m["log_sum"]} || mode == ${m["log_sum_exp"]}) total = log(total);
    if (mode == ${m["log_sum_exp"]}) total += shift;
    if (mode == ${m["mean"]}) total /= size;
    if (mode == ${m["l2"]}) total = sqrt(total);
    if (mode == ${m["max"]}) total = top;
    const int each = mode <= ${m["rms"]};
    const int r4 = each ? extent4 : 1, r5 = each ? extent5 : 1, r6 = each ? extent6 : 1;
    float tile[${POSITIONS * vw}], other[${POSITIONS * vw}];
    for (int i = 0; i < r4; ++i)
        for (int j = 0; j < r5; ++j)
            for (int k = 0; k < r6; k += ${POSITIONS}) {
                const int count = min(${POSITIONS}, r6 - k);
                __global const float *line = s + i * s_4 + j * s_5 + k * s_6;
                for (int p = 0; p < count; ++p) {
                    ${V} y = total;
                    if (each) {
                        const ${V} t = row_lanes(line + p * s_6, s_3, lanes) - shift;
                        y = mode == ${m["softmax"]} ? ${exp}(t) / total : mode == ${m["log_softmax"]} ? t - total : t / scale;
                    }
                    vstore${vw}(y, p, tile);
                }
                if (post_ops > 0)
                    for (int at = 0; at < count * VW; ++at) other[at] = 0.0f;
${cd.apply("tile", "other", "count * VW", gather)}
                __global float *out = d + i * d_4 + j * d_5 + k * d_6;
                for (int p = 0; p < count; ++p) {
                    if (d_3 == 1 && lanes == ${vw})
                        vstore${vw}(vload${vw}(p, tile), 0, out + p * d_6);
                    else
                        for (int l = 0; l < lanes; ++l) out[p * d_6 + l * d_3] = tile[p * VW + l];
                }
            }
}
