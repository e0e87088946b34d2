// atomics: every atomic operation of NVSHMEM on 32 and 64 bits, with many threads on one word.
//
// Each PE offers words, and the threads of all PEs work on them at once. What is left in a word is
// exact, whatever the order; what the fetching operations returned is exact as a set.
//
// A PE's own threads take part: where one PE of a job is behind a transport, NVSHMEM sends all
// atomics there, also those of a PE on its own words. --self 0 leaves them out.
#include <algorithm>

#include "device.cuh"

using namespace prog;

namespace {

// Threads of each PE that work on a word. They have a bit each in the operations on bits.
constexpr int kThreads = 32;
// How often each thread repeats the operations whose results add up.
constexpr int kTimes = 4;
// Compare-and-swap in a loop needs as many tries as there are rivals, so it gets fewer of both.
constexpr int kSwappers = 8;

// NVSHMEM names its functions by type; these pick them by type.
template <class T>
struct Atomic;

#define PROG_ATOMIC_COMMON(Type, name)                            \
    static __device__ void set(Type *word, Type value, int pe) {  \
        nvshmem_##name##_atomic_set(word, value, pe);             \
    }                                                             \
    static __device__ Type swap(Type *word, Type value, int pe) { \
        return nvshmem_##name##_atomic_swap(word, value, pe);     \
    }                                                             \
    static __device__ Type fetch(const Type *word, int pe) {      \
        return nvshmem_##name##_atomic_fetch(word, pe);           \
    }                                                             \
    static constexpr const char *kName = #name

#define PROG_ATOMIC_INTEGER(Type, name, arithmetic)                                          \
    template <>                                                                              \
    struct Atomic<Type> {                                                                    \
        PROG_ATOMIC_COMMON(Type, name);                                                      \
        static __device__ void inc(Type *word, int pe) {                                     \
            nvshmem_##arithmetic##_atomic_inc(word, pe);                                     \
        }                                                                                    \
        static __device__ void add(Type *word, Type value, int pe) {                         \
            nvshmem_##arithmetic##_atomic_add(word, value, pe);                              \
        }                                                                                    \
        static __device__ void bit_and(Type *word, Type value, int pe) {                     \
            nvshmem_##name##_atomic_and(word, value, pe);                                    \
        }                                                                                    \
        static __device__ void bit_or(Type *word, Type value, int pe) {                      \
            nvshmem_##name##_atomic_or(word, value, pe);                                     \
        }                                                                                    \
        static __device__ void bit_xor(Type *word, Type value, int pe) {                     \
            nvshmem_##name##_atomic_xor(word, value, pe);                                    \
        }                                                                                    \
        static __device__ Type fetch_inc(Type *word, int pe) {                               \
            return nvshmem_##arithmetic##_atomic_fetch_inc(word, pe);                        \
        }                                                                                    \
        static __device__ Type fetch_add(Type *word, Type value, int pe) {                   \
            return nvshmem_##arithmetic##_atomic_fetch_add(word, value, pe);                 \
        }                                                                                    \
        static __device__ Type fetch_and(Type *word, Type value, int pe) {                   \
            return nvshmem_##name##_atomic_fetch_and(word, value, pe);                       \
        }                                                                                    \
        static __device__ Type fetch_or(Type *word, Type value, int pe) {                    \
            return nvshmem_##name##_atomic_fetch_or(word, value, pe);                        \
        }                                                                                    \
        static __device__ Type fetch_xor(Type *word, Type value, int pe) {                   \
            return nvshmem_##name##_atomic_fetch_xor(word, value, pe);                       \
        }                                                                                    \
        static __device__ Type compare_swap(Type *word, Type expected, Type value, int pe) { \
            return nvshmem_##name##_atomic_compare_swap(word, expected, value, pe);          \
        }                                                                                    \
    }

#define PROG_ATOMIC_FLOATING(Type, name) \
    template <>                          \
    struct Atomic<Type> {                \
        PROG_ATOMIC_COMMON(Type, name);  \
    }

// NVSHMEM's device library, 3.4 to 3.8, lacks inc, add and their fetching forms by the name int64.
static_assert(std::is_same_v<int64_t, long>, "the functions for long stand in for int64");
PROG_ATOMIC_INTEGER(int32_t, int32, int32);
PROG_ATOMIC_INTEGER(uint32_t, uint32, uint32);
PROG_ATOMIC_INTEGER(int64_t, int64, long);
PROG_ATOMIC_INTEGER(uint64_t, uint64, uint64);
PROG_ATOMIC_FLOATING(float, float);
PROG_ATOMIC_FLOATING(double, double);

#undef PROG_ATOMIC_FLOATING
#undef PROG_ATOMIC_INTEGER
#undef PROG_ATOMIC_COMMON

// The words of a PE. Those that all PEs share come once. Where a value tells its source, or a bit
// its thread, each source PE has words of its own: 'Of' holds them, at [pe].
template <class T>
struct Shared {
    T inc;
    T add;
    T fetch_inc;
    T fetch_add;
    T compare_swap;
    T set;
    T fetch;
};
template <class T>
struct Of {
    T set[kThreads];
    T swap;
    T bit_and;
    T bit_or;
    T bit_xor;
    T fetch_and;
    T fetch_or;
    T fetch_xor;
};

// What one PE's threads were returned by one target, in memory of its own.
template <class T>
struct Returned {
    T fetch_inc[kThreads][kTimes];
    T fetch_add[kThreads][kTimes];
    T swap[kThreads];
    T last_swap;  // what the word held when all had swapped
    T fetch[kThreads];
    T fetch_and[kThreads];
    T fetch_or[kThreads];
    T fetch_xor[kThreads];
};

constexpr int kFetched = 1234567;  // fits a float's fraction
constexpr int kAddend = 3;

// A value that tells who stored it, exact in every type; never 0.
template <class T>
PROG_BOTH T token(int pe, int thread) {
    return T(1 + pe * kThreads + thread);
}

template <class T>
PROG_BOTH T bit_of(int thread) {
    return T(std::make_unsigned_t<T>(1) << thread);
}

// One block of kThreads threads in each PE, on the words of 'target'.
template <class T>
__device__ void work_on_any(Shared<T> *shared, Of<T> *of, Returned<T> *returned, int me,
                            int target) {
    const int thread = threadIdx.x;
    Atomic<T>::set(&shared->set, token<T>(me, thread), target);
    Atomic<T>::set(&of[me].set[thread], token<T>(me, thread), target);
    returned->swap[thread] = Atomic<T>::swap(&of[me].swap, token<T>(me, thread), target);
    __syncthreads();
    if (thread == 0) {
        returned->last_swap = Atomic<T>::fetch(&of[me].swap, target);
    }
    returned->fetch[thread] = Atomic<T>::fetch(&shared->fetch, target);
}

template <class T>
__device__ void work_on_integers(Shared<T> *shared, Of<T> *of, Returned<T> *returned, int me,
                                 int target) {
    using A = Atomic<T>;
    const int thread = threadIdx.x;
    const T bit = bit_of<T>(thread);
    for (int i = 0; i < kTimes; i++) {
        A::inc(&shared->inc, target);
        A::add(&shared->add, T(thread + 1), target);
        returned->fetch_inc[thread][i] = A::fetch_inc(&shared->fetch_inc, target);
        returned->fetch_add[thread][i] = A::fetch_add(&shared->fetch_add, T(kAddend), target);
    }
    A::bit_and(&of[me].bit_and, T(~bit), target);
    A::bit_or(&of[me].bit_or, bit, target);
    A::bit_xor(&of[me].bit_xor, bit, target);
    returned->fetch_and[thread] = A::fetch_and(&of[me].fetch_and, T(~bit), target);
    returned->fetch_or[thread] = A::fetch_or(&of[me].fetch_or, bit, target);
    returned->fetch_xor[thread] = A::fetch_xor(&of[me].fetch_xor, bit, target);

    if (thread < kSwappers) {
        // Adds one, as code without fetch_add would. Every failure means that a rival went ahead.
        T seen = 0;
        for (;;) {
            const T found = A::compare_swap(&shared->compare_swap, seen, T(seen + 1), target);
            if (found == seen) {
                break;
            }
            seen = found;
        }
    }
}

template <class T>
__global__ void work(Shared<T> *shared, Of<T> *of, Returned<T> *returned, bool self) {
    const int me = nvshmem_my_pe();
    for (int i = self ? 0 : 1; i < nvshmem_n_pes(); i++) {
        const int target = (me + i) % nvshmem_n_pes();
        work_on_any(shared, of, &returned[target], me, target);
        if constexpr (std::is_integral_v<T>) {
            work_on_integers(shared, of, &returned[target], me, target);
        }
    }
    nvshmem_quiet();
}

// Says what differs, with the type before it.
template <class T>
class Checker {
  public:
    explicit Checker(Job &job) : job_(job) {}

