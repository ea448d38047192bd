<%doc>
int8: sums of products of bytes in 32 bits, or in float32 where that holds them exactly, times a
factor of each output channel (clnn/arith/int8.py). Results are float32.

Table rows  start, bits of the factor
</%doc>
<%def name="functions(arith, width)"></%def>
<%def name="start(arith, width, rows, row)">\
% if arith.floats:
convert_${vec_type("float", width)}(${row(0)})\
% else:
${row(0)}\
% endif
</%def>
<%def name="mac(arith, width, acc, x, w)">\
% if arith.floats:
${acc} = fma(${x}, ${w}, ${acc});\
% else:
${acc} += ${x} * ${w};\
% endif
</%def>
<%def name="channel(arith, width, acc)"></%def>
<%def name="finish(arith, width, acc, result, row)">\
<% F = vec_type("float", width) %>\
    ${F} ${result} = ${acc if arith.floats else f"convert_{F}({acc})"} * as_${F}(${row(1)});
</%def>
