/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The C interface between NVSHMEM's host library and a remote transport plugin, api_version majors
 * 3 to 7 (NVSHMEM 3.0 to 3.8), for Linux on x86-64.
 *
 * NVSHMEM passes these structures across a shared library boundary, so layout is all that matters
 * here; the names are this project's own. Two layouts share the number 30000:
 *
 *   layout  NVSHMEM                         api_version  transport  amo verb
 *   3a      3.0.6 3.1.7 3.2.5               30000        224 bytes  16 bytes
 *   3b      3.3.9 3.3.20 3.3.24 3.4.5       30000        240 bytes  16 bytes
 *   4       3.5.19 3.5.21                   40000        248 bytes  16 bytes
 *   5       3.6.5                           50000        248 bytes  16 bytes
 *   6       3.7.0 3.7.1 3.7.2               60000        256 bytes  20 bytes
 *   7       3.8.0                           70000        272 bytes  20 bytes
 *
 * All functions return an NVT_STATUS_* value unless noted. The host ends the process when an
 * operation on the proxy path returns anything but NVT_STATUS_SUCCESS.
 */
#ifndef NVSHMEM_TRANSPORT_ABI_H
#define NVSHMEM_TRANSPORT_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ------------------------------------------------------------------------------------------------
 * Constants
 */

/* Operation codes in nvt_rma_verb.desc and in the device's request channel. */
#define NVT_OP_PUT 1
#define NVT_OP_P 2
#define NVT_OP_PUT_SIGNAL 3
#define NVT_OP_GET 4
#define NVT_OP_G 5
#define NVT_OP_FENCE 6
#define NVT_OP_AMO 7
#define NVT_OP_QUIET 8
#define NVT_OP_REGION_END 9 /* layout 7 */
/* Added to a code for its queue-pair variant (4 and later); the host removes it before a call. */
#define NVT_OP_QP_OP_OFFSET 100

/* Atomic operations in nvt_amo_verb_*.desc. Codes above END_OF_NONFETCH return the old value. */
#define NVT_AMO_ACK 1
#define NVT_AMO_INC 2
#define NVT_AMO_SET 3
#define NVT_AMO_ADD 4
#define NVT_AMO_AND 5
#define NVT_AMO_OR 6
#define NVT_AMO_XOR 7
#define NVT_AMO_SIGNAL 8
#define NVT_AMO_SIGNAL_SET 9
#define NVT_AMO_SIGNAL_ADD 10
#define NVT_AMO_END_OF_NONFETCH 11
#define NVT_AMO_FETCH 12
#define NVT_AMO_FETCH_INC 13
#define NVT_AMO_FETCH_ADD 14
#define NVT_AMO_FETCH_AND 15
#define NVT_AMO_FETCH_OR 16
#define NVT_AMO_FETCH_XOR 17
#define NVT_AMO_SWAP 18
#define NVT_AMO_COMPARE_SWAP 19

/* Results. */
#define NVT_STATUS_SUCCESS 0
#define NVT_STATUS_INVALID_VALUE 1
#define NVT_STATUS_OUT_OF_MEMORY 2
#define NVT_STATUS_NOT_SUPPORTED 3
#define NVT_STATUS_SYMMETRY 4
#define NVT_STATUS_GPU_NOT_SELECTED 5
#define NVT_STATUS_COLLECTIVE_LAUNCH_FAILED 6
#define NVT_STATUS_INTERNAL 7

/* What can_reach_peer reports. A proxy transport reports CPU_WRITE, CPU_READ and CPU_ATOMICS; any
 * MAP bit would make the host treat it as a peer-to-peer transport. */
#define NVT_CAP_MAP 1
#define NVT_CAP_MAP_GPU_ST 2
#define NVT_CAP_MAP_GPU_LD 4
#define NVT_CAP_MAP_GPU_ATOMICS 8
#define NVT_CAP_CPU_WRITE 16
#define NVT_CAP_CPU_READ 32
#define NVT_CAP_CPU_ATOMICS 64
#define NVT_CAP_GPU_WRITE 128
#define NVT_CAP_GPU_READ 256
#define NVT_CAP_GPU_ATOMICS 512

