/* Stage 5: what leaves the switch.
 *
 * An answer to one worker goes back through the interface on which its packet came. An Aggregate for all goes out at every
 * interface, and `to_worker` addresses each copy. What the packet in hand has no room for, and an Aggregate for ranks that
 * share an interface, goes up to the daemon's socket, which sends it: the program decides, the daemon carries. */
#ifndef FANIN_DECIDE_H
#define FANIN_DECIDE_H

#include "accumulate.h"

/* A complete sum's header fields, read while the slot was held. */
struct sum {
    __s16 block_exponent_next;
    __u16 element_count;
    __u16 destination;
    __u8 element_format;
    __u8 operator;
    /* Of a sum of bytes. */
    __u8 shift;
    /* The packet is of the sum's size. */
    __u32 fits;
};

/* A packet with all that the program knows of it. */
struct context {
    struct xdp_md *xdp;
    struct job *job;
    struct frame *frame;
    struct counters *counters;
    __u32 datagram_bytes;
    /* 0 for a packet that is not for one. */
    struct slot *slot;
    struct contribution packet;
};

inlined __u32 payload_bytes(const struct sum *sum)
{
    return sum->element_count * element_bytes(sum->element_format);
}

inlined void count_sent(struct counters *counters, __u64 datagrams, __u64 bytes)
{
    counters->sent_datagrams += datagrams;
    counters->sent_bytes += bytes;
}

/* Cuts the frame to a datagram of so many bytes. No packet pointer is valid behind this. */
inlined void cut(const struct context *context, __u32 datagram_bytes)
{
    if (datagram_bytes < context->datagram_bytes)
        bpf_xdp_adjust_tail(context->xdp, (int)datagram_bytes - (int)context->datagram_bytes);
}

/* Sends what lies in the packet back to its sender. */
inlined int answer(const struct context *context, __u32 answer_payload_bytes)
{
    struct frame *frame = context->frame;
    struct peer sender;
    __u32 bytes = FANIN_HEADER_BYTES + answer_payload_bytes;
    sender_of(frame, 0, &sender);
    send_to(frame, &sender, bytes);
    frame->header.checksum = context->job->has_checksum ? datagram_checksum(context->xdp, frame) : 0;
    count_sent(context->counters, 1, bytes);
    cut(context, bytes);
    /* A veth wakes its other end after XDP_TX only if that has a program of its own; after a redirect whenever it polls. */
    return redirects_answers ? bpf_redirect(context->xdp->ingress_ifindex, 0) : XDP_TX;
}

/* Tells the sender why its packet was not accepted, where the reason is one that the sender can act on. An answer is never
 * answered: two switches could send it to and fro for ever. */
inlined int refuse(const struct context *context, __u32 reason)
{
    if (reason < FANIN_DROP_COUNT)
        context->counters->drops[reason]++;
    __u32 kind = context->packet.kind;
    if (!(FANIN_DROP_REFUSED & (1 << (reason & 31))) ||
        (kind != FANIN_KIND_CONTRIBUTION && kind != FANIN_KIND_QUERY && kind != FANIN_KIND_PROBE))
        return XDP_DROP;
    context->frame->header.kind = FANIN_KIND_REFUSAL;
    context->frame->header.detail = reason;
    context->frame->header.element_count = 0;
    return answer(context, 0);
}

inlined int drop(const struct context *context, __u32 reason)
{
    if (reason < FANIN_DROP_COUNT)
        context->counters->drops[reason]++;
    return XDP_DROP;
}

/* Tells the sender of a Query that its contribution has not arrived. */
inlined int missing(const struct context *context)
{
    context->counters->missing++;
    context->frame->header.kind = FANIN_KIND_MISSING;
    context->frame->header.element_count = 0;
    return answer(context, 0);
}

/* Sends a Probe back at its full length. */
inlined int answer_probe(const struct context *context)
{
    context->counters->probes++;
    context->frame->header.kind = FANIN_KIND_PROBE_REPLY;
    return answer(context, context->packet.payload_bytes);
}

inlined void write_aggregate(struct fanin_header *header, const struct sum *sum, __u32 receiver, __u32 element_count)
{
    header->kind = FANIN_KIND_AGGREGATE;
    header->worker_rank = from_be16(receiver);
    header->block_exponent_next = from_be16(sum->block_exponent_next);
    header->element_count = from_be16(element_count);
    header->format_and_operator = sum->operator << FANIN_OPERATOR_SHIFT | sum->element_format;
    header->destination = from_be16(sum->destination);
    if (sum->element_format == FANIN_ELEMENT_FORMAT_INT8)
        header->echo = from_be32(sum->shift);
}

/* Hands an Aggregate to the daemon's socket. Without its elements if they do not lie in the packet: the daemon then reads
 * them from the slot. */
inlined int hand_up(const struct context *context, const struct sum *sum)
{
    struct frame *frame = context->frame;
    __u32 bytes = FANIN_HEADER_BYTES + (sum->fits ? payload_bytes(sum) : 0);
    frame->ipv4.bytes = from_be16(sizeof(struct ipv4) + sizeof(struct udp) + bytes);
    frame->ipv4.checksum = 0;
    frame->ipv4.checksum = ipv4_checksum(&frame->ipv4);
    frame->udp.bytes = from_be16(sizeof(struct udp) + bytes);
    frame->udp.checksum = 0;
    cut(context, bytes);
    return XDP_PASS;
}

/* Brings the sum into the packet, if it has room. Nobody overwrites the sum meanwhile, so that the slot need not be held: a
 * next use begins only when every worker has this sum (invariant I4), and what answers an older duplicate nobody awaits. */
inlined void fill_in(const struct context *context, const struct sum *sum)
{
    if (sum->fits && sum->element_count > 0)
        bring_together(context->xdp, context->slot, context->packet.slot_parity, emission(sum->element_format));
}

/* The chunk is complete: its Aggregate goes to every worker. The packet may hold the elements already. */
inlined int multicast(const struct context *context, const struct sum *sum, const int is_in_place)
{
    struct frame *frame = context->frame;
    __u64 copies = context->job->worker_count;
    __u64 bytes = FANIN_HEADER_BYTES + payload_bytes(sum);
    __u64 with_payload = sum->destination == FANIN_RANK_ALL ? copies : 1;
    context->counters->aggregates++;
    count_sent(context->counters, copies, with_payload * bytes + (copies - with_payload) * FANIN_HEADER_BYTES);
    write_aggregate(&frame->header, sum, FANIN_RANK_ALL, sum->element_count);
    if (!is_in_place)
        fill_in(context, sum);
    if (!sum->fits || context->job->is_shared)
        return hand_up(context, sum);
    frame->header.checksum = context->job->has_checksum ? datagram_checksum(context->xdp, frame) : 0;
    return bpf_redirect_map(&ports, 0, BPF_F_BROADCAST);
}

/* The worker missed a complete chunk: its Aggregate goes to it alone. */
inlined int reply(const struct context *context, const struct sum *sum)
{
    struct frame *frame = context->frame;
    __u32 has_payload = sum->element_count > 0 &&
                        (sum->destination == FANIN_RANK_ALL || sum->destination == context->packet.rank);
    context->counters->replies++;
    write_aggregate(&frame->header, sum, context->packet.rank, has_payload ? sum->element_count : 0);
    if (!has_payload)
        return answer(context, 0);
    if (sum->fits) {
        fill_in(context, sum);
        return answer(context, payload_bytes(sum));
    }
    count_sent(context->counters, 1, FANIN_HEADER_BYTES + payload_bytes(sum));
    return hand_up(context, sum);
}

#endif
