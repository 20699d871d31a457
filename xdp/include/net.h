/* Ethernet, IPv4 and UDP around a datagram: found on the way in, written on the way out. */
#ifndef FANIN_NET_H
#define FANIN_NET_H

#include "bpf_base.h"
#include "fanin_generated.h"

enum { ETHERTYPE_IPV4 = 0x0800, PROTOCOL_UDP = 17, VERSION_4_WITHOUT_OPTIONS = 0x45, FRAGMENT = 0x3fff };

struct ethernet {
    __u8 destination[6];
    __u8 source[6];
    __u16 type;
};

struct ipv4 {
    __u8 version_and_length;
    __u8 service;
    __u16 bytes;
    __u16 id;
    __u16 fragment;
    __u8 hops;
    __u8 protocol;
    __u16 checksum;
    __u32 source;
    __u32 destination;
};

struct udp {
    __u16 source;
    __u16 destination;
    __u16 bytes;
    __u16 checksum;
};

/* All headers of a frame; its elements lie behind. It begins two bytes before the frame does, so that every field lies at a
 * multiple of its size in here: told otherwise, the compiler would read them byte by byte. */
struct frame {
    __u16 before;
    struct ethernet ethernet;
    struct ipv4 ipv4;
    struct udp udp;
    struct fanin_header header;
};

/* Where a worker is, as its frames tell, and as whom it knows us. `loader` has the twin of this. */
struct peer {
    __u8 mac[6];
    __u8 local_mac[6];
    __u32 address;
    __u32 local_address;
    __u16 port;
    __u16 local_port;
    __u32 ifindex;
    __u32 unused;
    __u64 seen_ns;
};

/* The headers of a frame that may be fanin's, 0 for any other. `datagram_bytes` becomes the UDP payload's length, and all
 * of it lies in the frame. */
inlined struct frame *find_frame(struct xdp_md *context, __u32 *datagram_bytes)
{
    struct frame *frame = (void *)(long)context->data - sizeof(frame->before);
    void *end = (void *)(long)context->data_end;
    if ((void *)(frame + 1) > end)
        return 0;
    if (frame->ethernet.type != from_be16(ETHERTYPE_IPV4) || frame->ipv4.protocol != PROTOCOL_UDP)
        return 0;
    if (frame->ipv4.version_and_length != VERSION_4_WITHOUT_OPTIONS || frame->ipv4.fragment & from_be16(FRAGMENT))
        return 0;
    __u32 udp_bytes = from_be16(frame->udp.bytes);
    if (udp_bytes < sizeof(struct udp) + sizeof(struct fanin_header))
        return 0;
    if (udp_bytes + sizeof(struct ipv4) > from_be16(frame->ipv4.bytes))
        return 0;
    if ((void *)&frame->udp + udp_bytes > end)
        return 0;
    *datagram_bytes = udp_bytes - sizeof(struct udp);
    return frame;
}

inlined void copy_mac(__u8 *to, const __u8 *from)
{
    *(__u32 *)to = *(const __u32 *)from;
    *(__u16 *)(to + 4) = *(const __u16 *)(from + 4);
}

inlined __u16 ipv4_checksum(const struct ipv4 *ip)
{
    const __u16 *words = (const void *)ip;
    __u32 sum = 0;
#pragma unroll
    for (int index = 0; index < 10; index++)
        sum += words[index];
    sum = (sum & 0xffff) + (sum >> 16);
    sum += sum >> 16;
    return ~sum;
}

/* Makes the frame one of `datagram_bytes` of UDP payload from us to the worker. */
inlined void send_to(struct frame *frame, const struct peer *peer, __u32 datagram_bytes)
{
    __u32 udp_bytes = sizeof(struct udp) + datagram_bytes;
    copy_mac(frame->ethernet.destination, peer->mac);
    copy_mac(frame->ethernet.source, peer->local_mac);
    frame->ipv4.bytes = from_be16(sizeof(struct ipv4) + udp_bytes);
    frame->ipv4.hops = 64;
    frame->ipv4.source = peer->local_address;
    frame->ipv4.destination = peer->address;
    frame->ipv4.checksum = 0;
    frame->ipv4.checksum = ipv4_checksum(&frame->ipv4);
    frame->udp.source = peer->local_port;
    frame->udp.destination = peer->port;
    frame->udp.bytes = from_be16(udp_bytes);
    /* None: the datagram has its CRC-32C, or its job goes without checks (spec/PROTOCOL.md). */
    frame->udp.checksum = 0;
}

inlined int same_mac(const __u8 *left, const __u8 *right)
{
    return *(const __u32 *)left == *(const __u32 *)right && *(const __u16 *)(left + 4) == *(const __u16 *)(right + 4);
}

/* Whether a frame is from there. Field by field: words of a structure that was just written in pieces would have to wait
 * until the pieces have left the processor's store queue. */
inlined int is_sender(const struct frame *frame, __u32 ifindex, const struct peer *peer)
{
    return peer->address == frame->ipv4.source && peer->port == frame->udp.source && peer->ifindex == ifindex &&
           peer->local_address == frame->ipv4.destination && peer->local_port == frame->udp.destination &&
           same_mac(peer->mac, frame->ethernet.source) && same_mac(peer->local_mac, frame->ethernet.destination);
}

/* The sender of a frame. */
inlined void sender_of(const struct frame *frame, __u32 ifindex, struct peer *peer)
{
    copy_mac(peer->mac, frame->ethernet.source);
    copy_mac(peer->local_mac, frame->ethernet.destination);
    peer->address = frame->ipv4.source;
    peer->local_address = frame->ipv4.destination;
    peer->port = frame->udp.source;
    peer->local_port = frame->udp.destination;
    peer->ifindex = ifindex;
    peer->unused = 0;
}

#endif
