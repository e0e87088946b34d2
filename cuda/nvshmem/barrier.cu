// barrier: all PEs meet, and what was sent before has arrived.
//
// In every round each PE puts the round's number into a word of every PE, without waiting for it.
// After the barrier all words hold the number. Done with barriers called by the host, on a stream,
// and by a kernel's thread, warp and block; and after a quiet with sync, which completes nothing.
//
// The kernel's own barriers can be left out with --device 0: NVSHMEM does not say whether they work
// where several PEs share a GPU without MPS.
#include "device.cuh"

using namespace prog;

namespace {

constexpr int kThreads = 64;

__device__ void tell_all(uint64_t *words, uint64_t round) {
    const int me = nvshmem_my_pe();
    for (int pe = 0; pe < nvshmem_n_pes(); pe++) {
        nvshmem_uint64_p(&words[me], round, pe);
    }
}

__device__ void check_all(const uint64_t *words, uint64_t round, Finding *finding) {
    const volatile uint64_t *told = words;
    for (int pe = 0; pe < nvshmem_n_pes(); pe++) {
        const uint64_t seen = told[pe];
        if (seen != round) {
            report(finding, round, pe, seen, round);
        }
    }
}

__global__ void tell(uint64_t *words, uint64_t round, bool quiet) {
    tell_all(words, round);
    if (quiet) {
        nvshmem_quiet();
    }
}

__global__ void check(const uint64_t *words, uint64_t round, Finding *finding) {
    check_all(words, round, finding);
}

enum class Meeting { host_barrier, host_sync, stream_barrier };

// Rounds as three steps: a kernel that tells, a meeting, and a kernel that looks.
void verify_from_host(Job &job, Meeting meeting, const char *name, uint64_t rounds) {
    Symmetric<uint64_t> words(job, job.n_pes());
    Mapped<Finding> finding(job);
    for (uint64_t round = 1; round <= rounds; round++) {
        launch(job, tell, 1, 1, words.get(), round, meeting == Meeting::host_sync);
        switch (meeting) {
            case Meeting::host_barrier: job.barrier(); break;
            case Meeting::host_sync:
                job.synchronize();
                nvshmem_sync_all();
                break;
            case Meeting::stream_barrier: nvshmemx_barrier_all_on_stream(job.stream()); break;
        }
        launch(job, check, 1, 1, words.get(), round, finding.device());
        // Nobody tells of the next round before all have looked.
        job.barrier();
    }
    check_finding(job, name, "word of PE", *finding);
}

template <Scope kScope, bool kSync>
__device__ void meet() {
    if constexpr (kScope == Scope::thread) {
        kSync ? nvshmem_sync_all() : nvshmem_barrier_all();
    } else if constexpr (kScope == Scope::warp) {
        kSync ? nvshmemx_sync_all_warp() : nvshmemx_barrier_all_warp();
    } else {
        kSync ? nvshmemx_sync_all_block() : nvshmemx_barrier_all_block();
    }
}

// One block, of as many threads as the scope has.
template <Scope kScope, bool kSync>
__global__ void meet_in_rounds(uint64_t *words, uint64_t rounds, Finding *finding) {
    for (uint64_t round = 1; round <= rounds; round++) {
        if (threadIdx.x == 0) {
            tell_all(words, round);
            if (kSync) {
                nvshmem_quiet();
            }
        }
        __syncthreads();
        meet<kScope, kSync>();
        if (threadIdx.x == 0) {
            check_all(words, round, finding);
        }
        __syncthreads();
        meet<kScope, kSync>();
    }
}

// Meetings alone, for their time.
template <Scope kScope, bool kSync>
__global__ void meet_often(int times) {
    for (int i = 0; i < times; i++) {
        meet<kScope, kSync>();
    }
}

template <Scope kScope, bool kSync>
void verify_in_kernel(Job &job, uint64_t rounds) {
    Symmetric<uint64_t> words(job, job.n_pes());
    Mapped<Finding> finding(job);
    launch_together(job, meet_in_rounds<kScope, kSync>, 1, group_size<kScope>(kThreads),
                    words.get(), rounds, finding.device());
    job.barrier();
    check_finding(
        job,
        std::string(kSync ? "sync_all" : "barrier_all") + " by " + name_of(kScope) + " in a kernel",
        "word of PE", *finding);
}

template <Scope kScope, bool kSync>
void measure_in_kernel(Job &job, uint64_t iterations, const Table &table) {
    job.barrier();
    const double microseconds = timed(job, iterations, [&](int times) {
        launch_together(job, meet_often<kScope, kSync>, 1, group_size<kScope>(kThreads), times);
    });
    table.row(0, std::string(kSync ? "sync, " : "barrier, ") + name_of(kScope), microseconds);
}

template <class Meet>
void measure_from_host(Job &job, uint64_t iterations, const char *name, const Table &table,
                       Meet &&meet) {
    job.barrier();
    const auto begin = std::chrono::steady_clock::now();
    for (uint64_t i = 0; i < iterations; i++) {
        meet();
    }
    job.synchronize();
    const std::chrono::duration<double, std::micro> taken =
        std::chrono::steady_clock::now() - begin;
    table.row(0, name, taken.count() / double(iterations));
}

}  // namespace

int main(int argc, char **argv) {
    uint64_t rounds = 10, iterations = 20, device = 1;
    parse_or_exit(argc, argv, "barrier", "Barriers and syncs by host, stream and kernel.",
                  {{"rounds", "checked rounds of each kind", &rounds, 1, 100'000},
                   {"iters", "timed meetings of each kind", &iterations, 1, 1'000'000},
                   {"device", "0: without those that a kernel calls", &device, 0, 1}});
    Job job("barrier");
    verify_from_host(job, Meeting::host_barrier, "barrier_all by the host", rounds);
    verify_from_host(job, Meeting::host_sync, "quiet, then sync_all by the host", rounds);
    verify_from_host(job, Meeting::stream_barrier, "barrier_all on a stream", rounds);
    if (device == 1) {
        verify_in_kernel<Scope::thread, false>(job, rounds);
        verify_in_kernel<Scope::warp, false>(job, rounds);
        verify_in_kernel<Scope::block, false>(job, rounds);
        verify_in_kernel<Scope::thread, true>(job, rounds);
        verify_in_kernel<Scope::block, true>(job, rounds);
    }

    const Table table(job, "one meeting of all PEs", kLatency);
    measure_from_host(job, iterations, "barrier, host", table, [] { nvshmem_barrier_all(); });
    measure_from_host(job, iterations, "sync, host", table, [] { nvshmem_sync_all(); });
    measure_from_host(job, iterations, "barrier, stream", table,
                      [&] { nvshmemx_barrier_all_on_stream(job.stream()); });
    if (device == 1) {
        measure_in_kernel<Scope::thread, false>(job, iterations, table);
        measure_in_kernel<Scope::block, false>(job, iterations, table);
        measure_in_kernel<Scope::block, true>(job, iterations, table);
    }
    return job.finish();
}
