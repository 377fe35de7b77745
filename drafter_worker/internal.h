/*
 * internal.h: what the files of drafter_worker share. See drafter.h for the boundary.
 */
#ifndef TD_DRAFTER_INTERNAL_H
#define TD_DRAFTER_INTERNAL_H

#include "drafter_worker/drafter.h"
#include "engine/memplan.h"

struct td__context {
	uint64_t request; /* whose context lies in the slot; 0 = nobody's */
	int fed; /* positions appended */
};

struct td_drafter {
	struct td_drafter_options o;
	const struct td_ops *ops;
	struct td_dev *dev;
	const struct td_drafter_weights *w;
	struct td_shm *shm;
	uint32_t epoch, step; /* the last step followed in this epoch */
	int n_slots, rows_max, block_rows;
	struct td__context context[TD_SLOTS_MAX];

	struct td_tensor buffer[TD_DRAFTER_BUFFERS]; /* owns what the fields below name, cache and kv excepted */
	int max_pages;
	int32_t *table; /* device (slots, max_pages): as the target gave them when the slot's request began */
	int32_t *row; /* host (max_pages): a slot's pages, once checked */
	struct td_kv *kv; /* per layer */
	void *cache;
	int32_t *ids; /* device (block_rows) */
	struct td_sampling *sampling; /* device (slots) */
	struct td_tensor fused, context_row, kv_row; /* appending: (rows_max, ...) */
	struct td_tensor x, norm, wide, mixed, gate_up, inner; /* the block: (block_rows, ...) */
	struct td_tensor tail, tail_norm, logits;
	struct td_linear head; /* the target's, or our own over the rows of `columns` */
	struct td_columns columns; /* n 0: logits are about all ids */
};

/* forward.c */
/* Feature rows 0..n_rows of `features` -> keys and values of the rows that the batch names, in every layer. */
void td__drafter_append(struct td_drafter *d, const struct td_batch *b, struct td_tensor features);
/* Blocks (anchor, masks) of the batch -> drafts in the exchange region. */
void td__drafter_block(struct td_drafter *d, const struct td_batch *b);

#endif
