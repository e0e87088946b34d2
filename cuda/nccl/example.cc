// How NCCL's examples become ranks: in place of their common/src/utils.cc, which knows MPI and
// threads, each process is a rank that nvshmem-gpu-run has started.
#include "utils.h"

#include "../nvshmem/process.h"

int util_broadcast(int root, int my_rank, ncclUniqueId *id) {
    const prog::Process process;
    if (root != 0) {
        prog::bootstrap_failed("util_broadcast", "only rank 0 hands out an id");
    }
    if (my_rank == root) {
        prog::write_unique_id(process.id_file, *id);
    } else {
        prog::read_unique_id(process.id_file, *id);
    }
    return 0;
}

int run_example(int, char *[], void *(*example)(int, int, int, int)) {
    const prog::Process process;
    if (process.size < 2) {
        prog::bootstrap_failed("run_example", "start it with nvshmem-gpu-run --nccl");
    }
    prog::choose_device();
    int device = 0;
    cudaGetDevice(&device);
    return example(int(process.rank), int(process.size), device, 1) == nullptr ? 0 : 1;
}
