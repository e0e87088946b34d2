// on-stream: puts, gets and signals in the order of a CUDA stream, between the kernels of the
// program.
//
// The host puts kernels and transfers on one stream and does not wait between them: a kernel fills
// the source, the transfer follows, the source is filled anew. What arrives tells whether the order
// held. Waiting for a signal on a stream is refused where several PEs share a GPU without MPS;
// there a barrier on the stream stands in for it, and the program says so.
#include "job.h"

using namespace prog;

namespace {

constexpr int kThreads = 256;

__global__ void fill(uint8_t *buffer, size_t bytes, uint64_t seed) {
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < bytes; i += gridDim.x * blockDim.x) {
        buffer[i] = pattern(seed, i);
    }
}

void fill_on_stream(Job &job, uint8_t *buffer, size_t bytes, uint64_t seed) {
    const size_t blocks = std::min<size_t>((bytes + kThreads - 1) / kThreads, 64);
    fill<<<unsigned(blocks), kThreads, 0, job.stream()>>>(buffer, bytes, seed);
    job.require(cudaGetLastError(), "kernel launch");
}

struct Buffers {
    Symmetric<uint8_t> source;
    Symmetric<uint8_t> dest;
    Symmetric<uint64_t> set;    // by SET
    Symmetric<uint64_t> added;  // by ADD
    Buffers(Job &job, size_t bytes)
        : source(job, bytes), dest(job, bytes), set(job, 1), added(job, 1) {}
};

void check_received(Job &job, Buffers &buffers, const std::string &what, int from, uint64_t round,
                    size_t bytes) {
    std::vector<uint8_t> expected = pattern_bytes(seed_of(from, round), bytes);
    expected.resize(buffers.dest.count(), kUntouched);
    job.check(what + ", " + std::to_string(bytes) + " bytes from PE " + std::to_string(from),
              buffers.dest.read(), expected);
}

void begin_round(Job &job, Buffers &buffers) {
    buffers.dest.fill(kUntouched);
    job.barrier();
}

void verify_put(Job &job, Buffers &buffers, size_t bytes, bool nbi, uint64_t round) {
    begin_round(job, buffers);
    uint8_t *source = buffers.source.get();
    fill_on_stream(job, source, bytes, seed_of(job.pe(), round));
    if (nbi) {
        nvshmemx_putmem_nbi_on_stream(buffers.dest.get(), source, bytes, job.next(), job.stream());
        nvshmemx_quiet_on_stream(job.stream());
    } else {
        nvshmemx_putmem_on_stream(buffers.dest.get(), source, bytes, job.next(), job.stream());
    }
    // The put has read its source by now, so this must not be seen.
    fill_on_stream(job, source, bytes, seed_of(job.pe(), round + 1'000'000));
    nvshmemx_barrier_all_on_stream(job.stream());
    check_received(job, buffers, nbi ? "put_nbi" : "put", job.previous(), round, bytes);
}

void verify_get(Job &job, Buffers &buffers, size_t bytes, bool nbi, uint64_t round) {
    begin_round(job, buffers);
    fill_on_stream(job, buffers.source.get(), bytes, seed_of(job.pe(), round));
    nvshmemx_barrier_all_on_stream(job.stream());
    if (nbi) {
        nvshmemx_getmem_nbi_on_stream(buffers.dest.get(), buffers.source.get(), bytes, job.next(),
                                      job.stream());
        nvshmemx_quiet_on_stream(job.stream());
    } else {
        nvshmemx_getmem_on_stream(buffers.dest.get(), buffers.source.get(), bytes, job.next(),
                                  job.stream());
    }
    // Nothing else completes it: what is read now is what the stream has promised.
    check_received(job, buffers, nbi ? "get_nbi" : "get", job.next(), round, bytes);
    job.barrier();
}

// Whether a stream may wait for a signal in this run.
bool can_wait_on_stream() {
    return nvshmemx_init_status() != NVSHMEM_STATUS_LIMITED_MPG;
}

