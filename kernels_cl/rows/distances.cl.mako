<%doc>
rows/distances: sums of squared differences between each row of a and each column of b.

    dst[i][j] = (a[i][0] - b[0][j])^2 + (a[i][1] - b[1][j])^2 + ...

Tensors  a: (n, k) | b: (k, m) | dst: (n, m)
Launch   global (bands of columns, blocks of rows); the last block repeats the last row
Params   name            kernel name
         a, b, dst       layouts
         rows            rows of a block
         band            columns of a work-item
         vw              columns at a time; above 1 b and dst have pitch 1 along them
         wg              local size
</%doc>
<%
    assert rows > 0 and band % vw == 0, (rows, band, vw)
    assert vw == 1 or (b.pitches[1] == 1 and dst.pitches[1] == 1), "a vector of columns needs pitch 1"
    (n, m), ids = dst.shape, range(rows)
%>
<%def name="columns(width)">\
<% V = vec_type("float", width) %>\
%  for k in ids:
        ${V} sum${k} = (${V})(0.0f);
%  endfor
        for (int c = 0; c < ${a.shape[1]}; ++c) {
            const ${V} v = ${load("float", width, "b", index(b, "c", "j"))};
%  for k in ids:
            { const ${V} d = (${V})(a${k}[c * ${a.pitches[1]}]) - v; sum${k} += d * d; }
%  endfor
        }
%  for k in ids:
        ${store(width, f"sum{k}", "dst", index(dst, f"row{k}", "j"))}
%  endfor
</%def>
${group_size(wg)}
__kernel void ${name}(
    __global const float *a_base, const int a_offset,
    __global const float *b_base, const int b_offset,
    __global float *dst_base, const int dst_offset)
{
    const int first = get_global_id(0) * ${band}, i = get_global_id(1) * ${rows};
    if (first >= ${m}) return;
    const int end = min(first + ${band}, ${m});
    __global const float *b = b_base + b_offset;
    __global float *dst = dst_base + dst_offset;
% for k in ids:
    const int row${k} = ${f"min(i + {k}, {n} - 1)"};
    __global const float *a${k} = a_base + a_offset + ${index(a, f"row{k}", 0)};
% endfor
    int j = first;
% if vw > 1:
    for (; j + ${vw} <= end; j += ${vw}) {
${columns(vw)}
    }
% endif
    for (; j < end; ++j) {
${columns(1)}
    }
}
