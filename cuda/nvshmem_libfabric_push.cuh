/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How an operation gets into a ring, and how a kernel waits for what comes of it. Not for users:
 * names begin with nlfi_. What must hold between both sides is in nvshmem_libfabric_ring.h.
 *
 * No slot stays reserved and unwritten while the proxy runs. After a thread has reserved it can
 * only write, or find while it waits for room that nothing will be taken any more: then it marks
 * the context as over (nlf_error.abandoned), and every other wait ends with an error as well.
 */
#ifndef NVSHMEM_LIBFABRIC_PUSH_CUH
#define NVSHMEM_LIBFABRIC_PUSH_CUH

#include "nvshmem_libfabric_primitives.cuh"
#include "nvshmem_libfabric_ring.h"

/* A descriptor on its way: q0 to q3 of its first slot, without the lap, and the second slot's
 * three. */
typedef struct {
    uint64_t q0, q1, q2, q3;
    uint64_t value, compare, fetch;
    bool extended;
} nlfi_descriptor;

/* Flags of operations; nvshmem_libfabric_device.cuh has what they mean. */
#define NLF_NO_FENCE 1u
#define NLFI_RING_SHIFT 8
#define NLF_RING(ring) ((((unsigned)(ring) & (NLF_MAX_RINGS - 1u)) + 1u) << NLFI_RING_SHIFT)

/* The ring that the flags name, else the calling block's. */
NLF_FN unsigned nlfi_ring_index(const nlf_context *ctx, unsigned flags) {
    const unsigned chosen = flags >> NLFI_RING_SHIFT;
    return (chosen != 0 ? chosen - 1 : nlfp_block()) & (ctx->n_rings - 1);
}

NLF_FN const nlf_ring *nlfi_ring(const nlf_context *ctx, unsigned flags) {
    return &ctx->rings[nlfi_ring_index(ctx, flags)];
}

/* Records an error, if it is the producers' first, and returns it. */
NLF_COLD_FN int nlfi_record(const nlf_context *ctx, uint32_t code, uint32_t op, uint32_t pe, uint32_t ring, uint64_t addr,
                            uint64_t bytes) {
    nlf_error *error = ctx->error;
    if (nlfp_claim(ctx->error_claims)) {
        nlfp_store32(&error->op, op);
        nlfp_store32(&error->pe, pe);
        nlfp_store32(&error->ring, ring);
        nlfp_store64(&error->addr, addr);
        nlfp_store64(&error->bytes, bytes);
        nlfp_store_release32(&error->code, code);
    }
    return (int)code;
}

/* The same, of what the calling thread has asked for. */
NLF_COLD_FN int nlfi_report(const nlf_context *ctx, int code, unsigned op, int pe, const void *addr, uint64_t bytes,
                            unsigned flags) {
    return nlfi_record(ctx, (uint32_t)code, op, (uint32_t)pe, nlfi_ring_index(ctx, flags), (uint64_t)(uintptr_t)addr,
                       bytes);
}

/* The same, where a wait has ended without what it was for. */
NLF_COLD_FN int nlfi_give_up(const nlf_context *ctx, const nlf_published *published, unsigned flags) {
    const uint32_t state = nlfp_load_acquire32(&published->state);
    /* Complete before the state says so. */
    const nlf_error *why = ctx->proxy_error;
    if (state == NLF_STATE_FAILED && why->code != NLF_OK) {
        return nlfi_record(ctx, why->code, why->op, why->pe, why->ring, why->addr, why->bytes);
    }
    int code = state == NLF_STATE_STOPPED  ? NLF_ERROR_STOPPED
               : state == NLF_STATE_FAILED ? NLF_ERROR_FAILED
                                           : NLF_ERROR_STUCK;
    return nlfi_report(ctx, code, 0, 0, NULL, 0, flags);
}

