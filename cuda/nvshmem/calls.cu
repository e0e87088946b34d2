// calls: CUDA calls of a program while its kernel waits for data of another PE.
//
// Some calls wait until nothing runs in their context (freeing memory, loading code, a kernel's
// first launch), and CUDA lets no other call on the context return meanwhile. The kernel in here
// waits for data that its peer sends only once such a call is under way on both. A transport that
// copies in the program's context would never bring it.
#include <dlfcn.h>

#include <atomic>
#include <functional>
#include <thread>

#include "device.cuh"

using namespace prog;

namespace {

constexpr int kThreads = 128;

// Between the host and its kernel.
struct Gate {
    int running;  // by the kernel: it waits
    int open;     // by the host: the data may go
};

struct Exchange {
    uint8_t *outgoing;
    uint8_t *incoming;
    uint64_t *arrived;  // the round of what is in 'incoming'
    uint64_t *counted;  // one is added by each round
    uint64_t *single;   // the round, by p
    size_t bytes;
};

__global__ void exchange(Exchange all, uint64_t round, volatile Gate *gate, Finding *finding) {
    const int me = nvshmem_my_pe();
    const int n = nvshmem_n_pes();
    const int next = (me + 1) % n, previous = (me + n - 1) % n;
    fill_pattern(all.outgoing, all.bytes, seed_of(me, round));
    if (threadIdx.x == 0) {
        gate->running = 1;
        __threadfence_system();
        while (gate->open == 0) {
        }
    }
    __syncthreads();
    nvshmemx_putmem_signal_block(all.incoming, all.outgoing, all.bytes, all.arrived, round,
                                 NVSHMEM_SIGNAL_SET, next);
    if (threadIdx.x == 0) {
        nvshmem_signal_wait_until(all.arrived, NVSHMEM_CMP_GE, round);
    }
    __syncthreads();
    check_pattern(all.incoming, all.bytes, seed_of(previous, round), round, finding);
    if (threadIdx.x == 0) {
        // Words as well: one of its own, one that is added to, one that is fetched.
        nvshmem_uint64_p(all.single, round, next);
        nvshmem_uint64_atomic_add(all.counted, 1, next);
        nvshmem_quiet();
        nvshmem_uint64_wait_until(all.single, NVSHMEM_CMP_GE, round);
        nvshmem_uint64_wait_until(all.counted, NVSHMEM_CMP_GE, round);
        const uint64_t seen = nvshmem_uint64_g(all.arrived, previous);
        if (seen < round) {
            report(finding, round, 0, seen, round);
        }
    }
}

// Loaded by nothing but its own launch.
template <int kNumber>
__global__ void launched_once(int *word) {
    *word = kNumber;
}

// A function of CUDA's driver.
template <class... Arguments>
int driver(const char *name, Arguments... arguments) {
    static void *library = dlopen("libcuda.so.1", RTLD_NOW);
    auto function = library == nullptr ? nullptr : dlsym(library, name);
    if (function == nullptr) {
        return -1;
    }
    return reinterpret_cast<int (*)(Arguments...)>(function)(arguments...);
}

const char *kNothing =
    ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nothing()\n{ ret; }\n";

// What the calls work on, made before the kernel runs.
struct Objects {
    void *memory = nullptr, *pool = nullptr;
    void *locked = nullptr;
    void *registered = nullptr;
    void *module = nullptr;
    cudaStream_t stream = nullptr, captured = nullptr;
    int *word = nullptr;
};

constexpr size_t kBytes = 8 << 20;

struct Call {
    const char *name;
    // 0 is success.
    std::function<int(Objects &)> call;
};

int capture(Objects &with) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t ready = nullptr;
    int status = cudaStreamBeginCapture(with.captured, cudaStreamCaptureModeGlobal);
    if (status == 0) {
        launched_once<100><<<1, 1, 0, with.captured>>>(with.word);
        status = cudaStreamEndCapture(with.captured, &graph);
    }
    if (status == 0) {
        status = cudaGraphInstantiateWithFlags(&ready, graph, 0);
    }
    if (status == 0) {
        status = cudaGraphLaunch(ready, with.captured);
    }
    if (status == 0) {
        status = cudaStreamSynchronize(with.captured);
    }
    cudaGraphExecDestroy(ready);
    cudaGraphDestroy(graph);
    return status;
}

