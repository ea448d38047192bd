<%doc>
mli_map: embARC MLI 2.0, elementwise functions (clnn/arith/mli_maps.py and its neighbours).

functions(fn, width)  what the functions need
NAME(fn, width, operands, result, tables)
                      statements that declare `result`, of the result's type, from variables;
                      tables: the number of the first of its look-up tables
</%doc>
<%namespace name="sh" file="mli_shift.cl.mako"/>
<%namespace name="tb" file="mli_tables.cl.mako"/>
<%!
from clnn.codegen.filters import vec_type

LIMITS = {8: (-128, 127), 16: (-32768, 32767), 32: (-2**31, 2**31 - 1)}
TYPES = {8: "char", 16: "short", 32: "int"}

def number(value, width, ctype="int"):
    from clnn.codegen.filters import scalar
    return f"({vec_type(ctype, width)})({scalar(value, ctype)})"

def wide(name, width):
    return f"convert_{vec_type('int', width)}({name})"

def stored(value, bits, width):
    """Expression: an int vector saturated to `bits` and converted."""
    return f"convert_{vec_type(TYPES[bits], width)}_sat({value})"

def ended(value, zero, width):
    """Expression: a value cast to 16 bits, moved by a zero point, cast to 8 bits."""
    low, high = (number(v, width) for v in LIMITS[16])
    return stored(f"clamp({value}, {low}, {high}) + {number(zero, width)}", 8, width)
%>
<%def name="functions(fn, width)">\
<%
    names = [f"v{k}" for k in range(len(fn.types) - 1)]
    body = capture(getattr(self, fn.name), fn, width, names, "result")
    helpers = capture(tb.define, width, body)
%>\
% if any(t.is_float for t in fn.types):
#pragma OPENCL FP_CONTRACT OFF
% endif
${sh.define(width, fn.up, body + helpers)}
${helpers}
</%def>
<%def name="fixed_sum(fn, width, operands, result, tables=0)">\
<%
    I, L = vec_type("int", width), vec_type("long", width)
    a, b = (f"convert_{I}_sat(convert_{L}({o}) << {number(min(n, 31), width, 'long')})" if n else wide(o, width)
            for o, n in zip(operands, fn.left))
    total = f"{'sub' if fn.minus else 'add'}_sat({a}, {b})"
%>\
        const ${vec_type(TYPES[fn.bits], width)} ${result} = ${stored(f"shift_wide({total}, {number(fn.shift, width)})", fn.bits, width)};
</%def>
<%def name="fixed_product(fn, width, operands, result, tables=0)">\
<% product = " * ".join(wide(o, width) for o in operands) %>\
        const ${vec_type(TYPES[fn.bits], width)} ${result} = ${stored(f"shift_wide({product}, {number(fn.shift, width)})", fn.bits, width)};
</%def>
<%def name="fixed_extreme(fn, width, operands, result, tables=0)">\
<%
    chosen = f"{'max' if fn.larger else 'min'}({wide(operands[0], width)}, {wide(operands[1], width)})"
    half = 1 << (fn.shift - 1) if fn.up and fn.shift > 0 else 0
    if half:
        chosen = f"(min({chosen} + {number(half, width)}, {number(LIMITS[fn.bits][1], width)}) >> {number(fn.shift, width)})"
    else:
        chosen = f"shift_wide({chosen}, {number(fn.shift, width)})"
%>\
        const ${vec_type(TYPES[fn.bits], width)} ${result} = ${stored(chosen, fn.bits, width)};
</%def>
<%def name="affine_sum(fn, width, operands, result, tables=0)">\
<%
    a, b = (f"shift_sat(({wide(o, width)} - {number(z, width)}) * {number(f, width)}, {number(n, width)})"
            for o, z, f, n in zip(operands, fn.zeros, fn.scales, fn.shifts))
    total = f"{'sub' if fn.minus else 'add'}_sat({a}, {b})"
%>\
        const ${vec_type("char", width)} ${result} = ${ended(total, fn.zeros[2], width)};
</%def>
<%def name="affine_product(fn, width, operands, result, tables=0)">\
<%
    a, b = (f"({wide(o, width)} - {number(z, width)})" for o, z in zip(operands, fn.zeros))
    low, high = (number(v, width) for v in LIMITS[16])
    short = f"clamp(shift_sat({a} * {b}, {number(fn.first, width)}), {low}, {high})"
%>\
        const ${vec_type("char", width)} ${result} = ${ended(f"shift_sat({short} * {number(fn.scale, width)}, {number(fn.shift, width)})", fn.zeros[2], width)};
</%def>
<%def name="affine_extreme(fn, width, operands, result, tables=0)">\
<%
    a, b = (f"({wide(o, width)} - {number(z, width)}) * {number(fn.scale, width)}" for o, z in zip(operands, fn.zeros))
    chosen = f"{'max' if fn.larger else 'min'}({a}, {b})"
%>\
        const ${vec_type("char", width)} ${result} = ${ended(f"shift_sat({chosen}, {number(fn.shift, width)})", fn.zeros[2], width)};
</%def>
<%def name="clip(fn, width, operands, result, tables=0)">\
<% T = TYPES[fn.bits] %>\
        const ${vec_type(T, width)} ${result} = max(min(${operands[0]}, ${number(fn.high, width, T)}), ${number(fn.low, width, T)});