/* Whether nothing more is taken from rings: the proxy has ended, or slots were abandoned. */
NLF_FN bool nlfi_is_over(const nlf_context *ctx, const nlf_published *published) {
    return nlfp_load_acquire32(&published->state) != NLF_STATE_RUNNING ||
           nlfp_load_acquire32(&ctx->error->abandoned) != 0;
}

/*
 * Waits until slots up to `end` may be written. Ends: with room; when nothing is taken any more; or
 * after ctx->spins looks between which nothing was taken.
 */
NLF_COLD_FN int nlfi_wait_for_room(const nlf_context *ctx, const nlf_ring *ring, uint64_t end, unsigned flags) {
    const uint64_t capacity = (uint64_t)1 << ctx->slots_log2;
    uint64_t last = 0;
    uint64_t unchanged = 0;
    for (unsigned looks = 0;; looks++) {
        uint64_t tail = nlfp_load_acquire64(&ring->published->tail);
        if (tail != last) {
            last = tail;
            unchanged = 0;
            nlfp_raise_device(&ring->producers->tail_seen, tail);
        }
        if (end - tail <= capacity) {
            return NLF_OK;
        }
        unchanged++;
        if (nlfi_is_over(ctx, ring->published) || (ctx->spins != 0 && unchanged > ctx->spins)) {
            nlfp_store_release32(&ctx->error->abandoned, 1);
            return nlfi_give_up(ctx, ring->published, flags);
        }
        nlfp_pause(looks);
    }
}

/* Waits until the operations of slots up to `end` are delivered, or `quiet`, if there is one, has
 * come to `end`. Ends as nlfi_wait_for_room. */
NLF_FN int nlfi_wait_done(const nlf_context *ctx, const nlf_ring *ring, uint64_t end, const uint64_t *quiet,
                          unsigned flags) {
    uint64_t last = 0;
    uint64_t last_tail = 0;
    uint64_t unchanged = 0;
    for (unsigned looks = 0;; looks++) {
        uint64_t done = nlfp_load_acquire64(&ring->published->done);
        if (done >= end || (quiet != NULL && nlfp_load_acquire64(quiet) >= end)) {
            return NLF_OK;
        }
        uint64_t tail = nlfp_load_acquire64(&ring->published->tail);
        if (done != last || tail != last_tail) {
            last = done;
            last_tail = tail;
            unchanged = 0;
        }
        unchanged++;
        bool over = nlfi_is_over(ctx, ring->published);
        if (over || (ctx->spins != 0 && unchanged > ctx->spins)) {
            /* The proxy says that it ends after it has said what is done. */
            if (nlfp_load_acquire64(&ring->published->done) >= end) {
                return NLF_OK;
            }
            return nlfi_give_up(ctx, ring->published, flags);
        }
        nlfp_pause(looks);
    }
}

/*
 * Puts a descriptor into a ring. `ticket`, if there is one, is what `done` has to reach for it.
 * Without NLF_NO_FENCE, what the thread has written before is there for CPU and NIC when the
 * descriptor is.
 */
NLF_FN int nlfi_push(const nlf_context *ctx, const nlfi_descriptor *d, unsigned flags, uint64_t *ticket) {
    const nlf_ring *ring = nlfi_ring(ctx, flags);
    nlf_producers *producers = ring->producers;
    nlf_slot *slots = ring->slots;
    const unsigned log2 = ctx->slots_log2;
    const uint64_t mask = ((uint64_t)1 << log2) - 1;
    if ((flags & NLF_NO_FENCE) == 0) {
        nlfp_fence_system();
    }
    /* Loaded before the addition, so that the two are on their way together. That it can be older
     * than what the addition finds does no harm: there is at least as much room. */
    const uint64_t tail_seen = nlfp_load_device(&producers->tail_seen);
    const nlfp_reserved reserved = nlfp_reserve(&producers->head, d->extended ? 2 : 1);
    int status = NLF_OK;
    if (nlfp_leads(&reserved) && reserved.end - tail_seen > mask + 1) {
        status = nlfi_wait_for_room(ctx, ring, reserved.end, flags);
    }
    status = nlfp_status_of_leader(&reserved, status);
    if (status != NLF_OK) {
        return status;
    }
    uint64_t number = reserved.number;
    uint64_t lap = (~number << (63 - log2)) & NLF_LAP;
    uint64_t *words = slots[number & mask].q;
    nlfp_store_half(words, d->q0, d->q1 | lap);
    nlfp_store_half(words + 2, d->q2, d->q3 | lap);
    number++;
    if (d->extended) {
        lap = (~number << (63 - log2)) & NLF_LAP;
        words = slots[number & mask].q;
        nlfp_store_half(words, d->value, lap);
        nlfp_store_half(words + 2, d->compare, d->fetch | lap);
        number++;
    }
    if (ticket != NULL) {
        *ticket = number;
    }
    return NLF_OK;
}