void wait_on_stream(Job &job, uint64_t *word, uint64_t value) {
    if (can_wait_on_stream()) {
        nvshmemx_signal_wait_until_on_stream(word, NVSHMEM_CMP_GE, value, job.stream());
    } else {
        nvshmemx_barrier_all_on_stream(job.stream());
    }
}

// What rounds with signals have sent so far; words with signals only grow.
struct Progress {
    uint64_t set = 0;
    uint64_t added = 0;
};

void verify_put_signal(Job &job, Buffers &buffers, size_t bytes, int operation, Progress &progress,
                       uint64_t round) {
    const bool adds = operation == NVSHMEM_SIGNAL_ADD;
    uint64_t *word = adds ? buffers.added.get() : buffers.set.get();
    uint64_t &count = adds ? progress.added : progress.set;
    count++;
    begin_round(job, buffers);
    fill_on_stream(job, buffers.source.get(), bytes, seed_of(job.pe(), round));
    nvshmemx_putmem_signal_on_stream(buffers.dest.get(), buffers.source.get(), bytes, word,
                                     adds ? 1 : count, operation, job.next(), job.stream());
    wait_on_stream(job, word, count);
    const std::string what = adds ? "put_signal, ADD" : "put_signal, SET";
    check_received(job, buffers, what, job.previous(), round, bytes);
    const uint64_t seen = nvshmem_signal_fetch(word);
    if (seen != count) {
        job.fail(what + ": the signal is " + std::to_string(seen) + ", expected " +
                 std::to_string(count));
    }
    job.barrier();
}

// Counts the bytes that are not what the seed says.
__global__ void count_wrong(const uint8_t *buffer, size_t bytes, uint64_t seed,
                            unsigned long long *wrong) {
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < bytes; i += gridDim.x * blockDim.x) {
        if (buffer[i] != pattern(seed, i)) {
            atomicAdd(wrong, 1);
        }
    }
}

// Puts that nothing but their signal says the end of. What arrived is looked at on the stream the
// moment the signal is seen: data that comes after its signal is found as stale.
void verify_put_signal_nbi(Job &job, Buffers &buffers, size_t bytes, int operation,
                           uint64_t rounds, Progress &progress, uint64_t first) {
    const bool adds = operation == NVSHMEM_SIGNAL_ADD;
    uint64_t *word = adds ? buffers.added.get() : buffers.set.get();
    uint64_t &count = adds ? progress.added : progress.set;
    Symmetric<unsigned long long> wrong(job, rounds);
    begin_round(job, buffers);
    const size_t blocks = std::min<size_t>((bytes + kThreads - 1) / kThreads, 64);
    for (uint64_t i = 0; i < rounds; i++) {
        count++;
        fill_on_stream(job, buffers.source.get(), bytes, seed_of(job.pe(), first + i));
        nvshmemx_putmem_signal_nbi_on_stream(buffers.dest.get(), buffers.source.get(), bytes, word,
                                             adds ? 1 : count, operation, job.next(), job.stream());
        wait_on_stream(job, word, count);
        count_wrong<<<unsigned(blocks), kThreads, 0, job.stream()>>>(
            buffers.dest.get(), bytes, seed_of(job.previous(), first + i), wrong.get() + i);
        job.require(cudaGetLastError(), "kernel launch");
        // The source is filled anew, and the peer's data looked at, before the next round.
        nvshmemx_quiet_on_stream(job.stream());
        nvshmemx_barrier_all_on_stream(job.stream());
    }
    job.synchronize();
    uint64_t stale = 0, most = 0;
    for (const unsigned long long bad : wrong.read()) {
        stale += bad != 0;
        most = std::max<uint64_t>(most, bad);
    }
    if (stale != 0) {
        job.fail(std::string("put_signal_nbi, ") + (adds ? "ADD" : "SET") + ", " +
                 std::to_string(bytes) + " bytes: the signal came before its data in " +
                 std::to_string(stale) + " of " + std::to_string(rounds) + " rounds, up to " +
                 std::to_string(most) + " bytes were stale");
    }
}

