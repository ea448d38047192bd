<%doc>
What becomes of the results of _common/mma_tile.cl.mako: post_ops, rounding, and stores within the edges.

results(t, body, m, n, dst_type, post_ops, operand, where, before, pairs, scaled)
    Results of the tile at row m0 and column n0 of m x n. dst_type: "float", "half" or "bf16" as bits
    in ushort, "int" (sums of bytes without post_ops), or "char" and "uchar" of sums that are `scaled`. post_ops:
    on the value, see epilogue.cl.mako. scaled(sum, column): statement that declares the `value` of dst_type of
    a sum of bytes, as vector where `pairs`; None where that is the sum itself.
    operand(which, column): expression of an operand of the post_ops at the row at hand, as vector where
    `pairs`. where(column): expression of the element of dst. before(row): statements for each row.
    pairs: n is even, and columns lie one behind the other in dst and in operands: two go together.
</%doc>
<%namespace name="pt" file="ptx.cl.mako"/>
<%namespace name="st" file="epilogue.cl.mako"/>
<%!
from clnn.ops.shared.tensor_cores import OF_BYTES
SHORT = ("half", "bf16")
%>
<%def name="put(body, dst_type, width, where)">\
% if dst_type in SHORT:
                    uint word;
                    ${pt.pack(body, dst_type, "word", "value.x" if width == 2 else "value", "value.y" if width == 2 else "0.0f")}
%  if width == 2:
                    vstore2(as_ushort2(word), 0, dst + ${where});
%  else:
                    dst[${where}] = (ushort)word;
%  endif
% else:
                    ${store(width, "value", "dst", where, dst_type)}
% endif
</%def>
<%def name="results(t, body, m, n, dst_type, post_ops, operand, where, before, pairs, scaled=None)">\
<%
    assert dst_type != "int" or (t.kind in OF_BYTES and not post_ops), (t.kind, dst_type, post_ops)
    assert not pairs or n % 2 == 0, n
    ctype = dst_type if dst_type in ("int", "char", "uchar") else "float"
    assert ctype in ("int", "float") or scaled, dst_type
    width = 2 if pairs else 1
    V, C = vec_type(ctype, width), vec_type("int" if t.kind in OF_BYTES else "float", width)
    convert = f"convert_{V}" if t.kind in OF_BYTES and ctype == "float" else ""
    total = f"({C})(c[from], c[from + 1])" if pairs else "c[from]"
    inside = [f"row < {m}"] * (m % t.bm > 0) + ["slice == 0"] * (t.slices > 1)
%>\
% for i in pt.module.over(body, "i", t.mi):
    ${pt.module.begin(body, "i", t.mi)}
%  for h in pt.module.over(body, "h", 2):
        ${pt.module.begin(body, "h", 2)}
            const int row = m0 + warp_m + ${i} * 16 + ${h} * 8 + (lane >> 2);
            ${f"if ({' && '.join(inside)}) {{" if inside else "{"}
            ${before("row")}
%   for j in pt.module.over(body, "j", t.ni):
            ${pt.module.begin(body, "j", t.ni)}
%    for e in range(0, 2, width):
                {
                    const int column = n0 + warp_n + ${j} * 8 + (lane & 3) * 2 + ${e};
                    const int from = (${i} * ${t.ni} + ${j}) * 4 + ${h} * 2 + ${e};
                    ${f"if (column < {n}) {{" if n % t.bn else "{"}
%     if scaled:
                    ${scaled(total, "column")}
%     else:
                    ${V} value = ${convert}(${total});
%     endif
                    ${st.apply(post_ops, "value", ctype, width, lambda which: operand(which, "column"))}
                    ${put(body, dst_type, width, where("column"))}
                    }
                }
%    endfor
            }
%   endfor
            }
        }
%  endfor
    }
% endfor
</%def>
