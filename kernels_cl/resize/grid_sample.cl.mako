<%doc>
resize/grid_sample: samples of images or volumes at positions that a tensor says.

    grid (n, o.., r)   the position of output o in image n, the innermost axis first, -1 to 1 across the image
    +---+---+---+
    |   |   |   |      linear: the sum of the elements around the position (x), by their nearness;
    +---+-x-+---+      cubic: of four along each axis; nearest: one element
    |   |   |   |
    +---+---+---+

Tensors  src: (n, c, d1.., dr) | grid: (n, o1.., or, r) | dst: (n, c, o1.., or), r from 1 to 3
Index    output (n, c, o..) takes elements of src[n, c] around grid[n, o..]
Launch   global (vectors of channels, product of the o.., n)
Params   name            kernel name
         ctype           type of all tensors
         src, grid, dst  TensorLayout
         mode            nearest, linear or cubic
         padding         of what lies outside: zeros, border, reflection
         align_corners   -1 and 1 are centres of the outermost elements, else their edges
         wg              local size
Tunables vw              1, 2, 4, 8 or 16 channels, a divisor of all; over 1 they have pitch 1
NaN      propagates; a position that is no finite number gives NaN, or with nearest any element
</%doc>
<%namespace name="rw" file="/_common/rows.cl.mako"/>
<%
    m = rw.module
    count, channels, *extents = dst.shape
    rank = len(extents)
    sides = src.shape[2:]
    taps = {"nearest": 1, "linear": 2, "cubic": 4}[mode]
    first = -1 if mode == "cubic" else 0
    assert padding in ("zeros", "border", "reflection"), padding
    assert channels % vw == 0 and (vw == 1 or src.pitches[1] == 1), "a vector needs pitch 1"
    V = vec_type(ctype, vw)
    axes = range(rank)
    places = [f"o{a}" for a in axes]
    positions = prod(extents)
    pixel = load(ctype, vw, "src", index(src, "n", "c", *(f"i{a}[k{a}]" for a in axes)))
    zeros = padding == "zeros"
    known = " && ".join(f"i{a}[k{a}] >= 0" for a in axes)

    def number(value):
        return scalar(value, ctype)
%>
<%def name="reflected(a)">\
            if (f < low${a} || f > high${a}) {
                const ${ctype} span = high${a} - low${a};
                const ${ctype} beyond = f < low${a} ? low${a} - f : f - high${a};
                const ${ctype} turns = floor(beyond / span), rest = beyond - turns * span;
                const bool odd = turns - ${number(2)} * floor(turns / ${number(2)}) != 0;
                const bool from_low = (f < low${a}) != odd;
                f = span > 0 ? (from_low ? low${a} + rest : high${a} - rest) : low${a};
            }
</%def>
#pragma OPENCL FP_CONTRACT OFF
${group_size(wg)}
__kernel void ${name}(
    __global const ${ctype} *src_base, const int src_offset,
    __global const ${ctype} *grid_base, const int grid_offset,
    __global ${ctype} *dst_base, const int dst_offset)
{
    if (get_global_id(0) >= ${channels // vw} || get_global_id(1) >= ${positions}) return;
    if (get_global_id(2) >= ${count}) return;
    const int c = get_global_id(0) * ${vw}, n = get_global_id(2);
    int rest = get_global_id(1);
% for a in reversed(axes):
    const int o${a} = rest % ${extents[a]};
    rest /= ${extents[a]};
% endfor
    __global const ${ctype} *src = src_base + src_offset;
    __global const ${ctype} *grid = grid_base + grid_offset;
    __global ${ctype} *dst = dst_base + dst_offset;
% for a in axes:
    const ${ctype} side${a} = ${number(sides[a])};
%  if padding == "reflection":
    const ${ctype} low${a} = ${number(0.0 if align_corners else -0.5)};
    const ${ctype} high${a} = side${a} - ${number(1.0 if align_corners else 0.5)};
%  endif
    ${ctype} at${a} = grid[${index(grid, "n", *places, rank - 1 - a)}];
%  if align_corners:
    at${a} = (at${a} + 1) / 2 * (side${a} - 1);
%  else:
    at${a} = ((at${a} + 1) * side${a} - 1) / 2;
%  endif
%  if mode == "nearest":
    at${a} = rint(at${a});
%  endif
% endfor
% for a in axes:
    int i${a}[${taps}];
    ${ctype} w${a}[${taps}];
    {
        const ${ctype} base = floor(at${a}), u = at${a} - base;
%  for k in range(taps):
        {
            ${ctype} f = base + ${number(k + first)};
%   if padding == "reflection":
${reflected(a)}\
%   endif
            const int near = (int)fmin(fmax(rint(f), ${number(0.0)}), side${a} - 1);
            i${a}[${k}] = ${"f >= 0 && f < side%d ? near : -1" % a if zeros else "near"};
%   if mode == "nearest":
            w${a}[${k}] = 1;
%   elif mode == "linear":
            w${a}[${k}] = ${"u" if k else "1 - u"};
%   else:
            const ${ctype} d = ${("u + 1", "u", "1 - u", "2 - u")[k]};
%    if k in (1, 2):
            w${a}[${k}] = (${number(1.25)} * d - ${number(2.25)}) * d * d + 1;
%    else:
            w${a}[${k}] = ${number(-0.75)} * (((d - 5) * d + 8) * d - 4);
%    endif
%   endif
        }
%  endfor
    }
% endfor
    ${V} result = 0;
% for a in axes:
    for (int k${a} = 0; k${a} < ${taps}; ++k${a}) {
% endfor
        const ${ctype} weight = ${" * ".join(f"w{a}[k{a}]" for a in axes)};
% if zeros:
        ${V} value = 0;
        if (${known}) value = ${pixel};
% else:
        const ${V} value = ${pixel};
% endif
        result += weight * value;
% for _ in axes:
    }
% endfor
    ${m.store_lanes(vw, "result", "dst", index(dst, "n", "c", *places), dst.pitches[1], 0, ctype)}
}
