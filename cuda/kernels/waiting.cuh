/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels for what waits: blocking forms, rings by name, quiet of one PE, arrays of words, the
 * barrier. Part of bodies.cuh, which says what a kernel is given.
 */
#ifndef NLFK_WAITING_CUH
#define NLFK_WAITING_CUH

/* What is put by a blocking form is there, and what it was put from may change; what is got is
 * here. `out` counts rounds in which all was. */
NLF_FN void nlfk_blocking(const nlfk_args *a, const nlfk_self *self) {
    for (uint64_t round = 0; round < a->rounds; round++) {
        const uint64_t n = round * self->units + self->unit;
        const uint64_t at = n * self->members;
        const int pe = nlfk_pe(a, n);
        uint64_t *src = nlfk_area(a, NLFK_SRC) + self->unit * self->members;
        uint64_t *back = nlfk_area(a, NLFK_RESULT) + self->unit * self->members;
        uint64_t *dst = nlfk_area(a, NLFK_DST) + at;
        const uint64_t word = nlfk_mix(n, self->member);
        src[self->member] = word;
        NLFK_CALL(nlf_put, a->ctx, dst, src, 8 * self->members, pe, a->flags);
        src[self->member] = ~word;
        NLFK_CALL(nlf_get, a->ctx, back, dst, 8 * self->members, pe, a->flags);
        bool right = nlfp_load_acquire64(back + self->member) == word;
        NLFK_CALL(nlf_put_signal, a->ctx, nlfk_area(a, NLFK_EXTRA) + at, src, 8 * self->members,
                  nlfk_area(a, NLFK_SET) + n, n + 1, NLF_KIND_SET, pe, a->flags);
        uint64_t signal = 0, other = 0, whole = 0;
        uint32_t half = 0;
        uint16_t quarter = 0;
        uint8_t byte = 0;
        nlfk_note(a, self, nlf_g(a->ctx, &signal, nlfk_area(a, NLFK_SET) + n, pe, a->flags));
        nlfk_note(a, self, nlf_g(a->ctx, &other, nlfk_area(a, NLFK_EXTRA) + at + self->member, pe, a->flags));
        const uint64_t *there = dst + self->member;
        nlfk_note(a, self, nlf_g(a->ctx, &whole, there, pe, a->flags));
        nlfk_note(a, self, nlf_g(a->ctx, &half, (const uint32_t *)there + 1, pe, a->flags));
        nlfk_note(a, self, nlf_g(a->ctx, &quarter, (const uint16_t *)there + 1, pe, a->flags));
        nlfk_note(a, self, nlf_g(a->ctx, &byte, (const uint8_t *)there + 7, pe, a->flags));
        right = right && signal == n + 1 && other == ~word && whole == word && half == (uint32_t)(word >> 32) &&
                quarter == (uint16_t)(word >> 16) && byte == (uint8_t)(word >> 56);
        a->out[self->thread] += right ? 1 : 0;
    }
}

/* As `quiet`, of rings by name, and of one PE. */
NLF_FN void nlfk_rings(const nlfk_args *a, const nlfk_self *self) {
    uint64_t *src = nlfk_area(a, NLFK_SRC) + self->unit * self->members;
    for (uint64_t round = 0; round < a->rounds; round++) {
        const uint64_t n = round * self->units + self->unit;
        const unsigned flags = a->flags | (n % 5 == 0 ? 0 : NLF_RING(n % 7));
        const int pe = nlfk_pe(a, n);
        uint64_t *dst = nlfk_area(a, NLFK_DST) + n * self->members;
        src[self->member] = nlfk_mix(n, self->member);
        NLFK_CALL(nlf_put_nbi, a->ctx, dst, src, 8 * self->members, pe, flags);
        if (round % 3 == 0) {
            NLFK_CALL(nlf_fence, a->ctx, pe, flags);
            NLFK_CALL(nlf_quiet, a->ctx, flags);
        } else {
            NLFK_CALL(nlf_quiet_pe, a->ctx, pe, flags);
        }
    }
}

/* Words of a unit in PONG: those that it asks for at the peer, and the answers. */
#define NLFK_ASKED 4
#define NLFK_WORDS (2 * NLFK_ASKED)

/* Finds all words but one that are `round`, one by one or some at a time. Whether each was so, and
 * came once. */