</%def>
<%def name="complement(fn, width, operands, result, tables=0)">\
        const ${vec_type(TYPES[fn.bits], width)} ${result} = ${stored(f"{number(fn.top, width)} - {wide(operands[0], width)}", fn.bits, width)};
</%def>
<%def name="fixed_leaky(fn, width, operands, result, tables=0)">\
<%
    I = vec_type("int", width)
    x, low = wide(operands[0], width), [number(v, width) for v in LIMITS[fn.bits]]
    scaled = f"shift_sat(min({x}, ({I})(0)) * {wide(operands[1], width)}, {number(fn.shift, width)})"
%>\
        const ${vec_type(TYPES[fn.bits], width)} ${result} = ${stored(f"max({x}, ({I})(0)) + clamp({scaled}, {low[0]}, {low[1]})", fn.bits, width)};
</%def>
<%def name="affine_leaky(fn, width, operands, result, tables=0)">\
<% I = vec_type("int", width) %>\
        const ${I} given_${result} = ${wide(operands[0], width)} - ${number(fn.zero_in, width)};
        const ${I} above_${result} = shift_sat(given_${result} * ${number(fn.scale, width)}, ${number(fn.shift, width)});
        const ${I} below_${result} = shift_sat(given_${result} * ${operands[1]}, ${operands[2]});
        const ${I} side_${result} = given_${result} >= (${I})(0) ? above_${result} : below_${result};
        const ${vec_type("char", width)} ${result} = ${stored(f"add_sat(side_{result}, {number(fn.zero_out, width)})", 8, width)};
</%def>
<%def name="convert_short(fn, width, operands, result, tables=0)">\
<%
    x, zero_in, scale, shift, zero_out = operands
    low, high = (number(v, width) for v in LIMITS[16])
    given = f"clamp({wide(x, width)} - {zero_in}, {low}, {high})"
%>\
        const ${vec_type(TYPES[fn.bits[1]], width)} ${result} = ${stored(f"add_sat(shift_sat({given} * {scale}, {shift}), {zero_out})", fn.bits[1], width)};
</%def>
<%def name="convert_long(fn, width, operands, result, tables=0)">\
<%
    I = vec_type("int", width)
    x, zero_in, scale, shift, zero_out = operands
    high = f"mul_hi(given_{result} << norm_{result}, {scale})"
%>\
        const ${I} given_${result} = sub_sat(${wide(x, width)}, ${zero_in});
        const ${I} norm_${result} = sign_bits(given_${result});
        const ${vec_type(TYPES[fn.bits[1]], width)} ${result} = ${stored(f"add_sat(shift_sat({high}, norm_{result} + {shift}), {zero_out})", fn.bits[1], width)};
</%def>
<%def name="from_float(fn, width, operands, result, tables=0)">\
<% F, I = vec_type("float", width), vec_type("int", width) %>\
        const ${F} scaled_${result} = ${operands[0]} * ${operands[1]};
        const ${F} moved_${result} = scaled_${result} + copysign((${F})(0.5f), scaled_${result});
        const ${vec_type(TYPES[fn.bits], width)} ${result} = ${stored(f"add_sat(convert_{I}_sat_rtz(moved_{result}), {operands[2]})", fn.bits, width)};
</%def>
<%def name="to_float(fn, width, operands, result, tables=0)">\
<% F = vec_type("float", width) %>\
        const ${F} ${result} = convert_${F}(sub_sat(${wide(operands[0], width)}, ${operands[2]})) * ${operands[1]};
</%def>
<%def name="dense_sum(fn, width, operands, result, tables=0)">\
<%
    T = vec_type(fn.partial, width)
    total = operands[0]
    for operand in operands[1:]:
        total = f"add_sat({total}, {operand})"
    total = f"add_sat({total}, ({T})({fn.zero}))"
%>\
        const ${vec_type(TYPES[fn.bits], width)} ${result} = ${stored(total, fn.bits, width)};
</%def>
<%def name="activation(fn, width, operands, result, tables=0)">\
${tb.activation(fn, width, operands, result, tables)}\
</%def>
<%def name="whole_table(fn, width, operands, result, tables=0)">\
${tb.whole_table(fn, width, operands, result, tables)}\
</%def>
<%def name="softmax_power(fn, width, operands, result, tables=0)">\
${tb.softmax_power(fn, width, operands, result, tables)}\
</%def>
<%def name="softmax_scale(fn, width, operands, result, tables=0)">\
${tb.softmax_scale(fn, width, operands, result, tables)}\
</%def>
<%def name="softmax_finish(fn, width, operands, result, tables=0)">\
${tb.softmax_finish(fn, width, operands, result, tables)}\
</%def>
<%def name="l2_square(fn, width, operands, result, tables=0)">\
${tb.l2_square(fn, width, operands, result, tables)}\
</%def>
<%def name="l2_scale(fn, width, operands, result, tables=0)">\
${tb.l2_scale(fn, width, operands, result, tables)}\
</%def>
<%def name="l2_finish(fn, width, operands, result, tables=0)">\
${tb.l2_finish(fn, width, operands, result, tables)}\
</%def>
<%def name="fused(fn, width, operands, result, tables=0)">\
% for place, (part, sources) in enumerate(fn.parts):
<%
    names = [operands[k] if k < len(operands) else f"step{k - len(operands)}" for k in sources]
    made = result if place == len(fn.parts) - 1 else f"step{place}"
%>\
${getattr(self, part.name)(part, width, names, made, fn.first_table(part))}\
% endfor
</%def>
