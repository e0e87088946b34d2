/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One-sided communication from kernels, without NVSHMEM: put, put with signal, atomics, get, fence,
 * quiet, wait, barrier; and where memory of peers is, where kernels reach it themselves.
 *
 * A context comes from the host library (nvshmem_libfabric.h). C++14; nvcc for sm_70 and newer. A
 * host C++ compiler takes the same functions, for CPU threads that produce into the same rings;
 * there, say which block a thread is with nlf_host_set_block.
 *
 * Addresses. `dst` of a put and the words of signals and atomics are given as addresses of this
 * PE's own symmetric memory, and mean the same place at the peer; so is `src` of a get. The other
 * end, and results, may be in any memory that the context has registered.
 *
 * Forms. A function without suffix is for a thread: each thread that calls it has an operation of
 * its own. Threads of a warp that call it together share the cost. `_warp` and `_block` are one
 * operation of all threads of the warp or block, all of which must call it, with the same
 * arguments; what they have written before is covered, and all get the status.
 *
 * Order. An operation goes through the ring of the calling block, or the one that its flags name
 * (NLF_RING). Operations of a ring are begun in their order, but delivered in any; see nlf_fence.
 * Threads of one block are ordered among themselves if a barrier orders the calls. There is no
 * order among rings, nor among blocks that do not order themselves.
 *
 * Memory. What the calling thread has written before (for _warp and _block: any of them) is what is
 * sent. That costs a fence of system scope in each call, or one for all threads that call together;
 * NLF_NO_FENCE leaves it out, for who has just had one.
 *
 * Return. NLF_OK, or an NLF_ERROR_* of which the first in a context also stays in its error word
 * with PE, address and length. After NLF_ERROR_STUCK, _STOPPED or _FAILED a context takes nothing
 * any more. An operation that returns an error was not begun. One of zero bytes is no operation.
 *
 * Waits. A call waits only where the ring is full, and in blocking forms (those that have an _nbi
 * beside them, and nlf_g), quiets, nlf_wait_until_* and barriers. Every wait ends when the proxy
 * has ended, and, but for those for peers, after nlf_context.spins looks between which the proxy
 * has moved nothing: NLF_ERROR_STUCK. Who gives up while the ring is full leaves the context
 * unusable for all.
 */
#ifndef NVSHMEM_LIBFABRIC_DEVICE_CUH
#define NVSHMEM_LIBFABRIC_DEVICE_CUH

#include <type_traits>

#include "nvshmem_libfabric_push.cuh"

/*
 * Flags of operations, to be added up:
 * - NLF_NO_FENCE: what the thread has written before was made visible to the system already, by a
 *   fence of its own;
 * - NLF_RING(n): through ring n, modulo their number (nlf_context.n_rings). Whoever waits for the
 *   operation, or orders others with it, names the same ring.
 */

/* How nlf_wait_until and nlf_test compare: word, then value. */
#define NLF_CMP_EQ 0
#define NLF_CMP_NE 1
#define NLF_CMP_GT 2
#define NLF_CMP_GE 3
#define NLF_CMP_LT 4
#define NLF_CMP_LE 5

/* Defines the forms of an operation for a warp and a block beside the one for a thread. */
#define NLFI_COOPERATIVE(name, parameters, arguments)                                                                  \
    NLF_FN int name##_warp parameters {                                                                                \
        nlfp_warp_sync();                                                                                              \
        return nlfp_warp_status(nlfp_lane() == 0 ? name arguments : NLF_OK);                                           \
    }                                                                                                                  \
    NLF_FN int name##_block parameters {                                                                               \
        nlfp_block_sync();                                                                                             \
        return nlfp_block_status(nlfp_thread_of_block() == 0 ? name arguments : NLF_OK);                               \
    }

/* ------------------------------------------------------------------------------------------------
 * Puts and gets
 */

/*
 * Copies `bytes` from `src` here to `dst` at `pe`. When it returns, nothing of it need have
 * happened: `src` may not change, and `dst` is not known to have it, before a quiet. At most
 * NLF_MAX_BYTES.
 */
