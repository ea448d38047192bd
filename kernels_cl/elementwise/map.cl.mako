<%doc>
elementwise/map: one function of up to three operands, whose types may differ from the result's.

Tensors  operands and dst, all seen with dst's shape (pitch 0 where an operand is broadcast)
Launch   global (inner / chunk, product of outer extents / band)
Params   name            kernel name
         fn              a key of RULES in clnn/ops/elementwise/logic.py, or "cast"
         types           of each operand, then of dst; half is storage only
         from_bool       whether the first operand holds truth values
         to_bool         whether dst does
         extents         of the outer loops
         pitches         [tensor][outer loop]
         inner           extent of the innermost loop
         inner_pitches   [tensor]
         wg              local size
Tunables vw              1, 2, 4, 8 or 16; at most inner
         chunk, last, band   as in movement/gather
</%doc>
<%namespace name="cv" file="/_common/convert.cl.mako"/>
<%namespace name="lp" file="/_common/loops.cl.mako"/>
<%!
TRUTH = {
    "equal": "a == b", "greater": "a > b", "greater_or_equal": "a >= b", "less": "a < b",
    "less_or_equal": "a <= b", "is_nan": "a != a", "is_inf": "(a == PLUS) | (a == -PLUS)",
    "is_inf_positive": "a == PLUS", "is_inf_negative": "a == -PLUS", "truth": "a != T(0)",
}
SAME = {
    "and": "a & b", "or": "a | b", "xor": "a ^ b", "not": "a ^ T(1)", "complement": "~a",
    "shift_left": "b >= T(BITS) ? T(0) : (a << (b & T(BITS - 1)))",
    "shift_right": "b >= T(BITS) ? T(0) : (a >> (b & T(BITS - 1)))",
    "where": "select(c, b, MASK(a))", "fmod": "fmod(a, b)",
}
REAL = ("float", "half", "double")
SIGNED = ("char", "short", "int", "long")
BITS = {"char": 8, "short": 16, "int": 32, "long": 64, "float": 32, "double": 64}
BITS.update({f"u{k}": BITS[k] for k in ("char", "short", "int", "long")})
MASKS = {8: "char", 16: "short", 32: "int", 64: "long"}
%>
<%
    n = len(types) - 1
    work = ["float" if t == "half" else t for t in types]
    rows = prod(extents)
    names = [f"s{k}" for k in range(n)] + ["d"]
    assert is_open(inner) or vw <= inner, (vw, inner)
    assert vw == 1 or (is_one(inner_pitches[-1]) and all(is_one(p) or is_zero(p) for p in inner_pitches)), inner_pitches
    mask = MASKS[BITS[work[0]]]
    function = "truth" if fn == "cast" and to_bool and not from_bool else fn
%>
## -1 of a comparison is narrowed first: some simulators widen a vector of bits with its sign where they may not.
<%def name="truth(text, vw)">\
<% T, R = vec_type(work[0], vw), vec_type(work[-1], vw) %>\
% if vw == 1:
        const ${R} r = (${text}) ? 1 : 0;
% else:
        const ${R} r = as_${R}(-convert_char${R.removeprefix("uchar")}(${text}));
% endif
</%def>
<%def name="remainder(vw)">\
<% T, R = vec_type(work[0], vw), vec_type(work[-1], vw) %>\
<% signed = work[0] in SIGNED %>\
        const ${T} s = b == (${T})(0)${f" || b == ({T})(-1)" if signed else ""} ? (${T})(1) : b;
        ${R} r = a % s;
% if fn == "mod" and signed:
        r = (r != (${T})(0)) && ((r ^ b) < (${T})(0)) ? r + b : r;
% endif
</%def>
<%def name="power(vw)">\
<% T, R = vec_type(work[0], vw), vec_type(work[-1], vw) %>\
        ${R} r = 1;
        if (b == rint(b) && fabs(b) < 65536) {
            int e = convert_int(fabs(b));
            ${T} p = a;
            for (; e > 0; e >>= 1, p *= p) r = e & 1 ? r * p : r;
            if (b < 0) r = a == 1 ? 1 : (a == (${T})(-1) ? r : 0);
        } else r = convert_${R}_sat(pow((float)a, (float)b));
