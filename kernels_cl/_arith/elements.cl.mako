<%doc>
elements: element types that networks carry in wider ones (clnn/arith/elements.py).

widen(fn, width, operands, result), narrow(...)
            statements that declare `result`, of the result's type, from a variable
functions(fn, width)  what the functions need
</%doc>
<%!
from clnn.codegen.filters import vec_type

DIGITS = "0123456789abcdef"
%>
<%def name="functions(fn, width)">\
% if fn.name == "narrow" and fn.kind.name.startswith("float"):
<% mantissa, bias, largest, infinite, nan, one_zero = fn.format %>\
static uint narrow_code(const float x)
{
    const uint bits = as_uint(x), sign = bits >> 31 << ${fn.bits - 1}, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return ${nan if nan >> fn.bits - 1 else f"{nan} | sign"};
    // The step of the result at this size, a power of two: what is rounded to is a multiple of it.
    const int power = max((int)(size >> 23) - 127, ${1 - bias});
    const float steps = rint(as_float(size) * as_float((uint)(127 + ${mantissa} - min(power, 100)) << 23));
    uint code = (uint)steps + ((uint)(power - ${1 - bias}) << ${mantissa});
    if (power > 100 || code > ${largest}) {
        code = ${largest if fn.saturate else infinite};
% if one_zero and not fn.saturate:
        return code;
% endif
    }
    return ${"code ? code | sign : 0" if one_zero else "code | sign"};
}
% endif
</%def>
<%def name="widen(fn, width, operands, result)">\
% if fn.kind.name == "bfloat16":
        const ${vec_type("float", width)} ${result} = as_${vec_type("float", width)}(convert_${vec_type("uint", width)}(${operands[0]}) << 16);
% elif width == 1:
        const ${fn.tables()[0].dtype.name.replace("uint8", "uchar").replace("int8", "char").replace("float32", "float")} ${result} = table0[${operands[0]}];
% else:
<% R = vec_type({"uint8": "uchar", "int8": "char", "float32": "float"}[fn.tables()[0].dtype.name], width) %>\
        const ${R} ${result} = (${R})(${", ".join(f"table0[{operands[0]}.s{d}]" for d in DIGITS[:width])});
% endif
</%def>
<%def name="narrow(fn, width, operands, result)">\
<% R, U = vec_type(fn.kind.cl, width), vec_type("uint", width) %>\
% if fn.kind.name == "bfloat16":
        const ${U} bits_ = as_${U}(${operands[0]});
        const ${U} kept_ = (bits_ + 0x7fffu + (bits_ >> 16 & 1u)) >> 16;
% if width == 1:
        const ${R} ${result} = convert_${R}(${operands[0]} != ${operands[0]} ? 0x7fc0u | (bits_ >> 16 & 0x8000u) : kept_);
% else:
        const ${R} ${result} = convert_${R}(select(kept_, (${U})(0x7fc0u) | (bits_ >> 16 & 0x8000u), ${operands[0]} != ${operands[0]}));
% endif
% elif fn.kind.name.startswith("float"):
% if width == 1:
        const ${R} ${result} = (uchar)narrow_code(${operands[0]});
% else:
        const ${R} ${result} = (${R})(${", ".join(f"(uchar)narrow_code({operands[0]}.s{d})" for d in DIGITS[:width])});
% endif
% else:
        const ${R} ${result} = as_${R}(${operands[0]}) & (${R})(${2 ** fn.bits - 1});
% endif
</%def>
