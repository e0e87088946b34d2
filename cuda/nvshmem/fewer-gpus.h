// Devices of PEs on a machine with fewer GPUs than PEs, for programs of others: each PE takes the
// device that has its number on the node, and ends where there is none. With this in front of a
// program, PEs share devices.
#pragma once

#include <cuda_runtime.h>

static inline cudaError_t set_device_of_pe(int pe) {
    int devices = 0;
    cudaError_t error = cudaGetDeviceCount(&devices);
    return error == cudaSuccess ? cudaSetDevice(devices > 0 ? pe % devices : pe) : error;
}

#define cudaSetDevice(pe) set_device_of_pe(pe)
