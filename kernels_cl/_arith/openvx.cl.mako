<%doc>
openvx: the neural-network extension's sums of products and elementwise functions
(clnn/arith/openvx_device.py).

functions     vx_rounded(x, w): a product, rounded and clamped | vx_even(x, n): x / 2**n to nearest,
              ties to even, for x >= 0 and n >= 0
Table rows    the bias, where there is one
</%doc>
<%!
from clnn.arith.openvx_device import VxAverage, VxMac, VxMatrix, VxProduct

LANES = "0123456789abcdef"
%>
<%def name="functions(arith, width)">\
<% L = vec_type("long", width) %>\
% if isinstance(arith, VxProduct):
${L} vx_even(const ${L} x, const ${L} n)
{
    const ${L} down = x >> n, rest = x - (down << n);
    return down + (rest * (${L})(2) + (down & (${L})(1)) > (${L})(1) << n ? (${L})(1) : (${L})(0));
}
% elif isinstance(arith, VxMac):
${mac_functions(arith, width)}
% endif
</%def>
<%def name="mac_functions(arith, width)">\
<%
    I, n = vec_type("int", width), arith.shift
    low, high = arith.limits
%>\
${I} vx_rounded(const ${I} x, const ${I} w)
{
    ${I} p = x * w;
% if n and arith.rounding == "even":
    p = (p + ((p >> (${I})(${n})) & (${I})(1)) + (${I})(${(1 << (n - 1)) - 1})) >> (${I})(${n});
% elif n:
%  if arith.rounding == "biased":
    p += (${I})(${1 << (n - 1)});
%  endif
    p = (p + ((p >> (${I})(31)) & (${I})(${(1 << n) - 1}))) >> (${I})(${n});
% endif
% if arith.clamps_products:
    p = clamp(p, (${I})(${scalar(max(low, -2**31), "int")}), (${I})(${min(high, 2**31 - 1)}));
% endif
    return p;
}
</%def>
<%def name="start(arith, width, rows, row)">\
<% T = vec_type(arith.acc, width) %>\
% if rows and isinstance(arith, VxMatrix):
convert_${T}(${row(0)}) * (${T})(${1 << arith.shift})\
% elif rows and arith.starts:
convert_${T}(${row(0)})\
% else:
(${T})(0)\
% endif
</%def>
<%def name="mac(arith, width, acc, x, w)">\
<%
    if isinstance(arith, VxAverage):
        term = x
    elif isinstance(arith, VxMatrix):
        term = f"{x} * {w}"
    else:
        term = f"vx_rounded({x}, {w})"
%>\
% if arith.acc == "long":
${acc} += convert_${vec_type("long", width)}(${term});\
% else:
${acc} += ${term};\
% endif
</%def>
<%def name="channel(arith, width, acc)">\
% if arith.channelwise:
${uses_narrow_storage(arith, width, acc)}
% endif
</%def>
<%def name="uses_narrow_storage(arith, width, acc)">\
<%
    T = vec_type(arith.acc, width)
    low, high = arith.limits
%>\
% if arith.clamps_sums:
    ${acc} = clamp(${acc}, (${T})(${scalar(low, arith.acc)}), (${T})(${scalar(high, arith.acc)}));
% endif
</%def>
<%def name="finish(arith, width, acc, result, row)">\
<% T, R = vec_type(arith.acc, width), vec_type(arith.out.dtype.cl, width) %>\
% if isinstance(arith, VxMatrix):
    const ${R} ${result} = convert_${R}_sat((${acc} + (${T})(${(1 << arith.shift) >> 1})) / (${T})(${1 << arith.shift}));
% elif isinstance(arith, VxAverage):
    const ${R} ${result} = convert_${R}_sat(${acc} / (${T})(${arith.count}));
% elif arith.wrap:
    const ${R} ${result} = convert_${R}(${acc});
% elif arith.starts or not arith.biased:
%  if not arith.channelwise:
    ${uses_narrow_storage(arith, width, acc)}
%  endif
    const ${R} ${result} = convert_${R}_sat(${acc});
% else:
    ${uses_narrow_storage(arith, width, acc)}
    const ${R} ${result} = convert_${R}_sat(${acc} + convert_${T}(${row(0)}));
% endif
</%def>
<%def name="vx_sum(function, width, operands, result)">\
<% I, R = vec_type("int", width), vec_type(function.out.dtype.cl, width) %>\
        const ${R} ${result} = convert_${R}${"" if function.wrap else "_sat"}(
            convert_${I}(${operands[0]}) ${"+" if function.sign > 0 else "-"} convert_${I}(${operands[1]}));
</%def>
<%def name="vx_clamp(function, width, operands, result)">\
<%
    I, R = vec_type("int", width), vec_type(function.out.dtype.cl, width)
    x = f"convert_{I}({operands[0]})"
    x = f"max({x}, -{x})" if function.magnitude else x
%>\
        const ${R} ${result} = convert_${R}(
            clamp(${x}, (${I})(${function.low}), (${I})(${function.high})));
</%def>
<%def name="vx_product(function, width, operands, result)">\
<%
    L, R = vec_type("long", width), vec_type(function.out.dtype.cl, width)
    a, b = (f"convert_{L}({v})" for v in operands)
    move = function.scale.exponent - function.shift
    down = min(-move, 62)
%>\
        const ${L} p = ${a} * ${b} * (${L})(${scalar(function.scale.mantissa, "long")});
        const ${L} sign = p >> (${L})(63);
        ${L} size = (p ^ sign) - sign;
% if function.rounds:
        const ${L} drop = max((${L})(${64 - function.bits}) - clz(size), (${L})(0));
        size = vx_even(size, drop) << drop;
% endif
% if move >= 64:
        size = (${L})(0);
% elif move >= 0:
%  if not function.wrap:
        size = min(size, (${L})(${1 << 20}));
%  endif
        size = size << (${L})(${min(move, 40)});
% elif function.even:
        size = vx_even(size, (${L})(${down}));
% else:
        size = size >> (${L})(${down});
% endif
        const ${R} ${result} = convert_${R}${"" if function.wrap else "_sat"}((size ^ sign) - sign);
</%def>
<%def name="vx_table(function, width, operands, result)">\
<%
    R, first, count = vec_type(function.out.cl, width), function.first, function.count
    def lane(v, k):
        return v if width == 1 else f"{v}.s{LANES[k]}"
    def entry(k):
        at = f"(int){lane(operands[0], k)} - ({first})"
        if function.whole:
            return f"table0[{at}]"
        inside = f"{at} >= 0 && {at} < {count}"
        return f"{inside} ? table0[{at}] : {lane(operands[1], k)}"
%>\
        const ${R} ${result} = (${R})(${", ".join(entry(k) for k in range(width))});
</%def>
