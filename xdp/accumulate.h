/* Stage 4: overwrite, add, or leave alone; and the way back, from the slot to a packet. */
#ifndef FANIN_ACCUMULATE_H
#define FANIN_ACCUMULATE_H

#include "count.h"

enum verb { OVERWRITE, ADD, MAX, OR, XOR, EMIT, ADD_AND_EMIT };

enum { PAIRS_PER_STEP = 8 };

/* All ones if `number` is below 0, else 0. Conversions and maxima are written without branches: the verifier would follow
 * both sides of each, and there are hundreds of elements. */
inlined __u64 negative_mask(__s64 number)
{
    __u64 mask = number >> 63;
    checked(mask);
    return mask;
}

/* A half as an integer count of 2^-24, exact for magnitudes below 128; beyond that, and for NaN, the least integer
 * (`numeric::scalar::f16_to_units`). */
inlined __u32 half_to_units(__u64 half)
{
    __u64 magnitude = half & 0x7fff;
    __u64 exponent = magnitude >> 10;
    __u64 is_normal = (exponent + 31) >> 5;
    __u64 units = ((magnitude & 0x3ff) | is_normal << 10) << ((exponent - is_normal) & 31);
    __u64 minus = negative_mask((__s64)(half << 48));
    __u64 is_beyond = negative_mask(0x57ff - (__s64)magnitude);
    return (((units ^ minus) - minus) & ~is_beyond) | (is_beyond & 0x80000000);
}

/* Bits that are set, by pairs, fours, bytes, and a product that adds the bytes. */
inlined __u64 ones(__u64 bits)
{
    bits -= (bits >> 1) & 0x55555555;
    bits = (bits & 0x33333333) + ((bits >> 2) & 0x33333333);
    bits = (bits + (bits >> 4)) & 0x0f0f0f0f;
    return ((bits * 0x01010101) >> 24) & 0x3f;
}

/* The half nearest to `units` times 2^-24, rounded once, half to even. Inlined, it is more than the verifier follows. */
verified_alone __u32 units_to_half(__u32 units)
{
    __u64 minus = negative_mask((__s32)units);
    __u64 magnitude = ((__s64)(__s32)units ^ minus) - minus;
    /* A half has eleven bits: the others, up to the highest that is set, are rounded away. */
    __u64 above = magnitude >> 11;
    above |= above >> 1;
    above |= above >> 2;
    above |= above >> 4;
    above |= above >> 8;
    above |= above >> 16;
    __u64 shift = ones(above) & 31;
    __u64 odd = (magnitude >> shift) & 1;
    __u64 rounded = (magnitude + ((((1ULL << shift) - 1) + odd) >> 1)) >> shift;
    /* A carry out of the fraction is right as it is. */
    return (minus & 0x8000) | ((shift << 10) + rounded);
}

inlined __u64 add_pairs(__u64 left, __u64 right)
{
    const __u64 low_bits = 0x7fffffff7fffffffULL;
    return ((left & low_bits) + (right & low_bits)) ^ ((left ^ right) & ~low_bits);
}

inlined __u64 max_pairs(__u64 left, __u64 right)
{
    __s64 first = ((__s64)left >> 32) - ((__s64)right >> 32);
    __s64 second = (__s64)(__s32)left - (__s64)(__s32)right;
    __u64 take_right =
        (negative_mask(first) & 0xffffffff00000000ULL) | (negative_mask(second) & 0xffffffff);
    return (left & ~take_right) | (right & take_right);
}

inlined __u64 combine(const enum verb verb, __u64 slot, __u64 packet)
{
    switch (verb) {
    case OVERWRITE: return packet;
    case MAX: return max_pairs(slot, packet);
    case OR: return slot | packet;
    case XOR: return slot ^ packet;
    case EMIT: return slot;
    default: return add_pairs(slot, packet);
    }
}

/* Bytes of a pair in a packet. */
inlined __u32 pair_bytes(const int format) { return format == FANIN_ELEMENT_FORMAT_INT32 ? 8 : 4; }

inlined __u64 load_pair(const int format, const void *at)
{
    if (format == FANIN_ELEMENT_FORMAT_INT32)
        return from_be64(*(const __u64 *)at);
    __u32 halves = from_be32(*(const __u32 *)at);
    return (__u64)half_to_units(halves >> 16) << 32 | half_to_units(halves & 0xffff);
}

