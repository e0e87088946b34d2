// gin: everything that a kernel can ask of NCCL's GIN, on several contexts at once.
//
// Every rank sends to the next one, round after round, each context by a block of its own: data of
// random sizes, cut at random places. The receiver's kernel looks at every byte as soon as the
// signal is there, so that a signal that is ahead of its data shows as wrong bytes.
#include "../nvshmem/finding.cuh"
#include "job.h"

using namespace prog;

namespace {

constexpr int kThreads = 128;
constexpr int kMostPieces = 8;

// How the data of a round goes, and what tells of it.
enum Way {
    kPutsThenStrongIncrement,   // the last put carries it
    kPutsThenStrongSignal,      // a signal without data
    kPutsWithWeakSignals,       // one for each put
    kPutsThenStrongWordSignal,  // a signal that adds to a word of a window
    kValues,                    // words without a source
    kGets,                      // the receiver gets, and flushes
    kPutsWithCounters,          // the source is overwritten once the counters tell that it may be
    kWays
};

__host__ __device__ const char *name_of(int way) {
    switch (way) {
        case kPutsThenStrongIncrement: return "puts, the last with a strong increment";
        case kPutsThenStrongSignal: return "puts, then a strong signal";
        case kPutsWithWeakSignals: return "puts with weak signals";
        case kPutsThenStrongWordSignal: return "puts, then a strong signal to a word of a window";
        case kValues: return "values, the last with a strong signal";
        case kGets: return "gets and flush";
        default: return "puts with counters";
    }
}

// Signals of a context. Increments and additions do not share one: NCCL's rule.
enum Signal { kAdded, kIncremented, kAcknowledged, kSignals };

// The round's plan, which sender and receiver work out alike.
struct Plan {
    int way;
    size_t at;  // from the start of the context's region
    size_t bytes;
    int pieces;

    __device__ Plan(uint64_t seed, int context, uint64_t round, size_t span) {
        const uint64_t dice = mixed(seed ^ mixed(uint64_t(context) << 32 ^ round));
        way = int(dice % kWays);
        // As many small ones as large ones.
        const size_t most = size_t(1) << (1 + (dice >> 8) % (63 - __clzll(span)));
        bytes = 1 + mixed(dice + 1) % most;
        at = mixed(dice + 2) % 64;
        if (bytes + at > span) {
            at = 0;
        }
        pieces = 1 + int(mixed(dice + 3) % kMostPieces);
        if (way == kValues) {
            at &= ~size_t(7);
            bytes = 8 * (1 + bytes % 32);
            pieces = int(bytes / 8);
        }
        if (pieces > int(bytes)) {
            pieces = int(bytes);
        }
        seed_ = dice;
    }

    // Where a piece begins; that of 'pieces' is where the last one ends.
    __device__ size_t cut(int piece) const {
        if (piece == 0 || piece == pieces) {
            return piece == 0 ? 0 : bytes;
        }
        // Ascending: each in its own part.
        const size_t part = bytes / pieces;
        return part * piece + (part > 1 ? mixed(seed_ + 16 + piece) % part : 0);
    }