NLF_FN bool nlfk_find(const nlfk_args *a, const nlfk_self *self, const uint64_t *words, uint64_t round) {
    const size_t left_out = round % NLFK_ASKED;
    int skip[NLFK_ASKED] = {0};
    size_t indices[NLFK_ASKED];
    size_t index = 0, found = 0, all = 0;
    bool right = true;
    skip[left_out] = 1;
    while (all < NLFK_ASKED - 1 && right) {
        if (round % 2 == 0) {
            nlfk_note(a, self, nlf_wait_until_any(a->ctx, words, NLFK_ASKED, skip, NLF_CMP_GE, round, &index));
            indices[0] = index;
            found = index < NLFK_ASKED ? 1 : 0;
        } else {
            nlfk_note(a, self,
                      nlf_wait_until_some(a->ctx, words, NLFK_ASKED, skip, NLF_CMP_GE, round, indices, &found));
        }
        right = found != 0;
        for (size_t at = 0; at < found; at++) {
            right = right && indices[at] != left_out && skip[indices[at]] == 0 &&
                    nlf_signal_fetch(words + indices[at]) == round;
            skip[indices[at]] = 1;
        }
        all += found;
    }
    /* Nothing is left that counts. */
    skip[left_out] = 1;
    right = right && nlf_test_any(words, NLFK_ASKED, skip, NLF_CMP_GE, round, &index) && index == NLFK_ASKED;
    right = right && nlf_test_some(words, NLFK_ASKED, skip, NLF_CMP_GE, round, indices, &found) && found == 0;
    return right && nlf_test_all(words, NLFK_ASKED, skip, NLF_CMP_LT, (uint64_t)0);
}

/* Asks a peer for words, and waits for any, some and all of the answers. `out` counts rounds in
 * which all was right. */
NLF_FN void nlfk_words(const nlfk_args *a, const nlfk_self *self) {
    uint64_t *asked = nlfk_area(a, NLFK_PONG) + NLFK_WORDS * self->unit;
    const uint64_t *words = asked + NLFK_ASKED;
    for (uint64_t round = 1; round <= a->rounds; round++) {
        for (unsigned at = 0; at < NLFK_ASKED; at++) {
            NLFK_CALL(nlf_signal, a->ctx, asked + (at + round) % NLFK_ASKED, round, NLF_KIND_SET, 1, a->flags);
        }
        bool right = nlfk_find(a, self, words, round);
        NLFK_CALL(nlf_wait_until_all, a->ctx, words, NLFK_ASKED, (const int *)NULL, NLF_CMP_GE, round);
        size_t index = 0, found = 0;
        size_t indices[NLFK_ASKED];
        right = right && nlf_test_all(words, NLFK_ASKED, (const int *)NULL, NLF_CMP_EQ, round) &&
                !nlf_test_all(words, NLFK_ASKED, (const int *)NULL, NLF_CMP_LT, round) &&
                !nlf_test_any(words, NLFK_ASKED, (const int *)NULL, NLF_CMP_GT, round, &index) &&
                nlf_test_some(words, NLFK_ASKED, (const int *)NULL, NLF_CMP_EQ, round, indices, &found) &&
                found == NLFK_ASKED && indices[NLFK_ASKED - 1] == NLFK_ASKED - 1;
        a->out[self->thread] += right ? 1 : 0;
        /* All have looked before the next answers are asked for. */
        if (a->form == NLFK_BLOCK) {
            nlfp_block_sync();
        } else if (a->form == NLFK_WARP) {
            nlfp_warp_sync();
        }
    }
}

/* The peer's part of `words`, in a job. */
NLF_FN void nlfk_answer_words(const nlfk_args *a, const nlfk_self *self) {
    uint64_t *asked = nlfk_area(a, NLFK_PONG) + NLFK_WORDS * self->unit;
    for (uint64_t round = 1; round <= a->rounds; round++) {
        NLFK_CALL(nlf_wait_until_all, a->ctx, (const uint64_t *)asked, NLFK_ASKED, (const int *)NULL, NLF_CMP_GE, round);
        for (unsigned at = 0; at < NLFK_ASKED; at++) {
            NLFK_CALL(nlf_signal, a->ctx, asked + NLFK_ASKED + (3 * at + round) % NLFK_ASKED, round, NLF_KIND_SET, 0,
                      a->flags);
        }
    }
}

/* Every PE tells all the round, and finds that of all behind a barrier; the first unit alone. In a
 * job, all PEs run it. `out` counts the rounds that were found. */
NLF_FN void nlfk_barrier(const nlfk_args *a, const nlfk_self *self) {
    uint64_t *told = nlfk_area(a, NLFK_DST);
    const unsigned n_pes = a->ctx->n_pes;
    if (self->unit != 0) {
        a->out[self->thread] = a->rounds * n_pes;
        return;
    }
    for (uint64_t round = 1; round <= a->rounds; round++) {
        for (unsigned pe = 0; pe < n_pes && self->member == 0; pe++) {
            nlfk_note(a, self, nlf_p(a->ctx, told + a->ctx->me, round, (int)pe, a->flags | NLF_RING(pe)));
        }
        NLFK_CALL(nlf_barrier_all, a->ctx, a->flags);
        for (unsigned pe = 0; pe < n_pes; pe++) {
            a->out[self->thread] += nlfp_load_acquire64(told + pe) == round ? 1 : 0;
        }
        /* All have looked. */
        NLFK_CALL(nlf_sync_all, a->ctx, a->flags);
    }
}

#endif
