/* Stage 1: is this a valid contribution for a live job and slot? */
#ifndef FANIN_ADMIT_H
#define FANIN_ADMIT_H

#include "include/checksum.h"
#include "include/state.h"

/* Result of the checks: a FANIN_DROP code, or this. */
enum { ADMITTED = -1 };

/* A packet's header in our byte order, its codes known to be defined. */
struct contribution {
    __u32 kind;
    __u32 rank;
    __u32 slot_index;
    __u32 slot_parity;
    __u32 chunk_index;
    __u32 collective_tag;
    __s16 block_exponent_next;
    __u16 element_count;
    __u8 element_format;
    __u8 operator;
    __u16 destination;
    __u32 lane;
    __u32 payload_bytes;
    /* The slot copy's next use begins with this packet. */
    __u32 begins_use;
};

/* What `wire::fanin::Header::parse` checks, in its order; magic and version are known to be right. */
inlined int parse(struct xdp_md *xdp, const struct job *job, const struct frame *frame, __u32 datagram_bytes,
                  struct contribution *packet)
{
    const struct fanin_header *header = &frame->header;
    __u32 slot = from_be16(header->slot);
    packet->kind = header->kind;
    packet->rank = from_be16(header->worker_rank);
    packet->slot_index = slot & FANIN_SLOT_INDEX_MASK;
    packet->slot_parity = slot >> FANIN_SLOT_PARITY_SHIFT;
    packet->chunk_index = from_be32(header->chunk_index);
    packet->collective_tag = from_be32(header->collective_tag);
    packet->block_exponent_next = from_be16(header->block_exponent_next);
    packet->element_count = from_be16(header->element_count);
    packet->element_format = header->format_and_operator & FANIN_ELEMENT_FORMAT_MASK;
    packet->operator = header->format_and_operator >> FANIN_OPERATOR_SHIFT;
    packet->destination = from_be16(header->destination);
    packet->lane = packet->slot_index >> (job->slots_shift & 31);
    if (packet->kind < FANIN_KIND_CONTRIBUTION || packet->kind > FANIN_KIND_MISSING)
        return FANIN_DROP_BAD_KIND;
    if (packet->element_format > FANIN_ELEMENT_FORMAT_INT8)
        return FANIN_DROP_BAD_ELEMENT_FORMAT;
    if (packet->operator > FANIN_OPERATOR_XOR)
        return FANIN_DROP_BAD_OPERATOR;
    packet->payload_bytes = packet->element_count * element_bytes(packet->element_format);
    if (datagram_bytes != FANIN_HEADER_BYTES + packet->payload_bytes)
        return FANIN_DROP_BAD_LENGTH;
    if (job->has_checksum && header->checksum != datagram_checksum(xdp, frame))
        return FANIN_DROP_BAD_CHECKSUM;
    return ADMITTED;
}

/* A Probe: only a job's own workers get an answer. */
inlined int admit_probe(const struct job *job, const struct frame *frame, const struct contribution *packet)
{
    if (from_be32(frame->header.job_token) != job->job_token)
        return FANIN_DROP_STALE_TOKEN;
    if (packet->rank >= job->worker_count)
        return FANIN_DROP_BAD_RANK;
    if (packet->slot_index >= job->slot_count)
        return FANIN_DROP_BAD_SLOT;
    if (packet->element_count > job->element_count_max)
        return FANIN_DROP_ELEMENT_COUNT_MISMATCH;
    return ADMITTED;
}

/* A Contribution or a Query, as far as the job alone tells. */
inlined int admit_to_job(const struct job *job, const struct frame *frame, const struct contribution *packet)
{
    if (packet->kind != FANIN_KIND_CONTRIBUTION && packet->kind != FANIN_KIND_QUERY)
        return FANIN_DROP_NOT_A_CONTRIBUTION;
    if (from_be32(frame->header.job_token) != job->job_token)
        return FANIN_DROP_STALE_TOKEN;
    /* A sum for a rank that does not exist would reach nobody. */
    if (packet->rank >= job->worker_count ||
        (packet->destination != FANIN_RANK_ALL && packet->destination >= job->worker_count))
        return FANIN_DROP_BAD_RANK;
    if (packet->element_count > job->element_count_max)
        return FANIN_DROP_ELEMENT_COUNT_MISMATCH;
    /* Narrow elements have sums only: their scales mean nothing to a maximum or to bits. */
    if (packet->element_format != FANIN_ELEMENT_FORMAT_INT32 && packet->operator != FANIN_OPERATOR_ADD)
        return FANIN_DROP_BAD_OPERATOR;
    __u32 mask = job->slots_per_lane - 1;
    if (packet->slot_index >= job->slot_count || (packet->slot_index & mask) != (packet->chunk_index & mask) ||
        packet->slot_parity != ((packet->chunk_index >> (job->slots_shift & 31)) & 1))
        return FANIN_DROP_BAD_SLOT;
    return ADMITTED;
}

/* A slot adds up one collective: its tag and shape are the first packet's. */
inlined int same_collective(const struct copy *copy, const struct contribution *packet)
{
    if (copy->collective_tag != packet->collective_tag)
        return FANIN_DROP_COLLECTIVE_MISMATCH;
    if (copy->contribution_count == 0)
        return ADMITTED;
    if (copy->operator != packet->operator || copy->element_format != packet->element_format ||
        copy->destination != packet->destination)
        return FANIN_DROP_COLLECTIVE_MISMATCH;
    if (copy->element_count != 0 && packet->element_count != 0 && copy->element_count != packet->element_count)
        return FANIN_DROP_ELEMENT_COUNT_MISMATCH;
    return ADMITTED;
}

/* Places the packet's chunk relative to the slot's two copies. Algorithm 3 tells uses apart by one bit and so takes a
 * packet that the network held back past two reuses for a new contribution; the chunk index closes that hole. */
inlined int admit_to_slot(const struct job *job, const struct copy *copy, const struct copy *other,
                          struct contribution *packet)
{
    __s32 ahead = packet->chunk_index - copy->chunk_index;
    packet->begins_use = 0;
    if (ahead == 0)
        return same_collective(copy, packet);
    if (ahead < 0)
        return FANIN_DROP_STALE_CHUNK;
    packet->begins_use = 1;
    if ((__u32)ahead == 2 * job->slots_per_lane && copy->contribution_count == 0 && other->contribution_count == 0 &&
        other->chunk_index == packet->chunk_index - job->slots_per_lane)
        return ADMITTED;
    return FANIN_DROP_CHUNK_TOO_FAR_AHEAD;
}

#endif
