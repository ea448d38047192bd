<%doc>
peak_fma: multiply-adds in independent chains, to measure a device's arithmetic rate.

Each work-item runs ${'rounds'} times `chains` multiply-adds of `vec` floats. With a + b = 1 the values stay
near 1. The sum of all chains is stored, so that no work can be left out.
Launch   global (any), one float of `out` per work-item
Params   name | vec {1,2,4,8,16} | chains >= 1 | fused: fma() rather than a * b + c | wg
</%doc>
<% t = vec_type("float", vec) %>
${group_size(wg)}
__kernel void ${name}(__global float *out, const int rounds, const float a, const float b)
{
    const int id = get_global_id(0);
    const ${t} va = (${t})(a), vb = (${t})(b);
% for k in range(chains):
    ${t} x${k} = (${t})(1.0f + 0.001f * (id % 7) + ${scalar(k * 0.01)});
% endfor
    for (int i = 0; i < rounds; ++i) {
% for k in range(chains):
        x${k} = ${f"fma(x{k}, va, vb)" if fused else f"x{k} * va + vb"};
% endfor
    }
    const ${t} total = ${" + ".join(f"x{k}" for k in range(chains))};
% if vec == 1:
    out[id] = total;
% else:
    float sum = 0.0f;
% for k in range(vec):
    sum += total.s${f"{k:x}"};
% endfor
    out[id] = sum;
% endif
}
