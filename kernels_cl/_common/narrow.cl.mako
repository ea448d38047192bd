<%doc>
Floats as integers of 8 bits: rounded to nearest, ties to even, saturated; four vectors at a time.

rounded(how, width, steps, result)
    statements that declare `result`, ints of the floats `steps`, whose magnitudes are below 2^31; far ones
    may be others on the same side
limited(width, value, low, high, zero, ctype)
    statements that clip ints which stand for `zero` less, where low..high is less than all of ctype
quarters(how, width, values, zero, ctype, result, whole, entries)
    statements that declare what `quarter` gives: the ints `values` (four names) plus zero, saturated. Not
    `whole`: x86's in the order of its packs. entries: x86's are looked up in this table
together(width, value, result)
    statements that declare `result`, the bitwise or of all of `width` ints
entries(name, pointer)
    statements that declare the table `name`, 256 bytes in registers
quarter(how, width, result, k, count)
    expression of `count` vectors of bytes from the k-th of them on, as ints
how  "x86": AVX-512's or AVX2's instructions through inline assembly, vectors of 16 or 8. "plain": in C.

x86's packs work within 128 bits: of vectors a, b, c, d they make a0-3 b0-3 c0-3 d0-3 | a4-7 b4-7 ..., and one
permutation of words brings vectors together again.
</%doc>
<%!
from clnn.codegen.filters import S8_BITS, S8_ZERO
FAR = 65536  # beyond all bytes, in either direction, whatever their zero point
LIMITS = {"char": (-128, 127), "uchar": (0, 255)}
TOGETHER = {16: "048c159d26ae37bf", 8: "04152637"}
DIGITS = "0123456789abcdef"
PACK = {"char": "vpacksswb", "uchar": "vpackuswb"}
REGISTER = {16: "v", 8: "x"}
%>
<%def name="rounded(how, width, steps, result)">\
<% I, r = vec_type("int", width), REGISTER.get(width) %>\
% if how == "x86":
    ${I} ${result};
    __asm__("vcvtps2dq %1, %0" : "=${r}"(${result}) : "${r}"(${steps}));
% else:
<% F = vec_type("float", width) %>\
    ${F} ${result}_ = ${steps} > (${F})(${scalar(-FAR, "float")}) ? ${steps} : (${F})(${scalar(-FAR, "float")});
    ${result}_ = ${result}_ < (${F})(${scalar(FAR, "float")}) ? ${result}_ : (${F})(${scalar(FAR, "float")});
    ${I} ${result} = as_${I}(${result}_ + (${F})(${scalar(S8_ZERO, "float")})) - (${I})(${S8_BITS});
% endif
</%def>
<%def name="limited(width, value, low, high, zero, ctype)">\
<% I, (least, most) = vec_type("int", width), LIMITS[ctype] %>\
% if low > least:
    ${value} = max(${value}, (${I})(${low - zero}));
% endif
% if high < most:
    ${value} = min(${value}, (${I})(${high - zero}));
% endif
</%def>
<%def name="together(width, value, result)">\
% for half in (h for h in (8, 4, 2) if h < width):
        const int${half} ${result}${half} = ${value if half * 2 == width else f"{result}{2 * half}"}.lo | ${value if half * 2 == width else f"{result}{2 * half}"}.hi;
% endfor
        const int ${result} = ${result}2.x | ${result}2.y;
</%def>
<%def name="quarters(how, width, values, zero, ctype, result, whole=True, entries='')">\
<% I, r = vec_type("int", width), REGISTER.get(width) %>\
% if how == "x86":
    ${I} ${result}, ${result}_;
    __asm__("vpackssdw %2, %1, %0" : "=${r}"(${result}) : "${r}"(${values[0]}), "${r}"(${values[1]}));
    __asm__("vpackssdw %2, %1, %0" : "=${r}"(${result}_) : "${r}"(${values[2]}), "${r}"(${values[3]}));
%  if zero:
    __asm__("vpaddsw %2, %1, %0" : "=${r}"(${result}) : "${r}"(${result}), "${r}"((${I})(${(zero & 0xffff) * 0x10001 - (1 << 32) * (zero < 0)})));
    __asm__("vpaddsw %2, %1, %0" : "=${r}"(${result}_) : "${r}"(${result}_), "${r}"((${I})(${(zero & 0xffff) * 0x10001 - (1 << 32) * (zero < 0)})));
%  endif
    __asm__("${PACK[ctype]} %2, %1, %0" : "=${r}"(${result}) : "${r}"(${result}), "${r}"(${result}_));
%  if entries:
${looked_up(width, result, entries)}\
%  endif
%  if whole:
    ${result} = ${result}.s${TOGETHER[width]};
%  endif
% else:
<% low, high = LIMITS[ctype] %>\
%  for k, value in enumerate(values):
    const ${vec_type("int", width // 4)} ${result}${k} = as_${vec_type("int", width // 4)}(convert_${vec_type(ctype, width)}(
        clamp(${value} + (${I})(${zero}), (${I})(${low}), (${I})(${high}))));
%  endfor
% endif
</%def>
<%def name="entries(name, pointer)">\
% for k in range(4):
    const int16 ${name}${k} = vload16(${k}, (__global const int *)${pointer});
% endfor
</%def>
## Two registers hold the entries of 7 bits; the highest one chooses between what both pairs give.
<%def name="looked_up(width, value, entries)">\
<%
    # Element by element, as in `quarter`.
    words = ", ".join(f"{value}.s{DIGITS[k]}" if k < width else "0" for k in range(16))
    whole = value if width == 16 else f"(int16)({words})"
%>\
    {
        const int16 bytes_ = ${whole};
        int16 low_ = bytes_, high_ = bytes_;
        __asm__("vpermi2b %2, %1, %0" : "+v"(low_) : "v"(${entries}0), "v"(${entries}1));
        __asm__("vpermi2b %2, %1, %0" : "+v"(high_) : "v"(${entries}2), "v"(${entries}3));
        const int16 upper_ = (bytes_ >> 7 & 0x01010101) * 255;
        const int16 found_ = low_ & ~upper_ | high_ & upper_;
        ${value} = found_${"" if width == 16 else ".s01234567"};
    }
</%def>
<%def name="quarter(how, width, result, k, count)">\
<%
    words = width // 4
    lanes = [""] if words == 1 else [f".s{DIGITS[lane]}" for lane in range(words)]
    # Element by element: Oclgrind crashes where vectors of several elements are joined.
    elements = [f"{result}{k + i}{lane}" for i in range(count) for lane in lanes]
%>\
% if how == "x86":
${result}${f".s{DIGITS[k * words:(k + count) * words]}" if count < 4 else ""}\
% else:
${f"{result}{k}" if count == 1 else f"(int{count * words})({', '.join(elements)})"}\
% endif
</%def>
