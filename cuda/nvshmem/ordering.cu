// ordering: what fence and quiet promise, and no more.
//
// Fence: what a PE puts after it does not reach the same PE before what it has put ahead of it. The
// sender stores rows of ever larger numbers, each followed by a fence and the number as a flag; the
// reader never sees a flag that is ahead of the row.
//
// Quiet: what a PE has put before it is in the target's memory. The sender gets it back at once.
#include "device.cuh"

using namespace prog;

namespace {

constexpr int kThreads = 128;

enum class Flag { p, signal, atomic };

const char *name_of(Flag flag) {
    return flag == Flag::p ? "p" : flag == Flag::signal ? "signal" : "atomic";
}

struct Row {
    uint64_t *source;  // a row for each number, since puts that do not wait read it later
    uint64_t *dest;
    size_t words;
    uint64_t *flag;
};

// The sender's part: thread 0 of the first block.
__device__ void send(Row row, Flag kind, int numbers, int pe) {
    for (int number = 1; number <= numbers; number++) {
        nvshmem_putmem_nbi(row.dest, row.source + (number - 1) * row.words,
                           row.words * sizeof(uint64_t), pe);
        nvshmem_fence();
        switch (kind) {
            case Flag::p: nvshmem_uint64_p(row.flag, uint64_t(number), pe); break;
            case Flag::signal:
                nvshmemx_signal_op(row.flag, uint64_t(number), NVSHMEM_SIGNAL_SET, pe);
                break;
            case Flag::atomic: nvshmem_uint64_atomic_inc(row.flag, pe); break;
        }
    }
    nvshmem_quiet();
}

// The reader's part: all threads of the second block.
__device__ void watch(Row row, int numbers, Finding *finding) {
    __shared__ uint64_t flag;
    __shared__ bool late;
    for (uint64_t seen = 0; seen < uint64_t(numbers);) {
        if (threadIdx.x == 0) {
            late = !wait_at_least(row.flag, seen + 1);
            flag = nvshmem_signal_fetch(row.flag);
            // The row is read after the flag, by whichever thread.
            __threadfence_system();
            if (late) {
                report(finding, seen + 1, 0, flag, seen + 1);
            }
        }
        __syncthreads();
        const uint64_t now = flag;
        if (late) {
            return;
        }
        const volatile uint64_t *words = row.dest;
        for (size_t i = threadIdx.x; i < row.words; i += blockDim.x) {
            const uint64_t word = words[i];
            if (word < now || word > uint64_t(numbers)) {
                report(finding, now, i, word, now);
            }
        }
        seen = now;
        __syncthreads();
    }
}

// Two blocks: one sends to the next PE, the other watches what the previous one sends.
__global__ void send_and_watch(Row row, Flag kind, int numbers, Finding *finding) {
    const int next = (nvshmem_my_pe() + 1) % nvshmem_n_pes();
    if (blockIdx.x == 1) {
        watch(row, numbers, finding);
    } else if (threadIdx.x == 0) {
        send(row, kind, numbers, next);
    }
}

// One block: puts in pieces that do not wait, a quiet, and all of it gotten back.
__global__ void put_quiet_get(uint8_t *dest, uint8_t *source, uint8_t *back, size_t bytes, int pe,
                              uint64_t begin, int rounds, Finding *finding) {
    const size_t piece = (bytes + blockDim.x - 1) / blockDim.x;
    for (uint64_t round = begin + 1; round <= begin + rounds; round++) {
        const uint64_t seed = seed_of(nvshmem_my_pe(), round);
        fill_pattern(source, bytes, seed);
        const size_t at = threadIdx.x * piece;
        if (at < bytes) {
            nvshmem_putmem_nbi(dest + at, source + at, min(piece, bytes - at), pe);
        }
        nvshmem_quiet();
        // Every thread's puts are complete when its own quiet is over.
        __syncthreads();
        if (threadIdx.x == 0) {
            nvshmem_getmem(back, dest, bytes, pe);
        }
        __syncthreads();
        check_pattern(back, bytes, seed, round, finding);
        __syncthreads();
    }
}

void verify_fence(Job &job, Flag kind, size_t words, int numbers) {
    Symmetric<uint64_t> source(job, words * numbers), dest(job, words), flag(job, 1);
    Mapped<Finding> finding(job);
    std::vector<uint64_t> rows(words * numbers);
    for (size_t i = 0; i < rows.size(); i++) {
        rows[i] = i / words + 1;
    }
    source.write(rows);
    job.barrier();
    const Row row{source.get(), dest.get(), words, flag.get()};
    launch_together(job, send_and_watch, 2, kThreads, row, kind, numbers, finding.device());
    job.barrier();
    const std::string what = std::string("fence before a flag by ") + name_of(kind) + ", rows of " +
                             std::to_string(words) + " words";
    check_finding(job, what, "word", *finding);
    if (flag.read()[0] != uint64_t(numbers) ||
        dest.read() != std::vector<uint64_t>(words, numbers)) {
        job.fail(what + ": the last row or its flag has not arrived");
    }
}

void verify_quiet(Job &job, size_t bytes, int rounds) {
    Symmetric<uint8_t> source(job, bytes), dest(job, bytes), back(job, bytes);
    Mapped<Finding> finding(job);
    launch(job, put_quiet_get, 1, kThreads, dest.get(), source.get(), back.get(), bytes, job.next(),
           uint64_t(0), rounds, finding.device());
    job.barrier();
    check_finding(job, "quiet, " + std::to_string(bytes) + " bytes", "byte", *finding);
}

// What a fence costs the one who calls it: puts of 8 bytes with and without one between each two.
__global__ void put_with_fences(uint64_t *dest, const uint64_t *source, int pe, bool fences,
                                int iterations) {
    for (int i = 0; i < iterations; i++) {
        nvshmem_putmem_nbi(dest, source, sizeof *dest, pe);
        if (fences) {
            nvshmem_fence();
        }
    }
    nvshmem_quiet();
}

void measure(Job &job, uint64_t iterations) {
    Symmetric<uint64_t> source(job, 1), dest(job, 1);
    job.on_pe_0([&] {
        const Table table(job, "a put of a row of them, one quiet at the end", kLatency);
        for (const bool fences : {false, true}) {
            table.row(sizeof(uint64_t), fences ? "put, fence" : "put",
                      timed(job, iterations, [&](int count) {
                          launch(job, put_with_fences, 1, 1, dest.get(), source.get(), job.next(),
                                 fences, count);
                      }));
        }
    });
}

}  // namespace

int main(int argc, char **argv) {
    uint64_t rounds = 50, iterations = 100;
    parse_or_exit(argc, argv, "ordering",
                  "What fence and quiet promise, seen by reader and sender.",
                  {{"rounds", "rows sent and quiets checked", &rounds, 1, 10'000},
                   {"iters", "timed operations", &iterations, 1, 1'000'000}});
    Job job("ordering");
    for (const Flag kind : {Flag::p, Flag::signal, Flag::atomic}) {
        for (const size_t words : {size_t(1), size_t(64), size_t(2048)}) {
            verify_fence(job, kind, words, int(rounds));
        }
    }
    for (const size_t bytes : {size_t(1), size_t(1000), size_t(100'000)}) {
        verify_quiet(job, bytes, int(rounds));
    }
    measure(job, iterations);
    return job.finish();
}
