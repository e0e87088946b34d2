// How a program becomes a PE: which device it takes, and how it finds the others.
//
// Where this project's launcher has started it (process.h), NVSHMEM is started with a unique id.
// Otherwise NVSHMEM's own default is taken, PMI, as hydra and Slurm offer it.
#pragma once

#include <nvshmem_host.h>

#include "process.h"

namespace prog {

inline void start_with_unique_id(const Process &process) {
    nvshmemx_uniqueid_t id = NVSHMEMX_UNIQUEID_INITIALIZER;
    if (process.rank == 0) {
        if (nvshmemx_get_uniqueid(&id) != 0) {
            bootstrap_failed("nvshmemx_get_uniqueid", "see NVSHMEM's message above");
        }
        write_unique_id(process.id_file, id);
    } else {
        read_unique_id(process.id_file, id);
    }
    nvshmemx_init_attr_t attributes = NVSHMEMX_INIT_ATTR_INITIALIZER;
    if (nvshmemx_set_attr_uniqueid_args(int(process.rank), int(process.size), &id, &attributes) !=
        0) {
        bootstrap_failed("nvshmemx_set_attr_uniqueid_args", "see NVSHMEM's message above");
    }
    // Ends the process itself when it fails.
    nvshmemx_init_attr(NVSHMEMX_INIT_WITH_UNIQUEID, &attributes);
}

// Takes a device and starts NVSHMEM on it.
inline void bootstrap() {
    const Process process;
    choose_device();
    if (process.rank >= 0) {
        start_with_unique_id(process);
    } else {
        nvshmem_init();
    }
}

}  // namespace prog
