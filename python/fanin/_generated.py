# Generated from spec/fields.toml by `cargo xtask generate`. Do not edit.
"""Fields, codes and limits of fanin's wire formats."""

from enum import IntEnum
from typing import NamedTuple

MAGIC = 0xFA91
"""First two bytes of every fanin datagram."""
VERSION = 1
"""Version of the datagram layout."""
WORKER_COUNT_MAX = 256
"""Most workers in one job."""
JOB_COUNT_MAX = 256
"""Most jobs on one switch at a time (8 bits of job_id)."""
SLOT_COUNT_MAX = 32768
"""Most slots in one job's pool (15 bits of slot)."""
ELEMENT_COUNT_DEFAULT = 256
"""Elements per packet that fit the usual 1500-byte MTU (SwitchML §5)."""
ELEMENT_COUNT_MAX = 16352
"""Most elements in one packet: 4 bytes each, they and the header fit the largest UDP payload."""
XDP_ELEMENT_COUNT_MAX = 352
"""Most elements in a packet that the XDP program sums: a multiple of 32 that an MTU of 1500 carries."""
DATAGRAM_BYTES_MAX = 65507
"""Largest UDP payload over IPv4."""
MULTICAST_GROUP_BASE = 0xEFC00000
"""239.192.0.0/14, the multicast addresses for use within an organisation (RFC 2365). A lane's group is this plus MULTICAST_GROUP_MASK & (job_token + lane), at the lane's data port."""
MULTICAST_GROUP_MASK = 0x3FFFF
"""Bits of a group's address that tell lanes apart."""
RANK_ALL = 0xFFFF
"""Stands for every rank: `worker_rank` of a multicast Aggregate, `destination` when every rank gets the payload."""
BLOCK_EXPONENT_NOT_NEEDED = -32768
"""`block_exponent_next` of a chunk that needs no exponent (integers, raw words): below every other value, so a max merge ignores it."""
BLOCK_EXPONENT_MIN = -95
"""Smallest block exponent; blocks of zeros and of smaller values use it, so that the scale stays a finite binary32."""
BLOCK_EXPONENT_MAX = 128
"""Largest exponent of a block of finite binary32 values."""
BLOCK_EXPONENT_NON_FINITE = 0x7FFE
"""The block holds an infinity or a NaN: every worker's result becomes NaN and is reported."""
BLOCK_EXPONENT_UNKNOWN = 0x7FFF
"""The sender does not know its next block yet: the slot's next use is an announce, an empty contribution that carries only the exponent."""
INT8_SHIFT_MAX = 9
"""Largest shift of an Int8 Aggregate: 256 workers that all send -128, which needs one more than 256 times 127."""
DATA_PORT_BASE_DEFAULT = 48864
"""First UDP port of the data plane; thread t listens on this + t. Both formats share it, so it is p4app-switchML's."""
CONTROL_PORT_DEFAULT = 50099
"""TCP port of the controller (gRPC), the same as p4app-switchML's."""
SERVER_PORT_BASE_DEFAULT = 48880
"""First UDP port of a parameter server of its own; thread t listens on this + t."""
HTTP_PORT_DEFAULT = 50080
"""TCP port of /metrics and the dashboard."""
ATP_MAGIC = 0xFA92
"""First two bytes of every ATP datagram."""
ATP_LEVEL_COUNT_MAX = 4
"""Most levels of switches between a worker and the server."""
ATP_FAN_IN_MAX = 32
"""Most children of one switch: the bits of a word (ATP §3.4)."""
ATP_SCALE = 100000000
"""Fixed32 counts units of one over this where `scale` is 0 (ATP §3.8)."""
ATP_SCALE_CODE_NONE = 1
"""`scale_next` of a worker that has no float to scale there."""
ATP_SCALE_CODE_MIN = 2
"""`scale` and `scale_next` of the smallest exponent in use; each further one is one more, up to 225 (ATP App. B.3)."""
ATP_WINDOW_INITIAL = 200
"""Packets that a worker may have out at the start (ATP §3.7)."""
PANAMA_MAGIC = 0xFA93
"""First two bytes of every PANAMA datagram."""
PANAMA_PORT_COUNT_MAX = 64
"""Most ports of one switch: the bits of its ports bitmap (PANAMA §5)."""
PANAMA_TREE_COUNT_MAX = 64
"""Most aggregation trees of one job."""
PANAMA_CWND_INITIAL = 2
"""Packets that a worker may have out in a tree at the start (PANAMA Fig. 5)."""
PANAMA_SSTHRESH_INITIAL = 64
"""Slow start threshold of a tree at the start, in packets (PANAMA Fig. 5)."""
P4APP_PORT_BASE = 0xBEE0
"""First UDP destination port of the p4app-switchML format."""
P4APP_PORT_COUNT = 16
"""UDP ports of the p4app-switchML format (mask 0xFFF0)."""
P4APP_JOB_TYPE_ALL_REDUCE = 1
"""`job_type` of an all-reduce packet."""
P4APP_WORKER_COUNT_MAX = 32
"""Most workers of a p4app-switchML job: its bitmap is one 32-bit word."""
P4APP_SLOT_COUNT_MAX = 8192
"""Slots of the p4app-switchML switch program, each with two sets."""