void verify_signal(Job &job, Buffers &buffers, Progress &progress) {
    progress.set++;
    progress.added += 5;
    nvshmemx_signal_op_on_stream(buffers.set.get(), progress.set, NVSHMEM_SIGNAL_SET, job.next(),
                                 job.stream());
    nvshmemx_signal_op_on_stream(buffers.added.get(), 5, NVSHMEM_SIGNAL_ADD, job.next(),
                                 job.stream());
    wait_on_stream(job, buffers.set.get(), progress.set);
    wait_on_stream(job, buffers.added.get(), progress.added);
    job.synchronize();
    const uint64_t set = nvshmem_signal_fetch(buffers.set.get());
    const uint64_t added = nvshmem_signal_fetch(buffers.added.get());
    if (set != progress.set || added != progress.added) {
        job.fail("signal_op: the signals are " + std::to_string(set) + " and " +
                 std::to_string(added) + ", expected " + std::to_string(progress.set) + " and " +
                 std::to_string(progress.added));
    }
    job.barrier();
}

void verify_all(Job &job, uint64_t highest, uint64_t rounds) {
    if (!can_wait_on_stream() && job.pe() == 0) {
        std::printf(
            "# on-stream: several PEs share a GPU without MPS; barriers stand in for "
            "signal_wait_until_on_stream\n");
    }
    Buffers buffers(job, highest + 64);
    Progress progress;
    uint64_t round = 0;
    for (const size_t bytes : {uint64_t(1), uint64_t(4099), highest}) {
        for (const bool nbi : {false, true}) {
            verify_put(job, buffers, bytes, nbi, ++round);
            verify_get(job, buffers, bytes, nbi, ++round);
        }
        for (const int operation : {NVSHMEM_SIGNAL_SET, NVSHMEM_SIGNAL_ADD}) {
            verify_put_signal(job, buffers, bytes, operation, progress, ++round);
        }
    }
    for (const size_t bytes : {uint64_t(8), uint64_t(4096), uint64_t(65536), highest}) {
        for (const int operation : {NVSHMEM_SIGNAL_SET, NVSHMEM_SIGNAL_ADD}) {
            verify_put_signal_nbi(job, buffers, bytes, operation, rounds, progress, round + 1);
            round += rounds;
        }
    }
    verify_signal(job, buffers, progress);
}

void measure(Job &job, const std::vector<uint64_t> &sizes, uint64_t iterations) {
    Symmetric<uint8_t> source(job, sizes.back()), dest(job, sizes.back());
    job.on_pe_0([&] {
        const Table table(job, "one transfer on a stream, PE 0 and PE 1", kLatency);
        for (const uint64_t bytes : sizes) {
            table.row(bytes, "put", timed(job, iterations, [&](int count) {
                          for (int i = 0; i < count; i++) {
                              nvshmemx_putmem_on_stream(dest.get(), source.get(), bytes, job.next(),
                                                        job.stream());
                          }
                      }));
            table.row(bytes, "get", timed(job, iterations, [&](int count) {
                          for (int i = 0; i < count; i++) {
                              nvshmemx_getmem_on_stream(dest.get(), source.get(), bytes, job.next(),
                                                        job.stream());
                          }
                      }));
        }
    });
}

}  // namespace

int main(int argc, char **argv) {
    uint64_t lowest = 4, highest = 1 << 20, iterations = 20, rounds = 20, longest = 300'007;
    parse_or_exit(argc, argv, "on-stream", "Puts, gets and signals in the order of a CUDA stream.",
                  {{"min", "smallest size in bytes", &lowest, 1, 1 << 28},
                   {"max", "largest size in bytes", &highest, 1, 1 << 28},
                   {"iters", "timed operations per size", &iterations, 1, 1'000'000},
                   {"rounds", "checked puts with signal per size", &rounds, 1, 1'000'000},
                   {"checked", "largest size that is checked", &longest, 65536, 1 << 28}});
    Job job("on-stream");
    verify_all(job, longest, rounds);
    measure(job, sizes_between(lowest, highest), iterations);
    return job.finish();
}