NLF_FN int nlf_put_nbi(const nlf_context *ctx, void *dst, const void *src, size_t bytes, int pe, unsigned flags = 0) {
    return nlfi_transfer(ctx, NLF_OP_PUT, dst, src, bytes, pe, flags, NULL);
}
NLFI_COOPERATIVE(nlf_put_nbi,
                 (const nlf_context *ctx, void *dst, const void *src, size_t bytes, int pe, unsigned flags = 0),
                 (ctx, dst, src, bytes, pe, flags))

/*
 * The same, and waits until `dst` has them, and what is before it in the ring is delivered. `src`
 * may change then.
 */
NLF_FN int nlf_put(const nlf_context *ctx, void *dst, const void *src, size_t bytes, int pe, unsigned flags = 0) {
    uint64_t ticket = 0;
    const int status = nlfi_transfer(ctx, NLF_OP_PUT, dst, src, bytes, pe, flags, &ticket);
    return nlfi_wait_for(ctx, status, ticket, flags);
}
NLFI_COOPERATIVE(nlf_put, (const nlf_context *ctx, void *dst, const void *src, size_t bytes, int pe, unsigned flags = 0),
                 (ctx, dst, src, bytes, pe, flags))

/*
 * `*dst` at `pe` = value, as a put that takes no memory here: the value travels with the request. T
 * has 1, 2, 4 or 8 bytes. `dst` is not known to have it before a quiet.
 */
template <typename T>
NLF_TEMPLATE_FN void nlfi_is_value() {
    static_assert(sizeof(T) == 1 || sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8, "a value of 1, 2, 4 or 8 bytes");
    static_assert(std::is_trivially_copyable<T>::value, "a value that is its bytes");
}
template <typename T>
NLF_TEMPLATE_FN int nlf_p(const nlf_context *ctx, T *dst, nlfi_value<T> value, int pe, unsigned flags = 0) {
    nlfi_is_value<T>();
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof(T));
    return nlfi_put_value(ctx, dst, bits, sizeof(T), pe, flags);
}

/*
 * A put, and then changes the word `signal` at `pe`: sets it (NLF_KIND_SET) or adds to it
 * (NLF_KIND_ADD). Who sees the signal there sees the data of this put; of other operations it says
 * nothing. Zero bytes still signal.
 */
NLF_FN int nlf_put_signal_nbi(const nlf_context *ctx, void *dst, const void *src, size_t bytes, uint64_t *signal,
                              uint64_t value, unsigned kind, int pe, unsigned flags = 0) {
    return nlfi_put_signal(ctx, dst, src, bytes, signal, value, kind, pe, flags, NULL);
}
NLFI_COOPERATIVE(nlf_put_signal_nbi,
                 (const nlf_context *ctx, void *dst, const void *src, size_t bytes, uint64_t *signal, uint64_t value,
                  unsigned kind, int pe, unsigned flags = 0),
                 (ctx, dst, src, bytes, signal, value, kind, pe, flags))

/* The same, and waits until both are there, as nlf_put. */
NLF_FN int nlf_put_signal(const nlf_context *ctx, void *dst, const void *src, size_t bytes, uint64_t *signal,
                          uint64_t value, unsigned kind, int pe, unsigned flags = 0) {
    uint64_t ticket = 0;
    const int status = nlfi_put_signal(ctx, dst, src, bytes, signal, value, kind, pe, flags, &ticket);
    return nlfi_wait_for(ctx, status, ticket, flags);
}
NLFI_COOPERATIVE(nlf_put_signal,
                 (const nlf_context *ctx, void *dst, const void *src, size_t bytes, uint64_t *signal, uint64_t value,
                  unsigned kind, int pe, unsigned flags = 0),
                 (ctx, dst, src, bytes, signal, value, kind, pe, flags))

/*
 * Copies `bytes` from `src` at `pe` to `dst` here. `dst` has them after a quiet, and not before.
 */
NLF_FN int nlf_get_nbi(const nlf_context *ctx, void *dst, const void *src, size_t bytes, int pe, unsigned flags = 0) {
    return nlfi_transfer(ctx, NLF_OP_GET, src, dst, bytes, pe, flags, NULL);
}
NLFI_COOPERATIVE(nlf_get_nbi,
                 (const nlf_context *ctx, void *dst, const void *src, size_t bytes, int pe, unsigned flags = 0),
                 (ctx, dst, src, bytes, pe, flags))

