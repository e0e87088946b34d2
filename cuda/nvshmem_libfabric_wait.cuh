/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waits for what peers do: words that they change, and the barrier of all PEs. Part of
 * nvshmem_libfabric_device.cuh, which says what holds for every function.
 */
#ifndef NVSHMEM_LIBFABRIC_WAIT_CUH
#define NVSHMEM_LIBFABRIC_WAIT_CUH

#include "nvshmem_libfabric_push.cuh"

/* ------------------------------------------------------------------------------------------------
 * Words
 *
 * Words here, of symmetric memory, are compared to a value as asked (NLF_CMP_*). Where that is
 * true, what was delivered before the word was changed is seen after. An unknown comparison is
 * never true. T is an integer or a floating-point number of 4 or 8 bytes, and compared as that.
 *
 * Of arrays, those words are left out whose entry of `skip` is not 0; `skip` may be NULL. With no
 * word that counts, "all" is true, and "any" and "some" are as well, with no word: index `count`.
 */

/* Whether it is so of a word. */
template <typename T>
NLF_TEMPLATE_FN bool nlf_test(const T *word, unsigned comparison, nlfi_value<T> value) {
    const T now = nlfp_load_acquire(word);
    switch (comparison) {
    case NLF_CMP_EQ: return now == value;
    case NLF_CMP_NE: return now != value;
    case NLF_CMP_GT: return now > value;
    case NLF_CMP_GE: return now >= value;
    case NLF_CMP_LT: return now < value;
    case NLF_CMP_LE: return now <= value;
    default: return false;
    }
}

/* The word of a signal, as nlf_test looks at it. */
NLF_FN uint64_t nlf_signal_fetch(const uint64_t *signal) { return nlfp_load_acquire64(signal); }

/* Whether it is so of all words. */
template <typename T>
NLF_TEMPLATE_FN bool nlf_test_all(const T *words, size_t count, const int *skip, unsigned comparison,
                                  nlfi_value<T> value) {
    for (size_t at = 0; at < count; at++) {
        if ((skip == NULL || skip[at] == 0) && !nlf_test(words + at, comparison, value)) {
            return false;
        }
    }
    return true;
}

/* Whether it is so of a word, the first of which `*index` is then. */
template <typename T>
NLF_TEMPLATE_FN bool nlf_test_any(const T *words, size_t count, const int *skip, unsigned comparison,
                                  nlfi_value<T> value, size_t *index) {
    bool counts = false;
    for (size_t at = 0; at < count; at++) {
        if (skip == NULL || skip[at] == 0) {
            counts = true;
            if (nlf_test(words + at, comparison, value)) {
                *index = at;
                return true;
            }
        }
    }
    *index = count;
    return !counts;
}

/* The same, of all for which it is so: `indices` has room for `count`, `*found` says how many there
 * are. */
template <typename T>
NLF_TEMPLATE_FN bool nlf_test_some(const T *words, size_t count, const int *skip, unsigned comparison,
                                   nlfi_value<T> value, size_t *indices, size_t *found) {
    bool counts = false;
    *found = 0;
    for (size_t at = 0; at < count; at++) {
        if (skip == NULL || skip[at] == 0) {
            counts = true;
            if (nlf_test(words + at, comparison, value)) {
                indices[*found] = at;
                *found += 1;
            }
        }
    }
    return *found != 0 || !counts;
}

/*
 * Waits until a function is true. For as long as the proxy runs: how long a peer takes is not known
 * here. When the proxy has ended, or the context is over, it is asked once more before that is
 * reported.
 */
template <typename IsThere>
NLF_TEMPLATE_FN int nlfi_wait(const nlf_context *ctx, const IsThere &is_there, unsigned flags) {
    const nlf_published *published = nlfi_ring(ctx, flags)->published;
    for (unsigned looks = 0;; looks++) {
        if (is_there()) {
            return NLF_OK;
        }
        /* Over the bus, so not each time. */
        if (looks % 64 == 63 && nlfi_is_over(ctx, published)) {
            return is_there() ? NLF_OK : nlfi_give_up(ctx, published, flags);
        }
        nlfp_pause(looks);
    }
}

/* What is wrong with a wait before it begins. */
NLF_FN int nlfi_check_wait(const nlf_context *ctx, const void *words, unsigned comparison, size_t width) {
    if (ctx->version != NLF_RING_VERSION) {
        return NLF_ERROR_VERSION;
    }
    return comparison <= NLF_CMP_LE ? NLF_OK : nlfi_report(ctx, NLF_ERROR_KIND, 0, (int)ctx->me, words, width, 0);
}

/* Waits until nlf_test is true. */
template <typename T>
NLF_TEMPLATE_FN int nlf_wait_until(const nlf_context *ctx, const T *word, unsigned comparison, nlfi_value<T> value) {
    const int status = nlfi_check_wait(ctx, word, comparison, sizeof(T));
    return status != NLF_OK ? status : nlfi_wait(ctx, [=]() { return nlf_test(word, comparison, value); }, 0);
}
template <typename T>
NLF_TEMPLATE_FN int nlf_wait_until_warp(const nlf_context *ctx, const T *word, unsigned comparison,
                                        nlfi_value<T> value) {
    nlfp_warp_sync();
    return nlfp_warp_status(nlfp_lane() == 0 ? nlf_wait_until(ctx, word, comparison, value) : NLF_OK);
}
template <typename T>
NLF_TEMPLATE_FN int nlf_wait_until_block(const nlf_context *ctx, const T *word, unsigned comparison,
                                         nlfi_value<T> value) {
    nlfp_block_sync();
    return nlfp_block_status(nlfp_thread_of_block() == 0 ? nlf_wait_until(ctx, word, comparison, value) : NLF_OK);
}

