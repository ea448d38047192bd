<%doc>
mli_shift: embARC MLI 2.0, rounding shifts of int and long vectors by any number of bits (clnn/arith/mli_primitives.py).

define(width, up, text)  the functions that `text` names, for one vector width; ties go up, or to even
    shift_sat(x, n)   x / 2**n in 32 bits: the addition of a half saturates; n > 31 gives 0
    shift_wide(x, n)  the same in a wider container, for results that are cast to 16 bits or less
    shift_long(x, n)  the same of 64 bits, for results that are cast to 32 bits or less
    shift_full(x, n)  the same of 64 bits with results of 64 bits
    sign_bits(x)      redundant sign bits of 32-bit numbers
    In all of them n < 0 moves left, with saturation (to the width of the cast).
</%doc>
<%def name="rounded(T, U, up, saturating)">\
% if not up:
    const ${T} down = x >> right, tie = (${T})(1) << (right - (${T})(1)), rest = x & ~((${T})(-1) << right);
    const ${T} r = down + as_${T}(as_${U}(rest + tie - (${T})(1) + (down & (${T})(1))) >> as_${U}(right));
% elif saturating:
    const ${T} r = add_sat(x, (${T})(1) << (right - (${T})(1))) >> right;
% else:
    const ${T} r = (x >> right) + ((x >> (right - (${T})(1))) & (${T})(1));
% endif
</%def>
<%def name="define(width, up, text)">\
<%
    I, L = vec_type("int", width), vec_type("long", width)
    UI, UL = vec_type("uint", width), vec_type("ulong", width)
%>\
% if "shift_sat" in text:
${I} shift_sat(const ${I} x, const ${I} n)
{
    const ${I} right = clamp(n, (${I})(1), (${I})(31));
    const ${L} left = convert_${L}(clamp(-n, (${I})(0), (${I})(31)));
    ${rounded(I, UI, up, True)}
    const ${I} small = n > (${I})(31) ? (${I})(0) : r;
    return n > (${I})(0) ? small : convert_${I}_sat(convert_${L}(x) << left);
}
% endif
% if "shift_wide" in text:
${I} shift_wide(const ${I} x, const ${I} n)
{
    const ${I} right = clamp(n, (${I})(1), (${I})(31)), left = clamp(-n, (${I})(0), (${I})(15));
    ${rounded(I, UI, up, False)}
    const ${I} small = n > (${I})(31) ? (${I})(0) : r;
    return n > (${I})(0) ? small : clamp(x, (${I})(-32768), (${I})(32767)) << left;
}
% endif
% if "shift_long" in text or "shift_full" in text:
${L} shift_long(const ${L} x, const ${L} n)
{
    const ${L} right = clamp(n, (${L})(1), (${L})(63)), left = clamp(-n, (${L})(0), (${L})(31));
    ${rounded(L, UL, up, False)}
    const ${L} small = n > (${L})(63) ? (${L})(0) : r;
    return n > (${L})(0) ? small : clamp(x, (${L})(INT_MIN), (${L})(INT_MAX)) << left;
}
% endif
% if "shift_full" in text:
${L} shift_full(const ${L} x, const ${L} n)
{
    const ${L} left = clamp(-n, (${L})(0), (${L})(62)), most = (${L})(LONG_MAX) >> left;
    const ${L} low = (${L})(LONG_MIN) >> left;
    const ${L} high = x > most ? (${L})(LONG_MAX) : x << left;
    return n > (${L})(0) ? shift_long(x, n) : (x < low ? (${L})(LONG_MIN) : high);
}
% endif
% if "sign_bits" in text:
${I} sign_bits(const ${I} x)
{
    return as_${I}(clz(as_${UI}(x ^ (x >> (${I})(31))))) - (${I})(1);
}
% endif
</%def>
