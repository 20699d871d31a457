/* The SwitchML program in the kernel: one packet in, one verdict out.
 *
 * The five stages are the headers beside this file, in the order a packet meets them: admit, dedup, count, accumulate,
 * decide. They share the stem of their twins in Rust (`crates/protocol/src/switchml/switch`). What this program does not
 * serve - other jobs, the p4app-switchML layout, datagrams without our magic number - goes up to the daemon's socket. */
#include "decide.h"

inlined void read_sum(const struct copy *copy, const struct contribution *packet, struct sum *sum)
{
    sum->block_exponent_next = copy->block_exponent_next;
    sum->element_count = copy->element_count;
    sum->destination = copy->destination;
    sum->element_format = copy->element_format;
    sum->operator = copy->operator;
    sum->shift = copy->shift;
    sum->fits = packet->payload_bytes == payload_bytes(sum);
}

/* About a millisecond: some thousand times as long as a packet takes. */
enum { HOLD_ATTEMPTS = 1 << 14 };

/* Results of `serve_slot` beside the drop reasons, which are below. */
enum { ABSORBED = 64, COMPLETE, COMPLETE_IN_PLACE, REPLY, ASK_AGAIN };

/* The stages that read and write the slot. Several processors run this program at once; whoever holds the slot brings its
 * packet in whole before the next. */
inlined int serve_slot(struct xdp_md *xdp, const struct job *job, struct slot *slot, struct contribution *packet,
                       struct sum *sum)
{
    if (slot->job_id != job->job_id)
        return FANIN_DROP_UNKNOWN_JOB;
    struct copy *copy = &slot->copies[packet->slot_parity & 1];
    struct copy *other = &slot->copies[(packet->slot_parity ^ 1) & 1];
    int reason = admit_to_slot(job, copy, other, packet);
    if (reason != ADMITTED)
        return reason;
    enum novelty novelty = packet->kind == FANIN_KIND_QUERY ? look(copy, packet) : dedup(copy, other, packet);
    if (novelty == DUPLICATE)
        return FANIN_DROP_DUPLICATE_CONTRIBUTION;
    if (novelty == NEW && packet->kind == FANIN_KIND_QUERY)
        return ASK_AGAIN;
    if (novelty == RESEND_COMPLETE) {
        read_sum(copy, packet, sum);
        return REPLY;
    }
    struct position position = count(job, copy);
    enum how how = accumulate(copy, packet, position);
    bring_together(xdp, slot, packet->slot_parity, how);
    if (!position.is_last)
        return ABSORBED;
    choose_shift(slot, packet->slot_parity);
    read_sum(copy, packet, sum);
    return how == ADD_AND_EMIT_WORDS ? COMPLETE_IN_PLACE : COMPLETE;
}

verified_alone int hold_at_length(struct slot *slot)
{
    if (!slot)
        return 0;
    for (int attempt = 0; attempt < HOLD_ATTEMPTS; attempt++) {
        if (__sync_lock_test_and_set(&slot->is_held, 1) == 0)
            return 1;
    }
    return 0;
}

/* Takes the slot for this processor; false if another one does not let go of it, because its virtual machine sleeps. Not
 * bpf_spin_lock, which allows no function that is verified alone. The exchange is also the barrier that orders the slot's
 * memory before and behind it. */
inlined int hold(struct slot *slot)
{
    return __sync_lock_test_and_set(&slot->is_held, 1) == 0 || hold_at_length(slot);
}

inlined void let_go(struct slot *slot)
{
    __u32 was_held = __sync_lock_test_and_set(&slot->is_held, 0);
    checked(was_held);
}

/* Remembers where an admitted packet came from. A worker that moved to another port is answered there. */
inlined void learn(const struct context *context)
{
    const struct contribution *packet = &context->packet;
    struct peer *peer = find_peer(context->job, packet->lane, packet->rank);
    if (!peer)
        return;
    __u32 ifindex = context->xdp->ingress_ifindex;
    peer->seen_ns = bpf_ktime_get_coarse_ns();
    if (is_sender(context->frame, ifindex, peer))
        return;
    struct peer sender;
    sender_of(context->frame, ifindex, &sender);
    sender.seen_ns = peer->seen_ns;
    *peer = sender;
    struct member_key key = {group_of(context->job, packet->lane), ifindex};
    __u32 *rank = bpf_map_lookup_elem(&members, &key);
    /* Two ranks of one interface may come here at once: one of them finds the other's entry. */
    if (!rank && bpf_map_update_elem(&members, &key, &packet->rank, BPF_NOEXIST)) {
        rank = bpf_map_lookup_elem(&members, &key);
        if (!rank)
            context->job->is_shared = 1;
    }
    if (rank && *rank != packet->rank)
        context->job->is_shared = 1;
}