/*
 * Where an address is, as region and offset in their place in a word. Returns false when not all of
 * the bytes are in one region, or the region is not symmetric and has to be.
 */
NLF_FN bool nlfi_place(const nlf_context *ctx, const void *addr, uint64_t bytes, bool symmetric, uint64_t *place) {
    const uint64_t at = (uint64_t)(uintptr_t)addr;
    const unsigned n = ctx->n_regions;
    for (unsigned r = 0; r < n; r++) {
        const nlf_region region = nlfp_load_region(&ctx->regions[r]);
        /* Wraps to more than any length where the address is below the base. */
        const uint64_t offset = at - region.base;
        const uint64_t length = region.size & NLF_REGION_LENGTH;
        if (offset < length && bytes <= length - offset && (!symmetric || (region.size & NLF_REGION_SYMMETRIC) != 0)) {
            *place = ((uint64_t)r << NLF_REGION_SHIFT) | offset;
            return true;
        }
    }
    return false;
}

/* Word q1, without the lap. */
NLF_FN uint64_t nlfi_head(unsigned op, unsigned flags, int pe, uint64_t bytes) {
    return ((uint64_t)op << NLF_OP_SHIFT) | ((uint64_t)flags << NLF_FLAGS_SHIFT) | ((uint64_t)(unsigned)pe << NLF_PE_SHIFT) |
           bytes;
}

/* Puts the value where it has room: into the first slot, or, if it has to be or something is
 * fetched, the second. */
NLF_FN void nlfi_set_value(nlfi_descriptor *d, uint64_t value, uint64_t compare, bool fetches, uint64_t fetch) {
    d->extended = fetches || value > NLF_MAX_INLINE;
    d->value = value;
    d->compare = compare;
    d->fetch = fetches ? fetch : (uint64_t)NLF_NO_REGION << NLF_REGION_SHIFT;
    if (d->extended) {
        d->q1 |= (uint64_t)NLF_FLAG_EXTENDED << NLF_FLAGS_SHIFT;
    } else {
        d->q0 |= value << NLF_VALUE_SHIFT;
        d->q3 |= ((value >> NLF_VALUE_Q0_BITS) & ((1u << NLF_VALUE_Q3_BITS) - 1)) << NLF_VALUE_SHIFT;
        d->q2 |= (value >> (NLF_VALUE_Q0_BITS + NLF_VALUE_Q3_BITS)) << NLF_VALUE_SHIFT;
    }
}

NLF_FN bool nlfi_is_pe(const nlf_context *ctx, int pe) { return (unsigned)pe < ctx->n_pes; }

/* Waits for what has got a ticket; what is before it in the ring, too. */
NLF_FN int nlfi_wait_for(const nlf_context *ctx, int status, uint64_t ticket, unsigned flags) {
    return status != NLF_OK ? status : nlfi_wait_done(ctx, nlfi_ring(ctx, flags), ticket, NULL, flags);
}

