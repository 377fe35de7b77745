/*
 * target.h: the target worker's engine: prefill, verify, accept, over the slots of one shm.
 *
 * A `struct td_target` owns the KV cache, the recurrent state, the activations and the requests in its slots. It is driven by td_target_work, which
 * takes the commands that wait and runs at most one step; the process around it (main.c) sleeps on the bell between calls. Nothing here knows
 * about processes or control messages, so that tests drive the same code (tests/tools/reference_check.c).
 * Nothing is allocated after td_target_create.
 */
#ifndef TD_TARGET_H
#define TD_TARGET_H

#include "engine/memplan.h"
#include "engine/shm.h"

/* Sees tensors of a forward: for the tests against reference values. `what`: "hidden" (index = layer input number, layers = after the final
 * norm), "features", "logits". The tensor is device memory. */
typedef void td_target_probe(void *ctx, const char *what, int index, struct td_tensor t);

struct td_target_options {
	const struct td_ops *ops;
	struct td_dev *dev;
	struct td_shm *shm;
	struct td_exchange exchange;
	int event_fd; /* written (8 bytes) after records were pushed; -1 = nobody */
	const struct td_target_weights *weights;
	int n_taps;
	const int *tap; /* layers whose output goes to the features, in column order */
	struct td_pool pool;
	int vocab_real;
	int vocab_fd; /* the tokens' bytes (engine/token_mask.h), only read; 0 or less: constrained requests are refused */
	int even; /* a test of turns: every step is charged as EVEN_US (step.c), whatever it took */
	int assume; /* a bench on random weights: seeds say how many tokens a step commits (kernels/assume.h) */
	td_target_probe *probe; /* NULL outside tests */
	void *probe_ctx;
};

struct td_target;

int td_target_create(const struct td_target_options *opt, struct td_target **t, struct td_error *err);
void td_target_destroy(struct td_target *t);
/* Bytes of KV cache and state that create will take. */
size_t td_target_cache_bytes(const struct td_target_options *opt);
/* 1 if something was done, 0 if there is nothing to do now, negative when the device failed: the worker must end. */
int td_target_work(struct td_target *t, struct td_error *err);
/* Requests in slots. */
int td_target_active(const struct td_target *t);

#endif
