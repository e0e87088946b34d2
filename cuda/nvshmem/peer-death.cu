// peer-death: PE 1 ends without a word in the middle of traffic; the others must not hang.
//
// They put to PE 1 and quiet without end. Once PE 1 has seen some of it from each, it kills itself.
// NVSHMEM has no way to give them an error from a quiet: the transport reports it to NVSHMEM, which
// ends the process. So each is to end by itself, with a status other than 0, before --limit seconds
// have passed; what it prints comes from a handler that runs on the way out. With status 1 it says
// that nothing happened.
#include <csignal>

#include "device.cuh"

using namespace prog;

namespace {

constexpr int kThreads = 128;

// Written by a survivor's kernel and read by its host, or the other way round.
struct Traffic {
    unsigned long long rounds;  // by the kernel: put and quieted
    int stop;                   // by the host
};

// Puts the round's number into every word, and quiets. Ends only when told to.
__global__ void put_on_and_on(uint64_t *dest, uint64_t *source, size_t words, int pe,
                              volatile Traffic *traffic) {
    for (uint64_t round = 1; traffic->stop == 0; round++) {
        for (size_t i = threadIdx.x; i < words; i += blockDim.x) {
            source[i] = round;
        }
        __threadfence_system();
        __syncthreads();
        nvshmemx_putmem_nbi_block(dest, source, words * sizeof *dest, pe);
        __syncthreads();
        if (threadIdx.x == 0) {
            nvshmem_quiet();
            traffic->rounds = round;
        }
        __syncthreads();
    }
}

// For the handler, which takes no arguments.
bool in_traffic = false;
int survivor = 0;
std::chrono::steady_clock::time_point traffic_began;

// NVSHMEM ends the process by exit, which comes here.
void told_by_exit() {
    if (in_traffic) {
        const std::chrono::duration<double> since =
            std::chrono::steady_clock::now() - traffic_began;
        std::printf("# peer-death: NVSHMEM ends this PE %.1f s after its traffic began\n",
                    since.count());
        print_result("peer-death", survivor, "ok");
    }
}

[[noreturn]] void survive(Job &job, uint64_t *dest, uint64_t *source, size_t words,
                          std::chrono::seconds limit) {
    auto *traffic = new Mapped<Traffic>(job);  // the kernel may use it to the very end
    traffic_began = std::chrono::steady_clock::now();
    survivor = job.pe();
    in_traffic = true;
    std::atexit(told_by_exit);
    launch(job, put_on_and_on, 1, kThreads, dest, source, words, 1, traffic->device());
    while (std::chrono::steady_clock::now() - traffic_began < limit) {
        usleep(10'000);
    }
    in_traffic = false;
    const volatile Traffic &seen = **traffic;
    job.give_up("no error in " + std::to_string(limit.count()) + " s; " +
                std::to_string(seen.rounds) + " rounds of puts were quieted");
}

[[noreturn]] void die(Job &job, const Symmetric<uint64_t> &dest, size_t words, uint64_t after,
                      bool by_exit, std::chrono::seconds limit) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    for (int from = 0; from < job.n_pes(); from++) {
        while (from != job.pe() && dest.read()[from * words] < after) {
            if (std::chrono::steady_clock::now() > deadline) {
                job.give_up("the traffic of PE " + std::to_string(from) + " has not come");
            }
            usleep(1'000);
        }
    }
    print_result(job.program(), job.pe(), "ok");
    if (by_exit) {
        _exit(0);
    }
    std::raise(SIGKILL);
    std::abort();
}

}  // namespace

int main(int argc, char **argv) {
    uint64_t bytes = 64 << 10, after = 20, by_exit = 0, limit = 120;
    parse_or_exit(argc, argv, "peer-death",
                  "PE 1 dies in mid-traffic; the others are to end with an error.",
                  {{"bytes", "size of a put", &bytes, 8, 1 << 28},
                   {"after", "rounds that PE 1 waits for", &after, 1, 1'000'000},
                   {"exit", "1: PE 1 ends by _exit instead of SIGKILL", &by_exit, 0, 1},
                   {"limit", "seconds after which a PE gives up", &limit, 1, 3600}});
    Job job("peer-death");
    const size_t words = bytes / sizeof(uint64_t);
    Symmetric<uint64_t> source(job, words), dest(job, words * size_t(job.n_pes()));
    const std::chrono::seconds patience(limit);
    if (job.pe() == 1) {
        die(job, dest, words, after, by_exit == 1, patience);
    }
    survive(job, dest.get() + job.pe() * words, source.get(), words, patience);
}