</%def>
<%def name="inside(low, high, to, outside, vw)">\
<% T, R, suffix = vec_type(work[0], vw), vec_type(work[-1], vw), "" if vw == 1 else str(vw) %>\
<%doc>t = a as type `to` where low <= a < high, else `outside`</%doc>\
<% wide = vec_type(to, vw) %>\
% if vw == 1:
        const int in = a >= ${low} && a < ${high};
        const ${wide} t = in ? convert_${wide}(a) : (${wide})(${outside});
% else:
        const ${mask}${suffix} in = (a >= (${T})(${low})) & (a < (${T})(${high}));
        const ${wide} t = select((${wide})(${outside}), convert_${wide}(select((${T})(0), a, in)), convert_${wide}(in));
% endif
</%def>
<%def name="cast_real_to_integer(vw)">\
<% T, R, suffix = vec_type(work[0], vw), vec_type(work[-1], vw), "" if vw == 1 else str(vw) %>\
<% to = types[-1] %>\
% if to in ("uint", "long", "ulong"):
${inside("-9223372036854775808.0f", "9223372036854775808.0f", "long", "LONG_MIN", vw)}
% else:
${inside("-2147483648.0f", "2147483648.0f", "int", "INT_MIN", vw)}
% endif
% if to != "ulong":
        const ${R} r = convert_${R}(t);
% elif vw == 1:
        const int over = a >= 9223372036854775808.0f && a < 18446744073709551616.0f;
        const ${R} r = over ? convert_${R}(a) : convert_${R}(t);
% else:
        const ${mask}${suffix} over = (a >= (${T})(9223372036854775808.0f)) & (a < (${T})(18446744073709551616.0f));
        const ${R} r = select(convert_${R}(t), convert_${R}(select((${T})(0), a, over)), convert_long${suffix}(over));
% endif
</%def>
<%def name="compute(vw)">\
<% T, R = vec_type(work[0], vw), vec_type(work[-1], vw) %>\
% if function in TRUTH:
<% text = TRUTH[function].replace("PLUS", f"({T})(INFINITY)").replace("T(", f"({T})(") %>\
${truth(text, vw)}
% elif function in SAME:
<%
    wide = vec_type(work[-1], vw)
    choose = f"convert_{vec_type(MASKS[BITS[work[-1]]], vw)}(a != ({T})(0))" if vw > 1 else "a != 0"
    text = SAME[function].replace("MASK(a)", choose)
    if function == "where" and vw == 1:
        text = "a != 0 ? b : c"
    text = text.replace("BITS", str(BITS[work[0]])).replace("T(", f"({T})(")
%>\
        const ${R} r = ${text};
% elif function in ("mod", "rest"):
${remainder(vw)}
% elif function == "bits":
        const ${R} r = as_${R}(a);
% elif function == "pow_real":
${power(vw)}
% elif types[-1] in REAL or work[0] not in REAL or to_bool:
        const ${R} r = ${"a" if T == R else f"convert_{R}(a)"};
% else:
${cast_real_to_integer(vw)}
% endif
</%def>
<%def name="each(vw)">\
% for k in range(n):
        const ${vec_type(work[k], vw)} ${"abc"[k]} = ${cv.read(types[k], work[k], vw, f"src{k}", f"k * {inner_pitches[k]}", inner_pitches[k] if vw > 1 else 1)};
% endfor
${compute(vw)}
        ${cv.write(work[-1], types[-1], vw, "r", "dst", f"k * {inner_pitches[-1]}")}\
</%def>
${group_size(wg)}
__kernel void ${name}(
% for k in range(n):
    __global const ${types[k]} *src${k}_base, const int src${k}_offset,
% endfor
    __global ${types[-1]} *dst_base, const int dst_offset)
{
    const int first = get_global_id(0) * ${chunk}, begin = get_global_id(1) * ${band};
    if (first > ${last}) return;
    const int stop = first == ${last} ? ${inner} : first + ${chunk};
    for (int row = begin; row < min(begin + ${band}, ${rows}); ++row) {
    ${lp.offsets("row", extents, pitches, names)}
% for k in range(n):
    __global const ${types[k]} *src${k} = src${k}_base + src${k}_offset + s${k};
% endfor
    __global ${types[-1]} *dst = dst_base + dst_offset + d;
% if vw > 1 and is_open(inner):
    int k = first;
    for (; k + ${vw} <= stop; k += ${vw}) {
${each(vw)}
    }
    for (; k < stop; ++k) {
${each(1)}
    }
% else:
    for (int j = first; j < stop; j += ${vw}) {
        const int k = ${f"min(j, {inner - vw})" if vw > 1 else "j"};
${each(vw)}
    }
% endif
    }
}
