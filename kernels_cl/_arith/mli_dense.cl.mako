<%doc>
mli_dense: embARC MLI 2.0, sums of products scaled to a common format (MliDense of clnn/arith/mli_dense.py).

Table rows    what sums of 32 bits begin with, multiplier, shift, what is added to sums of 64 bits
</%doc>
<%namespace name="sh" file="mli_shift.cl.mako"/>
<%def name="functions(arith, width)">\
<% shift = "shift_long" if arith.rule.given.affine else "shift_full" if arith.acc == "long" else "shift_sat" %>\
${sh.define(width, arith.rule.up, shift)}\
</%def>
<%def name="start(arith, width, rows, row)">\
${f"({vec_type('long', width)})(0)" if arith.acc == "long" else row(0)}\
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
<% I, L = vec_type("int", width), vec_type("long", width) %>\
% if arith.rule.given.affine:
    const ${L} scaled = convert_${L}(${acc}) * convert_${L}(${row(1)});
    const ${I} ${result} = convert_${I}_sat(shift_long(scaled, convert_${L}(${row(2)})));
% elif arith.acc == "long":
    const ${L} ${result} = shift_full(${acc} + convert_${L}(${row(3)}), convert_${L}(${row(2)}));
% else:
    const ${I} ${result} = shift_sat(${acc}, ${row(2)});
% endif
</%def>
