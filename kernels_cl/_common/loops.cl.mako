<%doc>
Loop nests: from one flat work-item id to an element offset in each operand.

offsets(flat, extents, pitches, names)
    flat: expression, 0 <= flat < product of extents. extents: outermost first. pitches: for each
    name its pitch on each axis. Declares `const int NAME` for each name.
</%doc>
<%def name="offsets(flat, extents, pitches, names)">\
<% steps = [] ; rest = flat %>\
% for axis in reversed(range(len(extents))):
<%
    where = rest if axis == 0 else f"({rest}) % {extents[axis]}"
    steps.append((axis, where))
    rest = f"({rest}) / {extents[axis]}"
%>\
% endfor
% for axis, where in steps:
    const int ax${axis}_ = ${where};
% endfor
% for name, row in zip(names, pitches):
<% terms = [f"ax{a}_ * {row[a]}" for a in range(len(extents)) if not is_zero(row[a])] %>\
    const int ${name} = ${" + ".join(terms) or "0"};
% endfor
</%def>
