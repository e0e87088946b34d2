/* SPDX-License-Identifier: Apache-2.0 */
/* A program for the C interface: every PE writes to the next one, and all get what they should. */
#include <nvshmem_libfabric.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The producers' half of the channel, for CPU threads that write descriptors by hand. */
static void push(const nlf_context *context, const uint64_t words[4]) {
    const nlf_ring *ring = &context->rings[0];
    uint64_t number = __atomic_fetch_add(&ring->producers->head, 1, __ATOMIC_ACQ_REL);
    uint64_t mask = (UINT64_C(1) << context->slots_log2) - 1;
    uint64_t lap = (~number >> context->slots_log2 & 1) ? NLF_LAP : 0;
    nlf_slot *slot = &ring->slots[number & mask];
    __atomic_store_n(&slot->q[0], words[0], __ATOMIC_RELAXED);
    __atomic_store_n(&slot->q[2], words[2], __ATOMIC_RELAXED);
    __atomic_store_n(&slot->q[1], words[1] | lap, __ATOMIC_RELEASE);
    __atomic_store_n(&slot->q[3], words[3] | lap, __ATOMIC_RELEASE);
}

static int alone(const void *mine, void *all, size_t bytes, void *user) {
    *(int *)user += 1;
    memcpy(all, mine, bytes);
    return 0;
}

static void check(int right, const char *what) {
    if (!right) {
        fprintf(stderr, "%s: %s\n", what, nlf_strerror());
        exit(1);
    }
}

int main(int argc, char **argv) {
    nlf_channel *channel = NULL;
    nlf_options options = {.size = sizeof options, .rings = 1, .slots = 64};
    int called = 0;
    if (argc == 1) {
        /* What is wrong is said. */
        check(nlf_init_tcp(NULL, NULL, 0, 1, 0, NULL) == -1, "no place for the channel");
        check(strstr(nlf_strerror(), "channel is NULL") != NULL, "the reason");
        check(nlf_init_tcp(&channel, "nowhere", 2, 2, 0, NULL) == -1, "no such PE");
        check(nlf_check(NULL) == -1 && nlf_finalize(NULL) == -1 && nlf_alloc(NULL, 1) == NULL, "no channel");
        options.slots = 100;
        check(nlf_init_allgather(&channel, 0, 1, alone, &called, &options) == -1, "100 slots");
        check(strstr(nlf_strerror(), "not 100") != NULL, "the reason");
        options.slots = 64;
        options.size = 8;
        check(nlf_init_allgather(&channel, 0, 1, alone, &called, &options) == -1, "options of another size");
        options.size = sizeof options;
        check(nlf_init_allgather(&channel, 0, 1, alone, &called, &options) == 0, "alone");
        check(called > 0, "the function given was called");
    } else {
        uint32_t me = (uint32_t)atoi(argv[2]), n_pes = (uint32_t)atoi(argv[3]);
        check(nlf_init_tcp(&channel, argv[1], me, n_pes, 5, &options) == 0, "nlf_init_tcp");
    }
    const nlf_context *context = nlf_get_context(channel);
    check(context->version == NLF_RING_VERSION && context->n_rings == 1, "the context");
    uint64_t *heap = nlf_alloc(channel, 4096);
    check(heap != NULL && heap[0] == 0, "nlf_alloc");
    void *other = nlf_alloc_on(channel, NLF_ON_HOST, 8);
    check(other != NULL && nlf_release(channel, other) == 0, "nlf_alloc_on");
    check(nlf_alloc_on(channel, NLF_ON_DEVICE, 8) == NULL, "without CUDA there is no device");
    check(strstr(nlf_strerror(), "on a device: no CUDA driver in this process") != NULL, "the reason");
    check(nlf_alloc_on(channel, 2, 8) == NULL && strstr(nlf_strerror(), "location 2") != NULL, "nor other memory");
    uint64_t local = 1000 + context->me;
    check(nlf_register_local(channel, &local, sizeof local) == 0, "nlf_register_local");
    check(nlf_barrier(channel) == 0, "nlf_barrier");

    /* The heap is region 0, the word region 1: put it into the next PE's heap, and set a flag
     * behind it. */
    uint64_t to = (context->me + 1) % context->n_pes;
    uint64_t words[4] = {8, (uint64_t)NLF_OP_PUT_SIGNAL << NLF_OP_SHIFT | to << NLF_PE_SHIFT | 8, 16,
                         UINT64_C(1) << NLF_REGION_SHIFT};
    words[0] |= UINT64_C(1) << NLF_VALUE_SHIFT; /* the value's lowest bits: 1 */
    push(context, words);
    while (__atomic_load_n(&heap[2], __ATOMIC_ACQUIRE) == 0) {
        check(nlf_check(channel) == 0, "nlf_check");
    }
    uint64_t from = (context->me + context->n_pes - 1) % context->n_pes;
    check(heap[1] == 1000 + from && heap[2] == 1, "what has come");
    while (__atomic_load_n(&context->rings[0].published->done, __ATOMIC_ACQUIRE) < 1) {
        check(nlf_check(channel) == 0, "nlf_check");
    }
    check(nlf_release(channel, &local) == 0, "nlf_release");
    check(nlf_release(channel, heap) == 0, "nlf_release");
    check(nlf_release(channel, heap) == -1, "released twice");
    check(nlf_finalize(channel) == 0, "nlf_finalize");
    return 0;
}
