<%doc>
Subgroups: members of a work-group that fold a value together without local memory.

allow_subgroups()   what must stand in front of a kernel
by_subgroups(name, op, ctype, combine, identity)
                    folds variable NAME over the whole group: its subgroups each by themselves, then
                    what they found, through local memory `shared_`. op: one of FOLDS; max and min
                    keep a NaN. combine(op, a, b, ctype): statement that takes b into a
</%doc>
<%!
FOLDS = {"sum": "add", "max": "max", "min": "min", "peak": "max"}
TYPES = ("float", "int", "uint")
%>
<%def name="allow_subgroups()">\
#if defined(cl_khr_subgroups)
#pragma OPENCL EXTENSION cl_khr_subgroups : enable
#elif defined(cl_intel_subgroups)
#pragma OPENCL EXTENSION cl_intel_subgroups : enable
#endif
</%def>
<%def name="by_subgroups(name, op, ctype, combine, identity)">\
<% call = f"sub_group_reduce_{FOLDS[op]}" %>\
% if ctype == "float" and op in ("max", "min"):
    {
        const int odd_ = sub_group_any(${name} != ${name});
        ${name} = ${call}(${name} != ${name} ? ${identity} : ${name});
        ${name} = odd_ ? NAN : ${name};
    }
% else:
    ${name} = ${call}(${name});
% endif
    if (get_sub_group_local_id() == 0) shared_[get_sub_group_id()] = ${name};
    barrier(CLK_LOCAL_MEM_FENCE);
    ${name} = shared_[0];
    for (uint at_ = 1; at_ < get_num_sub_groups(); ++at_) {
        const ${ctype} other_ = shared_[at_];
        ${combine(op, name, "other_", ctype)}
    }
    barrier(CLK_LOCAL_MEM_FENCE);
</%def>