/* A put or a get. */
NLF_FN int nlfi_transfer(const nlf_context *ctx, unsigned op, const void *there, const void *here, uint64_t bytes, int pe,
                         unsigned flags, uint64_t *ticket) {
    if (ctx->version != NLF_RING_VERSION) {
        return NLF_ERROR_VERSION;
    }
    if (!nlfi_is_pe(ctx, pe)) {
        return nlfi_report(ctx, NLF_ERROR_PE, op, pe, there, bytes, flags);
    }
    if (bytes == 0) {
        return NLF_OK;
    }
    if (bytes > NLF_MAX_BYTES) {
        return nlfi_report(ctx, NLF_ERROR_LENGTH, op, pe, there, bytes, flags);
    }
    nlfi_descriptor d;
    if (!nlfi_place(ctx, there, bytes, true, &d.q0)) {
        return nlfi_report(ctx, NLF_ERROR_ADDRESS, op, pe, there, bytes, flags);
    }
    if (!nlfi_place(ctx, here, bytes, false, &d.q3)) {
        return nlfi_report(ctx, NLF_ERROR_ADDRESS, op, pe, here, bytes, flags);
    }
    d.q1 = nlfi_head(op, 0, pe, bytes);
    d.q2 = 0;
    d.value = d.compare = d.fetch = 0;
    d.extended = false;
    return nlfi_push(ctx, &d, flags, ticket);
}

/* A put of a value of 1, 2, 4 or 8 bytes. */
NLF_FN int nlfi_put_value(const nlf_context *ctx, void *dst, uint64_t value, uint64_t bytes, int pe, unsigned flags) {
    const unsigned op = NLF_OP_PUT_VALUE;
    if (ctx->version != NLF_RING_VERSION) {
        return NLF_ERROR_VERSION;
    }
    if (!nlfi_is_pe(ctx, pe)) {
        return nlfi_report(ctx, NLF_ERROR_PE, op, pe, dst, bytes, flags);
    }
    nlfi_descriptor d;
    if (!nlfi_place(ctx, dst, bytes, true, &d.q0)) {
        return nlfi_report(ctx, NLF_ERROR_ADDRESS, op, pe, dst, bytes, flags);
    }
    d.q1 = nlfi_head(op, 0, pe, bytes);
    d.q2 = 0;
    d.q3 = 0;
    nlfi_set_value(&d, value, 0, false, 0);
    return nlfi_push(ctx, &d, flags, NULL);
}

/* An atomic, or a signal without data. `result` is NULL where nothing is fetched. */
NLF_FN int nlfi_atomic(const nlf_context *ctx, unsigned kind, const void *word, unsigned width, uint64_t value,
                       uint64_t compare, const void *result, int pe, unsigned flags, uint64_t *ticket) {
    const unsigned op = NLF_OP_ATOMIC;
    if (ctx->version != NLF_RING_VERSION) {
        return NLF_ERROR_VERSION;
    }
    if (!nlfi_is_pe(ctx, pe)) {
        return nlfi_report(ctx, NLF_ERROR_PE, op, pe, word, width, flags);
    }
    const bool fetches = result != NULL;
    const bool must_fetch = kind >= NLF_KIND_SWAP;
    if (kind > NLF_KIND_FETCH || (must_fetch && !fetches) || (kind == NLF_KIND_SET && fetches) ||
        (width != 4 && width != 8)) {
        return nlfi_report(ctx, NLF_ERROR_KIND, op, pe, word, width, flags);
    }
    const uint64_t low = width - 1;
    if (((uint64_t)(uintptr_t)word & low) != 0) {
        return nlfi_report(ctx, NLF_ERROR_ALIGNMENT, op, pe, word, width, flags);
    }
    if (((uint64_t)(uintptr_t)result & low) != 0) {
        return nlfi_report(ctx, NLF_ERROR_ALIGNMENT, op, pe, result, width, flags);
    }
    nlfi_descriptor d;
    uint64_t fetch = 0;
    if (!nlfi_place(ctx, word, width, true, &d.q0)) {
        return nlfi_report(ctx, NLF_ERROR_ADDRESS, op, pe, word, width, flags);
    }
    if (fetches && !nlfi_place(ctx, result, width, false, &fetch)) {
        return nlfi_report(ctx, NLF_ERROR_ADDRESS, op, pe, result, width, flags);
    }
    d.q1 = nlfi_head(op, kind, pe, width);
    d.q2 = 0;
    d.q3 = 0;
    nlfi_set_value(&d, value, compare, fetches, fetch);
    return nlfi_push(ctx, &d, flags, ticket);
}

