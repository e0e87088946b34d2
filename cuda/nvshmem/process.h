// What a process of a job is told by its launcher, and what it passes on to the others.
//
// Started by this project's launcher, the environment holds
//   NVSHMEM_RUN_RANK      this process, from 0
//   NVSHMEM_RUN_SIZE      how many there are
//   NVSHMEM_RUN_UID_FILE  a path in a fresh directory, by which rank 0 hands its id to the others
// NVSHMEM_RUN_DEVICE picks the device; without it, processes take turns.
#pragma once

#include <cuda_runtime.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace prog {

// How long a process waits for rank 0 to write its id.
constexpr auto kUniqueIdDeadline = std::chrono::seconds(60);

[[noreturn]] inline void bootstrap_failed(const char *what, const char *detail) {
    std::fprintf(stderr, "cannot start: %s: %s\n", what, detail);
    std::exit(1);
}

// The number in an environment variable, or -1 where it is not set.
inline long number_from_environment(const char *name) {
    const char *text = std::getenv(name);
    if (text == nullptr || *text == '\0') {
        return -1;
    }
    char *end = nullptr;
    const long value = std::strtol(text, &end, 10);
    if (*end != '\0' || value < 0) {
        bootstrap_failed(name, text);
    }
    return value;
}

// Which of this node's processes this is, as the launcher tells it.
inline long rank_on_node() {
    for (const char *name : {"NVSHMEM_RUN_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID",
                             "OMPI_COMM_WORLD_LOCAL_RANK", "PMI_RANK"}) {
        const long rank = number_from_environment(name);
        if (rank >= 0) {
            return rank;
        }
    }
    return 0;
}

inline void choose_device() {
    int devices = 0;
    cudaError_t error = cudaGetDeviceCount(&devices);
    if (error != cudaSuccess || devices == 0) {
        bootstrap_failed("no CUDA device", cudaGetErrorString(error));
    }
    long device = number_from_environment("NVSHMEM_RUN_DEVICE");
    if (device < 0) {
        device = rank_on_node() % devices;
    }
    error = cudaSetDevice(int(device));
    if (error != cudaSuccess) {
        bootstrap_failed("cudaSetDevice", cudaGetErrorString(error));
    }
}

// A process as the launcher has started it. Without a launcher its rank is -1.
struct Process {
    long rank = number_from_environment("NVSHMEM_RUN_RANK");
    long size = number_from_environment("NVSHMEM_RUN_SIZE");
    const char *id_file = std::getenv("NVSHMEM_RUN_UID_FILE");

    Process() {
        if ((rank >= 0) != (size > 0) || (rank >= 0) != (id_file != nullptr) ||
            (rank >= 0 && rank >= size)) {
            bootstrap_failed("NVSHMEM_RUN_RANK, _SIZE and _UID_FILE",
                             "all three are needed, or none, and the rank is below the size");
        }
    }
};

// The others must never see half an id, so the file gets its name when it is whole.
template <class Id>
void write_unique_id(const char *path, const Id &id) {
    char temporary[4096];
    std::snprintf(temporary, sizeof temporary, "%s.tmp", path);
    FILE *file = std::fopen(temporary, "wb");
    if (file == nullptr || std::fwrite(&id, sizeof id, 1, file) != 1 || std::fclose(file) != 0 ||
        std::rename(temporary, path) != 0) {
        bootstrap_failed(path, std::strerror(errno));
    }
}

template <class Id>
void read_unique_id(const char *path, Id &id) {
    const auto deadline = std::chrono::steady_clock::now() + kUniqueIdDeadline;
    FILE *file = nullptr;
    while ((file = std::fopen(path, "rb")) == nullptr) {
        if (std::chrono::steady_clock::now() > deadline) {
            bootstrap_failed(path, "rank 0 has not written its id in 60 s");
        }
        usleep(10'000);
    }
    const size_t read = std::fread(&id, sizeof id, 1, file);
    std::fclose(file);
    if (read != 1) {
        bootstrap_failed(path, "is shorter than an id");
    }
}

}  // namespace prog
