/* Traffic for measurements, made in the kernel: contributions of several ranks, in order, for ever. `fanin-xdp` runs
 * `generate` on live frames (BPF_PROG_TEST_RUN with BPF_F_TEST_XDP_LIVE_FRAMES), whose pages come back from wherever the
 * frames end. A frame is therefore used again as the measured program left it, and gets all its headers anew. Its elements
 * are zeros: no sum changes them. */
#include "include/checksum.h"

enum { TRAFFIC_RANKS_MAX = 64, FRAME_HEADERS_BYTES = sizeof(struct frame) - sizeof(__u16) };

/* The headers of a rank's frames, from Ethernet's to ours, for chunk 0. `crates/xdp/src/traffic.rs` has the twin of this. */
struct headers {
    __u64 words[FRAME_HEADERS_BYTES / 8];
    __u16 rest;
    __u16 unused[3];
};

struct {
    MAP_NUMBER(type, BPF_MAP_TYPE_ARRAY);
    MAP_NUMBER(max_entries, TRAFFIC_RANKS_MAX);
    MAP_TYPE(key, __u32);
    MAP_TYPE(value, struct headers);
} templates SEC(".maps");

/* The interface of each rank. */
struct {
    MAP_NUMBER(type, BPF_MAP_TYPE_DEVMAP);
    MAP_NUMBER(max_entries, TRAFFIC_RANKS_MAX);
    MAP_TYPE(key, __u32);
    MAP_TYPE(value, __u32);
} links SEC(".maps");

/* What comes next. */
struct position {
    __u32 rank;
    __u32 chunk_index;
};

struct {
    MAP_NUMBER(type, BPF_MAP_TYPE_ARRAY);
    MAP_NUMBER(max_entries, 1);
    MAP_TYPE(key, __u32);
    MAP_TYPE(value, struct position);
} positions SEC(".maps");

const volatile __u32 rank_count = 1;
/* A power of two, and its logarithm. */
const volatile __u32 slot_count = 1;
const volatile __u32 slots_shift = 0;
const volatile __u32 has_checksum = 0;
/* Chunk 0 again and again: duplicates. */
const volatile __u32 is_repeated = 0;
/* Table k: what becomes of byte k of a CRC-32C by the zeros of a payload. */
const volatile __u32 zeros_tables[4][256] = {};

inlined __u32 behind_zeros(__u32 crc)
{
    return zeros_tables[0][crc & 0xff] ^ zeros_tables[1][(crc >> 8) & 0xff] ^ zeros_tables[2][(crc >> 16) & 0xff] ^
           zeros_tables[3][crc >> 24];
}

/* The rank and chunk of this frame; the next one gets the next rank's. */
inlined struct position take_position(struct position *position)
{
    struct position present = *position;
    position->rank = present.rank + 1;
    if (position->rank >= rank_count) {
        position->rank = 0;
        position->chunk_index += !is_repeated;
    }
    return present;
}

SEC("xdp")
int generate(struct xdp_md *xdp)
{
    __u8 *data = (void *)(long)xdp->data;
    struct frame *frame = (void *)data - sizeof(frame->before);
    __u32 first = 0;
    struct position *next = bpf_map_lookup_elem(&positions, &first);
    if (!next || (void *)(frame + 1) > (void *)(long)xdp->data_end)
        return XDP_ABORTED;
    struct position position = take_position(next);
    struct headers *headers = bpf_map_lookup_elem(&templates, &position.rank);
    if (!headers)
        return XDP_ABORTED;
#pragma unroll
    for (int index = 0; index < FRAME_HEADERS_BYTES / 8; index++)
        ((__u64 *)data)[index] = headers->words[index];
    *(__u16 *)(data + FRAME_HEADERS_BYTES / 8 * 8) = headers->rest;
    __u32 parity = (position.chunk_index >> (slots_shift & 31)) & 1;
    frame->header.slot = from_be16(parity << FANIN_SLOT_PARITY_SHIFT | (position.chunk_index & (slot_count - 1)));
    frame->header.chunk_index = from_be32(position.chunk_index);
    if (has_checksum)
        frame->header.checksum = from_be32(~behind_zeros(crc_of_header(&frame->header)));
    return bpf_redirect_map(&links, position.rank, 0);
}

/* The empty programs. */
SEC("xdp")
int drop_all(struct xdp_md *xdp)
{
    (void)xdp;
    return XDP_DROP;
}

SEC("xdp")
int send_back(struct xdp_md *xdp)
{
    (void)xdp;
    return XDP_TX;
}

char program_license[] SEC("license") = "Apache-2.0";
