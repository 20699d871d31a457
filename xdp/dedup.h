/* Stage 2: has this worker already contributed? */
#ifndef FANIN_DEDUP_H
#define FANIN_DEDUP_H

#include "admit.h"

enum novelty {
    /* To be counted. */
    NEW,
    /* Resent although the sum is complete: the worker missed the result. */
    RESEND_COMPLETE,
    /* Resent, or duplicated by the network, while others are missing. */
    DUPLICATE,
};

/* What a contribution would be, without marking anything. */
inlined enum novelty look(const struct copy *copy, const struct contribution *packet)
{
    if (packet->begins_use)
        return NEW;
    if (copy->contribution_count == 0)
        return RESEND_COMPLETE;
    __u64 word = copy->contributed[(packet->rank / 64) & 3];
    return word & (1ULL << (packet->rank & 63)) ? DUPLICATE : NEW;
}

/* Marks the worker in this copy and clears it in the other one, which confirms that it has received the other one's
 * result (SwitchML Alg. 3, lines 5-7). */
inlined enum novelty dedup(struct copy *copy, struct copy *other, const struct contribution *packet)
{
    __u64 bit = 1ULL << (packet->rank & 63);
    __u32 word = (packet->rank / 64) & 3;
    enum novelty novelty = look(copy, packet);
    if (packet->begins_use) {
        copy->chunk_index = packet->chunk_index;
#pragma unroll
        for (int index = 0; index < FANIN_WORKER_COUNT_MAX / 64; index++)
            copy->contributed[index] = 0;
    }
    if (novelty == NEW) {
        copy->contributed[word] |= bit;
        other->contributed[word] &= ~bit;
    }
    return novelty;
}

#endif