class Field(NamedTuple):
    """Where a big-endian field lies in its header."""

    offset: int
    bytes: int
    signed: bool

FANIN_HEADER_BYTES = 40
FANIN_FIELDS = {
    "magic": Field(0, 2, False),
    "version": Field(2, 1, False),
    "kind": Field(3, 1, False),
    "job_id": Field(4, 4, False),
    "job_token": Field(8, 4, False),
    "worker_rank": Field(12, 2, False),
    "slot": Field(14, 2, False),
    "chunk_index": Field(16, 4, False),
    "collective_tag": Field(20, 4, False),
    "block_exponent_next": Field(24, 2, True),
    "element_count": Field(26, 2, False),
    "format_and_operator": Field(28, 1, False),
    "detail": Field(29, 1, False),
    "destination": Field(30, 2, False),
    "echo": Field(32, 4, False),
    "checksum": Field(36, 4, False),
}
"""fanin datagram, version 1."""

P4APP_HEADER_BYTES = 10
P4APP_FIELDS = {
    "type_and_size": Field(0, 1, False),
    "job_number": Field(1, 1, False),
    "packet_id": Field(2, 4, False),
    "slot": Field(6, 2, False),
    "block_exponent": Field(8, 1, True),
    "block_exponent_second": Field(9, 1, True),
}
"""p4app-switchML UDP header."""

ATP_HEADER_BYTES = 64
ATP_FIELDS = {
    "magic": Field(0, 2, False),
    "version": Field(2, 1, False),
    "kind": Field(3, 1, False),
    "job_id": Field(4, 4, False),
    "job_token": Field(8, 4, False),
    "chunk_index": Field(12, 4, False),
    "collective_tag": Field(16, 4, False),
    "contributed_0": Field(20, 4, False),
    "contributed_1": Field(24, 4, False),
    "contributed_2": Field(28, 4, False),
    "contributed_3": Field(32, 4, False),
    "fan_in_0": Field(36, 1, False),
    "fan_in_1": Field(37, 1, False),
    "fan_in_2": Field(38, 1, False),
    "fan_in_3": Field(39, 1, False),
    "level": Field(40, 1, False),
    "flags": Field(41, 1, False),
    "lane": Field(42, 2, False),
    "slot_index": Field(44, 2, False),
    "slot_index_next": Field(46, 2, False),
    "worker_rank": Field(48, 2, False),
    "element_count": Field(50, 2, False),
    "format_and_operator": Field(52, 1, False),
    "detail": Field(53, 1, False),
    "destination": Field(54, 2, False),
    "scale": Field(56, 1, False),
    "scale_next": Field(57, 1, False),
    "echo": Field(58, 2, False),
    "checksum": Field(60, 4, False),
}
"""ATP datagram, version 1."""

