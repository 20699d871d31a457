/* Generated from spec/fields.toml by `cargo xtask generate`. Do not edit. */
#ifndef FANIN_GENERATED_H
#define FANIN_GENERATED_H

/* First two bytes of every fanin datagram. */
#define FANIN_MAGIC 0xFA91
/* Version of the datagram layout. */
#define FANIN_VERSION 1
/* Most workers in one job. */
#define FANIN_WORKER_COUNT_MAX 256
/* Most jobs on one switch at a time (8 bits of job_id). */
#define FANIN_JOB_COUNT_MAX 256
/* Most slots in one job's pool (15 bits of slot). */
#define FANIN_SLOT_COUNT_MAX 32768
/* Elements per packet that fit the usual 1500-byte MTU (SwitchML §5). */
#define FANIN_ELEMENT_COUNT_DEFAULT 256
/* Most elements in one packet: 4 bytes each, they and the header fit the largest UDP payload. */
#define FANIN_ELEMENT_COUNT_MAX 16352
/* Most elements in a packet that the XDP program sums: a multiple of 32 that an MTU of 1500 carries. */
#define FANIN_XDP_ELEMENT_COUNT_MAX 352
/* Largest UDP payload over IPv4. */
#define FANIN_DATAGRAM_BYTES_MAX 65507
/* 239.192.0.0/14, the multicast addresses for use within an organisation (RFC 2365). A lane's group is this plus MULTICAST_GROUP_MASK & (job_token + lane), at the lane's data port. */
#define FANIN_MULTICAST_GROUP_BASE 0xEFC00000
/* Bits of a group's address that tell lanes apart. */
#define FANIN_MULTICAST_GROUP_MASK 0x3FFFF
/* Stands for every rank: `worker_rank` of a multicast Aggregate, `destination` when every rank gets the payload. */
#define FANIN_RANK_ALL 0xFFFF
/* `block_exponent_next` of a chunk that needs no exponent (integers, raw words): below every other value, so a max merge ignores it. */
#define FANIN_BLOCK_EXPONENT_NOT_NEEDED -32768
/* Smallest block exponent; blocks of zeros and of smaller values use it, so that the scale stays a finite binary32. */
#define FANIN_BLOCK_EXPONENT_MIN -95
/* Largest exponent of a block of finite binary32 values. */
#define FANIN_BLOCK_EXPONENT_MAX 128
/* The block holds an infinity or a NaN: every worker's result becomes NaN and is reported. */
#define FANIN_BLOCK_EXPONENT_NON_FINITE 0x7FFE
/* The sender does not know its next block yet: the slot's next use is an announce, an empty contribution that carries only the exponent. */
#define FANIN_BLOCK_EXPONENT_UNKNOWN 0x7FFF
/* Largest shift of an Int8 Aggregate: 256 workers that all send -128, which needs one more than 256 times 127. */
#define FANIN_INT8_SHIFT_MAX 9
/* First UDP port of the data plane; thread t listens on this + t. Both formats share it, so it is p4app-switchML's. */
#define FANIN_DATA_PORT_BASE_DEFAULT 48864
/* TCP port of the controller (gRPC), the same as p4app-switchML's. */
#define FANIN_CONTROL_PORT_DEFAULT 50099
/* First UDP port of a parameter server of its own; thread t listens on this + t. */
#define FANIN_SERVER_PORT_BASE_DEFAULT 48880
/* TCP port of /metrics and the dashboard. */
#define FANIN_HTTP_PORT_DEFAULT 50080
/* First two bytes of every ATP datagram. */
#define FANIN_ATP_MAGIC 0xFA92
/* Most levels of switches between a worker and the server. */
#define FANIN_ATP_LEVEL_COUNT_MAX 4
/* Most children of one switch: the bits of a word (ATP §3.4). */
#define FANIN_ATP_FAN_IN_MAX 32
/* Fixed32 counts units of one over this where `scale` is 0 (ATP §3.8). */
#define FANIN_ATP_SCALE 100000000
/* `scale_next` of a worker that has no float to scale there. */
#define FANIN_ATP_SCALE_CODE_NONE 1
/* `scale` and `scale_next` of the smallest exponent in use; each further one is one more, up to 225 (ATP App. B.3). */
#define FANIN_ATP_SCALE_CODE_MIN 2
/* Packets that a worker may have out at the start (ATP §3.7). */
#define FANIN_ATP_WINDOW_INITIAL 200
/* First two bytes of every PANAMA datagram. */
#define FANIN_PANAMA_MAGIC 0xFA93
/* Most ports of one switch: the bits of its ports bitmap (PANAMA §5). */
#define FANIN_PANAMA_PORT_COUNT_MAX 64
/* Most aggregation trees of one job. */
#define FANIN_PANAMA_TREE_COUNT_MAX 64
/* Packets that a worker may have out in a tree at the start (PANAMA Fig. 5). */
#define FANIN_PANAMA_CWND_INITIAL 2
/* Slow start threshold of a tree at the start, in packets (PANAMA Fig. 5). */
#define FANIN_PANAMA_SSTHRESH_INITIAL 64
/* First UDP destination port of the p4app-switchML format. */
#define FANIN_P4APP_PORT_BASE 0xBEE0
/* UDP ports of the p4app-switchML format (mask 0xFFF0). */
#define FANIN_P4APP_PORT_COUNT 16
/* `job_type` of an all-reduce packet. */
#define FANIN_P4APP_JOB_TYPE_ALL_REDUCE 1
/* Most workers of a p4app-switchML job: its bitmap is one 32-bit word. */
#define FANIN_P4APP_WORKER_COUNT_MAX 32
/* Slots of the p4app-switchML switch program, each with two sets. */
#define FANIN_P4APP_SLOT_COUNT_MAX 8192
/* From a worker: its elements of one chunk. */
#define FANIN_KIND_CONTRIBUTION 1
/* From a switch: the sum of one chunk over all workers. */
#define FANIN_KIND_AGGREGATE 2
/* From a switch: the contribution was not used; `detail` says why. */
#define FANIN_KIND_REFUSAL 3
/* From a worker: asks whether a datagram of this length reaches the switch. */
#define FANIN_KIND_PROBE 4
/* From a switch: a Probe sent back at its full length. */
#define FANIN_KIND_PROBE_REPLY 5
/* From a worker: asks what became of its contribution; a header without elements. */
#define FANIN_KIND_QUERY 6
/* From a switch: answers a Query; the contribution has not arrived, send it again. */
#define FANIN_KIND_MISSING 7
/* 32-bit two's complement, big-endian: block fixed point, integers, raw words. */
#define FANIN_ELEMENT_FORMAT_INT32 0
/* IEEE binary16, big-endian, block-scaled; the switch sums in fixed point (SwitchML §4.6). */
#define FANIN_ELEMENT_FORMAT_FLOAT16 1
/* bfloat16, big-endian, block-scaled to whole numbers, which the switch sums as 32-bit integers. */
#define FANIN_ELEMENT_FORMAT_BFLOAT16 2
/* 8-bit two's complement, -127 to 127, block-scaled; the switch sums exactly and divides the block by a power of two that it tells in `echo`. */
#define FANIN_ELEMENT_FORMAT_INT8 3
/* IEEE binary32 as it lies in memory: little-endian, not scaled. The job's accumulator adds it. */
#define FANIN_ELEMENT_FORMAT_RAW_FLOAT32 4
/* IEEE binary16 as it lies in memory: little-endian, not scaled. The job's accumulator adds it. */
#define FANIN_ELEMENT_FORMAT_RAW_FLOAT16 5
/* bfloat16 as it lies in memory: little-endian, not scaled. The job's accumulator adds it. */
#define FANIN_ELEMENT_FORMAT_RAW_BFLOAT16 6
/* Fixed point, big-endian: a float times ATP_SCALE, rounded; sums saturate (ATP §3.8). */
#define FANIN_ELEMENT_FORMAT_FIXED32 7
/* Integers, scaled by the exponent that the workers agree on for a block: Int32, Float16, Bfloat16 and Int8 elements. */
#define FANIN_ACCUMULATOR_BLOCK_FIXED 0
/* Counts of 10^-8 whose sums saturate: Fixed32 elements (ATP §3.8). */
#define FANIN_ACCUMULATOR_STATIC_FIXED 1
/* Floats in integer registers, guard bits as many as the workers leave: raw elements (FPISA §3). */
#define FANIN_ACCUMULATOR_FPISA 2
/* Floats in integer registers that are not shifted: raw elements (FPISA §4.3). */
#define FANIN_ACCUMULATOR_FPISA_A 3
/* Floats by table look-ups: raw elements (Libra §3.5). */
#define FANIN_ACCUMULATOR_LOG_TABLE 4
/* Native float addition in order of arrival: raw elements (PANAMA §4). */
#define FANIN_ACCUMULATOR_IEEE 5
/* The exact sum, rounded once, whatever the order: raw elements. */
#define FANIN_ACCUMULATOR_EXACT 6
/* Sum. */
#define FANIN_OPERATOR_ADD 0
/* Largest, as signed 32-bit integers. */
#define FANIN_OPERATOR_MAX 1
/* Bitwise or; also carries all-gather and broadcast, where one worker holds the words and the others zeros. */
#define FANIN_OPERATOR_OR 2
/* Bitwise exclusive or. */
#define FANIN_OPERATOR_XOR 3
/* An answer to the sender. */
#define FANIN_PROBE_PATH_UNICAST 0
/* An answer to the lane's multicast group instead, which shows whether the network carries it. */
#define FANIN_PROBE_PATH_MULTICAST_TEST 1
/* An answer to the sender, who from now on takes Aggregates for all ranks from the lane's multicast group. */
#define FANIN_PROBE_PATH_MULTICAST_USE 2
/* From a worker towards the server: elements of one chunk, perhaps summed on the way. */
#define FANIN_ATP_KIND_FRAGMENT 1
/* From the server: the sum of one chunk over all workers; frees its slots on the way down. */
#define FANIN_ATP_KIND_PARAMETER 2
/* From a switch or the server: the Fragment was not used; `detail` says why. */
#define FANIN_ATP_KIND_REFUSAL 3
/* From a worker to the server: asks whether datagrams of this length get there and back; touches no slot. */
#define FANIN_ATP_KIND_PROBE 4
/* From the server to one worker: an answer as long as the Probe. */
#define FANIN_ATP_KIND_PROBE_REPLY 5
/* 32-bit two's complement, big-endian; sums wrap: integers, raw words. */
#define FANIN_ATP_ELEMENT_FORMAT_INT32 0
/* Fixed point, big-endian: a float32 times ATP_SCALE, or times the power of two that `scale` stands for, rounded; sums saturate, and the two outermost values say so (ATP §3.8). */
#define FANIN_ATP_ELEMENT_FORMAT_FIXED32 1
/* IEEE binary32, big-endian: only the server adds them, after saturation. */
#define FANIN_ATP_ELEMENT_FORMAT_FLOAT32 2
/* Up: a worker's elements, or the sum of everything below a switch. */
#define FANIN_PANAMA_KIND_CONTRIBUTION 1
/* Down: the sum over all workers of the tree. */
#define FANIN_PANAMA_KIND_RESULT 2
/* Down: a Contribution was not used; `detail` says why. */
#define FANIN_PANAMA_KIND_REFUSAL 3
/* IEEE binary32, big-endian. */
#define FANIN_PANAMA_ELEMENT_FORMAT_FLOAT32 0
/* IEEE binary16, big-endian; each switch rounds its sum to it. */
#define FANIN_PANAMA_ELEMENT_FORMAT_FLOAT16 1
/* bfloat16, big-endian; each switch rounds its sum to it. */
#define FANIN_PANAMA_ELEMENT_FORMAT_BFLOAT16 2
/* 128 bytes, 32 elements. */
#define FANIN_P4APP_SIZE_ELEMENTS32 0
/* 256 bytes, 64 elements. */
#define FANIN_P4APP_SIZE_ELEMENTS64 1
/* 512 bytes, 128 elements. */
#define FANIN_P4APP_SIZE_ELEMENTS128 2
/* 1024 bytes, 256 elements. */
#define FANIN_P4APP_SIZE_ELEMENTS256 3
/* The packet is shorter than its header. */
#define FANIN_DROP_TRUNCATED 0
/* The packet does not start with fanin's magic number. */
#define FANIN_DROP_BAD_MAGIC 1
/* The packet is of another version of the datagram layout. */
#define FANIN_DROP_BAD_VERSION 2
/* The packet's kind is not one of this version's. */
#define FANIN_DROP_BAD_KIND 3
/* The packet was damaged on the way: its CRC-32C does not match. */
#define FANIN_DROP_BAD_CHECKSUM 4
/* The packet's length does not match its element count and format. */
#define FANIN_DROP_BAD_LENGTH 5
/* The element format is unknown, or not the one that the job was joined with. */
#define FANIN_DROP_BAD_ELEMENT_FORMAT 6
/* The operator is unknown, or cannot be used with the element format. */
#define FANIN_DROP_BAD_OPERATOR 7
/* No such job on this switch: it ended, its lease ran out, or the switch restarted. */
#define FANIN_DROP_UNKNOWN_JOB 8
/* The packet belongs to an older run of the job. */
#define FANIN_DROP_STALE_TOKEN 9
/* The worker's rank is not below the job's worker count, or the packet is for another rank. */
#define FANIN_DROP_BAD_RANK 10
/* The slot is outside the job's pool, or is not the one that the chunk index belongs to. */
#define FANIN_DROP_BAD_SLOT 11
/* The chunk is older than what its slot remembers: a packet that the network delayed. */
#define FANIN_DROP_STALE_CHUNK 12
/* The chunk is newer than its slot can hold: the one before it on this slot is not finished. */
#define FANIN_DROP_CHUNK_TOO_FAR_AHEAD 13
/* The worker is in another collective than the workers that contributed to this chunk before it. */
#define FANIN_DROP_COLLECTIVE_MISMATCH 14
/* The contribution has another number of elements than those that came before it. */
#define FANIN_DROP_ELEMENT_COUNT_MISMATCH 15
/* The worker has already contributed to this chunk, which is not complete yet. */
#define FANIN_DROP_DUPLICATE_CONTRIBUTION 16
/* The contribution was counted and added; nothing leaves the switch until the last worker's arrives. */
#define FANIN_DROP_AWAITING_OTHERS 17
/* A packet that only a switch sends arrived at a switch. */
#define FANIN_DROP_NOT_A_CONTRIBUTION 18
/* p4app-switchML format: the sender's address is not one of the job's registered workers. */
#define FANIN_DROP_SOURCE_UNKNOWN 19
/* The switch is draining and takes no new collectives of this job. */
#define FANIN_DROP_JOB_DRAINING 20
/* XDP: another processor held the slot too long; the packet was not counted. */
#define FANIN_DROP_SLOT_BUSY 21
/* ATP server: some of the workers in the packet are in the sum already, others are not, and they cannot be told apart any more. */
#define FANIN_DROP_PARTIAL_OVERLAP 22
/* PANAMA: the switch's buffers are full, and the packet is not the one that its tree waits for. */
#define FANIN_DROP_BUFFER_FULL 23
/* ATP: the packet's floats are scaled by another power of two than the chunk's others; they were not added. */
#define FANIN_DROP_SCALE_MISMATCH 24
/* Drop reasons, and a bit for each that is answered by a Refusal. */
#define FANIN_DROP_COUNT 25
#define FANIN_DROP_REFUSED 0x110ef80

