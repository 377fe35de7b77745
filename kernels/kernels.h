/*
 * kernels.h: every operation on the device, as a plain C function on opaque device memory.
 *
 * The boundary. A backend (CPU, CUDA) is one `struct td_ops`. The CPU's is linked in and is the truth for tests (float32); the CUDA one is a
 * module opened at run time (td_ops_find). Code above this line never dereferences a device pointer, never sees a CUDA type and never
 * asks which backend runs, but for `act`, the type of activations, features and KV cache (F32 on the CPU, BF16 on CUDA).
 *
 * Order. Operations of one `struct td_dev` run in the order of the calls, perhaps after the call returned. `sync` waits for all of them.
 * Launch errors are sticky: operations return nothing, `sync`, `download` and `replay_wait` report the first error; a worker that sees one exits.
 * Host arguments (structs, arrays in `struct td_batch`) are read before the call returns; device memory must outlive the operation.
 *
 * Row invariance. The result for a row depends on that row, its sequence's state and the weights: never on the other rows of the batch,
 * their number, or the row's place. Losslessness (speculation on = off, token for token) rests on it, so it is a test for each operation.
 *
 * Notation: R rows of the batch, S slots, H hidden size, V vocabulary, C = 2*Hk*Dk + Hv*Dv convolution channels. Shapes stand as (rows, cols),
 * row-major. Formulas: "qwen35 n" and "dflash n" in comments name the sections of the specification: the transformers implementation of
 * Qwen3.5 and the DFlash paper (arXiv 2602.06036) say the same.
 */
#ifndef TD_KERNELS_H
#define TD_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "engine/error.h"

enum {
	TD_BLOCK_MAX = 16, /* rows of one verify or draft block: anchor + 15 */
	TD_DRAFT_MAX = TD_BLOCK_MAX - 1,
	TD_CAND_MAX = 64, /* support of a sampled draft's distribution q */
	TD_RESCORE = 8, /* logits of a row that are computed again */
	TD_TOP_MAX = 20, /* top log-probabilities reported per token */
	TD_BIAS_MAX = 300, /* logit_bias entries of a request */
	TD_PAGE = 64, /* tokens of a KV page */
	TD_CONV_TAIL = 3, /* rows kept of the causal convolution (kernel 4) */
	TD_HANDLE_BYTES = 64, /* of a shared exchange region */
};

#define TD_MASK_WORDS(vocab) (((vocab) + 31) / 32)

enum td_dtype { TD_F32, TD_BF16, TD_I32, TD_I64, TD_F16, TD_U8, TD_I8 };
static inline size_t td_dtype_size(enum td_dtype t)
{
	return t == TD_I64 ? 8 : t == TD_F32 || t == TD_I32 ? 4 : t == TD_BF16 || t == TD_F16 ? 2 : 1;
}

/* A view of a row-major matrix in device memory; element (r, c) is at data + (r*ld + c) * size. Owns nothing. */
struct td_tensor {
	void *data;
	enum td_dtype dtype;
	int rows, cols;
	int ld; /* >= cols */
	int eight; /* BF16: behind each row's columns, within ld, there is room for them in 8 bits (td_act8_bytes): rms_norm fills it, products with td_linear.act8 take it */
};

static inline struct td_tensor td_rows(struct td_tensor t, int row0, int rows)
{
	t.data = (char *)t.data + (size_t)row0 * (size_t)t.ld * td_dtype_size(t.dtype);
	t.rows = rows;
	return t;
}
static inline struct td_tensor td_cols(struct td_tensor t, int col0, int cols)
{
	t.data = (char *)t.data + (size_t)col0 * td_dtype_size(t.dtype);
	t.cols = cols;
	t.eight = 0;
	return t;
}

/* ---- weights ---------------------------------------------------------------------------------------------------------------------- */

enum td_weight_kind { TD_W_BF16, TD_W_INT4 };

/* A linear map y = W x without bias. `data` is in the backend's own order, inside an arena: packed there by `pack`. BF16 is always plain
 * row-major (out, in), so that a table of embeddings is also a head. */
struct td_linear {
	enum td_weight_kind kind;
	int in, out;
	int group; /* INT4: columns that share a scale; divides `in` */
	int paired; /* gate|up: only ever multiplied by linear_swiglu, so a backend may pack the halves' rows side by side; set before `pack` */
	int act8; /* INT4: x is rounded to 8 bits first, see TD_ACT8_GROUP; set before `pack` */
	void *data; /* td_ops.pack_bytes(...) bytes, 256-byte aligned */
};

