<%doc>
Order keys: elements as unsigned integers of the same order, so that they can be sorted by digits.

functions(ctype, widths, largest)
    Defines for each width a function key(v) of vectors of ctype (key1, key16 ...), whose result is
    larger for what comes first. NaN counts as larger than any number, all NaN are equal, as zeros
    of both signs are.
key_type(ctype), bits(ctype): type and bits of a key.
</%doc>
<%!
    WIDE = ("long", "ulong", "double")

    def key_type(ctype):
        return "ulong" if ctype in WIDE else "uint"

    def bits(ctype):
        return 64 if ctype in WIDE else 32
%>
<%def name="functions(ctype, widths, largest)">\
<%
    U, size = key_type(ctype), bits(ctype)
    S = U[1:]
    mark = "UL" if size == 64 else "u"
    top = f"{1 << (size - 1):#x}{mark}"
    magnitude = f"{(1 << (size - 1)) - 1:#x}{mark}"
    infinite = f"{0x7ff << 52 if size == 64 else 0x7f800000:#x}{mark}"
%>\
% for width in widths:
<% n = "" if width == 1 else width ; V, T = f"{U}{n}", f"{ctype}{n}" %>\
${V} key${width}(const ${T} v)
{
% if ctype in ("float", "half", "double"):
    const ${V} raw = as_${U}${n}(${f"convert_float{n}(v)" if ctype == "half" else "v"});
    const ${V} b = (raw << 1) != 0 ? raw : (${V})(0);
    const ${V} up = b ^ (as_${U}${n}(as_${S}${n}(b) >> ${size - 1}) | (${V})(${top}));
    const ${V} k = (b & (${V})(${magnitude})) > (${V})(${infinite}) ? ~(${V})(0) : up;
% elif ctype.startswith("u"):
    const ${V} k = convert_${U}${n}(v);
% else:
    const ${V} k = as_${U}${n}(convert_${S}${n}(v)) ^ (${V})(${top});
% endif
    return ${"k" if largest else "~k"};
}
% endfor
</%def>
