// get: gets issued by a thread, a warp or a block, blocking and not.
//
// First all PEs get patterns from the next one and look at every byte. Then PE 0 alone measures: a
// get that waits, and many gets before one quiet.
#include "device.cuh"

using namespace prog;

namespace {

constexpr int kThreads = 128;
constexpr int kBlocks = 4;
// No multiple of anything: slices start and end at odd addresses.
constexpr size_t kSlice = 1013;

template <Scope kScope, bool kNbi>
__device__ void get(void *dest, const void *source, size_t bytes, int pe) {
    if constexpr (kScope == Scope::thread) {
        kNbi ? nvshmem_getmem_nbi(dest, source, bytes, pe)
             : nvshmem_getmem(dest, source, bytes, pe);
    } else if constexpr (kScope == Scope::warp) {
        kNbi ? nvshmemx_getmem_nbi_warp(dest, source, bytes, pe)
             : nvshmemx_getmem_warp(dest, source, bytes, pe);
    } else {
        kNbi ? nvshmemx_getmem_nbi_block(dest, source, bytes, pe)
             : nvshmemx_getmem_block(dest, source, bytes, pe);
    }
}

// Gets a buffer in slices, which the groups of threads share out among them, and compares each
// slice as soon as the calls say that it is there.
template <Scope kScope, bool kNbi>
__global__ void get_slices(uint8_t *dest, const uint8_t *source, size_t bytes, int pe,
                           uint64_t seed, uint64_t round, Finding *finding) {
    // All threads of a group come to the same slices, as the calls of a warp or block demand.
    const int size = group_size<kScope>(blockDim.x);
    const size_t thread = blockIdx.x * blockDim.x + threadIdx.x;
    const size_t group = thread / size;
    const size_t groups = gridDim.x * blockDim.x / size;
    for (size_t at = group * kSlice; at < bytes; at += groups * kSlice) {
        get<kScope, kNbi>(dest + at, source + at, min(kSlice, bytes - at), pe);
    }
    if (kNbi) {
        nvshmem_quiet();
    }
    // The quiet of each thread stands for its own gets, so a group waits for the one that issued.
    __syncthreads();
    const volatile uint8_t *received = dest;
    for (size_t at = group * kSlice; at < bytes; at += groups * kSlice) {
        for (size_t i = at + thread % size; i < min(at + kSlice, bytes); i += size) {
            const uint8_t value = received[i];
            if (value != pattern(seed, i)) {
                report(finding, round, i, value, pattern(seed, i));
            }
        }
    }
}

template <Scope kScope>
__global__ void get_and_wait(uint8_t *dest, const uint8_t *source, size_t bytes, int pe,
                             int iterations) {
    for (int i = 0; i < iterations; i++) {
        get<kScope, false>(dest, source, bytes, pe);
        __syncthreads();
    }
}

// Each block has its own part of the buffers.
__global__ void get_many(uint8_t *dest, const uint8_t *source, size_t bytes, int pe,
                         int iterations) {
    const size_t at = blockIdx.x * bytes;
    for (int i = 0; i < iterations; i++) {
        get<Scope::block, true>(dest + at, source + at, bytes, pe);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        nvshmem_quiet();
    }
}

struct Buffers {
    Symmetric<uint8_t> source;
    Symmetric<uint8_t> dest;
    Buffers(Job &job, size_t bytes) : source(job, bytes), dest(job, bytes) {}
};

template <Scope kScope, bool kNbi>
void verify(Job &job, Buffers &buffers, size_t bytes, uint64_t &round, Mapped<Finding> &finding) {
    round++;
    buffers.source.write(pattern_bytes(seed_of(job.pe(), round), bytes));
    buffers.dest.fill(kUntouched);
    job.barrier();
    const uint64_t seed = seed_of(job.next(), round);
    launch(job, get_slices<kScope, kNbi>, kBlocks, kThreads, buffers.dest.get(),
           buffers.source.get(), bytes, job.next(), seed, round, finding.device());
    // Before the barrier, which would complete what the calls have left undone.
    job.synchronize();
    const std::string what = std::string(kNbi ? "get_nbi, " : "get, ") + name_of(kScope) + ", " +
                             std::to_string(bytes) + " bytes from PE " + std::to_string(job.next());
    check_finding(job, what, "byte", *finding);
    std::vector<uint8_t> expected = pattern_bytes(seed, bytes);
    expected.resize(buffers.dest.count(), kUntouched);
    job.check(what + ", seen by the host", buffers.dest.read(), expected);
    job.barrier();
}

void verify_all(Job &job, uint64_t highest) {
    // The bytes behind the largest show what writes too far.
    Buffers buffers(job, highest + 64);
    Mapped<Finding> finding(job);
    uint64_t round = 0;
    for (const size_t bytes :
         {uint64_t(1), uint64_t(7), uint64_t(kSlice), uint64_t(4096), highest}) {
        if (bytes > highest) {
            continue;
        }
        verify<Scope::thread, false>(job, buffers, bytes, round, finding);
        verify<Scope::thread, true>(job, buffers, bytes, round, finding);
        verify<Scope::warp, false>(job, buffers, bytes, round, finding);
        verify<Scope::warp, true>(job, buffers, bytes, round, finding);
        verify<Scope::block, false>(job, buffers, bytes, round, finding);
        verify<Scope::block, true>(job, buffers, bytes, round, finding);
    }
}

template <Scope kScope>
void measure_latency(Job &job, Buffers &buffers, const std::vector<uint64_t> &sizes,
                     uint64_t iterations, const Table &table) {
    for (const uint64_t bytes : sizes) {
        const double microseconds = timed(job, iterations, [&](int count) {
            launch(job, get_and_wait<kScope>, 1, group_size<kScope>(kThreads), buffers.dest.get(),
                   buffers.source.get(), bytes, job.next(), count);
        });
        table.row(bytes, name_of(kScope), microseconds);
    }
}

void measure(Job &job, const std::vector<uint64_t> &sizes, uint64_t iterations) {
    Buffers buffers(job, sizes.back() * kBlocks);
    job.on_pe_0([&] {
        const Table table(job, "one get, PE 0 from PE 1", kLatency);
        measure_latency<Scope::thread>(job, buffers, sizes, iterations, table);
        measure_latency<Scope::warp>(job, buffers, sizes, iterations, table);
        measure_latency<Scope::block>(job, buffers, sizes, iterations, table);
    });
    job.on_pe_0([&] {
        const Table table(job, "4 blocks get without waiting, PE 0 from PE 1", kBandwidth);
        for (const uint64_t bytes : sizes) {
            const double microseconds = timed(job, iterations, [&](int count) {
                launch(job, get_many, kBlocks, kThreads, buffers.dest.get(), buffers.source.get(),
                       bytes, job.next(), count);
            });
            table.row(bytes, "block", gigabytes_per_second(double(bytes) * kBlocks, microseconds));
        }
    });
}

}  // namespace

int main(int argc, char **argv) {
    uint64_t lowest = 4, highest = 1 << 20, iterations = 20;
    parse_or_exit(argc, argv, "get", "Gets by thread, warp and block: checked, then measured.",
                  {{"min", "smallest size in bytes", &lowest, 1, 1 << 28},
                   {"max", "largest size in bytes", &highest, 1, 1 << 28},
                   {"iters", "timed operations per size", &iterations, 1, 1'000'000}});
    Job job("get");
    // Enough to be cut in pieces, little enough to be compared byte by byte.
    verify_all(job, std::min<uint64_t>(highest, 200'001));
    measure(job, sizes_between(lowest, highest), iterations);
    return job.finish();
}
