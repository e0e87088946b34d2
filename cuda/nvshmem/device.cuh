// What the kernels share: launches, scopes, and waits that end.
#pragma once

#include <nvshmem.h>
#include <nvshmemx.h>

#include <tuple>

#include "job.h"

namespace prog {

// Who issues an operation: one thread, the 32 of a warp, or a whole block.
enum class Scope { thread, warp, block };

inline const char *name_of(Scope scope) {
    return scope == Scope::thread ? "thread" : scope == Scope::warp ? "warp" : "block";
}

// How many threads take part in one operation, in blocks of 'block' threads.
template <Scope kScope>
__host__ __device__ constexpr int group_size(int block) {
    return kScope == Scope::thread ? 1 : kScope == Scope::warp ? 32 : block;
}

// Runs a kernel that waits for no other PE's kernel, on the job's stream.
template <class... Parameters, class... Arguments>
void launch(Job &job, void (*kernel)(Parameters...), int blocks, int threads,
            Arguments... arguments) {
    kernel<<<blocks, threads, 0, job.stream()>>>(static_cast<Parameters>(arguments)...);
    job.require(cudaGetLastError(), "kernel launch");
}

// Runs a kernel that waits for what other PEs' kernels do. All PEs call it; NVSHMEM makes sure that
// all blocks run at the same time.
template <class... Parameters, class... Arguments>
void launch_together(Job &job, void (*kernel)(Parameters...), int blocks, int threads,
                     Arguments... arguments) {
    std::tuple<Parameters...> values(static_cast<Parameters>(arguments)...);
    std::apply(
        [&](auto &...value) {
            void *pointers[] = {&value...};
            const int status =
                nvshmemx_collective_launch(reinterpret_cast<const void *>(kernel), dim3(blocks),
                                           dim3(threads), pointers, 0, job.stream());
            if (status != 0) {
                job.give_up("nvshmemx_collective_launch: status " + std::to_string(status));
            }
        },
        values);
}

// Nanoseconds of the GPU's clock. It may advance in steps of a microsecond.
__device__ inline uint64_t now_ns() {
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

// How long a kernel waits in loops of its own before it reports that nothing came.
constexpr uint64_t kPatienceNs = 20'000'000'000;

// Waits until a symmetric word of this PE is at least 'value'. False when that takes too long.
__device__ inline bool wait_at_least(uint64_t *word, uint64_t value) {
    const uint64_t begin = now_ns();
    while (!nvshmem_uint64_test(word, NVSHMEM_CMP_GE, value)) {
        if (now_ns() - begin > kPatienceNs) {
            return false;
        }
    }
    return true;
}

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
inline void check_finding(Job &job, const std::string &what, const char *place, Finding &finding) {
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
