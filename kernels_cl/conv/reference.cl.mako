<%doc>
conv/reference: convolution of any geometry, one work-item per output element, bounds checked.

Tensors  src, dst: images in any layout, seen as (n, c, h, w)
         weights: (oc, ic, kh, kw) in any layout
         bias: a layout seen as dst
         table: [rows][oc], constants of the arithmetic
Launch   global (output elements)
Params   name, arith, src, dst, kernel, strides, dilations, pads, groups, post_ops, operands, extra_types,
         scales, wg: as of conv/direct
         types: of src, weights, table or bias, and dst
         weights: TensorLayout
         bias: TensorLayout or None
         rows: of the table, or 1 for a bias
Order    channels outermost, then taps; innermost where the arithmetic is tapwise
</%doc>
<%namespace name="ar" file="/${context['arith'].library}"/>
<%namespace name="lp" file="/_common/loops.cl.mako"/>
<%namespace name="sc" file="/_common/scales.cl.mako"/>
<%namespace name="st" file="/_common/epilogue.cl.mako"/>
<%
    kh, kw = kernel
    n_, oc_, oh, ow = dst.shape
    ic = src.shape[1] // groups
    xt, wt, tt, yt = types
    P = arith.product
    def row(k):
        return element(tt, "bias", index(bias, "n", "oc", "y", "x")) if bias is not None else f"table[{k * oc_} + oc]"
    def operand(which):
        k, layout = operands[which]
        return element(extra_types[k], f"extra{k}", index(layout, "n", "oc", "y", "x"))
%>
${ar.functions(arith, 1)}
${group_size(wg)}
__kernel void ${name}(
    __global const ${cell(xt)} *src_base, const int src_offset,
    __global const ${cell(wt)} *weights, const int weights_offset,
% if bias is not None:
    __global const ${cell(tt)} *bias_base, const int bias_offset,
% elif rows:
    __global const ${cell(tt)} *table,
% endif
${sc.parameters(scales, extra_types)}\
    __global ${cell(yt)} *dst_base, const int dst_offset)
{
${sc.declare(scales, arith.strict)}\
    const int k = get_global_id(0);
    if (k >= ${n_ * oc_ * oh * ow}) return;
    const int x = k % ${ow}, y = k / ${ow} % ${oh}, oc = k / ${oh * ow} % ${oc_}, n = k / ${oc_ * oh * ow};
% for k, _ in operands.values():
    __global const ${cell(extra_types[k])} *extra${k} = extra${k}_base + extra${k}_offset;
% endfor
    __global const ${cell(xt)} *src = src_base + src_offset;
    __global const ${cell(wt)} *w = weights + weights_offset;
    const int group = oc / ${oc_ // groups};
% if bias is not None:
    __global const ${cell(tt)} *bias = bias_base + bias_offset;
% endif
    ${arith.acc} v = ${ar.start(arith, 1, rows, row)};
% if arith.fours:
    float part = 0.0f;
% endif
% if not arith.tapwise:
    for (int c = 0; c < ${ic}; ++c) {
% endif
        for (int ky = 0; ky < ${kh}; ++ky) {
            const int iy = y * ${strides[0]} - ${pads[0]} + ky * ${dilations[0]};
% if arith.fill == 0:
            if (iy < 0 || iy >= ${src.shape[2]}) continue;
% endif
            for (int kx = 0; kx < ${kw}; ++kx) {
                const int ix = x * ${strides[1]} - ${pads[1]} + kx * ${dilations[1]};
% if arith.fill == 0:
                if (ix < 0 || ix >= ${src.shape[3]}) continue;
%  if arith.tapwise:
                for (int c = 0; c < ${ic}; ++c) {
%  endif
                const ${P} s = ${element(xt, "src", index(src, "n", f"group * {ic} + c", "iy", "ix"))};
% else:
<% assert not arith.tapwise, "borders of zeros only" %>\
                const int in = iy >= 0 && iy < ${src.shape[2]} && ix >= 0 && ix < ${src.shape[3]};
                const ${P} ${"x_" if arith.fours else "s"} = in ? src[${index(src, "n", f"group * {ic} + c", "iy", "ix")}] : ${arith.fill};
%  if arith.fours:
                const float s = (x_ - ${scalar(float(arith.zero))}) * ${scalar(arith.step_in)};
%  endif
% endif
                const ${P} t = ${element(wt, "w", index(weights, "oc", "c", "ky", "kx"))};
% if arith.fours:
<% terms = ic * kh * kw %>\
                const int term = (c * ${kh} + ky) * ${kw} + kx;
                part = part + s * t;
                if (term % 4 == 3 || term == ${terms - 1}${f" || term == {terms - 2}" if terms % 4 == 3 else ""}) {
                    v = v + part;
                    part = 0.0f;
                }
% else:
                ${ar.mac(arith, 1, "v", "s", "t")}
% endif
% if arith.tapwise:
                }
% endif
            }
        }
        ${ar.channel(arith, 1, "v")}
% if not arith.tapwise:
    }
% endif
    ${ar.finish(arith, 1, "v", "result", row)}
<% value = arith.result("v", "result") %>\
    ${st.apply(post_ops, value, yt, 1, operand)}
    ${store(1, value, "dst_base", f"dst_offset + {index(dst, 'n', 'oc', 'y', 'x')}", yt)}
}