/*
 * What td_linear.act8 makes of x: of each row every TD_ACT8_GROUP columns (the last group of a row may have fewer) become signed bytes and a scale,
 *	a = max |x|,  r = 127 * (1 / a),  q = x * r rounded to the nearest even (one rounding: fma),  scale = a * (1 / 127);  a = 0: all zero
 * each operation rounded to float32; r infinite: all zero. y = sum over groups of weight scale * scale * sum of (code - 8) * q, the inner sum exact in integers.
 */
enum { TD_ACT8_GROUP = 128 };

/* Bytes of such a row in the backend's order: of each group its bytes, then all scales; a multiple of 16. */
static inline size_t td_act8_bytes(int cols)
{
	size_t groups = ((size_t)cols + TD_ACT8_GROUP - 1) / TD_ACT8_GROUP;

	return (groups * (TD_ACT8_GROUP + 4) + 15) / 16 * 16;
}

/* Host side of a linear map as the checkpoint holds it, several modules stacked along `out` ("fused": q|k|v, gate|up, ...). */
struct td_linear_part {
	int out;
	const void *weight; /* BF16: (out, in) bf16. INT4: (out, in/8) uint32, low nibble first along `in`, value + 8 */
	const void *scale; /* INT4: (out, in/group) bf16 */
};

/* Ids that a row of logits is about, where it is not about all of them: column c stands for id[c]. A head over a few rows of the vocabulary makes such. */
struct td_columns {
	const int32_t *id; /* device (n), ascending */
	int n;
	int vocab; /* V: columns of a row about all ids */
};

/* ---- the batch -------------------------------------------------------------------------------------------------------------------- */

/* TD_COMMIT_END: the last rows are a prompt's last, and however the prompt is cut, what is left after its last whole block (of 256 on a GPU) comes in one
 * step: such a rest may be multiplied as blocks are. */
enum { TD_COMMIT_NONE, TD_COMMIT_ROWS, TD_COMMIT_END };

/* One sequence's rows in this step. */
struct td_seq {
	int32_t slot; /* row of the page table, of the recurrent state, of drafts, counts, anchors, sampling */
	int32_t row0, rows; /* its rows in the activations, consecutive */
	int32_t pos0; /* absolute position of row0 */
	int32_t replay; /* recurrent layers: rows of the previous block to commit before these (0..TD_BLOCK_MAX) */
	int32_t commit; /* not 0: all rows are final (prefill): state is written now; 0: rows wait in the ring (rows <= TD_BLOCK_MAX) */
};

/* Set up by the caller, then handed to `batch_set` once, which fills `dev`. */
struct td_batch {
	int n_seq, n_rows;
	int max_rows; /* largest rows of a sequence */
	int max_ctx; /* largest pos0 + rows */
	const struct td_seq *seq; /* host */
	const struct td_seq *dev; /* device copy, owned by the device, valid until TD_BATCHES later calls of batch_set */
};
enum { TD_BATCHES = 8 };

/*
 * A step that comes again and again. A backend may keep its calls (CUDA: a graph) and make them at one stroke the next time: when who, what and ctx_max are
 * the same, and n_seq, n_rows and max_rows of each batch are, then the calls must be the same operations on the same memory. All
 * else that changes from step to step lies in device memory, the batches' td_seq included. Rows are those of blocks, never final ones, in buffers of
 * TD_BLOCK_MAX rows per slot or more.
 */
enum { TD_REPLAY_BATCHES = 2, TD_MARKS = 4 };
enum { TD_MARK_BEGIN, TD_MARK_END /* both set by replay itself */, TD_MARK_HEAD };
struct td_replay {
	const void *who; /* the engine */
	uint32_t what; /* its number for this kind of step and the memory it works on; 0: never kept, any call may come */
	int ctx_max; /* positions there are for a sequence */
	int n;
	struct td_batch *batch[TD_REPLAY_BATCHES]; /* instead of batch_set */
};

/* ---- attention -------------------------------------------------------------------------------------------------------------------- */

/* Constants of one attention layer; weights are device memory, float32. */
struct td_attn {
	int heads, kv_heads, head_dim, rotary_dim; /* rotary on dims [0, rotary_dim), half pairing (j, j + rotary_dim/2) */
	float eps;
	int zero_centred; /* q/k norm multiplies by 1 + w (target) instead of w (drafter) */
	int gated; /* target: q rows hold (query | gate) per head; output times sigmoid(gate) */
	int window; /* drafter, sliding layers: keys p >= query - (window - 1); 0 = all. qwen target: 0 */
	int causal; /* drafter: causal inside the block */
	const float *q_norm, *k_norm; /* (head_dim) */
	const float *inv_freq; /* (rotary_dim / 2), float32: theta^(-2j/rotary_dim) */
};

