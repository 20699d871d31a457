// Generated from spec/fields.toml by `cargo xtask generate`. Do not edit.

`ifndef FANIN_FIELDS_SVH
`define FANIN_FIELDS_SVH

package fanin_fields;

// First two bytes of every fanin datagram.
localparam logic [15:0] MAGIC = 16'hFA91;
// Version of the datagram layout.
localparam logic [7:0] VERSION = 8'd1;
// Most workers in one job.
localparam logic [15:0] WORKER_COUNT_MAX = 16'd256;
// Most jobs on one switch at a time (8 bits of job_id).
localparam logic [15:0] JOB_COUNT_MAX = 16'd256;
// Most slots in one job's pool (15 bits of slot).
localparam logic [31:0] SLOT_COUNT_MAX = 32'd32768;
// Elements per packet that fit the usual 1500-byte MTU (SwitchML §5).
localparam logic [15:0] ELEMENT_COUNT_DEFAULT = 16'd256;
// Most elements in one packet: 4 bytes each, they and the header fit the largest UDP payload.
localparam logic [15:0] ELEMENT_COUNT_MAX = 16'd16352;
// Most elements in a packet that the XDP program sums: a multiple of 32 that an MTU of 1500 carries.
localparam logic [15:0] XDP_ELEMENT_COUNT_MAX = 16'd352;
// Largest UDP payload over IPv4.
localparam logic [31:0] DATAGRAM_BYTES_MAX = 32'd65507;
// 239.192.0.0/14, the multicast addresses for use within an organisation (RFC 2365). A lane's group is this plus MULTICAST_GROUP_MASK & (job_token + lane), at the lane's data port.
localparam logic [31:0] MULTICAST_GROUP_BASE = 32'hEFC00000;
// Bits of a group's address that tell lanes apart.
localparam logic [31:0] MULTICAST_GROUP_MASK = 32'h3FFFF;
// Stands for every rank: `worker_rank` of a multicast Aggregate, `destination` when every rank gets the payload.
localparam logic [15:0] RANK_ALL = 16'hFFFF;
// `block_exponent_next` of a chunk that needs no exponent (integers, raw words): below every other value, so a max merge ignores it.
localparam logic signed [15:0] BLOCK_EXPONENT_NOT_NEEDED = -16'sd32768;
// Smallest block exponent; blocks of zeros and of smaller values use it, so that the scale stays a finite binary32.
localparam logic signed [15:0] BLOCK_EXPONENT_MIN = -16'sd95;
// Largest exponent of a block of finite binary32 values.
localparam logic signed [15:0] BLOCK_EXPONENT_MAX = 16'sd128;
// The block holds an infinity or a NaN: every worker's result becomes NaN and is reported.
localparam logic signed [15:0] BLOCK_EXPONENT_NON_FINITE = 16'sh7FFE;
// The sender does not know its next block yet: the slot's next use is an announce, an empty contribution that carries only the exponent.
localparam logic signed [15:0] BLOCK_EXPONENT_UNKNOWN = 16'sh7FFF;
// Largest shift of an Int8 Aggregate: 256 workers that all send -128, which needs one more than 256 times 127.
localparam logic [7:0] INT8_SHIFT_MAX = 8'd9;
// First UDP port of the data plane; thread t listens on this + t. Both formats share it, so it is p4app-switchML's.
localparam logic [15:0] DATA_PORT_BASE_DEFAULT = 16'd48864;
// TCP port of the controller (gRPC), the same as p4app-switchML's.
localparam logic [15:0] CONTROL_PORT_DEFAULT = 16'd50099;
// First UDP port of a parameter server of its own; thread t listens on this + t.
localparam logic [15:0] SERVER_PORT_BASE_DEFAULT = 16'd48880;
// TCP port of /metrics and the dashboard.
localparam logic [15:0] HTTP_PORT_DEFAULT = 16'd50080;
// First two bytes of every ATP datagram.
localparam logic [15:0] ATP_MAGIC = 16'hFA92;
// Most levels of switches between a worker and the server.
localparam logic [7:0] ATP_LEVEL_COUNT_MAX = 8'd4;
// Most children of one switch: the bits of a word (ATP §3.4).
localparam logic [7:0] ATP_FAN_IN_MAX = 8'd32;
// Fixed32 counts units of one over this where `scale` is 0 (ATP §3.8).
localparam logic [31:0] ATP_SCALE = 32'd100000000;
// `scale_next` of a worker that has no float to scale there.
localparam logic [7:0] ATP_SCALE_CODE_NONE = 8'd1;
// `scale` and `scale_next` of the smallest exponent in use; each further one is one more, up to 225 (ATP App. B.3).
localparam logic [7:0] ATP_SCALE_CODE_MIN = 8'd2;
// Packets that a worker may have out at the start (ATP §3.7).
localparam logic [31:0] ATP_WINDOW_INITIAL = 32'd200;
// First two bytes of every PANAMA datagram.
localparam logic [15:0] PANAMA_MAGIC = 16'hFA93;
// Most ports of one switch: the bits of its ports bitmap (PANAMA §5).
localparam logic [7:0] PANAMA_PORT_COUNT_MAX = 8'd64;
// Most aggregation trees of one job.
localparam logic [7:0] PANAMA_TREE_COUNT_MAX = 8'd64;
// Packets that a worker may have out in a tree at the start (PANAMA Fig. 5).
localparam logic [31:0] PANAMA_CWND_INITIAL = 32'd2;
// Slow start threshold of a tree at the start, in packets (PANAMA Fig. 5).
localparam logic [31:0] PANAMA_SSTHRESH_INITIAL = 32'd64;
// First UDP destination port of the p4app-switchML format.
localparam logic [15:0] P4APP_PORT_BASE = 16'hBEE0;
// UDP ports of the p4app-switchML format (mask 0xFFF0).
localparam logic [15:0] P4APP_PORT_COUNT = 16'd16;
// `job_type` of an all-reduce packet.
localparam logic [7:0] P4APP_JOB_TYPE_ALL_REDUCE = 8'd1;
// Most workers of a p4app-switchML job: its bitmap is one 32-bit word.
localparam logic [15:0] P4APP_WORKER_COUNT_MAX = 16'd32;
// Slots of the p4app-switchML switch program, each with two sets.
localparam logic [15:0] P4APP_SLOT_COUNT_MAX = 16'd8192;
// From a worker: its elements of one chunk.
localparam logic [7:0] KIND_CONTRIBUTION = 8'd1;
// From a switch: the sum of one chunk over all workers.
localparam logic [7:0] KIND_AGGREGATE = 8'd2;
// From a switch: the contribution was not used; `detail` says why.
localparam logic [7:0] KIND_REFUSAL = 8'd3;
// From a worker: asks whether a datagram of this length reaches the switch.
localparam logic [7:0] KIND_PROBE = 8'd4;
// From a switch: a Probe sent back at its full length.
localparam logic [7:0] KIND_PROBE_REPLY = 8'd5;
// From a worker: asks what became of its contribution; a header without elements.
localparam logic [7:0] KIND_QUERY = 8'd6;
// From a switch: answers a Query; the contribution has not arrived, send it again.
localparam logic [7:0] KIND_MISSING = 8'd7;
// 32-bit two's complement, big-endian: block fixed point, integers, raw words.
localparam logic [7:0] ELEMENT_FORMAT_INT32 = 8'd0;
// IEEE binary16, big-endian, block-scaled; the switch sums in fixed point (SwitchML §4.6).
localparam logic [7:0] ELEMENT_FORMAT_FLOAT16 = 8'd1;
// bfloat16, big-endian, block-scaled to whole numbers, which the switch sums as 32-bit integers.
localparam logic [7:0] ELEMENT_FORMAT_BFLOAT16 = 8'd2;
// 8-bit two's complement, -127 to 127, block-scaled; the switch sums exactly and divides the block by a power of two that it tells in `echo`.
localparam logic [7:0] ELEMENT_FORMAT_INT8 = 8'd3;
// IEEE binary32 as it lies in memory: little-endian, not scaled. The job's accumulator adds it.
localparam logic [7:0] ELEMENT_FORMAT_RAW_FLOAT32 = 8'd4;
// IEEE binary16 as it lies in memory: little-endian, not scaled. The job's accumulator adds it.
localparam logic [7:0] ELEMENT_FORMAT_RAW_FLOAT16 = 8'd5;
// bfloat16 as it lies in memory: little-endian, not scaled. The job's accumulator adds it.
localparam logic [7:0] ELEMENT_FORMAT_RAW_BFLOAT16 = 8'd6;
// Fixed point, big-endian: a float times ATP_SCALE, rounded; sums saturate (ATP §3.8).
localparam logic [7:0] ELEMENT_FORMAT_FIXED32 = 8'd7;
// Integers, scaled by the exponent that the workers agree on for a block: Int32, Float16, Bfloat16 and Int8 elements.
localparam logic [7:0] ACCUMULATOR_BLOCK_FIXED = 8'd0;
// Counts of 10^-8 whose sums saturate: Fixed32 elements (ATP §3.8).
localparam logic [7:0] ACCUMULATOR_STATIC_FIXED = 8'd1;
// Floats in integer registers, guard bits as many as the workers leave: raw elements (FPISA §3).
localparam logic [7:0] ACCUMULATOR_FPISA = 8'd2;
// Floats in integer registers that are not shifted: raw elements (FPISA §4.3).
localparam logic [7:0] ACCUMULATOR_FPISA_A = 8'd3;
// Floats by table look-ups: raw elements (Libra §3.5).
localparam logic [7:0] ACCUMULATOR_LOG_TABLE = 8'd4;
// Native float addition in order of arrival: raw elements (PANAMA §4).
localparam logic [7:0] ACCUMULATOR_IEEE = 8'd5;
// The exact sum, rounded once, whatever the order: raw elements.
localparam logic [7:0] ACCUMULATOR_EXACT = 8'd6;
// Sum.
localparam logic [7:0] OPERATOR_ADD = 8'd0;
// Largest, as signed 32-bit integers.
localparam logic [7:0] OPERATOR_MAX = 8'd1;
// Bitwise or; also carries all-gather and broadcast, where one worker holds the words and the others zeros.
localparam logic [7:0] OPERATOR_OR = 8'd2;
// Bitwise exclusive or.
localparam logic [7:0] OPERATOR_XOR = 8'd3;
// An answer to the sender.
localparam logic [7:0] PROBE_PATH_UNICAST = 8'd0;
// An answer to the lane's multicast group instead, which shows whether the network carries it.
localparam logic [7:0] PROBE_PATH_MULTICAST_TEST = 8'd1;
// An answer to the sender, who from now on takes Aggregates for all ranks from the lane's multicast group.
localparam logic [7:0] PROBE_PATH_MULTICAST_USE = 8'd2;
// From a worker towards the server: elements of one chunk, perhaps summed on the way.
localparam logic [7:0] ATP_KIND_FRAGMENT = 8'd1;
// From the server: the sum of one chunk over all workers; frees its slots on the way down.
localparam logic [7:0] ATP_KIND_PARAMETER = 8'd2;
// From a switch or the server: the Fragment was not used; `detail` says why.
localparam logic [7:0] ATP_KIND_REFUSAL = 8'd3;
// From a worker to the server: asks whether datagrams of this length get there and back; touches no slot.
localparam logic [7:0] ATP_KIND_PROBE = 8'd4;
// From the server to one worker: an answer as long as the Probe.
localparam logic [7:0] ATP_KIND_PROBE_REPLY = 8'd5;
// 32-bit two's complement, big-endian; sums wrap: integers, raw words.
localparam logic [7:0] ATP_ELEMENT_FORMAT_INT32 = 8'd0;
// Fixed point, big-endian: a float32 times ATP_SCALE, or times the power of two that `scale` stands for, rounded; sums saturate, and the two outermost values say so (ATP §3.8).
localparam logic [7:0] ATP_ELEMENT_FORMAT_FIXED32 = 8'd1;
// IEEE binary32, big-endian: only the server adds them, after saturation.
localparam logic [7:0] ATP_ELEMENT_FORMAT_FLOAT32 = 8'd2;
// Up: a worker's elements, or the sum of everything below a switch.
localparam logic [7:0] PANAMA_KIND_CONTRIBUTION = 8'd1;
// Down: the sum over all workers of the tree.
localparam logic [7:0] PANAMA_KIND_RESULT = 8'd2;
// Down: a Contribution was not used; `detail` says why.
localparam logic [7:0] PANAMA_KIND_REFUSAL = 8'd3;
// IEEE binary32, big-endian.
localparam logic [7:0] PANAMA_ELEMENT_FORMAT_FLOAT32 = 8'd0;
// IEEE binary16, big-endian; each switch rounds its sum to it.
localparam logic [7:0] PANAMA_ELEMENT_FORMAT_FLOAT16 = 8'd1;
// bfloat16, big-endian; each switch rounds its sum to it.
localparam logic [7:0] PANAMA_ELEMENT_FORMAT_BFLOAT16 = 8'd2;
// 128 bytes, 32 elements.
localparam logic [7:0] P4APP_SIZE_ELEMENTS32 = 8'd0;
// 256 bytes, 64 elements.
localparam logic [7:0] P4APP_SIZE_ELEMENTS64 = 8'd1;
// 512 bytes, 128 elements.
localparam logic [7:0] P4APP_SIZE_ELEMENTS128 = 8'd2;
// 1024 bytes, 256 elements.
localparam logic [7:0] P4APP_SIZE_ELEMENTS256 = 8'd3;
// The packet is shorter than its header.
localparam logic [7:0] DROP_TRUNCATED = 8'd0;
// The packet does not start with fanin's magic number.
localparam logic [7:0] DROP_BAD_MAGIC = 8'd1;
// The packet is of another version of the datagram layout.
localparam logic [7:0] DROP_BAD_VERSION = 8'd2;
// The packet's kind is not one of this version's.
localparam logic [7:0] DROP_BAD_KIND = 8'd3;
// The packet was damaged on the way: its CRC-32C does not match.
localparam logic [7:0] DROP_BAD_CHECKSUM = 8'd4;
// The packet's length does not match its element count and format.
localparam logic [7:0] DROP_BAD_LENGTH = 8'd5;
// The element format is unknown, or not the one that the job was joined with.
localparam logic [7:0] DROP_BAD_ELEMENT_FORMAT = 8'd6;
// The operator is unknown, or cannot be used with the element format.
localparam logic [7:0] DROP_BAD_OPERATOR = 8'd7;
// No such job on this switch: it ended, its lease ran out, or the switch restarted.
localparam logic [7:0] DROP_UNKNOWN_JOB = 8'd8;
// The packet belongs to an older run of the job.
localparam logic [7:0] DROP_STALE_TOKEN = 8'd9;
// The worker's rank is not below the job's worker count, or the packet is for another rank.
localparam logic [7:0] DROP_BAD_RANK = 8'd10;
// The slot is outside the job's pool, or is not the one that the chunk index belongs to.
localparam logic [7:0] DROP_BAD_SLOT = 8'd11;
// The chunk is older than what its slot remembers: a packet that the network delayed.
localparam logic [7:0] DROP_STALE_CHUNK = 8'd12;
// The chunk is newer than its slot can hold: the one before it on this slot is not finished.
localparam logic [7:0] DROP_CHUNK_TOO_FAR_AHEAD = 8'd13;
// The worker is in another collective than the workers that contributed to this chunk before it.
localparam logic [7:0] DROP_COLLECTIVE_MISMATCH = 8'd14;
// The contribution has another number of elements than those that came before it.
localparam logic [7:0] DROP_ELEMENT_COUNT_MISMATCH = 8'd15;
// The worker has already contributed to this chunk, which is not complete yet.
localparam logic [7:0] DROP_DUPLICATE_CONTRIBUTION = 8'd16;
// The contribution was counted and added; nothing leaves the switch until the last worker's arrives.
localparam logic [7:0] DROP_AWAITING_OTHERS = 8'd17;
// A packet that only a switch sends arrived at a switch.
localparam logic [7:0] DROP_NOT_A_CONTRIBUTION = 8'd18;
// p4app-switchML format: the sender's address is not one of the job's registered workers.
localparam logic [7:0] DROP_SOURCE_UNKNOWN = 8'd19;
// The switch is draining and takes no new collectives of this job.
localparam logic [7:0] DROP_JOB_DRAINING = 8'd20;
// XDP: another processor held the slot too long; the packet was not counted.
localparam logic [7:0] DROP_SLOT_BUSY = 8'd21;
// ATP server: some of the workers in the packet are in the sum already, others are not, and they cannot be told apart any more.
localparam logic [7:0] DROP_PARTIAL_OVERLAP = 8'd22;
// PANAMA: the switch's buffers are full, and the packet is not the one that its tree waits for.
localparam logic [7:0] DROP_BUFFER_FULL = 8'd23;
// ATP: the packet's floats are scaled by another power of two than the chunk's others; they were not added.
localparam logic [7:0] DROP_SCALE_MISMATCH = 8'd24;