PANAMA_HEADER_BYTES = 40
PANAMA_FIELDS = {
    "magic": Field(0, 2, False),
    "version": Field(2, 1, False),
    "kind": Field(3, 1, False),
    "job_id": Field(4, 4, False),
    "job_token": Field(8, 4, False),
    "vid": Field(12, 4, False),
    "awaited_vid": Field(16, 4, False),
    "collective_tag": Field(20, 4, False),
    "tree": Field(24, 1, False),
    "flags": Field(25, 1, False),
    "cwnd_cap": Field(26, 2, False),
    "worker_count": Field(28, 2, False),
    "worker_rank": Field(30, 2, False),
    "element_count": Field(32, 2, False),
    "element_format": Field(34, 1, False),
    "detail": Field(35, 1, False),
    "checksum": Field(36, 4, False),
}
"""PANAMA datagram, version 1."""


class Kind(IntEnum):
    """What a fanin datagram is."""

    CONTRIBUTION = 1
    """From a worker: its elements of one chunk."""
    AGGREGATE = 2
    """From a switch: the sum of one chunk over all workers."""
    REFUSAL = 3
    """From a switch: the contribution was not used; `detail` says why."""
    PROBE = 4
    """From a worker: asks whether a datagram of this length reaches the switch."""
    PROBE_REPLY = 5
    """From a switch: a Probe sent back at its full length."""
    QUERY = 6
    """From a worker: asks what became of its contribution; a header without elements."""
    MISSING = 7
    """From a switch: answers a Query; the contribution has not arrived, send it again."""


class ElementFormat(IntEnum):
    """How elements are coded in the payload."""

    INT32 = 0
    """32-bit two's complement, big-endian: block fixed point, integers, raw words."""
    FLOAT16 = 1
    """IEEE binary16, big-endian, block-scaled; the switch sums in fixed point (SwitchML §4.6)."""
    BFLOAT16 = 2
    """bfloat16, big-endian, block-scaled to whole numbers, which the switch sums as 32-bit integers."""
    INT8 = 3
    """8-bit two's complement, -127 to 127, block-scaled; the switch sums exactly and divides the block by a power of two that it tells in `echo`."""
    RAW_FLOAT32 = 4
    """IEEE binary32 as it lies in memory: little-endian, not scaled. The job's accumulator adds it."""
    RAW_FLOAT16 = 5
    """IEEE binary16 as it lies in memory: little-endian, not scaled. The job's accumulator adds it."""
    RAW_BFLOAT16 = 6
    """bfloat16 as it lies in memory: little-endian, not scaled. The job's accumulator adds it."""
    FIXED32 = 7
    """Fixed point, big-endian: a float times ATP_SCALE, rounded; sums saturate (ATP §3.8)."""


class Accumulator(IntEnum):
    """How a job's switch adds sums of floats (spec/NUMERICS.md). The controller tells it in JoinRequest and JoinResponse; no datagram carries it."""

    BLOCK_FIXED = 0
    """Integers, scaled by the exponent that the workers agree on for a block: Int32, Float16, Bfloat16 and Int8 elements."""
    STATIC_FIXED = 1
    """Counts of 10^-8 whose sums saturate: Fixed32 elements (ATP §3.8)."""
    FPISA = 2
    """Floats in integer registers, guard bits as many as the workers leave: raw elements (FPISA §3)."""
    FPISA_A = 3
    """Floats in integer registers that are not shifted: raw elements (FPISA §4.3)."""
    LOG_TABLE = 4
    """Floats by table look-ups: raw elements (Libra §3.5)."""
    IEEE = 5
    """Native float addition in order of arrival: raw elements (PANAMA §4)."""
    EXACT = 6
    """The exact sum, rounded once, whatever the order: raw elements."""


class Operator(IntEnum):
    """How a slot combines contributions. Min and And are Max and Or of complements, taken at the host."""

    ADD = 0
    """Sum."""
    MAX = 1
    """Largest, as signed 32-bit integers."""
    OR = 2
    """Bitwise or; also carries all-gather and broadcast, where one worker holds the words and the others zeros."""
    XOR = 3
    """Bitwise exclusive or."""


class ProbePath(IntEnum):
    """What a Probe asks for, in its `echo` field. A switch that does not know it answers as to Unicast."""

    UNICAST = 0
    """An answer to the sender."""
    MULTICAST_TEST = 1
    """An answer to the lane's multicast group instead, which shows whether the network carries it."""
    MULTICAST_USE = 2
    """An answer to the sender, who from now on takes Aggregates for all ranks from the lane's multicast group."""


