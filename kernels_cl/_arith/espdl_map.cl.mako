<%doc>
espdl_map: ESP-DL, elementwise functions (clnn/arith/espdl_maps.py).

functions(fn, width)  what the functions need
NAME(fn, width, operands, result)
                      statements that declare `result`, of the result's type, from variables
</%doc>
<%namespace name="sh" file="espdl_shift.cl.mako"/>
<%!
from clnn.codegen.filters import scalar, vec_type

TYPES = {8: "char", 16: "short"}
DIGITS = "0123456789abcdef"

def wide(name, width, ctype="int"):
    return f"convert_{vec_type(ctype, width)}({name})"

def number(value, width, ctype="int"):
    return f"({vec_type(ctype, width)})({scalar(value, ctype)})"

def real(value, width):
    return f"({vec_type('float', width)})({scalar(2.0 ** value, 'float')})"

def stored(value, bits, width, mode=""):
    """Expression: a vector saturated to `bits` and converted."""
    return f"convert_{vec_type(TYPES[bits], width)}_sat{mode}({value})"

def far(fn):
    """Whether the aligned operands of a sum exceed 32 bits."""
    return max(fn.left) + fn.bits > 30

def nearest(value, rounding, width):
    """Expression: float numbers rounded."""
    if rounding == "half_up":
        return f"floor({value} + ({vec_type('float', width)})(0.5f))"
    return f"{'rint' if rounding == 'half_even' else 'floor'}({value})"
%>
<%def name="functions(fn, width)">\
#pragma OPENCL FP_CONTRACT OFF
% if fn.name == "esp_sum":
${sh.define(width, "long" if far(fn) else "int", fn.rounding)}
% elif fn.name in ("esp_product", "esp_requantise") or fn.name == "esp_table" and fn.step:
${sh.define(width, "int", fn.rounding)}
% elif fn.name == "esp_slope":
${sh.define(width, "int", fn.rounding)}
% endif
</%def>
<%def name="esp_sum(fn, width, operands, result)">\
<%
    T = "long" if far(fn) else "int"
    a, b = (f"({wide(o, width, T)} << {number(n, width, T)})" if n else wide(o, width, T)
            for o, n in zip(operands, fn.left))
    total = f"{a} {'-' if fn.minus else '+'} {b}"
%>\
        const ${vec_type(TYPES[fn.bits], width)} ${result} = ${stored(f"move_{T}({total}, {number(fn.shift, width, T)})", fn.bits, width)};
</%def>
<%def name="esp_product(fn, width, operands, result)">\
<% product = f"{wide(operands[0], width)} * {wide(operands[1], width)}" %>\
% if fn.single:
        const ${vec_type("float", width)} scaled_ = ${wide(product, width, "float")} * ${real(-fn.shift, width)};
        const ${vec_type(TYPES[fn.bits], width)} ${result} = ${stored(nearest("scaled_", fn.rounding, width), fn.bits, width)};
% else:
        const ${vec_type(TYPES[fn.bits], width)} ${result} = ${stored(f"move_int({product}, {number(fn.shift, width)})", fn.bits, width)};
% endif
</%def>
<%def name="esp_slope(fn, width, operands, result)">\
<% I = vec_type("int", width) %>\
        const ${I} given_ = ${wide(operands[0], width)}, product_ = given_ * ${wide(operands[1], width)};
% if fn.shift > 0:
        const ${I} below_ = product_ >> ${number(min(fn.shift, 31), width)};
% else:
        const ${I} most_ = ${number((1 << 18 >> min(-fn.shift, 18)) + 1, width)};
        const ${I} below_ = clamp(product_, -most_, most_) << ${number(min(-fn.shift, 18), width)};
% endif
        const ${I} above_ = ${f"move_int(given_, {number(fn.keep, width)})" if fn.keep else "given_"};
        const ${vec_type(TYPES[fn.bits], width)} ${result} = ${stored("(given_ < (" + I + ")(0) ? below_ : above_)", fn.bits, width)};
</%def>
<%def name="esp_requantise(fn, width, operands, result)">\
        const ${vec_type(TYPES[fn.bits[1]], width)} ${result} = ${stored(f"move_int({wide(operands[0], width)}, {number(fn.shift, width)})", fn.bits[1], width)};
</%def>
<%def name="esp_quantise(fn, width, operands, result)">\
<% F = vec_type("float", width) %>\
        const ${F} steps_ = ${nearest(f"{operands[0]} * {real(-fn.exponent, width)}", fn.rounding, width)};
        const ${F} some_ = steps_ == steps_ ? steps_ : (${F})(0.0f);
        const ${vec_type(TYPES[fn.bits], width)} ${result} = ${stored("some_", fn.bits, width)};
</%def>
<%def name="esp_table(fn, width, operands, result)">\
<% I, R = vec_type("int", width), vec_type("short", width) %>\
        const ${I} given_ = ${wide(operands[0], width)} + ${number(32768, width)};
        const ${I} place_ = ${f"move_int(given_, {number(fn.step, width)})" if fn.step else "given_"};
% if width == 1:
        const ${R} ${result} = table0[place_];
% else:
        const ${R} ${result} = (${R})(${", ".join(f"table0[place_.s{d}]" for d in DIGITS[:width])});
% endif
</%def>
