/* What the program remembers, in maps that the daemon fills and reads. `crates/xdp/src/state.rs` has the twins of these
 * structures; a map whose sizes differ from theirs does not load. */
#ifndef FANIN_STATE_H
#define FANIN_STATE_H

#include "net.h"

enum { JOB_COUNT = 256, PAIRS_MAX = FANIN_XDP_ELEMENT_COUNT_MAX / 2 };

/* One job's parameters. */
struct job {
    __u32 is_live;
    __u32 job_id;
    __u32 job_token;
    __u32 worker_count;
    __u32 lane_count;
    /* A power of two, and its logarithm. */
    __u32 slots_per_lane;
    __u32 slots_shift;
    __u32 slot_count;
    /* Where the job's slots and peers begin in their maps. */
    __u32 slot_base;
    __u32 peer_base;
    __u32 element_count_max;
    /* 0: the job's packets carry none, which its workers were told when they joined. */
    __u32 has_checksum;
    /* Set here when two ranks of a lane share an interface: a broadcast reaches one of them only, so that the daemon's
     * socket sends the job's Aggregates. */
    __u32 is_shared;
};

/* One of a slot's two copies. */
struct copy {
    __u64 contributed[FANIN_WORKER_COUNT_MAX / 64];
    __u32 chunk_index;
    __u32 collective_tag;
    __u16 contribution_count;
    __u16 element_count;
    __s16 block_exponent_next;
    __u16 destination;
    __u8 element_format;
    __u8 operator;
    /* Of a complete sum of bytes: see `choose_shift`. */
    __u8 shift;
    __u8 unused[5];
};

/* A copy's elements. They lie in pairs, the first in a word's upper half: a word is then what 64 bits of packet are after one
 * byte swap, and one addition adds two elements. */
struct pairs {
    __u64 pair[PAIRS_MAX];
};

/* A slot. */
struct slot {
    /* 1 while a processor serves a packet of this slot: see `hold`. */
    __u32 is_held;
    /* Whose the slot is: a packet of a job that has just ended must not reach its successor's. */
    __u32 job_id;
    struct copy copies[2];
    struct pairs pairs[2];
};

/* Packets by outcome, one set per processor and job number. */
struct counters {
    __u64 received_datagrams;
    __u64 received_bytes;
    __u64 sent_datagrams;
    __u64 sent_bytes;
    __u64 contributions;
    __u64 aggregates;
    __u64 replies;
    __u64 probes;
    __u64 missing;
    __u64 drops[FANIN_DROP_COUNT];
};

/* A lane of a job at one interface. */
struct member_key {
    __u32 group;
    __u32 ifindex;
};

struct {
    MAP_NUMBER(type, BPF_MAP_TYPE_ARRAY);
    MAP_NUMBER(max_entries, JOB_COUNT);
    MAP_TYPE(key, __u32);
    MAP_TYPE(value, struct job);
} jobs SEC(".maps");

/* The loader sets how many. */
struct {
    MAP_NUMBER(type, BPF_MAP_TYPE_ARRAY);
    MAP_NUMBER(max_entries, 1);
    MAP_TYPE(key, __u32);
    MAP_TYPE(value, struct slot);
} slots SEC(".maps");

/* peer_base + lane * worker_count + rank. */
struct {
    MAP_NUMBER(type, BPF_MAP_TYPE_ARRAY);
    MAP_NUMBER(max_entries, 1);
    MAP_TYPE(key, __u32);
    MAP_TYPE(value, struct peer);
} peers SEC(".maps");

/* Which rank is behind an interface. */
struct {
    MAP_NUMBER(type, BPF_MAP_TYPE_HASH);
    MAP_NUMBER(max_entries, 1);
    MAP_TYPE(key, struct member_key);
    MAP_TYPE(value, __u32);
} members SEC(".maps");

struct {
    MAP_NUMBER(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    MAP_NUMBER(max_entries, JOB_COUNT);
    MAP_TYPE(key, __u32);
    MAP_TYPE(value, struct counters);
} counts SEC(".maps");

/* Every interface that has the program. The loader sets how many at most: a broadcast looks at every entry, and an empty one
 * costs it some 10 ns. */
struct {
    MAP_NUMBER(type, BPF_MAP_TYPE_DEVMAP);
    MAP_NUMBER(max_entries, 64);
    MAP_TYPE(key, __u32);
    MAP_TYPE(value, struct bpf_devmap_val);
} ports SEC(".maps");

/* UDP ports of the data plane, first and number; set by the loader. */
const volatile __u32 port_first = 0;
const volatile __u32 port_count = 0;
/* Our address, where the data plane has one; 0: any. */
const volatile __u32 own_address = 0;
/* Answers go back by a redirect instead of XDP_TX, see `answer`. */
const volatile __u32 redirects_answers = 0;

inlined __u32 group_of(const struct job *job, __u32 lane) { return (job->job_id & FANIN_JOB_NUMBER_MASK) << 16 | lane; }

inlined struct peer *find_peer(const struct job *job, __u32 lane, __u32 rank)
{
    __u32 index = job->peer_base + lane * job->worker_count + rank;
    return bpf_map_lookup_elem(&peers, &index);
}

#endif