NLF_FN int nlfi_put_signal(const nlf_context *ctx, void *dst, const void *src, uint64_t bytes, uint64_t *signal,
                           uint64_t value, unsigned kind, int pe, unsigned flags, uint64_t *ticket) {
    const unsigned op = NLF_OP_PUT_SIGNAL;
    if (ctx->version != NLF_RING_VERSION) {
        return NLF_ERROR_VERSION;
    }
    if (!nlfi_is_pe(ctx, pe)) {
        return nlfi_report(ctx, NLF_ERROR_PE, op, pe, dst, bytes, flags);
    }
    if (kind > NLF_KIND_ADD) {
        return nlfi_report(ctx, NLF_ERROR_KIND, op, pe, signal, kind, flags);
    }
    if (bytes == 0) {
        return nlfi_atomic(ctx, kind, signal, 8, value, 0, NULL, pe, flags, ticket);
    }
    if (bytes > NLF_MAX_BYTES) {
        return nlfi_report(ctx, NLF_ERROR_LENGTH, op, pe, dst, bytes, flags);
    }
    if (((uint64_t)(uintptr_t)signal & 7) != 0) {
        return nlfi_report(ctx, NLF_ERROR_ALIGNMENT, op, pe, signal, 8, flags);
    }
    nlfi_descriptor d;
    if (!nlfi_place(ctx, dst, bytes, true, &d.q0)) {
        return nlfi_report(ctx, NLF_ERROR_ADDRESS, op, pe, dst, bytes, flags);
    }
    if (!nlfi_place(ctx, src, bytes, false, &d.q3)) {
        return nlfi_report(ctx, NLF_ERROR_ADDRESS, op, pe, src, bytes, flags);
    }
    if (!nlfi_place(ctx, signal, 8, true, &d.q2)) {
        return nlfi_report(ctx, NLF_ERROR_ADDRESS, op, pe, signal, 8, flags);
    }
    d.q1 = nlfi_head(op, kind, pe, bytes);
    nlfi_set_value(&d, value, 0, false, 0);
    return nlfi_push(ctx, &d, flags, ticket);
}

/* What has a PE and nothing else. */
NLF_FN int nlfi_bare(const nlf_context *ctx, unsigned op, int pe, unsigned kind, unsigned flags, uint64_t *ticket) {
    if (ctx->version != NLF_RING_VERSION) {
        return NLF_ERROR_VERSION;
    }
    if (!nlfi_is_pe(ctx, pe)) {
        return nlfi_report(ctx, NLF_ERROR_PE, op, pe, NULL, 0, flags);
    }
    nlfi_descriptor d;
    d.q0 = d.q2 = d.q3 = 0;
    d.q1 = nlfi_head(op, kind, pe, 0);
    d.value = d.compare = d.fetch = 0;
    d.extended = false;
    return nlfi_push(ctx, &d, flags | NLF_NO_FENCE, ticket);
}

/* Waits for what is in a ring now. */
NLF_FN int nlfi_quiet(const nlf_context *ctx, unsigned index) {
    const nlf_ring *ring = &ctx->rings[index];
    return nlfi_wait_done(ctx, ring, nlfp_load_device(&ring->producers->head), NULL, NLF_RING(index));
}

/* Waits for what is in a ring now and for a PE. */
NLF_FN int nlfi_quiet_pe(const nlf_context *ctx, int pe, unsigned flags) {
    uint64_t ticket = 0;
    const int status = nlfi_bare(ctx, NLF_OP_QUIET, pe, 0, flags, &ticket);
    if (status != NLF_OK) {
        return status;
    }
    const nlf_ring *ring = nlfi_ring(ctx, flags);
    return nlfi_wait_done(ctx, ring, ticket, &ring->published->quiet[(ticket - 1) % NLF_QUIETS], flags);
}