/* The same, and waits until `dst` has them, and what is before it in the ring is delivered. */
NLF_FN int nlf_get(const nlf_context *ctx, void *dst, const void *src, size_t bytes, int pe, unsigned flags = 0) {
    uint64_t ticket = 0;
    const int status = nlfi_transfer(ctx, NLF_OP_GET, src, dst, bytes, pe, flags, &ticket);
    return nlfi_wait_for(ctx, status, ticket, flags);
}
NLFI_COOPERATIVE(nlf_get, (const nlf_context *ctx, void *dst, const void *src, size_t bytes, int pe, unsigned flags = 0),
                 (ctx, dst, src, bytes, pe, flags))

/*
 * `*value` = `*src` at `pe`, as nlf_get; `value` may be any variable of the thread, and changes
 * with NLF_OK alone. T has 1, 2, 4 or 8 bytes. At most NLF_LANDINGS are under way, others wait.
 */
template <typename T>
NLF_TEMPLATE_FN int nlf_g(const nlf_context *ctx, T *value, const T *src, int pe, unsigned flags = 0) {
    nlfi_is_value<T>();
    uint64_t bits = 0;
    const int status = nlfi_get_value(ctx, &bits, src, sizeof(T), pe, flags);
    if (status == NLF_OK) {
        memcpy(value, &bits, sizeof(T));
    }
    return status;
}

/* ------------------------------------------------------------------------------------------------
 * Signals and atomics
 *
 * All atomics on a word, of all PEs and all rings, are atomic among themselves. They are not with
 * what the GPU or CPU that has the word does to it by itself. Delivered in any order; an atomic is
 * not ordered after earlier puts without a fence.
 */

/* Sets the word `signal` at `pe` (NLF_KIND_SET), or adds to it (NLF_KIND_ADD). */
NLF_FN int nlf_signal(const nlf_context *ctx, uint64_t *signal, uint64_t value, unsigned kind, int pe,
                      unsigned flags = 0) {
    /* Kinds beyond are atomics, and no signals. */
    const unsigned checked = kind > NLF_KIND_ADD ? NLF_KIND_MASK : kind;
    return nlfi_atomic(ctx, checked, signal, 8, value, 0, NULL, pe, flags, NULL);
}
NLFI_COOPERATIVE(nlf_signal,
                 (const nlf_context *ctx, uint64_t *signal, uint64_t value, unsigned kind, int pe, unsigned flags = 0),
                 (ctx, signal, value, kind, pe, flags))

/* The bits of an operand. */
template <typename T>
NLF_TEMPLATE_FN uint64_t nlfi_bits(T value) {
    static_assert(std::is_integral<T>::value && (sizeof(T) == 4 || sizeof(T) == 8),
                  "atomics are on integers of 4 or 8 bytes");
    return sizeof(T) == 8 ? (uint64_t)value : (uint64_t)(uint32_t)value;
}

/* An atomic for which nobody waits: `result`, if there is one, has what was there after a quiet. */
template <typename T>
NLF_TEMPLATE_FN int nlfi_atomic_nbi(const nlf_context *ctx, unsigned kind, T *result, T *word, nlfi_value<T> value,
                                    nlfi_value<T> compare, int pe, unsigned flags) {
    return nlfi_atomic(ctx, kind, word, sizeof(T), nlfi_bits(value), nlfi_bits(compare), result, pe, flags, NULL);
}

/* The same, and waits for this one. */
template <typename T>
NLF_TEMPLATE_FN int nlfi_atomic_wait(const nlf_context *ctx, unsigned kind, T *result, T *word, nlfi_value<T> value,
                                     nlfi_value<T> compare, int pe, unsigned flags) {
    uint64_t ticket = 0;
    const int status =
        nlfi_atomic(ctx, kind, word, sizeof(T), nlfi_bits(value), nlfi_bits(compare), result, pe, flags, &ticket);
    return nlfi_wait_for(ctx, status, ticket, flags);
}

