// all-to-all: every PE sends a different block to every PE.
//
// Made of puts with signals alone, without a collective. Each pair of PEs runs at its own pace: a
// block of the kernel serves one peer, and two words per peer hold the pair together. 'arrived'
// says that the peer's block is here, 'taken' that the peer has read ours.
//
// With --nbi puts do not block: no block waits by polling page-locked memory.
// With --stop the process of PE 1 is stopped in the middle, for so many seconds, and goes on: the
// others wait for it, and all data is right.
#include <csignal>

#include "device.cuh"

using namespace prog;

namespace {

constexpr int kThreads = 256;

struct Exchange {
    uint8_t *outgoing;  // one block per PE that it goes to
    uint8_t *incoming;  // one block per PE that it comes from
    uint64_t *arrived;  // per PE: the round of its block in 'incoming'
    uint64_t *taken;    // per PE: the round up to which it has read what we sent it
    size_t bytes;       // of one block
    bool nbi;           // puts do not block
};

// The seed of the block that goes from one PE to another.
PROG_BOTH uint64_t seed_between(int from, int to, uint64_t round) {
    return mixed(seed_of(from, round) + to);
}

// As many thread blocks as there are PEs: block i sends to the PE i places ahead, and receives from
// the one i places behind. Block 0 sends to its own PE, which NVSHMEM does by plain stores.
__global__ void exchange(Exchange all, uint64_t begin, uint64_t rounds, Finding *finding) {
    const int me = nvshmem_my_pe();
    const int n = nvshmem_n_pes();
    const int distance = blockIdx.x;
    const int to = (me + distance) % n;
    const int from = (me + n - distance) % n;
    uint8_t *outgoing = all.outgoing + to * all.bytes;
    uint8_t *incoming = all.incoming + from * all.bytes;

    for (uint64_t round = begin + 1; round <= begin + rounds; round++) {
        // The peer keeps one block of ours at a time, and what it has taken has left its source.
        if (threadIdx.x == 0) {
            nvshmem_signal_wait_until(&all.taken[to], NVSHMEM_CMP_GE, round - 1);
        }
        __syncthreads();
        fill_pattern(outgoing, all.bytes, seed_between(me, to, round));
        __syncthreads();
        uint8_t *const dest = all.incoming + me * all.bytes;
        uint64_t *const word = &all.arrived[me];
        if (all.nbi) {
            nvshmemx_putmem_signal_nbi_block(dest, outgoing, all.bytes, word, round,
                                             NVSHMEM_SIGNAL_SET, to);
        } else {
            nvshmemx_putmem_signal_block(dest, outgoing, all.bytes, word, round,
                                         NVSHMEM_SIGNAL_SET, to);
        }
        if (threadIdx.x == 0) {
            nvshmem_signal_wait_until(&all.arrived[from], NVSHMEM_CMP_GE, round);
        }
        __syncthreads();
        check_pattern(incoming, all.bytes, seed_between(from, me, round), round, finding);
        __syncthreads();
        if (threadIdx.x == 0) {
            nvshmemx_signal_op(&all.taken[me], round, NVSHMEM_SIGNAL_SET, from);
        }
    }
}

// Stops this process a little later, for so many seconds. The child calls nothing but the system.
void stop_soon(Job &job, uint64_t seconds) {
    const pid_t stopped = getpid();
    const pid_t child = fork();
    if (child == 0) {
        usleep(2'000);
        kill(stopped, SIGSTOP);
        sleep(unsigned(seconds));
        kill(stopped, SIGCONT);
        _exit(0);
    }
    if (child < 0) {
        job.fail("fork: nobody stops this PE");
    }
}

void run(Job &job, const std::vector<uint64_t> &sizes, uint64_t rounds, uint64_t stop,
         bool nbi) {
    const int n = job.n_pes();
    Symmetric<uint8_t> outgoing(job, sizes.back() * n), incoming(job, sizes.back() * n);
    Symmetric<uint64_t> arrived(job, n), taken(job, n);
    Mapped<Finding> finding(job);

    const Table table(job, "one block from each PE to each PE", kLatency);
    uint64_t begin = 0;
    for (const uint64_t bytes : sizes) {
        const Exchange all{outgoing.get(), incoming.get(), arrived.get(), taken.get(), bytes, nbi};
        incoming.fill(kUntouched);
        job.barrier();
        Stopwatch watch(job);
        if (stop > 0 && job.pe() == 1) {
            stop_soon(job, stop);
        }
        launch_together(job, exchange, n, kThreads, all, begin, rounds, finding.device());
        const double microseconds = watch.microseconds();
        begin += rounds;
        job.barrier();

        const std::string what = std::to_string(bytes) + " bytes";
        check_finding(job, what, "byte", *finding);
        // The host looks once more, at what must not have changed as well.
        std::vector<uint8_t> expected(incoming.count(), kUntouched);
        for (int from = 0; from < n; from++) {
            const std::vector<uint8_t> block =
                pattern_bytes(seed_between(from, job.pe(), begin), bytes);
            std::copy(block.begin(), block.end(), expected.begin() + from * bytes);
        }
        job.check(what + ", seen by the host", incoming.read(), expected);
        table.row(bytes, "block", microseconds / double(rounds));
    }
}

}  // namespace

int main(int argc, char **argv) {
    uint64_t lowest = 8, highest = 256 << 10, rounds = 10, stop = 0, nbi = 0;
    parse_or_exit(argc, argv, "all-to-all",
                  "Every PE sends a block to every PE, by puts with signals.",
                  {{"min", "smallest block in bytes", &lowest, 1, 1 << 26},
                   {"max", "largest block in bytes", &highest, 1, 1 << 26},
                   {"iters", "rounds per size", &rounds, 1, 1'000'000},
                   {"stop", "seconds that PE 1 is stopped for, at each size", &stop, 0, 3600},
                   {"nbi", "1 for puts that do not block", &nbi, 0, 1}});
    Job job("all-to-all");
    run(job, sizes_between(lowest, highest), rounds, stop, nbi == 1);
    return job.finish();
}