/* The transport's attr field. */
#define NVT_ATTR_NO_ENDPOINTS 1
#define NVT_ATTR_CONNECTED 2
#define NVT_ATTR_MULTI_NIC_ENABLED 4 /* layout 7 */

/* The transport's type field: which device-side library drives it. */
#define NVT_LIB_CODE_NONE 0
#define NVT_LIB_CODE_IBGDA 1
#define NVT_LIB_CODE_GPUNETIO 2 /* layouts 6 and 7 */

/* Queue-pair index of an operation. In layouts 3a and 3b the same argument is a boolean: 0 host
 * thread, 1 proxy thread, so "not HOST means the proxy" holds in all. */
#define NVT_QP_HOST 0
#define NVT_QP_DEFAULT 1
#define NVT_QP_ANY 2147483647
#define NVT_QP_ALL 2147483647

/* Layout 7: the transport's device_assignment_mode field. */
#define NVT_DEVICE_ASSIGNMENT_MODE_DEFAULT 0
#define NVT_DEVICE_ASSIGNMENT_MODE_HCA_LIST 1
#define NVT_DEVICE_ASSIGNMENT_MODE_HCA_PE_MAPPING 2

/* Layouts 6 and 7: nvt_op_attrs_*.flags. MORE_FOLLOWS: the same thread calls again at once. */
#define NVT_OP_FLAG_NONE 0
#define NVT_OP_FLAG_MORE_FOLLOWS 1

/* Layout 7: nvt_op_attrs_7.hints and the role argument of region_flush. */
#define NVT_REGION_HINT_BATCH_RMA 1
#define NVT_REGION_ROLE_HOST 0
#define NVT_REGION_ROLE_PROXY 1

/* Size in bytes of the opaque memory handle. */
#define NVT_MEM_HANDLE_SIZE 512

/* ------------------------------------------------------------------------------------------------
 * Arguments of the operations
 */

/** Opaque stand-in for a transport of any layout, so that one function type serves all of them. */
typedef struct nvt_transport nvt_transport;

/** The plugin's description of one registered chunk, copied between PEs by the host byte by byte.
 *  It has no alignment, and all zero means "no handle". */
typedef struct nvt_mem_handle {
    uint8_t bytes[NVT_MEM_HANDLE_SIZE];
} nvt_mem_handle;

/** What to do. Passed by value in memory. */
typedef struct nvt_rma_verb {
    /** NVT_OP_PUT, NVT_OP_P, NVT_OP_GET or NVT_OP_G. */
    int32_t desc;
    /** Not zero: the caller does not wait, a later quiet completes the operation. */
    int32_t is_nbi;
    /** Always zero in what reaches a remote transport. Not initialised for P. */
    int32_t is_stream;
    int32_t _pad;
    /** CUDA stream; meaningless while is_stream is zero. Not initialised for P. */
    void *cstrm;
} nvt_rma_verb;

/** One side of a transfer. */
typedef struct nvt_rma_memdesc {
    /** Virtual address in the process that owns the memory. */
    void *ptr;
    /** Offset in the registered chunk. Not initialised on the local side. */
    uint64_t offset;
    /** The owner's handle for the chunk; NULL for the local side of P. */
    nvt_mem_handle *handle;
} nvt_rma_memdesc;

/** How much to move: nelems times elembytes. Passed by value in memory. */
typedef struct nvt_rma_bytesdesc {
    uint64_t nelems;
    /** 1 for PUT, GET and G; 1, 2, 4 or 8 for P. */
    int32_t elembytes;
    int32_t _pad;
    /** 1; not initialised for P. */
    int64_t srcstride;
    /** 1; not initialised for P. */
    int64_t deststride;
} nvt_rma_bytesdesc;

