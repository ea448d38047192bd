<%doc>
mli_tables: embARC MLI 2.0, functions that read look-up tables, and the parts of softmax and of L2 normalisation.

define(width, text)  look_up(table, x, shift, offset, last): interpolated entries; gathered(table, place), where
               `text` names them
Other defs     as in mli_map.cl.mako. Two results of 16 bits travel in one int: value | shift << 16.
</%doc>
<%!
from clnn.codegen.filters import vec_type

LANES = "0123456789abcdef"
SHIFT_BASE = 64
TYPES = {8: "char", 16: "short"}

def gather(table, place, width):
    if width == 1:
        return f"{table}[{place}]"
    lanes = ", ".join(f"{table}[{place}.s{c}]" for c in LANES[:width])
    return f"({vec_type('int', width)})({lanes})"

def look(look_up, x, table, width):
    """Expression: the entries for an int vector x."""
    t, I = look_up.table, vec_type("int", width)
    last = t.length - 1
    if look_up.shift <= 0:
        most = -look_up.shift
        left = f"clamp({x}, ({I})({-t.offset - 1 >> most}), ({I})({(last - t.offset >> most) + 1})) << ({I})({most})"
        return f"gathered({table}, clamp(({left}) + ({I})({t.offset}), ({I})(0), ({I})({last})))"
    return f"look_up({table}, {x} >> ({I})({look_up.pre}), {look_up.shift}, {t.offset}, {last - 1})"

def stored(value, bits, width):
    return f"convert_{vec_type(TYPES[bits], width)}_sat({value})"
%>
<%def name="define(width, text)">\
<% I = vec_type("int", width) %>\
% if "gathered" in text or "look_up" in text:
${I} gathered(__global const short *table, const ${I} place)
{
    return ${gather("table", "place", width)};
}
% endif
% if "look_up" in text:
${I} look_up(__global const short *table, const ${I} x, const int shift, const int offset, const int last)
{
    const ${I} place = clamp((x >> (${I})(shift)) + (${I})(offset), (${I})(0), (${I})(last));
    const ${I} rest = x & (${I})((1 << shift) - 1), low = gathered(table, place);
    const ${I} step = (low - gathered(table, place + (${I})(1))) * rest;
    return low - clamp(shift_sat(step, (${I})(shift)), (${I})(-32768), (${I})(32767));
}
% endif
</%def>
<%def name="activation(fn, width, operands, result, tables)">\
<% I, S = vec_type("int", width), vec_type("short", width) %>\
        const ${I} wide_${result} = convert_${I}(${operands[0]});
        const ${S} ${result} = convert_${S}_sat(${look(fn.look, f"wide_{result}", f"table{tables}", width)});
</%def>
<%def name="whole_table(fn, width, operands, result, tables)">\
<% I, R = vec_type("int", width), vec_type(fn.result.cl, width) %>\
        const ${I} place_${result} = convert_${I}(${operands[0]}) + (${I})(${1 << fn.bits - 1});
% if width == 1:
        const ${R} ${result} = table${tables}[place_${result}];
% else:
        const ${R} ${result} = (${R})(${", ".join(f"table{tables}[place_{result}.s{c}]" for c in LANES[:width])});
% endif
</%def>
<%def name="softmax_power(fn, width, operands, result, tables)">\
<%
    I, rule = vec_type("int", width), fn.rule
    away = f"(convert_{I}({operands[0]}) - convert_{I}({operands[1]}))"
    if rule.quant.affine:
        away = f"shift_sat({away} * ({I})({rule.quant.scale}), ({I})({rule.moved}))"
%>\
        const ${I} away_${result} = ${away};
        const ${I} ${result} = ${look(rule.look, f"away_{result}", f"table{tables}", width)};
</%def>
<%def name="softmax_scale(fn, width, operands, result, tables)">\
<% I = vec_type("int", width) %>\
        const ${I} bits_${result} = sign_bits(${operands[0]});
        const ${I} short_${result} = min(shift_sat(${operands[0]}, (${I})(16) - bits_${result}), (${I})(32767));
        const ${I} inverse_${result} = min((${I})(1 << 29) / max(short_${result}, (${I})(1)), (${I})(32767));
        const ${I} ${result} = inverse_${result} | min((${I})(${45 - fn.rule.out.frac}) - bits_${result}, (${I})(31)) << (${I})(16);
</%def>
<%def name="softmax_finish(fn, width, operands, result, tables)">\
<%
    I, out = vec_type("int", width), fn.rule.out
    scaled = f"shift_sat({operands[0]} * ({operands[1]} & ({I})(0xffff)), {operands[1]} >> ({I})(16))"
%>\
        const ${vec_type(TYPES[out.bits], width)} ${result} = ${stored(f"add_sat({scaled}, ({I})({out.zero}))", out.bits, width)};
</%def>
<%def name="l2_square(fn, width, operands, result, tables)">\
<% L = vec_type("long", width) %>\
        const ${L} given_${result} = convert_${L}(${operands[0]}) - (${L})(${fn.rule.quant.zero});
        const ${L} ${result} = given_${result} * given_${result};
</%def>
<%def name="l2_scale(fn, width, operands, result, tables)">\
<%
    I, L = vec_type("int", width), vec_type("long", width)
    rule = fn.rule
    base = rule.look.table.out_frac - rule.out.frac + SHIFT_BASE
%>\
        const ${I} bits_${result} = convert_${I}(clz(${operands[0]})) - (${I})(1);
        const ${I} odd_${result} = (${I})(48) - bits_${result};
        const ${I} even_${result} = odd_${result} + (odd_${result} & (${I})(1));
        const ${I} mean_${result} = convert_${I}(min(shift_long(${operands[0]}, convert_${L}(even_${result})), (${L})(32767)));
        const ${I} root_${result} = ${look(rule.look, f"mean_{result}", f"table{tables}", width)};
        const ${I} ${result} = root_${result} | ((${I})(${base}) + (even_${result} + (${I})(8) >> (${I})(1))) << (${I})(16);
</%def>
<%def name="l2_finish(fn, width, operands, result, tables)">\
<%
    I, rule = vec_type("int", width), fn.rule
    shift = f"({operands[1]} >> ({I})(16)) - ({I})({SHIFT_BASE})"
    given = f"(convert_{I}({operands[0]}) - ({I})({rule.quant.zero}))"
%>\
        const ${vec_type(TYPES[rule.out.bits], width)} ${result} = ${stored(f"shift_sat({given} * ({operands[1]} & ({I})(0xffff)), {shift})", rule.out.bits, width)};
</%def>
