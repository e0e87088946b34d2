/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels, by the names nlfk_kernel_<body>. */

#include "bodies.cuh"

static __device__ __forceinline__ nlfk_self nlfk_who(uint32_t form) {
    nlfk_self self;
    const uint64_t in_block = nlfp_thread_of_block();
    const uint64_t per_block = nlfp_threads_per_block();
    const uint64_t blocks = (uint64_t)gridDim.x * gridDim.y * gridDim.z;
    self.thread = nlfp_block() * per_block + in_block;
    self.threads = blocks * per_block;
    self.members = form == NLFK_THREAD ? 1 : form == NLFK_WARP ? 32 : per_block;
    self.unit = self.thread / self.members;
    self.units = self.threads / self.members;
    self.member = self.thread % self.members;
    return self;
}

#define NLFK_KERNEL(name)                                                                                              \
    extern "C" __global__ void nlfk_kernel_##name(nlfk_args args) {                                                    \
        const nlfk_self self = nlfk_who(args.form);                                                                    \
        nlfk_##name(&args, &self);                                                                                     \
    }
NLFK_ALL(NLFK_KERNEL)
