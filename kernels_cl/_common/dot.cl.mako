<%doc>
Operands of multiply-adds, one product at a time or several: four of bytes, two of shorts.

weights(dot, wt, product, width, pointer, where): expression of `width` weights at pointer + where,
     more than 1 where products are packed
input(dot, xt, pointer, where, image): expression of the input element pointer[where], or of as many
     as are packed, whose pixels lie as `image` says
add(dot, width, acc, x, w): statement that adds packed products to `acc`
apart(width, rows, vectors, sums, pitch, where): statements that add two products each to sums(row, vector), of
     floats wide[row * pitch + where] and the next ones with pairs of weights b{vector}
of_limb(dot, x, limb): what add takes as the input for a limb of weights
joined(width, low, high): expression of the sum in 64 bits of what low and high limbs of weights gave
dot  "bf16x2": two products of bfloat16 pairs by x86's vdpbf16ps, added to float32 sums: the one of the odd
     elements, then that of the even ones, each rounded once to nearest, numbers below the smallest normal one
     counting as 0 throughout. "plainbf16x2": the same pairs by float32's multiply-adds, even ones first. "spreadbf16x2": so, too, of
     inputs that lie as floats already (apart). Of integers: "": one product. "vnni4", "vnni2": x86's vpdpbusd and vpdpwssd through inline assembly. "dp4a4":
     NVIDIA's dp4a. "madd4", "madd2": x86's vpmaddwd on vectors of up to 8, which adds two products of
     shorts: four bytes are two times two. "plain4", "plain2": the same sums in C. "wide2", "maddwide2" and
     "plainwide2": as these, with each weight of 16 bits in two limbs, w = low + 256 * high with low of 0
     to 255, one accumulator for each: SPAN products of a limb fit it. "halves4" and "plainhalves4": four
     bytes with weights of 9 bits, each the sum of two bytes whose products join one sum. "maddpairs4": the
     same, with the four weights as two pairs of shorts, those at even places and those at odd ones.
     Four bytes of input are taken as unsigned: signed ones are moved up by 128, which the start of the sums
     must make good for.
PACK_FACTORS, WEIGHT_LIMBS: of a dot, products that are added at once, and limbs of a weight
ONE_SUM: dots whose limbs have one accumulator
</%doc>
<%!
PACK_FACTORS = {"": 1, "vnni4": 4, "dp4a4": 4, "vnni2": 2, "wide2": 2, "halves4": 4}
PACK_FACTORS |= {f"{how}{sums}": int(sums[-1]) for how in ("plain", "madd") for sums in ("4", "2", "wide2")}
PACK_FACTORS |= {"plainhalves4": 4, "maddpairs4": 4, "bf16x2": 2, "plainbf16x2": 2, "spreadbf16x2": 2}
WIDE_GAP = 16  # floats between rows that lie as floats, which keep them in other sets of a cache
ONE_SUM = {"halves4", "plainhalves4", "maddpairs4"}  # of both limbs
WEIGHT_LIMBS = {dot: 2 if "wide" in dot or dot in ONE_SUM else 1 for dot in PACK_FACTORS}
SPAN = 256
INSTRUCTIONS = {"vnni4": "vpdpbusd", "halves4": "vpdpbusd", "vnni2": "vpdpwssd", "wide2": "vpdpwssd", "bf16x2": "vdpbf16ps"}
def even(image):
    """Whether four packed bytes begin at multiples of four."""
    return not any(place % 4 for place in (image.offset, image.pitches[0], *image.pitches[2:]))
# Operands of vpmaddwd, shorts in vectors of ints: of four bytes those at even places, and those at odd ones.
EVEN = "{x} & (int{n})(0x00ff00ff)", "as_int{n}(as_short{m}({w}) << (short{m})8 >> (short{m})8)"
ODD = "as_int{n}(as_ushort{m}({x}) >> (ushort{m})8)", "as_int{n}(as_short{m}({w}) >> (short{m})8)"
# The sum is an instruction of its own, or compilers add products before it, for which they lack registers.
ADDED = ('{{{{ int{{n}} pair_; {{asm}}("vpmaddwd %2, %1, %0" : "=x"(pair_) : "x"({}), "x"({})); '
         '{{asm}}("vpaddd %2, %1, %0" : "=x"({{acc}}) : "x"({{acc}}), "x"(pair_)); }}}}')