/* fanin datagram, version 1. */
#define FANIN_HEADER_BYTES 40
struct fanin_header {
    __u16 magic;
    __u8 version;
    __u8 kind;
    __u32 job_id;
    __u32 job_token;
    __u16 worker_rank;
    __u16 slot;
    __u32 chunk_index;
    __u32 collective_tag;
    __u16 block_exponent_next;
    __u16 element_count;
    __u8 format_and_operator;
    __u8 detail;
    __u16 destination;
    __u32 echo;
    __u32 checksum;
};
#define FANIN_JOB_GENERATION_SHIFT 8
#define FANIN_JOB_GENERATION_MASK 0xffffff
#define FANIN_JOB_NUMBER_SHIFT 0
#define FANIN_JOB_NUMBER_MASK 0xff
#define FANIN_SLOT_PARITY_SHIFT 15
#define FANIN_SLOT_PARITY_MASK 0x1
#define FANIN_SLOT_INDEX_SHIFT 0
#define FANIN_SLOT_INDEX_MASK 0x7fff
#define FANIN_OPERATOR_SHIFT 4
#define FANIN_OPERATOR_MASK 0xf
#define FANIN_ELEMENT_FORMAT_SHIFT 0
#define FANIN_ELEMENT_FORMAT_MASK 0xf

