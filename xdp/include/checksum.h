/* CRC-32C of a datagram by table, sixteen bytes at a time in the payload's whole steps, else eight ("slicing-by-8" and its
 * like, Kounavis and Berry, ISCC 2005). BPF has no instruction for it. */
#ifndef FANIN_CHECKSUM_H
#define FANIN_CHECKSUM_H

#include "net.h"

enum { CRC_BYTES_MAX = FANIN_XDP_ELEMENT_COUNT_MAX * 4, CRC_WORDS_MAX = CRC_BYTES_MAX / 8, CRC_WORDS_PER_STEP = 8 };

/* Table k: the remainder of a byte with k zero bytes behind it. The loader fills them in. */
const volatile __u32 crc_tables[16][256] = {};

inlined __u32 element_bytes(__u32 element_format)
{
    switch (element_format) {
    case FANIN_ELEMENT_FORMAT_INT32: return 4;
    case FANIN_ELEMENT_FORMAT_INT8: return 1;
    default: return 2;
    }
}

/* What 8 bytes with so many times 8 bytes behind them add to a CRC. */
inlined __u32 crc_part(const int behind, __u64 bytes)
{
    const volatile __u32(*tables)[256] = &crc_tables[8 * behind];
    return tables[7][bytes & 0xff] ^ tables[6][(bytes >> 8) & 0xff] ^ tables[5][(bytes >> 16) & 0xff] ^
           tables[4][(bytes >> 24) & 0xff] ^ tables[3][(bytes >> 32) & 0xff] ^ tables[2][(bytes >> 40) & 0xff] ^
           tables[1][(bytes >> 48) & 0xff] ^ tables[0][bytes >> 56];
}

inlined __u32 crc_of_8(__u32 crc, __u64 bytes) { return crc_part(0, bytes ^ crc); }

/* The second half does not wait for the first. */
inlined __u32 crc_of_16(__u32 crc, __u64 first, __u64 second) { return crc_part(0, second) ^ crc_part(1, first ^ crc); }

inlined __u32 crc_of_4(__u32 crc, __u32 bytes)
{
    bytes ^= crc;
    return crc_tables[3][bytes & 0xff] ^ crc_tables[2][(bytes >> 8) & 0xff] ^ crc_tables[1][(bytes >> 16) & 0xff] ^
           crc_tables[0][bytes >> 24];
}

inlined __u32 crc_of_2(__u32 crc, __u16 bytes)
{
    __u32 mixed = crc ^ bytes;
    return (crc >> 16) ^ crc_tables[1][mixed & 0xff] ^ crc_tables[0][(mixed >> 8) & 0xff];
}

inlined __u32 crc_of_1(__u32 crc, __u8 byte) { return (crc >> 8) ^ crc_tables[0][(crc ^ byte) & 0xff]; }

/* Of the header as far as its checksum field. */
inlined __u32 crc_of_header(const struct fanin_header *header)
{
    const __u64 *words = (const void *)header;
    __u32 crc = 0xffffffff;
#pragma unroll
    for (int index = 0; index < 4; index++)
        crc = crc_of_8(crc, words[index]);
    return crc_of_4(crc, header->echo);
}

/* Goes on with the payload, as long as the header says. */
verified_alone __u32 crc_of_payload(struct xdp_md *context, __u32 crc)
{
    const struct frame *frame = (void *)(long)context->data - sizeof(frame->before);
    const __u8 *end = (void *)(long)context->data_end;
    if ((const void *)(frame + 1) > (const void *)end)
        return crc;
    const struct fanin_header *header = &frame->header;
    const __u8 *payload = (const __u8 *)(frame + 1);
    __u32 bytes = header->element_count;
    bytes = from_be16(bytes) * element_bytes(header->format_and_operator & FANIN_ELEMENT_FORMAT_MASK);
    __u32 words = bytes / 8;
    for (__u32 first = 0; first < CRC_WORDS_MAX; first += CRC_WORDS_PER_STEP) {
        const __u64 *step = (const void *)(payload + first * 8);
        if (first + CRC_WORDS_PER_STEP > words || (const __u8 *)(step + CRC_WORDS_PER_STEP) > end)
            break;
#pragma unroll
        for (int index = 0; index < CRC_WORDS_PER_STEP; index += 2)
            crc = crc_of_16(crc, step[index], step[index + 1]);
    }
    __u32 at = bytes & ~(8 * CRC_WORDS_PER_STEP - 1);
    for (int index = 0; index < CRC_WORDS_PER_STEP - 1; index++) {
        checked(at);
        if (at + 8 > bytes || at > CRC_BYTES_MAX - 8)
            break;
        checked(at);
        if (payload + at + 8 > end)
            break;
        crc = crc_of_8(crc, *(const __u64 *)(payload + at));
        at += 8;
    }
    checked(at);
    if (at > CRC_BYTES_MAX - 8)
        return crc;
    checked(at);
    if (bytes & 4 && payload + at + 4 <= end) {
        crc = crc_of_4(crc, *(const __u32 *)(payload + at));
        at += 4;
    }
    if (bytes & 2 && payload + at + 2 <= end) {
        crc = crc_of_2(crc, *(const __u16 *)(payload + at));
        at += 2;
    }
    if (bytes & 1 && payload + at + 1 <= end)
        crc = crc_of_1(crc, payload[at]);
    return crc;
}

/* Of a whole datagram, as the checksum field holds it. */
inlined __u32 datagram_checksum(struct xdp_md *context, const struct frame *frame)
{
    __u32 crc = crc_of_header(&frame->header);
    if (frame->header.element_count != 0)
        crc = crc_of_payload(context, crc);
    return from_be32(~crc);
}

#endif