  private:
    uint64_t seed_;
};

// Waits until a signal's value is there. False when that takes too long.
template <class Read>
__device__ bool reaches(uint64_t value, Read read, Finding *finding, uint64_t round) {
    const uint64_t begin = now_ns();
    for (uint64_t seen = read(); seen < value; seen = read()) {
        if (now_ns() - begin > kPatienceNs) {
            if (threadIdx.x == 0) {
                report(finding, round, ~uint64_t(0), seen, value);
            }
            return false;
        }
    }
    return true;
}

struct Memory {
    ncclWindow_t source, data, words;
    uint8_t *source_here, *data_here;
    size_t span;  // of a context's region, in bytes
};

__global__ void exchange(ncclDevComm comm, Memory memory, uint64_t seed, uint64_t rounds,
                         Finding *findings) {
    const int context = int(blockIdx.x);
    const int next = (comm.rank + 1) % comm.nRanks;
    const int previous = (comm.rank + comm.nRanks - 1) % comm.nRanks;
    const ncclTeam world = ncclTeamWorld(comm);
    const ncclCoopCta block;
    ncclGin gin{comm, context};
    const ncclGinSignal_t first = context * kSignals;
    const ncclGinCounter_t counter = context;
    const size_t region = context * memory.span;
    const size_t word = context * sizeof(uint64_t);
    const auto of_signal = [&](int which) {
        return [&, which] { return gin.readSignal(first + which); };
    };
    // A fresh communicator's signals begin at 0. They are not read here: the one before may have
    // sent some already.
    uint64_t added = 0, incremented = 0, acknowledged = 0, counted = 0, of_word = 0;

    for (uint64_t round = 0; round < rounds; round++) {
        const Plan plan(seed, context, round, memory.span);
        Finding *finding = findings + plan.way;
        const size_t at = region + plan.at;
        fill_pattern(memory.source_here + at, plan.bytes,
                     seed_of(comm.rank, round ^ seed) + context);
        const auto send = [&](int piece, auto signal, auto local) {
            const size_t from = at + plan.cut(piece);
            gin.put(world, next, memory.data, from, memory.source, from,
                    plan.cut(piece + 1) - plan.cut(piece), signal, local, block);
        };
        const int last = plan.pieces - 1;
        for (int piece = 0; piece < plan.pieces; piece++) {
            switch (plan.way) {
                case kPutsThenStrongIncrement:
                    if (piece == last) {
                        send(piece, ncclGin_StrongSignalInc{first + kIncremented}, ncclGin_None{});
                    } else {
                        send(piece, ncclGin_None{}, ncclGin_None{});
                    }
                    break;
                case kPutsThenStrongSignal: send(piece, ncclGin_None{}, ncclGin_None{}); break;
                case kPutsWithWeakSignals:
                    send(piece, ncclGin_WeakSignalAdd{first + kAdded, 1}, ncclGin_None{});
                    break;
                case kPutsThenStrongWordSignal:
                    if (piece == last) {
                        send(piece, ncclGin_StrongVASignalAdd{memory.words, word, 5},
                             ncclGin_None{});
                    } else {
                        send(piece, ncclGin_None{}, ncclGin_None{});
                    }
                    break;
                case kValues: {
                    const size_t from = at + 8 * piece;
                    const uint64_t value = *reinterpret_cast<uint64_t *>(memory.source_here + from);
                    if (piece == last) {
                        gin.putValue(world, next, memory.data, from, value,
                                     ncclGin_StrongSignalAdd{first + kAdded, 1}, block);
                    } else {
                        gin.putValue(world, next, memory.data, from, value, ncclGin_None{}, block);
                    }
                    break;
                }
                case kPutsWithCounters:
                    send(piece, ncclGin_None{}, ncclGin_WeakCounterInc{counter});
                    break;
                default: break;
            }
        }
        if (plan.way == kPutsWithCounters) {
            counted += plan.pieces;
            if (!reaches(counted, [&] { return gin.readCounter(counter); }, finding, round)) {
                return;
            }
            __syncthreads();
            fill_pattern(memory.source_here + at, plan.bytes, ~seed);
        }
        if (plan.way == kPutsThenStrongSignal || plan.way == kGets ||
            plan.way == kPutsWithCounters) {
            gin.signal(world, next, ncclGin_StrongSignalAdd{first + kAdded, 3}, block);
        }

        bool came = false;
        switch (plan.way) {
            case kPutsThenStrongIncrement:
                came = reaches(++incremented, of_signal(kIncremented), finding, round);
                break;
            case kPutsThenStrongWordSignal:
                of_word += 5;
                came = reaches(
                    of_word, [&] { return gin.readSignal(memory.words, word); }, finding, round);
                break;
            default:
                added += plan.way == kPutsWithWeakSignals ? plan.pieces
                         : plan.way == kValues            ? 1
                                                          : 3;
                came = reaches(added, of_signal(kAdded), finding, round);
        }
        if (!came) {
            return;
        }
        __syncthreads();
        if (plan.way == kGets) {
            for (int piece = 0; piece < plan.pieces; piece++) {
                const size_t from = at + plan.cut(piece);
                gin.get(world, previous, memory.source, from, memory.data, from,
                        plan.cut(piece + 1) - plan.cut(piece), block);
            }
            gin.flush(block);
        }
        check_pattern(memory.data_here + at, plan.bytes, seed_of(previous, round ^ seed) + context,
                      round, finding);
        __syncthreads();
        // The one before may write here again, and to its source where this rank got it from.
        gin.signal(world, previous, ncclGin_StrongSignalInc{first + kAcknowledged}, block);
        if (!reaches(++acknowledged, of_signal(kAcknowledged), finding, round)) {
            return;
        }
        __syncthreads();
    }
}

}  // namespace

int main(int argc, char **argv) {
    uint64_t rounds = 300, contexts = 4, bytes = 1 << 20, seed = 1;
    parse_or_exit(argc, argv, "gin",
                  "Puts, values, gets, signals and counters of GIN, every byte checked.",
                  {{"rounds", "rounds of each context", &rounds, 1, 1 << 20},
                   {"contexts", "contexts to ask for", &contexts, 1, 256},
                   {"max", "largest data, in bytes", &bytes, 64, 1 << 26},
                   {"seed", "of sizes and ways", &seed, 0, ~uint64_t(0)}});
    Job job("gin");
    {
        Device device(job, int(contexts), int(contexts) * kSignals, int(contexts));
        const int given = std::min(device.contexts(), int(contexts));
        Window source(job, contexts * bytes), data(job, contexts * bytes), words(job, contexts * 8);
        words.fill(0);
        Finding *findings = nullptr;
        job.require(cudaMallocHost(&findings, kWays * sizeof *findings), "cudaMallocHost");
        std::fill_n(findings, int(kWays), Finding{});
        job.barrier();
        const Memory memory{source.window(), data.window(), words.window(),
                            source.get(),    data.get(),    bytes};
        exchange<<<given, kThreads, 0, job.stream()>>>(device.get(), memory, seed, rounds,
                                                       findings);
        job.require(cudaGetLastError(), "kernel launch");
        job.synchronize();
        for (int way = 0; way < kWays; way++) {
            check_finding(job, name_of(way), "byte", findings[way]);
        }
        job.require(cudaFreeHost(findings), "cudaFreeHost");
        if (job.rank() == 0) {
            std::printf("# %llu rounds on each of %d contexts, up to %llu bytes\n",
                        (unsigned long long)rounds, given, (unsigned long long)bytes);
        }
        job.barrier();
    }
    return job.finish();
}
