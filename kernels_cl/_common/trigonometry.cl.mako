<%doc>
Sine, cosine and tangent of float vectors, each element alone, over all of float32.

|x| = k * pi/2 + r, |r| <= pi/4. Below LIMIT, r is |x| less k times pi/2 in three parts, of which the first
difference is exact (Cody and Waite). From there on, where |x| = m * 2^e with m of 24 bits, only 96 bits of
2/pi can change k modulo 4 and r: their product with m, in integers, has both (Payne and Hanek). r is within
one unit in the last place, sine and cosine are polynomials of it. They are within 2 units, the tangent is
within 4. A zero keeps its sign; infinities and NaN give NaN.

apply(fn, v, width)    statement that puts the function of variable v into it; defines what it calls
Parts of two words are added, not joined by |: compilers make funnel shifts of that, which Oclgrind lacks.
</%doc>
<%!
from clnn.codegen.filters import vec_type

FUNCTIONS = ("sin", "cos", "tan")
LIMIT = "131072.0f"
# Bits of 2/pi behind the point, 32 to a word, behind a word of those in front of it.
WORDS = ("0u", "0xa2f9836eu", "0x4e441529u", "0xfc2757d1u", "0xf534ddc0u", "0xdb629599u", "0x3c439041u", "0xfe5163abu")
PLACES = 5  # words in which a window of 96 bits can begin

def word(number, U):
    """Expression of WORDS[first + number], where the elements of variable `first` are below PLACES."""
    text = f"({U})({WORDS[PLACES - 1 + number]})"
    for first in reversed(range(PLACES - 1)):
        text = f"(first == {first}u ? ({U})({WORDS[first + number]}) : {text})"
    return text
%>
<%def name="apply(fn, v, width)">\
<%
    define(f"quarter_v{width}", capture(quarter, width))
    define(f"{fn}_v{width}", capture(function, fn, width))
%>${v} = ${fn}_v${width}(${v});\
</%def>
<%def name="quarter(width)">\
<% V, I, U = vec_type("float", width), vec_type("int", width), vec_type("uint", width) %>\
${V} quarter_v${width}(const ${V} x, ${I} *quarters)
{
    const ${V} shifted = fma(x, (${V})(0x1.45f306p-1f), (${V})(12582912.0f));
    const ${V} k = shifted - 12582912.0f;
    ${V} r = fma(k, (${V})(-0x1.921fb6p+0f), x);
    r = fma(k, (${V})(0x1.777a5cp-25f), r);
    r = fma(k, (${V})(0x1.ee59dap-50f), r);
    *quarters = as_${I}(shifted);
    const ${I} large = x >= ${LIMIT};
    if (${"large" if width == 1 else "any(large)"}) {
        const ${U} bits = as_${U}(x), m = (bits & 0x7fffffu) | 0x800000u;
        const ${U} begin = (bits >> 23) - 120u, first = begin >> 5, shift = begin & 31u;
% for n in range(4):
        const ${U} t${n} = ${word(n, U)};
% endfor
% for n in range(3):
        const ${U} w${n} = (t${n} << shift) + ((t${n + 1} >> 1) >> (31u - shift));
% endfor
        const ${U} middle = m * w1, low = middle + mul_hi(m, w2);
        const ${U} high = m * w0 + mul_hi(m, w1) + (low < middle ? (${U})(1) : (${U})(0));
        const ${I} part = as_${I}((high << 2) + mul_hi(low, (${U})(4u))), negative = part >> 31;
        const ${U} upper = as_${U}(part ^ negative), lower = (low << 2) ^ as_${U}(negative);
        const ${V} coarse = convert_${V}(upper & 0xffffff00u);
        const ${V} fine = fma(convert_${V}(lower), (${V})(0x1p-32f), convert_${V}(upper & 0xffu));
        ${V} reduced = fma(coarse, (${V})(-0x1.777a5cp-57f), fine * 0x1.921fb6p-32f);
        reduced = fma(coarse, (${V})(0x1.921fb6p-32f), reduced);
        reduced = as_${V}(as_${I}(reduced) ^ (negative & (int)0x80000000));
        *quarters = large ? as_${I}((high + 0x20000000u) >> 30) : *quarters;
        r = large ? reduced : r;
    }
    return x < INFINITY ? r : (${V})(NAN);
}
</%def>
<%def name="function(fn, width)">\
<% V, I = vec_type("float", width), vec_type("int", width) %>\
${V} ${fn}_v${width}(const ${V} x)
{
    ${I} k;
    const ${V} r = quarter_v${width}(fabs(x), &k), z = r * r;
    ${V} s = fma(z, (${V})(-1.951029207e-4f), (${V})(8.33212444e-3f));
    s = fma(z, s, (${V})(-0.16666654f));
    s = fma(z * s, r, r);
    ${V} c = fma(z, (${V})(2.443292e-5f), (${V})(-1.388732071e-3f));
    c = fma(z, c, (${V})(0.041666646f));
    c = fma(z, c, (${V})(-0.5f));
    c = fma(z, c, (${V})(1.0f));
    const ${I} odd = (k & 1) != 0;
% if fn == "tan":
    const ${V} over = odd ? c : s, below = odd ? -s : c, inverse = 1.0f / below;
    ${V} t = over * inverse;
    t = fma(fma(-t, below, over), inverse, t);
    return as_${V}(as_${I}(t) ^ (as_${I}(x) & (int)0x80000000));
% elif fn == "sin":
    return as_${V}(as_${I}(odd ? c : s) ^ (((k << 30) ^ as_${I}(x)) & (int)0x80000000));
% else:
    return as_${V}(as_${I}(odd ? s : c) ^ (((k + 1) << 30) & (int)0x80000000));
% endif
}
</%def>