/* Paged cache of one layer: k and v (pages, kv_heads, TD_PAGE, head_dim) of type `act`. Position p of slot s lies in page
 * table[s*max_pages + p/TD_PAGE] at p % TD_PAGE. Keys are stored normalised and rotated. */
struct td_kv {
	void *k, *v;
	const int32_t *table; /* device, (S, max_pages) */
	int max_pages;
};

/* ---- recurrent layers (Gated DeltaNet) -------------------------------------------------------------------------------------------- */

struct td_gdn {
	int k_heads, v_heads, k_dim, v_dim;
	float eps; /* of the gated norm; the L2 norm of q and k uses 1e-6 */
	const float *conv; /* (C, 4); [c][3] multiplies the current row */
	const float *a_log, *dt_bias; /* (v_heads) */
	const float *norm; /* (v_dim), applied as w */
};

/* State of one layer for all slots. `ring` keeps the raw inputs of the last block, so that accepted rows can be replayed. */
struct td_gdn_state {
	float *s; /* (S, v_heads, k_dim, v_dim) */
	void *tail; /* act (S, TD_CONV_TAIL, C): inputs of the convolution before the next committed row, oldest first */
	void *ring_m; /* act (S, TD_BLOCK_MAX, C): pre-convolution rows q|k|v */
	float *ring_ba; /* (S, TD_BLOCK_MAX, 2*v_heads): b | a */
};

/* ---- sampling --------------------------------------------------------------------------------------------------------------------- */

/* A request's sampling settings, one per slot in device memory. Order of the steps: bias, penalties, temperature, min_p, top_k, top_p, draw.
 * temperature 0 = greedy: bias and penalties still count. Penalties: repetition over prompt and output (divide positive, multiply negative
 * logits), presence and frequency over the output. */
struct td_sampling {
	float temperature, top_p, min_p, repetition, presence, frequency;
	int32_t top_k; /* 0 = off */
	int32_t logprobs; /* -1 off; 0..TD_TOP_MAX: log-probability of the token, and so many best ones, of the raw logits */
	uint64_t seed;
	int32_t n_bias;
	int32_t bias_id[TD_BIAS_MAX];
	float bias[TD_BIAS_MAX];
};

/* A slot's proposal. n_cand[i] == 0: point mass on token[i]; otherwise q over cand[i] (sums to 1, holds token[i]). */
struct td_draft {
	int32_t n;
	int32_t token[TD_DRAFT_MAX];
	int32_t n_cand[TD_DRAFT_MAX];
	int32_t cand[TD_DRAFT_MAX][TD_CAND_MAX];
	float q[TD_DRAFT_MAX][TD_CAND_MAX];
};

/* What a verify step commits for one sequence. */
struct td_verdict {
	int32_t n; /* tokens: accepted drafts + 1 */
	int32_t token[TD_BLOCK_MAX];
	int32_t n_top; /* entries of top_* per token, 0 when logprobs is off */
	float logprob[TD_BLOCK_MAX];
	int32_t top_id[TD_BLOCK_MAX][TD_TOP_MAX];
	float top_logprob[TD_BLOCK_MAX][TD_TOP_MAX];
};

/* Random numbers are counter-based: uniform(seed, position of the token to be drawn, purpose), kernels/philox.h. */
enum td_purpose { TD_DRAW = 0, TD_ACCEPT = 1, TD_PROPOSE = 2 };

/* ---- device ----------------------------------------------------------------------------------------------------------------------- */

struct td_dev; /* a backend's instance: one per worker */

struct td_dev_options {
	int threads; /* CPU: 0 = number of processors */
	int ordinal; /* CUDA: device number */
	int slots; /* sizes what the device keeps per batch */
};

/* Memory that outlives its maker: the fd keeps it (CPU: memfd; CUDA: VMM handle). */
struct td_arena {
	void *base;
	size_t size;
	int fd; /* owned by the arena; duplicate before passing on */
	int read_only;
};

/* A word that orders two workers: value only grows (epoch << 32 | step). 128-byte line of host memory mapped by all processes. */
struct td_flag {
	_Atomic uint64_t value;
	char pad[120];
};
#define TD_FLAG_POISON(epoch) (((uint64_t)(epoch) << 32) | 0xffffffffu) /* satisfies every wait of that epoch */

