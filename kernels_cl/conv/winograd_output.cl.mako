<%doc>
conv/winograd_output: products of Winograd's F(m x m, 3 x 3) transformed to outputs, with bias and post_ops.

A work-item takes `vw` channels of one tile. Neighbours take neighbouring channels.

Tensors  src: [k_slices][(m + 2) ** 2][tiles][oc], partial sums that are added here
         bias: [oc]
         dst, operands: images at any pitches
Index    tile t of an image holds outputs from row t / wide * m, column t % wide * m on; those beyond
         the image are not stored
Launch   global (vectors of channels of all tiles)
Params   name, dst, post_ops, operands, loop_epilogue, wg: as of conv/direct
         batch: images
         high, wide: tiles of an image
         k_slices
         m: outputs of a tile along an axis
         at: matrix of the output
         has_bias {0,1}
Tunables vw {1,2,4}: divides the channels
</%doc>
<%namespace name="st" file="/_common/epilogue.cl.mako"/>
<%namespace name="tl" file="/_common/tile.cl.mako"/>
<%namespace name="wg_" file="/_common/winograd.cl.mako"/>
<%namespace name="wk" file="/_common/workgroup.cl.mako"/>
<%
    n, (_, oc, oh, ow) = m + 2, dst.shape
    tiles, vectors = batch * high * wide, oc // vw
    V = vec_type("float", vw)
    assert oc % vw == 0, (oc, vw)
    def product(place):
        return wk.module.aligned(vw, f"src + {place * tiles * oc}")
    def inside(y, x):
        """Condition that an output lies in the image; the first of a tile always does."""
        checks = [f"top + {y} < {oh}"] * (oh % m != 0 and y != "0")
        return " && ".join(checks + [f"left + {x} < {ow}"] * (ow % m != 0 and x != "0"))
%>
<%def name="finish(value, y, x)">\
<%
    def operand(which):
        k, layout = operands[which]
        where = index(layout, "image", "oc", f"(top + {y})", f"(left + {x})")
        pitch = layout.pitches[1] if layout.shape[1] != 1 else 0
        return capture(tl.load_lanes, vw, f"extra{k}", where, pitch, vw).strip()
    pitch = dst.pitches[1] if oc > 1 else 1
%>\
% if inside(y, x):
    if (${inside(y, x)})
% endif
    {
        ${st.apply(post_ops, value, "float", vw, operand)}
        ${tl.store_lanes(vw, value, "dst", index(dst, "image", "oc", f"(top + {y})", f"(left + {x})"), pitch, 0, vw)}
    }
</%def>
${group_size(wg)}
__kernel void ${name}(
    __global const float *src_base, const int src_offset,
% if has_bias:
    __global const float *bias,
% endif
% for k, _ in operands.values():
    __global const float *extra${k}_base, const int extra${k}_offset,
% endfor
    __global float *dst_base, const int dst_offset)
{
    typedef ${V} V;
    const int item = get_global_id(0);
    if (item >= ${tiles * vectors}) return;
    const int oc = item % ${vectors} * ${vw}, tile = item / ${vectors};
    const int image = tile / ${high * wide}, top = tile / ${wide} % ${high} * ${m}, left = tile % ${wide} * ${m};
    __global const float *src = src_base + src_offset + tile * ${oc} + oc;
    __global float *dst = dst_base + dst_offset;
% for k, _ in operands.values():
    __global const float *extra${k} = extra${k}_base + extra${k}_offset;
% endfor
    V ${", ".join(f"h{y}_{j}" for y in range(m) for j in range(n))};
% for j in range(n):
    {
%  for i in range(n):
        V d${i} = ${product(i * n + j)};
%  endfor
% if k_slices > 1:
        for (int part = 1; part < ${k_slices}; ++part) {
            __global const float *more = src + part * ${n * n * tiles * oc};
%  for i in range(n):
            d${i} += ${wk.module.aligned(vw, f"more + {(i * n + j) * tiles * oc}")};
%  endfor
        }
% endif
        ${wg_.by_columns(at, lambda y: f"h{y}_{j}", lambda k: f"d{k}")}
    }
% endfor
% if has_bias:
    const V start = ${wk.module.aligned(vw, "bias + oc")};
% endif
% if loop_epilogue:
    V outputs[${m * m}];
% endif
% for y in range(m):
    {
        V ${", ".join(f"r{x}" for x in range(m))};
        ${wg_.by_columns(at, lambda x: f"r{x}", lambda k: f"h{y}_{k}")}
%  for x in range(m):
%   if has_bias:
        r${x} += start;
%   endif
%   if loop_epilogue:
        outputs[${y * m + x}] = r${x};
%   else:
        ${finish(f"r{x}", str(y), str(x))}
%   endif
%  endfor
    }
% endfor
% if loop_epilogue:
    for (int e = 0; e < ${m * m}; ++e) {
        const int y = e / ${m}, x = e % ${m};
        V value = outputs[e];
        ${finish("value", "y", "x")}
    }
% endif
}
