/* The kernel's BPF interface as far as this program uses it, so that clang alone builds it: no kernel headers, no libbpf.
 * Names and numbers are those of include/uapi/linux/bpf.h, which never change. */
#ifndef FANIN_BPF_BASE_H
#define FANIN_BPF_BASE_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef short __s16;
typedef unsigned int __u32;
typedef int __s32;
typedef unsigned long long __u64;
typedef long long __s64;

#define SEC(name) __attribute__((section(name), used))
#define inlined static inline __attribute__((always_inline))
/* The verifier looks at such a function once, for any arguments. Loops are in functions of this kind: inlined, each way out
 * of each loop would be verified with all that follows. */
#define verified_alone __attribute__((noinline))

/* Members of a map's definition, which the loader reads from BTF. */
#define MAP_NUMBER(name, value) int (*name)[value]
#define MAP_TYPE(name, value) typeof(value) *name

enum bpf_map_type { BPF_MAP_TYPE_HASH = 1, BPF_MAP_TYPE_ARRAY = 2, BPF_MAP_TYPE_PERCPU_ARRAY = 6, BPF_MAP_TYPE_DEVMAP = 14 };

enum { BPF_ANY = 0, BPF_NOEXIST = 1, BPF_F_BROADCAST = 1 << 3 };

struct xdp_md {
    __u32 data;
    __u32 data_end;
    __u32 data_meta;
    __u32 ingress_ifindex;
    __u32 rx_queue_index;
    __u32 egress_ifindex;
};

enum xdp_action { XDP_ABORTED, XDP_DROP, XDP_PASS, XDP_TX, XDP_REDIRECT };

/* An entry of a DEVMAP: where frames go, and the program that sees each of them on its way out. */
struct bpf_devmap_val {
    __u32 ifindex;
    int program;
};

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*bpf_map_update_elem)(void *map, const void *key, const void *value, __u64 flags) = (void *)2;
static long (*bpf_redirect)(__u32 ifindex, __u64 flags) = (void *)23;
static long (*bpf_redirect_map)(void *map, __u64 key, __u64 flags) = (void *)51;
static long (*bpf_xdp_adjust_tail)(struct xdp_md *context, int bytes) = (void *)65;
static __u64 (*bpf_ktime_get_coarse_ns)(void) = (void *)160;

inlined __u16 from_be16(__u16 value) { return __builtin_bswap16(value); }
inlined __u32 from_be32(__u32 value) { return __builtin_bswap32(value); }
inlined __u64 from_be64(__u64 value) { return __builtin_bswap64(value); }

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the XDP program is written for little-endian processors: build with -target bpfel"
#endif

/* A line that the compiler does not see across: it must check this very number, and use it behind the check only. The
 * verifier does not accept a check of another number from which this one follows. */
#define checked(number) asm volatile("" : "+r"(number))

#endif
