<%doc>
quantised: sums of products of integers in 32 bits, or in float32 where that holds them exactly
(clnn/arith/quantised.py). Requantised ones are scaled in float32, rounded to nearest, ties to even, and
saturated; others are results as they are. Those of real taps are of what inputs stand for.

scaled(arith, width, acc, row)   declares steps_, the sums in steps of the result, as floats that are not rounded

Table rows  start; bits of the factor of each output channel where sums are requantised, of real taps the bias
</%doc>
<%!
from clnn.codegen.filters import S8_BITS, S8_ZERO
%>
<%def name="functions(arith, width)">\
% if arith.apart:
#pragma OPENCL FP_CONTRACT OFF
% endif
</%def>
<%def name="start(arith, width, rows, row)">\
% if arith.apart:
(${vec_type("float", width)})(0)\
% elif arith.floats:
convert_${vec_type("float", width)}(${row(0)})\
% else:
${row(0)}\
% endif
</%def>
<%def name="mac(arith, width, acc, x, w)">\
% if arith.apart or arith.floats:
${acc} = fma(${x}, ${w}, ${acc});\
% else:
${acc} += ${x} * ${w};\
% endif
</%def>
<%def name="channel(arith, width, acc)"></%def>
<%def name="scaled(arith, width, acc, row)">\
<% F = vec_type("float", width) %>\
% if arith.apart:
    ${F} steps_ = (${acc} + ${row(1)}) / (${F})(${scalar(arith.step_out, "float")});
% elif arith.written:
    ${F} steps_ = ${acc if arith.floats else f"convert_{F}({acc})"};
    steps_ = fma(steps_, as_${F}(${row(1)}), steps_ * as_${F}(${row(2)})) + as_${F}(${row(3)});
    steps_ = steps_ / (${F})(${scalar(arith.step_out, "float")});
% else:
    ${F} steps_ = ${acc if arith.floats else f"convert_{F}({acc})"} * as_${F}(${row(1)});
% endif
</%def>
<%def name="finish(arith, width, acc, result, row)">\
<%
    F, I = vec_type("float", width), vec_type("int", width)
    low, high = ((f"({F})({scalar(float(v - arith.zero_out), 'float')})" for v in (arith.low, arith.high))
                 if arith.requantises else ("", ""))
%>\
% if not arith.requantises:
    ${I} ${result} = ${f"convert_{I}({acc})" if arith.floats else acc};
% else:
${scaled(arith, width, acc, row)}\
    steps_ = steps_ > ${low} ? steps_ : ${low};
    steps_ = steps_ < ${high} ? steps_ : ${high};
    ${vec_type(arith.kind.cl, width)} ${result} = convert_${vec_type(arith.kind.cl, width)}(
        as_${I}(steps_ + (${F})(${scalar(float(S8_ZERO), "float")})) - (${I})(${S8_BITS - arith.zero_out}));
% endif
</%def>
