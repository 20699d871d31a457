/* Stage 4: overwrite, add, or leave alone; and the way back, from the slot to a packet. */
#ifndef FANIN_ACCUMULATE_H
#define FANIN_ACCUMULATE_H

#include "count.h"
#include "elements.h"

/* What becomes of a packet's elements: a verb for words, halves, bfloats, or bytes. */
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
    OVERWRITE_BFLOATS,
    ADD_BFLOATS,
    EMIT_BFLOATS,
    OVERWRITE_BYTES,
    ADD_BYTES,
    EMIT_BYTES,
};

inlined void bring_together(struct xdp_md *context, struct slot *slot, __u32 slot_parity, enum how how)
{
    struct copy *copy = &slot->copies[slot_parity & 1];
    struct pairs *pairs = &slot->pairs[slot_parity & 1];
    switch (how) {
    case NOTHING: return;
    case OVERWRITE_WORDS: overwrite_words(context, copy, pairs); return;
    case ADD_WORDS: add_words(context, copy, pairs); return;
    case MAX_WORDS: max_words(context, copy, pairs); return;
    case OR_WORDS: or_words(context, copy, pairs); return;
    case XOR_WORDS: xor_words(context, copy, pairs); return;
    case EMIT_WORDS: emit_words(context, copy, pairs); return;
    case ADD_AND_EMIT_WORDS: add_and_emit_words(context, copy, pairs); return;
    case OVERWRITE_HALVES: overwrite_halves(context, copy, pairs); return;
    case ADD_HALVES: add_halves(context, copy, pairs); return;
    case EMIT_HALVES: emit_halves(context, copy, pairs); return;
    case OVERWRITE_BFLOATS: overwrite_bfloats(context, copy, pairs); return;
    case ADD_BFLOATS: add_bfloats(context, copy, pairs); return;
    case EMIT_BFLOATS: emit_bfloats(context, copy, pairs); return;
    case OVERWRITE_BYTES: overwrite_bytes(context, copy, pairs); return;
    case ADD_BYTES: add_bytes(context, copy, pairs); return;
    case EMIT_BYTES: emit_bytes(context, copy, pairs); return;
    }
}

/* How the sum of this format is written to a packet. */
inlined enum how emission(__u32 element_format)
{
    switch (element_format) {
    case FANIN_ELEMENT_FORMAT_INT32: return EMIT_WORDS;
    case FANIN_ELEMENT_FORMAT_FLOAT16: return EMIT_HALVES;
    case FANIN_ELEMENT_FORMAT_BFLOAT16: return EMIT_BFLOATS;
    default: return EMIT_BYTES;
    }
}

/* Narrow elements are added as exact fixed point; `admit` lets no other operator through. */
inlined enum how narrow_sum(__u32 element_format, __u32 overwrite)
{
    switch (element_format) {
    case FANIN_ELEMENT_FORMAT_FLOAT16: return overwrite ? OVERWRITE_HALVES : ADD_HALVES;
    case FANIN_ELEMENT_FORMAT_BFLOAT16: return overwrite ? OVERWRITE_BFLOATS : ADD_BFLOATS;
    default: return overwrite ? OVERWRITE_BYTES : ADD_BYTES;
    }
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
    if (packet->element_format != FANIN_ELEMENT_FORMAT_INT32)
        return narrow_sum(packet->element_format, overwrite);
    if (overwrite)
        return OVERWRITE_WORDS;
    /* The common case in one pass: the last packet is left holding the sum. */
    if (position.is_last && packet->operator == FANIN_OPERATOR_ADD)
        return ADD_AND_EMIT_WORDS;
    return combination(packet->operator);
}

/* Finds how far a complete sum of bytes must be shifted to fit in bytes again. */
inlined void choose_shift(struct slot *slot, __u32 slot_parity)
{
    struct copy *copy = &slot->copies[slot_parity & 1];
    if (copy->element_format == FANIN_ELEMENT_FORMAT_INT8)
        copy->shift = shift_of_bytes(largest_magnitude(copy, &slot->pairs[slot_parity & 1]));
}

#endif
