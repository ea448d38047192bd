<%doc>
mli: embARC MLI 2.0, sums of products in fx16, fx16_fx8_fx8 and sa8_sa8_sa32 (clnn/arith/mli.py).

functions     round_shift_T(x, n): x / 2**n to nearest, n > 0 at most the bits of T less one; ties go
              up (the addition of a half saturates) or to even. Shifts are vectors like x.
              GemmShape in 64 bits stay below 2**63, so that they need no saturation: the index of a
              tensor has 31 bits, a product 30.
Table rows    fixed: start, bias | affine: start, bias, multiplier, shift, first shift
</%doc>
<%!
from clnn.arith.mli import MliAffine

BITS = {"int": 32, "long": 64}
%>
<%def name="sum(ctype, x, y)">${f"({x} + {y})" if ctype == "long" else f"add_sat({x}, {y})"}</%def>
<%def name="round_shift(arith, ctype, width)">\
<% T = vec_type(ctype, width) %>\
% if arith.up:
${T} round_shift_${ctype}(const ${T} x, const ${T} n)
{
    return ${sum(ctype, "x", f"((({T})(1)) << (n - ({T})(1)))")} >> n;
}
% else:
${T} round_shift_${ctype}(const ${T} x, const ${T} n)
{
<% U = vec_type("u" + ctype, width) %>\
    const ${T} down = x >> n, tie = (${T})(1) << (n - (${T})(1)), rest = x & ~((${T})(-1) << n);
    return down + as_${T}(as_${U}(rest + tie - (${T})(1) + (down & (${T})(1))) >> as_${U}(n));
}
% endif
</%def>
<%def name="short_shift(arith, width)">\
<%doc>short_shift(x, n): round_shift of |x| up to 2**30 for n of 1 to 30</%doc>\
<% I = vec_type("int", width) %>\
${I} short_shift(const ${I} x, const ${I} n)
{
    const ${I} tie = (${I})(1) << (n - (${I})(1));
    return (x + tie${"" if arith.up else f" - ({I})(1) + (x >> n & ({I})(1))"}) >> n;
}
</%def>
<%def name="any_shift(arith, ctype, width)">\
<%doc>any_shift_T(x, n): round_shift for n of -63 to 63 where the result is cast to 16 bits</%doc>\
<%
    T = vec_type(ctype, width)
    last = BITS[ctype] - 1
%>\
${T} any_shift_${ctype}(const ${T} x, const ${T} n)
{
    const ${T} one = 1, right = clamp(n, one, (${T})(${last})), left = clamp(-n, (${T})(0), (${T})(16));
    const ${T} small = clamp(x, (${T})(-32768), (${T})(32767)) << left;
    const ${T} r = n > (${T})(${last}) ? (${T})(0) : round_shift_${ctype}(x, right);
    return n > (${T})(0) ? r : small;
}
</%def>
<%def name="functions(arith, width)">\
<% affine = isinstance(arith, MliAffine) %>\
% if affine and (not arith.short or arith.two_shifts):
${round_shift(arith, "int", width)}
% endif
% if affine and arith.short:
${short_shift(arith, width)}
% elif affine and arith.full:
${round_shift(arith, "long", width)}
${any_shift(arith, "long", width)}
% elif affine:
${any_shift(arith, "int", width)}
% elif arith.out_shift > 0:
${round_shift(arith, arith.acc, width)}
% endif
</%def>
<%def name="start(arith, width, rows, row)">\
% if arith.acc == "long":
(${vec_type("long", width)})(0)\
% else:
${row(0)}\
% endif
</%def>
<%def name="mac(arith, width, acc, x, w)">\
% if arith.acc == "long":
${acc} += convert_${vec_type("long", width)}(${x} * ${w});\
% else:
${acc} += ${x} * ${w};\
% endif
</%def>
<%def name="channel(arith, width, acc)"></%def>
<%def name="finish(arith, width, acc, result, row)">\
% if isinstance(arith, MliAffine):
${finish_affine(arith, width, acc, result, row)}
% else:
${finish_fixed(arith, width, acc, result, row)}
% endif
</%def>
<%def name="finish_fixed(arith, width, acc, result, row)">\
<%
    T, S, n = vec_type(arith.acc, width), vec_type("short", width), arith.out_shift
    bias = f"convert_{T}({row(1)})" if arith.acc == "long" else row(1)
%>\
    const ${T} total = ${acc if arith.safe else sum(arith.acc, acc, bias)};
% if n >= BITS[arith.acc]:
    const ${T} scaled = (${T})(0);
% elif n > 0:
    const ${T} scaled = round_shift_${arith.acc}(total, (${T})(${n}));
% else:
    const ${T} scaled = clamp(total, (${T})(-32768), (${T})(32767)) << (${T})(${min(-n, 16)});
% endif
    const ${S} ${result} = convert_${S}(max(min(scaled, (${T})(${arith.high})), (${T})(${arith.low})));
</%def>
<%def name="finish_affine(arith, width, acc, result, row)">\
<%
    I, C = vec_type("int", width), vec_type("char", width)
    P, ctype = (vec_type("long", width), "long") if arith.full else (I, "int")
%>\
    const ${I} total = ${acc if arith.safe else sum("int", acc, row(1))};
% if arith.full:
    const ${P} scaled = convert_${P}(total) * convert_${P}(${row(2)}), shift = convert_${P}(${row(3)});
% else:
%  if arith.two_shifts:
    const ${I} first = ${row(4)};
    const ${I} kept = first > (${I})(0) ? round_shift_int(total, max(first, (${I})(1))) : total;
%  else:
    const ${I} kept = total;
%  endif
    const ${I} scaled = clamp(kept, (${I})(-32768), (${I})(32767)) * ${row(2)}, shift = ${row(3)};
% endif
% if arith.short:
    const ${I} moved = short_shift(scaled, shift) + (${I})(${arith.zero_out});
% else:
    const ${P} cast = clamp(any_shift_${ctype}(scaled, shift), (${P})(-32768), (${P})(32767));
    const ${P} moved = clamp(cast + (${P})(${arith.zero_out}), (${P})(-128), (${P})(127));
% endif
    const ${C} ${result} = convert_${C}(max(min(moved, (${P})(${arith.high})), (${P})(${arith.low})));
</%def>
