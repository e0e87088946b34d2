/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernels that check and measure the device API do, as functions of a thread, so that a
 * host C++ compiler can build the same for CPU threads. What must be in memory after each is
 * computed by the runner, in channel-check.
 *
 * A kernel works with 'units': threads, warps or blocks, as args.form says. Each unit calls the
 * form of the function that is for it.
 */
#ifndef NLFK_BODIES_CUH
#define NLFK_BODIES_CUH

#include "../nvshmem_libfabric_device.cuh"

/* What every kernel takes. The runner has the same in Rust. */
typedef struct {
    const nlf_context *ctx;
    uint64_t *heap;    /* symmetric memory here: NLFK_AREAS areas of `area` words */
    int32_t *status;   /* of each thread: the first error, or NLF_OK */
    uint64_t *out;     /* of each thread: what the kernel is asked to tell */
    uint64_t area;     /* words */
    uint64_t rounds;   /* operations of each unit */
    uint64_t bytes;    /* of each operation, where the kernel leaves that open */
    uint32_t form;     /* NLFK_THREAD, _WARP or _BLOCK */
    uint32_t flags;    /* for the operations */
} nlfk_args;
NLF_ASSERT(sizeof(nlfk_args) == 64);

#define NLFK_THREAD 0
#define NLFK_WARP 1
#define NLFK_BLOCK 2

/* Areas of the heap. */
#define NLFK_DST 0
#define NLFK_SRC 1
#define NLFK_SIGNAL 2
#define NLFK_SET 3
#define NLFK_ATOMIC 4
#define NLFK_RESULT 5
#define NLFK_PONG 6
#define NLFK_EXTRA 7
#define NLFK_AREAS 8

/* Who the calling thread is. */
typedef struct {
    uint64_t thread, threads; /* of the grid */
    uint64_t unit, units;
    uint64_t member, members; /* of its unit */
} nlfk_self;

NLF_FN uint64_t *nlfk_area(const nlfk_args *a, unsigned which) { return a->heap + which * a->area; }

/* A number that tells its arguments. */
NLF_FN uint64_t nlfk_mix(uint64_t a, uint64_t b) {
    uint64_t x = (a + 1) * 0x9e3779b97f4a7c15ull ^ (b + 1) * 0xd1b54a32d192ed03ull;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9ull;
    return x ^ (x >> 32);
}

/* Keeps the first error. */
NLF_FN void nlfk_note(const nlfk_args *a, const nlfk_self *self, int status) {
    if (status != NLF_OK && a->status[self->thread] == NLF_OK) {
        a->status[self->thread] = status;
    }
}

