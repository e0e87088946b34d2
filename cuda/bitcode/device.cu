/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device API for compilers that link bitcode, as Triton's and Numba's do: functions with C
 * linkage under the names of nvshmem_libfabric_device.cuh, which documents them. All arguments are
 * given, flags too. Those of templates end in the type: _u8, _u16, _u32, _u64; of waits also _i32
 * and _i64.
 */
#include "../nvshmem_libfabric_device.cuh"

/* Defines a function under a symbol that is the name of what it calls. */
#define NLFB(result, name, symbol, parameters, arguments)                                                              \
    extern "C" __device__ result nlfb_##symbol parameters __asm__(#symbol);                      \
    extern "C" __device__ result nlfb_##symbol parameters { return name arguments; }

#define NLFB_FORMS(name, parameters, arguments)                                                                        \
    NLFB(int, name, name, parameters, arguments)                                                                       \
    NLFB(int, name##_warp, name##_warp, parameters, arguments)                                                         \
    NLFB(int, name##_block, name##_block, parameters, arguments)

#define NLFB_TRANSFER(name)                                                                                            \
    NLFB_FORMS(name, (const nlf_context *ctx, void *dst, const void *src, size_t bytes, int pe, unsigned flags),       \
               (ctx, dst, src, bytes, pe, flags))
NLFB_TRANSFER(nlf_put_nbi)
NLFB_TRANSFER(nlf_put)
NLFB_TRANSFER(nlf_get_nbi)
NLFB_TRANSFER(nlf_get)

#define NLFB_PUT_SIGNAL(name)                                                                                          \
    NLFB_FORMS(name,                                                                                                   \
               (const nlf_context *ctx, void *dst, const void *src, size_t bytes, uint64_t *signal, uint64_t value,    \
                unsigned kind, int pe, unsigned flags),                                                                \
               (ctx, dst, src, bytes, signal, value, kind, pe, flags))
NLFB_PUT_SIGNAL(nlf_put_signal_nbi)
NLFB_PUT_SIGNAL(nlf_put_signal)
NLFB_FORMS(nlf_signal, (const nlf_context *ctx, uint64_t *signal, uint64_t value, unsigned kind, int pe, unsigned flags),
           (ctx, signal, value, kind, pe, flags))
NLFB(uint64_t, nlf_signal_fetch, nlf_signal_fetch, (const uint64_t *signal), (signal))

NLFB_FORMS(nlf_fence, (const nlf_context *ctx, int pe, unsigned flags), (ctx, pe, flags))
NLFB_FORMS(nlf_fence_all, (const nlf_context *ctx, unsigned flags), (ctx, flags))
NLFB_FORMS(nlf_quiet, (const nlf_context *ctx, unsigned flags), (ctx, flags))
NLFB_FORMS(nlf_quiet_pe, (const nlf_context *ctx, int pe, unsigned flags), (ctx, pe, flags))
NLFB_FORMS(nlf_quiet_all, (const nlf_context *ctx), (ctx))
NLFB_FORMS(nlf_sync_all, (const nlf_context *ctx, unsigned flags), (ctx, flags))
NLFB_FORMS(nlf_barrier_all, (const nlf_context *ctx, unsigned flags), (ctx, flags))

#define NLFB_VALUE(T, of)                                                                                              \
    NLFB(int, nlf_p, nlf_p_##of, (const nlf_context *ctx, T *dst, T value, int pe, unsigned flags),                    \
         (ctx, dst, value, pe, flags))                                                                                 \
    NLFB(int, nlf_g, nlf_g_##of, (const nlf_context *ctx, T *value, const T *src, int pe, unsigned flags),             \
         (ctx, value, src, pe, flags))
NLFB_VALUE(uint8_t, u8)
NLFB_VALUE(uint16_t, u16)
NLFB_VALUE(uint32_t, u32)
NLFB_VALUE(uint64_t, u64)

#define NLFB_CHANGE(name, T, of)                                                                                       \
    NLFB(int, name, name##_##of, (const nlf_context *ctx, T *word, T value, int pe, unsigned flags),                   \
         (ctx, word, value, pe, flags))
#define NLFB_FETCH(name, T, of)                                                                                        \
    NLFB(int, name, name##_##of, (const nlf_context *ctx, T *result, T *word, T value, int pe, unsigned flags),        \
         (ctx, result, word, value, pe, flags))                                                                        \
    NLFB(int, name##_nbi, name##_nbi_##of,                                                                             \
         (const nlf_context *ctx, T *result, T *word, T value, int pe, unsigned flags),                                \
         (ctx, result, word, value, pe, flags))
#define NLFB_ATOMICS(T, of)                                                                                            \
    NLFB_CHANGE(nlf_atomic_set, T, of)                                                                                 \
    NLFB_CHANGE(nlf_atomic_add, T, of)                                                                                 \
    NLFB_CHANGE(nlf_atomic_and, T, of)                                                                                 \
    NLFB_CHANGE(nlf_atomic_or, T, of)                                                                                  \
    NLFB_CHANGE(nlf_atomic_xor, T, of)                                                                                 \
    NLFB_FETCH(nlf_atomic_fetch_add, T, of)                                                                            \
    NLFB_FETCH(nlf_atomic_fetch_and, T, of)                                                                            \
    NLFB_FETCH(nlf_atomic_fetch_or, T, of)                                                                             \
    NLFB_FETCH(nlf_atomic_fetch_xor, T, of)                                                                            \
    NLFB_FETCH(nlf_atomic_swap, T, of)                                                                                 \
    NLFB(int, nlf_atomic_fetch, nlf_atomic_fetch_##of,                                                                 \
         (const nlf_context *ctx, T *result, T *word, int pe, unsigned flags), (ctx, result, word, pe, flags))         \
    NLFB(int, nlf_atomic_fetch_nbi, nlf_atomic_fetch_nbi_##of,                                                         \
         (const nlf_context *ctx, T *result, T *word, int pe, unsigned flags), (ctx, result, word, pe, flags))         \
    NLFB(int, nlf_atomic_compare_swap, nlf_atomic_compare_swap_##of,                                                   \
         (const nlf_context *ctx, T *result, T *word, T compare, T value, int pe, unsigned flags),                     \
         (ctx, result, word, compare, value, pe, flags))                                                               \
    NLFB(int, nlf_atomic_compare_swap_nbi, nlf_atomic_compare_swap_nbi_##of,                                           \
         (const nlf_context *ctx, T *result, T *word, T compare, T value, int pe, unsigned flags),                     \
         (ctx, result, word, compare, value, pe, flags))
NLFB_ATOMICS(uint32_t, u32)
NLFB_ATOMICS(uint64_t, u64)

#define NLFB_WORD const T *word, unsigned comparison, T value
#define NLFB_ARRAY const T *words, size_t count, const int *skip, unsigned comparison, T value
#define NLFB_WAITS(type, of)                                                                                           \
    namespace nlfb_##of {                                                                                              \
    typedef type T;                                                                                                    \
    NLFB(bool, nlf_test, nlf_test_##of, (NLFB_WORD), (word, comparison, value))                                        \
    NLFB(bool, nlf_test_all, nlf_test_all_##of, (NLFB_ARRAY), (words, count, skip, comparison, value))                 \
    NLFB(bool, nlf_test_any, nlf_test_any_##of, (NLFB_ARRAY, size_t *index),                                           \
         (words, count, skip, comparison, value, index))                                                               \
    NLFB(bool, nlf_test_some, nlf_test_some_##of, (NLFB_ARRAY, size_t *indices, size_t *found),                        \
         (words, count, skip, comparison, value, indices, found))                                                      \
    NLFB(int, nlf_wait_until, nlf_wait_until_##of, (const nlf_context *ctx, NLFB_WORD),                                \
         (ctx, word, comparison, value))                                                                               \
    NLFB(int, nlf_wait_until_warp, nlf_wait_until_warp_##of, (const nlf_context *ctx, NLFB_WORD),                      \
         (ctx, word, comparison, value))                                                                               \
    NLFB(int, nlf_wait_until_block, nlf_wait_until_block_##of, (const nlf_context *ctx, NLFB_WORD),                    \
         (ctx, word, comparison, value))                                                                               \
    NLFB(int, nlf_wait_until_all, nlf_wait_until_all_##of, (const nlf_context *ctx, NLFB_ARRAY),                       \
         (ctx, words, count, skip, comparison, value))                                                                 \
    NLFB(int, nlf_wait_until_all_warp, nlf_wait_until_all_warp_##of, (const nlf_context *ctx, NLFB_ARRAY),             \
         (ctx, words, count, skip, comparison, value))                                                                 \
    NLFB(int, nlf_wait_until_all_block, nlf_wait_until_all_block_##of, (const nlf_context *ctx, NLFB_ARRAY),           \
         (ctx, words, count, skip, comparison, value))                                                                 \
    NLFB(int, nlf_wait_until_any, nlf_wait_until_any_##of, (const nlf_context *ctx, NLFB_ARRAY, size_t *index),        \
         (ctx, words, count, skip, comparison, value, index))                                                          \
    NLFB(int, nlf_wait_until_some, nlf_wait_until_some_##of,                                                           \
         (const nlf_context *ctx, NLFB_ARRAY, size_t *indices, size_t *found),                                         \
         (ctx, words, count, skip, comparison, value, indices, found))                                                 \
    }
NLFB_WAITS(uint32_t, u32)
NLFB_WAITS(uint64_t, u64)
NLFB_WAITS(int32_t, i32)
NLFB_WAITS(int64_t, i64)
