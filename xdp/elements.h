/* The elements of a packet and of a slot, brought together: one function for each format and verb. */
#ifndef FANIN_ELEMENTS_H
#define FANIN_ELEMENTS_H

#include "include/narrow.h"
#include "include/state.h"

enum verb { OVERWRITE, ADD, MAX, OR, XOR, EMIT, ADD_AND_EMIT };

enum { PAIRS_PER_STEP = 16 };

/* Two additions in one: a carry out of the lower element must not reach the upper one. Where it did, bit 32 is not what both
 * numbers' bits 32 give. */
inlined __u64 add_pairs(__u64 left, __u64 right)
{
    __u64 sum = left + right;
    return sum - ((sum ^ left ^ right) & (1ULL << 32));
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

inlined __u32 to_units(const int format, __u32 element)
{
    switch (format) {
    case FANIN_ELEMENT_FORMAT_FLOAT16: return half_to_units(element);
    case FANIN_ELEMENT_FORMAT_BFLOAT16: return bfloat_to_units(element);
    default: return byte_to_units(element);
    }
}

inlined __u32 to_element(const int format, __u32 units, __u32 shift)
{
    switch (format) {
    case FANIN_ELEMENT_FORMAT_FLOAT16: return units_to_half(units);
    case FANIN_ELEMENT_FORMAT_BFLOAT16: return units_to_bfloat(units);
    default: return units_to_byte(units, shift);
    }
}

inlined __u64 load_pair(const int format, const void *at)
{
    __u32 both;
    switch (format) {
    case FANIN_ELEMENT_FORMAT_INT32: return from_be64(*(const __u64 *)at);
    case FANIN_ELEMENT_FORMAT_INT8:
        both = from_be16(*(const __u16 *)at);
        return (__u64)to_units(format, both >> 8) << 32 | to_units(format, both & 0xff);
    default:
        both = from_be32(*(const __u32 *)at);
        return (__u64)to_units(format, both >> 16) << 32 | to_units(format, both & 0xffff);
    }
}

inlined void store_pair(const int format, void *at, __u64 pair, __u32 shift)
{
    if (format == FANIN_ELEMENT_FORMAT_INT32) {
        *(__u64 *)at = from_be64(pair);
        return;
    }
    __u32 first = to_element(format, pair >> 32, shift), second = to_element(format, pair, shift);
    if (format == FANIN_ELEMENT_FORMAT_INT8)
        *(__u16 *)at = from_be16(first << 8 | second);
    else
        *(__u32 *)at = from_be32(first << 16 | second);
}

/* The last element of an odd number is a pair's first. */
inlined __u64 load_single(const int format, const void *at)
{
    switch (format) {
    case FANIN_ELEMENT_FORMAT_INT32: return (__u64)from_be32(*(const __u32 *)at) << 32;
    case FANIN_ELEMENT_FORMAT_INT8: return (__u64)to_units(format, *(const __u8 *)at) << 32;
    default: return (__u64)to_units(format, from_be16(*(const __u16 *)at)) << 32;
    }
}

inlined void store_single(const int format, void *at, __u64 pair, __u32 shift)
{
    switch (format) {
    case FANIN_ELEMENT_FORMAT_INT32: *(__u32 *)at = from_be32(pair >> 32); return;
    case FANIN_ELEMENT_FORMAT_INT8: *(__u8 *)at = to_element(format, pair >> 32, shift); return;
    default: *(__u16 *)at = from_be16(to_element(format, pair >> 32, shift));
    }
}

inlined void pair_step(const int format, const enum verb verb, __u64 *pair, void *at, __u32 shift)
{
    if (verb == EMIT) {
        store_pair(format, at, *pair, shift);
        return;
    }
    *pair = combine(verb, *pair, load_pair(format, at));
    if (verb == ADD_AND_EMIT)
        store_pair(format, at, *pair, shift);
}

/* Brings slot and payload together, as far as whole steps of pairs go. */
inlined void whole_steps(const int format, const enum verb verb, const struct copy *copy, __u64 *pairs, __u8 *payload,
                         void *end)
{
    const __u32 width = 2 * element_bytes(format);
    __u32 count = copy->element_count / 2, shift = copy->shift;
    for (__u32 first = 0; first < PAIRS_MAX; first += PAIRS_PER_STEP) {
        __u8 *step = payload + first * width;
        if (first + PAIRS_PER_STEP > count || (void *)(step + PAIRS_PER_STEP * width) > end)
            break;
#pragma unroll
        for (int index = 0; index < PAIRS_PER_STEP; index++)
            pair_step(format, verb, &pairs[first + index], step + index * width, shift);
    }
}

/* The pairs behind the last whole step, and the last element of an odd number. */
inlined void rest(const int format, const enum verb verb, const struct copy *copy, __u64 *pairs, __u8 *payload, void *end)
{
    const __u32 width = 2 * element_bytes(format);
    __u32 element_count = copy->element_count, shift = copy->shift;
    __u32 count = element_count / 2;
    __u32 at = count & ~(PAIRS_PER_STEP - 1);
    for (int index = 0; index < PAIRS_PER_STEP - 1; index++) {
        checked(at);
        if (at >= count || at >= PAIRS_MAX)
            break;
        checked(at);
        if ((void *)(payload + at * width + width) > end)
            break;
        pair_step(format, verb, &pairs[at], payload + at * width, shift);
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
        store_single(format, last, pairs[count], shift);
}

/* A function that applies `part` to the elements of the packet and those of a slot's copy. */
#define PART(name, part, format, verb)                                                                                 \
    verified_alone int name(struct xdp_md *context, struct copy *copy, struct pairs *pairs)                            \
    {                                                                                                                  \
        struct frame *frame = (void *)(long)context->data - sizeof(frame->before);                                     \
        void *end = (void *)(long)context->data_end;                                                                   \
        if (!copy || !pairs || (void *)(frame + 1) > end)                                                              \
            return 0;                                                                                                  \
        part(format, verb, copy, pairs->pair, (__u8 *)(frame + 1), end);                                               \
        return copy->element_count % (2 * PAIRS_PER_STEP);                                                             \
    }

/* One way to bring a packet and a slot together, in two functions. The second is rarely called: most packets are full. */
#define WAY(name, format, verb)                                                                                        \
    PART(name##_whole, whole_steps, format, verb)                                                                      \
    PART(name##_rest, rest, format, verb)                                                                              \
    inlined void name(struct xdp_md *context, struct copy *copy, struct pairs *pairs)                                  \
    {                                                                                                                  \
        if (name##_whole(context, copy, pairs))                                                                        \
            name##_rest(context, copy, pairs);                                                                         \
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
WAY(overwrite_bfloats, FANIN_ELEMENT_FORMAT_BFLOAT16, OVERWRITE)
WAY(add_bfloats, FANIN_ELEMENT_FORMAT_BFLOAT16, ADD)
WAY(emit_bfloats, FANIN_ELEMENT_FORMAT_BFLOAT16, EMIT)
WAY(overwrite_bytes, FANIN_ELEMENT_FORMAT_INT8, OVERWRITE)
WAY(add_bytes, FANIN_ELEMENT_FORMAT_INT8, ADD)
WAY(emit_bytes, FANIN_ELEMENT_FORMAT_INT8, EMIT)

inlined __u64 larger(__u64 left, __u64 right)
{
    __u64 difference = left - right;
    return left - (difference & negative_mask(difference));
}

/* The largest magnitude of a sum's elements. The lower half of an odd number's last pair is 0. */
verified_alone __u32 largest_magnitude(struct copy *copy, struct pairs *pairs)
{
    __u64 largest = 0;
    if (!copy || !pairs)
        return 0;
    __u32 count = (copy->element_count + 1) / 2;
    for (__u32 index = 0; index < PAIRS_MAX && index < count; index++) {
        __u64 pair = pairs->pair[index];
        __u32 first = pair >> 32, second = pair;
        largest = larger(largest, magnitude_of(first, negative_mask((__s32)first)));
        largest = larger(largest, magnitude_of(second, negative_mask((__s32)second)));
    }
    return largest;
}

#endif
