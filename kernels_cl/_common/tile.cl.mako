<%doc>
Register tiles: how vectors of results are summed and stored, and operands loaded, at any pitch.

store_lanes(width, value, pointer, where, pitch, first, end, ctype)
    Statements that store lanes first..end - 1 of vector `value` at pointer[where + lane * pitch]. Vectors of 16
    floats at a pitch of 2 to 4 are written as loops that compilers make masked stores of.
load_lanes(width, pointer, where, pitch, end, ctype)
    Expression of a vector whose lanes 0..end - 1 are pointer[where + lane * pitch], the others 0.
    pitch 0: one element in all lanes. end: a number, or a variable; then the others are anything.
total(name, value, width)
    Declares `float NAME`, the sum of the lanes of vector `value`, added by halves.
</%doc>
<%!
from clnn.types import Stored
def runs(first, end):
    """Split lanes first..end - 1 into (start, count) with counts that are powers of two."""
    pairs = []
    while first < end:
        count = 1
        while count * 2 <= end - first:
            count *= 2
        pairs.append((first, count))
        first += count
    return pairs

def lanes(start, count):
    """Return the swizzle of `count` lanes from `start` on."""
    return "s" + "0123456789abcdef"[start:start + count]

def masked(width, pitch, first, end, ctype):
    """Whether lanes are stored by masked stores of whole vectors."""
    return width == 16 and type(pitch) is int and 2 <= pitch <= 4 and end - first > 2 * pitch and ctype == "float" and not isinstance(ctype, Stored)

def spread(value, pitch, k):
    """Return vector k of a vector of 16's lanes, each `pitch` times."""
    return lanes_at(value, [(16 * k + lane) // pitch for lane in range(16)])

def lanes_at(value, places):
    return f"{value}.s" + "".join("0123456789abcdef"[min(place, 15)] for place in places)

def stored_at(pitch, k, first, end):
    """Return the condition under which element `at_` of vector k is one that is stored."""
    begin, stop = first * pitch - 16 * k, (end - 1) * pitch + 1 - 16 * k
    bounds = ([f"at_ >= {begin}"] if begin > 0 else []) + ([f"at_ < {stop}"] if stop < 16 else [])
    return " && ".join([f"at_ % {pitch} == {-16 * k % pitch}", *bounds])

def part(value, width, start, count):
    return value if count == width else f"{value}.{lanes(start, count)}"
%>
<%def name="store_lanes(width, value, pointer, where, pitch, first, end, ctype='float')">\
% if is_one(pitch):
%  for start, count in runs(first, end):
    ${store(count, part(value, width, start, count), pointer, f"{where} + {start}", ctype)}
%  endfor
% elif masked(width, pitch, first, end, ctype):
    {
        __global float *to_ = ${pointer} + (${where});
%  for k in range(first * pitch // 16, ((end - 1) * pitch) // 16 + 1):
        {
            const float16 lanes_ = ${spread(value, pitch, k)};
            #pragma clang loop vectorize(enable) vectorize_width(16)
            for (int at_ = 0; at_ < 16; ++at_)
                if (${stored_at(pitch, k, first, end)}) to_[${f"{16 * k} + " if k else ""}at_] = ((const float *)&lanes_)[at_];
        }
%  endfor
    }
% else:
%  for start in range(first, end):
    ${store(1, part(value, width, start, 1), pointer, f"{where} + {times(start, pitch)}", ctype)}
%  endfor
% endif
</%def>
<%def name="load_lanes(width, pointer, where, pitch, end, ctype='float')">\
% if isinstance(end, str) and not is_zero(pitch):
(${vec_type(ctype, width)})(${", ".join(element(ctype, pointer, f"{where} + min({k}, {end} - 1) * {pitch}") for k in range(width))})\
% elif is_zero(pitch) or (is_one(pitch) and end == width):
${load(ctype, width, pointer, where, pitch)}\
% else:
(${vec_type(ctype, width)})(${", ".join([element(ctype, pointer, f"{where} + {times(k, pitch)}") for k in range(end)] + ["0"] * (width - end))})\
% endif
</%def>
<%def name="total(name, value, width)">\
<% partial = value %>\
% while width > 1:
<%
    width //= 2
    sides = ("lo", "hi") if width > 1 else ("s0", "s1")
    text = " + ".join(f"{partial}.{side}" for side in sides)
    partial = f"{name}_{width}"
%>\
        const ${vec_type("float", width)} ${partial} = ${text};
% endwhile
        float ${name} = ${partial};
</%def>