/* Waits until nlf_test_any is true, with the same index. */
template <typename T>
NLF_TEMPLATE_FN int nlf_wait_until_any(const nlf_context *ctx, const T *words, size_t count, const int *skip,
                                       unsigned comparison, nlfi_value<T> value, size_t *index) {
    const int status = nlfi_check_wait(ctx, words, comparison, sizeof(T));
    return status != NLF_OK
               ? status
               : nlfi_wait(ctx, [=]() { return nlf_test_any(words, count, skip, comparison, value, index); }, 0);
}

/* Waits until nlf_test_some is true, with the same indices. */
template <typename T>
NLF_TEMPLATE_FN int nlf_wait_until_some(const nlf_context *ctx, const T *words, size_t count, const int *skip,
                                        unsigned comparison, nlfi_value<T> value, size_t *indices, size_t *found) {
    const int status = nlfi_check_wait(ctx, words, comparison, sizeof(T));
    return status != NLF_OK
               ? status
               : nlfi_wait(
                     ctx, [=]() { return nlf_test_some(words, count, skip, comparison, value, indices, found); }, 0);
}

/* Waits until each word has been as nlf_test_all asks, every `step`-th from `first` on. */
template <typename T>
NLF_TEMPLATE_FN int nlfi_wait_until_all(const nlf_context *ctx, const T *words, size_t count, const int *skip,
                                        unsigned comparison, nlfi_value<T> value, size_t first, size_t step) {
    int status = nlfi_check_wait(ctx, words, comparison, sizeof(T));
    for (size_t at = first; status == NLF_OK && at < count; at += step) {
        if (skip == NULL || skip[at] == 0) {
            status = nlfi_wait(ctx, [=]() { return nlf_test(words + at, comparison, value); }, 0);
        }
    }
    return status;
}

/* Waits until it has been so of every word, be it of one after the other. The threads of a warp or
 * block share the words. */
template <typename T>
NLF_TEMPLATE_FN int nlf_wait_until_all(const nlf_context *ctx, const T *words, size_t count, const int *skip,
                                       unsigned comparison, nlfi_value<T> value) {
    return nlfi_wait_until_all(ctx, words, count, skip, comparison, value, 0, 1);
}
template <typename T>
NLF_TEMPLATE_FN int nlf_wait_until_all_warp(const nlf_context *ctx, const T *words, size_t count, const int *skip,
                                            unsigned comparison, nlfi_value<T> value) {
    nlfp_warp_sync();
    return nlfp_warp_worst(
        nlfi_wait_until_all(ctx, words, count, skip, comparison, value, nlfp_lane(), nlfp_threads_per_warp()));
}
template <typename T>
NLF_TEMPLATE_FN int nlf_wait_until_all_block(const nlf_context *ctx, const T *words, size_t count, const int *skip,
                                             unsigned comparison, nlfi_value<T> value) {
    nlfp_block_sync();
    return nlfp_block_worst(nlfi_wait_until_all(ctx, words, count, skip, comparison, value, nlfp_thread_of_block(),
                                                nlfp_threads_per_block()));
}

/* ------------------------------------------------------------------------------------------------
 * All PEs
 *
 * One caller at a time at each PE (a thread, a warp or a block), the same function in the same
 * order everywhere; others of the PE are behind it if a barrier of their own, of the grid for one,
 * orders them so. The host's nlf_barrier is another one.
 */

/*
 * Waits until all PEs have called it. Everything that they had waited for before is visible here.
 * Of operations under way it says nothing.
 *
 * In round r a PE tells the one 2 to the r after it, and waits for the one as far before it; so
 * after the last round it has heard of all, and no counter is set back between two calls.
 */
NLF_FN int nlf_sync_all(const nlf_context *ctx, unsigned flags = 0) {
    if (ctx->version != NLF_RING_VERSION) {
        return NLF_ERROR_VERSION;
    }
    const uint64_t number = nlfp_add_device(&ctx->own_producers->barriers, 1) + 1;
    for (unsigned round = 0; (1u << round) < ctx->n_pes; round++) {
        const unsigned to = (ctx->me + (1u << round)) % ctx->n_pes;
        int status = nlfi_arrive(ctx, round, (int)to, flags);
        if (status == NLF_OK) {
            const uint64_t *arrived = &ctx->own->arrived[round];
            /* Both wrap; a PE is at most one ahead. */
            status = nlfi_wait(
                ctx, [=]() { return (int64_t)(nlfp_load_acquire64(arrived) - number) >= 0; }, flags);
        }
        if (status != NLF_OK) {
            return status;
        }
    }
    return NLF_OK;
}
NLFI_COOPERATIVE(nlf_sync_all, (const nlf_context *ctx, unsigned flags = 0), (ctx, flags))

/* The same behind nlf_quiet_all: what was put into any PE's rings before its call is visible where
 * it was for. */
NLF_FN int nlf_barrier_all(const nlf_context *ctx, unsigned flags = 0) {
    const int status = nlf_quiet_all(ctx);
    return status != NLF_OK ? status : nlf_sync_all(ctx, flags);
}
NLFI_COOPERATIVE(nlf_barrier_all, (const nlf_context *ctx, unsigned flags = 0), (ctx, flags))

#endif
