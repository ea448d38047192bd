<%doc>
Scales of operands that are stored in bytes (clnn/ops/_scales.py), as an argument of the kernel.

parameter(count)         the kernel's parameter, none where count is 0
declare(count, strict)   statements in front of all others: the names that types refer to. strict:
                         products and sums stay apart
</%doc>
<%def name="parameter(count)">\
% if count:
    __global const float *scales,
% endif
</%def>
<%def name="declare(count, strict)">\
% if strict or count:
    #pragma OPENCL FP_CONTRACT OFF
% endif
% for k in range(count):
    const float scale${k} = scales[${2 * k}], inverse${k} = scales[${2 * k + 1}];
% endfor
</%def>
