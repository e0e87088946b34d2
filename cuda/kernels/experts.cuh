/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two all-to-alls of a mixture of experts, from one kernel: tokens go to the experts that a
 * router has chosen for them (dispatch), are worked on there, come back, and are added up
 * (combine). cuda/nvshmem/experts.cu is the same on NVSHMEM.
 *
 * Every PE has NLFX_EXPERTS experts and some tokens. Nobody asks anybody for room: where a token
 * goes depends on its sender alone. What goes from one PE to one expert is ended by one signal
 * behind a fence, which also says how much it was. What stays on its PE is copied by the threads
 * themselves.
 *
 * A block waits for others in its second part, and they need its first part for that: so each block
 * does all of its part of the one before it begins the next, and all blocks must be on the device
 * at a time.
 *
 * Of nlfk_args, `rounds` is how many tokens each PE has, and `bytes` how many values a token has: a
 * multiple of 4. What is in the areas of the heap, and what the host has put there before, is told
 * below.
 */
#ifndef NLFK_EXPERTS_CUH
#define NLFK_EXPERTS_CUH

#include <math.h>
#include <string.h>

/* Experts of a PE, and experts that are chosen for a token. */
#define NLFX_EXPERTS 8
#define NLFX_CHOSEN 8

/* A token on its way to an expert; its values, bfloat16, follow. It says for whom it is, so one
 * copy serves all who get it. */
typedef struct {
    int32_t number;              /* at its PE */
    int16_t chosen[NLFX_CHOSEN]; /* experts, counted through all PEs */
    int32_t unused[3];           /* so that values are aligned as the GPU reads them best */
} nlfx_token;
NLF_ASSERT(sizeof(nlfx_token) == 32);

/* Areas of the heap. [n] is one for each of n; of a job with `n_pes` PEs and `tokens` tokens
 * each. */
#define NLFX_ROUTER 0   /* int16_t [tokens][NLFX_CHOSEN]: experts; float [tokens][NLFX_CHOSEN]: their weights. By the host. */
#define NLFX_OUTGOING 1 /* tokens [tokens]. By the host. */
#define NLFX_RECEIVED 2 /* tokens [expert of this PE][PE it comes from][tokens] */
#define NLFX_RESULTS 3  /* values [expert of this PE][PE it goes to][tokens] */
#define NLFX_RETURNED 4 /* values [tokens][NLFX_CHOSEN] */
#define NLFX_COMBINED 5 /* values [tokens]: what comes of it all */
#define NLFX_ARRIVED 6  /* words [expert of this PE][PE it comes from]: tokens and one, when they are here. Zeroes, by the host. */
#define NLFX_BACK 7     /* words [expert of the job]: results and one, when they are here. Zeroes, by the host. */

/* What a block works with. */
typedef struct {
    const nlfk_args *a;
    const nlfk_self *self;
    uint64_t block, blocks;
    uint64_t thread, threads; /* of the block */
    uint64_t tokens, values;  /* of a PE, of a token */
    uint64_t n_pes;
    uint64_t me;
} nlfx_block;

NLF_FN void *nlfx_area(const nlfx_block *x, unsigned which) { return x->a->heap + which * x->a->area; }

/* Token `index` of an area that has such. */
NLF_FN nlfx_token *nlfx_token_at(const nlfx_block *x, unsigned which, uint64_t index) {
    return (nlfx_token *)((char *)nlfx_area(x, which) + index * (sizeof(nlfx_token) + 2 * x->values));
}

/* The values of a token, at `index` of an area that has nothing but values. */
NLF_FN uint16_t *nlfx_values_at(const nlfx_block *x, unsigned which, uint64_t index) {
    return (uint16_t *)nlfx_area(x, which) + index * x->values;
}

NLF_FN uint64_t *nlfx_word_at(const nlfx_block *x, unsigned which, uint64_t index) {
    return (uint64_t *)nlfx_area(x, which) + index;
}

/* A bfloat16 is the upper half of a float. */
NLF_FN float nlfx_float_of(uint16_t value) {
    const uint32_t bits = (uint32_t)value << 16;
    float wide;
    memcpy(&wide, &bits, sizeof wide);
    return wide;
}

