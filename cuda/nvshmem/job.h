// A program's life as a PE: start, symmetric memory, what went wrong, results, end.
//
// Host side only, so that programs without kernels of their own compile fast; device.cuh is for
// those with kernels.
#pragma once

#include <cuda_runtime.h>
#include <nvshmem_host.h>
#include <unistd.h>

#include <chrono>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "bootstrap.h"
#include "options.h"
#include "outcome.h"

namespace prog {

class Job : public Outcome {
  public:
    // Starts NVSHMEM. At least 'needed' PEs, or the program ends.
    explicit Job(const char *program, int needed = 2) : Outcome(program) {
        bootstrap();
        pe_ = nvshmem_my_pe();
        n_pes_ = nvshmem_n_pes();
        if (n_pes_ < needed) {
            give_up("needs " + std::to_string(needed) + " PEs and has " + std::to_string(n_pes_));
        }
        require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
        turn_ = static_cast<uint64_t *>(nvshmem_calloc(1, sizeof *turn_));
        if (turn_ == nullptr) {
            give_up("nvshmem_calloc has no memory");
        }
        barrier();
    }

    cudaStream_t stream() const { return stream_; }

    // All PEs meet, and everything they have sent has arrived.
    void barrier() {
        synchronize();
        nvshmem_barrier_all();
    }

