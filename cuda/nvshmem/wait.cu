// wait: waiting for a word to change, and looking whether it has.
//
// Every comparison, on 32 and 64 bits, signed and not; the calls on many words; the calls that only
// look. Each PE puts into the next one's words and waits for its own to change.
#include <limits>

#include "device.cuh"

using namespace prog;

namespace {

// The words of the calls on many; one of them is never written, and excluded by its status.
constexpr size_t kMany = 9;
constexpr size_t kExcluded = 4;

// One comparison: a word that holds 'before' does not satisfy it, one that holds 'after' does.
template <class T>
struct Case {
    int comparison;
    T before;
    T operand;
    T after;
};

template <class T>
std::vector<Case<T>> cases() {
    // The numbers are far apart in a sense that needs the whole width and, if T has one, the sign.
    const T low = std::numeric_limits<T>::min() + 1;
    const T high = std::numeric_limits<T>::max() - 1;
    return {{NVSHMEM_CMP_EQ, low, high, high},        {NVSHMEM_CMP_NE, high, high, low},
            {NVSHMEM_CMP_GT, low, T(high - 1), high}, {NVSHMEM_CMP_GE, low, high, high},
            {NVSHMEM_CMP_LT, high, T(low + 1), low},  {NVSHMEM_CMP_LE, high, low, low}};
}

// NVSHMEM names its functions by type; this picks them by type.
template <class T>
struct Wait;
#define PROG_WAIT(Type, name)                                                    \
    template <>                                                                  \
    struct Wait<Type> {                                                          \
        static constexpr const char *kName = #name;                              \
        static __device__ void p(Type *word, Type value, int pe) {               \
            nvshmem_##name##_p(word, value, pe);                                 \
        }                                                                        \
        static __device__ void until(Type *word, int comparison, Type operand) { \
            nvshmem_##name##_wait_until(word, comparison, operand);              \
        }                                                                        \
        static __device__ int test(Type *word, int comparison, Type operand) {   \
            return nvshmem_##name##_test(word, comparison, operand);             \
        }                                                                        \
    }
PROG_WAIT(int32_t, int32);
PROG_WAIT(uint32_t, uint32);
PROG_WAIT(int64_t, int64);
PROG_WAIT(uint64_t, uint64);
#undef PROG_WAIT

// One thread. Even cases wait, odd ones look until the answer is yes; the next pass swaps them.
template <class T>
__global__ void compare(T *words, const Case<T> *cases, int count, int pass, Finding *finding) {
    const int next = (nvshmem_my_pe() + 1) % nvshmem_n_pes();
    for (int i = 0; i < count; i++) {
        Wait<T>::p(&words[i], cases[i].after, next);
        if (i % 2 == pass) {
            Wait<T>::until(&words[i], cases[i].comparison, cases[i].operand);
        } else {
            const uint64_t begin = now_ns();
            while (!Wait<T>::test(&words[i], cases[i].comparison, cases[i].operand) &&
                   now_ns() - begin < kPatienceNs) {
            }
        }
        const T seen = *(volatile T *)&words[i];
        if (seen != cases[i].after) {
            report(finding, i, i, uint64_t(seen), uint64_t(cases[i].after));
        }
    }
    nvshmem_quiet();
}

// Notes a word that a call named although it was not there, or not to be looked at.
__device__ void check_index(const uint64_t *words, size_t index, uint64_t round, Finding *finding) {
    const uint64_t seen = index < kMany ? ((volatile uint64_t *)words)[index] : 0;
    if (index >= kMany || index == kExcluded || seen != round) {
        report(finding, round, index, seen, round);
    }
}

__device__ void put_words(uint64_t *words, uint64_t round, int pe) {
    // From behind, so that what comes first is not what is looked at first.
    for (size_t i = kMany; i-- > 0;) {
        if (i != kExcluded) {
            nvshmem_uint64_p(&words[i], round, pe);
        }
    }
    nvshmem_quiet();
}

enum class Call { wait_all, wait_any, wait_some, wait_all_vector, test };

const char *name_of(Call call) {
    switch (call) {
        case Call::wait_all: return "wait_until_all";
        case Call::wait_any: return "wait_until_any";
        case Call::wait_some: return "wait_until_some";
        case Call::wait_all_vector: return "wait_until_all_vector";
        default: return "test_all, _any and _some";
    }
}

// What the calls on many words work with. 'status' leaves words out, where it is not 0.
struct Many {
    uint64_t *words;
    int *status;
    size_t *indices;
    uint64_t *operands;
};

// Finds the words of a round one after the other; each that was found is left out of the next
// search.
__device__ void find_each(Many many, uint64_t round, Finding *finding) {
    for (size_t found = 0; found < kMany - 1; found++) {
        const size_t index =
            nvshmem_uint64_wait_until_any(many.words, kMany, many.status, NVSHMEM_CMP_GE, round);
        check_index(many.words, index, round, finding);
        many.status[index % kMany] = 1;
    }
}

__device__ void find_some(Many many, uint64_t round, Finding *finding) {
    for (size_t found = 0; found < kMany - 1;) {
        const size_t some = nvshmem_uint64_wait_until_some(many.words, kMany, many.indices,
                                                           many.status, NVSHMEM_CMP_GE, round);
        if (some == 0 || some > kMany - 1 - found) {
            report(finding, round, found, some, 1);
            return;
        }
        for (size_t i = 0; i < some; i++) {
            check_index(many.words, many.indices[i], round, finding);
            many.status[many.indices[i] % kMany] = 1;
        }
        found += some;
    }
}

__device__ void look(Many many, uint64_t round, Finding *finding) {
    const uint64_t begin = now_ns();
    while (!nvshmem_uint64_test_all(many.words, kMany, many.status, NVSHMEM_CMP_GE, round)) {
        if (now_ns() - begin > kPatienceNs) {
            report(finding, round, kMany, 0, 1);
            return;
        }
    }
    const size_t some = nvshmem_uint64_test_some(many.words, kMany, many.indices, many.status,
                                                 NVSHMEM_CMP_GE, round);
    if (some != kMany - 1) {
        report(finding, round, kMany, some, kMany - 1);
    }
    check_index(many.words,
                nvshmem_uint64_test_any(many.words, kMany, many.status, NVSHMEM_CMP_GE, round),
                round, finding);
    // And of the next round there is nothing yet.
    if (nvshmem_uint64_test_all(many.words, kMany, many.status, NVSHMEM_CMP_GT, round) ||
        nvshmem_uint64_test_any(many.words, kMany, many.status, NVSHMEM_CMP_GT, round) !=
            SIZE_MAX ||
        nvshmem_uint64_test_some(many.words, kMany, many.indices, many.status, NVSHMEM_CMP_GT,
                                 round) != 0) {
        report(finding, round, kMany, 1, 0);
    }
}

// One thread. Puts the round's number into the next PE's words, all but the one that is left out,
// and waits for its own.
__global__ void wait_for_many(Many many, Call call, uint64_t round, Finding *finding) {
    for (size_t i = 0; i < kMany; i++) {
        many.status[i] = i == kExcluded;
        many.operands[i] = round;
    }
    put_words(many.words, round, (nvshmem_my_pe() + 1) % nvshmem_n_pes());
    switch (call) {
        case Call::wait_all:
            nvshmem_uint64_wait_until_all(many.words, kMany, many.status, NVSHMEM_CMP_GE, round);
            break;
        case Call::wait_any: find_each(many, round, finding); break;
        case Call::wait_some: find_some(many, round, finding); break;
        case Call::wait_all_vector:
            nvshmem_uint64_wait_until_all_vector(many.words, kMany, many.status, NVSHMEM_CMP_EQ,
                                                 many.operands);
            break;
        case Call::test: look(many, round, finding); break;
    }
    for (size_t i = 0; i < kMany; i++) {
        if (i != kExcluded) {
            check_index(many.words, i, round, finding);
        }
    }
}

// PE 0 and PE 1: a word to and fro. The first round is not timed: in it, one waits for the other's
// kernel to begin.
__global__ void ping_pong(uint64_t *word, int rounds, uint64_t *nanoseconds) {
    const int me = nvshmem_my_pe();
    if (me > 1) {
        return;
    }
    uint64_t timed_from = 0;
    for (int round = 1; round <= 1 + rounds; round++) {
        if (me == 0) {
            nvshmem_uint64_p(word, uint64_t(round), 1);
        }
        nvshmem_uint64_wait_until(word, NVSHMEM_CMP_EQ, uint64_t(round));
        if (me == 1) {
            nvshmem_uint64_p(word, uint64_t(round), 0);
        }
        if (round == 1) {
            timed_from = now_ns();
        }
    }
    *nanoseconds = now_ns() - timed_from;
    nvshmem_quiet();
}

// Memory of this PE alone, which kernels use as scratch.
template <class T>
class Scratch {
  public:
    Scratch(const Job &job, size_t count) {
        job.require(cudaMalloc(&data_, count * sizeof(T)), "cudaMalloc");
    }
    ~Scratch() { cudaFree(data_); }
    Scratch(const Scratch &) = delete;
    Scratch &operator=(const Scratch &) = delete;

