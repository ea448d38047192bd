<%doc>
Loads and stores that change the element type on the way; half is storage only, as plain OpenCL has it.

read(from_type, to_type, width, pointer, where, pitch)   -> expression of `to_type`
write(from_type, to_type, width, value, pointer, where)  -> statement; equal or real types
</%doc>
<%def name="read(from_type, to_type, width, pointer, where, pitch=1)">\
<% n = "" if width == 1 else width %>\
% if from_type == to_type:
${load(from_type, width, pointer, where, pitch)}\
% elif from_type == "half" and (width == 1 or pitch == 0):
(${vec_type(to_type, width)})(vload_half(${where}, ${pointer}))\
% elif from_type == "half":
vload_half${n}(0, ${pointer} + (${where}))\
% else:
convert_${to_type}${n}(${load(from_type, width, pointer, where, pitch)})\
% endif
</%def>
<%def name="write(from_type, to_type, width, value, pointer, where)">\
<% n = "" if width == 1 else width %>\
% if from_type == to_type:
${store(width, value, pointer, where, to_type)}\
% elif to_type == "half":
vstore_half${n}_rte(${value}, 0, ${pointer} + (${where}));\
% else:
${store(width, f"convert_{to_type}{n}({value})", pointer, where, to_type)}\
% endif
</%def>
