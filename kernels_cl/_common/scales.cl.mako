<%doc>
Parameters of functions of bytes (clnn/ops/shared/byte_scales.py), as an argument of the kernel.

parameters(count, extra_types)   kernel parameters for `count` pairs of them, and for operands of these types
declare(count, strict)           statements in front of all others: the names that functions refer to.
                                 strict: products and sums stay apart
</%doc>
<%def name="parameters(count, extra_types)">\
% if count:
    __global const float *scales,
% endif
% for k, ctype in enumerate(extra_types):
    __global const ${cell(ctype)} *extra${k}_base, const int extra${k}_offset,
% endfor
</%def>
<%def name="declare(count, strict)">\
% if strict or count:
    #pragma OPENCL FP_CONTRACT OFF
% endif
% for k in range(count):
    const float scale${k} = scales[${2 * k}], inverse${k} = scales[${2 * k + 1}];
% endfor
</%def>
