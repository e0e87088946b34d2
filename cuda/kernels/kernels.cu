/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels, by the names nlfk_kernel_<body>, and what only a GPU can measure. */

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

static __device__ __forceinline__ uint64_t nlfk_nanoseconds() {
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
    return now;
}

/* The most rounds of an echo. */
#define NLFK_ECHOES 4000

/*
 * How long from a push to its echo: the CPU sees the descriptor and sets the word `heap[0]`, in its
 * own memory, to the round. One thread. out[0]: a look at that word alone, in cycles, the mean of
 * `rounds`. out[1]: cycles in a nanosecond, as the mean of all, times 1000. out[2 + r]: cycles of
 * round r, from the call of the push. out[2 + rounds]: cycles of the push itself, the mean: until
 * its stores are issued, which nobody waits for.
 */
extern "C" __global__ void nlfk_kernel_echo(nlfk_args args) {
    /* Told at the end: a store across the bus is one that the next fence would wait for. */
    __shared__ uint32_t cycles[NLFK_ECHOES];
    const uint64_t *echo = args.heap;
    char *base = (char *)args.heap;
    const uint64_t began_ns = nlfk_nanoseconds();
    const long long began = clock64();
    uint64_t sum = 0;
    for (uint64_t round = 0; round < args.rounds; round++) {
        sum += nlfp_load_acquire64(echo);
    }
    args.out[0] = (uint64_t)(clock64() - began) / args.rounds + (sum == 1);
    uint64_t pushing = 0;
    for (uint64_t round = 1; round <= args.rounds; round++) {
        const long long before = clock64();
        const int status = nlf_put_nbi(args.ctx, base, base + round, 1, 0, args.flags);
        if (status != NLF_OK) {
            args.status[0] = status;
            return;
        }
        pushing += (uint64_t)(clock64() - before);
        /* Bounded: the echo is asked for once, so a CPU that is gone would leave this here for
         * ever. */
        for (uint64_t looks = 0; nlfp_load_acquire64(echo) < round; looks++) {
            if (looks > 100000000) {
                args.status[0] = NLF_ERROR_STUCK;
                return;
            }
        }
        if (round <= NLFK_ECHOES) {
            cycles[round - 1] = (uint32_t)(clock64() - before);
        }
    }
    const uint64_t nanoseconds = nlfk_nanoseconds() - began_ns;
    args.out[1] = nanoseconds == 0 ? 0 : (uint64_t)(clock64() - began) * 1000 / nanoseconds;
    args.out[2 + args.rounds] = pushing / args.rounds;
    for (uint64_t round = 0; round < args.rounds && round < NLFK_ECHOES; round++) {
        args.out[2 + round] = cycles[round];
    }
}
