/*
 * internal.h: what the files of target_worker share. See target.h for the boundary.
 */
#ifndef TD_TARGET_INTERNAL_H
#define TD_TARGET_INTERNAL_H

#include "engine/memplan.h"
#include "target_worker/target.h"

enum td__phase {
	TD__FREE,
	TD__PREFILL, /* prompt rows are fed in chunks */
	TD__REFEED, /* after a crash: committed tokens are fed in blocks, with the code of verify */
	TD__DECODE,
};

struct td__slot {
	enum td__phase phase;
	int paused;
	uint64_t request;
	int n_tokens; /* ids given with START, committed ones of an earlier life included */
	int n_prompt;
	int fed; /* positions whose rows went through the model, waiting rows of the last block left out */
	int total; /* tokens known: n_tokens, then + committed; the anchor is at total - 1 once decoding */
	int max_total;
	int k; /* drafts per step, 0 = plain */
	int replay; /* rows of the last block that are final but not yet in the recurrent state */
	uint32_t draft_step; /* the drafter's step that makes this slot's drafts; 0 = none asked */
	int drafts; /* how many of them */
	uint32_t commits; /* since START: index of the verdict area */
	uint64_t commit_sequence[TD_VERDICTS]; /* ring sequence of the last commits */
	uint64_t order; /* of arrival: prefill goes first come, first served */
};

struct td__pages; /* pages.c */

struct td_target {
	struct td_target_options o;
	const struct td_ops *ops;
	struct td_dev *dev;
	const struct td_target_weights *w;
	struct td_shm *shm;
	uint32_t epoch, step; /* step: the last one begun in this epoch */
	uint64_t arrivals;
	uint64_t ended_us; /* when the last step ended; 0 = none yet */
	int after_prefill; /* the last step was a prefill: decoding goes first now */
	int n_slots, max_pages, rows_max, block_rows;
	struct td__slot slot[TD_SLOTS_MAX];

	struct td__pages *pages;
	int32_t *table; /* device (slots, max_pages) */
	struct td_kv *kv; /* per layer; unused entries of linear layers are zero */
	struct td_gdn_state *gdn; /* per layer */
	void *cache; /* the one allocation behind kv and gdn */

	struct td_tensor buffer[TD_TARGET_BUFFERS]; /* owns what the fields below name */
	int32_t *ids; /* device (max of rows_max, context): of a step, or of a prompt to be counted */
	struct td_tensor x, norm, wide, ba, mixed, gate_up, inner; /* activations, (rows_max, ...) */
	struct td_tensor picked, picked_norm, logits; /* (block_rows, ...) */
	struct td_sampling *sampling; /* device (slots) */
	struct td_verdict *verdict; /* device (slots) */
	struct td_verdict *verdict_host;
	int32_t *ids_host; /* (rows_max) */
};

/* pages.c: which pages of the pool belong to which slot */
struct td__pages *td__pages_create(int n_pages, int slots, int max_pages);
void td__pages_destroy(struct td__pages *p);
/* Gives the slot n pages; 0, or -1 and nothing taken when the pool has too few. Row of the table: td__pages_row. */
int td__pages_take(struct td__pages *p, int slot, int n);
void td__pages_release(struct td__pages *p, int slot);
const int32_t *td__pages_row(const struct td__pages *p, int slot);

/* forward.c: rows of the batch through all layers; x holds the residual stream at the end, features (if features.data) the tapped outputs */
void td__target_forward(struct td_target *t, const struct td_batch *b, struct td_tensor features);
/* final norm and head over the rows in `rows` (n) -> t->logits */
struct td_tensor td__target_head(struct td_target *t, struct td_tensor rows);

/* step.c */
/* One step of each kind on nothing, so that the device's libraries load their code before the first request; its traces go when a request starts. */
int td__target_warm(struct td_target *t, struct td_error *err);
int td__target_prefill(struct td_target *t, struct td_error *err); /* 1 done, 0 nothing to prefill */
int td__target_decode(struct td_target *t, struct td_error *err); /* verify or refeed */
int td__target_decode_ready(const struct td_target *t); /* 0 none, 1 ready, -1 waiting for the drafter */

/* records.c: towards tandemd */
void td__target_push(struct td_target *t, struct td_record *rec);
void td__target_notify(struct td_target *t);
void td__target_end(struct td_target *t, int slot, enum td_finish reason);
/* Commits the verdict of a slot: records, stop ids, lengths. drafted < 0: the first token, of a prefill. Returns tokens committed; the slot may be free afterwards. */
int td__target_commit(struct td_target *t, int slot, const struct td_verdict *v, int drafted, uint32_t us);

#endif
