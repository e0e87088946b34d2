/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What device code and host code do differently, twice: for nvcc, and for a host C++ compiler, with
 * which CPU threads produce into the same rings. The rest of the device API is the same source for
 * both.
 *
 * On the host a thread is a warp and a block of its own, and says itself which block it is
 * (nlf_host_set_block).
 */
#ifndef NVSHMEM_LIBFABRIC_PRIMITIVES_CUH
#define NVSHMEM_LIBFABRIC_PRIMITIVES_CUH

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "nvshmem_libfabric_ring.h"

/* Slots that the calling thread has reserved, and what all that reserved together with it have. */
typedef struct {
    uint64_t number;  /* of the thread's first slot */
    uint64_t end;     /* after the last slot of all */
    unsigned threads; /* a mask: who reserved together */
    unsigned leader;  /* which of them acts for all */
} nlfp_reserved;

#if defined(__CUDACC__)

#define NLF_FN static __device__ __forceinline__
/* Rare ways: kept out of the callers' registers. */
#define NLF_COLD_FN static __device__ __noinline__
#define NLF_TEMPLATE_FN __device__ __forceinline__

/* The calling thread's block, in the order of blockIdx. */
NLF_FN unsigned nlfp_block() {
    return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
}

NLF_FN unsigned nlfp_thread_of_block() {
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

NLF_FN unsigned nlfp_threads_per_block() { return blockDim.x * blockDim.y * blockDim.z; }

NLF_FN unsigned nlfp_lane() {
    unsigned lane;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}

NLF_FN unsigned nlfp_threads_per_warp() { return 32; }

NLF_FN void nlfp_warp_sync() { __syncwarp(); }
NLF_FN void nlfp_block_sync() { __syncthreads(); }

/* The first lane's status, for all. */
NLF_FN int nlfp_warp_status(int status) { return __shfl_sync(0xffffffffu, status, 0); }

/* The worst status of the threads of a block, for all: any of those that are no NLF_OK; also a
 * barrier, and behind one. */
NLF_FN int nlfp_block_worst(int status) {
    __shared__ int worst;
    if (nlfp_thread_of_block() == 0) {
        worst = NLF_OK;
    }
    __syncthreads();
    if (status != NLF_OK) {
        atomicMax(&worst, status);
    }
    __syncthreads();
    return worst;
}

/* The same of a warp. */
NLF_FN int nlfp_warp_worst(int status) {
    const unsigned failed = __ballot_sync(0xffffffffu, status != NLF_OK);
    return failed == 0 ? NLF_OK : __shfl_sync(0xffffffffu, status, __ffs((int)failed) - 1);
}

/* The first thread's status, for all; also a barrier. The next call that writes is behind a barrier
 * as well. */
NLF_FN int nlfp_block_status(int status) {
    __shared__ int shared;
    if (nlfp_thread_of_block() == 0) {
        shared = status;
    }
    __syncthreads();
    return shared;
}

/*
 * Reserves `slots` slots, 1 or 2, for each of the threads of the warp that are here together, of
 * the same ring, with one addition by one of them. Needs no more order than that of the counter
 * itself.
 */
NLF_FN nlfp_reserved nlfp_reserve(uint64_t *head, unsigned slots) {
    nlfp_reserved reserved;
    unsigned here = __activemask();
    reserved.threads = __match_any_sync(here, (unsigned long long)head);
    unsigned two = __ballot_sync(reserved.threads, slots == 2);
    unsigned before;
    asm("mov.u32 %0, %%lanemask_lt;" : "=r"(before));
    before &= reserved.threads;
    reserved.leader = __ffs((int)reserved.threads) - 1;
    unsigned total = __popc(reserved.threads) + __popc(two);
    unsigned long long base = 0;
    if (nlfp_lane() == reserved.leader) {
        base = atomicAdd((unsigned long long *)head, (unsigned long long)total);
    }
    base = __shfl_sync(reserved.threads, base, (int)reserved.leader);
    reserved.number = base + __popc(before) + __popc(before & two);
    reserved.end = base + total;
    return reserved;
}

NLF_FN bool nlfp_leads(const nlfp_reserved *reserved) { return nlfp_lane() == reserved->leader; }

/* The leader's status, for all that have reserved together. */
NLF_FN int nlfp_status_of_leader(const nlfp_reserved *reserved, int status) {
    return __shfl_sync(reserved->threads, status, (int)reserved->leader);
}

/* A counter that only threads of this device change: as fresh as the device's cache. */
NLF_FN uint64_t nlfp_load_device(const uint64_t *word) {
    uint64_t value;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}

NLF_FN void nlfp_raise_device(uint64_t *word, uint64_t value) {
    atomicMax((unsigned long long *)word, (unsigned long long)value);
}

/* What was there before. */
NLF_FN uint64_t nlfp_add_device(uint64_t *word, uint64_t value) {
    return atomicAdd((unsigned long long *)word, (unsigned long long)value);
}

/* What somebody outside this device writes: what it wrote before is seen after. */
NLF_FN uint64_t nlfp_load_acquire64(const uint64_t *word) {
    uint64_t value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}

NLF_FN uint32_t nlfp_load_acquire32(const uint32_t *word) {
    uint32_t value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}

/* What this thread has written, and what others have written before a barrier that it has passed,
 * is seen by CPU and NIC before what it writes next. */
NLF_FN void nlfp_fence_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

/*
 * Half a slot, by one store. PTX has the 16 bytes as one access only as b128; as a vector they are
 * two, in no order, and it is the hardware that sends them together.
 */
NLF_FN void nlfp_store_half(uint64_t *half, uint64_t other, uint64_t with_lap) {
#if __CUDACC_VER_MAJOR__ > 12 || (__CUDACC_VER_MAJOR__ == 12 && __CUDACC_VER_MINOR__ >= 4)
    asm volatile("{\n\t"
                 ".reg .b128 half;\n\t"
                 "mov.b128 half, {%1, %2};\n\t"
                 "st.relaxed.sys.global.b128 [%0], half;\n\t"
                 "}" ::"l"(half), "l"(other), "l"(with_lap) : "memory");
#else
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(half), "l"(other), "l"(with_lap)
                 : "memory");
#endif
}

