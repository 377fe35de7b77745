/*
 * internal.h: what the files of target_worker share. See target.h for the boundary.
 */
#ifndef TD_TARGET_INTERNAL_H
#define TD_TARGET_INTERNAL_H

#include "engine/memplan.h"
#include "target_worker/prefix.h"
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
	int k_may_fall; /* where many requests share the step */
	int replay; /* rows of the last block that are final but not yet in the recurrent state */
	uint32_t draft_step; /* the drafter's step that makes this slot's drafts; 0 = none asked */
	int drafts; /* how many of them */
	uint32_t commits; /* since START: index of the verdict area */
	uint64_t commit_sequence[TD_VERDICTS]; /* ring sequence of the last commits */
	uint64_t order; /* of arrival: prefill goes first come, first served */
	uint64_t owed_us; /* used since the last record: told with the next */
	int begun; /* the drafter knows of it */
	int constrained; /* constrain.c has its grammar */
	/* prefix cache */
	int cache; /* takes part: its units are put there as they are computed */
	int looked; /* for good: its first rows were planned */
	uint64_t tenant;
	struct td__place place, began_at; /* of the units fed so far; of the checkpoint that it began with */
	int branch_edge, last_edge; /* tokens: where checkpoints are wanted; 0 = nowhere */
};

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
	struct td__prefix *prefix; /* NULL: no prefix cache */
	uint64_t evicted_before; /* by predecessors of this process */
	uint64_t draft_us; /* of the drafter, as charged so far */
	int32_t *table; /* device (slots, max_pages) */
	struct td_kv *kv; /* per layer; unused entries of linear layers are zero */
	struct td_gdn_state *gdn; /* per layer; s and tail: slots, then checkpoints */
	void *cache; /* the one allocation behind kv and gdn */

	struct td_tensor buffer[TD_TARGET_BUFFERS]; /* owns what the fields below name */
	int32_t *ids; /* device (max of rows_max, context): of a step, or of a prompt to be counted */
	struct td_tensor x, norm, wide, ba, mixed, gate_up, inner; /* activations, (rows_max, ...); gate_up lies in wide, inner in mixed */
	struct td_tensor picked, picked_norm, logits; /* (block_rows, ...) */
	struct td_sampling *sampling; /* device (slots) */
	struct td_verdict *verdict; /* (slots): host memory that accept writes */
	int32_t *ids_host; /* (rows_max) */
	struct td__constrain *constrain; /* NULL: nobody gave the tokens' bytes */
	uint32_t *lines; /* device (block_rows, words + 1): masks */
};

/* target.c */
void td__target_table(struct td_target *t, int slot); /* the slot's row of the page table, to the device */

/* cache.c: the prefix cache */
/* Where a part of a prompt may end, so that its rows are multiplied alike in any company: what the backends multiply as one block. */
enum { TD__UNIT = 256, TD__UNIT_SMALL = 64 };
int td__prefill_unit(const struct td_target *t); /* tokens */
int td__cache_create(struct td_target *t, struct td_error *err);
void td__cache_clear(struct td_target *t);
/* A request starts: pages and state of the longest known beginning of its prompt; `fed` says how long that is. Its slot holds no page yet. */
void td__cache_start(struct td_target *t, int slot);
void td__cache_begin(struct td_target *t, int slot); /* its first rows are planned: looks again, says what was found */
int td__cache_room(struct td_target *t, int n); /* evicts until n pages are free; -1 when that can't be */
/* A state that is to be kept: when the slot's first `tokens` have gone through the layers, as checkpoint `state`. */
struct td__keep {
	int tokens, state;
};
enum { TD__KEEPS = 2 };
/* Prompt rows from..fed are about to be computed: their units become known. Returns how many states are wanted on the way, in the order of tokens. */
int td__cache_grow(struct td_target *t, int slot, int from, struct td__keep keep[TD__KEEPS]);
void td__cache_copy(struct td_target *t, int layer, int from, int to); /* rows of the state of a recurrent layer: slots, then checkpoints */

/* constrain.c: output that must fit a grammar */
int td__constrain_create(struct td_target *t, int vocab_fd, struct td_error *err);
void td__constrain_destroy(struct td_target *t);
const char *td__constrain_start(struct td_target *t, int slot); /* NULL, or why it can't be */
int td__constrain_rows(struct td_target *t, int slot, int rows); /* how many of a block's rows can count; reads the drafts */
void td__constrain_masks(struct td_target *t, const struct td_batch *b); /* of all rows that may be sampled, on their way to the device */
void td__constrain_apply(struct td_target *t, struct td_tensor logits); /* those masks, before accept */
int td__constrain_commit(struct td_target *t, int slot, const int32_t *token, int n); /* -1: they do not fit */

/*
 * The recurrent layers' way through a step in which states are kept from the middle of its rows: one stage after the other, each with the next
 * part of the sequences; all else of the step takes its rows at once.
 */
enum { TD__STAGES = TD__KEEPS + 1 };
struct td__stages {
	int n; /* 1: the step's own batch */
	struct td_batch batch[TD__STAGES];
	struct td_seq seq[TD__STAGES][TD_SLOTS_MAX];
	int n_kept;
	struct td__kept {
		int stage, slot, state; /* after this stage the slot's state is copied to this checkpoint */
	} kept[TD__KEEPS * TD_SLOTS_MAX];
};
/* forward.c: rows of the batch through all layers; x holds the residual stream at the end, features (if features.data) the tapped outputs. stages: NULL
 * where no state is kept */
void td__target_forward(struct td_target *t, const struct td_batch *b, const struct td__stages *stages, struct td_tensor features);
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
/* Device time of a slot's part in a step: the verify, and the draft that it verified. */
struct td__cost {
	uint64_t step_us; /* of the whole step */
	uint64_t rows_us, draft_us; /* this slot's share */
};
/* Commits the verdict of a slot: records, stop ids, lengths. drafted < 0: the first token, of a prefill. Returns tokens committed; the slot may be free afterwards. */
int td__target_commit(struct td_target *t, int slot, const struct td_verdict *v, int drafted, const struct td__cost *cost);

#endif
