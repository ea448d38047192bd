<%doc>
mli_pool: embARC MLI 2.0, averages of windows (clnn/arith/mli_pool.py).

functions(rule, width), finish(rule, width, total, count, table, result)
    as clnn/arith/_base.py says of an Averaging; the table's columns are multiplier, shift and start
</%doc>
<%namespace name="sh" file="mli_shift.cl.mako"/>
<%def name="functions(rule, width)">\
${sh.define(width, rule.up, "shift_long" if rule.acc_bits == 64 else "shift_sat")}\
</%def>
<%def name="finish(rule, width, total, count, table, result)">\
<% T, I, L = (vec_type(t, width) for t in ("short" if rule.acc_bits == 64 else "char", "int", "long")) %>\
    __global const int *rate = ${table} + (${count}) * 3;
% if rule.acc_bits == 64:
    const ${T} ${result} = convert_${T}_sat(shift_long(convert_${L}(${total}) * (${L})(rate[0]), (${L})(rate[1])));
% else:
    const ${T} ${result} = convert_${T}_sat(shift_sat(${total} * (${I})(rate[0]) + (${I})(rate[2]), (${I})(rate[1])));
% endif
</%def>
