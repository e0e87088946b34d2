// experts: tokens go to the experts that a router has chosen for them, and come back: the two all-to-alls of a
// mixture of experts, from kernels.
//
// Every PE has eight experts and some tokens. The router picks several experts for each token, anywhere in the job.
// 'dispatch' sends a token to each of them; 'experts' does their work and sends the results back; 'combine' adds these up
// with the router's weights. Nobody asks anybody for room, and nothing is fenced: where a token goes depends on its sender
// alone, a put with a signal carries it, and the receiver counts. A PE tells every expert first how many tokens
// to expect.
#include <cuda_bf16.h>

#include <cmath>

#include "device.cuh"

using namespace prog;

namespace {

constexpr int kHidden = 7168;  // values of a token
constexpr int kExperts = 8;    // of a PE
constexpr int kMostChosen = 8;
constexpr int kThreads = 256;
constexpr int kMostBlocks = 64;

// A token on its way to an expert. It says for whom it is, so that one copy serves all who get it.
struct Token {
    int32_t number;  // at its PE
    int16_t chosen[kMostChosen];
    int32_t unused[3];  // so that values are aligned as the GPU reads them best
    __nv_bfloat16 values[kHidden];
};

// What all PEs have in their symmetric heaps. Of a job with n PEs and t tokens each.
struct Heap {
    Token *outgoing;         // [t]
    Token *received;         // [expert][PE it comes from][t]
    __nv_bfloat16 *results;  // [expert][PE it goes to][t][kHidden]
    __nv_bfloat16 *returned; // [t][chosen][kHidden]
    uint64_t *expected;      // [expert][PE]: tokens that come, and one more
    uint64_t *arrived;       // [expert][PE]: tokens that are here
    uint64_t *back;          // [PE]: results that are here
};

// What a PE's router says, and what it counts.
struct Routes {
    const int16_t *chosen;  // [t][kMostChosen]: experts, counted through all PEs
    const float *weights;   // [t][kMostChosen]
    int *taken;             // [experts of all PEs]: places given away
    int tokens;
    int per_token;
};

// The work of an expert: small factors, of which no value gets too long for a bfloat16.
PROG_BOTH float factor_of(int expert) { return float(1 + expert % 4); }

// The values of a token, from -32 to 31.
PROG_BOTH float value_of(uint64_t seed, int token, int at) {
    return float(int(mixed(seed + uint64_t(token) * kHidden + at) & 63) - 32);
}

__global__ void make_tokens(Heap heap, Routes routes, uint64_t seed) {
    for (int token = blockIdx.x; token < routes.tokens; token += gridDim.x) {
        Token *made = &heap.outgoing[token];
        if (threadIdx.x == 0) {
            made->number = token;
            for (int k = 0; k < routes.per_token; k++) {
                made->chosen[k] = routes.chosen[token * kMostChosen + k];
            }
        }
        for (int at = threadIdx.x; at < kHidden; at += blockDim.x) {
            made->values[at] = __float2bfloat16(value_of(seed, token, at));
        }
    }
}

// Which of the experts of the job a token was sent to: that of 'expert' among its choices.
__device__ int choice_of(const Token &token, int expert, int per_token) {
    int choice = 0;
    while (choice < per_token && token.chosen[choice] != expert) {
        choice++;
    }
    return choice;
}

// Blocks take tokens by turns. Counts first, so that experts know what to wait for.
__global__ void dispatch(Heap heap, Routes routes) {
    const int me = nvshmem_my_pe();
    const int n = nvshmem_n_pes();
    for (int expert = blockIdx.x; expert < n * kExperts; expert += gridDim.x) {
        // Every block counts all choices of an expert, which is quicker than to agree.
        __shared__ int count;
        if (threadIdx.x == 0) {
            count = 0;
        }
        __syncthreads();
        for (int i = threadIdx.x; i < routes.tokens * kMostChosen; i += blockDim.x) {
            if (i % kMostChosen < routes.per_token && routes.chosen[i] == expert) {
                atomicAdd(&count, 1);
            }
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            nvshmemx_signal_op(&heap.expected[(expert % kExperts) * n + me], uint64_t(count) + 1,
                               NVSHMEM_SIGNAL_SET, expert / kExperts);
        }
        __syncthreads();
    }
    for (int token = blockIdx.x; token < routes.tokens; token += gridDim.x) {
        for (int k = 0; k < routes.per_token; k++) {
            const int expert = routes.chosen[token * kMostChosen + k];
            const int row = (expert % kExperts) * n + me;
            __shared__ int place;
            if (threadIdx.x == 0) {
                place = atomicAdd(&routes.taken[expert], 1);
            }
            __syncthreads();
            nvshmemx_putmem_signal_nbi_block(
                &heap.received[size_t(row) * routes.tokens + place], &heap.outgoing[token],
                sizeof(Token), &heap.arrived[row], 1, NVSHMEM_SIGNAL_ADD, expert / kExperts);
            __syncthreads();
        }
    }
}

// A block for each expert of this PE and each PE that it gets tokens from.
__global__ void experts(Heap heap, Routes routes, Finding *finding) {
    const int me = nvshmem_my_pe();
    const int n = nvshmem_n_pes();
    const int row = blockIdx.x;
    const int from = row % n;
    const int expert = me * kExperts + row / n;
    __shared__ bool here;
    if (threadIdx.x == 0) {
        here = wait_at_least(&heap.expected[row], 1) &&
               wait_at_least(&heap.arrived[row], heap.expected[row] - 1);
        if (!here) {
            report(finding, 0, row, heap.arrived[row], heap.expected[row]);
        }
    }
    __syncthreads();
    const int count = here ? int(heap.expected[row] - 1) : 0;
    for (int i = 0; i < count; i++) {
        const size_t place = size_t(row) * routes.tokens + i;
        const Token &token = heap.received[place];
        __nv_bfloat16 *result = &heap.results[place * kHidden];
        for (int at = threadIdx.x; at < kHidden; at += blockDim.x) {
            result[at] = __float2bfloat16(__bfloat162float(token.values[at]) * factor_of(expert));
        }
        const int choice = choice_of(token, expert, routes.per_token);
        // Visible to whoever sends it.
        __threadfence_system();
        __syncthreads();
        if (choice == routes.per_token || token.number >= routes.tokens) {
            if (threadIdx.x == 0) {
                report(finding, 0, place, token.number, expert);
            }
            continue;
        }
        nvshmemx_putmem_signal_nbi_block(
            &heap.returned[(size_t(token.number) * routes.per_token + choice) * kHidden], result,
            kHidden * sizeof *result, &heap.back[me], 1, NVSHMEM_SIGNAL_ADD, from);
    }
}

__global__ void combine(Heap heap, Routes routes, __nv_bfloat16 *combined, Finding *finding) {
    const int n = nvshmem_n_pes();
    __shared__ bool here;
    if (threadIdx.x == 0) {
        here = true;
        for (int pe = 0; pe < n; pe++) {
            uint64_t sent = 0;
            for (int expert = pe * kExperts; expert < (pe + 1) * kExperts; expert++) {
                sent += routes.taken[expert];
            }
            if (!wait_at_least(&heap.back[pe], sent)) {
                report(finding, 0, pe, heap.back[pe], sent);
                here = false;
            }
        }
    }
    __syncthreads();
    for (int token = blockIdx.x; here && token < routes.tokens; token += gridDim.x) {
        for (int at = threadIdx.x; at < kHidden; at += blockDim.x) {
            float sum = 0;
            for (int k = 0; k < routes.per_token; k++) {
                const size_t row = size_t(token) * routes.per_token + k;
                const float part = __bfloat162float(heap.returned[row * kHidden + at]);
                sum = fmaf(routes.weights[token * kMostChosen + k], part, sum);
            }
            combined[size_t(token) * kHidden + at] = __float2bfloat16(sum);
        }
    }
    // What this PE has sent may be overwritten from now on.
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        nvshmem_quiet();
    }
}

