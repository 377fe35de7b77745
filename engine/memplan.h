/*
 * memplan.h: how much device memory a pair takes, known before any is taken.
 *
 * The sizes come from the configurations, the heads of the weight files and the settings; no tensor is read and no backend is needed. They are not
 * estimates: weights are what the loader's first pass adds up, and both engines take their cache and buffers by the functions here, so what is
 * planned and what is allocated are one thing. Only the CUDA context (with code) is a measured constant.
 */
#ifndef TD_MEMPLAN_H
#define TD_MEMPLAN_H

#include "engine/model.h"
#include "engine/shm.h"

/* ---- what an engine allocates, weights left out --------------------------------------------------------------------------------------------- */

enum td_target_buffer {
	TD_TB_X, TD_TB_NORM, TD_TB_WIDE, TD_TB_BA, TD_TB_MIXED, /* rows of a step */
	TD_TB_PICKED, TD_TB_PICKED_NORM, TD_TB_LOGITS, /* rows that get logits */
	TD_TB_TABLE, TD_TB_IDS, TD_TB_SAMPLING, TD_TB_MASKS, TD_TB_SCRATCH,
	TD_TARGET_BUFFERS,
};
enum td_drafter_buffer {
	TD_DB_FUSED, TD_DB_CONTEXT_ROW, TD_DB_KV_ROW, /* rows of features */
	TD_DB_X, TD_DB_NORM, TD_DB_WIDE, TD_DB_MIXED, TD_DB_GATE_UP, TD_DB_INNER, TD_DB_TAIL, TD_DB_TAIL_NORM, TD_DB_LOGITS, /* rows of blocks */
	TD_DB_TABLE, TD_DB_IDS, TD_DB_SAMPLING, TD_DB_HEAD, TD_DB_COLUMNS, TD_DB_SCRATCH,
	TD_DRAFTER_BUFFERS,
};
/* Shapes, data NULL; arrays of structs are counted in bytes (U8). Scratch is what the operations are lent (td_ops.lend); 0 rows on the CPU. */
void td_target_buffers(const struct td_target_config *c, const struct td_shm_config *s, enum td_dtype act, struct td_tensor b[TD_TARGET_BUFFERS]);
/* head: NULL, or one over some rows of the target's, `out` of them, which the drafter keeps with their ids (its data is not looked at). */
void td_drafter_buffers(const struct td_drafter_config *c, const struct td_shm_config *s, enum td_dtype act, const struct td_linear *head,
			struct td_tensor b[TD_DRAFTER_BUFFERS]);
static inline size_t td_buffer_bytes(struct td_tensor b)
{
	return (size_t)b.rows * (size_t)b.ld * td_dtype_size(b.dtype);
}
/* Allocates a table of n whose last is the scratch, and lends that. What was had before a failure stays in the table, for td_buffers_free. */
int td_buffers_take(const char *who, const struct td_ops *ops, struct td_dev *dev, int slots, struct td_tensor *b, int n, struct td_error *err);
void td_buffers_free(const struct td_ops *ops, struct td_dev *dev, struct td_tensor *b, int n);

/* What the pool of pages and the prefix cache hold. */
enum { TD_PREFIX_STATES = 16 }; /* by default: conversations whose next turn is quick; 49 MiB each for the 4B model */
struct td_pool {
	int kv_pages; /* of TD_PAGE tokens, shared by the slots */
	int prefix_states; /* checkpoints of recurrent state; 0: no prefix cache */
};
struct td_cache_bytes {
	size_t kv, state; /* one allocation of kv + state bytes */
	size_t prefix; /* of state: the checkpoints */
};
/* Bytes, and with base not NULL the places inside: per layer either k and v pages or recurrent state. `s` and `tail` of the state have rows for the
 * slots, then one for each checkpoint. */
struct td_cache_bytes td_target_cache_layout(const struct td_target_config *c, const struct td_shm_config *s, const struct td_pool *pool, enum td_dtype act,
					     char *base, struct td_kv *kv, struct td_gdn_state *gdn);
/* The drafter's pool has the target's pages, by the same numbers. A multiple of 2 * layers: k, v of each. */
size_t td_drafter_kv_bytes(const struct td_drafter_config *c, int kv_pages, enum td_dtype act);

/* Prompt rows of a step when nobody says: many on a GPU, which reads its weights once a step, fewer with one slot; not more than all slots can have. */
int td_chunk_auto(const char *device, int slots, int context);

/* ---- the plan ------------------------------------------------------------------------------------------------------------------------------ */

struct td_memplan_worker {
	uint64_t weights, kv, state, buffers;
	uint64_t prefix; /* target: checkpoints of the prefix cache */
	uint64_t context; /* of the device, before any of the above: 0 on the CPU */
};

struct td_memplan {
	struct td_memplan_worker target, drafter; /* drafter: zero when there is none */
	uint64_t exchange, all;
	uint64_t per_slot; /* what one slot more of this context would take */
};

/* What a plan is about. drafter_dir NULL: plain decoding. */
struct td_memplan_of {
	const char *target_dir, *drafter_dir;
	const char *device; /* "cpu", "cuda" */
	int form; /* struct td_load */
	int draft_ids; /* rows of the head that drafts are chosen from; 0: all */
	struct td_shm_config shm;
	struct td_pool pool;
};
int td_memplan_make(const struct td_memplan_of *of, struct td_memplan *p, struct td_error *err);

/* One worker's part, for its own backend. */
int td_memplan_target(const struct td_ops *ops, const char *dir, int form, const struct td_shm_config *s, const struct td_pool *pool,
		      struct td_memplan_worker *w, struct td_error *err);
int td_memplan_drafter(const struct td_ops *ops, const char *dir, int form, const struct td_shm_config *s, const struct td_pool *pool,
		       const struct td_linear *head, struct td_memplan_worker *w, struct td_error *err);
/* The same without weights, for an arena that is there already. */
void td_memplan_target_rest(const struct td_target_config *c, enum td_dtype act, const struct td_shm_config *s, const struct td_pool *pool,
			    struct td_memplan_worker *w);
void td_memplan_drafter_rest(const struct td_drafter_config *c, enum td_dtype act, const struct td_shm_config *s, const struct td_pool *pool,
			     const struct td_linear *head, struct td_memplan_worker *w);
/* How many of the plan's `states` checkpoints fit beside the rest, when `reserve` bytes of what is free are for others. */
int td_memplan_states(const struct td_memplan_worker *w, int states, uint64_t free_bytes, uint64_t reserve);
/* TD_E_NOMEM with what to lower when the worker's part (its context is taken already) is larger than what is free. */
int td_memplan_check(const char *who, const struct td_memplan_worker *w, int form, uint64_t free_bytes, uint64_t total_bytes, struct td_error *err);

/* For people: line 0 target, 1 drafter, 2 the whole; "" where there is nothing to say. */
enum { TD_MEMPLAN_LINES = 3, TD_MEMPLAN_TEXT = 240 };
void td_memplan_text(const struct td_memplan *p, char line[TD_MEMPLAN_LINES][TD_MEMPLAN_TEXT]);

#endif