/** Atomic operation, layouts 3a to 5: 16 bytes, passed by value in two registers where free. */
typedef struct nvt_amo_verb_3 {
    /** NVT_AMO_*. The only field the host initialises. */
    int32_t desc;
    int32_t is_fetch;
    int32_t is_val;
    int32_t is_cmp;
} nvt_amo_verb_3;

/** Atomic operation, layouts 6 and 7: 20 bytes, passed by value in memory. */
typedef struct nvt_amo_verb_6 {
    /** NVT_AMO_*. The host initialises this and is_float only. */
    int32_t desc;
    int32_t is_fetch;
    int32_t is_val;
    int32_t is_cmp;
    /** Not zero: the operands are IEEE numbers of elembytes. */
    int32_t is_float;
} nvt_amo_verb_6;

/** Operands of an atomic operation. */
typedef struct nvt_amo_memdesc {
    /** The word to change, at the peer. */
    nvt_rma_memdesc remote_memdesc;
    /** Fetching: the value to store in the flag of the nvt_g_elem at retptr. */
    uint64_t retflag;
    /** Fetching: a nvt_g_elem in the local symmetric heap. */
    void *retptr;
    void *valptr;
    void *cmpptr;
    /** Operand, zero-extended. */
    uint64_t val;
    /** Value to compare with. */
    uint64_t cmp;
    /** Fetching: local handle of the chunk that holds retptr. */
    nvt_mem_handle *ret_handle;
} nvt_amo_memdesc;

/** Width of an atomic operation. Passed by value in one register. */
typedef struct nvt_amo_bytesdesc {
    /** Not initialised. */
    int32_t name_type;
    /** 2, 4 or 8. */
    int32_t elembytes;
} nvt_amo_bytesdesc;

/** Where a fetched value and its flag are stored. Both words are read by the GPU while it spins. */
typedef struct nvt_g_elem {
    uint64_t data;
    uint64_t flag;
} nvt_g_elem;

/** PCI address of a GPU. */
typedef struct nvt_pcie_id {
    int32_t dev_id;
    int32_t bus_id;
    int32_t domain_id;
} nvt_pcie_id;

/** Who and where a PE is. */
typedef struct nvt_pe_info {
    nvt_pcie_id pcie_id;
    int32_t pe;
    /** Equal for the PEs of one host. */
    uint64_t hostHash;
    uint8_t gpu_uuid[16];
} nvt_pe_info;

/** libstdc++'s std::vector<nvt_rma_memdesc>, read only. */
typedef struct nvt_memdesc_vector {
    nvt_rma_memdesc *begin;
    nvt_rma_memdesc *end;
    nvt_rma_memdesc *cap;
} nvt_memdesc_vector;

/** libstdc++'s std::vector<nvt_rma_bytesdesc>, read only. */
typedef struct nvt_bytesdesc_vector {
    nvt_rma_bytesdesc *begin;
    nvt_rma_bytesdesc *end;
    nvt_rma_bytesdesc *cap;
} nvt_bytesdesc_vector;

/** Node of a libstdc++ std::unordered_map with pointer keys and one word values. */
typedef struct nvt_map_node {
    struct nvt_map_node *next;
    void *key;
    uint64_t value;
} nvt_map_node;

/** libstdc++'s std::unordered_map, read only. */
typedef struct nvt_std_unordered_map {
    void *buckets;
    uint64_t bucket_count;
    /** The first of a singly linked list of all nodes. */
    nvt_map_node *first_node_ptr;
    uint64_t count;
    uint64_t _rest[3];
} nvt_std_unordered_map;

/** Layout 6: what is known about the call after this one. */
typedef struct nvt_op_attrs_6 {
    /** NVT_OP_FLAG_*. */
    uint32_t flags;
} nvt_op_attrs_6;

/** Layout 7: as layout 6, and the region the operation belongs to. */
typedef struct nvt_op_attrs_7 {
    /** NVT_OP_FLAG_*. */
    uint32_t flags;
    /** NVT_REGION_HINT_*. */
    uint32_t hints;
    uint64_t issuer_id;
    uint64_t region_id;
} nvt_op_attrs_7;