inlined void store_pair(const int format, void *at, __u64 pair)
{
    if (format == FANIN_ELEMENT_FORMAT_INT32)
        *(__u64 *)at = from_be64(pair);
    else
        *(__u32 *)at = from_be32(units_to_half(pair >> 32) << 16 | units_to_half(pair));
}

inlined __u64 load_single(const int format, const void *at)
{
    if (format == FANIN_ELEMENT_FORMAT_INT32)
        return (__u64)from_be32(*(const __u32 *)at) << 32;
    return (__u64)half_to_units(from_be16(*(const __u16 *)at)) << 32;
}

inlined void store_single(const int format, void *at, __u64 pair)
{
    if (format == FANIN_ELEMENT_FORMAT_INT32)
        *(__u32 *)at = from_be32(pair >> 32);
    else
        *(__u16 *)at = from_be16(units_to_half(pair >> 32));
}

inlined void pair_step(const int format, const enum verb verb, __u64 *pair, void *at)
{
    if (verb != EMIT)
        *pair = combine(verb, *pair, load_pair(format, at));
    if (verb == EMIT || verb == ADD_AND_EMIT)
        store_pair(format, at, *pair);
}

/* Brings slot and payload together, as far as whole steps of pairs go. */
inlined void whole_steps(const int format, const enum verb verb, const struct copy *copy, __u64 *pairs, __u8 *payload,
                         void *end)
{
    const __u32 width = pair_bytes(format);
    __u32 count = copy->element_count / 2;
    for (__u32 first = 0; first < PAIRS_MAX; first += PAIRS_PER_STEP) {
        __u8 *step = payload + first * width;
        if (first + PAIRS_PER_STEP > count || (void *)(step + PAIRS_PER_STEP * width) > end)
            break;
#pragma unroll
        for (int index = 0; index < PAIRS_PER_STEP; index++)
            pair_step(format, verb, &pairs[first + index], step + index * width);
    }
}

/* The pairs behind the last whole step, and the last element of an odd number. */
inlined void rest(const int format, const enum verb verb, const struct copy *copy, __u64 *pairs, __u8 *payload, void *end)
{
    const __u32 width = pair_bytes(format);
    __u32 element_count = copy->element_count;
    __u32 count = element_count / 2;
    __u32 at = count & ~(PAIRS_PER_STEP - 1);
    for (int index = 0; index < PAIRS_PER_STEP - 1; index++) {
        checked(at);
        if (at >= count || at >= PAIRS_MAX)
            break;
        checked(at);
        if ((void *)(payload + at * width + width) > end)
            break;
        pair_step(format, verb, &pairs[at], payload + at * width);
        at++;
    }
    checked(count);
    if (!(element_count & 1) || count >= PAIRS_MAX)
        return;
    checked(count);
    __u8 *last = payload + count * width;
    if ((void *)(last + width / 2) > end)
        return;
    if (verb != EMIT)
        pairs[count] = combine(verb, pairs[count], load_single(format, last));
    if (verb == EMIT || verb == ADD_AND_EMIT)
        store_single(format, last, pairs[count]);
}

/* What becomes of a packet's elements: a verb for words, or for halves. */
enum how {
    NOTHING,
    OVERWRITE_WORDS,
    ADD_WORDS,
    MAX_WORDS,
    OR_WORDS,
    XOR_WORDS,
    EMIT_WORDS,
    ADD_AND_EMIT_WORDS,
    OVERWRITE_HALVES,
    ADD_HALVES,
    EMIT_HALVES,
};

/* A function that applies `part` to the elements of the packet and those of a slot's copy. */
#define PART(name, part, format, verb)                                                                                 \
    verified_alone int name(struct xdp_md *context, __u32 slot_number, __u32 slot_parity)                              \
    {                                                                                                                  \
        struct frame *frame = (void *)(long)context->data - sizeof(frame->before);                                     \
        void *end = (void *)(long)context->data_end;                                                                   \
        struct slot *slot = bpf_map_lookup_elem(&slots, &slot_number);                                                 \
        __u32 parity = slot_parity & 1;                                                                                \
        if (!slot || (void *)(frame + 1) > end)                                                                        \
            return 0;                                                                                                  \
        part(format, verb, &slot->copies[parity], slot->pairs[parity], (__u8 *)(frame + 1), end);                      \
        return slot->copies[parity].element_count % (2 * PAIRS_PER_STEP);                                              \
    }

