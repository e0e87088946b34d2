// Not a program: compiled only, against releases of NVSHMEM that the plugin is for.
//
// The plugin's description of NVSHMEM's interface is its own (nvshmem_transport_abi.h). What of it
// also stands in NVSHMEM's public headers is compared here: operation codes that the device writes
// into the proxy's channel, the word that a fetched value comes back in, the interface's number.
#include <cstddef>
#include <cstdint>

#include <cuda_runtime.h>
#include <device_host_transport/nvshmem_common_transport.h>
#include <device_host_transport/nvshmem_constants.h>
#include <nvshmem_host.h>

#include "../../include/nvshmem_transport_abi.h"

#define SAME(theirs, ours) static_assert(int(theirs) == int(ours), #theirs " is not " #ours)

SAME(NVSHMEMI_OP_PUT, NVT_OP_PUT);
SAME(NVSHMEMI_OP_P, NVT_OP_P);
SAME(NVSHMEMI_OP_PUT_SIGNAL, NVT_OP_PUT_SIGNAL);
SAME(NVSHMEMI_OP_GET, NVT_OP_GET);
SAME(NVSHMEMI_OP_G, NVT_OP_G);
SAME(NVSHMEMI_OP_FENCE, NVT_OP_FENCE);
SAME(NVSHMEMI_OP_AMO, NVT_OP_AMO);
SAME(NVSHMEMI_OP_QUIET, NVT_OP_QUIET);

SAME(NVSHMEMI_AMO_ACK, NVT_AMO_ACK);
SAME(NVSHMEMI_AMO_INC, NVT_AMO_INC);
SAME(NVSHMEMI_AMO_SET, NVT_AMO_SET);
SAME(NVSHMEMI_AMO_ADD, NVT_AMO_ADD);
SAME(NVSHMEMI_AMO_AND, NVT_AMO_AND);
SAME(NVSHMEMI_AMO_OR, NVT_AMO_OR);
SAME(NVSHMEMI_AMO_XOR, NVT_AMO_XOR);
SAME(NVSHMEMI_AMO_SIGNAL, NVT_AMO_SIGNAL);
SAME(NVSHMEMI_AMO_SIGNAL_SET, NVT_AMO_SIGNAL_SET);
SAME(NVSHMEMI_AMO_SIGNAL_ADD, NVT_AMO_SIGNAL_ADD);
SAME(NVSHMEMI_AMO_END_OF_NONFETCH, NVT_AMO_END_OF_NONFETCH);
SAME(NVSHMEMI_AMO_FETCH, NVT_AMO_FETCH);
SAME(NVSHMEMI_AMO_FETCH_INC, NVT_AMO_FETCH_INC);
SAME(NVSHMEMI_AMO_FETCH_ADD, NVT_AMO_FETCH_ADD);
SAME(NVSHMEMI_AMO_FETCH_AND, NVT_AMO_FETCH_AND);
SAME(NVSHMEMI_AMO_FETCH_OR, NVT_AMO_FETCH_OR);
SAME(NVSHMEMI_AMO_FETCH_XOR, NVT_AMO_FETCH_XOR);
SAME(NVSHMEMI_AMO_SWAP, NVT_AMO_SWAP);
SAME(NVSHMEMI_AMO_COMPARE_SWAP, NVT_AMO_COMPARE_SWAP);
SAME(NVSHMEM_SIGNAL_SET, NVT_AMO_SIGNAL_SET);
SAME(NVSHMEM_SIGNAL_ADD, NVT_AMO_SIGNAL_ADD);

static_assert(sizeof(g_elem_t) == sizeof(nvt_g_elem), "a fetched value's word");
static_assert(offsetof(g_elem_t, data) == offsetof(nvt_g_elem, data), "a fetched value's place");
static_assert(offsetof(g_elem_t, flag) == offsetof(nvt_g_elem, flag), "a fetched value's flag");

// The number in the plugin's file name, by release, as the table in nvshmem_transport_abi.h has it:
// 3 up to NVSHMEM 3.4, then one more with each minor release.
static_assert(NVSHMEM_VENDOR_MAJOR_VERSION == 3, "a release of which the plugin knows nothing");
static_assert(NVSHMEM_TRANSPORT_PLUGIN_MAJOR_VERSION ==
                  (NVSHMEM_VENDOR_MINOR_VERSION <= 4 ? 3 : NVSHMEM_VENDOR_MINOR_VERSION - 1),
              "this release looks for a plugin of another number than it is said to");

#if NVSHMEM_TRANSPORT_PLUGIN_MAJOR_VERSION >= 4
SAME(NVSHMEMI_OP_QP_OP_OFFSET, NVT_OP_QP_OP_OFFSET);
SAME(NVSHMEMX_QP_HOST, NVT_QP_HOST);
SAME(NVSHMEMX_QP_DEFAULT, NVT_QP_DEFAULT);
SAME(NVSHMEMX_QP_ANY, NVT_QP_ANY);
SAME(NVSHMEMX_QP_ALL, NVT_QP_ALL);
#endif

#if NVSHMEM_TRANSPORT_PLUGIN_MAJOR_VERSION >= 7
SAME(NVSHMEMI_OP_REGION_END, NVT_OP_REGION_END);
SAME(NVSHMEMX_REGION_HINT_BATCH_RMA, NVT_REGION_HINT_BATCH_RMA);
#endif

// Results, which the library and the plugin number alike.
SAME(NVSHMEMX_SUCCESS, NVT_STATUS_SUCCESS);
SAME(NVSHMEMX_ERROR_INVALID_VALUE, NVT_STATUS_INVALID_VALUE);
SAME(NVSHMEMX_ERROR_OUT_OF_MEMORY, NVT_STATUS_OUT_OF_MEMORY);
SAME(NVSHMEMX_ERROR_NOT_SUPPORTED, NVT_STATUS_NOT_SUPPORTED);
SAME(NVSHMEMX_ERROR_SYMMETRY, NVT_STATUS_SYMMETRY);
SAME(NVSHMEMX_ERROR_GPU_NOT_SELECTED, NVT_STATUS_GPU_NOT_SELECTED);
SAME(NVSHMEMX_ERROR_COLLECTIVE_LAUNCH_FAILED, NVT_STATUS_COLLECTIVE_LAUNCH_FAILED);
SAME(NVSHMEMX_ERROR_INTERNAL, NVT_STATUS_INTERNAL);
