/* Elements of 8 and 16 bits as the 32-bit integers that a slot adds, and back (`numeric::scalar`, bit for bit).
 *
 * Conversions and maxima are written without branches: the verifier would follow both sides of each, and there are hundreds
 * of elements. */
#ifndef FANIN_NARROW_H
#define FANIN_NARROW_H

#include "bpf_base.h"

/* All ones if `number` is below 0, else 0. */
inlined __u64 negative_mask(__s64 number)
{
    __u64 mask = number >> 63;
    checked(mask);
    return mask;
}

/* `magnitude` with the sign of `minus`; the least integer where `is_beyond`. Both are masks. */
inlined __u32 signed_units(__u64 magnitude, __u64 minus, __u64 is_beyond)
{
    return (((magnitude ^ minus) - minus) & ~is_beyond) | (is_beyond & 0x80000000);
}

/* A half as an integer count of 2^-24, exact for magnitudes below 128; beyond that, and for NaN, the least integer
 * (`numeric::scalar::f16_to_units`). */
inlined __u32 half_to_units(__u64 half)
{
    __u64 magnitude = half & 0x7fff;
    __u64 exponent = magnitude >> 10;
    __u64 is_normal = (exponent + 31) >> 5;
    __u64 units = ((magnitude & 0x3ff) | is_normal << 10) << ((exponent - is_normal) & 31);
    return signed_units(units, negative_mask((__s64)(half << 48)), negative_mask(0x57ff - (__s64)magnitude));
}

/* A bfloat16 as the nearest integer, half to even; beyond 31 bits, and for NaN, the least integer
 * (`numeric::scalar::bfloat_units`). */
inlined __u32 bfloat_to_units(__u64 bfloat)
{
    /* Nine bits of fraction hold all of a number from 1/4 on; a smaller one rounds to 0. */
    enum { FRACTION_BITS = 9, QUARTER = 125, BEYOND = 158 };
    __u64 magnitude = bfloat & 0x7fff;
    __s64 exponent = magnitude >> 7;
    __u64 fixed = ((magnitude & 0x7f) | 0x80) << ((exponent - QUARTER) & 63);
    fixed &= ~negative_mask(exponent - QUARTER);
    __u64 units = (fixed + 255 + ((fixed >> FRACTION_BITS) & 1)) >> FRACTION_BITS;
    return signed_units(units, negative_mask((__s64)(bfloat << 48)), negative_mask(BEYOND - 1 - exponent));
}

inlined __u32 byte_to_units(__u64 byte) { return (__s64)(byte << 56) >> 56; }

/* Bits up to the highest that is set: the others below it are set too. */
inlined __u64 fill_below(__u64 bits)
{
    bits |= bits >> 1;
    bits |= bits >> 2;
    bits |= bits >> 4;
    bits |= bits >> 8;
    return bits | bits >> 16;
}

/* Bits that are set, by pairs, fours, bytes, and a product that adds the bytes. */
inlined __u64 ones(__u64 bits)
{
    bits -= (bits >> 1) & 0x55555555;
    bits = (bits & 0x33333333) + ((bits >> 2) & 0x33333333);
    bits = (bits + (bits >> 4)) & 0x0f0f0f0f;
    return ((bits * 0x01010101) >> 24) & 0x3f;
}

/* `number` divided by a power of two, rounded half to even. */
inlined __u64 shift_right_rounded(__u64 number, __u64 shift)
{
    __u64 odd = (number >> shift) & 1;
    return (number + ((((1ULL << shift) - 1) + odd) >> 1)) >> shift;
}

inlined __u64 magnitude_of(__u32 units, __u64 minus) { return ((__s64)(__s32)units ^ minus) - minus; }

/* The half nearest to `units` times 2^-24, rounded once, half to even. Inlined, it is more than the verifier follows. */
verified_alone __u32 units_to_half(__u32 units)
{
    __u64 minus = negative_mask((__s32)units);
    __u64 magnitude = magnitude_of(units, minus);
    /* A half has eleven bits: the others, up to the highest that is set, are rounded away. */
    __u64 shift = ones(fill_below(magnitude >> 11)) & 31;
    /* A carry out of the fraction is right as it is. */
    return (minus & 0x8000) | ((shift << 10) + shift_right_rounded(magnitude, shift));
}

/* The bfloat16 nearest to `units`, rounded once, half to even. */
verified_alone __u32 units_to_bfloat(__u32 units)
{
    __u64 minus = negative_mask((__s32)units);
    __u64 magnitude = magnitude_of(units, minus);
    __u64 bits = ones(fill_below(magnitude));
    /* The highest bit becomes the 32nd, eight remain. They begin with a 1 that is no part of the fraction and so counts as one
     * step of the exponent, as does a carry out of the fraction. */
    __u64 fraction = shift_right_rounded(magnitude << ((32 - bits) & 63), 24);
    __u64 exponent = (125 + bits) << 7 & ~negative_mask((__s64)bits - 1);
    return (minus & 0x8000) | (exponent + fraction);
}

/* The smallest shift by which bytes' sums of at most this magnitude, rounded half to even, fit in -127..127
 * (`numeric::accumulate::byte::shift`). Up to 127.5 rounds to 127; 127.5 itself to 128, which is even. */
inlined __u32 shift_of_bytes(__u32 magnitude)
{
    __u32 shift = 0;
    /* 256 workers' bytes sum to at most 2^15. */
#pragma unroll
    for (int index = 0; index < 9; index++)
        shift += 2 * magnitude >= 255u << index;
    return shift;
}

/* A sum of bytes over 2^shift, rounded half to even. */
inlined __u32 units_to_byte(__u32 units, __u32 shift)
{
    __u64 minus = negative_mask((__s32)units);
    return ((shift_right_rounded(magnitude_of(units, minus), shift & 31) ^ minus) - minus) & 0xff;
}

#endif
