/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the device API takes from CUDA's headers, in clang's own words: so its bitcode is built
 * without CUDA. Included in front of everything by tools/labs/gpu/bitcode/build.sh.
 */
#ifndef NLF_BITCODE_BUILTINS_H
#define NLF_BITCODE_BUILTINS_H

#define __device__ __attribute__((device))
#define __forceinline__ __attribute__((always_inline)) inline
#define __noinline__ __attribute__((noinline))
#define __shared__ __attribute__((shared))
/* nvcc says so; what is asked for it is its own assembler. */
#define __CUDACC__ 1
#define __CUDACC_VER_MAJOR__ 0
#define __CUDACC_VER_MINOR__ 0

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#define memcpy __builtin_memcpy

#define NLFB_FN static __device__ __forceinline__

/* Registers that are read as fields. */
#define NLFB_REGISTER(name, of)                                                                                        \
    struct nlfb_##name {                                                                                               \
        struct at_x {                                                                                                  \
            __device__ operator unsigned() const { return __nvvm_read_ptx_sreg_##of##_x(); }                           \
        } x;                                                                                                           \
        struct at_y {                                                                                                  \
            __device__ operator unsigned() const { return __nvvm_read_ptx_sreg_##of##_y(); }                           \
        } y;                                                                                                           \
        struct at_z {                                                                                                  \
            __device__ operator unsigned() const { return __nvvm_read_ptx_sreg_##of##_z(); }                           \
        } z;                                                                                                           \
    };
NLFB_REGISTER(block_index, ctaid)
NLFB_REGISTER(thread_index, tid)
NLFB_REGISTER(block_size, ntid)
NLFB_REGISTER(grid_size, nctaid)
#define blockIdx (nlfb_block_index{})
#define threadIdx (nlfb_thread_index{})
#define blockDim (nlfb_block_size{})
#define gridDim (nlfb_grid_size{})

/* __syncthreads is clang's own. */
NLFB_FN void __syncwarp() { __nvvm_bar_warp_sync(0xffffffffu); }
NLFB_FN unsigned __activemask() {
    unsigned mask;
    asm volatile("activemask.b32 %0;" : "=r"(mask));
    return mask;
}
NLFB_FN unsigned __ballot_sync(unsigned mask, int is_so) { return __nvvm_vote_ballot_sync(mask, is_so); }
NLFB_FN unsigned __match_any_sync(unsigned mask, unsigned long long value) {
    unsigned equal;
    asm volatile("match.any.sync.b64 %0, %1, %2;" : "=r"(equal) : "l"(value), "r"(mask) : "memory");
    return equal;
}
NLFB_FN int __shfl_sync(unsigned mask, int value, int lane) { return __nvvm_shfl_sync_idx_i32(mask, value, lane, 31); }
NLFB_FN unsigned long long __shfl_sync(unsigned mask, unsigned long long value, int lane) {
    const unsigned low = (unsigned)__shfl_sync(mask, (int)value, lane);
    const unsigned high = (unsigned)__shfl_sync(mask, (int)(value >> 32), lane);
    return (unsigned long long)high << 32 | low;
}
NLFB_FN int __ffs(int bits) { return __builtin_ffs(bits); }
NLFB_FN int __popc(unsigned bits) { return __builtin_popcount(bits); }
NLFB_FN void __nanosleep(unsigned ns) { asm volatile("nanosleep.u32 %0;" ::"r"(ns)); }

NLFB_FN unsigned long long atomicAdd(unsigned long long *word, unsigned long long value) {
    return __nvvm_atom_add_gen_ll((long long *)word, (long long)value);
}
NLFB_FN unsigned long long atomicMax(unsigned long long *word, unsigned long long value) {
    return __nvvm_atom_max_gen_ull(word, value);
}
NLFB_FN int atomicMax(int *word, int value) { return __nvvm_atom_max_gen_i(word, value); }
NLFB_FN unsigned atomicCAS(unsigned *word, unsigned compare, unsigned value) {
    return (unsigned)__nvvm_atom_cas_gen_i((int *)word, (int)compare, (int)value);
}

#endif
