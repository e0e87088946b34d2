/* SPDX-License-Identifier: Apache-2.0 */
/* The device API for CPU threads, with C linkage; and the kernels' bodies by their numbers. */

#include <string.h>

#include "kernels/bodies.cuh"

extern "C" {

void nlfh_set_block(unsigned block) { nlf_host_set_block(block); }
void nlfh_set_pause(void (*pause)(unsigned)) { nlf_host_set_pause(pause); }

int nlfh_put_nbi(const nlf_context *ctx, void *dst, const void *src, size_t bytes, int pe) {
    return nlf_put_nbi(ctx, dst, src, bytes, pe);
}
/* The first bytes of the value. */
int nlfh_p(const nlf_context *ctx, void *dst, uint64_t value, unsigned bytes, int pe) {
    switch (bytes) {
    case 1: return nlf_p(ctx, (uint8_t *)dst, (uint8_t)value, pe);
    case 2: return nlf_p(ctx, (uint16_t *)dst, (uint16_t)value, pe);
    case 4: return nlf_p(ctx, (uint32_t *)dst, (uint32_t)value, pe);
    default: return nlf_p(ctx, (uint64_t *)dst, value, pe);
    }
}
int nlfh_put(const nlf_context *ctx, void *dst, const void *src, size_t bytes, int pe) {
    return nlf_put(ctx, dst, src, bytes, pe);
}
int nlfh_get(const nlf_context *ctx, void *dst, const void *src, size_t bytes, int pe) {
    return nlf_get(ctx, dst, src, bytes, pe);
}
int nlfh_g(const nlf_context *ctx, uint64_t *value, const uint64_t *src, int pe) { return nlf_g(ctx, value, src, pe); }
int nlfh_put_in_ring(const nlf_context *ctx, unsigned ring, void *dst, const void *src, size_t bytes, int pe) {
    return nlf_put_nbi(ctx, dst, src, bytes, pe, NLF_RING(ring));
}
int nlfh_put_signal_nbi(const nlf_context *ctx, void *dst, const void *src, size_t bytes, uint64_t *signal,
                        uint64_t value, unsigned kind, int pe) {
    return nlf_put_signal_nbi(ctx, dst, src, bytes, signal, value, kind, pe);
}
int nlfh_get_nbi(const nlf_context *ctx, void *dst, const void *src, size_t bytes, int pe) {
    return nlf_get_nbi(ctx, dst, src, bytes, pe);
}
int nlfh_signal(const nlf_context *ctx, uint64_t *signal, uint64_t value, unsigned kind, int pe) {
    return nlf_signal(ctx, signal, value, kind, pe);
}
/* `result` is NULL for kinds that fetch nothing. */
int nlfh_atomic64_nbi(const nlf_context *ctx, unsigned kind, uint64_t *result, uint64_t *word, uint64_t value,
                      uint64_t compare, int pe) {
    return nlfi_atomic_nbi(ctx, kind, result, word, value, compare, pe, 0);
}
int nlfh_atomic32_nbi(const nlf_context *ctx, unsigned kind, uint32_t *result, uint32_t *word, uint32_t value,
                      uint32_t compare, int pe) {
    return nlfi_atomic_nbi(ctx, kind, result, word, value, compare, pe, 0);
}
int nlfh_fence(const nlf_context *ctx, int pe) { return nlf_fence(ctx, pe); }
int nlfh_fence_all(const nlf_context *ctx) { return nlf_fence_all(ctx); }
int nlfh_quiet(const nlf_context *ctx) { return nlf_quiet(ctx); }
int nlfh_quiet_all(const nlf_context *ctx) { return nlf_quiet_all(ctx); }
int nlfh_quiet_ring(const nlf_context *ctx, unsigned ring) { return nlf_quiet(ctx, NLF_RING(ring)); }
int nlfh_quiet_pe(const nlf_context *ctx, int pe) { return nlf_quiet_pe(ctx, pe); }
int nlfh_sync_all(const nlf_context *ctx) { return nlf_sync_all(ctx); }
int nlfh_barrier_all(const nlf_context *ctx) { return nlf_barrier_all(ctx); }
int nlfh_wait_until(const nlf_context *ctx, const uint64_t *word, unsigned comparison, uint64_t value) {
    return nlf_wait_until(ctx, word, comparison, value);
}

bool nlfh_test_f64(const double *word, unsigned comparison, double value) { return nlf_test(word, comparison, value); }
bool nlfh_test_f32(const float *word, unsigned comparison, float value) { return nlf_test(word, comparison, value); }
bool nlfh_test_i32(const int32_t *word, unsigned comparison, int32_t value) { return nlf_test(word, comparison, value); }
int nlfh_wait_until_f64(const nlf_context *ctx, const double *word, unsigned comparison, double value) {
    return nlf_wait_until(ctx, word, comparison, value);
}
int nlfh_wait_until_f32(const nlf_context *ctx, const float *word, unsigned comparison, float value) {
    return nlf_wait_until(ctx, word, comparison, value);
}

size_t nlfh_sizeof_args() { return sizeof(nlfk_args); }

/* Runs a kernel's body as thread `thread` of `threads`, each a block of its own. Returns -1 for an
 * unknown name. */
int nlfh_run(const char *name, const nlfk_args *args, uint64_t thread, uint64_t threads) {
    const nlfk_self self = {thread, threads, thread, threads, 0, 1};
    nlf_host_set_block((unsigned)thread);
#define NLFH_BODY(body)                                                                                                \
    if (strcmp(name, #body) == 0) {                                                                                    \
        nlfk_##body(args, &self);                                                                                      \
        return 0;                                                                                                      \
    }
    NLFK_ALL(NLFH_BODY)
    return -1;
}
}
