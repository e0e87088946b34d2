/* SPDX-License-Identifier: Apache-2.0 */
/* Values of another type than their word are converted to that, as in any call. */
#include <nvshmem_libfabric_device.cuh>

int calls(const nlf_context *ctx, uint64_t *word, float *number, size_t *count, int *small) {
    size_t index = 0, found = 0, indices[1] = {0};
    int status = nlf_p(ctx, number, 1.0, 0) + nlf_p(ctx, word, 1, 0) + nlf_p(ctx, small, 1L, 0);
    status += nlf_atomic_set(ctx, count, 1, 0) + nlf_atomic_add(ctx, count, 1, 0) + nlf_atomic_and(ctx, word, 1, 0);
    status += nlf_atomic_or(ctx, word, 1, 0) + nlf_atomic_xor(ctx, small, 1L, 0);
    status += nlf_atomic_fetch_add(ctx, count, count, 1, 0) + nlf_atomic_fetch_add_nbi(ctx, count, count, 1, 0);
    status += nlf_atomic_swap(ctx, word, word, 1, 0) + nlf_atomic_compare_swap(ctx, word, word, 0, 1, 0);
    status += nlf_atomic_compare_swap_nbi(ctx, word, word, 0, 1, 0);
    status += nlf_wait_until(ctx, word, NLF_CMP_GE, 1) + nlf_wait_until(ctx, number, NLF_CMP_GE, 1);
    status += nlf_wait_until_warp(ctx, word, NLF_CMP_GE, 1) + nlf_wait_until_block(ctx, word, NLF_CMP_GE, 1);
    status += nlf_wait_until_any(ctx, word, 1, NULL, NLF_CMP_GE, 1, &index);
    status += nlf_wait_until_some(ctx, word, 1, NULL, NLF_CMP_GE, 1, indices, &found);
    status += nlf_wait_until_all(ctx, word, 1, NULL, NLF_CMP_GE, 1);
    status += nlf_wait_until_all_warp(ctx, word, 1, NULL, NLF_CMP_GE, 1);
    status += nlf_wait_until_all_block(ctx, word, 1, NULL, NLF_CMP_GE, 1);
    bool is_so = nlf_test(word, NLF_CMP_GE, 1) && nlf_test_all(word, 1, NULL, NLF_CMP_GE, 1);
    is_so = is_so && nlf_test_any(word, 1, NULL, NLF_CMP_GE, 1, &index);
    is_so = is_so && nlf_test_some(word, 1, NULL, NLF_CMP_GE, 1, indices, &found);
    return is_so ? status : -1;
}

/* Compiled, and not called. */
int main(int count, char **) { return count > 9 ? calls(nullptr, nullptr, nullptr, nullptr, nullptr) : 0; }
