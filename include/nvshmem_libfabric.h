/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device channel for C and C++: rails to all PEs, memory that kernels and peers reach, and a
 * proxy thread that executes what kernels ask for.
 *
 * Kernels include nvshmem_libfabric_device.cuh and are given what nlf_get_context returns. Link
 * with -lnvshmem_libfabric_channel. The environment variables of docs/settings.md apply.
 *
 * Functions that return an int return 0, or -1 after which nlf_strerror has the reason. Where it
 * says "collective", every PE makes the call, and all make these calls in the same order, each from
 * one thread at a time. A call that fails at one PE fails at all, or the next collective does.
 */
#ifndef NVSHMEM_LIBFABRIC_H
#define NVSHMEM_LIBFABRIC_H

#include <stddef.h>
#include <stdint.h>

#include "nvshmem_libfabric_ring.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A channel. */
typedef struct nlf_channel nlf_channel;

/* How a channel is made. All zeroes, but for `size`, is as the environment says. */
typedef struct {
    size_t size;       /* sizeof(nlf_options) */
    uint32_t rings;    /* a power of two, at most NLF_MAX_RINGS */
    uint32_t slots;    /* of each ring: a power of two, NLF_MIN_SLOTS to NLF_MAX_SLOTS */
    uint64_t spins;    /* polls without any change after which a kernel gives up a wait; 0: never */
    uint32_t drain_ms; /* what nlf_finalize gives operations to end, in milliseconds; 0: ten seconds */
    uint32_t reserved; /* 0 */
} nlf_options;

/* Gives every PE's `bytes` bytes at `mine`, in PE order, at `all`, which has room for those of all
 * PEs. Returns 0 when it has worked. It is called from the threads that make collective calls, and
 * not after nlf_finalize. */
typedef int (*nlf_allgather)(const void *mine, void *all, size_t bytes, void *user);

/* Makes a channel of `n_pes` PEs, of which this is `me`, from 0. PE 0 listens at `address`,
 * HOST:PORT, the others connect to it; NULL is NVSHMEM_LIBFABRIC_BOOTSTRAP. `job` is the same on
 * all PEs and should differ between jobs; who does not know it does not join, so a random number
 * keeps strangers out. `options` may be NULL. Collective. */
int nlf_init_tcp(nlf_channel **channel, const char *address, uint32_t me, uint32_t n_pes, uint64_t job,
                 const nlf_options *options);

/* The same, of PEs that can exchange bytes already, by MPI for one. */
int nlf_init_allgather(nlf_channel **channel, uint32_t me, uint32_t n_pes, nlf_allgather allgather, void *user,
                       const nlf_options *options);

/* What kernels are given; it stays until nlf_finalize. Where a context of CUDA was current on the
 * thread that has made the channel, it is memory of that device, which the CPU does not reach; else
 * host memory for CPU threads. */
const nlf_context *nlf_get_context(const nlf_channel *channel);

/* `bytes` bytes of zeroed host memory at every PE, which all PEs and kernels reach; page-locked
 * where the process uses CUDA. NULL when it is not to be had. Collective, with the same length. */
void *nlf_alloc(nlf_channel *channel, size_t bytes);

/* Where memory is. */
#define NLF_ON_HOST 0u   /* as nlf_alloc */
#define NLF_ON_DEVICE 1u /* of the device whose context is current on the calling thread; the CPU does not reach it */

/* The same, of memory that is where this PE wants it. On a device it is made by CUDA's VMM
 * interface where the driver has that, reached by NICs directly where all rails can (docs/gpu.md),
 * and staged through the host else. May wait for everything on the device, as nlf_release of it
 * does: no kernel runs that waits for this PE. Collective, with the same length; each PE says for
 * itself where. */
void *nlf_alloc_on(nlf_channel *channel, uint32_t location, size_t bytes);

/* Lets all PEs reach memory of this PE, of the host or of a CUDA device. It stays what it is until
 * it is released. Collective, with the same length at any address. */
int nlf_register(nlf_channel *channel, void *addr, size_t bytes);

/* Lets kernels put from memory of this PE, of the host or of a CUDA device, and get and fetch into
 * it. It stays what it is until it is released, and what is got is written there. Peers do not
 * reach it. Not collective: any thread, at any time; no more than 63 while another thread is in one
 * of the three above. */
int nlf_register_local(nlf_channel *channel, void *addr, size_t bytes);

/* Ends what one of the four above has begun; memory of nlf_alloc and nlf_alloc_on is freed. Nobody
 * uses it any more. Collective, but for memory that is local: any thread, at any time. -1 with a
 * text that says so while an operation, which has failed perhaps, may touch the memory still: it
 * stays registered then, and is not freed, until this is called again, by this PE alone, or until
 * nlf_finalize. Bytes that are registered twice may be read, for a put that has failed, until both
 * registrations have ended. */
int nlf_release(nlf_channel *channel, void *addr);

/* Returns when all PEs have called it. Collective. */
int nlf_barrier(nlf_channel *channel);

/* 0 while all is well, else -1: an operation has failed, or a kernel has asked for what cannot be.
 * Any thread. */
int nlf_check(const nlf_channel *channel);

/* Delivers what was pushed by now, waits until all PEs have, and frees the channel, also when it
 * returns -1, as something was not delivered. Kernels that use the context have ended.
 * Collective. */
int nlf_finalize(nlf_channel *channel);

/* What went wrong last on this thread. It stays until the thread's next call. Never NULL. */
const char *nlf_strerror(void);

#ifdef __cplusplus
}
#endif

#endif