// fanin datagram, version 1.
localparam int FANIN_HEADER_BYTES = 40;
typedef struct packed {
    logic [15:0] magic;
    logic [7:0] version;
    logic [7:0] kind;
    logic [23:0] job_generation;
    logic [7:0] job_number;
    logic [31:0] job_token;
    logic [15:0] worker_rank;
    logic [0:0] slot_parity;
    logic [14:0] slot_index;
    logic [31:0] chunk_index;
    logic [31:0] collective_tag;
    logic signed [15:0] block_exponent_next;
    logic [15:0] element_count;
    logic [3:0] operator;
    logic [3:0] element_format;
    logic [7:0] detail;
    logic [15:0] destination;
    logic [31:0] echo;
    logic [31:0] checksum;
} fanin_header_t;

// p4app-switchML UDP header.
localparam int P4APP_HEADER_BYTES = 10;
typedef struct packed {
    logic [3:0] job_type;
    logic [0:0] unused;
    logic [2:0] size_code;
    logic [7:0] job_number;
    logic [31:0] packet_id;
    logic [0:0] slot_parity;
    logic [14:0] slot_index;
    logic signed [7:0] block_exponent;
    logic signed [7:0] block_exponent_second;
} p4app_header_t;

// ATP datagram, version 1.
localparam int ATP_HEADER_BYTES = 64;
typedef struct packed {
    logic [15:0] magic;
    logic [7:0] version;
    logic [7:0] kind;
    logic [31:0] job_id;
    logic [31:0] job_token;
    logic [31:0] chunk_index;
    logic [31:0] collective_tag;
    logic [31:0] contributed_0;
    logic [31:0] contributed_1;
    logic [31:0] contributed_2;
    logic [31:0] contributed_3;
    logic [7:0] fan_in_0;
    logic [7:0] fan_in_1;
    logic [7:0] fan_in_2;
    logic [7:0] fan_in_3;
    logic [7:0] level;
    logic [3:0] unused_flags;
    logic [0:0] is_saturated;
    logic [0:0] collision;
    logic [0:0] ecn;
    logic [0:0] resend;
    logic [15:0] lane;
    logic [15:0] slot_index;
    logic [15:0] slot_index_next;
    logic [15:0] worker_rank;
    logic [15:0] element_count;
    logic [3:0] operator;
    logic [3:0] element_format;
    logic [7:0] detail;
    logic [15:0] destination;
    logic [7:0] scale;
    logic [7:0] scale_next;
    logic [15:0] echo;
    logic [31:0] checksum;
} atp_header_t;

// PANAMA datagram, version 1.
localparam int PANAMA_HEADER_BYTES = 40;
typedef struct packed {
    logic [15:0] magic;
    logic [7:0] version;
    logic [7:0] kind;
    logic [31:0] job_id;
    logic [31:0] job_token;
    logic [31:0] vid;
    logic [31:0] awaited_vid;
    logic [31:0] collective_tag;
    logic [7:0] tree;
    logic [4:0] unused_flags;
    logic [0:0] resend;
    logic [0:0] ecn;
    logic [0:0] fin;
    logic [15:0] cwnd_cap;
    logic [15:0] worker_count;
    logic [15:0] worker_rank;
    logic [15:0] element_count;
    logic [7:0] element_format;
    logic [7:0] detail;
    logic [31:0] checksum;
} panama_header_t;

endpackage

`endif
