<%doc>
conv/winograd_input: input tiles of Winograd's F(m x m, 3 x 3), transformed for products place by place.

A work-item transforms `vw` channels of one tile in registers, `run` times. Neighbours take
neighbouring channels.

Tensors  src: image with a border as wide as the pads
         dst: [(m + 2) ** 2][held][tile_pitch]
Index    tile t of an image begins at row t / wide * m - pad, column t % wide * m - pad. Inputs beyond
         the border, which only outputs beyond the image depend on, read the border's last row or
         column instead
Launch   global (runs of vectors of channels of all tiles)
Params   name, src, wg
         batch: images
         high, wide: tiles of an image
         pads: (y, x)
         reach: last row and column of src, border included, counted from src's first
         m: outputs of a tile along an axis
         bt: matrix of the input
         ctype: of src
         aligned {0,1}: vectors of src are
         held: tiles, and copies of the last one
         tile_pitch: of a tile's channels in dst, at least ic
Tunables vw {1,2,4}, {4,8,16} on CPUs: divides the channels
         run: divides the vectors of a tile
</%doc>
<%namespace name="tl" file="/_common/tile.cl.mako"/>
<%namespace name="wg_" file="/_common/winograd.cl.mako"/>
<%namespace name="wk" file="/_common/workgroup.cl.mako"/>
<%
    n, ic = m + 2, src.shape[1]
    tiles, runs = batch * high * wide, ic // (vw * run)
    pitch = src.pitches[1] if ic > 1 else 1
    V = vec_type("float", vw)
    assert ic % (vw * run) == 0 and (pitch == 1 or not aligned), (ic, vw, run, pitch)
    def place(axis, name, at):
        """Row or column `at` of a tile, as far as memory goes; clamped where the last tile ends later."""
        first = f"{name} + {at - pads[axis]}"
        last = ((high, wide)[axis] - 1) * m + n - 1 - pads[axis]
        return f"min({first}, {reach[axis]})" if is_traced(last) or is_traced(reach[axis]) or last > reach[axis] else first
    def there(i, j):
        where = f"y{i} + x{j} + c"
        if aligned:
            return wk.module.aligned(vw, f"src + ({where})")
        return capture(tl.load_lanes, vw, "src", where, pitch, vw, ctype).strip()
    def put(value, at):
        if vw > 4:
            return store(vw, value, "dst", f"channel + {at}", "float")
        return f"*(__global V *)(dst + channel + {at}) = {value};"
%>
${group_size(wg)}
__kernel void ${name}(
    __global const ${cell(ctype)} *src_base, const int src_offset, __global float *dst_base, const int dst_offset)
{
    typedef ${V} V;
    const int item = get_global_id(0);
    if (item >= ${held * runs}) return;
    const int place = item / ${runs}, tile = ${"place" if not is_traced(held) and not is_traced(tiles) and held == tiles else f"min(place, {tiles - 1})"};
    const int image = tile / ${high * wide}, top = tile / ${wide} % ${high} * ${m}, left = tile % ${wide} * ${m};
    __global const ${cell(ctype)} *src = src_base + src_offset + image * ${src.pitches[0]};
    __global float *dst = dst_base + dst_offset + place * ${tile_pitch};
% for i in range(n):
    const int y${i} = (${place(0, "top", i)}) * ${src.pitches[2]}, x${i} = (${place(1, "left", i)}) * ${src.pitches[3]};
% endfor
    for (int vector = item % ${runs} * ${run}; vector < item % ${runs} * ${run} + ${run}; ++vector) {
        const int channel = vector * ${vw}, c = channel * ${pitch};
        V ${", ".join(f"h{i}_{j}" for i in range(n) for j in range(n))};
% for j in range(n):
        {
%  for i in range(n):
            const V d${i} = ${there(i, j)};
%  endfor
            ${wg_.by_rows(bt, lambda i: f"h{i}_{j}", lambda k: f"d{k}")}
        }
% endfor
% for i in range(n):
        {
            V ${", ".join(f"r{j}" for j in range(n))};
            ${wg_.by_rows(bt, lambda j: f"r{j}", lambda k: f"h{i}_{k}")}
%  for j in range(n):
            ${put(f"r{j}", (i * n + j) * held * tile_pitch)}
%  endfor
        }
% endfor
    }
}