/** Collective operations among all PEs, for use during set-up. One thread at a time. */
typedef struct nvt_bootstrap_handle {
    /** Version of the bootstrap interface, 30000 in all layouts. */
    int32_t version;
    /** This PE. */
    int32_t pg_rank;
    /** Number of PEs. */
    int32_t pg_size;
    /** This PE among those of its host. */
    int32_t mype_node;
    /** Number of PEs on this host. */
    int32_t npes_node;
    int32_t _pad;
    /** bytes: the contribution of each PE. */
    int (*allgather)(const void *send, void *recv, int bytes, struct nvt_bootstrap_handle *);
    /** bytes: from each PE to each PE. */
    int (*alltoall)(const void *send, void *recv, int bytes, struct nvt_bootstrap_handle *);
    int (*barrier)(struct nvt_bootstrap_handle *);
    void (*global_exit)(int status);
    int (*finalize)(struct nvt_bootstrap_handle *);
    int (*show_info)(struct nvt_bootstrap_handle *, int style);
    void *pre_init_ops;
    void *comm_state;
} nvt_bootstrap_handle;

/* ------------------------------------------------------------------------------------------------
 * Function types. `qp` is NVT_QP_* or an index; see there for layouts 3a and 3b.
 */

/** The one symbol of a plugin. `cuda_table` is the host's table of CUDA driver entry points. */
typedef int (*nvt_init_fn)(nvt_transport **out, void *cuda_table, int api_version);

typedef int (*nvt_can_reach_peer_fn)(int *access, nvt_pe_info *peer, nvt_transport *t);

/** Layouts 3a and 3b. */
typedef int (*nvt_connect_endpoints_fn_3)(nvt_transport *t, int *dev_ids, int num_devs);
/** Layouts 4 and later. A second call (queue-pair creation) has dev_ids NULL and num_devs 0. */
typedef int (*nvt_connect_endpoints_fn_4)(nvt_transport *t, int *dev_ids, int num_devs,
                                          int *out_qp_indices, int num_qps);

/** Layout 3a: one argument more than later. */
typedef int (*nvt_get_mem_handle_fn_3a)(nvt_mem_handle *out, nvt_mem_handle *handle_in, void *buf,
                                        size_t size, nvt_transport *t, bool local_only);
/** Layouts 3b and later. */
typedef int (*nvt_get_mem_handle_fn_3b)(nvt_mem_handle *out, void *buf, size_t size,
                                        nvt_transport *t, bool local_only);

typedef int (*nvt_release_mem_handle_fn)(nvt_mem_handle *handle, nvt_transport *t);
typedef int (*nvt_finalize_fn)(nvt_transport *t);
typedef int (*nvt_show_info_fn)(nvt_transport *t, int style);
typedef int (*nvt_progress_fn)(nvt_transport *t);

typedef int (*nvt_rma_fn)(nvt_transport *t, int pe, nvt_rma_verb verb, nvt_rma_memdesc *remote,
                          nvt_rma_memdesc *local, nvt_rma_bytesdesc bytes, int qp);
/** Layout 6. */
typedef int (*nvt_rma_with_hints_fn_6)(nvt_transport *t, int pe, nvt_rma_verb verb,
                                       nvt_rma_memdesc *remote, nvt_rma_memdesc *local,
                                       nvt_rma_bytesdesc bytes, int qp,
                                       const nvt_op_attrs_6 *attrs);
/** Layout 7. */
typedef int (*nvt_rma_with_hints_fn_7)(nvt_transport *t, int pe, nvt_rma_verb verb,
                                       nvt_rma_memdesc *remote, nvt_rma_memdesc *local,
                                       nvt_rma_bytesdesc bytes, int qp,
                                       const nvt_op_attrs_7 *attrs);