/* A doorbell: wakes a worker that sleeps. Host memory mapped by all processes; a futex on `count`. */
struct td_bell {
	_Atomic uint32_t count, sleepers;
	char pad[120];
};

struct td_ops {
	const char *name; /* "cpu", "cuda" */
	enum td_dtype act;

	int (*open)(struct td_dev **dev, const struct td_dev_options *opt, struct td_error *err);
	void (*close)(struct td_dev *dev);
	int (*sync)(struct td_dev *dev, struct td_error *err);
	void (*describe)(struct td_dev *dev, char *text, size_t size); /* one line for people */

	/* memory */
	int (*arena_create)(struct td_dev *, size_t size, struct td_arena *out, struct td_error *);
	int (*arena_import)(struct td_dev *, int fd, size_t size, int read_only, struct td_arena *out, struct td_error *); /* takes fd, also on failure */
	void (*arena_release)(struct td_dev *, struct td_arena *); /* unmaps, closes fd; zeroed memory is fine */
	void *(*alloc)(struct td_dev *, size_t bytes, struct td_error *); /* zeroed, 256-byte aligned; NULL on failure */
	void (*free)(struct td_dev *, void *);
	void (*upload)(struct td_dev *, void *dst, const void *src, size_t bytes);
	int (*download)(struct td_dev *, void *dst, const void *src, size_t bytes, struct td_error *); /* syncs */
	void (*zero)(struct td_dev *, void *dst, size_t bytes);
	int (*checksum)(struct td_dev *, const void *src, size_t bytes, uint64_t *out, struct td_error *); /* XXH3-64 on the CPU; backend's own elsewhere */

	/* weights */
	size_t (*pack_bytes)(enum td_weight_kind kind, int out, int in, int group);
	int (*pack)(struct td_dev *, const struct td_linear *w, const struct td_linear_part *part, int n_part, struct td_error *);
	/* Some rows of a packed map (not a paired one), as a map of their own: w's row i is row id[i] of `from`, with its bits. w has kind, in and group of
	 * `from` and memory for w->out rows. */
	void (*pack_rows)(struct td_dev *, const struct td_linear *from, const int32_t *id /* device (w->out), below from->out */, const struct td_linear *w);

	/* a step */
	void (*batch_set)(struct td_dev *, struct td_batch *b);
	void (*embed)(struct td_dev *, struct td_tensor table /* bf16 (V, H) */, const int32_t *ids /* device (R) */, struct td_tensor out /* act or F32 (R, H) */);
	/* x act or F32. y = x * rsqrt(mean(x^2) + eps) * (zero_centred + w); qwen35 3.1, dflash 1.2 */
	void (*rms_norm)(struct td_dev *, struct td_tensor x, const float *w, float eps, int zero_centred, struct td_tensor y);
	/* y = W x, or y += W x when `accumulate`. y is act or F32 (logits). As many rows as the batch set last are that batch's: a backend may multiply
	 * final rows (prefill) in another way than others, by their positions, but never by their company. */
	void (*linear)(struct td_dev *, struct td_tensor x, const struct td_linear *w, struct td_tensor y, int accumulate);
	/* y = silu(x[:, :I]) * x[:, I:] */
	void (*swiglu)(struct td_dev *, struct td_tensor x /* (R, 2I) */, struct td_tensor y /* (R, I) */);
	/* Several operations in one call, which a backend may make together: two maps of one input, with the bits of the two operations; y = swiglu(W x),
	 * where `both` (R, 2I) is room to work in. */
	void (*linear2)(struct td_dev *, struct td_tensor x, const struct td_linear *w0, struct td_tensor y0, const struct td_linear *w1, struct td_tensor y1);
	void (*linear_swiglu)(struct td_dev *, struct td_tensor x, const struct td_linear *w, struct td_tensor both, struct td_tensor y);
	void (*copy)(struct td_dev *, struct td_tensor src, struct td_tensor dst); /* same shape, any ld; same type, or F32 rounded to act */

	/* Gated DeltaNet, qwen35 3.4-3.5 and 3.8: conv + silu, L2 norms, gates, delta rule, gated norm. For each sequence: replays `replay` rows of
	 * the ring into s and tail; then the new rows, which either advance the state (commit) or go to the ring and leave it. */
	void (*gdn)(struct td_dev *, const struct td_gdn *w, const struct td_gdn_state *st, const struct td_batch *b,
		    struct td_tensor qkvz /* act (R, C + v_heads*v_dim): q|k|v|z */, struct td_tensor ba /* F32 or act (R, 2*v_heads): b|a */,
		    struct td_tensor out /* act (R, v_heads*v_dim) */);

