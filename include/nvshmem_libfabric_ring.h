/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rings between kernels and the proxy thread: what both sides agree on.
 *
 * Read by nvcc and by host C++ compilers as part of the device header, and by bindgen for the
 * proxy. C99 and C++11. All numbers are little endian, as every GPU is.
 *
 * Kernels produce, one proxy thread consumes. A ring has a power of two of slots of 32 bytes. The
 * n-th slot ever reserved in it, from 0, is slot n mod capacity; a producer reserves slots by
 * adding to the ring's head, and may write slot n when n - tail < capacity. A descriptor is one
 * slot, or two that follow one another (the second may be at the ring's start). Each slot is
 * written in two halves of 16 bytes, in any order; each half carries the lap of its slot, so no
 * order among the halves, or among the slots, is needed. A slot is there when both halves have the
 * lap that is due: of slot n, bit slots_log2 of n, inverted. So the first lap is 1, and memory
 * starts as zeroes.
 *
 * A half is written by one store of 16 bytes, or by two of 8 of which that with the lap is last and
 * a release. The lap is the last bit of the half in memory: a PCIe write without relaxed ordering
 * is seen in the order of rising addresses, in whatever pieces, so the rest is there when the lap
 * is. Who reads loads the word with the lap first, as an acquire.
 *
 * The order of a ring is the order of reservation. Between rings there is none.
 */
#ifndef NVSHMEM_LIBFABRIC_RING_H
#define NVSHMEM_LIBFABRIC_RING_H

#include <stdint.h>

/* Kernels and library that disagree on it do not work together: nlf_context.version. */
#define NLF_RING_VERSION 6

/* ------------------------------------------------------------------------------------------------
 * Bounds
 */

#define NLF_MAX_RINGS 32       /* a power of two */
#define NLF_MIN_SLOTS 64       /* of a ring: more than one warp reserves at once, twice 32 */
#define NLF_MAX_SLOTS 1048576  /* of a ring: 32 MiB */
#define NLF_MAX_REGIONS 254    /* of a program; the two that follow are none of them */
#define NLF_OWN_REGION 254     /* nlf_own, which is in no table */
#define NLF_NO_REGION 255
#define NLF_MAX_PES 65536
#define NLF_MAX_BYTES 0xffffffffu      /* of one put or get: 4 GiB less one byte */
#define NLF_MAX_OFFSET 0xffffffffffull /* in a region: 1 TiB less one byte */
#define NLF_MAX_INLINE 0x7fffffffffffull /* value that fits into one slot: 47 bits */

/* ------------------------------------------------------------------------------------------------
 * Descriptors
 *
 * The first slot, as four words of 64 bits. `dst` is at the peer, `src` here; a get reads `dst`
 * into `src`.
 *
 *        63   62..58   57..48   47..40           39..32  31..0
 *   q0   value bits 0..15       dst region       dst offset (39..0)
 *   q1   lap  op       flags    pe (47..32)              bytes
 *   q2   value bits 31..46      signal region    signal offset (39..0)
 *   q3   lap  value bits 16..30 src region       src offset (39..0)
 *
 * The second slot, when NLF_FLAG_EXTENDED is set; the value in the first is 0 then.
 *
 *   q4   value, all 64 bits
 *   q5   lap  zero (62..0)
 *   q6   compare, all 64 bits
 *   q7   lap  zero (62..48)     fetch region     fetch offset (39..0)
 *
 * Atomics act on the word at `dst`; `bytes` is its width, 4 or 8, and the kind is in the flags;
 * values are of that width. What was there before comes to `fetch`, a word of that width in memory
 * of this PE, if `fetch` is not NLF_NO_REGION with offset 0. A put of a value has it in the
 * descriptor, 1, 2, 4 or 8 bytes. Only puts with signal or of a value and atomics are extended, and
 * only those that have to be or that fetch. A fence and a quiet have a PE and nothing else. Fields
 * that an operation does not use are zero.
 */

#define NLF_LAP 0x8000000000000000ull

#define NLF_OP_SHIFT 58
#define NLF_OP_MASK 0x1fu
#define NLF_FLAGS_SHIFT 48
#define NLF_FLAGS_MASK 0x3ffu
#define NLF_PE_SHIFT 32
#define NLF_PE_MASK 0xffffu
#define NLF_BYTES_MASK 0xffffffffu
#define NLF_REGION_SHIFT 40
#define NLF_REGION_MASK 0xffu
#define NLF_OFFSET_MASK 0xffffffffffull
#define NLF_VALUE_SHIFT 48 /* in q0, q3 and q2, from the low bits on */
#define NLF_VALUE_Q0_BITS 16
#define NLF_VALUE_Q3_BITS 15
#define NLF_VALUE_Q2_BITS 16

/* Operations. 0 is none, so a slot that was never written is no descriptor. */
#define NLF_OP_PUT 1        /* src to dst */
#define NLF_OP_PUT_SIGNAL 2 /* the same, then the signal, a word of 8 bytes: set or added to */
#define NLF_OP_GET 3        /* dst to src */
#define NLF_OP_ATOMIC 4     /* also a signal without data */
#define NLF_OP_FENCE 5      /* writes and atomics to the PE, on any ring, before it in the proxy's order are visible
                               before those after it */
#define NLF_OP_PUT_VALUE 6  /* the value to dst */
#define NLF_OP_QUIET 7      /* asks for nlf_published.quiet */

/* Flags: the kind of an atomic or a signal, and: */
#define NLF_KIND_MASK 0x0fu
#define NLF_KIND_SET 0 /* never fetches */
#define NLF_KIND_ADD 1
#define NLF_KIND_AND 2
#define NLF_KIND_OR 3
#define NLF_KIND_XOR 4
#define NLF_KIND_SWAP 5         /* set, and always fetches */
#define NLF_KIND_COMPARE_SWAP 6 /* always fetches; sets the value where the word is `compare` */
#define NLF_KIND_FETCH 7        /* always fetches, and changes nothing */
#define NLF_FLAG_EXTENDED 0x10u /* two slots */
#define NLF_FLAG_ALL_PES 0x20u  /* of a fence: to all PEs; its PE is 0 */

typedef struct {
    uint64_t q[4];
} nlf_slot;

/* ------------------------------------------------------------------------------------------------
 * What the proxy publishes of a ring
 *
 * One line, written by the proxy alone, in memory that it writes and kernels read. All only ever
 * rise, but for `state`.
 */
#define NLF_QUIETS 4
typedef struct {
    uint64_t tail;  /* slots that were taken: their room is free */
    uint64_t done;  /* slots whose operations are all delivered: visible at the peer, landed here */
    uint32_t state; /* NLF_STATE_* */
    uint32_t reserved;
    /* Of an NLF_OP_QUIET in slot n: word n mod NLF_QUIETS is more than n when all slots before n
     * that are for its PE are done, or some that came later as well. */
    uint64_t quiet[NLF_QUIETS];
    uint64_t unused;
} nlf_published;

#define NLF_STATE_RUNNING 0
#define NLF_STATE_STOPPED 1 /* the proxy has ended: nothing more is taken */
#define NLF_STATE_FAILED 2  /* an operation has failed, so the context has; nlf_error says of what kind */

/* ------------------------------------------------------------------------------------------------
 * Errors
 *
 * The first error of producers stays. Who sets nlf_context.error_claims to 1 first writes it,
 * `code` last. The bus between a GPU and the CPU may have no atomics, so the claims are in memory
 * of the producers, and the proxy has a record of its own, which a producer that meets
 * NLF_STATE_FAILED makes that of producers.
 */
typedef struct {
    uint32_t code; /* NLF_OK, or NLF_ERROR_* */
    uint32_t op;   /* NLF_OP_*, or 0 */
    uint32_t pe;
    uint32_t ring;
    uint64_t addr;  /* what was wrong of: address */
    uint64_t bytes; /* length */
    /* Not 0 when a producer has given up slots that it had reserved: nothing behind them will ever
     * be there, so the context is over. Set whatever `code` is; the proxy looks at it when it finds
     * nothing to take. */
    uint32_t abandoned;
    uint32_t reserved[7];
} nlf_error;

#define NLF_OK 0
#define NLF_ERROR_PE 1        /* no such PE */
#define NLF_ERROR_ADDRESS 2   /* in no region, or not all bytes in one */
#define NLF_ERROR_LENGTH 3    /* more than NLF_MAX_BYTES */
#define NLF_ERROR_ALIGNMENT 4 /* of a word */
#define NLF_ERROR_STUCK 5     /* the proxy has moved nothing for as long as nlf_context.spins says */
#define NLF_ERROR_STOPPED 6   /* the proxy has ended */
#define NLF_ERROR_FAILED 7    /* an operation failed; the library's log and nlf_strerror have the reason */
#define NLF_ERROR_KIND 8      /* no such atomic, or not of that width */
#define NLF_ERROR_DESCRIPTOR 9 /* the proxy read something that is no descriptor */
#define NLF_ERROR_VERSION 10  /* kernels and library are of different NLF_RING_VERSION */

/* ------------------------------------------------------------------------------------------------
 * What kernels have
 *
 * Pointers are in the address space of whoever produces. A context and all it points to stay until
 * it is destroyed.
 */

/*
 * A region of registered memory. Region r is the same on every PE when it is symmetric; offsets are
 * from its base.
 *
 * An index is used again when its region is released, perhaps while kernels run, and a base that is
 * taken together with another region's length would lead into memory that was never meant. So a
 * device loads both words at once, past its caches, and a CPU thread loads `size` before and after
 * `base`: whoever changes an entry makes its length 0 first, of the next generation.
 */
typedef struct {
    uint64_t base; /* where it is here */
    uint64_t size; /* NLF_REGION_*; a length of 0: no such region */
} nlf_region;

#define NLF_REGION_LENGTH 0x1ffffffffffull      /* of `size`: bytes */
#define NLF_REGION_SYMMETRIC 0x20000000000ull   /* peers have one of the same size; else memory of this PE only, for src, fetch */
#define NLF_REGION_GENERATION_SHIFT 42          /* above: how often the entry was used, modulo 2 to the 22 */

/* The producers' side of a ring. In memory that kernels change fast, a line for itself. */
typedef struct {
    uint64_t head;      /* slots reserved */
    uint64_t tail_seen; /* a value that `tail` has had; rises */
    uint64_t reserved[14];
} nlf_producers;

typedef struct {
    nlf_slot *slots;           /* in page-locked host memory */
    nlf_producers *producers;
    const nlf_published *published;
} nlf_ring;

/*
 * The library's own memory at every PE, of the host: region NLF_OWN_REGION of descriptors.
 */
#define NLF_BARRIER_ROUNDS 16 /* 2 to this is NLF_MAX_PES */
#define NLF_LANDINGS 1008
typedef struct {
    /* Of round r, how often the PE that is 2 to the r before this one, round and round, has come
     * there. Wraps. */
    uint64_t arrived[NLF_BARRIER_ROUNDS];
    uint64_t landed[NLF_LANDINGS]; /* what comes of nlf_g */
} nlf_own;

/* The producers' side of it, in memory like that of nlf_producers. */
typedef struct {
    uint64_t barriers; /* that this PE has begun; wraps as `arrived` does */
    uint64_t landings; /* tried by now */
    uint32_t landing_claims[NLF_LANDINGS]; /* 1: somebody waits for a value there */
} nlf_own_producers;

typedef struct {
    uint32_t version; /* NLF_RING_VERSION */
    uint32_t me;
    uint32_t n_pes;
    uint32_t n_rings;    /* a power of two */
    uint32_t slots_log2; /* of each ring */
    uint32_t n_regions;  /* entries of `regions` */
    uint64_t spins;      /* polls without any change after which a wait is given up; 0: never */
    const nlf_ring *rings;
    const nlf_region *regions;
    nlf_error *error;       /* in memory that the proxy reads */
    uint32_t *error_claims; /* in memory like that of nlf_producers; 0: `error` is nobody's yet */
    const nlf_error *proxy_error;
    const nlf_own *own;
    nlf_own_producers *own_producers;
} nlf_context;

/* ------------------------------------------------------------------------------------------------
 * Layout. bindgen asserts the same of what it generates.
 */
#if defined(__cplusplus)
#define NLF_ASSERT(what) static_assert(what, #what)
#elif defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
#define NLF_ASSERT(what) _Static_assert(what, #what)
#else
#define NLF_ASSERT(what) extern char nlf_asserted[(what) ? 1 : -1]
#endif
NLF_ASSERT(sizeof(nlf_slot) == 32);
NLF_ASSERT(sizeof(nlf_published) == 64);
NLF_ASSERT(sizeof(nlf_error) == 64);
NLF_ASSERT(sizeof(nlf_region) == 16);
NLF_ASSERT(sizeof(nlf_producers) == 128);
NLF_ASSERT(sizeof(nlf_ring) == 24);
NLF_ASSERT(sizeof(nlf_own) == 8192);
NLF_ASSERT(sizeof(nlf_own_producers) == 4048);
NLF_ASSERT(sizeof(nlf_context) == 88);

#endif
