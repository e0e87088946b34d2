// A program's life as a rank of NCCL: communicator, windows, device communicator, results, end.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>
#include <nccl_device.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "../nvshmem/options.h"
#include "../nvshmem/outcome.h"
#include "../nvshmem/process.h"

namespace prog {

class Job : public Outcome {
  public:
    // Joins the communicator of all processes that the launcher has started: two or more.
    explicit Job(const char *program) : Outcome(program) {
        const Process process;
        if (process.size < 2) {
            bootstrap_failed(program,
                             "start it with nvshmem-gpu-run --nccl, with two ranks or more");
        }
        pe_ = int(process.rank);
        n_pes_ = int(process.size);
        choose_device();
        id_file_ = process.id_file;
        join();
        begin();
    }

    // Makes a further communicator of the same ranks. All of them make it together.
    explicit Job(const Job &of) : Outcome(of.program_) {
        pe_ = of.pe_;
        n_pes_ = of.n_pes_;
        require(ncclCommSplit(of.comm_, 0, pe_, &comm_, nullptr), "ncclCommSplit");
        begin();
    }

    int rank() const { return pe(); }
    int ranks() const { return n_pes(); }
    ncclComm_t comm() const { return comm_; }
    cudaStream_t stream() const { return stream_; }

    // All ranks meet, by NCCL's own collectives.
    void barrier() {
        start_barrier();
        synchronize();
    }

    void start_barrier() {
        require(ncclAllReduce(meeting_, meeting_, 1, ncclInt, ncclSum, comm_, stream_),
                "ncclAllReduce");
    }

    // What was put on the program's stream is over.
    void synchronize() { require(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

    // Ends as something that the machine lacks.
    [[noreturn]] void skip(const std::string &missing) const {
        print_result(program_, pe_, "skipped: " + missing);
        _exit(0);
    }

    using Outcome::require;
    void require(ncclResult_t result, const char *what) const {
        if (result != ncclSuccess) {
            give_up(std::string(what) + ": " + ncclGetLastError(comm_));
        }
    }

    // Leaves the communicator, once its kernels have ended, for one of the ranks that are left,
    // numbered anew: the one that ncclCommShrink makes, or one that they join.
    void go_on_without(int lost, bool shrinks) {
        ncclComm_t smaller = nullptr;
        if (shrinks) {
            require(ncclCommShrink(comm_, &lost, 1, &smaller, nullptr, NCCL_SHRINK_ABORT),
                    "ncclCommShrink");
        }
        require(ncclCommAbort(comm_), "ncclCommAbort");
        comm_ = smaller;
        pe_ -= pe_ > lost ? 1 : 0;
        n_pes_--;
        if (!shrinks) {
            id_file_ += ".again";
            join();
        }
        begin();
    }

    // Destroys the communicator, prints RESULT, and gives the exit status.
    int finish() {
        leave();
        return end();
    }

    // Destroys the communicator.
    void leave() {
        barrier();
        require(cudaFree(meeting_), "cudaFree");
        require(ncclCommFinalize(comm_), "ncclCommFinalize");
        require(ncclCommDestroy(comm_), "ncclCommDestroy");
        require(cudaStreamDestroy(stream_), "cudaStreamDestroy");
    }

  private:
    void join() {
        ncclUniqueId id;
        if (pe_ == 0) {
            require(ncclGetUniqueId(&id), "ncclGetUniqueId");
            write_unique_id(id_file_.c_str(), id);
        } else {
            read_unique_id(id_file_.c_str(), id);
        }
        require(ncclCommInitRank(&comm_, n_pes_, id, pe_), "ncclCommInitRank");
    }

    void begin() {
        require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
        require(cudaMalloc(&meeting_, sizeof(int)), "cudaMalloc");
        barrier();
    }

    std::string id_file_;
    ncclComm_t comm_ = nullptr;
    cudaStream_t stream_ = nullptr;
    int *meeting_ = nullptr;
};

// Device memory of one size on all ranks, with its window. All ranks make and drop it together.
class Window {
  public:
    Window(Job &job, size_t bytes) : job_(job), bytes_(bytes) {
        job.require(ncclMemAlloc(&memory_, bytes), "ncclMemAlloc");
        job.require(cudaMemset(memory_, kUntouched, bytes), "cudaMemset");
        job.require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
        job.require(
            ncclCommWindowRegister(job.comm(), memory_, bytes, &window_, NCCL_WIN_COLL_SYMMETRIC),
            "ncclCommWindowRegister");
        if (window_ == nullptr) {
            job.skip("windows: NCCL registers none here");
        }
    }
    Window(const Window &) = delete;
    Window &operator=(const Window &) = delete;
    ~Window() {
        job_.require(ncclCommWindowDeregister(job_.comm(), window_), "ncclCommWindowDeregister");
        job_.require(ncclMemFree(memory_), "ncclMemFree");
    }

    uint8_t *get() const { return static_cast<uint8_t *>(memory_); }
    ncclWindow_t window() const { return window_; }

    void write(const std::vector<uint8_t> &bytes) {
        job_.require(cudaMemcpy(memory_, bytes.data(), bytes.size(), cudaMemcpyHostToDevice),
                     "cudaMemcpy");
    }

    void fill(uint8_t byte) {
        job_.require(cudaMemset(memory_, byte, bytes_), "cudaMemset");
        job_.require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    }

    std::vector<uint8_t> read() const {
        std::vector<uint8_t> bytes(bytes_);
        job_.require(cudaMemcpy(bytes.data(), memory_, bytes_, cudaMemcpyDeviceToHost),
                     "cudaMemcpy");
        return bytes;
    }

  private:
    Job &job_;
    size_t bytes_;
    void *memory_ = nullptr;
    ncclWindow_t window_ = nullptr;
};

// A device communicator with so many contexts, and signals and counters in each.
class Device {
  public:
    Device(Job &job, int contexts, int signals, int counters) : job_(job) {
        ncclCommProperties_t properties = NCCL_COMM_PROPERTIES_INITIALIZER;
        job.require(ncclCommQueryProperties(job.comm(), &properties), "ncclCommQueryProperties");
        if (!properties.deviceApiSupport) {
            job.skip("NCCL's device API");
        }
        if (properties.ginType == NCCL_GIN_TYPE_NONE) {
            job.skip("GIN: NCCL_DEBUG=INFO says why");
        }
        ncclDevCommRequirements_t wanted = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
        wanted.ginContextCount = contexts;
        wanted.ginSignalCount = signals;
        wanted.ginCounterCount = counters;
        wanted.ginConnectionType = NCCL_GIN_CONNECTION_FULL;
        job.require(ncclDevCommCreate(job.comm(), &wanted, &comm_), "ncclDevCommCreate");
    }
    Device(const Device &) = delete;
    Device &operator=(const Device &) = delete;
    ~Device() { job_.require(ncclDevCommDestroy(job_.comm(), &comm_), "ncclDevCommDestroy"); }

    const ncclDevComm &get() const { return comm_; }
    // What NCCL has given may be another number than was asked for.
    int contexts() const { return int(comm_.ginContextCount); }

  private:
    Job &job_;
    ncclDevComm comm_;
};

}  // namespace prog
