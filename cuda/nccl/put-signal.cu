// put-signal: NCCL's host calls, ncclPutSignal, ncclSignal and ncclWaitSignal, every byte checked.
//
// Every rank puts to the next one on its stream, in pieces of random sizes, and waits there for
// what comes from the one before.
#include <random>

#include "job.h"

using namespace prog;

namespace {

struct Buffers {
    Window source, data;
    Buffers(Job &job, size_t bytes) : source(job, bytes), data(job, bytes) {}
};

void wait_for(Job &job, int signals) {
    ncclWaitSignalDesc_t from_previous{signals, job.previous(), 0, 0};
    job.require(ncclWaitSignal(1, &from_previous, job.comm(), job.stream()), "ncclWaitSignal");
}

// The cuts are the same on all ranks: each knows how many signals come.
void verify(Job &job, Buffers &buffers, size_t bytes, uint64_t round) {
    std::mt19937_64 dice(round);
    buffers.source.write(pattern_bytes(seed_of(job.rank(), round), bytes));
    buffers.data.fill(kUntouched);
    job.barrier();
    int signals = 0;
    for (size_t at = 0; at < bytes; signals++) {
        const size_t piece = std::min<size_t>(bytes - at, 1 + dice() % bytes);
        job.require(ncclPutSignal(buffers.source.get() + at, piece, ncclUint8, job.next(),
                                  buffers.data.window(), at, 0, 0, 0, job.comm(), job.stream()),
                    "ncclPutSignal");
        at += piece;
    }
    // One without data as well.
    job.require(ncclSignal(job.next(), 0, 0, 0, job.comm(), job.stream()), "ncclSignal");
    wait_for(job, signals + 1);
    job.synchronize();
    std::vector<uint8_t> expected = pattern_bytes(seed_of(job.previous(), round), bytes);
    const std::vector<uint8_t> got = buffers.data.read();
    expected.resize(got.size(), kUntouched);
    job.check(std::to_string(bytes) + " bytes in " + std::to_string(signals) + " puts from rank " +
                  std::to_string(job.previous()),
              got, expected);
    job.barrier();
}

// Ping-pong between ranks 0 and 1: microseconds one way.
double one_way(Job &job, Buffers &buffers, size_t bytes, int iterations) {
    job.barrier();
    cudaEvent_t begin, end;
    job.require(cudaEventCreate(&begin), "cudaEventCreate");
    job.require(cudaEventCreate(&end), "cudaEventCreate");
    job.require(cudaEventRecord(begin, job.stream()), "cudaEventRecord");
    for (int i = 0; i < iterations && job.rank() < 2; i++) {
        const int peer = 1 - job.rank();
        const auto put = [&] {
            job.require(ncclPutSignal(buffers.source.get(), bytes, ncclUint8, peer,
                                      buffers.data.window(), 0, 0, 0, 0, job.comm(), job.stream()),
                        "ncclPutSignal");
        };
        const auto wait = [&] {
            ncclWaitSignalDesc_t from_peer{1, peer, 0, 0};
            job.require(ncclWaitSignal(1, &from_peer, job.comm(), job.stream()), "ncclWaitSignal");
        };
        job.rank() == 0 ? (put(), wait()) : (wait(), put());
    }
    job.require(cudaEventRecord(end, job.stream()), "cudaEventRecord");
    job.synchronize();
    float milliseconds = 0;
    job.require(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
    job.require(cudaEventDestroy(begin), "cudaEventDestroy");
    job.require(cudaEventDestroy(end), "cudaEventDestroy");
    return milliseconds * 1e3 / iterations / 2;
}

}  // namespace

int main(int argc, char **argv) {
    uint64_t rounds = 20, bytes = 4 << 20, iterations = 100;
    parse_or_exit(argc, argv, "put-signal",
                  "NCCL's puts with signal by the host, every byte checked.",
                  {{"rounds", "rounds of each size", &rounds, 1, 1 << 20},
                   {"max", "largest data, in bytes", &bytes, 8, 1 << 30},
                   {"iters", "iterations of a measurement, 0 for none", &iterations, 0, 1 << 20}});
    Job job("put-signal");
    ncclCommProperties_t properties = NCCL_COMM_PROPERTIES_INITIALIZER;
    job.require(ncclCommQueryProperties(job.comm(), &properties), "ncclCommQueryProperties");
    if (!properties.hostRmaSupport) {
        job.skip("RMA by the host: NCCL_DEBUG=INFO says why");
    }
    {
        // The bytes behind the largest show what writes too far.
        Buffers buffers(job, bytes + 64);
        uint64_t round = 0;
        for (const uint64_t size : {uint64_t(1), uint64_t(1000), uint64_t(65536), bytes}) {
            for (uint64_t i = 0; i < rounds && size <= bytes; i++) {
                verify(job, buffers, size, ++round);
            }
        }
        for (const uint64_t size : {uint64_t(8), uint64_t(4096), uint64_t(1) << 20, bytes}) {
            if (iterations == 0 || size > bytes) {
                continue;
            }
            one_way(job, buffers, size, int(iterations / 10 + 1));
            const double microseconds = one_way(job, buffers, size, int(iterations));
            if (job.rank() == 0) {
                std::printf("%12llu  ncclPutSignal one way  %10.2f us\n", (unsigned long long)size,
                            microseconds);
            }
        }
        job.barrier();
    }
    return job.finish();
}