/** Layouts 3a to 5. `ret` is always NULL. */
typedef int (*nvt_amo_fn_3)(nvt_transport *t, int pe, void *ret, nvt_amo_verb_3 verb,
                            nvt_amo_memdesc *mem, nvt_amo_bytesdesc bytes, int qp);
/** Layouts 6 and 7. `ret` is always NULL. */
typedef int (*nvt_amo_fn_6)(nvt_transport *t, int pe, void *ret, nvt_amo_verb_6 verb,
                            nvt_amo_memdesc *mem, nvt_amo_bytesdesc bytes, int qp);

/** Layouts 3a and 3b. */
typedef int (*nvt_fence_fn_3)(nvt_transport *t, int pe, int is_proxy);
/** Layouts 4 and later. is_multi: the order holds across queue pairs. */
typedef int (*nvt_fence_fn_4)(nvt_transport *t, int pe, int qp, int is_multi);

typedef int (*nvt_quiet_fn)(nvt_transport *t, int pe, int qp);

/** Layouts 4 and 5. The three vectors have one entry per chunk, none for an empty payload. */
typedef int (*nvt_put_signal_fn_4)(nvt_transport *t, int pe, nvt_rma_verb write_verb,
                                   const nvt_memdesc_vector *remote,
                                   const nvt_memdesc_vector *local,
                                   const nvt_bytesdesc_vector *bytes, nvt_amo_verb_3 sig_verb,
                                   nvt_amo_memdesc *sig, nvt_amo_bytesdesc sig_bytes, int qp);
/** Layouts 6 and 7. */
typedef int (*nvt_put_signal_fn_6)(nvt_transport *t, int pe, nvt_rma_verb write_verb,
                                   const nvt_memdesc_vector *remote,
                                   const nvt_memdesc_vector *local,
                                   const nvt_bytesdesc_vector *bytes, nvt_amo_verb_6 sig_verb,
                                   nvt_amo_memdesc *sig, nvt_amo_bytesdesc sig_bytes, int qp);

typedef int (*nvt_enforce_cst_fn)(nvt_transport *t);
typedef int (*nvt_add_device_remote_mem_handles_fn)(nvt_transport *t, int stride,
                                                    nvt_mem_handle *handles, uint64_t heap_offset,
                                                    size_t size);
/** Layout 7. `role` is NVT_REGION_ROLE_*. */
typedef int (*nvt_region_flush_fn)(nvt_transport *t, int role, uint64_t issuer_id,
                                   uint64_t region_id);

/* ------------------------------------------------------------------------------------------------
 * Tables of operations
 *
 * May be NULL: get_mem_handle, release_mem_handle, progress, fence (the transport orders by
 * itself), enforce_cst, enforce_cst_at_target, add_device_remote_mem_handles, rma_with_hints,
 * region_flush. The host calls the others without a check.
 */

/** Layout 3a. */
typedef struct nvt_host_ops_3a {
    nvt_can_reach_peer_fn can_reach_peer;
    nvt_connect_endpoints_fn_3 connect_endpoints;
    nvt_get_mem_handle_fn_3a get_mem_handle;
    nvt_release_mem_handle_fn release_mem_handle;
    nvt_finalize_fn finalize;
    nvt_show_info_fn show_info;
    nvt_progress_fn progress;
    nvt_rma_fn rma;
    nvt_amo_fn_3 amo;
    nvt_fence_fn_3 fence;
    nvt_quiet_fn quiet;
    nvt_enforce_cst_fn enforce_cst;
    nvt_enforce_cst_fn enforce_cst_at_target;
    nvt_add_device_remote_mem_handles_fn add_device_remote_mem_handles;
} nvt_host_ops_3a;