int trim(Objects &with) {
    cudaMemPool_t pool = nullptr;
    int device = 0;
    int status = cudaGetDevice(&device);
    if (status == 0) {
        status = cudaFreeAsync(with.pool, with.stream);
    }
    if (status == 0) {
        status = cudaStreamSynchronize(with.stream);
    }
    if (status == 0) {
        status = cudaDeviceGetDefaultMemPool(&pool, device);
    }
    return status == 0 ? int(cudaMemPoolTrimTo(pool, 0)) : status;
}

std::vector<Call> calls() {
    return {
        {"cudaFree", [](Objects &with) { return int(cudaFree(with.memory)); }},
        {"cudaFreeHost", [](Objects &with) { return int(cudaFreeHost(with.locked)); }},
        {"cudaHostUnregister",
         [](Objects &with) { return int(cudaHostUnregister(with.registered)); }},
        {"cuModuleLoadData",
         [](Objects &with) {
             return driver("cuModuleLoadData", &with.module, (const void *)kNothing);
         }},
        {"cuModuleUnload", [](Objects &with) { return driver("cuModuleUnload", with.module); }},
        {"first launch of a kernel",
         [](Objects &with) {
             launched_once<1><<<1, 1, 0, with.stream>>>(with.word);
             return int(cudaGetLastError());
         }},
        {"cudaDeviceSetLimit",
         [](Objects &) { return int(cudaDeviceSetLimit(cudaLimitStackSize, 8 << 10)); }},
        {"graph captured in global mode", capture},
        {"pool trimmed", trim},
        {"cudaMalloc", [](Objects &with) { return int(cudaMalloc(&with.memory, kBytes)); }},
        {"cudaMallocHost", [](Objects &with) { return int(cudaMallocHost(&with.locked, kBytes)); }},
        {"cudaDeviceSynchronize", [](Objects &) { return int(cudaDeviceSynchronize()); }},
    };
}

void prepare(Job &job, Objects &with) {
    job.require(cudaMalloc(&with.memory, kBytes), "cudaMalloc");
    job.require(cudaMallocHost(&with.locked, kBytes), "cudaMallocHost");
    job.require(cudaStreamCreateWithFlags(&with.stream, cudaStreamNonBlocking), "cudaStreamCreate");
    job.require(cudaStreamCreateWithFlags(&with.captured, cudaStreamNonBlocking),
                "cudaStreamCreate");
    job.require(cudaMalloc(&with.word, sizeof *with.word), "cudaMalloc");
    with.registered = aligned_alloc(4096, kBytes);
    job.require(cudaHostRegister(with.registered, kBytes, cudaHostRegisterDefault),
                "cudaHostRegister");
    job.require(cudaMallocAsync(&with.pool, kBytes, with.stream), "cudaMallocAsync");
    job.require(cudaStreamSynchronize(with.stream), "cudaStreamSynchronize");
}

void run(Job &job, size_t bytes) {
    Symmetric<uint8_t> outgoing(job, bytes), incoming(job, bytes);
    Symmetric<uint64_t> words(job, 3);
    Mapped<Finding> finding(job);
    Mapped<Gate> gate(job);
    Objects objects;
    prepare(job, objects);
    const Exchange all{outgoing.get(),  incoming.get(),  words.get(),
                       words.get() + 1, words.get() + 2, bytes};
    int device = 0;
    job.require(cudaGetDevice(&device), "cudaGetDevice");
    uint64_t round = 0;
    for (const Call &call : calls()) {
        round++;
        volatile Gate *shared = &*gate;
        shared->running = 0;
        shared->open = 0;
        job.barrier();
        launch_together(job, exchange, 1, kThreads, all, round, gate.device(), finding.device());
        while (shared->running == 0) {
            usleep(100);
        }
        std::atomic<bool> begun{false};
        int status = 0;
        std::thread program([&] {
            // The device is a thread's own choice.
            cudaSetDevice(device);
            begun = true;
            status = call.call(objects);
        });
        while (!begun) {
            usleep(100);
        }
        usleep(30'000);  // so that it is inside of the call; if it is not, less is shown
        shared->open = 1;
        program.join();
        job.barrier();
        if (status != 0) {
            job.fail(std::string(call.name) + ": status " + std::to_string(status));
        }
        check_finding(job, call.name, "byte", *finding);
        if (job.pe() == 0) {
            std::printf("# calls: %s: the kernel had its data\n", call.name);
            std::fflush(stdout);
        }
    }
}

}  // namespace

int main(int argc, char **argv) {
    uint64_t bytes = 24 << 10;
    parse_or_exit(argc, argv, "calls", "CUDA calls of a program while its kernel waits for data.",
                  {{"bytes", "what the kernels send one another", &bytes, 1, 1 << 26}});
    Job job("calls");
    run(job, bytes);
    return job.finish();
}