/* One way to bring a packet and a slot together, in two functions. The second is rarely called: most packets are full. */
#define WAY(name, format, verb)                                                                                        \
    PART(name##_whole, whole_steps, format, verb)                                                                      \
    PART(name##_rest, rest, format, verb)                                                                              \
    inlined void name(struct xdp_md *context, __u32 slot_number, __u32 slot_parity)                                    \
    {                                                                                                                  \
        if (name##_whole(context, slot_number, slot_parity))                                                           \
            name##_rest(context, slot_number, slot_parity);                                                            \
    }

WAY(overwrite_words, FANIN_ELEMENT_FORMAT_INT32, OVERWRITE)
WAY(add_words, FANIN_ELEMENT_FORMAT_INT32, ADD)
WAY(max_words, FANIN_ELEMENT_FORMAT_INT32, MAX)
WAY(or_words, FANIN_ELEMENT_FORMAT_INT32, OR)
WAY(xor_words, FANIN_ELEMENT_FORMAT_INT32, XOR)
WAY(emit_words, FANIN_ELEMENT_FORMAT_INT32, EMIT)
WAY(add_and_emit_words, FANIN_ELEMENT_FORMAT_INT32, ADD_AND_EMIT)
WAY(overwrite_halves, FANIN_ELEMENT_FORMAT_FLOAT16, OVERWRITE)
WAY(add_halves, FANIN_ELEMENT_FORMAT_FLOAT16, ADD)
WAY(emit_halves, FANIN_ELEMENT_FORMAT_FLOAT16, EMIT)

inlined void bring_together(struct xdp_md *context, __u32 slot_number, __u32 slot_parity, enum how how)
{
    switch (how) {
    case NOTHING: return;
    case OVERWRITE_WORDS: overwrite_words(context, slot_number, slot_parity); return;
    case ADD_WORDS: add_words(context, slot_number, slot_parity); return;
    case MAX_WORDS: max_words(context, slot_number, slot_parity); return;
    case OR_WORDS: or_words(context, slot_number, slot_parity); return;
    case XOR_WORDS: xor_words(context, slot_number, slot_parity); return;
    case EMIT_WORDS: emit_words(context, slot_number, slot_parity); return;
    case ADD_AND_EMIT_WORDS: add_and_emit_words(context, slot_number, slot_parity); return;
    case OVERWRITE_HALVES: overwrite_halves(context, slot_number, slot_parity); return;
    case ADD_HALVES: add_halves(context, slot_number, slot_parity); return;
    case EMIT_HALVES: emit_halves(context, slot_number, slot_parity); return;
    }
}

/* How the sum of this format is written to a packet. */
inlined enum how emission(__u32 element_format)
{
    return element_format == FANIN_ELEMENT_FORMAT_INT32 ? EMIT_WORDS : EMIT_HALVES;
}

inlined enum how combination(__u32 operator)
{
    switch (operator) {
    case FANIN_OPERATOR_ADD: return ADD_WORDS;
    case FANIN_OPERATOR_MAX: return MAX_WORDS;
    case FANIN_OPERATOR_OR: return OR_WORDS;
    default: return XOR_WORDS;
    }
}

/* Brings a contribution into its slot copy, and tells how its elements come in. The first contribution overwrites, so a slot
 * never needs zeroing (SwitchML Alg. 3, line 10). An empty one counts as zeros and touches no element. */
inlined enum how accumulate(struct copy *copy, const struct contribution *packet, struct position position)
{
    if (position.is_first) {
        copy->collective_tag = packet->collective_tag;
        copy->element_format = packet->element_format;
        copy->operator = packet->operator;
        copy->destination = packet->destination;
        copy->block_exponent_next = packet->block_exponent_next;
        copy->element_count = 0;
    }
    if (packet->block_exponent_next > copy->block_exponent_next)
        copy->block_exponent_next = packet->block_exponent_next;
    if (packet->element_count == 0)
        return NOTHING;
    __u32 overwrite = copy->element_count == 0;
    copy->element_count = packet->element_count;
    /* Halves are added as exact fixed point; `admit` lets no other operator through. */
    if (packet->element_format == FANIN_ELEMENT_FORMAT_FLOAT16)
        return overwrite ? OVERWRITE_HALVES : ADD_HALVES;
    if (overwrite)
        return OVERWRITE_WORDS;
    /* The common case in one pass: the last packet is left holding the sum. */
    if (position.is_last && packet->operator == FANIN_OPERATOR_ADD)
        return ADD_AND_EMIT_WORDS;
    return combination(packet->operator);
}

#endif
