<%doc>
boxes/stay: which boxes of a group share no more than a limit of their union with any before them that stays.

A group's boxes are compared with those of it that stay, `width` at a time: rows of these lie in `kept`, whose last
vector is filled up with boxes without area, which share nothing. No coordinate is NaN, for comparisons drop it.

Tensors  rows: (5, n) lower y, lower x, upper y, upper x, area of the boxes, group after group | begins: (groups + 1)
         where each group begins | places: (groups) where it begins in each row of kept, in multiples of width | kept:
         scratch memory of 5 rows of `room` | stays: (n) bytes
Numbers  n | room | limit: from 0 to 1 | most: boxes of a group that may stay
Launch   global (groups)
Params   name            kernel name
         width           elements of vectors
</%doc>
<%
    F = f"float{width}"
    parts = ("low_y", "low_x", "high_y", "high_x", "area")
%>
#pragma OPENCL FP_CONTRACT OFF
__attribute__((reqd_work_group_size(1, 1, 1)))
__kernel void ${name}(__global const float *rows, __global const int *begins, __global const int *places, __global float *kept,
    __global uchar *stays, const int n, const int room, const float limit, const int most)
{
    const int begin = begins[get_global_id(0)], end = begins[get_global_id(0) + 1];
    __global float *own = kept + places[get_global_id(0)];
    int count = 0;
    for (int box = begin; box < end; ++box) {
% for k, part in enumerate(parts):
        const float ${part} = rows[${k} * n + box];
% endfor
        int hidden = count >= most;
        for (int k = 0; k < count && !hidden; k += ${width}) {
% for axis, bit in enumerate("yx"):
            const ${F} begin_${bit} = vload${width}(0, own + ${axis} * room + k), end_${bit} = vload${width}(0, own + ${axis + 2} * room + k);
            const ${F} first_${bit} = begin_${bit} > low_${bit} ? begin_${bit} : (${F})(low_${bit});
            const ${F} last_${bit} = end_${bit} < high_${bit} ? end_${bit} : (${F})(high_${bit});
            ${F} extent_${bit} = last_${bit} - first_${bit};
            extent_${bit} = extent_${bit} > 0.0f ? extent_${bit} : (${F})(0.0f);
% endfor
            const ${F} shared = extent_y * extent_x;
            const ${F} both = vload${width}(0, own + 4 * room + k) + area;
            hidden = any(shared / (both - shared) > limit);
        }
        stays[box] = !hidden;
        if (hidden) continue;
        if (count % ${width} == 0) {
% for k in range(len(parts)):
            vstore${width}((${F})(0.0f), 0, own + ${k} * room + count);
% endfor
        }
% for k, part in enumerate(parts):
        own[${k} * room + count] = ${part};
% endfor
        ++count;
    }
}