// Memory of the device that is nobody else's.
template <class T>
class Private {
  public:
    Private(Job &job, size_t count) : job_(job), count_(count) {
        job.require(cudaMalloc(&data_, count * sizeof(T)), "cudaMalloc");
    }
    ~Private() { cudaFree(data_); }
    Private(const Private &) = delete;
    Private &operator=(const Private &) = delete;

    T *get() const { return data_; }
    void zero() {
        job_.require(cudaMemsetAsync(data_, 0, count_ * sizeof(T), job_.stream()), "cudaMemset");
    }
    void write(const std::vector<T> &values) {
        copy(data_, values.data(), cudaMemcpyHostToDevice);
    }
    std::vector<T> read() const {
        std::vector<T> values(count_);
        copy(values.data(), data_, cudaMemcpyDeviceToHost);
        return values;
    }

  private:
    void copy(void *to, const void *from, cudaMemcpyKind kind) const {
        job_.require(cudaMemcpyAsync(to, from, count_ * sizeof(T), kind, job_.stream()),
                     "cudaMemcpy");
        job_.synchronize();
    }

    Job &job_;
    size_t count_;
    T *data_ = nullptr;
};

// The router of this PE in a round: different experts for each token, and a weight for each.
struct Router {
    std::vector<int16_t> chosen;
    std::vector<float> weights;