	/* Target: q/k norm, rotary, append k and v to the cache at pos0.., causal attention over positions <= own, output gate. qwen35 3.2 */
	void (*attention)(struct td_dev *, const struct td_attn *w, const struct td_kv *kv, const struct td_batch *b,
			  struct td_tensor qkv /* act (R, 2*heads*head_dim + 2*kv_heads*head_dim): per head q|gate, then k, then v */,
			  struct td_tensor out /* act (R, heads*head_dim) */);
	/* Drafter: k norm and rotary of context rows, append k and v. dflash 1.2 */
	void (*draft_context)(struct td_dev *, const struct td_attn *w, const struct td_kv *kv, const struct td_batch *b,
			      struct td_tensor kvrow /* act (R, 2*kv_heads*head_dim): k|v */);
	/* Drafter: block rows at pos0.. see the context p < pos0 in the cache and the block's own keys; nothing is stored. dflash 1.4 */
	void (*draft_attention)(struct td_dev *, const struct td_attn *w, const struct td_kv *kv, const struct td_batch *b,
				struct td_tensor qkv /* act (R, heads*head_dim + 2*kv_heads*head_dim): q, k, v */, struct td_tensor out);

	/* which rows of a batch go on: the last row of each sequence (n_seq rows), or all but the first (n_rows - n_seq rows) */
	void (*rows_last)(struct td_dev *, const struct td_batch *b, struct td_tensor x, struct td_tensor y);
	void (*rows_tail)(struct td_dev *, const struct td_batch *b, struct td_tensor x, struct td_tensor y);

	/* block ids: target (anchor, drafts...), drafter (anchor, mask...). anchor and draft are (S) in device memory. */
	void (*verify_ids)(struct td_dev *, const struct td_batch *b, const int32_t *anchor, const struct td_draft *draft, int32_t *ids);
	void (*mask_ids)(struct td_dev *, const struct td_batch *b, const int32_t *anchor, int32_t mask_id, int32_t *ids);

	/* token counts of a slot: (S, V) uint16, bit 15 = in the prompt, low bits = times in the output. Zeroes, then marks n prompt ids. */
	void (*counts_reset)(struct td_dev *, uint16_t *counts /* of the slot, (V) */, int vocab, const int32_t *ids /* device */, int n);
	/* adds n output tokens (after a crash: those committed before) */
	void (*counts_add)(struct td_dev *, uint16_t *counts, const int32_t *ids /* device */, int n);

	/* Draft: logits (sum of rows-1, V) of rows 1.. of each sequence -> draft[slot]. Greedy: argmax, lowest id on a tie. With temperature: the
	 * processed distribution cut to its TD_CAND_MAX best, one draw each (TD_PROPOSE). ids >= vocab_real are never proposed.
	 * of: NULL, or what the n columns of the logits stand for, each below vocab_real: the distribution is over these ids; settings, counts and drafts
	 * speak of ids as ever. */
	void (*propose)(struct td_dev *, const struct td_batch *b, struct td_tensor logits, const struct td_columns *of, int vocab_real,
			const struct td_sampling *sampling /* (S) */, const uint16_t *counts /* (S, V) */, struct td_draft *draft /* (S) */);
	/* Verify: logits (R, V), drafts as the block's ids were. Greedy: longest match; else exact rejection sampling (dflash 2.3.4). Writes the
	 * verdict of sequence i to verdict[i] (of it n tokens and log-probabilities, n_top best ones each), its last token to anchor[slot], and adds the
	 * tokens to counts where the settings have penalties. Row j decides position pos0 + j + 1. With rows == 1 it is plain sampling.
	 * Neither propose nor accept looks at sampling settings, drafts or counts on the host: what a captured call launches hangs on the number of
	 * sequences, max_rows and the shape of the logits only. */
	void (*accept)(struct td_dev *, const struct td_batch *b, struct td_tensor logits, int vocab_real, const struct td_sampling *sampling,
		       const struct td_draft *draft, uint16_t *counts, int32_t *anchor, struct td_verdict *verdict /* device or host_alloc (n_seq) */);
	/* Before accept, for constrained output: each of n lines is one bit per id of V, then the number of a row of logits; in that row the ids whose bit
	 * is 0 become -inf. No bias brings them back, and log-probabilities are those of what is left. */
	void (*mask)(struct td_dev *, struct td_tensor logits /* F32 (R, V) */, const uint32_t *line /* device (n, TD_MASK_WORDS(V) + 1) */, int n);
	/* After a head in 4 bits: of each row the TD_RESCORE largest logits of ids below vocab_real (the lower id on a tie) become x times the table's rows.
	 * of: as for propose. */
	void (*rescore)(struct td_dev *, struct td_tensor x /* act (R, H) */, struct td_tensor table /* bf16 (V, H) */, struct td_tensor logits /* F32 (R, V or n) */,
			const struct td_columns *of, int vocab_real);

