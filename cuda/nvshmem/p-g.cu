// p-g: single values of 1, 2, 4 and 8 bytes.
//
// Values put with p by many threads, gotten with g by whole warps on neighbouring words, which
// NVSHMEM may gather into one transfer, and by warps whose threads look at words far apart, which
// it may not.
#include "device.cuh"

using namespace prog;

namespace {

constexpr int kThreads = 128;
constexpr int kBlocks = 4;
// The last warp is not full.
constexpr size_t kWords = 999;

// NVSHMEM names its functions by type; this picks them by type.
template <class T>
struct Word;
#define PROG_WORD(Type, name)                                      \
    template <>                                                    \
    struct Word<Type> {                                            \
        static __device__ void p(Type *dest, Type value, int pe) { \
            nvshmem_##name##_p(dest, value, pe);                   \
        }                                                          \
        static __device__ Type g(const Type *source, int pe) {     \
            return nvshmem_##name##_g(source, pe);                 \
        }                                                          \
    }
PROG_WORD(uint8_t, uint8);
PROG_WORD(uint16_t, uint16);
PROG_WORD(uint32_t, uint32);
PROG_WORD(uint64_t, uint64);
#undef PROG_WORD

template <class T>
PROG_BOTH T word_of(uint64_t seed, size_t index) {
    return T(mixed(seed + index));
}

template <class T>
__global__ void put_words(T *dest, size_t words, int pe, uint64_t seed) {
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < words; i += gridDim.x * blockDim.x) {
        Word<T>::p(dest + i, word_of<T>(seed, i), pe);
    }
    nvshmem_quiet();
}

// 'far' lets the threads of a warp look at words that are no neighbours.
template <class T>
__global__ void get_words(const T *source, size_t words, int pe, bool far, uint64_t seed,
                          uint64_t round, Finding *finding) {
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < words; i += gridDim.x * blockDim.x) {
        // 7 has no factor in common with the number of words, so each is looked at once.
        const size_t at = far ? i * 7 % words : i;
        const T got = Word<T>::g(source + at, pe);
        const T expected = word_of<T>(seed, at);
        if (got != expected) {
            report(finding, round, at, got, expected);
        }
    }
}

template <class T>
__global__ void p_and_quiet(T *dest, int pe, int iterations) {
    for (int i = 0; i < iterations; i++) {
        Word<T>::p(dest, T(i), pe);
        nvshmem_quiet();
    }
}

// The words are added up, so that no call can be left out.
template <class T>
__global__ void g_one(T *dest, int pe, int iterations) {
    T sum = 0;
    for (int i = 0; i < iterations; i++) {
        sum += Word<T>::g(dest, pe);
    }
    *dest = sum;
}

// Each thread has a word of its own, and puts it over and over.
template <class T>
__global__ void p_many(T *dest, int pe, int iterations) {
    const size_t at = blockIdx.x * blockDim.x + threadIdx.x;
    for (int i = 0; i < iterations; i++) {
        Word<T>::p(dest + at, T(i), pe);
    }
    nvshmem_quiet();
}

template <class T>
std::vector<T> words_of(uint64_t seed, size_t words) {
    std::vector<T> result(words);
    for (size_t i = 0; i < words; i++) {
        result[i] = word_of<T>(seed, i);
    }
    return result;
}

template <class T>
void verify(Job &job, uint64_t round) {
    Symmetric<T> words(job, kWords + 8);
    Mapped<Finding> finding(job);
    const std::string width = std::to_string(sizeof(T)) + " bytes";

    words.fill(kUntouched);
    job.barrier();
    launch(job, put_words<T>, kBlocks, kThreads, words.get(), kWords, job.next(),
           seed_of(job.pe(), round));
    job.barrier();
    std::vector<T> expected = words_of<T>(seed_of(job.previous(), round), kWords);
    T untouched;
    std::memset(&untouched, kUntouched, sizeof untouched);
    expected.resize(words.count(), untouched);
    const std::vector<T> got = words.read();
    for (size_t i = 0; i < got.size(); i++) {
        if (got[i] != expected[i]) {
            job.fail("p of " + width + ": word " + std::to_string(i) + " from PE " +
                     std::to_string(job.previous()) + ": got " + std::to_string(got[i]) +
                     ", expected " + std::to_string(expected[i]));
            break;
        }
    }

    // The words that are there now are what the previous PE has put.
    const int owner = job.next();
    const uint64_t seed = seed_of((owner + job.n_pes() - 1) % job.n_pes(), round);
    for (const bool far : {false, true}) {
        // Words far apart are a request each.
        const size_t count = far ? kWords / 8 : kWords;
        launch(job, get_words<T>, kBlocks, kThreads, words.get(), count, owner, far, seed, round,
               finding.device());
        job.synchronize();
        check_finding(job,
                      std::string("g of ") + width + (far ? ", far apart" : ", neighbours") +
                          ", from PE " + std::to_string(owner),
                      "word", *finding);
    }
    job.barrier();
}

template <class T>
void measure_latencies(Job &job, uint64_t iterations, const Table &table) {
    Symmetric<T> words(job, 1);
    job.on_pe_0([&] {
        table.row(sizeof(T), "p, thread", timed(job, iterations, [&](int count) {
                      launch(job, p_and_quiet<T>, 1, 1, words.get(), job.next(), count);
                  }));
        table.row(sizeof(T), "g, thread", timed(job, iterations, [&](int count) {
                      launch(job, g_one<T>, 1, 1, words.get(), job.next(), count);
                  }));
    });
}

template <class T>
void measure_rate(Job &job, uint64_t iterations, const Table &table) {
    Symmetric<T> words(job, kBlocks * kThreads);
    job.on_pe_0([&] {
        const double microseconds = timed(job, iterations, [&](int count) {
            launch(job, p_many<T>, kBlocks, kThreads, words.get(), job.next(), count);
        });
        table.row(sizeof(T), "p, 512 threads", kBlocks * kThreads / microseconds);
    });
}

}  // namespace

int main(int argc, char **argv) {
    uint64_t iterations = 20;
    parse_or_exit(argc, argv, "p-g", "Single values of 1, 2, 4 and 8 bytes, put and gotten.",
                  {{"iters", "timed operations per width", &iterations, 1, 1'000'000}});
    Job job("p-g");
    verify<uint8_t>(job, 1);
    verify<uint16_t>(job, 2);
    verify<uint32_t>(job, 3);
    verify<uint64_t>(job, 4);
    {
        const Table table(job, "one p and its quiet; one g; PE 0 and PE 1", kLatency);
        measure_latencies<uint8_t>(job, iterations, table);
        measure_latencies<uint16_t>(job, iterations, table);
        measure_latencies<uint32_t>(job, iterations, table);
        measure_latencies<uint64_t>(job, iterations, table);
    }
    {
        const Table table(job, "p without waiting, PE 0 to PE 1", kRate);
        measure_rate<uint8_t>(job, iterations, table);
        measure_rate<uint16_t>(job, iterations, table);
        measure_rate<uint32_t>(job, iterations, table);
        measure_rate<uint64_t>(job, iterations, table);
    }
    return job.finish();
}
