<%doc>
quantised_map: elementwise functions of quantised tensors (clnn/arith/quantised_maps.py).

functions(fn, width)  what the functions need
NAME(fn, width, operands, result)
                      statements that declare `result`, of the result's type, from variables
</%doc>
<%namespace name="st" file="/_common/epilogue.cl.mako"/>
<%!
from clnn.codegen.filters import S8_BITS, S8_ZERO, vec_type

LIMITS = {"char": (-128, 127), "uchar": (0, 255), "short": (-32768, 32767), "ushort": (0, 65535)}
DIGITS = "0123456789abcdef"
SHIFT = "128.0f"  # of int8 as uint8

def real(value, width):
    from clnn.codegen.filters import scalar
    return f"({vec_type('float', width)})({scalar(float(value), 'float')})"
%>
<%def name="functions(fn, width)">\
#pragma OPENCL FP_CONTRACT OFF
</%def>
<%def name="round_off(value, ctype, width, result, zero, limits=None, shifted=False)">\
<%
    """shifted: value is 128 more, and rounded so, as int8 that is uint8"""
    limits = LIMITS["uchar"] if shifted else limits
    I, R, (low, high) = vec_type("int", width), vec_type(ctype, width), limits or LIMITS[ctype]
    low, high = (real(v, width) if zero is None else f"convert_{vec_type('float', width)}(({I})({v}) - {zero})" for v in (low, high))
%>\
        ${value} = ${value} > ${low} ? ${value} : ${low};
        ${value} = ${value} < ${high} ? ${value} : ${high};
        const ${R} ${result} = convert_${R}(as_${I}(${value} + ${real(S8_ZERO, width)}) - (${I})(${S8_BITS + 128 * shifted})${f" + {zero}" if zero else ""});
</%def>
<%def name="dequantise(fn, width, operands, result)">\
<% F, I = vec_type("float", width), vec_type("int", width) %>\
% if len(operands) > 2:
        const ${F} ${result} = convert_${F}(convert_${I}(${operands[0]}) - convert_${I}(${operands[2]})) * ${operands[1]};
% else:
        const ${F} ${result} = convert_${F}(${operands[0]}) * ${operands[1]};
% endif
</%def>
<%def name="quantise(fn, width, operands, result)">\
<% F, I = vec_type("float", width), vec_type("int", width) %>\
% if fn.late:
        ${F} steps_ = ${operands[0]} / ${operands[1]} + ${f"(convert_{F}({operands[2]}) + {SHIFT})" if fn.shifted else f"convert_{F}({operands[2]})"};
        ${round_off("steps_", fn.kind.cl, width, result, None, fn.limits, fn.shifted)}\
% else:
        ${F} steps_ = ${f"convert_{F}({operands[0]}) * {operands[1]}" if fn.whole else f"{operands[0]} / {operands[1]}"};
        const ${I} zero_ = convert_${I}(${operands[2]});
        ${round_off("steps_", fn.kind.cl, width, result, "zero_", fn.limits)}\
% endif
</%def>
<%def name="quantised_sum(fn, width, operands, result)">\
<% F = vec_type("float", width) %>\
<% a, b = (f"convert_{F}({o})" + (f" + {SHIFT}" if fn.shifted else "") for o in operands) %>\
        ${F} steps_ = fma(${b}, ${real(fn.ratios[1], width)}, ${real(fn.offset, width)});
        steps_ = fma(${a}, ${real(fn.ratios[0], width)}, steps_);
        ${round_off("steps_", fn.kind.cl, width, result, None, None, fn.shifted)}\
</%def>
<%def name="quantised_product(fn, width, operands, result)">\
<%
    F, I = vec_type("float", width), vec_type("int", width)
    a, b = (f"(convert_{I}({o}) - ({I})({z}))" for o, z in zip(operands, fn.zeros))
%>\
        ${F} steps_ = convert_${F}(${a} * ${b}) * ${real(fn.ratio, width)} + ${real(fn.zeros[2] + 128 * fn.shifted, width)};
        ${round_off("steps_", fn.kind.cl, width, result, None, None, fn.shifted)}\
</%def>
<%def name="written_binary(fn, width, operands, result)">\
<%
    F, I = vec_type("float", width), vec_type("int", width)
    sign = {"add": "+", "sub": "-", "mul": "*", "div": "/"}[fn.fn]
    a, b = (f"convert_{F}(convert_{I}({o}) - ({I})({z})) * {real(s, width)}" for o, z, s in zip(operands, fn.zeros, fn.steps))
    low, high = (real(v - fn.zeros[2], width) for v in (fn.low, fn.high))
%>\
        const ${F} a_ = ${a}, b_ = ${b};
        ${F} steps_ = (a_ ${sign} b_) / ${real(fn.steps[2], width)};
        steps_ = steps_ > ${low} ? steps_ : ${low};
        steps_ = steps_ < ${high} ? steps_ : ${high};
        const ${vec_type(fn.kinds[2].cl, width)} ${result} = convert_${vec_type(fn.kinds[2].cl, width)}(
            as_${I}(steps_ + ${real(S8_ZERO, width)}) - (${I})(${S8_BITS - fn.zeros[2]}));
</%def>
<%def name="written_steps(fn, width, operands, result)">\
<% F, I, (zero, begin), (step, last) = vec_type("float", width), vec_type("int", width), fn.zeros, fn.steps %>\
        ${F} steps_ = convert_${F}(convert_${I}(${operands[0]}) - (${I})(${zero})) * ${real(step, width)};
        ${st.apply(fn.post_ops, "steps_", "float", width, lambda which: operands[which])}
        steps_ = steps_ / ${real(last, width)};
        const ${I} zero_ = ${begin};
        ${round_off("steps_", fn.kinds[1].cl, width, result, "zero_")}\
</%def>
<%def name="byte_line(fn, width, operands, result)">\
<% F, I = vec_type("float", width), vec_type("int", width) %>\
        ${F} steps_ = fma(convert_${F}(${operands[0]}), ${real(fn.ratio, width)}, ${real(fn.offset, width)});
        const ${I} zero_ = ${fn.zero};
        ${round_off("steps_", fn.result.cl, width, result, "zero_")}\
</%def>
<%def name="byte_table(fn, width, operands, result)">\
<% R = vec_type(fn.result.cl, width) %>\
% if width == 1:
        const ${R} ${result} = table0[${operands[0]} & 255];
% elif fn.permuted and width == 16:
## As looked_up in _common/narrow, for 16 bytes, between which `select` chooses faster than the bits of a whole register.
        const int4 words_ = as_int4(${operands[0]});
        int16 low_ = (int16)(words_.s0, words_.s1, words_.s2, words_.s3${", 0" * 12}), high_ = low_;
% for k, half in enumerate(("low_", "high_")):
        const int16 ${half}a = vload16(${2 * k}, (__global const int *)table0), ${half}b = vload16(${2 * k + 1}, (__global const int *)table0);
        __asm__("vpermi2b %2, %1, %0" : "+v"(${half}) : "v"(${half}a), "v"(${half}b));
% endfor
        const ${R} ${result} = select(as_${R}(low_.s0123), as_${R}(high_.s0123), as_char16(${operands[0]}));
% else:
        const ${R} ${result} = (${R})(${", ".join(f"table0[{operands[0]}.s{d} & 255]" for d in DIGITS[:width])});
% endif
</%def>