/* `*word` at `pe` = value; += value; &= value; |= value; ^= value. Sums wrap. T is an integer of 4
 * or 8 bytes. */
template <typename T>
NLF_TEMPLATE_FN int nlf_atomic_set(const nlf_context *ctx, T *word, nlfi_value<T> value, int pe, unsigned flags = 0) {
    return nlfi_atomic_nbi(ctx, NLF_KIND_SET, (T *)NULL, word, value, (T)0, pe, flags);
}
template <typename T>
NLF_TEMPLATE_FN int nlf_atomic_add(const nlf_context *ctx, T *word, nlfi_value<T> value, int pe, unsigned flags = 0) {
    return nlfi_atomic_nbi(ctx, NLF_KIND_ADD, (T *)NULL, word, value, (T)0, pe, flags);
}
template <typename T>
NLF_TEMPLATE_FN int nlf_atomic_and(const nlf_context *ctx, T *word, nlfi_value<T> value, int pe, unsigned flags = 0) {
    return nlfi_atomic_nbi(ctx, NLF_KIND_AND, (T *)NULL, word, value, (T)0, pe, flags);
}
template <typename T>
NLF_TEMPLATE_FN int nlf_atomic_or(const nlf_context *ctx, T *word, nlfi_value<T> value, int pe, unsigned flags = 0) {
    return nlfi_atomic_nbi(ctx, NLF_KIND_OR, (T *)NULL, word, value, (T)0, pe, flags);
}
template <typename T>
NLF_TEMPLATE_FN int nlf_atomic_xor(const nlf_context *ctx, T *word, nlfi_value<T> value, int pe, unsigned flags = 0) {
    return nlfi_atomic_nbi(ctx, NLF_KIND_XOR, (T *)NULL, word, value, (T)0, pe, flags);
}

/*
 * Fetching forms: what was there before comes to `*result`, a word of registered memory here that
 * nothing else uses meanwhile. With _nbi it is there after a quiet. Without, the call waits until
 * it is, for this operation and for those before it in the ring; what the operation has brought is
 * then seen by the thread.
 */
#define NLFI_FETCHING(name, kind)                                                                                      \
    template <typename T>                                                                                              \
    NLF_TEMPLATE_FN int name##_nbi(const nlf_context *ctx, T *result, T *word, nlfi_value<T> value, int pe,            \
                                   unsigned flags = 0) {                                                               \
        return result == NULL ? nlfi_report(ctx, NLF_ERROR_ADDRESS, NLF_OP_ATOMIC, pe, NULL, sizeof(T), flags)                \
                              : nlfi_atomic_nbi(ctx, kind, result, word, value, (T)0, pe, flags);                      \
    }                                                                                                                  \
    template <typename T>                                                                                              \
    NLF_TEMPLATE_FN int name(const nlf_context *ctx, T *result, T *word, nlfi_value<T> value, int pe,                  \
                             unsigned flags = 0) {                                                                     \
        return result == NULL ? nlfi_report(ctx, NLF_ERROR_ADDRESS, NLF_OP_ATOMIC, pe, NULL, sizeof(T), flags)                \
                              : nlfi_atomic_wait(ctx, kind, result, word, value, (T)0, pe, flags);                     \
    }
NLFI_FETCHING(nlf_atomic_fetch_add, NLF_KIND_ADD)
NLFI_FETCHING(nlf_atomic_fetch_and, NLF_KIND_AND)
NLFI_FETCHING(nlf_atomic_fetch_or, NLF_KIND_OR)
NLFI_FETCHING(nlf_atomic_fetch_xor, NLF_KIND_XOR)
NLFI_FETCHING(nlf_atomic_swap, NLF_KIND_SWAP)
#undef NLFI_FETCHING

