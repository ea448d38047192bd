<%doc>
Register tiles: how vectors of results are summed and stored, and operands loaded, at any pitch.

store_lanes(width, value, pointer, where, pitch, first, end, ctype)
    Statements that store lanes first..end - 1 of vector `value` at pointer[where + lane * pitch].
load_lanes(width, pointer, where, pitch, end, ctype)
    Expression of a vector whose lanes 0..end - 1 are pointer[where + lane * pitch], the others 0.
    pitch 0: one element in all lanes. end: a number, or a variable; then the others are anything.
total(name, value, width)
    Declares `float NAME`, the sum of the lanes of vector `value`, added by halves.
</%doc>
<%!
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

def part(value, width, start, count):
    return value if count == width else f"{value}.{lanes(start, count)}"
%>
<%def name="store_lanes(width, value, pointer, where, pitch, first, end, ctype='float')">\
% if is_one(pitch):
%  for start, count in runs(first, end):
    ${store(count, part(value, width, start, count), pointer, f"{where} + {start}", ctype)}
%  endfor
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
