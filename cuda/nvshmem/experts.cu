// experts: tokens go to the experts that a router has chosen for them, and come back: the two
// all-to-alls of a mixture of experts, from kernels.
//
// Every PE has eight experts and some tokens. The router picks several experts for each token,
// anywhere in the job. 'dispatch' sends a token to each of them; 'experts' does their work and
// sends the results back; 'combine' adds these up with the router's weights. Nobody asks anybody
// for room: where a token goes depends on its sender alone. What goes from one PE to one expert is
// ended by one signal, behind a fence, which also says how much it was. A signal with each token
// would cost the proxy thread of the other side a word for each, which is dearer than the token
// where words are out of its reach.
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
    uint64_t *arrived;       // [expert][PE it comes from]: tokens, and one more, when they are here
    uint64_t *back;          // [expert of the job]: one more than results, when they are here
};

// What a PE's router says, and what it counts.
struct Routes {
    const int16_t *chosen;  // [t][kMostChosen]: experts, counted through all PEs
    const float *weights;   // [t][kMostChosen]
    int *sent;              // [expert of the job]: tokens that went there
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

// Which of a token's choices an expert is; one beyond them if it is none.
__device__ int choice_of(const Token &token, int expert, int per_token) {
    int choice = 0;
    while (choice < per_token && token.chosen[choice] != expert) {
        choice++;
    }
    return choice;
}

// A block for each expert of the job.
__global__ void dispatch(Heap heap, Routes routes) {
    const int me = nvshmem_my_pe();
    const int n = nvshmem_n_pes();
    const int expert = blockIdx.x;
    const int to = expert / kExperts;
    const size_t row = size_t(expert % kExperts) * n + me;
    int sent = 0;
    for (int token = 0; token < routes.tokens; token++) {
        // All threads agree on it.
        bool goes = false;
        for (int k = 0; k < routes.per_token; k++) {
            goes |= routes.chosen[token * kMostChosen + k] == expert;
        }
        if (goes) {
            nvshmemx_putmem_nbi_block(&heap.received[row * routes.tokens + sent],
                                      &heap.outgoing[token], sizeof(Token), to);
            sent++;
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        routes.sent[expert] = sent;
        nvshmem_fence();
        nvshmemx_signal_op(&heap.arrived[row], uint64_t(sent) + 1, NVSHMEM_SIGNAL_SET, to);
    }
}

// A block for each expert of this PE and each PE that it gets tokens from.
__global__ void experts(Heap heap, Routes routes, Finding *finding) {
    const int me = nvshmem_my_pe();
    const int n = nvshmem_n_pes();
    const int row = blockIdx.x;
    const int from = row % n;
    const int expert = me * kExperts + row / n;
    __shared__ int count;
    if (threadIdx.x == 0) {
        const bool here = wait_at_least(&heap.arrived[row], 1);
        count = here ? int(heap.arrived[row] - 1) : 0;
        if (!here) {
            report(finding, 0, row, 0, 1);
        }
    }
    __syncthreads();
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
        nvshmemx_putmem_nbi_block(
            &heap.returned[(size_t(token.number) * routes.per_token + choice) * kHidden], result,
            kHidden * sizeof *result, from);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        nvshmem_fence();
        nvshmemx_signal_op(&heap.back[expert], uint64_t(count) + 1, NVSHMEM_SIGNAL_SET, from);
    }
}

__global__ void combine(Heap heap, Routes routes, __nv_bfloat16 *combined, Finding *finding) {
    __shared__ bool here;
    if (threadIdx.x == 0) {
        here = true;
        for (int expert = 0; expert < nvshmem_n_pes() * kExperts; expert++) {
            const uint64_t awaited = uint64_t(routes.sent[expert]) + 1;
            if (!wait_at_least(&heap.back[expert], 1) || heap.back[expert] != awaited) {
                report(finding, 0, expert, heap.back[expert], awaited);
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
    Symmetric<uint64_t> arrived(job, rows), back(job, all_experts);
    Private<int16_t> chosen(job, size_t(tokens) * kMostChosen);
    Private<float> weights(job, size_t(tokens) * kMostChosen);
    Private<int> sent(job, all_experts);
    Private<__nv_bfloat16> combined(job, size_t(tokens) * kHidden);
    Mapped<Finding> finding(job);

    const Heap heap{outgoing.get(), received.get(), results.get(),
                    returned.get(), arrived.get(),  back.get()};
    const Routes routes{chosen.get(), weights.get(), sent.get(), tokens, per_token};
    const int blocks = std::min(tokens, kMostBlocks);
    double microseconds = 0;
    // The first round is not timed: in it, PEs wait for one another to begin.
    for (uint64_t round = 0; round <= rounds; round++) {
        const uint64_t seed = seed_of(job.pe(), round);
        const Router router(seed, tokens, per_token, all_experts);
        chosen.write(router.chosen);
        weights.write(router.weights);
        launch(job, make_tokens, blocks, kThreads, heap, routes, seed);
        job.barrier();

        Stopwatch watch(job);
        launch(job, dispatch, all_experts, kThreads, heap, routes);
        launch(job, experts, int(rows), kThreads, heap, routes, finding.device());
        launch(job, combine, blocks, kThreads, heap, routes, combined.get(), finding.device());
        microseconds += round == 0 ? 0 : watch.microseconds();
        job.synchronize();

        const std::string what = "round " + std::to_string(round) + ", what was waited for";
        check_finding(job, what, "row", *finding);
        check(job, combined.read(), router, seed, round, tokens, per_token);
        // All that was to come in this round is here, and nobody begins the next before the
        // barrier.
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
