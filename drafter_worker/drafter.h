/*
 * drafter.h: the drafter worker's engine: follows the target's steps, keeps the context of each slot, drafts blocks.
 *
 * A `struct td_drafter` owns the drafter's KV cache and activations. It knows no requests of its own: the step records of the target say what to
 * append and who wants drafts; sampling settings come from the slot area. Driven by td_drafter_work like its counterpart (target_worker/target.h).
 * Nothing is allocated after td_drafter_create.
 */
#ifndef TD_DRAFTER_H
#define TD_DRAFTER_H

#include "engine/model.h"
#include "engine/shm.h"

/* For the tests against reference values: "draft_logits" (sum of drafts rows, V or n_draft_ids). */
typedef void td_drafter_probe(void *ctx, const char *what, struct td_tensor t);

struct td_drafter_options {
	const struct td_ops *ops;
	struct td_dev *dev;
	struct td_shm *shm;
	struct td_exchange exchange;
	int event_fd; /* written after records were pushed; -1 = nobody */
	const struct td_drafter_weights *weights;
	struct td_tensor embed; /* of the target, bf16 (V, H) */
	struct td_linear head; /* of the target */
	struct td_tensor exact; /* its table, as in struct td_target_weights */
	int kv_pages; /* the target's, whose numbers the step records speak of */
	int vocab_real;
	const int32_t *draft_id; /* (n_draft_ids) ascending, below vocab_real: the ids that drafts are chosen from. Not looked at after td_drafter_create */
	int n_draft_ids; /* 0: all */
	td_drafter_probe *probe; /* NULL outside tests */
	void *probe_ctx;
};

struct td_drafter;

int td_drafter_create(const struct td_drafter_options *opt, struct td_drafter **d, struct td_error *err);
void td_drafter_destroy(struct td_drafter *d);
size_t td_drafter_cache_bytes(const struct td_drafter_options *opt);
/* 1 if a step was followed, 0 if there is none, negative when the device failed or the target's record is wrong: the worker must end. */
int td_drafter_work(struct td_drafter *d, struct td_error *err);

#endif
