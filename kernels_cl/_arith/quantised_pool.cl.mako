<%doc>
quantised_pool: averages of windows of bytes (QuantisedAverage and RealAverage of clnn/arith/quantised.py).

functions(rule, width), finish(rule, width, total, count, table, result)
    as clnn/arith/_base.py says of an Averaging; the table's column holds bits of factors, of RealAverage
    both scales
</%doc>
<%namespace name="qm" file="quantised_map.cl.mako"/>
<%def name="functions(rule, width)">\
#pragma OPENCL FP_CONTRACT OFF
</%def>
<%def name="finish(rule, width, total, count, table, result)">\
<% F, I = vec_type("float", width), vec_type("int", width) %>\
% if rule.acc == "float":
    ${F} steps_ = ${total} / (${F})(${count}) / (${F})(as_float(${table}[1]));
% else:
    ${F} steps_ = convert_${F}(${total} - (${I})(${rule.zeros[0]} * (${count}))) * (${F})(as_float(${table}[${count}]));
% endif
    const ${I} zero_ = (${I})(${rule.zeros[1]});
    ${qm.round_off("steps_", rule.kind.cl, width, result, "zero_")}\
</%def>