/*
 * An entry of the table of regions, by one load that no cache of the multiprocessor answers. As a
 * vector it is two accesses to PTX, and one to the hardware, which reads a sector of 32 bytes;
 * whoever changes an entry takes microseconds from one word to the other.
 */
NLF_FN nlf_region nlfp_load_region(const nlf_region *entry) {
    nlf_region region;
#if __CUDACC_VER_MAJOR__ > 12 || (__CUDACC_VER_MAJOR__ == 12 && __CUDACC_VER_MINOR__ >= 4)
    asm volatile("{\n\t"
                 ".reg .b128 entry;\n\t"
                 "ld.relaxed.sys.global.b128 entry, [%2];\n\t"
                 "mov.b128 {%0, %1}, entry;\n\t"
                 "}" : "=l"(region.base), "=l"(region.size) : "l"(entry) : "memory");
#else
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(region.base), "=l"(region.size) : "l"(entry)
                 : "memory");
#endif
    return region;
}

/* Whether the caller is the first to claim. Nothing is counted: in a kernel whose every call fails
 * a count is round in seconds. */
NLF_FN bool nlfp_claim(uint32_t *claims) {
    return *(volatile uint32_t *)claims == 0u && atomicCAS((unsigned *)claims, 0u, 1u) == 0u;
}

NLF_FN void nlfp_store32(uint32_t *word, uint32_t value) { *(volatile uint32_t *)word = value; }
NLF_FN void nlfp_store64(uint64_t *word, uint64_t value) { *(volatile uint64_t *)word = value; }