/* The form of a function for the units of this launch. The form is the same for all threads. */
#define NLFK_CALL(name, ...)                                                                                           \
    nlfk_note(a, self,                                                                                                 \
              a->form == NLFK_THREAD ? name(__VA_ARGS__)                                                               \
              : a->form == NLFK_WARP ? name##_warp(__VA_ARGS__)                                                        \
                                     : name##_block(__VA_ARGS__))

NLF_FN int nlfk_pe(const nlfk_args *a, uint64_t number) { return (int)(number % a->ctx->n_pes); }

/* Puts. Each member writes a word, and the unit puts them all: rounds times, each time other
 * words. */
NLF_FN void nlfk_put(const nlfk_args *a, const nlfk_self *self) {
    for (uint64_t round = 0; round < a->rounds; round++) {
        const uint64_t n = round * self->units + self->unit;
        uint64_t *src = nlfk_area(a, NLFK_SRC) + n * self->members;
        uint64_t *dst = nlfk_area(a, NLFK_DST) + n * self->members;
        src[self->member] = nlfk_mix(n, self->member);
        NLFK_CALL(nlf_put_nbi, a->ctx, dst, src, 8 * self->members, nlfk_pe(a, n), a->flags);
    }
}

/* Puts with signal. One in seven has no bytes. Sums in SIGNAL, by a sixteenth of the units; the
 * last value in SET. */
NLF_FN void nlfk_put_signal(const nlfk_args *a, const nlfk_self *self) {
    for (uint64_t round = 0; round < a->rounds; round++) {
        const uint64_t n = round * self->units + self->unit;
        uint64_t *src = nlfk_area(a, NLFK_SRC) + n * self->members;
        uint64_t *dst = nlfk_area(a, NLFK_DST) + n * self->members;
        src[self->member] = nlfk_mix(n, self->member);
        const uint64_t bytes = n % 7 == 0 ? 0 : 8 * self->members;
        /* Half of them need a second slot. */
        const uint64_t value = n % 2 == 0 ? n : nlfk_mix(n, 1) | 1ull << 63;
        if (n % 3 == 0) {
            NLFK_CALL(nlf_put_signal_nbi, a->ctx, dst, src, bytes, nlfk_area(a, NLFK_SET) + n, value, NLF_KIND_SET,
                      nlfk_pe(a, n), a->flags);
        } else {
            NLFK_CALL(nlf_put_signal_nbi, a->ctx, dst, src, bytes, nlfk_area(a, NLFK_SIGNAL) + n % 16, value,
                      NLF_KIND_ADD, nlfk_pe(a, n), a->flags);
        }
    }
}

/* Signals alone. */
NLF_FN void nlfk_signal(const nlfk_args *a, const nlfk_self *self) {
    for (uint64_t round = 0; round < a->rounds; round++) {
        const uint64_t n = round * self->units + self->unit;
        const uint64_t value = n % 2 == 0 ? n : nlfk_mix(n, 1) | 1ull << 63;
        NLFK_CALL(nlf_signal, a->ctx, nlfk_area(a, NLFK_SIGNAL) + n % 16, value, NLF_KIND_ADD, nlfk_pe(a, n), a->flags);
        NLFK_CALL(nlf_signal, a->ctx, nlfk_area(a, NLFK_SET) + n, value, NLF_KIND_SET, nlfk_pe(a, n), a->flags);
    }
}

/* Atomics that fetch nothing, on words of type T at `words`: a sum, three that all units change by
 * bits of their own, and one word each. */
template <typename T>
NLF_TEMPLATE_FN void nlfk_atomics_of(const nlfk_args *a, const nlfk_self *self, T *words) {
    const uint64_t bits = 8 * sizeof(T);
    for (uint64_t round = 0; round < a->rounds; round++) {
        const uint64_t n = round * self->threads + self->thread;
        const int pe = nlfk_pe(a, n);
        T *bit_words = words + 1 + 3 * (n / bits);
        const T bit = (T)((T)1 << (n % bits));
        T *own = words + 1 + 3 * (self->threads * a->rounds / bits + 1) + n;
        nlfk_note(a, self, nlf_atomic_add(a->ctx, words, (T)nlfk_mix(n, 0), pe, a->flags));
        nlfk_note(a, self, nlf_atomic_or(a->ctx, bit_words, bit, pe, a->flags));
        nlfk_note(a, self, nlf_atomic_and(a->ctx, bit_words + 1, (T)~bit, pe, a->flags));
        nlfk_note(a, self, nlf_atomic_xor(a->ctx, bit_words + 2, bit, pe, a->flags));
        nlfk_note(a, self, nlf_atomic_set(a->ctx, own, (T)nlfk_mix(n, 2), pe, a->flags));
    }
}

NLF_FN void nlfk_atomics(const nlfk_args *a, const nlfk_self *self) {
    nlfk_atomics_of(a, self, nlfk_area(a, NLFK_ATOMIC));
    nlfk_atomics_of(a, self, (int32_t *)nlfk_area(a, NLFK_EXTRA));
}

/* Atomics that fetch. Thread t has words 8 t to 8 t + 7 of type T at `results`. `blocking` is for
 * all but the first. */
template <typename T>
NLF_TEMPLATE_FN void nlfk_fetches_of(const nlfk_args *a, const nlfk_self *self, T *words, T *results) {
    const uint64_t bits = 8 * sizeof(T);
    const uint64_t t = self->thread;
    const int pe = nlfk_pe(a, 1);
    const T bit = (T)((T)1 << (t % bits));
    T *bit_words = words + 8 + 3 * (t / bits);
    T *mine = results + 8 * t;
    nlfk_note(a, self, nlf_atomic_fetch_add(a->ctx, mine, words, (T)1, pe, a->flags));
    /* What has come is seen without a further wait. */
    const T came = mine[0];
    nlfk_note(a, self, nlf_atomic_fetch_or(a->ctx, mine + 1, bit_words, bit, pe, a->flags));
    nlfk_note(a, self, nlf_atomic_fetch_and(a->ctx, mine + 2, bit_words + 1, (T)~bit, pe, a->flags));
    nlfk_note(a, self, nlf_atomic_fetch_xor_nbi(a->ctx, mine + 3, bit_words + 2, bit, pe, a->flags));
    nlfk_note(a, self, nlf_atomic_swap_nbi(a->ctx, mine + 4, words + 1, (T)(t + 1), pe, a->flags));
    nlfk_note(a, self, nlf_atomic_compare_swap_nbi(a->ctx, mine + 5, words + 2, (T)0, (T)(t + 1), pe, a->flags));
    nlfk_note(a, self, nlf_atomic_fetch_nbi(a->ctx, mine + 6, words + 3, pe, a->flags));
    nlfk_note(a, self, nlf_atomic_fetch_add_nbi(a->ctx, mine + 7, words + 4, (T)1, pe, a->flags));
    nlfk_note(a, self, nlf_quiet(a->ctx));
    /* 8 is the place of what was seen at once. */
    a->out[t] += came == mine[0] ? 1 : 0;
    a->out[t] += mine[6] == (T)0x5a5a5a5a ? 1 : 0;
    nlfk_note(a, self, nlf_atomic_swap(a->ctx, mine + 6, words + 5, (T)(t + 1), pe, a->flags));
    nlfk_note(a, self, nlf_atomic_compare_swap(a->ctx, mine + 6, words + 6, (T)7, (T)8, pe, a->flags));
    a->out[t] += mine[6] == (T)7 || mine[6] == (T)8 ? 1 : 0;
    nlfk_note(a, self, nlf_atomic_fetch(a->ctx, mine + 6, words + 6, pe, a->flags));
    a->out[t] += mine[6] == (T)8 ? 1 : 0;
}

NLF_FN void nlfk_fetches(const nlfk_args *a, const nlfk_self *self) {
    nlfk_fetches_of(a, self, nlfk_area(a, NLFK_ATOMIC), nlfk_area(a, NLFK_RESULT));
    nlfk_fetches_of(a, self, (uint32_t *)nlfk_area(a, NLFK_EXTRA), (uint32_t *)nlfk_area(a, NLFK_DST));
}

/* Gets what the runner has put at the peers. What has come is seen after the quiet; `out` counts
 * the words. */
NLF_FN void nlfk_get(const nlfk_args *a, const nlfk_self *self) {
    for (uint64_t round = 0; round < a->rounds; round++) {
        const uint64_t n = round * self->units + self->unit;
        const int pe = nlfk_pe(a, n);
        uint64_t *src = nlfk_area(a, NLFK_SRC) + n * self->members;
        uint64_t *dst = nlfk_area(a, NLFK_DST) + n * self->members;
        NLFK_CALL(nlf_get_nbi, a->ctx, dst, src, 8 * self->members, pe, a->flags);
        NLFK_CALL(nlf_quiet, a->ctx);
        a->out[self->thread] += dst[self->member] == nlfk_mix(n * self->members + self->member, (uint64_t)pe) ? 1 : 0;
    }
}

/* One word of each unit at a peer, put again and again; a fence keeps the order, so the last one
 * stays. */
NLF_FN void nlfk_fence(const nlfk_args *a, const nlfk_self *self) {
    const int pe = nlfk_pe(a, self->unit);
    uint64_t *dst = nlfk_area(a, NLFK_DST) + self->unit;
    for (uint64_t round = 0; round < a->rounds; round++) {
        uint64_t *src = nlfk_area(a, NLFK_SRC) + round * self->units + self->unit;
        if (self->member == 0) {
            *src = nlfk_mix(self->unit, round);
        }
        NLFK_CALL(nlf_put_nbi, a->ctx, dst, src, 8, pe, a->flags);
        if (round % 2 == 0) {
            NLFK_CALL(nlf_fence, a->ctx, pe);
        } else {
            NLFK_CALL(nlf_fence_all, a->ctx);
        }
    }
    NLFK_CALL(nlf_signal, a->ctx, nlfk_area(a, NLFK_SET) + self->unit, a->rounds, NLF_KIND_SET, pe, a->flags);
}

/* After a quiet, what was put from may change. */
NLF_FN void nlfk_quiet(const nlfk_args *a, const nlfk_self *self) {
    uint64_t *src = nlfk_area(a, NLFK_SRC) + self->unit * self->members;
    for (uint64_t round = 0; round < a->rounds; round++) {
        const uint64_t n = round * self->units + self->unit;
        uint64_t *dst = nlfk_area(a, NLFK_DST) + n * self->members;
        src[self->member] = nlfk_mix(n, self->member);
        NLFK_CALL(nlf_put_nbi, a->ctx, dst, src, 8 * self->members, nlfk_pe(a, n), a->flags);
        if (round % 2 == 0) {
            NLFK_CALL(nlf_quiet, a->ctx);
        } else {
            NLFK_CALL(nlf_quiet_all, a->ctx);
        }
    }
}

/*
 * A signal to a peer, and the wait for its answer, which is two words: one behind, and then the one
 * that is waited for. `out` counts answers that came with the word behind.
 */
NLF_FN void nlfk_wait(const nlfk_args *a, const nlfk_self *self) {
    uint64_t *pong = nlfk_area(a, NLFK_PONG) + 2 * self->unit;
    for (uint64_t round = 1; round <= a->rounds; round++) {
        NLFK_CALL(nlf_signal, a->ctx, nlfk_area(a, NLFK_PONG) + 2 * self->unit, round, NLF_KIND_SET, 1, a->flags);
        /* Each of these is true when the answer is there, and not before. */
        const uint64_t turn = round % 5;
        const uint64_t value = turn == 1 ? round - 1 : turn == 4 ? round - 1 : round;
        const unsigned comparison = turn == 0   ? NLF_CMP_EQ
                                    : turn == 1 ? NLF_CMP_NE
                                    : turn == 2 ? NLF_CMP_GE
                                    : turn == 3 ? NLF_CMP_EQ
                                                : NLF_CMP_GT;
        NLFK_CALL(nlf_wait_until, a->ctx, (const uint64_t *)pong, comparison, value);
        const bool is_there = ((volatile uint64_t *)pong)[1] == nlfk_mix(self->unit, round);
        const bool tests = nlf_test((const uint64_t *)pong, NLF_CMP_LE, round) && nlf_test((const uint64_t *)pong, NLF_CMP_LT, round + 1) &&
                           !nlf_test((const uint64_t *)pong, NLF_CMP_LE, round - 1) && !nlf_test((const uint64_t *)pong, 6u, round);
        a->out[self->thread] += is_there && tests ? 1 : 0;
        /* All have looked before the next answer is asked for. */
        if (a->form == NLFK_BLOCK) {
            nlfp_block_sync();
        } else if (a->form == NLFK_WARP) {
            nlfp_warp_sync();
        }
    }
}

/* The peer's part of `wait`, in a job: each unit of PE 1 answers the unit of PE 0 that has its
 * number. */
NLF_FN void nlfk_answer(const nlfk_args *a, const nlfk_self *self) {
    uint64_t *pong = nlfk_area(a, NLFK_PONG) + 2 * self->unit;
    uint64_t *src = nlfk_area(a, NLFK_SRC) + self->unit;
    for (uint64_t round = 1; round <= a->rounds; round++) {
        NLFK_CALL(nlf_wait_until, a->ctx, (const uint64_t *)pong, NLF_CMP_GE, round);
        if (self->member == 0) {
            *src = nlfk_mix(self->unit, round);
        }
        NLFK_CALL(nlf_put_signal_nbi, a->ctx, pong + 1, src, 8, pong, round, NLF_KIND_SET, 0, a->flags);
        NLFK_CALL(nlf_quiet, a->ctx);
    }
}

/* Operations by turns that differ from lane to lane: one slot, two and none, waits among them. */
NLF_FN void nlfk_mixed(const nlfk_args *a, const nlfk_self *self) {
    uint64_t *sums = nlfk_area(a, NLFK_ATOMIC);
    uint64_t *mine = nlfk_area(a, NLFK_RESULT) + self->thread;
    for (uint64_t round = 0; round < a->rounds; round++) {
        const uint64_t n = round * self->threads + self->thread;
        const uint64_t r = nlfk_mix(n, 77);
        const int pe = nlfk_pe(a, r >> 8);
        uint64_t *src = nlfk_area(a, NLFK_SRC) + n;
        uint64_t *dst = nlfk_area(a, NLFK_DST) + n;
        switch (r % 6) {
        case 0:
            *src = nlfk_mix(n, 5);
            nlfk_note(a, self, nlf_put_nbi(a->ctx, dst, src, 8, pe, a->flags));
            break;
        case 1:
            *src = nlfk_mix(n, 5);
            nlfk_note(a, self, nlf_put_signal_nbi(a->ctx, dst, src, 8, sums + 1, n, NLF_KIND_ADD, pe, a->flags));
            break;
        case 2:
            *src = nlfk_mix(n, 5);
            nlfk_note(a, self, nlf_put_signal_nbi(a->ctx, dst, src, 8, sums + 2, r | 1ull << 60, NLF_KIND_ADD, pe, a->flags));
            break;
        case 3: nlfk_note(a, self, nlf_atomic_add(a->ctx, sums + 3, n, pe, a->flags)); break;
        case 4:
            nlfk_note(a, self, nlf_atomic_fetch_add(a->ctx, mine, sums + 4, (uint64_t)1, pe, a->flags));
            a->out[self->thread] += *mine;
            break;
        default:
            nlfk_note(a, self, nlf_fence(a->ctx, pe));
            nlfk_note(a, self, nlf_signal(a->ctx, sums + 5, 1, NLF_KIND_ADD, pe, a->flags));
            break;
        }
    }
}

/* What must be refused. Thread t does the wrong thing of number t, and `out` has what was
 * answered. */
NLF_FN void nlfk_errors(const nlfk_args *a, const nlfk_self *self) {
    const nlf_context *c = a->ctx;
    uint64_t *words = nlfk_area(a, NLFK_DST);
    uint64_t *end = a->heap + NLFK_AREAS * a->area;
    int got = NLF_OK;
    uint64_t value = 0;
    size_t index = 0;
    switch (self->thread) {
    case 0: got = nlf_put_nbi(c, words, words, 8, (int)c->n_pes); break;
    case 1: got = nlf_put_nbi(c, words, words, 8, -1); break;
    case 2: got = nlf_put_nbi(c, end, words, 8, 0); break;
    case 3: got = nlf_put_nbi(c, words, end - 1, 16, 0); break;
    case 4: got = nlf_get_nbi(c, words, words - 1, 8, 0); break;
    case 5: got = nlf_put_nbi(c, words, words, (size_t)NLF_MAX_BYTES + 1, 0); break;
    case 6: got = nlf_put_signal_nbi(c, words, words, 8, (uint64_t *)((char *)words + 4), 1, NLF_KIND_ADD, 0); break;
    case 7: got = nlf_put_signal_nbi(c, words, words, 8, words, 1, NLF_KIND_XOR, 0); break;
    case 8: got = nlf_signal(c, words, 1, NLF_KIND_SWAP, 0); break;
    case 9: got = nlf_atomic_add(c, (uint32_t *)((char *)words + 2), 1u, 0); break;
    case 10: got = nlf_atomic_fetch_add(c, (uint64_t *)NULL, words, (uint64_t)1, 0); break;
    case 11: got = nlf_atomic_fetch_add_nbi(c, end, words, (uint64_t)1, 0); break;
    case 12: got = nlf_fence(c, (int)c->n_pes + 5); break;
    case 13: got = nlf_wait_until(c, (const uint64_t *)words, 17u, (uint64_t)0); break;
    case 14: got = nlf_atomic_fetch(c, (uint64_t *)NULL, words, 0); break;
    /* In memory that peers have not. */
    case 15: got = nlf_put_nbi(c, a->out, words, 8, 0); break;
    case 16: got = nlf_quiet_pe(c, (int)c->n_pes); break;
    case 17: got = nlf_g(c, &value, (const uint64_t *)end, 0); break;
    case 18: got = nlf_g(c, &value, (const uint64_t *)words, -1); break;
    case 19: got = nlf_put(c, words, words, 8, -1, NLF_RING(3)); break;
    case 20: got = nlf_wait_until_any(c, (const uint64_t *)words, 1, (const int *)NULL, 6u, (uint64_t)0, &index); break;
    case 21: got = nlf_wait_until_all(c, (const uint64_t *)words, 1, (const int *)NULL, 6u, (uint64_t)0); break;
    /* And what must not be. */
    case 22: got = nlf_put_nbi(c, words, a->out, 0, 0); break;
    case 23: got = nlf_put_nbi(c, words, a->out + 40, 8, 0); break;
    case 24: got = nlf_put_nbi(c, end - 1, end - 1, 8, 0); break;
    case 25: got = nlf_put(c, words, a->out, 0, 0); break;
    case 26: got = nlf_wait_until_any(c, (const uint64_t *)words, 0, (const int *)NULL, 0u, (uint64_t)0, &index); break;
    default: break;
    }
    a->out[self->thread] = (uint64_t)got;
}

/* ------------------------------------------------------------------------------------------------
 * Measures
 */

/*
 * Nothing but descriptors, each of which tells who put it there and as which: `dst` and `src` are
 * offsets, which nobody follows. Ends early with the first error. `out` has how many were put.
 */
NLF_FN void nlfk_push(const nlfk_args *a, const nlfk_self *self) {
    char *base = (char *)a->heap;
    uint64_t round = 0;
    for (; round < a->rounds; round++) {
        const int status = nlf_put_nbi(a->ctx, base + self->thread, base + round, 1, 0, a->flags);
        if (status != NLF_OK) {
            nlfk_note(a, self, status);
            break;
        }
    }
    a->out[self->thread] = round;
}

/* The same with put_signal of two slots by turns, for rings that end between them. */
NLF_FN void nlfk_push_two(const nlfk_args *a, const nlfk_self *self) {
    char *base = (char *)a->heap;
    uint64_t round = 0;
    for (; round < a->rounds; round++) {
        const uint64_t value = (round ^ self->thread) % 3 == 0 ? 1ull << 63 | round : round;
        const int status = nlf_put_signal_nbi(a->ctx, base + self->thread, base + round, 1, a->heap, value, NLF_KIND_ADD,
                                              0, a->flags);
        if (status != NLF_OK) {
            nlfk_note(a, self, status);
            break;
        }
    }
    a->out[self->thread] = round;
}

/* Puts of `bytes` from each unit's own part, and a quiet at the end. */
NLF_FN void nlfk_put_bandwidth(const nlfk_args *a, const nlfk_self *self) {
    const uint64_t words = (a->bytes + 7) / 8;
    const uint64_t at = self->unit * words;
    for (uint64_t round = 0; round < a->rounds; round++) {
        NLFK_CALL(nlf_put_nbi, a->ctx, nlfk_area(a, NLFK_DST) + at, nlfk_area(a, NLFK_SRC) + at, a->bytes, 1, a->flags);
    }
    NLFK_CALL(nlf_quiet, a->ctx);
}

/*
 * A put of `bytes` with signal to PE 1, and the wait for the same from there; the first unit alone.
 * PE 0 begins. The peer runs this kernel as well, or stands in for it.
 */
NLF_FN void nlfk_ping_pong(const nlfk_args *a, const nlfk_self *self) {
    if (self->unit != 0 || a->ctx->me > 1) {
        return;
    }
    const int peer = 1 - (int)a->ctx->me;
    uint64_t *signal = nlfk_area(a, NLFK_SIGNAL);
    for (uint64_t round = 1; round <= a->rounds; round++) {
        if (a->ctx->me != 0) {
            NLFK_CALL(nlf_wait_until, a->ctx, (const uint64_t *)signal, NLF_CMP_GE, round);
        }
        NLFK_CALL(nlf_put_signal_nbi, a->ctx, nlfk_area(a, NLFK_DST), nlfk_area(a, NLFK_SRC), a->bytes, signal, round,
                  NLF_KIND_SET, peer, a->flags);
        if (a->ctx->me == 0) {
            NLFK_CALL(nlf_wait_until, a->ctx, (const uint64_t *)signal, NLF_CMP_GE, round);
        }
    }
    NLFK_CALL(nlf_quiet, a->ctx);
}

#include "waiting.cuh"

/* Every kernel. */
#define NLFK_ALL(X)                                                                                                    \
    X(put)                                                                                                             \
    X(put_signal)                                                                                                      \
    X(signal)                                                                                                          \
    X(atomics)                                                                                                         \
    X(fetches)                                                                                                         \
    X(get)                                                                                                             \
    X(fence)                                                                                                           \
    X(quiet)                                                                                                           \
    X(wait)                                                                                                            \
    X(answer)                                                                                                          \
    X(mixed)                                                                                                           \
    X(blocking)                                                                                                        \
    X(rings)                                                                                                           \
    X(words)                                                                                                           \
    X(answer_words)                                                                                                    \
    X(barrier)                                                                                                         \
    X(errors)                                                                                                          \
    X(push)                                                                                                            \
    X(push_two)                                                                                                        \
    X(put_bandwidth)                                                                                                   \
    X(ping_pong)

#endif
