<%doc>
Sums as bytes: what functions of the universal set do with vectors of sums whose results go straight to their places.

define(width, vbmi)  functions of a source, of vectors of `width`:
                     moved_steps  sums as steps within limits, rounded to whole numbers by a number whose bits below
                                  are zeros, which is added (mode 1: requantised, 2: as written, as arith/quantised.py
                                  has it); limits count from the zero point. Products and sums are rounded one by one
                     whole_steps  the same as whole numbers
                     look_bytes   bytes looked up in the bytes of a table, which lie behind its 256 floats
                     put_bytes    `lanes` of moved steps as bytes, looked up first where `looks`
way                  expression of a kernel: 0 where results need steps or lie apart, 1: they are bytes, 2: looked up
vbmi {0,1}           x86's vpermi2b looks up bytes of a register
</%doc>
<%!
from clnn.codegen.filters import S8_ZERO
from clnn.ops.universal.byte_steps import CODES
DIGITS = "0123456789abcdef"
%>
<%def name="define(width, vbmi)">\
<%
    F, I, U = (vec_type(t, width) for t in ("float", "int", "uchar"))
    s8 = f"({F})({scalar(float(S8_ZERO), 'float')})"
%>\
#pragma OPENCL FP_CONTRACT OFF
${F} moved_steps(${F} x, const ${F} factor, const ${F} rest, const ${F} offset, const int mode, const float step_out, const float low, const float high)
{
    if (mode == 2) x = (fma(x, factor, x * rest) + offset) / (${F})(step_out);
    else x = x * factor;
    x = x > (${F})(low) ? x : (${F})(low);
    x = x < (${F})(high) ? x : (${F})(high);
    return x + ${s8};
}
${F} whole_steps(const ${F} x, const ${F} factor, const ${F} rest, const ${F} offset, const int mode, const float step_out, const float low, const float high, const float zero)
{
    return moved_steps(x, factor, rest, offset, mode, step_out, low - zero, high - zero) - ${s8} + (${F})(zero);
}
${U} look_bytes(const ${U} y, __global const float *table)
{
% if vbmi and width == 16:
    __global const int *entries = (__global const int *)(table + 256);
    const int4 words = as_int4(y);
    int16 low_ = (int16)(words.s0, words.s1, words.s2, words.s3${", 0" * 12}), high_ = low_;
% for k, half in enumerate(("low_", "high_")):
    const int16 ${half}a = vload16(${2 * k}, entries), ${half}b = vload16(${2 * k + 1}, entries);
    __asm__("vpermi2b %2, %1, %0" : "+v"(${half}) : "v"(${half}a), "v"(${half}b));
% endfor
    return select(as_uchar16(low_.s0123), as_uchar16(high_.s0123), as_char16(y));
% else:
    __global const uchar *entries = (__global const uchar *)(table + 256);
    return (${U})(${", ".join(f"entries[y.s{d}]" for d in DIGITS[:width]) if width > 1 else "entries[y]"});
% endif
}
void put_bytes(__global uchar *d, const ${F} x, const int zero, const int looks, __global const float *table, const int lanes)
{
    ${U} y = convert_${U}(as_${I}(x) + zero);
    if (looks) y = look_bytes(y, table);
    if (lanes >= ${width}) {
        ${store(width, "y", "d", "0", "uchar")}
    } else {
        uchar t[${width}];
        vstore${width}(y, 0, t);
        for (int j = 0; j < lanes; ++j) d[j] = t[j];
    }
}
</%def>
<%def name="way()">\
dst_type < 2 && dc == 1 ? steps == 0 ? 1 : steps == 1 && code0 == ${CODES.index("byte_table")} ? 2 : 0 : 0\
</%def>
