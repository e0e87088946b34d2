// What kernels find wrong, and the patterns of bytes that they send and look for.
#pragma once

#include <cstdint>
#include <string>

#include "pattern.h"

namespace prog {

// Nanoseconds of the GPU's clock. It may advance in steps of a microsecond.
__device__ inline uint64_t now_ns() {
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

// How long a kernel waits in loops of its own before it reports that nothing came.
constexpr uint64_t kPatienceNs = 20'000'000'000;

// What a kernel found wrong: how often, and the first case.
struct Finding {
    unsigned long long count;
    unsigned long long place;
    unsigned long long got;
    unsigned long long expected;
    unsigned long long round;
};

// Notes one wrong value; any thread. Which one is first among threads is left to chance.
__device__ inline void report(Finding *finding, uint64_t round, uint64_t place, uint64_t got,
                              uint64_t expected) {
    if (atomicAdd(&finding->count, 1ULL) == 0) {
        finding->place = place;
        finding->got = got;
        finding->expected = expected;
        finding->round = round;
        __threadfence_system();
    }
}

// Tells the job of what a kernel that is over has found, and forgets it.
template <class Job>
void check_finding(Job &job, const std::string &what, const char *place, Finding &finding) {
    if (finding.count > 0) {
        job.fail(what + ": round " + std::to_string(finding.round) + ", " + place + " " +
                 std::to_string(finding.place) + ": got " + std::to_string(finding.got) +
                 ", expected " + std::to_string(finding.expected) + "; " +
                 std::to_string(finding.count) + " are wrong");
    }
    finding = Finding{};
}

// Fills a buffer with a pattern, by all threads of a block, visible to whoever sends it.
__device__ inline void fill_pattern(uint8_t *buffer, size_t bytes, uint64_t seed) {
    for (size_t i = threadIdx.x; i < bytes; i += blockDim.x) {
        buffer[i] = pattern(seed, i);
    }
    __threadfence_system();
    __syncthreads();
}

// Compares a buffer with a pattern, by all threads of a block.
__device__ inline void check_pattern(const uint8_t *buffer, size_t bytes, uint64_t seed,
                                     uint64_t round, Finding *finding) {
    // Volatile: the bytes came from outside this kernel, while it ran.
    const volatile uint8_t *received = buffer;
    for (size_t i = threadIdx.x; i < bytes; i += blockDim.x) {
        const uint8_t got = received[i];
        if (got != pattern(seed, i)) {
            report(finding, round, i, got, pattern(seed, i));
        }
    }
}

}  // namespace prog