MADD = {"pairs": ADDED.format(EVEN[0], "{w}"), 4: f"{ADDED.format(*EVEN)} {ADDED.format(*ODD)}", 2: ADDED.format("{x}", "{w}")}
def of_limb(dot, x, limb):
    """The input that a limb of the weights is multiplied with."""
    return f"({x} >> 8)" if dot == "maddpairs4" and limb else x
LANES = {1: [""]} | {w: [f".s{digit}" for digit in "0123456789abcdef"[:w]] for w in (2, 4, 8, 16)}
%>
<%def name="weights(dot, wt, product, width, pointer, where)">\
% if dot:
vload${width}(0, (__global const int *)(${pointer} + ${where}))\
% elif wt == product:
${load(wt, width, pointer, str(where))}\
% else:
convert_${vec_type(product, width)}(${load(wt, width, pointer, str(where))})\
% endif
</%def>
<%def name="input(dot, xt, pointer, where, image)">\
% if dot == "dp4a4" and even(image):
*(__global const int *)(${pointer} + ${where})${" ^ (int)0x80808080" if xt == "char" else ""}\
% elif dot:
${small_vector("int", pointer, str(where))}${" ^ (int)0x80808080" if xt == "char" else ""}\
% else:
${element(xt, pointer, where)}\
% endif
</%def>
<%def name="add(dot, width, acc, x, w)">\
<% I = vec_type("int", width) %>\
% if dot in INSTRUCTIONS:
__asm__("${INSTRUCTIONS[dot]} %2, %1, %0" : "+v"(${acc}) : "v"(${x}), "v"(${w}));\
% elif dot.startswith("madd"):
${MADD["pairs" if "pairs" in dot else PACK_FACTORS[dot]].format(asm="__asm__", n=width, m=2 * width, acc=acc, x=x, w=w)}
% elif dot == "dp4a4":
${" ".join(f'{{ int sum_ = {acc}{k}; __asm__("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(sum_) : "r"({x}{k}), "r"({w}{k})); {acc}{k} = sum_; }}' for k in LANES[width])}\
% elif dot == "plainbf16x2":
<% F, high = vec_type("float", width), f"({I})(-65536)" %>\
${acc} = fma(as_${F}(${x} << 16), as_${F}(${w} << 16), ${acc}); ${acc} = fma(as_${F}(${x} & ${high}), as_${F}(${w} & ${high}), ${acc});\
% elif PACK_FACTORS[dot] == 4:
${acc} += (${x} & (${I})(255)) * (${w} << 24 >> 24) + (${x} >> 8 & (${I})(255)) * (${w} << 16 >> 24)
                    + (${x} >> 16 & (${I})(255)) * (${w} << 8 >> 24) + (${x} >> 24 & (${I})(255)) * (${w} >> 24);\
% else:
${acc} += (${x} << 16 >> 16) * (${w} << 16 >> 16) + (${x} >> 16) * (${w} >> 16);\
% endif
</%def>
<%def name="joined(width, low, high)">\
<% L = vec_type("long", width) %>\
convert_${L}(${low}) + (convert_${L}(${high}) << (${L})(8))\
</%def>
<%def name="apart(width, rows, vectors, sums, pitch, where)">\
<% F, I = vec_type("float", width), vec_type("int", width) %>\
% for v in range(vectors):
            const ${F} e${v} = as_${F}(b${v} << 16), o${v} = as_${F}(b${v} & (${I})(-65536));
% endfor
% for side, name in enumerate("eo"):
%  for r in range(rows):
            {
                const ${F} s = (${F})(wide[${r * pitch + side} + ${where}]);
%   for v in range(vectors):
                ${sums(r, v)} = fma(s, ${name}${v}, ${sums(r, v)});
%   endfor
            }
%  endfor
% endfor
</%def>