    // What was put on the program's stream is over.
    void synchronize() { require(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

    // Runs 'measure' on PE 0 while the others keep off the GPU: a barrier is a kernel that spins,
    // and one that shares the GPU with what is measured. They look at a word that PE 0 writes last.
    template <class Measure>
    void on_pe_0(Measure &&measure) {
        barrier();
        turns_++;
        if (pe_ == 0) {
            measure();
            synchronize();
            for (int peer = 1; peer < n_pes_; peer++) {
                nvshmem_uint64_p(turn_, turns_, peer);
            }
            nvshmem_quiet();
        } else {
            wait_for_turn();
        }
        barrier();
    }

    // Ends NVSHMEM, prints RESULT, and gives the exit status. No symmetric memory is left by then.
    int finish() {
        barrier();
        nvshmem_free(turn_);
        require(cudaStreamDestroy(stream_), "cudaStreamDestroy");
        nvshmem_finalize();
        return end();
    }

  private:
    void wait_for_turn() {
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(10);
        for (uint64_t seen = 0; seen < turns_;) {
            require(cudaMemcpyAsync(&seen, turn_, sizeof seen, cudaMemcpyDeviceToHost, stream_),
                    "cudaMemcpy");
            synchronize();
            if (std::chrono::steady_clock::now() > deadline) {
                give_up("PE 0 has not ended its measurement in 10 minutes");
            }
            usleep(500);
        }
    }

    cudaStream_t stream_ = nullptr;
    uint64_t *turn_ = nullptr;  // symmetric; PE 0 writes 'turns_' into the others'
    uint64_t turns_ = 0;        // how often PE 0 has had its turn: equal on all PEs
};

// An array in the symmetric heap, zeroed. Made and dropped by all PEs together.
template <class T>
class Symmetric {
  public:
    Symmetric(Job &job, size_t count) : job_(job), count_(count) {
        data_ = static_cast<T *>(nvshmem_malloc(count * sizeof(T)));
        if (data_ == nullptr) {
            job.give_up("nvshmem_malloc has no " + std::to_string(count * sizeof(T)) + " bytes");
        }
        fill(0);
        job.barrier();
    }
    ~Symmetric() {
        job_.barrier();
        nvshmem_free(data_);
    }
    Symmetric(const Symmetric &) = delete;
    Symmetric &operator=(const Symmetric &) = delete;

    T *get() const { return data_; }
    size_t count() const { return count_; }

    // These three are done when they return.
    void fill(uint8_t byte) {
        job_.require(cudaMemsetAsync(data_, byte, count_ * sizeof(T), job_.stream()), "cudaMemset");
        job_.synchronize();
    }
    void write(const std::vector<T> &values) {
        job_.require(cudaMemcpyAsync(data_, values.data(), values.size() * sizeof(T),
                                     cudaMemcpyHostToDevice, job_.stream()),
                     "cudaMemcpy");
        job_.synchronize();
    }
    std::vector<T> read() const {
        std::vector<T> values(count_);
        job_.require(cudaMemcpyAsync(values.data(), data_, count_ * sizeof(T),
                                     cudaMemcpyDeviceToHost, job_.stream()),
                     "cudaMemcpy");
        job_.synchronize();
        return values;
    }

  private:
    Job &job_;
    size_t count_;
    T *data_;
};

// One value that kernels write and the host reads, in memory of the host.
template <class T>
class Mapped {
  public:
    explicit Mapped(const Job &job) {
        job.require(cudaHostAlloc(&host_, sizeof(T), cudaHostAllocMapped), "cudaHostAlloc");
        *host_ = T{};
        job.require(cudaHostGetDevicePointer(&device_, host_, 0), "cudaHostGetDevicePointer");
    }
    ~Mapped() { cudaFreeHost(host_); }
    Mapped(const Mapped &) = delete;
    Mapped &operator=(const Mapped &) = delete;

    T *device() const { return device_; }
    T *operator->() const { return host_; }
    T &operator*() const { return *host_; }

  private:
    T *host_ = nullptr;
    T *device_ = nullptr;
};

// Times what runs on a stream, by events.
class Stopwatch {
  public:
    explicit Stopwatch(const Job &job) : job_(job) {
        job.require(cudaEventCreate(&begin_), "cudaEventCreate");
        job.require(cudaEventCreate(&end_), "cudaEventCreate");
        job.require(cudaEventRecord(begin_, job.stream()), "cudaEventRecord");
    }
    ~Stopwatch() {
        cudaEventDestroy(begin_);
        cudaEventDestroy(end_);
    }
    Stopwatch(const Stopwatch &) = delete;
    Stopwatch &operator=(const Stopwatch &) = delete;

    // Microseconds since it was made, once the stream has come here.
    double microseconds() {
        float milliseconds = 0;
        job_.require(cudaEventRecord(end_, job_.stream()), "cudaEventRecord");
        job_.require(cudaEventSynchronize(end_), "cudaEventSynchronize");
        job_.require(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
        return milliseconds * 1e3;
    }

  private:
    const Job &job_;
    cudaEvent_t begin_ = nullptr;
    cudaEvent_t end_ = nullptr;
};

// Microseconds per iteration of 'run', which puts that many on the stream; a few before do not
// count.
template <class Run>
double timed(const Job &job, uint64_t iterations, Run &&run) {
    run(2);
    Stopwatch watch(job);
    run(int(iterations));
    return watch.microseconds() / double(iterations);
}

// A table in the shape of NVSHMEM's perftests, printed by PE 0.
class Table {
  public:
    Table(const Job &job, const char *title, const char *figure) : prints_(job.pe() == 0) {
        if (prints_) {
            std::printf("# %s: %s\n%-12s  %-16s  %s\n", job.program(), title, "size(B)", "scope",
                        figure);
        }
    }
    void row(uint64_t size, const std::string &scope, double figure) const {
        if (prints_) {
            std::printf("%-12llu  %-16s  %.3f\n", (unsigned long long)size, scope.c_str(), figure);
            std::fflush(stdout);
        }
    }

  private:
    bool prints_;
};

constexpr const char *kLatency = "latency(us)";
constexpr const char *kBandwidth = "BW (GB/s)";  // GB = 1e9 bytes
constexpr const char *kRate = "rate(Mop/s)";

inline double gigabytes_per_second(double bytes, double microseconds) {
    return bytes / 1e3 / microseconds;
}

}  // namespace prog