inlined int serve_contribution(struct context *context)
{
    int reason = admit_to_job(context->job, context->frame, &context->packet);
    if (reason != ADMITTED)
        return refuse(context, reason);
    __u32 slot_number = context->job->slot_base + context->packet.slot_index;
    context->slot = bpf_map_lookup_elem(&slots, &slot_number);
    if (!context->slot)
        return refuse(context, FANIN_DROP_BAD_SLOT);
    struct sum sum = {};
    if (!hold(context->slot))
        return drop(context, FANIN_DROP_SLOT_BUSY);
    int verdict = serve_slot(context->xdp, context->job, context->slot, &context->packet, &sum);
    let_go(context->slot);
    if (verdict < FANIN_DROP_COUNT && verdict != FANIN_DROP_DUPLICATE_CONTRIBUTION)
        return refuse(context, verdict);
    learn(context);
    if (verdict == ABSORBED || verdict == COMPLETE || verdict == COMPLETE_IN_PLACE)
        context->counters->contributions++;
    switch (verdict) {
    case ABSORBED: return XDP_DROP;
    case COMPLETE: return multicast(context, &sum, 0);
    case COMPLETE_IN_PLACE: return multicast(context, &sum, 1);
    case REPLY: return reply(context, &sum);
    case ASK_AGAIN: return missing(context);
    default: return drop(context, FANIN_DROP_DUPLICATE_CONTRIBUTION);
    }
}

inlined int serve(struct context *context)
{
    context->counters->received_datagrams++;
    context->counters->received_bytes += context->datagram_bytes;
    int reason = parse(context->xdp, context->job, context->frame, context->datagram_bytes, &context->packet);
    if (reason != ADMITTED)
        return drop(context, reason);
    if (context->packet.kind != FANIN_KIND_PROBE)
        return serve_contribution(context);
    reason = admit_probe(context->job, context->frame, &context->packet);
    if (reason != ADMITTED)
        return refuse(context, reason);
    learn(context);
    return answer_probe(context);
}

/* The live job that a header names, 0 if it is not ours. */
inlined struct job *find_job(const struct fanin_header *header)
{
    if (header->magic != from_be16(FANIN_MAGIC) || header->version != FANIN_VERSION)
        return 0;
    __u32 job_id = from_be32(header->job_id), number = job_id & FANIN_JOB_NUMBER_MASK;
    struct job *job = bpf_map_lookup_elem(&jobs, &number);
    return job && job->is_live && job->job_id == job_id ? job : 0;
}

SEC("xdp")
int switchml(struct xdp_md *xdp)
{
    struct context context = {.xdp = xdp};
    context.frame = find_frame(xdp, &context.datagram_bytes);
    if (!context.frame || (__u16)(from_be16(context.frame->udp.destination) - port_first) >= port_count)
        return XDP_PASS;
    if (own_address && context.frame->ipv4.destination != own_address)
        return XDP_PASS;
    context.job = find_job(&context.frame->header);
    if (!context.job)
        return XDP_PASS;
    __u32 number = context.job->job_id & FANIN_JOB_NUMBER_MASK;
    context.counters = bpf_map_lookup_elem(&counts, &number);
    return context.counters ? serve(&context) : XDP_PASS;
}

/* Addresses one copy of a multicast Aggregate to the worker behind the interface that it leaves by; the copies of
 * interfaces without a worker of this lane end here. */
SEC("xdp/devmap")
int to_worker(struct xdp_md *xdp)
{
    struct context context = {.xdp = xdp};
    struct frame *frame = find_frame(xdp, &context.datagram_bytes);
    struct job *job = frame ? find_job(&frame->header) : 0;
    if (!job)
        return XDP_DROP;
    __u32 lane = (from_be16(frame->header.slot) & FANIN_SLOT_INDEX_MASK) >> (job->slots_shift & 31);
    struct member_key key = {group_of(job, lane), xdp->egress_ifindex};
    __u32 *rank = bpf_map_lookup_elem(&members, &key);
    struct peer *peer = rank ? find_peer(job, lane, *rank) : 0;
    if (!peer || peer->ifindex != key.ifindex)
        return XDP_DROP;
    __u16 destination = from_be16(frame->header.destination);
    if (destination == FANIN_RANK_ALL || destination == *rank) {
        send_to(frame, peer, context.datagram_bytes);
        return XDP_PASS;
    }
    frame->header.element_count = 0;
    if (job->has_checksum)
        frame->header.checksum = datagram_checksum(xdp, frame);
    send_to(frame, peer, FANIN_HEADER_BYTES);
    cut(&context, FANIN_HEADER_BYTES);
    return XDP_PASS;
}

char program_license[] SEC("license") = "Apache-2.0";
