// put-signal: data and the word that tells of it, in one call.
//
// A PE that sees the signal sees the data: that is checked in every round, by the kernel that
// waited, for both operations on the signal, for puts by thread, warp and block, and for puts of no
// bytes at all. Then PE 0 and PE 1 pass a message to and fro.
#include "device.cuh"

using namespace prog;

namespace {

constexpr int kThreads = 128;

template <Scope kScope, bool kNbi>
__device__ void put_signal(void *dest, const void *source, size_t bytes, uint64_t *word,
                           uint64_t value, int operation, int pe) {
    // Of a block's threads, those that make up the group take part.
    if (threadIdx.x >= group_size<kScope>(blockDim.x)) {
        return;
    }
    if constexpr (kScope == Scope::thread) {
        kNbi ? nvshmem_putmem_signal_nbi(dest, source, bytes, word, value, operation, pe)
             : nvshmem_putmem_signal(dest, source, bytes, word, value, operation, pe);
    } else if constexpr (kScope == Scope::warp) {
        kNbi ? nvshmemx_putmem_signal_nbi_warp(dest, source, bytes, word, value, operation, pe)
             : nvshmemx_putmem_signal_warp(dest, source, bytes, word, value, operation, pe);
    } else {
        kNbi ? nvshmemx_putmem_signal_nbi_block(dest, source, bytes, word, value, operation, pe)
             : nvshmemx_putmem_signal_block(dest, source, bytes, word, value, operation, pe);
    }
}

// The words that one PE is told by. Each has one kind of operation, and only grows.
struct Words {
    uint64_t set;    // by SET: the round
    uint64_t added;  // by ADD: how many puts with ADD there were
    uint64_t taken;  // by SET: the round up to which the next PE has read what it was sent
};

struct Message {
    uint8_t *source;
    uint8_t *dest;
    size_t bytes;
    Words *words;
};

// One thread block per PE; all PEs send to the next one. 'begin' rounds have been before, of which
// 'added' were with ADD.
template <Scope kScope, bool kNbi>
__global__ void send_round_by_round(Message message, int operation, uint64_t begin, uint64_t added,
                                    uint64_t rounds, Finding *finding) {
    const int me = nvshmem_my_pe();
    const int n = nvshmem_n_pes();
    const int next = (me + 1) % n;
    const int previous = (me + n - 1) % n;
    const bool adds = operation == NVSHMEM_SIGNAL_ADD;
    uint64_t *word = adds ? &message.words->added : &message.words->set;

    for (uint64_t i = 1; i <= rounds; i++) {
        const uint64_t round = begin + i;
        fill_pattern(message.source, message.bytes, seed_of(me, round));
        put_signal<kScope, kNbi>(message.dest, message.source, message.bytes, word,
                                 adds ? 1 : round, operation, next);

        if (threadIdx.x == 0) {
            const uint64_t awaited = adds ? added + i : round;
            nvshmem_signal_wait_until(word, NVSHMEM_CMP_GE, awaited);
            // Nobody sends the next round before this one is taken.
            const uint64_t seen = nvshmem_signal_fetch(word);
            if (seen != awaited) {
                report(finding, round, 0, seen, awaited);
            }
        }
        __syncthreads();
        check_pattern(message.dest, message.bytes, seed_of(previous, round), round, finding);
        __syncthreads();

        if (threadIdx.x == 0) {
            nvshmemx_signal_op(&message.words->taken, round, NVSHMEM_SIGNAL_SET, previous);
            nvshmem_signal_wait_until(&message.words->taken, NVSHMEM_CMP_GE, round);
            // Done with the source too, before it is filled again.
            nvshmem_quiet();
        }
        __syncthreads();
    }
}

// PE 0 and PE 1: each answers the other's message with its own. The first round is not timed: in
// it, one waits for the other's kernel to begin. The other blocks read page-locked memory meanwhile,
// as those do that wait in a blocking put.
template <Scope kScope>
__global__ void ping_pong(Message message, uint64_t begin, uint64_t rounds, uint64_t *nanoseconds) {
    const int me = nvshmem_my_pe();
    volatile uint64_t *const done = nanoseconds;
    if (me > 1) {
        return;
    }
    if (blockIdx.x > 0) {
        while (threadIdx.x == 0 && *done == 0) {
        }
        return;
    }
    const int peer = 1 - me;
    uint64_t *word = &message.words->set;
    uint64_t timed_from = 0;
    for (uint64_t round = begin + 1; round <= begin + 1 + rounds; round++) {
        if (me == 0) {
            put_signal<kScope, true>(message.dest, message.source, message.bytes, word, round,
                                     NVSHMEM_SIGNAL_SET, peer);
        }
        if (threadIdx.x == 0) {
            nvshmem_signal_wait_until(word, NVSHMEM_CMP_GE, round);
        }
        __syncthreads();
        if (me == 1) {
            put_signal<kScope, true>(message.dest, message.source, message.bytes, word, round,
                                     NVSHMEM_SIGNAL_SET, peer);
        }
        if (round == begin + 1) {
            timed_from = now_ns();
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        *done = now_ns() - timed_from;
        nvshmem_quiet();
    }
}

// What has been sent so far, which the next kernel counts on from.
struct Progress {
    uint64_t rounds = 0;
    uint64_t added = 0;
};

template <Scope kScope, bool kNbi>
void verify(Job &job, const Message &message, int operation, uint64_t rounds, Progress &progress,
            Mapped<Finding> &finding) {
    launch_together(job, send_round_by_round<kScope, kNbi>, 1, kThreads, message, operation,
                    progress.rounds, progress.added, rounds, finding.device());
    job.barrier();
    const bool adds = operation == NVSHMEM_SIGNAL_ADD;
    progress.rounds += rounds;
    progress.added += adds ? rounds : 0;
    check_finding(job,
                  std::string(kNbi ? "put_signal_nbi, " : "put_signal, ") + name_of(kScope) +
                      (adds ? ", ADD, " : ", SET, ") + std::to_string(message.bytes) + " bytes",
                  "byte", *finding);
}

void verify_all(Job &job, Message message, const std::vector<uint64_t> &sizes, uint64_t rounds,
                Progress &progress) {
    Mapped<Finding> finding(job);
    for (const uint64_t bytes : sizes) {
        message.bytes = bytes;
        for (const int operation : {NVSHMEM_SIGNAL_SET, NVSHMEM_SIGNAL_ADD}) {
            verify<Scope::thread, false>(job, message, operation, rounds, progress, finding);
            verify<Scope::thread, true>(job, message, operation, rounds, progress, finding);
            verify<Scope::warp, true>(job, message, operation, rounds, progress, finding);
            verify<Scope::block, false>(job, message, operation, rounds, progress, finding);
            verify<Scope::block, true>(job, message, operation, rounds, progress, finding);
        }
    }
}

// Data and words on both sides of an address at which one allocation of the heap may end and the
// next begin: with NVSHMEM_CUMEM_GRANULARITY=2097152 each multiple of 2 MiB is one.
void verify_at_border(Job &job, uint8_t *source, uint64_t bytes) {
    constexpr uint64_t kBorder = 2 << 20;
    Symmetric<uint8_t> area(job, 4 * kBorder);
    uint8_t *first = area.get() + kBorder - reinterpret_cast<uint64_t>(area.get()) % kBorder;
    uint8_t *second = first + kBorder, *third = second + kBorder;
    const auto words = [](uint8_t *at) { return reinterpret_cast<Words *>(at); };
    for (const Message &message : {Message{source, first - bytes / 2, 0, words(third + kBorder / 2)},
                                   Message{source, second - bytes, 0, words(second)},
                                   Message{source, third, 0, words(third) - 1}}) {
        area.fill(0);
        job.barrier();
        Progress progress;
        verify_all(job, message, {bytes}, 3, progress);
    }
}

template <Scope kScope>
void measure(Job &job, Message message, const std::vector<uint64_t> &sizes, uint64_t rounds,
             uint64_t polling, Progress &progress, const Table &table) {
    for (const uint64_t bytes : sizes) {
        message.bytes = bytes;
        Mapped<uint64_t> nanoseconds(job);
        job.barrier();
        launch_together(job, ping_pong<kScope>, 1 + int(polling), group_size<kScope>(kThreads), message,
                        progress.rounds, rounds, nanoseconds.device());
        job.synchronize();
        // There and back is two messages.
        table.row(bytes, name_of(kScope), double(*nanoseconds) / 1e3 / double(2 * rounds));
        progress.rounds += 1 + rounds;
    }
    job.barrier();
}

}  // namespace

int main(int argc, char **argv) {
    uint64_t lowest = 8, highest = 1 << 20, iterations = 20, polling = 0;
    parse_or_exit(argc, argv, "put-signal",
                  "Puts with signals: data is there when the signal is; then ping-pong.",
                  {{"min", "smallest size in bytes", &lowest, 1, 1 << 30},
                   {"max", "largest size in bytes", &highest, 1, 1 << 30},
                   {"iters", "timed messages to and fro per size", &iterations, 1, 1'000'000},
                   {"polling", "blocks beside that read page-locked memory", &polling, 0, 128}});
    Job job("put-signal");
    {
        Symmetric<uint8_t> source(job, highest), dest(job, highest);
        Symmetric<Words> words(job, 1);
        const Message message{source.get(), dest.get(), 0, words.get()};
        Progress progress;

        std::vector<uint64_t> checked{0, 1, 61};
        checked.push_back(std::min<uint64_t>(highest, 50'003));
        verify_all(job, message, checked, 5, progress);
        for (const uint64_t bytes : {64, 8192}) {
            verify_at_border(job, source.get(), std::min(highest, bytes));
        }

        const Table table(job, "put with signal, there and back, halved, PE 0 and PE 1", kLatency);
        const std::vector<uint64_t> sizes = sizes_between(lowest, highest);
        measure<Scope::thread>(job, message, sizes, iterations, polling, progress, table);
        measure<Scope::block>(job, message, sizes, iterations, polling, progress, table);
    }
    return job.finish();
}
