<%doc>
Numbers of 16 and 19 bits as bits in a word, in plain OpenCL C: no cl_khr_fp16 is needed.

functions()
    half_value(bits): the float that a half is, exactly. half_bits(value), bf16_bits(value): the
    nearest half or bfloat16, ties to even. tf32_bits(value): the nearest TF32 as bits of a float,
    ties away from zero, as PTX's cvt.rna rounds. NaN stays NaN.
</%doc>
<%def name="functions()">\
float half_value(const uint bits)
{
    const uint size = bits & 0x7fff, sign = (bits & 0x8000) << 16;
    if (size >= 0x7c00) return as_float(sign | 0x7f800000 | (size & 0x3ff) << 13);
    if (size < 0x400) return (sign ? -1.0f : 1.0f) * ((float)size * 0x1p-24f);
    return as_float(sign | ((size << 13) + (112u << 23)));
}
uint half_bits(const float value)
{
    const uint bits = as_uint(value), size = bits & 0x7fffffff, sign = bits >> 16 & 0x8000;
    if (size > 0x7f800000) return sign | 0x7e00;
    if (size >= 0x477ff000) return sign | 0x7c00;
    // Below the least normal half: the last place of 0.5f is the least half.
    if (size < 0x38800000) return sign | (as_uint(as_float(size) + 0.5f) - 0x3f000000);
    return sign | (size + 0xfff + (size >> 13 & 1) - (112u << 23)) >> 13;
}
uint bf16_bits(const float value)
{
    const uint bits = as_uint(value);
    if ((bits & 0x7fffffff) > 0x7f800000) return bits >> 16 | 0x40;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
uint tf32_bits(const float value)
{
    const uint bits = as_uint(value);
    return (bits & 0x7f800000) == 0x7f800000 ? bits & 0xffffe000 | ((bits & 0x1fff) != 0) << 22
                                             : (bits + 0x1000) & 0xffffe000;
}
</%def>
