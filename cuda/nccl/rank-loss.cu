// rank-loss: rank 1 is killed in the middle of GIN's traffic; the others go on without it.
//
// In a round every rank's kernel puts to all others and waits for theirs. Rank 1 kills itself while
// its kernel runs. When NCCL reports it, or after --patience seconds, as if a launcher had, the
// others end their kernels and abort the communicator: NCCL ends no kernel that waits in GIN, nor a
// stream in ncclWaitSignal. CUDA has to be as it was. They join a new communicator, or with
// --shrink 1 go on in the one that ncclCommShrink makes, and every byte is right there.
#include <chrono>
#include <csignal>
#include <memory>

#include "job.h"

using namespace prog;

namespace {

constexpr int kLost = 1;
constexpr int kThreads = 128;

__global__ void put_to_all(ncclDevComm comm, ncclWindow_t source, ncclWindow_t data, size_t bytes,
                           uint64_t seen, const volatile uint64_t *ends) {
    ncclGin gin{comm, 0};
    const ncclCoopCta block;
    for (int peer = 0; peer < comm.nRanks; peer++) {
        if (peer != comm.rank) {
            gin.put(ncclTeamWorld(comm), peer, data, comm.rank * bytes, source, 0, bytes,
                    ncclGin_StrongSignalInc{0}, ncclGin_None{}, block);
        }
    }
    while (gin.readSignal(0) < seen + comm.nRanks - 1 && *ends == 0) {
    }
}

// What ranks put into one another's memory: a slot for each.
class Traffic {
  public:
    Traffic(Job &job, size_t bytes, std::chrono::seconds patience)
        : job_(job),
          bytes_(bytes),
          patience_(patience),
          device_(job, 1, 1, 0),
          source_(job, bytes),
          data_(job, bytes * job.ranks()) {
        job.require(cudaHostAlloc(&ends_, sizeof *ends_, cudaHostAllocMapped), "cudaHostAlloc");
        *ends_ = 0;
    }

    // Returns false if NCCL has an error, or nothing comes.
    bool round(uint64_t round, bool dies) {
        source_.write(pattern_bytes(seed_of(job_.rank(), round), bytes_));
        put_to_all<<<1, kThreads, 0, job_.stream()>>>(device_.get(), source_.window(),
                                                      data_.window(), bytes_, seen_, ends_);
        job_.require(cudaGetLastError(), "kernel launch");
        if (dies) {
            raise(SIGKILL);
        }
        if (!is_over()) {
            *static_cast<volatile uint64_t *>(ends_) = 1;
            job_.synchronize();
            return false;
        }
        seen_ += job_.ranks() - 1;
        const std::vector<uint8_t> all = data_.read();
        for (int peer = 0; peer < job_.ranks(); peer++) {
            const auto slot = all.begin() + peer * bytes_;
            if (peer != job_.rank()) {
                job_.check("round " + std::to_string(round) + " from rank " + std::to_string(peer),
                           std::vector<uint8_t>(slot, slot + bytes_),
                           pattern_bytes(seed_of(peer, round), bytes_));
            }
        }
        job_.start_barrier();
        return is_over();
    }

  private:
    bool is_over() {
        const auto deadline = std::chrono::steady_clock::now() + patience_;
        while (std::chrono::steady_clock::now() < deadline) {
            ncclResult_t state = ncclSuccess;
            job_.require(ncclCommGetAsyncError(job_.comm(), &state), "ncclCommGetAsyncError");
            if (state != ncclSuccess && state != ncclInProgress) {
                return false;
            }
            const cudaError_t stream = cudaStreamQuery(job_.stream());
            if (stream != cudaErrorNotReady) {
                job_.require(stream, "cudaStreamQuery");
                return true;
            }
            usleep(100);
        }
        return false;
    }

    Job &job_;
    size_t bytes_;
    std::chrono::seconds patience_;
    uint64_t seen_ = 0;
    Device device_;
    Window source_, data_;
    uint64_t *ends_ = nullptr;
};

double seconds_since(std::chrono::steady_clock::time_point begin) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

int main(int argc, char **argv) {
    uint64_t rounds = 20, bytes = 1 << 20, seconds = 3, shrinks = 0;
    parse_or_exit(argc, argv, "rank-loss", "Ranks go on with GIN after one of them was killed.",
                  {{"rounds", "rounds before rank 1 ends, and after", &rounds, 1, 1 << 20},
                   {"bytes", "put to each rank in a round", &bytes, 8, 1 << 30},
                   {"patience", "seconds after which ranks know of it", &seconds, 1, 3600},
                   {"shrink", "1: by ncclCommShrink, 0: by a new communicator", &shrinks, 0, 1}});
    Job job("rank-loss");
    if (job.ranks() < 3) {
        job.skip("three ranks");
    }
    const std::chrono::seconds patience(seconds);
    // Its windows end with the communicator.
    auto *before = new Traffic(job, bytes, patience);
    for (uint64_t round = 0; before->round(round, round == rounds && job.rank() == kLost);) {
        round++;
    }
    auto began = std::chrono::steady_clock::now();
    job.go_on_without(kLost, shrinks == 1);
    const double joined = seconds_since(began);
    auto after = std::make_unique<Traffic>(job, bytes, patience);
    std::printf("# rank-loss: rank %d of %d: new communicator after %.2f s, windows after %.2f s\n",
                job.rank(), job.ranks(), joined, seconds_since(began));
    for (uint64_t round = 1000; round < 1000 + rounds; round++) {
        if (!after->round(round, false)) {
            job.give_up(std::string("the others do not go on: ") + ncclGetLastError(job.comm()));
        }
    }
    after.reset();
    return job.finish();
}