    T *get() const { return data_; }

  private:
    T *data_ = nullptr;
};

template <class T>
void verify_comparisons(Job &job) {
    const std::vector<Case<T>> all = cases<T>();
    Symmetric<T> words(job, all.size());
    Symmetric<Case<T>> device_cases(job, all.size());
    device_cases.write(all);
    Mapped<Finding> finding(job);
    for (int pass = 0; pass < 2; pass++) {
        std::vector<T> before;
        for (const Case<T> &one : all) {
            before.push_back(one.before);
        }
        words.write(before);
        job.barrier();
        launch_together(job, compare<T>, 1, 1, words.get(), device_cases.get(), int(all.size()),
                        pass, finding.device());
        job.barrier();
        check_finding(job, std::string("comparisons of ") + Wait<T>::kName, "case", *finding);
    }
}

void verify_many(Job &job) {
    Symmetric<uint64_t> words(job, kMany);
    const Scratch<int> status(job, kMany);
    const Scratch<size_t> indices(job, kMany);
    const Scratch<uint64_t> operands(job, kMany);
    Mapped<Finding> finding(job);
    const Many many{words.get(), status.get(), indices.get(), operands.get()};
    uint64_t round = 0;
    for (const Call call :
         {Call::wait_all, Call::wait_any, Call::wait_some, Call::wait_all_vector, Call::test}) {
        round++;
        launch_together(job, wait_for_many, 1, 1, many, call, round, finding.device());
        // Nobody begins the next round before all have looked at this one's words.
        job.barrier();
        check_finding(job, name_of(call), "word", *finding);
    }
}

void measure(Job &job, uint64_t iterations) {
    Symmetric<uint64_t> word(job, 1);
    Mapped<uint64_t> nanoseconds(job);
    job.barrier();
    launch_together(job, ping_pong, 1, 1, word.get(), int(iterations), nanoseconds.device());
    job.barrier();
    const Table table(job, "p and wait_until, there and back, halved, PE 0 and PE 1", kLatency);
    table.row(sizeof(uint64_t), "thread", double(*nanoseconds) / 1e3 / double(2 * iterations));
}

}  // namespace

int main(int argc, char **argv) {
    uint64_t iterations = 50;
    parse_or_exit(argc, argv, "wait", "Waiting for words to change, and looking whether they have.",
                  {{"iters", "timed words to and fro", &iterations, 1, 1'000'000}});
    Job job("wait");
    verify_comparisons<int32_t>(job);
    verify_comparisons<uint32_t>(job);
    verify_comparisons<int64_t>(job);
    verify_comparisons<uint64_t>(job);
    verify_many(job);
    measure(job, iterations);
    return job.finish();
}
