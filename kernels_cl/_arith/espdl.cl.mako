<%doc>
espdl: ESP-DL, sums of products shifted by powers of two (clnn/arith/espdl.py).

Table rows  start; bias where it is added to finished sums (low half, then high half where it is wide);
            shift where channels differ
</%doc>
<%namespace name="sh" file="espdl_shift.cl.mako"/>
<%!
from clnn.arith.mli_primitives import limits
%>
<%def name="functions(arith, width)">\
${sh.define(width, arith.acc, arith.rounding, arith.shift)}
</%def>
<%def name="start(arith, width, rows, row)">\
% if arith.acc == "long":
(${vec_type("long", width)})(0)\
% else:
${row(0)}\
% endif
</%def>
<%def name="mac(arith, width, acc, x, w)">\
% if arith.lane:
<% I, (low, high) = vec_type("int", width), limits(arith.lane) %>\
${acc} = clamp(${acc} + ${x} * ${w}, (${I})(${low}), (${I})(${high}));\
% elif arith.acc == "long":
${acc} += convert_${vec_type("long", width)}(${x} * ${w});\
% else:
${acc} += ${x} * ${w};\
% endif
</%def>
<%def name="channel(arith, width, acc)"></%def>
<%def name="finish(arith, width, acc, result, row)">\
<%
    T, R = vec_type(arith.acc, width), vec_type("short" if arith.bits == 16 else "char", width)
    wide = f"convert_{T}" if arith.acc == "long" else ""
    low, high = (f"({T})({v})" for v in arith.limits)
    bias = f"{wide}({row(1)})" if arith.adds else ""
    if arith.wide:
        bias = f"(({wide}({row(2)}) << ({T})(32)) | ({wide}({row(1)}) & ({T})(0xffffffffL)))"
    total = f"{acc} + {bias}" if arith.adds and not arith.late else acc
    last = 1 + (2 if arith.wide else 1 if arith.adds else 0)
    by = f"({T})({arith.shift})" if arith.shift is not None else f"{wide}({row(last)})"
%>\
% if arith.grains:
    const ${T} total = (${total}) & (${T})(${-(1 << arith.grain)});
% else:
    const ${T} total = ${total};
% endif
% if arith.late:
    const ${T} steps = add_sat(move_${arith.acc}(total, ${by}), ${bias});
% else:
    const ${T} steps = move_${arith.acc}(total, ${by});
% endif
    const ${R} ${result} = convert_${R}(max(min(steps, ${high}), ${low}));
</%def>