/** Layout 3b. */
typedef struct nvt_host_ops_3b {
    nvt_can_reach_peer_fn can_reach_peer;
    nvt_connect_endpoints_fn_3 connect_endpoints;
    nvt_get_mem_handle_fn_3b get_mem_handle;
    nvt_release_mem_handle_fn release_mem_handle;
    nvt_finalize_fn finalize;
    nvt_show_info_fn show_info;
    nvt_progress_fn progress;
    nvt_rma_fn rma;
    nvt_amo_fn_3 amo;
    nvt_fence_fn_3 fence;
    nvt_quiet_fn quiet;
    nvt_enforce_cst_fn enforce_cst;
    nvt_enforce_cst_fn enforce_cst_at_target;
    nvt_add_device_remote_mem_handles_fn add_device_remote_mem_handles;
} nvt_host_ops_3b;

/** Layouts 4 and 5. */
typedef struct nvt_host_ops_4 {
    nvt_can_reach_peer_fn can_reach_peer;
    nvt_connect_endpoints_fn_4 connect_endpoints;
    nvt_get_mem_handle_fn_3b get_mem_handle;
    nvt_release_mem_handle_fn release_mem_handle;
    nvt_finalize_fn finalize;
    nvt_show_info_fn show_info;
    nvt_progress_fn progress;
    nvt_rma_fn rma;
    nvt_amo_fn_3 amo;
    nvt_fence_fn_4 fence;
    nvt_quiet_fn quiet;
    nvt_put_signal_fn_4 put_signal;
    nvt_enforce_cst_fn enforce_cst;
    nvt_enforce_cst_fn enforce_cst_at_target;
    nvt_add_device_remote_mem_handles_fn add_device_remote_mem_handles;
} nvt_host_ops_4;

/** Layout 6. */
typedef struct nvt_host_ops_6 {
    nvt_can_reach_peer_fn can_reach_peer;
    nvt_connect_endpoints_fn_4 connect_endpoints;
    nvt_get_mem_handle_fn_3b get_mem_handle;
    nvt_release_mem_handle_fn release_mem_handle;
    nvt_finalize_fn finalize;
    nvt_show_info_fn show_info;
    nvt_progress_fn progress;
    nvt_rma_fn rma;
    nvt_amo_fn_6 amo;
    nvt_fence_fn_4 fence;
    nvt_quiet_fn quiet;
    nvt_put_signal_fn_6 put_signal;
    nvt_enforce_cst_fn enforce_cst;
    nvt_enforce_cst_fn enforce_cst_at_target;
    nvt_add_device_remote_mem_handles_fn add_device_remote_mem_handles;
    nvt_rma_with_hints_fn_6 rma_with_hints;
} nvt_host_ops_6;

/** Layout 7. */
typedef struct nvt_host_ops_7 {
    nvt_can_reach_peer_fn can_reach_peer;
    nvt_connect_endpoints_fn_4 connect_endpoints;
    nvt_get_mem_handle_fn_3b get_mem_handle;
    nvt_release_mem_handle_fn release_mem_handle;
    nvt_finalize_fn finalize;
    nvt_show_info_fn show_info;
    nvt_progress_fn progress;
    nvt_rma_fn rma;
    nvt_amo_fn_6 amo;
    nvt_fence_fn_4 fence;
    nvt_quiet_fn quiet;
    nvt_put_signal_fn_6 put_signal;
    nvt_enforce_cst_fn enforce_cst;
    nvt_enforce_cst_fn enforce_cst_at_target;
    nvt_add_device_remote_mem_handles_fn add_device_remote_mem_handles;
    nvt_rma_with_hints_fn_7 rma_with_hints;
    nvt_region_flush_fn region_flush;
} nvt_host_ops_7;