class AtpKind(IntEnum):
    """What an ATP datagram is."""

    FRAGMENT = 1
    """From a worker towards the server: elements of one chunk, perhaps summed on the way."""
    PARAMETER = 2
    """From the server: the sum of one chunk over all workers; frees its slots on the way down."""
    REFUSAL = 3
    """From a switch or the server: the Fragment was not used; `detail` says why."""
    PROBE = 4
    """From a worker to the server: asks whether datagrams of this length get there and back; touches no slot."""
    PROBE_REPLY = 5
    """From the server to one worker: an answer as long as the Probe."""


class AtpElementFormat(IntEnum):
    """How elements of an ATP datagram are coded."""

    INT32 = 0
    """32-bit two's complement, big-endian; sums wrap: integers, raw words."""
    FIXED32 = 1
    """Fixed point, big-endian: a float32 times ATP_SCALE, or times the power of two that `scale` stands for, rounded; sums saturate, and the two outermost values say so (ATP §3.8)."""
    FLOAT32 = 2
    """IEEE binary32, big-endian: only the server adds them, after saturation."""


class PanamaKind(IntEnum):
    """What a PANAMA datagram is."""

    CONTRIBUTION = 1
    """Up: a worker's elements, or the sum of everything below a switch."""
    RESULT = 2
    """Down: the sum over all workers of the tree."""
    REFUSAL = 3
    """Down: a Contribution was not used; `detail` says why."""


class PanamaElementFormat(IntEnum):
    """How elements of a PANAMA datagram are coded; switches add them as floats of 32 bits (PANAMA §5)."""

    FLOAT32 = 0
    """IEEE binary32, big-endian."""
    FLOAT16 = 1
    """IEEE binary16, big-endian; each switch rounds its sum to it."""
    BFLOAT16 = 2
    """bfloat16, big-endian; each switch rounds its sum to it."""


class P4appSize(IntEnum):
    """Payload size code of a p4app-switchML packet."""

    ELEMENTS32 = 0
    """128 bytes, 32 elements."""
    ELEMENTS64 = 1
    """256 bytes, 64 elements."""
    ELEMENTS128 = 2
    """512 bytes, 128 elements."""
    ELEMENTS256 = 3
    """1024 bytes, 256 elements."""


class DropReason(IntEnum):
    """Why a switch or a worker did not use a packet."""

    TRUNCATED = 0
    """The packet is shorter than its header."""
    BAD_MAGIC = 1
    """The packet does not start with fanin's magic number."""
    BAD_VERSION = 2
    """The packet is of another version of the datagram layout."""
    BAD_KIND = 3
    """The packet's kind is not one of this version's."""
    BAD_CHECKSUM = 4
    """The packet was damaged on the way: its CRC-32C does not match."""
    BAD_LENGTH = 5
    """The packet's length does not match its element count and format."""
    BAD_ELEMENT_FORMAT = 6
    """The element format is unknown, or not the one that the job was joined with."""
    BAD_OPERATOR = 7
    """The operator is unknown, or cannot be used with the element format."""
    UNKNOWN_JOB = 8
    """No such job on this switch: it ended, its lease ran out, or the switch restarted."""
    STALE_TOKEN = 9
    """The packet belongs to an older run of the job."""
    BAD_RANK = 10
    """The worker's rank is not below the job's worker count, or the packet is for another rank."""
    BAD_SLOT = 11
    """The slot is outside the job's pool, or is not the one that the chunk index belongs to."""
    STALE_CHUNK = 12
    """The chunk is older than what its slot remembers: a packet that the network delayed."""
    CHUNK_TOO_FAR_AHEAD = 13
    """The chunk is newer than its slot can hold: the one before it on this slot is not finished."""
    COLLECTIVE_MISMATCH = 14
    """The worker is in another collective than the workers that contributed to this chunk before it."""
    ELEMENT_COUNT_MISMATCH = 15
    """The contribution has another number of elements than those that came before it."""
    DUPLICATE_CONTRIBUTION = 16
    """The worker has already contributed to this chunk, which is not complete yet."""
    AWAITING_OTHERS = 17
    """The contribution was counted and added; nothing leaves the switch until the last worker's arrives."""
    NOT_A_CONTRIBUTION = 18
    """A packet that only a switch sends arrived at a switch."""
    SOURCE_UNKNOWN = 19
    """p4app-switchML format: the sender's address is not one of the job's registered workers."""
    JOB_DRAINING = 20
    """The switch is draining and takes no new collectives of this job."""
    SLOT_BUSY = 21
    """XDP: another processor held the slot too long; the packet was not counted."""
    PARTIAL_OVERLAP = 22
    """ATP server: some of the workers in the packet are in the sum already, others are not, and they cannot be told apart any more."""
    BUFFER_FULL = 23
    """PANAMA: the switch's buffers are full, and the packet is not the one that its tree waits for."""
    SCALE_MISMATCH = 24
    """ATP: the packet's floats are scaled by another power of two than the chunk's others; they were not added."""


