<%doc>
trees/trees: for each row of features, what the leaves that it reaches in all trees add to columns.

         root: x[3] <= 0.5 ?                 nodes  | 0.5, 1 << shift | 3 | yes | no | ...
          yes /       \ no                           root                   1     2
    yes-node           the node behind it

Walks    of `walks` rows through one tree by turns, and of what rows are left each through `walks` trees: each
         waits for its node while others go on. A walk at a leaf stays there until all are at theirs
Tensors  src: (n, features) | dst: (n, columns) | nodes, roots, weights: constants, as TreeSums has them
Launch   global (blocks of rows)
Params   name            kernel name
         src, dst        layouts
         block           rows of a work-item
         walks           by turns
         trees           how many
         shift           where in a node's second number the place begins that it leads to
         test            what sends a row to the yes-node: "<=", "<", ">=", ">", "==", "!="
         missing         whether the bit below that lets NaN pass
         spread          whether a leaf has a row of weights, for all columns
         wg              local size
</%doc>
<%
    assert test in ("<=", "<", ">=", ">", "==", "!="), test
    assert walks > 0 and block > 0 and trees > 0 and 0 < shift < 31
    ids = range(walks)
    nan_passes = 1 << shift - 1
    feature = (nan_passes if missing else 2 * nan_passes) - 1
    columns = dst.shape[1]
%>
<%def name="walked(roots)">\
## Walks k from (tree{k}, x{k}) to (node{k}).
%  for k in ids:
            int at${k} = 0;
            int2 node${k} = ${roots(k)}[0];
%  endfor
            while ((${" & ".join(f"node{k}.y" for k in ids)}) >= 0) {
%  for k in ids:
                {
                    const int ways = node${k}.y;
                    const float v = x${k}[(ways & ${feature}) * ${src.pitches[1]}];
                    const int passes = v ${test} as_float(node${k}.x)${f" || (isnan(v) && (ways & {nan_passes}))" if missing else ""};
                    at${k} = ways < 0 ? at${k} : (ways >> ${shift}) + 1 - passes;
                    node${k} = ${roots(k)}[at${k}];
                }
%  endfor
            }
</%def>
<%def name="added(k, row, column)">\
%  if spread:
                for (int c = 0; c < ${columns}; ++c)
                    dst[${index(dst, row, "c")}] += weights[node${k}.x * ${columns} + c];
%  else:
                dst[${index(dst, row, column)}] += as_float(node${k}.x);
%  endif
</%def>
${group_size(wg)}
__kernel void ${name}(
    __global const float *src_base, const int src_offset,
    __global const int2 *nodes, __global const int2 *roots, __global const float *weights,
    __global float *dst_base, const int dst_offset)
{
    const int first = get_global_id(0) * ${block};
    if (first >= ${src.shape[0]}) return;
    const int end = min(first + ${block}, ${src.shape[0]});
    __global const float *src = src_base + src_offset;
    __global float *dst = dst_base + dst_offset;
    for (int row = first; row < end; ++row)
        for (int c = 0; c < ${columns}; ++c)
            dst[${index(dst, "row", "c")}] = 0.0f;
    const int whole = ${f"first + (end - first) / {walks} * {walks}" if block >= walks else "first"};
% if block >= walks:
    for (int t = 0; t < ${trees} && first < whole; ++t) {
        __global const int2 *tree = nodes + roots[t].x;
        const int column = roots[t].y;
        for (int row = first; row < whole; row += ${walks}) {
%  for k in ids:
            __global const float *x${k} = src + ${index(src, f"(row + {k})", 0)};
%  endfor
${walked(lambda k: "tree")}
%  for k in ids:
            {
${added(k, f"(row + {k})", "column")}
            }
%  endfor
        }
    }
% endif
    for (int row = whole; row < end; ++row) {
        __global const float *x = src + ${index(src, "row", 0)};
        for (int t = 0; t < ${trees}; t += ${walks}) {
%  for k in ids:
            const int2 root${k} = roots[min(t + ${k}, ${trees - 1})];
            __global const int2 *tree${k} = nodes + root${k}.x;
            __global const float *x${k} = x;
%  endfor
${walked(lambda k: f"tree{k}")}
%  for k in ids:
            if (t + ${k} < ${trees}) {
${added(k, "row", f"root{k}.y")}
            }
%  endfor
        }
    }
}
