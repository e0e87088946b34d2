// info: what this PE is, and which peers it reaches without the transport.
//
// In a run that is to prove a remote transport, every peer's nvshmem_ptr is NULL. With
// NVSHMEM_DISABLE_P2P set that is checked.
#include "job.h"

using namespace prog;

namespace {

const char *name_of_status(int status) {
    switch (status) {
        case NVSHMEM_STATUS_IS_INITIALIZED: return "one PE per GPU";
        case NVSHMEM_STATUS_LIMITED_MPG: return "several PEs per GPU, limited (no MPS)";
        case NVSHMEM_STATUS_FULL_MPG: return "several PEs per GPU, full (MPS)";
        default: return "unknown";
    }
}

bool p2p_is_disabled() {
    const char *value = std::getenv("NVSHMEM_DISABLE_P2P");
    return value != nullptr && *value != '\0' && std::strchr("0nNfF", *value) == nullptr;
}

void describe(Job &job) {
    int major = 0, minor = 0, patch = 0;
    nvshmemx_vendor_get_version_info(&major, &minor, &patch);
    int driver = 0, runtime = 0, device = 0;
    job.require(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
    job.require(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
    job.require(cudaGetDevice(&device), "cudaGetDevice");
    cudaDeviceProp properties;
    job.require(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");

    std::printf(
        "pe %d of %d: NVSHMEM %d.%d.%d (built with %d.%d.%d), CUDA driver %d.%d, runtime %d.%d\n",
        job.pe(), job.n_pes(), major, minor, patch, NVSHMEM_VENDOR_MAJOR_VERSION,
        NVSHMEM_VENDOR_MINOR_VERSION, NVSHMEM_VENDOR_PATCH_VERSION, driver / 1000,
        driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    std::printf("pe %d: device %d %s (sm_%d%d, PCI %04x:%02x:%02x), %s\n", job.pe(), device,
                properties.name, properties.major, properties.minor, properties.pciDomainID,
                properties.pciBusID, properties.pciDeviceID,
                name_of_status(nvshmemx_init_status()));
}

void describe_peers(Job &job) {
    Symmetric<uint64_t> word(job, 1);
    for (int peer = 0; peer < job.n_pes(); peer++) {
        if (peer == job.pe()) {
            continue;
        }
        const bool mapped = nvshmem_ptr(word.get(), peer) != nullptr;
        std::printf("pe %d: peer %d is reached %s\n", job.pe(), peer,
                    mapped ? "directly (nvshmem_ptr)" : "by the transport (nvshmem_ptr is NULL)");
        if (mapped && p2p_is_disabled()) {
            job.fail("NVSHMEM_DISABLE_P2P is set, and peer " + std::to_string(peer) +
                     " is mapped all the same");
        }
    }
}

}  // namespace

int main(int argc, char **argv) {
    parse_or_exit(argc, argv, "info", "Prints versions, the device and how peers are reached.", {});
    Job job("info", 1);
    describe(job);
    describe_peers(job);
    return job.finish();
}