NLF_FN void nlfp_store_release32(uint32_t *word, uint32_t value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

NLF_FN void nlfp_store_release64(uint64_t *word, uint64_t value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

/* Between two looks at something that has not changed. A look across the bus takes about a
 * microsecond already. */
NLF_FN void nlfp_pause(unsigned looks) {
    if (looks > 16) {
        __nanosleep(looks < 256 ? 64 : 512);
    }
}

#else /* a host compiler */

#include <sched.h>

#define NLF_FN static inline
#define NLF_COLD_FN static inline __attribute__((noinline, cold))
#define NLF_TEMPLATE_FN inline

inline unsigned *nlfp_host_block() {
    static thread_local unsigned block = 0;
    return &block;
}

/* Which block the calling thread is from now on. */
NLF_FN void nlf_host_set_block(unsigned block) { *nlfp_host_block() = block; }

NLF_FN unsigned nlfp_block() { return *nlfp_host_block(); }
NLF_FN unsigned nlfp_thread_of_block() { return 0; }
NLF_FN unsigned nlfp_threads_per_block() { return 1; }
NLF_FN unsigned nlfp_lane() { return 0; }
NLF_FN void nlfp_warp_sync() {}
NLF_FN void nlfp_block_sync() {}
NLF_FN int nlfp_warp_status(int status) { return status; }
NLF_FN int nlfp_block_status(int status) { return status; }
NLF_FN int nlfp_warp_worst(int status) { return status; }
NLF_FN int nlfp_block_worst(int status) { return status; }
NLF_FN unsigned nlfp_threads_per_warp() { return 1; }

NLF_FN nlfp_reserved nlfp_reserve(uint64_t *head, unsigned slots) {
    nlfp_reserved reserved;
    reserved.number = __atomic_fetch_add(head, (uint64_t)slots, __ATOMIC_RELAXED);
    reserved.end = reserved.number + slots;
    reserved.threads = 1;
    reserved.leader = 0;
    return reserved;
}

NLF_FN bool nlfp_leads(const nlfp_reserved *) { return true; }
NLF_FN int nlfp_status_of_leader(const nlfp_reserved *, int status) { return status; }

NLF_FN uint64_t nlfp_load_device(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

NLF_FN uint64_t nlfp_add_device(uint64_t *word, uint64_t value) {
    return __atomic_fetch_add(word, value, __ATOMIC_RELAXED);
}

NLF_FN void nlfp_raise_device(uint64_t *word, uint64_t value) {
    uint64_t seen = __atomic_load_n(word, __ATOMIC_RELAXED);
    /* Ends: each failure finds a larger number than the one before. */
    while (seen < value && !__atomic_compare_exchange_n(word, &seen, value, true, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
    }
}

NLF_FN uint64_t nlfp_load_acquire64(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
NLF_FN uint32_t nlfp_load_acquire32(const uint32_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

/* The store of each half is a release here. */
NLF_FN void nlfp_fence_system() {}

NLF_FN void nlfp_store_half(uint64_t *half, uint64_t other, uint64_t with_lap) {
    __atomic_store_n(&half[0], other, __ATOMIC_RELAXED);
    __atomic_store_n(&half[1], with_lap, __ATOMIC_RELEASE);
}

/*
 * An entry of the table of regions: its length before and after its base are the same, of one
 * generation, so the base is of that length. Ends: each failure finds an entry that was changed
 * since. One that is being changed has no length.
 */
NLF_FN nlf_region nlfp_load_region(const nlf_region *entry) {
    nlf_region region;
    uint64_t again = __atomic_load_n(&entry->size, __ATOMIC_ACQUIRE);
    do {
        region.size = again;
        region.base = __atomic_load_n(&entry->base, __ATOMIC_RELAXED);
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        /* An acquire for the base that is loaded after it, if it comes to that. */
        again = __atomic_load_n(&entry->size, __ATOMIC_ACQUIRE);
    } while (again != region.size);
    return region;
}

NLF_FN bool nlfp_claim(uint32_t *claims) {
    uint32_t none = 0;
    return __atomic_load_n(claims, __ATOMIC_RELAXED) == 0u &&
           __atomic_compare_exchange_n(claims, &none, 1u, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

NLF_FN void nlfp_store32(uint32_t *word, uint32_t value) { __atomic_store_n(word, value, __ATOMIC_RELAXED); }
NLF_FN void nlfp_store64(uint64_t *word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELAXED); }
NLF_FN void nlfp_store_release32(uint32_t *word, uint32_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }
NLF_FN void nlfp_store_release64(uint64_t *word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }

typedef void (*nlf_host_pause)(unsigned looks);

inline nlf_host_pause *nlfp_host_pause() {
    static thread_local nlf_host_pause pause = NULL;
    return &pause;
}

/* What the calling thread does between two looks from now on, instead of yielding. NULL: yields
 * again. */
NLF_FN void nlf_host_set_pause(nlf_host_pause pause) { *nlfp_host_pause() = pause; }

/* Who is waited for may need this core. */
NLF_FN void nlfp_pause(unsigned looks) {
    const nlf_host_pause pause = *nlfp_host_pause();
    if (pause != NULL) {
        pause(looks);
    } else {
        sched_yield();
    }
}

#endif

/* A value of a word's type. The compiler takes T from the word alone, so a literal of another type
 * is converted. */
template <typename T>
struct nlfi_same {
    typedef T type;
};
template <typename T>
using nlfi_value = typename nlfi_same<T>::type;

/* As reads of a word of 4 or 8 bytes, of whatever type: its bits are that type's, not a number to
 * be converted. */
template <typename T>
NLF_TEMPLATE_FN T nlfp_load_acquire(const T *word) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "a word has 4 or 8 bytes");
    T value;
    if (sizeof(T) == 8) {
        const uint64_t bits = nlfp_load_acquire64((const uint64_t *)word);
        memcpy(&value, &bits, sizeof(T));
    } else {
        const uint32_t bits = nlfp_load_acquire32((const uint32_t *)word);
        memcpy(&value, &bits, sizeof(T));
    }
    return value;
}

#endif