/* ------------------------------------------------------------------------------------------------
 * The transport
 *
 * The plugin allocates it in nvshmemt_init and frees it in finalize. It should allocate the
 * largest of all layouts, zeroed: an older host writes its own prefix only.
 *
 * Written by the plugin before nvshmemt_init returns:
 *   api_version                  the value given to nvshmemt_init
 *   type                         NVT_LIB_CODE_*; NONE for a proxy transport
 *   state                        the plugin's own
 *   device_pci_paths, n_devices  sysfs directories of the NICs the host may choose from; the plugin
 *                                keeps and frees them. n_devices 0: the plugin chooses by itself
 *   attr                         NVT_ATTR_*
 *   atomics_complete_on_quiet    0: the plugin stores retflag after the fetched value;
 *                                1: quiet completes fetched values, the device sets the flag
 *   is_successfully_initialized  1, else the host never calls finalize
 *   no_proxy                     0 for a transport that the proxy thread drives
 *   max_op_len                   largest transfer of one rma call; 0 lets the host write SIZE_MAX
 *   atomic_host_endian_min_size  0 unless fetched values arrive in network byte order
 *   device_assignment_mode       layout 7: NVT_DEVICE_ASSIGNMENT_MODE_*
 *
 * Written by the host after nvshmemt_init returned, so not readable inside it:
 *   cap                          one NVT_CAP_* set per PE, what can_reach_peer reported
 *   boot_handle                  collectives for use in connect_endpoints
 *   cache_handle                 the host's own
 *   heap_base                    first byte of this PE's symmetric heap
 *   log2_cumem_granularity       size of a heap granule
 *   index                        the transport's slot in the host's table
 *   my_pe, n_pes                 this PE, number of PEs
 *   alias_va_map                 user memory mapped into the heap: heap address -> user address;
 *                                may be NULL
 *   egm_map                      those of them in CPU memory: heap address -> length; may be NULL
 */

#define NVT_TRANSPORT_HEAD   \
    int32_t api_version;     \
    int32_t type;            \
    int32_t *cap;

#define NVT_TRANSPORT_BODY                \
    nvt_bootstrap_handle *boot_handle;    \
    void *state;                          \
    void *type_specific_shared_state;     \
    void *cache_handle;                   \
    char **device_pci_paths;              \
    int32_t attr;                         \
    int32_t n_devices;                    \
    uint8_t atomics_complete_on_quiet;    \
    uint8_t is_successfully_initialized;  \
    uint8_t no_proxy;                     \
    uint8_t _pad[5];                      \
    void *heap_base;                      \
    uint64_t log2_cumem_granularity;      \
    uint64_t max_op_len;                  \
    uint32_t atomic_host_endian_min_size; \
    int32_t index;                        \
    int32_t my_pe;                        \
    int32_t n_pes;

#define NVT_TRANSPORT_MAPS               \
    nvt_std_unordered_map *alias_va_map; \
    nvt_std_unordered_map *egm_map;

/** Layout 3a: NVSHMEM 3.0 to 3.2. */
typedef struct nvt_transport_3a {
    NVT_TRANSPORT_HEAD
    nvt_host_ops_3a host_ops;
    NVT_TRANSPORT_BODY
} nvt_transport_3a;

/** Layout 3b: NVSHMEM 3.3 and 3.4. */
typedef struct nvt_transport_3b {
    NVT_TRANSPORT_HEAD
    nvt_host_ops_3b host_ops;
    NVT_TRANSPORT_BODY
    NVT_TRANSPORT_MAPS
} nvt_transport_3b;

/** Layout 4: NVSHMEM 3.5. */
typedef struct nvt_transport_4 {
    NVT_TRANSPORT_HEAD
    NVT_TRANSPORT_BODY
    NVT_TRANSPORT_MAPS
    nvt_host_ops_4 host_ops;
} nvt_transport_4;

/** Layout 5: NVSHMEM 3.6. The same as layout 4. */
typedef nvt_transport_4 nvt_transport_5;

/** Layout 6: NVSHMEM 3.7. */
typedef struct nvt_transport_6 {
    NVT_TRANSPORT_HEAD
    NVT_TRANSPORT_BODY
    NVT_TRANSPORT_MAPS
    nvt_host_ops_6 host_ops;
} nvt_transport_6;

