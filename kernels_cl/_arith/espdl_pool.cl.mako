<%doc>
espdl_pool: ESP-DL, averages of windows (EspAverage of clnn/arith/espdl_maps.py).

functions(rule, width), finish(rule, width, total, count, table, result)
    as clnn/arith/_base.py says of an Averaging; the table's column holds counts where averages are
    rounded down, else bits of the factor
</%doc>
<%namespace name="em" file="espdl_map.cl.mako"/>
<%def name="functions(rule, width)">\
#pragma OPENCL FP_CONTRACT OFF
</%def>
<%def name="finish(rule, width, total, count, table, result)">\
<%
    R, L, F = (vec_type(t, width) for t in (em.module.TYPES[rule.bits], "long", "float"))
    number = em.module.number
%>\
% if rule.rounding == "floor":
    const ${L} given_ = convert_${L}(${total}) << ${number(max(-rule.shift, 0), width, "long")};
    const ${L} parts_ = (${L})((long)(${table}[${count}]) << ${max(rule.shift, 0)});
    const ${L} rest_ = given_ % parts_;
    const ${R} ${result} = convert_${R}_sat(given_ / parts_ - (rest_ < (${L})(0) ? (${L})(1) : (${L})(0)));
% else:
    const ${F} scaled_ = convert_${F}(${total}) * (${F})(as_float(${table}[${count}]));
    const ${R} ${result} = ${em.module.stored(em.module.nearest("scaled_", rule.rounding, width), rule.bits, width)};
% endif
</%def>