/* p4app-switchML UDP header. */
#define P4APP_HEADER_BYTES 10
struct p4app_header {
    __u8 type_and_size;
    __u8 job_number;
    __u32 packet_id;
    __u16 slot;
    __u8 block_exponent;
    __u8 block_exponent_second;
} __attribute__((packed));
#define P4APP_JOB_TYPE_SHIFT 4
#define P4APP_JOB_TYPE_MASK 0xf
#define P4APP_UNUSED_SHIFT 3
#define P4APP_UNUSED_MASK 0x1
#define P4APP_SIZE_CODE_SHIFT 0
#define P4APP_SIZE_CODE_MASK 0x7
#define P4APP_SLOT_PARITY_SHIFT 15
#define P4APP_SLOT_PARITY_MASK 0x1
#define P4APP_SLOT_INDEX_SHIFT 0
#define P4APP_SLOT_INDEX_MASK 0x7fff

/* ATP datagram, version 1. */
#define ATP_HEADER_BYTES 64
struct atp_header {
    __u16 magic;
    __u8 version;
    __u8 kind;
    __u32 job_id;
    __u32 job_token;
    __u32 chunk_index;
    __u32 collective_tag;
    __u32 contributed_0;
    __u32 contributed_1;
    __u32 contributed_2;
    __u32 contributed_3;
    __u8 fan_in_0;
    __u8 fan_in_1;
    __u8 fan_in_2;
    __u8 fan_in_3;
    __u8 level;
    __u8 flags;
    __u16 lane;
    __u16 slot_index;
    __u16 slot_index_next;
    __u16 worker_rank;
    __u16 element_count;
    __u8 format_and_operator;
    __u8 detail;
    __u16 destination;
    __u8 scale;
    __u8 scale_next;
    __u16 echo;
    __u32 checksum;
};
#define ATP_UNUSED_FLAGS_SHIFT 4
#define ATP_UNUSED_FLAGS_MASK 0xf
#define ATP_IS_SATURATED_SHIFT 3
#define ATP_IS_SATURATED_MASK 0x1
#define ATP_COLLISION_SHIFT 2
#define ATP_COLLISION_MASK 0x1
#define ATP_ECN_SHIFT 1
#define ATP_ECN_MASK 0x1
#define ATP_RESEND_SHIFT 0
#define ATP_RESEND_MASK 0x1
#define ATP_OPERATOR_SHIFT 4
#define ATP_OPERATOR_MASK 0xf
#define ATP_ELEMENT_FORMAT_SHIFT 0
#define ATP_ELEMENT_FORMAT_MASK 0xf

/* PANAMA datagram, version 1. */
#define PANAMA_HEADER_BYTES 40
struct panama_header {
    __u16 magic;
    __u8 version;
    __u8 kind;
    __u32 job_id;
    __u32 job_token;
    __u32 vid;
    __u32 awaited_vid;
    __u32 collective_tag;
    __u8 tree;
    __u8 flags;
    __u16 cwnd_cap;
    __u16 worker_count;
    __u16 worker_rank;
    __u16 element_count;
    __u8 element_format;
    __u8 detail;
    __u32 checksum;
};
#define PANAMA_UNUSED_FLAGS_SHIFT 3
#define PANAMA_UNUSED_FLAGS_MASK 0x1f
#define PANAMA_RESEND_SHIFT 2
#define PANAMA_RESEND_MASK 0x1
#define PANAMA_ECN_SHIFT 1
#define PANAMA_ECN_MASK 0x1
#define PANAMA_FIN_SHIFT 0
#define PANAMA_FIN_MASK 0x1

#endif
