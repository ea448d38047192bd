<%doc>
Rows of scores in local memory become weights of a softmax: exponentials, and a factor for their sum.

one_of(name, vector, vw, how, one_by_one)
    statements that declare float `name`, the lanes of a vector under "max" or "sum"; one_by_one: not by halves, which
    Oclgrind takes for uninitialised where vectors have 16 lanes and nothing is optimised
row_groups(rows, abreast)
    (first row, groups, rows of one) of `rows` rows in groups of at most `abreast`
exponentials(count, vw, span, pitch, reciprocals, put, one_by_one)
    statements for `count` rows from r0 on, scores s{r}, whose largest lanes are top{r}: sum{r} counts the exponentials of
    `span` scores, put(r) is the statement that stores those of x{r} at j, and scores[reciprocals + row] becomes 1 / the sum. one_by_one: of one_of
</%doc>
<%namespace name="ex" file="exp.cl.mako"/>
<%!
def row_groups(rows, abreast):
    groups = -(-rows // abreast)
    least, larger = divmod(rows, groups)
    found = [(0, larger, least + 1), (larger * (least + 1), groups - larger, least)]
    return [group for group in found if group[1]]
%>\
<%def name="one_of(name, vector, vw, how, one_by_one=False)">\
% if one_by_one:
        float ${name} = ((const float *)&${vector})[0];
        for (int k = 1; k < ${vw}; ++k) {
            const float lane = ((const float *)&${vector})[k];
            ${name} = ${f"{name} + lane" if how == "sum" else f"lane > {name} ? lane : {name}"};
        }
% else:
<% lanes, partial = vw, vector %>\
% while lanes > 1:
<%
    lanes //= 2
    low, high = (f"{partial}.lo", f"{partial}.hi") if lanes > 1 else (f"{partial}.s0", f"{partial}.s1")
    text = f"{low} + {high}" if how == "sum" else f"{low} > {high} ? {low} : {high}"
    partial = f"{name}_{lanes}"
%>\
        const ${vec_type("float", lanes)} ${partial} = ${text};
% endwhile
        const float ${name} = ${partial};
% endif
</%def>
<%def name="exponentials(count, vw, span, pitch, reciprocals, put, one_by_one=False)">\
<% V = vec_type("float", vw) %>\
% for r in range(count):
        ${one_of(f"largest{r}", f"top{r}", vw, "max", one_by_one)}
% endfor
        for (int j = 0; j < ${span}; j += ${vw}) {
% for r in range(count):
            const ${V} x${r} = ${ex.module.up_to_zero(f"{load('float', vw, f's{r}', 'j')} - largest{r}", vw)};
            ${put(r)}
            sum${r} += x${r};
% endfor
        }
% for r in range(count):
        ${one_of(f"total{r}", f"sum{r}", vw, "sum", one_by_one)}
        scores[${reciprocals} + r0 + ${r}] = 1.0f / total${r};
% endfor
</%def>