/** Layout 7: NVSHMEM 3.8. */
typedef struct nvt_transport_7 {
    NVT_TRANSPORT_HEAD
    NVT_TRANSPORT_BODY
    NVT_TRANSPORT_MAPS
    nvt_host_ops_7 host_ops;
    int32_t device_assignment_mode;
    uint8_t _tail_pad[4];
} nvt_transport_7;

/* ------------------------------------------------------------------------------------------------
 * What any compiler that reads this must agree with. nvshmem-abi's build script checks the
 * fields that its layouts.json lists.
 */
#ifdef __cplusplus
#define NVT_STATIC_ASSERT(cond, text) static_assert(cond, text)
#else
#define NVT_STATIC_ASSERT(cond, text) _Static_assert(cond, text)
#endif
#define NVT_ASSERT_SIZE(type, size) NVT_STATIC_ASSERT(sizeof(type) == (size), "size of " #type)
#define NVT_ASSERT_OFFSET(type, field, at) \
    NVT_STATIC_ASSERT(offsetof(type, field) == (at), "offset of " #field " in " #type)

NVT_ASSERT_SIZE(nvt_transport_3a, 224);
NVT_ASSERT_SIZE(nvt_transport_3b, 240);
NVT_ASSERT_SIZE(nvt_transport_4, 248);
NVT_ASSERT_SIZE(nvt_transport_5, 248);
NVT_ASSERT_SIZE(nvt_transport_6, 256);
NVT_ASSERT_SIZE(nvt_transport_7, 272);
NVT_ASSERT_OFFSET(nvt_transport_3a, host_ops, 16);
NVT_ASSERT_OFFSET(nvt_transport_3a, boot_handle, 128);
NVT_ASSERT_OFFSET(nvt_transport_3a, n_pes, 220);
NVT_ASSERT_OFFSET(nvt_transport_3b, host_ops, 16);
NVT_ASSERT_OFFSET(nvt_transport_3b, boot_handle, 128);
NVT_ASSERT_OFFSET(nvt_transport_3b, egm_map, 232);
NVT_ASSERT_OFFSET(nvt_transport_4, boot_handle, 16);
NVT_ASSERT_OFFSET(nvt_transport_4, host_ops, 128);
NVT_ASSERT_OFFSET(nvt_transport_4, host_ops.add_device_remote_mem_handles, 240);
NVT_ASSERT_OFFSET(nvt_transport_6, host_ops, 128);
NVT_ASSERT_OFFSET(nvt_transport_6, host_ops.rma_with_hints, 248);
NVT_ASSERT_OFFSET(nvt_transport_7, host_ops, 128);
NVT_ASSERT_OFFSET(nvt_transport_7, host_ops.region_flush, 256);
NVT_ASSERT_OFFSET(nvt_transport_7, device_assignment_mode, 264);
NVT_ASSERT_SIZE(nvt_rma_verb, 24);
NVT_ASSERT_SIZE(nvt_rma_memdesc, 24);
NVT_ASSERT_SIZE(nvt_rma_bytesdesc, 32);
NVT_ASSERT_SIZE(nvt_amo_verb_3, 16);
NVT_ASSERT_SIZE(nvt_amo_verb_6, 20);
NVT_ASSERT_SIZE(nvt_amo_memdesc, 80);
NVT_ASSERT_SIZE(nvt_amo_bytesdesc, 8);
NVT_ASSERT_SIZE(nvt_g_elem, 16);
NVT_ASSERT_SIZE(nvt_pe_info, 40);
NVT_ASSERT_SIZE(nvt_mem_handle, 512);
NVT_ASSERT_SIZE(nvt_memdesc_vector, 24);
NVT_ASSERT_SIZE(nvt_bytesdesc_vector, 24);
NVT_ASSERT_SIZE(nvt_std_unordered_map, 56);
NVT_ASSERT_SIZE(nvt_bootstrap_handle, 88);
NVT_ASSERT_SIZE(nvt_op_attrs_6, 4);
NVT_ASSERT_SIZE(nvt_op_attrs_7, 24);

#endif /* NVSHMEM_TRANSPORT_ABI_H */
