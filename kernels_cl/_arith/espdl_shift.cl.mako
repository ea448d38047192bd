<%doc>
espdl_shift: ESP-DL, divisions by powers of two (clnn/arith/espdl.py).

define(width, ctype, rounding, shift)  move_CTYPE(x, n): x / 2**n, rounded down (floor), to nearest with
    ties up (half_up) or to even (half_even). n < 0 moves left: values beyond 2**17 become some value
    beyond it, of the same sign, so that results of at most 16 bits saturate. shift: the n of all calls,
    None where it is only known when the kernel runs.
</%doc>
<%def name="rounded(T, U, rounding)">\
% if rounding == "half_even":
    const ${T} down = x >> right, tie = (${T})(1) << (right - (${T})(1)), rest = x & ~((${T})(-1) << right);
    const ${T} r = down + as_${T}(as_${U}(rest + tie - (${T})(1) + (down & (${T})(1))) >> as_${U}(right));
% elif rounding == "half_up":
    const ${T} r = (x >> right) + ((x >> (right - (${T})(1))) & (${T})(1));
% else:
    const ${T} r = x >> right;
% endif
</%def>
<%def name="define(width, ctype, rounding, shift=None)">\
<%
    T, U, last = vec_type(ctype, width), vec_type("u" + ctype, width), 63 if ctype == "long" else 31
    assert rounding in ("floor", "half_up", "half_even"), rounding
%>\
${T} move_${ctype}(const ${T} x, const ${T} n)
{
% if shift is None or shift > 0:
    const ${T} right = clamp(n, (${T})(1), (${T})(${last}));
    ${rounded(T, U, rounding)}
    const ${T} small = ${"r" if rounding == "floor" else f"n > ({T})({last}) ? ({T})(0) : r"};
% endif
% if shift is None or shift <= 0:
    const ${T} left = clamp(-n, (${T})(0), (${T})(18));
    const ${T} most = ((${T})(1 << 18) >> left) + (${T})(1);
    const ${T} large = clamp(x, -most, most) << left;
% endif
% if shift is None:
    return n > (${T})(0) ? small : large;
% else:
    return ${"small" if shift > 0 else "large"};
% endif
}
</%def>