DROP_REASON_HINTS = {
    DropReason.TRUNCATED: "Something cuts packets on the way: check the MTU of every link, or send fewer elements per packet.",
    DropReason.BAD_MAGIC: "Another program sends to this port: give the switch other ports, or close them to strangers.",
    DropReason.BAD_VERSION: "Install the same fanin version on the switch and on every worker.",
    DropReason.BAD_KIND: "Install the same fanin version on the switch and on every worker.",
    DropReason.BAD_CHECKSUM: "A few are harmless, the worker resends. Many mean a failing cable, card or memory: look at the port's error counters.",
    DropReason.BAD_LENGTH: "The sender built the packet wrongly: install the same fanin version everywhere and report the sender's version.",
    DropReason.BAD_ELEMENT_FORMAT: "Give every worker the same wire format setting, and the same fanin version.",
    DropReason.BAD_OPERATOR: "Install the same fanin version on the switch and on every worker.",
    DropReason.UNKNOWN_JOB: "Restart the job; if it was still running, look in the switch's log for the lost lease or the restart.",
    DropReason.STALE_TOKEN: "A worker of an earlier run is still alive: end it, or look for it at the address in the switch's log.",
    DropReason.BAD_RANK: "Start every worker with the same WORLD_SIZE and with its own RANK.",
    DropReason.BAD_SLOT: "The workers disagree on lanes or slots: install the same fanin version everywhere, and join again.",
    DropReason.STALE_CHUNK: "Harmless: the chunk was finished long ago. Many mean a path with very uneven delays.",
    DropReason.CHUNK_TOO_FAR_AHEAD: "The worker has lost step with the job: restart the job.",
    DropReason.COLLECTIVE_MISMATCH: "Ranks call collectives in different order, or with different sizes, element types or operators: compare the calls that the error lists.",
    DropReason.ELEMENT_COUNT_MISMATCH: "Ranks disagree on the size of the tensor: compare the calls that the error lists.",
    DropReason.DUPLICATE_CONTRIBUTION: "Normal after a resend. Many mean that resend timers fire too early, or that one worker is much slower than the others.",
    DropReason.AWAITING_OTHERS: "Normal: all but one of a chunk's contributions end so.",
    DropReason.NOT_A_CONTRIBUTION: "A worker's data address is that of another switch, or a switch is in a loop: check the data addresses.",
    DropReason.SOURCE_UNKNOWN: "Register the worker with the controller first; the sender's address and port must be the registered ones.",
    DropReason.JOB_DRAINING: "Let the job finish on another switch; the drain was asked for by the switch's operator.",
    DropReason.SLOT_BUSY: "The worker asks again. Many mean that the switch's virtual processors do not get their time: give the host fewer of them.",
    DropReason.PARTIAL_OVERLAP: "Harmless: the missing workers send again. Many mean heavy loss, or switches that restart.",
    DropReason.BUFFER_FULL: "Normal for a moment after a job has joined. Many mean workers that do not keep to `cwnd_cap`, or too little memory: give the switch more.",
    DropReason.SCALE_MISMATCH: "All workers of a job take the scale from the same answers: update fanin on the hosts that run an older version.",
}
"""What a person can do about each reason."""