	/* recorded steps (struct td_replay) */
	/* Sets the batches; n_rows, max_rows and max_ctx may come back larger, up to whole blocks, so that steps of nearly the same form become the same: rows
	 * of no sequence lie behind the others then, with whatever ids were there. 1: the step runs as it was recorded, its calls are not made. 0: make the calls, then replay_end;
	 * with a `what` other than 0 no upload, download, sync or batch_set among them. */
	int (*replay)(struct td_dev *, const struct td_replay *r);
	void (*replay_end)(struct td_dev *);
	/* Waits until the last step of replay has ended, sooner than sync does; not for operations that came after it. */
	int (*replay_wait)(struct td_dev *, struct td_error *);
	void (*mark)(struct td_dev *, int i); /* inside a step of replay: the time when all operations so far have ended */
	double (*elapsed_us)(struct td_dev *, int from, int to); /* between two marks of the step that was waited for last */
	/* Host memory that operations can write (accept's verdict); the host reads after a wait. Zeroed; NULL on failure. */
	void *(*host_alloc)(struct td_dev *, size_t bytes, struct td_error *);
	void (*host_free)(struct td_dev *, void *);

	/* the device's memory now, in bytes (CPU: the machine's) */
	int (*memory)(struct td_dev *, uint64_t *free_bytes, uint64_t *total_bytes, struct td_error *);
	/* The exchange region as device memory of its own (CUDA: a dedicated allocation shared by cudaIpcMemHandle). NULL on a backend whose exchange
	 * region lies in the shm. The owner's memory ends with the owner: a worker whose peer died drops what it opened and starts anew. */
	int (*exchange_create)(struct td_dev *, size_t bytes, void **base, uint8_t handle[TD_HANDLE_BYTES], struct td_error *);
	int (*exchange_open)(struct td_dev *, const uint8_t handle[TD_HANDLE_BYTES], void **base, struct td_error *);
	void (*exchange_close)(struct td_dev *, void *base, int owner);
	/* Tests: an access to memory that is not there, by the device; the next operation that syncs fails with TD_E_DEVICE, as after a real one. NULL on
	 * a backend without such a thing. */
	void (*fault)(struct td_dev *);
	/* Memory that the operations work in, from the plan (td_scratch_cuda, kernels/pack.h), so that none is taken while serving; the larger of two loans
	 * is used. bytes 0 takes `mem` back, before it is freed. NULL on a backend that needs none. */
	void (*lend)(struct td_dev *, void *mem, size_t bytes);
	uint64_t (*allocations)(struct td_dev *); /* of device memory, so far; NULL where nobody counts */

	/* For `tandem bench` alone. */
	/* Before accept, where the lever target.assume is set: changes logits so that a request's seed says how many tokens its steps commit, whatever the
	 * drafts are (kernels/assume.h). What is committed then means nothing. */
	void (*assume)(struct td_dev *, const struct td_batch *b, struct td_tensor logits /* F32 (R, V) */, const struct td_draft *draft,
		       const struct td_sampling *sampling);
	/* What the machine gives without our kernels: microseconds (the median of a few runs) for reading so many bytes of memory once; and for dense BF16
	 * products of `rows` rows with n matrices, of which `in` and `out` count, one after the other, by the vendor's library. NULL on a backend that
	 * has no such thing to compare with. */
	int (*roof_read)(struct td_dev *, size_t bytes, double *us, struct td_error *);
	int (*roof_dense)(struct td_dev *, const struct td_linear *shape, int n, int rows, double *us, struct td_error *);
};

/* "cpu", "cuda" or "auto" (cuda where a device and the module are there, else cpu). NULL + err when that backend can't be had. */
const struct td_ops *td_ops_find(const char *name, struct td_error *err);

extern const struct td_ops td_cpu_ops;

#endif
