<%doc>
Operands of multiply-adds, one product or a lot of four products of bytes at a time.

weights(dot, wt, product, width, pointer, where): expression of `width` weights at pointer + where
element(dot, xt, text): expression of the input element, or of a lot of them, at the lvalue `text`
add(dot, width, acc, x, w): statement that adds lots of four products to `acc`
dot  "": one product. "vnni": x86's vpdpbusd through inline assembly. "plain": the same sums in C.
     Inputs are taken as unsigned: signed ones are moved up by 128, which the start of the sums
     must make good for.
</%doc>
<%def name="weights(dot, wt, product, width, pointer, where)">\
<% text = f"vload{width}(0, (__global const int *)({pointer} + {where}))" if dot and width > 1 else load(wt, width, pointer, str(where)) %>\
% if dot and width == 1:
*(__global const int *)(${pointer} + ${where})\
% elif dot or wt == product:
${text}\
% else:
convert_${vec_type(product, width)}(${text})\
% endif
</%def>
<%def name="element(dot, xt, text)">\
% if dot:
as_int(vload4(0, &${text}))${" ^ (int)0x80808080" if xt == "char" else ""}\
% else:
${text}\
% endif
</%def>
<%def name="add(dot, width, acc, x, w)">\
% if dot == "vnni":
__asm__("vpdpbusd %2, %1, %0" : "+v"(${acc}) : "v"(${x}), "v"(${w}));\
% else:
<% I = vec_type("int", width) %>\
${acc} += (${x} & (${I})(255)) * (${w} << 24 >> 24) + (${x} >> 8 & (${I})(255)) * (${w} << 16 >> 24)
                    + (${x} >> 16 & (${I})(255)) * (${w} << 8 >> 24) + (${x} >> 24 & (${I})(255)) * (${w} >> 24);\
% endif
</%def>