/* Reads a word. */
template <typename T>
NLF_TEMPLATE_FN int nlf_atomic_fetch_nbi(const nlf_context *ctx, T *result, T *word, int pe, unsigned flags = 0) {
    return nlfi_atomic_nbi(ctx, NLF_KIND_FETCH, result, word, (T)0, (T)0, pe, flags);
}
template <typename T>
NLF_TEMPLATE_FN int nlf_atomic_fetch(const nlf_context *ctx, T *result, T *word, int pe, unsigned flags = 0) {
    return nlfi_atomic_wait(ctx, NLF_KIND_FETCH, result, word, (T)0, (T)0, pe, flags);
}

/* Sets the word to `value` where it is `compare`. */
template <typename T>
NLF_TEMPLATE_FN int nlf_atomic_compare_swap_nbi(const nlf_context *ctx, T *result, T *word, nlfi_value<T> compare,
                                                nlfi_value<T> value, int pe, unsigned flags = 0) {
    return nlfi_atomic_nbi(ctx, NLF_KIND_COMPARE_SWAP, result, word, value, compare, pe, flags);
}
template <typename T>
NLF_TEMPLATE_FN int nlf_atomic_compare_swap(const nlf_context *ctx, T *result, T *word, nlfi_value<T> compare,
                                            nlfi_value<T> value, int pe, unsigned flags = 0) {
    return nlfi_atomic_wait(ctx, NLF_KIND_COMPARE_SWAP, result, word, value, compare, pe, flags);
}

/* ------------------------------------------------------------------------------------------------
 * Order and completion
 */

/*
 * Puts, signals and atomics to `pe` that went into the ring before it are visible there before
 * those that go in after it. It waits for nothing. Gets and results are not ordered by it.
 */
NLF_FN int nlf_fence(const nlf_context *ctx, int pe, unsigned flags = 0) {
    return nlfi_bare(ctx, NLF_OP_FENCE, pe, 0, flags, NULL);
}

/* The same for every PE. */
NLF_FN int nlf_fence_all(const nlf_context *ctx, unsigned flags = 0) {
    return nlfi_bare(ctx, NLF_OP_FENCE, 0, NLF_FLAG_ALL_PES, flags, NULL);
}

/* For a warp or block: they order what any of its threads has put in before and puts in after. */
NLFI_COOPERATIVE(nlf_fence, (const nlf_context *ctx, int pe, unsigned flags = 0), (ctx, pe, flags))
NLFI_COOPERATIVE(nlf_fence_all, (const nlf_context *ctx, unsigned flags = 0), (ctx, flags))

/*
 * Waits until everything that is in the ring is delivered: whatever this thread, and threads that
 * it is ordered after, have put in, and what others of the same ring have. Puts and atomics are
 * then visible at their peers; gets and results are here, and seen by the thread (_warp, _block: by
 * all of them).
 */
NLF_FN int nlf_quiet(const nlf_context *ctx, unsigned flags = 0) {
    return ctx->version != NLF_RING_VERSION ? NLF_ERROR_VERSION : nlfi_quiet(ctx, nlfi_ring_index(ctx, flags));
}
NLFI_COOPERATIVE(nlf_quiet, (const nlf_context *ctx, unsigned flags = 0), (ctx, flags))

/*
 * The same of what is in the ring for `pe`: where other PEs are slow, they are not waited for.
 * Never later than nlf_quiet, and no sooner either while others put to `pe` without end.
 */
NLF_FN int nlf_quiet_pe(const nlf_context *ctx, int pe, unsigned flags = 0) { return nlfi_quiet_pe(ctx, pe, flags); }
NLFI_COOPERATIVE(nlf_quiet_pe, (const nlf_context *ctx, int pe, unsigned flags = 0), (ctx, pe, flags))

/* As nlf_quiet for all rings, one after another. */
NLF_FN int nlf_quiet_all(const nlf_context *ctx) {
    if (ctx->version != NLF_RING_VERSION) {
        return NLF_ERROR_VERSION;
    }
    for (unsigned index = 0; index < ctx->n_rings; index++) {
        const int status = nlfi_quiet(ctx, index);
        if (status != NLF_OK) {
            return status;
        }
    }
    return NLF_OK;
}
NLFI_COOPERATIVE(nlf_quiet_all, (const nlf_context *ctx), (ctx))

#include "nvshmem_libfabric_wait.cuh"

#undef NLFI_COOPERATIVE

#endif