/* The nearest one; of two as near, the even one. */
NLF_FN uint16_t nlfx_bfloat16_of(float wide) {
    uint32_t bits;
    memcpy(&bits, &wide, sizeof bits);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/* The work of an expert: a small factor, by which no value gets too long for a bfloat16. */
NLF_FN float nlfx_factor_of(uint64_t expert) { return (float)(1 + expert % 4); }

/* Which of a token's choices an expert is; NLFX_CHOSEN if it is none. */
NLF_FN uint64_t nlfx_choice_of(const int16_t *chosen, uint64_t expert) {
    uint64_t choice = 0;
    while (choice < NLFX_CHOSEN && chosen[choice] != (int16_t)expert) {
        choice++;
    }
    return choice;
}

/* Sends `bytes` to the same place at `pe`: a multiple of 8. */
NLF_FN void nlfx_send(const nlfx_block *x, void *to, const void *from, uint64_t bytes, uint64_t pe) {
    if (pe != x->me) {
        nlfk_note(x->a, x->self, nlf_put_nbi_block(x->a->ctx, to, from, bytes, (int)pe, x->a->flags));
        return;
    }
    for (uint64_t at = x->thread; at < bytes / 8; at += x->threads) {
        ((uint64_t *)to)[at] = ((const uint64_t *)from)[at];
    }
}

/* Sets `word` at `pe`, behind everything that this block has sent there. */
NLF_FN void nlfx_tell(const nlfx_block *x, uint64_t *word, uint64_t value, uint64_t pe) {
    nlfp_block_sync();
    if (x->thread != 0) {
        return;
    }
    if (pe == x->me) {
        nlfp_store_release64(word, value);
        return;
    }
    nlfk_note(x->a, x->self, nlf_fence(x->a->ctx, (int)pe));
    nlfk_note(x->a, x->self, nlf_signal(x->a->ctx, word, value, NLF_KIND_SET, (int)pe, x->a->flags));
}

/* Waits for a word that `nlfx_tell` sets, and says how many it tells of. None when the channel has
 * ended meanwhile. */
NLF_FN uint64_t nlfx_wait(const nlfx_block *x, const uint64_t *word) {
    const int status = nlf_wait_until_block(x->a->ctx, word, NLF_CMP_GE, (uint64_t)1);
    nlfk_note(x->a, x->self, status);
    return status == NLF_OK ? nlfp_load_acquire64(word) - 1 : 0;
}

/* Tokens to their experts. Each block has experts of the job for itself. */
NLF_FN void nlfx_dispatch(const nlfx_block *x) {
    const int16_t *chosen = (const int16_t *)nlfx_area(x, NLFX_ROUTER);
    for (uint64_t expert = x->block; expert < NLFX_EXPERTS * x->n_pes; expert += x->blocks) {
        const uint64_t to = expert / NLFX_EXPERTS;
        const uint64_t row = expert % NLFX_EXPERTS * x->n_pes + x->me;
        uint64_t sent = 0;
        for (uint64_t token = 0; token < x->tokens; token++) {
            /* All threads agree on it. */
            if (nlfx_choice_of(chosen + token * NLFX_CHOSEN, expert) < NLFX_CHOSEN) {
                nlfx_send(x, nlfx_token_at(x, NLFX_RECEIVED, row * x->tokens + sent),
                          nlfx_token_at(x, NLFX_OUTGOING, token), sizeof(nlfx_token) + 2 * x->values, to);
                sent++;
            }
        }
        nlfx_tell(x, nlfx_word_at(x, NLFX_ARRIVED, row), sent + 1, to);
    }
}

/* What experts do, and their results back. Each block has some of what PEs have sent to experts of
 * this one for itself. */
NLF_FN void nlfx_work(const nlfx_block *x) {
    for (uint64_t row = x->block; row < NLFX_EXPERTS * x->n_pes; row += x->blocks) {
        const uint64_t from = row % x->n_pes;
        const uint64_t expert = x->me * NLFX_EXPERTS + row / x->n_pes;
        const uint64_t count = nlfx_wait(x, nlfx_word_at(x, NLFX_ARRIVED, row));
        for (uint64_t i = 0; i < count; i++) {
            const uint64_t place = row * x->tokens + i;
            const nlfx_token *token = nlfx_token_at(x, NLFX_RECEIVED, place);
            const uint16_t *values = (const uint16_t *)(token + 1);
            const uint64_t number = (uint64_t)token->number;
            const uint64_t choice = nlfx_choice_of(token->chosen, expert);
            if (number >= x->tokens || choice == NLFX_CHOSEN) {
                /* It is nobody's that comes here. */
                nlfk_note(x->a, x->self, NLF_ERROR_ADDRESS);
                continue;
            }
            uint16_t *returned = nlfx_values_at(x, NLFX_RETURNED, number * NLFX_CHOSEN + choice);
            uint16_t *result = from == x->me ? returned : nlfx_values_at(x, NLFX_RESULTS, place);
            for (uint64_t at = x->thread; at < x->values; at += x->threads) {
                result[at] = nlfx_bfloat16_of(nlfx_float_of(values[at]) * nlfx_factor_of(expert));
            }
            if (from != x->me) {
                nlfx_send(x, returned, result, 2 * x->values, from);
            }
        }
        nlfx_tell(x, nlfx_word_at(x, NLFX_BACK, expert), count + 1, from);
    }
}

/* Results added up, with the router's weights. Each block has tokens for itself. */
NLF_FN void nlfx_combine(const nlfx_block *x) {
    const int16_t *chosen = (const int16_t *)nlfx_area(x, NLFX_ROUTER);
    const float *weights = (const float *)(chosen + x->tokens * NLFX_CHOSEN);
    for (uint64_t expert = 0; expert < NLFX_EXPERTS * x->n_pes; expert++) {
        nlfx_wait(x, nlfx_word_at(x, NLFX_BACK, expert));
    }
    for (uint64_t token = x->block; token < x->tokens; token += x->blocks) {
        uint16_t *combined = nlfx_values_at(x, NLFX_COMBINED, token);
        for (uint64_t at = x->thread; at < x->values; at += x->threads) {
            float sum = 0;
            for (uint64_t choice = 0; choice < NLFX_CHOSEN; choice++) {
                const uint64_t place = token * NLFX_CHOSEN + choice;
                sum = fmaf(weights[place], nlfx_float_of(nlfx_values_at(x, NLFX_RETURNED, place)[at]), sum);
            }
            combined[at] = nlfx_bfloat16_of(sum);
        }
    }
}

/* A round of all three. The form is a block's. */
NLF_FN void nlfk_experts(const nlfk_args *a, const nlfk_self *self) {
    const nlfx_block x = {a,         self,     self->unit,    self->units,         self->member,
                          self->members, a->rounds, a->bytes, a->ctx->n_pes, a->ctx->me};
    nlfx_dispatch(&x);
    nlfx_work(&x);
    nlfx_combine(&x);
    /* What this block has sent may be overwritten from now on. */
    nlfk_note(a, self, nlf_quiet_block(a->ctx));
}

#endif
