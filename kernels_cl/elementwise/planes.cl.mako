<%doc>
elementwise/planes: one elementwise function of images whose channels are planes, for pixels of bytes.

    dst[n, y, x, c] = function(src[n, c, y, x], operands)

Tensors  src: rows of pixels at pitch 1, up to 4 channels at any pitch
         dst: bytes, channels are neighbours
         operands: one element each
Launch   global (bands of rows, images)
Params   name
         ctypes          type of src, of each operand, of dst
         src, dst        TensorLayout of images
         function        Elementwise
         wg              local size
Tunables vec             {4,8,16} pixels at a time; what they leave of a row is walked one by one
         rows            of a band
</%doc>
<%namespace name="fx" file="/${context['function'].library}"/>
<%
    (_, channels, height, width), source, out = dst.shape, ctypes[0], ctypes[-1]
    assert 1 <= channels <= 4 and size_of(out) == 1, (channels, out)
    operands = len(ctypes) - 2
    whole = dst.pitches[3] == channels
%>
<%def name="computed(c, count)">\
            ${vec_type(out, count)} r${c};
            {
                const ${vec_type(source, count)} v0 = ${load(source, count, "src", index(src, "n", c, "y", "x"))};
% for k in range(operands):
                const ${vec_type(ctypes[1 + k], count)} v${k + 1} = (${vec_type(ctypes[1 + k], count)})(o${k});
% endfor
                ${getattr(fx, function.name)(function, count, [f"v{k}" for k in range(operands + 1)], "result")}
                r${c} = result;
            }
</%def>
<%def name="word(c)">\
${f"convert_{vec_type('uint', vec)}(as_{vec_type('uchar', vec)}(r{c}))"}${f" << {8 * c}" if c else ""}\
</%def>
<%def name="stored()">\
<% words = " | ".join(capture(word, c).strip() for c in range(channels)) %>\
% if channels == 1 and whole:
            ${store(vec, "r0", "dst", index(dst, "n", 0, "y", "x"), out)}
% elif channels == 4 and whole:
            ${small_vector(vec_type("uint", vec), "dst", index(dst, "n", 0, "y", "x"), "")} = ${words};
% elif channels == 2 and whole:
            ${small_vector(vec_type("ushort", vec), "dst", index(dst, "n", 0, "y", "x"), "")} = convert_${vec_type("ushort", vec)}(${words});
% elif whole:
            uint pixels[${vec}];
            vstore${vec}(${words}, 0, pixels);
            __global ${out} *to = dst + ${index(dst, "n", 0, "y", "x")};
## The fourth byte of a word is the next pixel's first, which comes after it.
%  for k in range(vec - 1):
            ${small_vector("uint", "to", str(3 * k), "")} = pixels[${k}];
%  endfor
%  for c in range(3):
            to[${3 * (vec - 1) + c}] = (uchar)(pixels[${vec - 1}]${f" >> {8 * c}" if c else ""});
%  endfor
% else:
%  for c in range(channels):
%   for k in range(vec):
            dst[${index(dst, "n", c, "y", f"(x + {k})")}] = r${c}.s${"0123456789abcdef"[k]};
%   endfor
%  endfor
% endif
</%def>
${fx.functions(function, vec)}
${group_size(wg)}
__kernel void ${name}(
    __global const ${source} *src_base, const int src_offset,
% for k in range(operands):
    __global const ${ctypes[1 + k]} *operand${k}, const int offset${k},
% endfor
    __global ${out} *dst_base, const int dst_offset)
{
    const int first = get_global_id(0) * ${rows}, n = get_global_id(1);
    if (first >= ${height}) return;
    __global const ${source} *src = src_base + src_offset;
    __global ${out} *dst = dst_base + dst_offset;
% for k in range(operands):
    const ${ctypes[1 + k]} o${k} = operand${k}[offset${k}];
% endfor
    for (int y = first; y < min(first + ${rows}, ${height}); ++y) {
        int x = 0;
        for (; x + ${vec} <= ${width}; x += ${vec}) {
% for c in range(channels):
${computed(c, vec)}\
% endfor
${stored()}\
        }
        for (; x < ${width}; ++x) {
% for c in range(channels):
${computed(c, 1)}\
            dst[${index(dst, "n", c, "y", "x")}] = r${c};
% endfor
        }
    }
}