    Router(uint64_t seed, int tokens, int per_token, int experts)
        : chosen(size_t(tokens) * kMostChosen, -1), weights(size_t(tokens) * kMostChosen) {
        std::vector<int16_t> all(experts);
        for (int token = 0; token < tokens; token++) {
            for (int expert = 0; expert < experts; expert++) {
                all[expert] = int16_t(expert);
            }
            for (int k = 0; k < per_token; k++) {
                const size_t at = size_t(token) * kMostChosen + k;
                const uint64_t random = mixed(seed ^ mixed(at + 1));
                std::swap(all[k], all[k + random % uint64_t(experts - k)]);
                chosen[at] = all[k];
                weights[at] = float((random >> 40) + 1) / float(1 << 24);
            }
        }
    }
};

// What 'combine' must come to, bit for bit: sums in the same order, rounded alike.
void check(Job &job, const std::vector<__nv_bfloat16> &got, const Router &router, uint64_t seed,
           uint64_t round, int tokens, int per_token) {
    for (int token = 0; token < tokens; token++) {
        for (int at = 0; at < kHidden; at++) {
            float sum = 0;
            for (int k = 0; k < per_token; k++) {
                const size_t choice = size_t(token) * kMostChosen + k;
                const float part = value_of(seed, token, at) * factor_of(router.chosen[choice]);
                sum = std::fma(router.weights[choice], part, sum);
            }
            const float expected = __bfloat162float(__float2bfloat16(sum));
            const float value = __bfloat162float(got[size_t(token) * kHidden + at]);
            if (value != expected) {
                job.fail("round " + std::to_string(round) + ", token " + std::to_string(token) +
                         ", value " + std::to_string(at) + ": got " + std::to_string(value) +
                         ", expected " + std::to_string(expected));
                return;
            }
        }
    }
}

void run(Job &job, int tokens, int per_token, uint64_t rounds) {
    const int n = job.n_pes();
    const int all_experts = n * kExperts;
    const size_t rows = size_t(kExperts) * n;
    Symmetric<Token> outgoing(job, tokens), received(job, rows * tokens);
    Symmetric<__nv_bfloat16> results(job, rows * tokens * kHidden);
    Symmetric<__nv_bfloat16> returned(job, size_t(tokens) * per_token * kHidden);
    Symmetric<uint64_t> expected(job, rows), arrived(job, rows), back(job, n);
    Private<int16_t> chosen(job, size_t(tokens) * kMostChosen);
    Private<float> weights(job, size_t(tokens) * kMostChosen);
    Private<int> taken(job, all_experts);
    Private<__nv_bfloat16> combined(job, size_t(tokens) * kHidden);
    Mapped<Finding> finding(job);

    const Heap heap{outgoing.get(), received.get(), results.get(), returned.get(),
                    expected.get(), arrived.get(),  back.get()};
    const Routes routes{chosen.get(), weights.get(), taken.get(), tokens, per_token};
    const int blocks = std::min(tokens, kMostBlocks);
    double microseconds = 0;
    // The first round is not timed: in it, PEs wait for one another to begin.
    for (uint64_t round = 0; round <= rounds; round++) {
        const uint64_t seed = seed_of(job.pe(), round);
        const Router router(seed, tokens, per_token, all_experts);
        chosen.write(router.chosen);
        weights.write(router.weights);
        taken.zero();
        launch(job, make_tokens, blocks, kThreads, heap, routes, seed);
        job.barrier();

        Stopwatch watch(job);
        launch(job, dispatch, blocks, kThreads, heap, routes);
        launch(job, experts, int(rows), kThreads, heap, routes, finding.device());
        launch(job, combine, blocks, kThreads, heap, routes, combined.get(), finding.device());
        microseconds += round == 0 ? 0 : watch.microseconds();
        job.synchronize();

        const std::string what = "round " + std::to_string(round) + ", what was waited for";
        check_finding(job, what, "row", *finding);
        check(job, combined.read(), router, seed, round, tokens, per_token);
        // All that was to come in this round is here, and nobody begins the next before the barrier.
        expected.fill(0);
        arrived.fill(0);
        back.fill(0);
        job.barrier();
    }
    const Table table(job, "dispatch of all tokens and combine, bytes there and back", kLatency);
    const uint64_t there = uint64_t(tokens) * per_token * sizeof(Token);
    const uint64_t returns = uint64_t(tokens) * per_token * kHidden * sizeof(__nv_bfloat16);
    table.row(there + returns, std::to_string(tokens) + " tokens", microseconds / double(rounds));
}

}  // namespace

int main(int argc, char **argv) {
    uint64_t tokens = 128, per_token = 8, rounds = 10;
    parse_or_exit(argc, argv, "experts",
                  "Tokens go to the experts chosen for them and come back: dispatch and combine.",
                  {{"tokens", "tokens of each PE", &tokens, 1, 4096},
                   {"chosen", "experts for each token", &per_token, 1, kMostChosen},
                   {"iters", "timed rounds", &rounds, 1, 1'000'000}});
    Job job("experts");
    run(job, int(tokens), int(per_token), rounds);
    return job.finish();
}