/* ------------------------------------------------------------------------------------------------
 * With the library's own memory
 */

/* Where a word of it is, as nlfi_place has it. */
NLF_FN uint64_t nlfi_own_place(size_t offset) { return ((uint64_t)NLF_OWN_REGION << NLF_REGION_SHIFT) | offset; }

/* Takes a landing for the calling thread, which gives it back when it has read what came there.
 * Ends: who has one waits for the proxy alone. */
NLF_FN int nlfi_take_landing(const nlf_context *ctx, unsigned flags, unsigned *landing) {
    nlf_own_producers *own = ctx->own_producers;
    const nlf_published *published = nlfi_ring(ctx, flags)->published;
    *landing = (unsigned)(nlfp_add_device(&own->landings, 1) % NLF_LANDINGS);
    for (unsigned looks = 0; !nlfp_claim(&own->landing_claims[*landing]); looks++) {
        if (nlfi_is_over(ctx, published) || (ctx->spins != 0 && looks > ctx->spins)) {
            return nlfi_give_up(ctx, published, flags);
        }
        nlfp_pause(looks);
    }
    return NLF_OK;
}

/* A get of 1, 2, 4 or 8 bytes, which come into the low ones of `value`. */
NLF_FN int nlfi_get_value(const nlf_context *ctx, uint64_t *value, const void *src, uint64_t bytes, int pe,
                          unsigned flags) {
    const unsigned op = NLF_OP_GET;
    if (ctx->version != NLF_RING_VERSION) {
        return NLF_ERROR_VERSION;
    }
    if (!nlfi_is_pe(ctx, pe)) {
        return nlfi_report(ctx, NLF_ERROR_PE, op, pe, src, bytes, flags);
    }
    nlfi_descriptor d;
    if (!nlfi_place(ctx, src, bytes, true, &d.q0)) {
        return nlfi_report(ctx, NLF_ERROR_ADDRESS, op, pe, src, bytes, flags);
    }
    unsigned landing = 0;
    int status = nlfi_take_landing(ctx, flags, &landing);
    if (status != NLF_OK) {
        return status;
    }
    const uint64_t *landed = &ctx->own->landed[landing];
    d.q1 = nlfi_head(op, 0, pe, bytes);
    d.q2 = 0;
    d.q3 = nlfi_own_place(offsetof(nlf_own, landed) + sizeof(uint64_t) * landing);
    d.value = d.compare = d.fetch = 0;
    d.extended = false;
    uint64_t ticket = 0;
    /* With a fence: who had the landing before has read it. */
    status = nlfi_push(ctx, &d, flags & ~NLF_NO_FENCE, &ticket);
    if (status == NLF_OK) {
        status = nlfi_wait_done(ctx, nlfi_ring(ctx, flags), ticket, NULL, flags);
        if (status != NLF_OK) {
            /* It may still come, so nobody else gets the landing. */
            return status;
        }
        *value = nlfp_load_acquire64(landed);
    }
    nlfp_store_release32(&ctx->own_producers->landing_claims[landing], 0);
    return status;
}

/* Tells a PE that this one has come to a round of the barrier. */
NLF_FN int nlfi_arrive(const nlf_context *ctx, unsigned round, int pe, unsigned flags) {
    nlfi_descriptor d;
    d.q0 = nlfi_own_place(offsetof(nlf_own, arrived) + sizeof(uint64_t) * round);
    d.q1 = nlfi_head(NLF_OP_ATOMIC, NLF_KIND_ADD, pe, 8);
    d.q2 = 0;
    d.q3 = 0;
    nlfi_set_value(&d, 1, 0, false, 0);
    return nlfi_push(ctx, &d, flags, NULL);
}

#endif
