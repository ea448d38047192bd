<%doc>
Exponential of float vectors for CPUs, within one unit in the last place of the exact value.

exp(x) = 2^n * exp(r), n the whole number nearest to x / ln 2, r = x - n ln 2 in two parts, exp(r) by
a polynomial. NaN stays NaN; overflow gives infinity, underflow a subnormal number or zero.

define(widths)         the functions for these vector widths
call(x, width, own)    expression: this exponential, or the built-in one where not `own`

Of numbers up to zero, such as distances from the largest of a row, in half as many steps: within
2e-7 + 2e-8 |x| of the exact value, relative to it; 0 from -87.7 on, where the power of two would be
subnormal. NaN stays NaN.

define_up_to_zero(widths), up_to_zero(x, width)     the functions, and the expression
</%doc>
<%!
from clnn.codegen.filters import vec_type

def call(x, width, own):
    return f"exp_v{width}({x})" if own else f"exp({x})"

def up_to_zero(x, width):
    return f"exp_up_to_zero_v{width}({x})"
%>
<%def name="define(widths)">\
% for width in sorted(set(widths)):
<% V, I = vec_type("float", width), vec_type("int", width) %>\
${V} exp_v${width}(${V} x)
{
    x = x < -104.0f ? (${V})(-104.0f) : x;
    x = x > 89.0f ? (${V})(89.0f) : x;
    const ${V} shifted = fma(x, (${V})(1.4426950408889634f), (${V})(12582912.0f));
    const ${V} n = shifted - 12582912.0f;
    const ${I} power = as_${I}(shifted) - 0x4b400000;
    const ${V} r = fma(n, (${V})(-1.4286067653e-06f), fma(n, (${V})(-0.693145751953125f), x));
    ${V} p = fma(r, (${V})(0.0013814539415761828f), (${V})(0.00836874544620514f));
    p = fma(p, r, (${V})(0.04166838899254799f));
    p = fma(p, r, (${V})(0.1666652113199234f));
    p = fma(p, r, (${V})(0.4999999403953552f));
    p = fma(fma(p, r, (${V})(1.0f)), r, (${V})(1.0f));
    const ${I} half_power = power >> 1;
    p *= as_${V}((half_power + 127) << 23);
    return p * as_${V}((power - half_power + 127) << 23);
}
% endfor
</%def>
<%def name="define_up_to_zero(widths)">\
% for width in sorted(set(widths)):
<% V, I = vec_type("float", width), vec_type("int", width) %>\
${V} exp_up_to_zero_v${width}(${V} x)
{
    x = x < -88.02969f ? (${V})(-88.02969f) : x;
    const ${V} shifted = fma(x, (${V})(1.44269504f), (${V})(12583039.0f));
    const ${V} r = fma(x, (${V})(1.44269504f), 12583039.0f - shifted);
    ${V} p = fma(r, (${V})(0.001326472731f), (${V})(0.009671512991f));
    p = fma(p, r, (${V})(0.055507335812f));
    p = fma(p, r, (${V})(0.240222424269f));
    p = fma(p, r, (${V})(0.693147003651f));
    p = fma(p, r, (${V})(1.0f));
    return p * as_${V}(as_${I}(shifted) << 23);
}
% endfor
</%def>