    void equal(const std::string &what, T got, T expected) {
        if (got != expected) {
            wrong(what, "got " + std::to_string(got) + ", expected " + std::to_string(expected));
        }
    }
    void wrong(const std::string &what, const std::string &how) {
        job_.fail(std::string(Atomic<T>::kName) + " " + what + ": " + how);
    }
    // Every value once, each a multiple of 'step' from 0 to below 'end'.
    void distinct(const std::string &what, std::vector<T> values, T step, T end) {
        std::sort(values.begin(), values.end());
        for (size_t i = 0; i < values.size(); i++) {
            // As unsigned, a negative value is too large.
            using Unsigned = std::make_unsigned_t<T>;
            if (Unsigned(values[i]) >= Unsigned(end) || values[i] % step != 0) {
                wrong(what,
                      "returned " + std::to_string(values[i]) + ", which the word never held");
            } else if (i > 0 && values[i] == values[i - 1]) {
                wrong(what, "returned " + std::to_string(values[i]) + " twice");
            }
        }
    }

  private:
    Job &job_;
};

// The words that others have worked on.
template <class T>
void check_words(Job &job, const Shared<T> &shared, const std::vector<Of<T>> &of,
                 const std::vector<int> &sources) {
    Checker<T> check(job);
    const int n = int(sources.size());
    check.equal("fetch, the word", shared.fetch, T(kFetched));
    bool known = false;
    for (const int pe : sources) {
        const std::string from = " by PE " + std::to_string(pe);
        for (int thread = 0; thread < kThreads; thread++) {
            known = known || shared.set == token<T>(pe, thread);
            check.equal("set" + from, of[pe].set[thread], token<T>(pe, thread));
        }
        if constexpr (std::is_integral_v<T>) {
            // The bits of all threads; kThreads is 32, and so the width of the narrower types.
            const T bits = T(0xffffffff);
            check.equal("and" + from, of[pe].bit_and, T(~bits));
            check.equal("or" + from, of[pe].bit_or, bits);
            check.equal("xor" + from, of[pe].bit_xor, bits);
            check.equal("fetch_and, the word" + from, of[pe].fetch_and, T(~bits));
            check.equal("fetch_or, the word" + from, of[pe].fetch_or, bits);
            check.equal("fetch_xor, the word" + from, of[pe].fetch_xor, bits);
        }
    }
    if (!known) {
        check.wrong("set",
                    "the word holds " + std::to_string(shared.set) + ", which nobody stored");
    }
    if constexpr (std::is_integral_v<T>) {
        const int operations = n * kThreads * kTimes;
        check.equal("inc", shared.inc, T(operations));
        check.equal("add", shared.add, T(n * kTimes * kThreads * (kThreads + 1) / 2));
        check.equal("fetch_inc, the word", shared.fetch_inc, T(operations));
        check.equal("fetch_add, the word", shared.fetch_add, T(operations * kAddend));
        check.equal("compare_swap", shared.compare_swap, T(n * kSwappers));
    }
}

// What this PE was returned by 'target', on whose words 'sources' PEs have worked.
template <class T>
void check_returned(Job &job, const Returned<T> &returned, int target, int sources) {
    Checker<T> check(job);
    const std::string at = " at PE " + std::to_string(target);
    for (int thread = 0; thread < kThreads; thread++) {
        check.equal("fetch" + at, returned.fetch[thread], T(kFetched));
    }
    // Each swap returns what another one stored, the first what was there before.
    std::vector<T> seen(returned.swap, returned.swap + kThreads), expected{T(0)};
    seen.push_back(returned.last_swap);
    for (int thread = 0; thread < kThreads; thread++) {
        expected.push_back(token<T>(job.pe(), thread));
    }
    std::sort(seen.begin(), seen.end());
    if (seen != expected) {
        check.wrong("swap" + at, "the values returned are not those stored");
    }
    if constexpr (std::is_integral_v<T>) {
        const int operations = sources * kThreads * kTimes;
        const T *incremented = &returned.fetch_inc[0][0];
        const T *added = &returned.fetch_add[0][0];
        const int count = kThreads * kTimes;
        check.distinct("fetch_inc" + at, {incremented, incremented + count}, 1, T(operations));
        check.distinct("fetch_add" + at, {added, added + count}, T(kAddend),
                       T(operations * kAddend));
        for (int thread = 0; thread < kThreads; thread++) {
            const T bit = bit_of<T>(thread);
            check.equal("fetch_and, own bit" + at, T(returned.fetch_and[thread] & bit), bit);
            check.equal("fetch_or, own bit" + at, T(returned.fetch_or[thread] & bit), T(0));
            check.equal("fetch_xor, own bit" + at, T(returned.fetch_xor[thread] & bit), T(0));
        }
    }
}

template <class T>
void verify(Job &job, bool self) {
    const int n = job.n_pes();
    Symmetric<Shared<T>> shared(job, 1);
    Symmetric<Of<T>> of(job, n);
    Returned<T> *returned = nullptr;
    job.require(cudaMalloc(&returned, n * sizeof *returned), "cudaMalloc");

    Shared<T> shared_before{};
    shared_before.fetch = T(kFetched);
    shared.write({shared_before});
    std::vector<Of<T>> of_before(n, Of<T>{});
    for (Of<T> &words : of_before) {
        if constexpr (std::is_integral_v<T>) {
            words.bit_and = T(~T(0));
            words.fetch_and = T(~T(0));
        }
    }
    of.write(of_before);
    job.barrier();
    launch(job, work<T>, 1, kThreads, shared.get(), of.get(), returned, self);
    job.barrier();

    std::vector<int> sources;
    for (int pe = 0; pe < n; pe++) {
        if (self || pe != job.pe()) {
            sources.push_back(pe);
        }
    }
    check_words(job, shared.read()[0], of.read(), sources);
    std::vector<Returned<T>> got(n);
    job.require(cudaMemcpy(got.data(), returned, n * sizeof *returned, cudaMemcpyDeviceToHost),
                "cudaMemcpy");
    for (const int target : sources) {
        check_returned(job, got[target], target, int(sources.size()));
    }
    job.require(cudaFree(returned), "cudaFree");
}

// What is timed; the first three wait for their result.
enum class Timed { fetch_add, compare_swap, swap, add_and_quiet };

template <class T>
__global__ void one_by_one(T *word, Timed timed, int pe, int iterations) {
    T seen = 0;
    for (int i = 0; i < iterations; i++) {
        switch (timed) {
            case Timed::fetch_add: seen += Atomic<T>::fetch_add(word, 1, pe); break;
            case Timed::compare_swap: seen = Atomic<T>::compare_swap(word, seen, T(i), pe); break;
            case Timed::swap: seen += Atomic<T>::swap(word, T(i), pe); break;
            case Timed::add_and_quiet:
                Atomic<T>::add(word, 1, pe);
                nvshmem_quiet();
                break;
        }
    }
    // Into this PE's own word, so that no result is without use.
    *word = seen;
}

template <class T>
__global__ void add_many(T *word, int pe, int iterations) {
    for (int i = 0; i < iterations; i++) {
        Atomic<T>::add(word, 1, pe);
    }
    nvshmem_quiet();
}

template <class T>
void measure_latency(Job &job, uint64_t iterations, const Table &table) {
    Symmetric<T> word(job, 1);
    const std::pair<Timed, const char *> all[] = {{Timed::fetch_add, "fetch_add"},
                                                  {Timed::compare_swap, "compare_swap"},
                                                  {Timed::swap, "swap"},
                                                  {Timed::add_and_quiet, "add, quiet"}};
    job.on_pe_0([&] {
        for (const auto &[which, name] : all) {
            table.row(sizeof(T), name, timed(job, iterations, [&, which = which](int count) {
                          launch(job, one_by_one<T>, 1, 1, word.get(), which, job.next(), count);
                      }));
        }
    });
}

template <class T>
void measure_rate(Job &job, uint64_t iterations, const Table &table) {
    constexpr int kBlocks = 4, kBlockThreads = 128;
    Symmetric<T> word(job, 1);
    job.on_pe_0([&] {
        const double microseconds = timed(job, iterations, [&](int count) {
            launch(job, add_many<T>, kBlocks, kBlockThreads, word.get(), job.next(), count);
        });
        table.row(sizeof(T), "add, 512 threads", kBlocks * kBlockThreads / microseconds);
    });
}

}  // namespace

int main(int argc, char **argv) {
    uint64_t iterations = 20, self = 1;
    parse_or_exit(argc, argv, "atomics", "Every atomic operation, contended and exact.",
                  {{"iters", "timed operations", &iterations, 1, 1'000'000},
                   {"self", "1: a PE's own threads work on its words too", &self, 0, 1}});
    Job job("atomics");
    verify<int32_t>(job, self == 1);
    verify<uint32_t>(job, self == 1);
    verify<int64_t>(job, self == 1);
    verify<uint64_t>(job, self == 1);
    verify<float>(job, self == 1);
    verify<double>(job, self == 1);
    {
        const Table table(job, "one atomic, PE 0 on PE 1", kLatency);
        measure_latency<uint32_t>(job, iterations, table);
        measure_latency<uint64_t>(job, iterations, table);
    }
    {
        const Table table(job, "atomics on one word without waiting, PE 0 on PE 1", kRate);
        measure_rate<uint32_t>(job, iterations, table);
        measure_rate<uint64_t>(job, iterations, table);
    }
    return job.finish();
}
