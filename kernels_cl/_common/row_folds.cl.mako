<%doc>
Row folds: what the lanes of a vector, and the members of a group, found of a row becomes one value.

lanes_to_one(rows, op, ctype, combine)
    Declares `one_`, the lanes of all_0, all_1, ... under op. combine(op, a, b, ctype): the statement
    that takes variable b into a.
members_to_one(rows, name, op, ctype, combine, identity)
    Makes variable `name` of every member what all of them hold under op, whose identity is given.
</%doc>
<%namespace name="sg" file="subgroups.cl.mako"/>
<%def name="lanes_to_one(rows, op, ctype, combine)">\
<% span, count = rows.nv, rows.vw %>\
% while span > 1:
<% half = span // 2 %>\
%  for slot in range(half):
    ${combine(op, f"all_{slot}", f"all_{slot + half}", ctype)}
%  endfor
<% span = half %>\
% endwhile
<% previous = "all_0" %>\
% while count > 1:
<% count //= 2 ; T = vec_type(ctype, count) %>\
    ${T} h${count}_ = ${previous}.lo; { const ${T} g_ = ${previous}.hi; ${combine(op, f"h{count}_", "g_", ctype)} }
<% previous = f"h{count}_" %>\
% endwhile
    ${ctype} one_ = ${previous};
</%def>
<%def name="members_to_one(rows, name, op, ctype, combine, identity)">\
<%
    half = rows.group // 2
    def at(who):
        return f"({who}) * {rows.beside} + get_local_id(0)" if rows.across else who
%>\
% if rows.subgroups and op in sg.module.FOLDS and ctype in sg.module.TYPES:
    ${sg.by_subgroups(name, op, ctype, combine, identity)}
% elif rows.group > 1:
    shared_[${at("member")}] = ${name};
    barrier(CLK_LOCAL_MEM_FENCE);
%  while half:
    if (member < ${half}) {
        const ${ctype} other_ = shared_[${at(f"member + {half}")}];
        ${combine(op, name, "other_", ctype)}
        shared_[${at("member")}] = ${name};
    }
    barrier(CLK_LOCAL_MEM_FENCE);
<% half //= 2 %>\
%  endwhile
    ${name} = shared_[${at("0")}];
    barrier(CLK_LOCAL_MEM_FENCE);
% endif
</%def>
