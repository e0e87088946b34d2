// What the kernels share: launches, scopes, and waits that end.
#pragma once

#include <nvshmem.h>
#include <nvshmemx.h>

#include <tuple>

#include "finding.cuh"
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

}  // namespace prog
