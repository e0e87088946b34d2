// MPI as programs need it that start NVSHMEM by it and do nothing else with it: the processes are
// those of this project's launcher, and NVSHMEM is started with a unique id.
#pragma once

#include <nvshmem.h>
#include <nvshmemx.h>

#include "../bootstrap.h"

using MPI_Comm = int;
constexpr MPI_Comm MPI_COMM_WORLD = 0;
constexpr int MPI_SUCCESS = 0;

inline int MPI_Init(int *, char ***) {
    if (prog::Process().rank < 0) {
        prog::bootstrap_failed("MPI_Init", "start it with nvshmem-gpu-run");
    }
    return MPI_SUCCESS;
}

inline int MPI_Comm_rank(MPI_Comm, int *rank) {
    *rank = int(prog::Process().rank);
    return MPI_SUCCESS;
}

inline int MPI_Comm_size(MPI_Comm, int *size) {
    *size = int(prog::Process().size);
    return MPI_SUCCESS;
}

// NVSHMEM has been started when a program calls it.
inline int MPI_Barrier(MPI_Comm) {
    nvshmem_barrier_all();
    return MPI_SUCCESS;
}

inline int MPI_Finalize() {
    return MPI_SUCCESS;
}

namespace prog {

inline void start_in_place_of_mpi(unsigned flags) {
    if (flags != NVSHMEMX_INIT_WITH_MPI_COMM) {
        bootstrap_failed("nvshmemx_init_attr", "only a start with a communicator of MPI is replaced");
    }
    bootstrap();
}

}  // namespace prog

#define nvshmemx_init_attr(flags, attributes) ((void)(attributes), prog::start_in_place_of_mpi(flags))
