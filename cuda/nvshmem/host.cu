// host: puts and gets that the host's thread issues, without a kernel.
//
// NVSHMEM calls the transport from the application's thread here, while its own proxy thread is at
// work for the GPU. Blocking and not, to and from symmetric memory, and single values with p. Where
// a peer is behind a transport the host has no g and no put with signal, so there is none here.
#include "job.h"

using namespace prog;

namespace {

struct Buffers {
    Symmetric<uint8_t> source;
    Symmetric<uint8_t> dest;
    Buffers(Job &job, size_t bytes) : source(job, bytes), dest(job, bytes) {}
};

// How many pieces the calls that do not wait cut a buffer into.
constexpr size_t kPieces = 16;

// Calls 'transfer' with the offset and size of each piece.
template <class Transfer>
void in_pieces(size_t bytes, Transfer &&transfer) {
    const size_t piece = (bytes + kPieces - 1) / kPieces;
    for (size_t at = 0; at < bytes; at += piece) {
        transfer(at, std::min(piece, bytes - at));
    }
}

// All PEs put to the next one and look at what they got.
void verify_put(Job &job, Buffers &buffers, size_t bytes, bool nbi, uint64_t round) {
    buffers.source.write(pattern_bytes(seed_of(job.pe(), round), bytes));
    buffers.dest.fill(kUntouched);
    job.barrier();
    uint8_t *dest = buffers.dest.get();
    const uint8_t *source = buffers.source.get();
    if (nbi) {
        in_pieces(bytes, [&](size_t at, size_t size) {
            nvshmem_putmem_nbi(dest + at, source + at, size, job.next());
        });
    } else {
        nvshmem_putmem(dest, source, bytes, job.next());
    }
    nvshmem_quiet();
    // After quiet all is there; the meeting only tells the reader so.
    nvshmem_sync_all();
    std::vector<uint8_t> expected = pattern_bytes(seed_of(job.previous(), round), bytes);
    expected.resize(buffers.dest.count(), kUntouched);
    job.check(std::string(nbi ? "put_nbi, " : "put, ") + std::to_string(bytes) + " bytes from PE " +
                  std::to_string(job.previous()),
              buffers.dest.read(), expected);
}

// All PEs get from the next one.
void verify_get(Job &job, Buffers &buffers, size_t bytes, bool nbi, uint64_t round) {
    buffers.source.write(pattern_bytes(seed_of(job.pe(), round), bytes));
    buffers.dest.fill(kUntouched);
    job.barrier();
    uint8_t *dest = buffers.dest.get();
    const uint8_t *source = buffers.source.get();
    if (nbi) {
        in_pieces(bytes, [&](size_t at, size_t size) {
            nvshmem_getmem_nbi(dest + at, source + at, size, job.next());
        });
        nvshmem_quiet();
    } else {
        nvshmem_getmem(dest, source, bytes, job.next());
    }
    std::vector<uint8_t> expected = pattern_bytes(seed_of(job.next(), round), bytes);
    expected.resize(buffers.dest.count(), kUntouched);
    job.check(std::string(nbi ? "get_nbi, " : "get, ") + std::to_string(bytes) + " bytes from PE " +
                  std::to_string(job.next()),
              buffers.dest.read(), expected);
    job.barrier();
}

// Values of all widths, side by side, so that one that is too wide shows in its neighbour.
struct Values {
    uint64_t eight;
    uint32_t four;
    uint16_t two;
    uint8_t one;
    uint8_t untouched;
};

Values values_of(int pe) {
    const uint64_t seed = seed_of(pe, 0);
    return {mixed(seed + 8), uint32_t(mixed(seed + 4)), uint16_t(mixed(seed + 2)),
            uint8_t(mixed(seed + 1)), kUntouched};
}

void verify_p(Job &job) {
    Symmetric<Values> words(job, 1);
    words.fill(kUntouched);
    job.barrier();
    const Values mine = values_of(job.pe());
    nvshmem_uint64_p(&words.get()->eight, mine.eight, job.next());
    nvshmem_uint32_p(&words.get()->four, mine.four, job.next());
    nvshmem_uint16_p(&words.get()->two, mine.two, job.next());
    nvshmem_uint8_p(&words.get()->one, mine.one, job.next());
    job.barrier();
    const Values got = words.read()[0];
    const Values expected = values_of(job.previous());
    const uint8_t *got_bytes = reinterpret_cast<const uint8_t *>(&got);
    const uint8_t *expected_bytes = reinterpret_cast<const uint8_t *>(&expected);
    job.check("p of 8, 4, 2 and 1 bytes from PE " + std::to_string(job.previous()),
              {got_bytes, got_bytes + sizeof got},
              {expected_bytes, expected_bytes + sizeof expected});
}

void verify_all(Job &job, uint64_t highest) {
    Buffers buffers(job, highest + 64);
    uint64_t round = 0;
    for (const size_t bytes : {uint64_t(1), uint64_t(13), uint64_t(4096), highest}) {
        for (const bool nbi : {false, true}) {
            verify_put(job, buffers, bytes, nbi, ++round);
            verify_get(job, buffers, bytes, nbi, ++round);
        }
    }
    verify_p(job);
}

// Microseconds per iteration on the host's clock; a few before do not count.
template <class Run>
double timed_on_host(uint64_t iterations, Run &&run) {
    run();
    run();
    const auto begin = std::chrono::steady_clock::now();
    for (uint64_t i = 0; i < iterations; i++) {
        run();
    }
    const std::chrono::duration<double, std::micro> taken =
        std::chrono::steady_clock::now() - begin;
    return taken.count() / double(iterations);
}

void measure(Job &job, const std::vector<uint64_t> &sizes, uint64_t iterations) {
    Buffers buffers(job, sizes.back() * kPieces);
    uint8_t *dest = buffers.dest.get();
    const uint8_t *source = buffers.source.get();
    job.on_pe_0([&] {
        const Table table(job, "one put and its quiet, one get, PE 0 and PE 1", kLatency);
        for (const uint64_t bytes : sizes) {
            table.row(bytes, "put", timed_on_host(iterations, [&] {
                          nvshmem_putmem_nbi(dest, source, bytes, job.next());
                          nvshmem_quiet();
                      }));
            table.row(bytes, "get", timed_on_host(iterations, [&] {
                          nvshmem_getmem(dest, source, bytes, job.next());
                      }));
        }
    });
    job.on_pe_0([&] {
        const Table table(job, "16 puts, 16 gets and their quiet, PE 0 and PE 1", kBandwidth);
        for (const uint64_t bytes : sizes) {
            const double put = timed_on_host(iterations, [&] {
                in_pieces(bytes * kPieces, [&](size_t at, size_t size) {
                    nvshmem_putmem_nbi(dest + at, source + at, size, job.next());
                });
                nvshmem_quiet();
            });
            table.row(bytes, "put", gigabytes_per_second(double(bytes) * kPieces, put));
            const double get = timed_on_host(iterations, [&] {
                in_pieces(bytes * kPieces, [&](size_t at, size_t size) {
                    nvshmem_getmem_nbi(dest + at, source + at, size, job.next());
                });
                nvshmem_quiet();
            });
            table.row(bytes, "get", gigabytes_per_second(double(bytes) * kPieces, get));
        }
    });
}

}  // namespace

int main(int argc, char **argv) {
    uint64_t lowest = 4, highest = 1 << 20, iterations = 20;
    parse_or_exit(argc, argv, "host", "Puts and gets by the host's thread: checked, then measured.",
                  {{"min", "smallest size in bytes", &lowest, 1, 1 << 26},
                   {"max", "largest size in bytes", &highest, 1, 1 << 26},
                   {"iters", "timed operations per size", &iterations, 1, 1'000'000}});
    Job job("host");
    verify_all(job, std::min<uint64_t>(highest, 300'007));
    measure(job, sizes_between(lowest, highest), iterations);
    return job.finish();
}
