// ring: every PE's block travels round the ring until every PE has all of them.
//
// The shape of a ring all-gather, made of puts with signals alone. In step s a PE passes on the
// block that it got in step s - 1, beginning with its own. A signal per block says that it is
// there, so a PE waits for the one block it needs next, never for all.
#include "device.cuh"

using namespace prog;

namespace {

constexpr int kThreads = 256;

struct Ring {
    uint8_t *blocks;    // one block per PE, in the order of PEs
    uint64_t *arrived;  // per block: the round of which it is
    uint64_t *ready;    // the round that this PE's next has done with
    size_t bytes;       // of one block
};

// One thread block per PE. Rounds are numbered on from 'begin'; signals only grow, so none is
// reset.
__global__ void gather(Ring ring, uint64_t begin, uint64_t rounds, Finding *finding) {
    const int me = nvshmem_my_pe();
    const int n = nvshmem_n_pes();
    const int next = (me + 1) % n;
    const int previous = (me + n - 1) % n;

    for (uint64_t round = begin + 1; round <= begin + rounds; round++) {
        // The next PE still reads the last round's blocks until it says otherwise.
        if (threadIdx.x == 0) {
            nvshmem_signal_wait_until(ring.ready, NVSHMEM_CMP_GE, round - 1);
        }
        __syncthreads();
        fill_pattern(ring.blocks + me * ring.bytes, ring.bytes, seed_of(me, round));

        for (int step = 0; step < n - 1; step++) {
            const int outgoing = (me + n - step) % n;
            const int incoming = (me + n - step - 1) % n;
            uint8_t *block = ring.blocks + outgoing * ring.bytes;
            nvshmemx_putmem_signal_nbi_block(block, block, ring.bytes, &ring.arrived[outgoing],
                                             round, NVSHMEM_SIGNAL_SET, next);
            if (threadIdx.x == 0) {
                nvshmem_signal_wait_until(&ring.arrived[incoming], NVSHMEM_CMP_GE, round);
            }
            __syncthreads();
        }

        for (int pe = 0; pe < n; pe++) {
            check_pattern(ring.blocks + pe * ring.bytes, ring.bytes, seed_of(pe, round), round,
                          finding);
        }
        // What was sent has left these blocks, and they have been read: both may change now.
        __syncthreads();
        if (threadIdx.x == 0) {
            nvshmem_quiet();
            nvshmemx_signal_op(ring.ready, round, NVSHMEM_SIGNAL_SET, previous);
        }
    }
}

void run(Job &job, const std::vector<uint64_t> &sizes, uint64_t rounds) {
    const int n = job.n_pes();
    Symmetric<uint8_t> blocks(job, sizes.back() * n);
    Symmetric<uint64_t> arrived(job, n);
    Symmetric<uint64_t> ready(job, 1);
    Mapped<Finding> finding(job);

    const Table table(job, "one block of each PE to all PEs", kLatency);
    uint64_t begin = 0;
    for (const uint64_t bytes : sizes) {
        const Ring ring{blocks.get(), arrived.get(), ready.get(), bytes};
        blocks.fill(kUntouched);
        job.barrier();
        Stopwatch watch(job);
        launch_together(job, gather, 1, kThreads, ring, begin, rounds, finding.device());
        const double microseconds = watch.microseconds();
        begin += rounds;
        job.barrier();

        const std::string what = std::to_string(bytes) + " bytes";
        check_finding(job, what, "byte", *finding);
        // The host looks once more, at what must not have changed as well.
        std::vector<uint8_t> expected(blocks.count(), kUntouched);
        for (int pe = 0; pe < n; pe++) {
            const std::vector<uint8_t> block = pattern_bytes(seed_of(pe, begin), bytes);
            std::copy(block.begin(), block.end(), expected.begin() + pe * bytes);
        }
        job.check(what + ", seen by the host", blocks.read(), expected);
        table.row(bytes, "block", microseconds / rounds);
    }
}

}  // namespace

int main(int argc, char **argv) {
    uint64_t lowest = 8, highest = 1 << 20, rounds = 10;
    parse_or_exit(argc, argv, "ring", "Passes every PE's block round a ring of puts with signals.",
                  {{"min", "smallest block in bytes", &lowest, 1, 1 << 28},
                   {"max", "largest block in bytes", &highest, 1, 1 << 28},
                   {"iters", "rounds per size", &rounds, 1, 1'000'000}});
    Job job("ring");
    run(job, sizes_between(lowest, highest), rounds);
    return job.finish();
}
