// gin-times: what a kernel's puts take over GIN: one way, in bulk, and as tokens to and fro.
#include <algorithm>

#include "../nvshmem/finding.cuh"
#include "job.h"

using namespace prog;

namespace {

constexpr int kThreads = 128;
constexpr int kMeetings = 16;

struct Windows {
    ncclWindow_t source, data;
};

// What signals hold before a kernel begins. No kernel reads that: a peer that is ahead may have
// sent the next one already.
struct Before {
    uint64_t ping = 0, bulk = 0, tokens = 0;
    // By block, on one context and on several: a signal's number means another one on each.
    uint64_t meetings[2][kMeetings] = {};
};

// Ranks 0 and 1 send one put with a strong signal to and fro.
__global__ void ping_pong(ncclDevComm comm, Windows windows, uint64_t seen, size_t bytes,
                          int iterations) {
    ncclGin gin{comm, 0};
    const ncclCoopCta block;
    const int peer = 1 - comm.rank;
    for (int i = 0; i < iterations; i++) {
        if (comm.rank == 1) {
            gin.waitSignal(block, 0, ++seen);
        }
        gin.put(ncclTeamWorld(comm), peer, windows.data, 0, windows.source, 0, bytes,
                ncclGin_StrongSignalInc{0}, ncclGin_None{}, block);
        if (comm.rank == 0) {
            gin.waitSignal(block, 0, ++seen);
        }
    }
    gin.flush(block);
}

// Rank 0 sends many puts with a signal behind the last; rank 1 answers once.
__global__ void bulk(ncclDevComm comm, Windows windows, uint64_t seen, size_t bytes, int puts) {
    ncclGin gin{comm, 0};
    const ncclCoopCta block;
    if (comm.rank == 0) {
        for (int i = 0; i < puts; i++) {
            gin.put(ncclTeamWorld(comm), 1, windows.data, 0, windows.source, 0, bytes,
                    ncclGin_None{}, ncclGin_None{}, block);
        }
        gin.signal(ncclTeamWorld(comm), 1, ncclGin_StrongSignalInc{1}, block);
        gin.waitSignal(block, 1, seen + 1);
    } else {
        gin.waitSignal(block, 1, seen + 1);
        gin.signal(ncclTeamWorld(comm), 0, ncclGin_StrongSignalInc{1}, block);
    }
    gin.flush(block);
}

// Each block of rank 0 meets its partner at rank 1: a signal there and one back, as in a barrier.
__global__ void meetings(ncclDevComm comm, Before before, ncclGinSignal_t first, int contexts,
                         int iterations) {
    ncclGin gin{comm, int(blockIdx.x) % contexts};
    const ncclCoopCta block;
    const bool several = contexts > 1;
    uint64_t seen = before.meetings[several][blockIdx.x];
    const ncclGinSignal_t signal = first + several * kMeetings + blockIdx.x;
    for (int i = 0; i < iterations; i++) {
        gin.signal(ncclTeamWorld(comm), 1 - comm.rank, ncclGin_StrongSignalInc{signal}, block);
        gin.waitSignal(block, signal, ++seen);
    }
    gin.flush(block);
}

// Puts one behind the other, each with its flush.
__global__ void put_and_flush(ncclDevComm comm, Windows windows, size_t bytes, int iterations) {
    ncclGin gin{comm, 0};
    const ncclCoopCta block;
    for (int i = 0; i < iterations && comm.rank == 0; i++) {
        gin.put(ncclTeamWorld(comm), 1, windows.data, 0, windows.source, 0, bytes, ncclGin_None{},
                ncclGin_None{}, block);
        gin.flush(block);
    }
}

// Rank 0 gets every second row of a table, and packs them, each block on a context of its own.
__global__ void gets(ncclDevComm comm, Windows windows, size_t bytes, int count) {
    ncclGin gin{comm, int(blockIdx.x)};
    const int threads = int(gridDim.x * blockDim.x);
    for (int row = int(blockIdx.x * blockDim.x + threadIdx.x); row < count && comm.rank == 0;
         row += threads) {
        gin.get(ncclTeamWorld(comm), 1, windows.source, 2 * row * bytes, windows.data, row * bytes,
                bytes);
    }
    __syncthreads();
    gin.flush(ncclCoopCta{});
}

// Each block sends its tokens to every other rank, from scattered places to places in a row, on
// its own context, and a strong signal behind them; then waits for those of the others.
__global__ void tokens(ncclDevComm comm, Windows windows, uint64_t seen, size_t bytes, int count,
                       int contexts) {
    const int context = int(blockIdx.x) % contexts;
    ncclGin gin{comm, context};
    const ncclCoopCta block;
    const ncclGinSignal_t signal = 2 + blockIdx.x;
    const int blocks = int(gridDim.x);
    for (int peer = 0; peer < comm.nRanks; peer++) {
        if (peer == comm.rank) {
            continue;
        }
        for (int token = int(blockIdx.x) + int(threadIdx.x) * blocks; token < count;
             token += blocks * int(blockDim.x)) {
            const size_t from = (token * size_t(7) % count) * bytes;
            const size_t to = (size_t(comm.rank) * count + token) * bytes;
            gin.put(ncclTeamWorld(comm), peer, windows.data, to, windows.source, from, bytes);
        }
        __syncthreads();
        gin.signal(ncclTeamWorld(comm), peer, ncclGin_StrongSignalInc{signal}, block);
    }
    gin.waitSignal(block, signal, seen + comm.nRanks - 1);
    gin.flush(block);
}

// Microseconds of what is put on the stream, between two meetings of all ranks.
template <class Start>
double timed(Job &job, Start &&start) {
    cudaEvent_t begin, end;
    job.require(cudaEventCreate(&begin), "cudaEventCreate");
    job.require(cudaEventCreate(&end), "cudaEventCreate");
    job.barrier();
    job.require(cudaEventRecord(begin, job.stream()), "cudaEventRecord");
    start();
    job.require(cudaGetLastError(), "kernel launch");
    job.require(cudaEventRecord(end, job.stream()), "cudaEventRecord");
    job.synchronize();
    float milliseconds = 0;
    job.require(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
    job.require(cudaEventDestroy(begin), "cudaEventDestroy");
    job.require(cudaEventDestroy(end), "cudaEventDestroy");
    return milliseconds * 1e3;
}

}  // namespace

int main(int argc, char **argv) {
    uint64_t iterations = 200, count = 128, bytes = 7168, most = 8 << 20, blocks = 8;
    parse_or_exit(argc, argv, "gin-times", "Times of GIN's puts with signal.",
                  {{"iters", "iterations of a measurement", &iterations, 1, 1 << 20},
                   {"max", "largest put, in bytes", &most, 8, 1 << 28},
                   {"tokens", "tokens to each rank", &count, 1, 1 << 16},
                   {"bytes", "of a token", &bytes, 1, 1 << 20},
                   {"blocks", "blocks that send tokens", &blocks, 1, 64}});
    Job job("gin-times");
    {
        Device device(job, 4, 2 + int(blocks) + 2 * kMeetings, 0);
        Window source(job, std::max<size_t>(most, count * bytes));
        Window data(job, std::max<size_t>(most, job.ranks() * count * bytes));
        const Windows windows{source.window(), data.window()};
        Before before;
        const auto say = [&](uint64_t size, const char *what, double microseconds) {
            if (job.rank() == 0) {
                std::printf("%12llu  %-28s %10.2f us\n", (unsigned long long)size, what,
                            microseconds);
            }
        };
        const bool plays = job.rank() < 2;
        for (const uint64_t size : {uint64_t(8), uint64_t(4096), uint64_t(1) << 20, most}) {
            double microseconds = 0;
            for (const int count : {int(iterations / 10 + 1), int(iterations)}) {
                microseconds = timed(job, [&] {
                    if (plays) {
                        ping_pong<<<1, kThreads, 0, job.stream()>>>(device.get(), windows,
                                                                    before.ping, size, count);
                    }
                });
                before.ping += uint64_t(count);
            }
            say(size, "put with signal one way", microseconds / double(iterations) / 2);
        }
        for (const int partners : {1, 4, kMeetings}) {
            for (const int contexts : {1, 4}) {
                if (contexts > std::min(partners, device.contexts())) {
                    continue;
                }
                // One meeting each before, in which everything is found for the first time.
                double microseconds = 0;
                for (const int count : {1, int(iterations)}) {
                    microseconds = timed(job, [&] {
                        if (plays) {
                            meetings<<<partners, 32, 0, job.stream()>>>(
                                device.get(), before, ncclGinSignal_t(2 + blocks), contexts, count);
                        }
                    });
                    for (int i = 0; i < partners; i++) {
                        before.meetings[contexts > 1][i] += uint64_t(count);
                    }
                }
                char what[64];
                std::snprintf(what, sizeof what, "block(s) meet on %d context(s)", contexts);
                say(uint64_t(partners), what, microseconds / double(iterations));
            }
        }
        for (const uint64_t size : {uint64_t(8), uint64_t(4096)}) {
            const double microseconds = timed(job, [&] {
                put_and_flush<<<1, kThreads, 0, job.stream()>>>(device.get(), windows, size,
                                                                int(iterations));
            });
            say(size, "put and its flush", microseconds / double(iterations));
        }
        constexpr uint64_t kRow = 256;
        const int rows = int(std::min<uint64_t>(12'288, most / kRow / 2));
        for (const int contexts : {1, 4}) {
            if (contexts > device.contexts()) {
                continue;
            }
            double fastest = 0;
            for (int i = 0; i < 4; i++) {
                const double microseconds = timed(job, [&] {
                    gets<<<contexts, kThreads, 0, job.stream()>>>(device.get(), windows, kRow,
                                                                  rows);
                });
                fastest = i == 0 ? microseconds : std::min(fastest, microseconds);
            }
            char what[64];
            std::snprintf(what, sizeof what, "gets of 256 B on %d context(s)", contexts);
            say(uint64_t(rows), what, fastest);
        }
        const int puts = 16;
        double best = 0;
        for (int i = 0; i < 4; i++) {
            const double microseconds = timed(job, [&] {
                if (plays) {
                    bulk<<<1, kThreads, 0, job.stream()>>>(device.get(), windows, before.bulk, most,
                                                           puts);
                }
            });
            before.bulk++;
            best = i == 0 ? microseconds : std::min(best, microseconds);
        }
        say(most, "put in bulk", best / puts);
        std::vector<double> times;
        for (uint64_t i = 0; i < iterations / 4 + 3; i++) {
            times.push_back(timed(job, [&] {
                tokens<<<int(blocks), kThreads, 0, job.stream()>>>(device.get(), windows,
                                                                   before.tokens, bytes, int(count),
                                                                   std::min(device.contexts(), 4));
            }));
            before.tokens += uint64_t(job.ranks() - 1);
        }
        std::sort(times.begin(), times.end());
        say(count * bytes, "tokens to all, median", times[times.size() / 2]);
        job.barrier();
    }
    return job.finish();
}
