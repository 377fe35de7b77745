/*
 * memplan.c: sizes of everything on the device (memplan.h): one table for each engine, sums over them, and the sentence when they don't fit.
 *
 * Owns nothing: a table of buffers is its engine's. What must never happen: an allocation of an engine that is not in its table, for then a plan
 * that fits would fail in flight.
 */
#include "engine/memplan.h"

#include <stdio.h>
#include <string.h>

#include "kernels/pack.h"

/* Context, code of cublasLt and of the CUDA module. */
#define CONTEXT_BYTES ((uint64_t)545 << 20) /* H200, driver 580: 528 to 565 MiB */
enum { PAGE_BYTES = 4096 };
#define GIB ((double)(1 << 30))
#define MIB ((double)(1 << 20))

static int max(int a, int b)
{
	return a > b ? a : b;
}

static struct td_tensor shape(enum td_dtype dtype, int rows, size_t cols)
{
	return (struct td_tensor){ NULL, dtype, rows, (int)cols, (int)cols, 0 };
}

/* A normed row, which 4-bit products may take in 8 bits. */
static struct td_tensor normed(enum td_dtype act, int rows, size_t cols)
{
	struct td_tensor t = shape(act, rows, cols);

	t.eight = act == TD_BF16 && cols % 8 == 0;
	t.ld += t.eight ? (int)(td_act8_bytes((int)cols) / 2) : 0;
	return t;
}

/* Backends with BF16 activations are the CUDA module. In MiB, for a table of ints. */
static struct td_tensor scratch(enum td_dtype act, const struct td_scratch_of *of)
{
	return shape(TD_U8, act == TD_BF16 ? (int)(td_scratch_cuda(of) >> 20) : 0, (size_t)1 << 20);
}

/* ---- buffers ------------------------------------------------------------------------------------------------------------------------------ */

void td_target_buffers(const struct td_target_config *c, const struct td_shm_config *s, enum td_dtype act, struct td_tensor b[TD_TARGET_BUFFERS])
{
	int q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim, v = c->v_heads * c->v_dim;
	int block = s->slots * TD_BLOCK_MAX, rows = max(s->chunk, block);

	b[TD_TB_X] = shape(TD_F32, rows, (size_t)c->hidden); /* the residual stream: rounding it at every layer would be most of the error */
	b[TD_TB_NORM] = normed(act, rows, (size_t)c->hidden);
	/* what goes into a mixer and what comes out of it; then, in their place, the same of the MLP */
	b[TD_TB_WIDE] = shape(act, rows, (size_t)max(max(2 * q + 2 * kv, 2 * c->k_heads * c->k_dim + 2 * v), 2 * c->intermediate));
	b[TD_TB_BA] = shape(TD_F32, rows, 2 * (size_t)c->v_heads);
	b[TD_TB_MIXED] = shape(act, rows, (size_t)max(max(q, v), c->intermediate));
	b[TD_TB_PICKED] = shape(TD_F32, block, (size_t)c->hidden);
	b[TD_TB_PICKED_NORM] = normed(act, block, (size_t)c->hidden);
	b[TD_TB_LOGITS] = shape(TD_F32, block, (size_t)c->vocab);
	b[TD_TB_TABLE] = shape(TD_I32, s->slots, (size_t)(s->context / TD_PAGE));
	b[TD_TB_IDS] = shape(TD_I32, 1, (size_t)max(rows, s->context)); /* of a step, or of a prompt to be counted */
	b[TD_TB_SAMPLING] = shape(TD_U8, s->slots, sizeof(struct td_sampling));
	b[TD_TB_MASKS] = shape(TD_I32, block, (size_t)TD_MASK_WORDS(c->vocab) + 1);
	b[TD_TB_SCRATCH] = scratch(act, &(struct td_scratch_of){ .rows = rows, .logit_rows = block, .vocab = c->vocab,
								 .kv_heads = c->kv_heads, .head_dim = c->head_dim, .k_heads = c->k_heads,
								 .v_heads = c->v_heads, .k_dim = c->k_dim, .v_dim = c->v_dim });
}

/* Rows of a map in pages, as a table of ints can count them. */
static struct td_tensor packed(enum td_dtype act, const struct td_linear *w)
{
	size_t bytes = (act == TD_BF16 ? td_pack_bytes_cuda : td_pack_bytes_cpu)(w->kind, w->out, w->in, w->group);

	return shape(TD_U8, (int)((bytes + PAGE_BYTES - 1) / PAGE_BYTES), PAGE_BYTES);
}

void td_drafter_buffers(const struct td_drafter_config *c, const struct td_shm_config *s, enum td_dtype act, const struct td_linear *head,
			struct td_tensor b[TD_DRAFTER_BUFFERS])
{
	int q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim, block = s->slots * TD_BLOCK_MAX, rows = s->feature_rows;
	int columns = head ? (head->out + 3) / 4 * 4 : c->vocab; /* the head is the target's, of the same vocabulary (td_pair_check); rows of 16 bytes */

	b[TD_DB_FUSED] = shape(TD_F32, rows, (size_t)c->hidden);
	b[TD_DB_CONTEXT_ROW] = normed(act, rows, (size_t)c->hidden);
	b[TD_DB_KV_ROW] = shape(act, rows, 2 * (size_t)kv);
	b[TD_DB_X] = b[TD_DB_TAIL] = shape(TD_F32, block, (size_t)c->hidden);
	b[TD_DB_NORM] = b[TD_DB_TAIL_NORM] = normed(act, block, (size_t)c->hidden);
	b[TD_DB_WIDE] = shape(act, block, (size_t)(q + 2 * kv));
	b[TD_DB_MIXED] = shape(act, block, (size_t)q);
	b[TD_DB_GATE_UP] = shape(act, block, 2 * (size_t)c->intermediate);
	b[TD_DB_INNER] = shape(act, block, (size_t)c->intermediate);
	b[TD_DB_LOGITS] = shape(TD_F32, block, (size_t)columns);
	b[TD_DB_TABLE] = shape(TD_I32, s->slots, (size_t)(s->context / TD_PAGE));
	b[TD_DB_IDS] = shape(TD_I32, 1, (size_t)block);
	b[TD_DB_SAMPLING] = shape(TD_U8, s->slots, sizeof(struct td_sampling));
	b[TD_DB_HEAD] = head ? packed(act, head) : shape(TD_U8, 0, 0);
	b[TD_DB_COLUMNS] = shape(TD_I32, 1, head ? (size_t)head->out : 0);
	b[TD_DB_SCRATCH] = scratch(act, &(struct td_scratch_of){ .rows = block, .logit_rows = block, .vocab = columns,
								 .kv_heads = c->kv_heads, .head_dim = c->head_dim });
}

static uint64_t sum(const struct td_tensor *b, int n)
{
	uint64_t bytes = 0;

	for (int i = 0; i < n; i++)
		bytes += td_buffer_bytes(b[i]);
	return bytes;
}

int td_buffers_take(const char *who, const struct td_ops *ops, struct td_dev *dev, int slots, struct td_tensor *b, int n, struct td_error *err)
{
	for (int i = 0; i < n; i++)
		if (td_buffer_bytes(b[i]) && !(b[i].data = ops->alloc(dev, td_buffer_bytes(b[i]), err)))
			return td_error_prefix(err, "%s: buffers of %d slots (lower engine.slots or engine.chunk)", who, slots);
	if (ops->lend)
		ops->lend(dev, b[n - 1].data, td_buffer_bytes(b[n - 1]));
	return 0;
}

void td_buffers_free(const struct td_ops *ops, struct td_dev *dev, struct td_tensor *b, int n)
{
	if (ops->lend)
		ops->lend(dev, b[n - 1].data, 0);
	for (int i = 0; i < n; i++)
		ops->free(dev, b[i].data);
}

/* ---- caches ------------------------------------------------------------------------------------------------------------------------------- */

struct td_cache_bytes td_target_cache_layout(const struct td_target_config *c, const struct td_shm_config *s, const struct td_pool *pool, enum td_dtype type,
					     char *base, struct td_kv *kv, struct td_gdn_state *gdn)
{
	struct td_cache_bytes used = { 0 };
	size_t act = td_dtype_size(type), slots = (size_t)s->slots, states = (size_t)pool->prefix_states;
	size_t channels = 2 * (size_t)c->k_heads * (size_t)c->k_dim + (size_t)c->v_heads * (size_t)c->v_dim;
	size_t page = (size_t)c->kv_heads * TD_PAGE * (size_t)c->head_dim * act;
	size_t matrix = (size_t)c->v_heads * (size_t)c->k_dim * (size_t)c->v_dim * sizeof(float), tail = TD_CONV_TAIL * channels * act;

#define PLACE(part, field, bytes) \
	do { \
		if (base) \
			(field) = (void *)(base + used.kv + used.state); \
		used.part += ((bytes) + 255) & ~(size_t)255; \
	} while (0)
	for (int i = 0; i < c->layers; i++) {
		if (c->full_attention[i]) {
			PLACE(kv, kv[i].k, page * (size_t)pool->kv_pages);
			PLACE(kv, kv[i].v, page * (size_t)pool->kv_pages);
		} else {
			PLACE(state, gdn[i].s, (slots + states) * matrix);
			PLACE(state, gdn[i].tail, (slots + states) * tail);
			used.prefix += states * (matrix + tail);
			PLACE(state, gdn[i].ring_m, slots * TD_BLOCK_MAX * channels * act);
			PLACE(state, gdn[i].ring_ba, slots * TD_BLOCK_MAX * 2 * (size_t)c->v_heads * sizeof(float));
		}
	}
#undef PLACE
	return used;
}

size_t td_drafter_kv_bytes(const struct td_drafter_config *c, int kv_pages, enum td_dtype act)
{
	return (size_t)c->layers * 2 * (size_t)kv_pages * TD_PAGE * (size_t)c->kv_heads * (size_t)c->head_dim * td_dtype_size(act);
}

enum { CHUNK = 256, CHUNK_GPU = 4096, CHUNK_GPU_ONE = 2048 /* with one slot, which must fit a small card */ };

int td_chunk_auto(const char *device, int slots, int context)
{
	int64_t all = (int64_t)slots * context / CHUNK * CHUNK;
	int most = slots > 1 ? CHUNK_GPU : CHUNK_GPU_ONE;

	if (strcmp(device, "cuda") || all < CHUNK)
		return CHUNK;
	return all < most ? (int)all : most;
}

/* ---- the plan ----------------------------------------------------------------------------------------------------------------------------- */

void td_memplan_target_rest(const struct td_target_config *c, enum td_dtype act, const struct td_shm_config *s, const struct td_pool *pool,
			    struct td_memplan_worker *w)
{
	struct td_cache_bytes cache = td_target_cache_layout(c, s, pool, act, NULL, NULL, NULL);
	struct td_tensor b[TD_TARGET_BUFFERS];

	memset(w, 0, sizeof(*w));
	td_target_buffers(c, s, act, b);
	w->kv = cache.kv;
	w->state = cache.state - cache.prefix;
	w->prefix = cache.prefix;
	w->buffers = sum(b, TD_TARGET_BUFFERS);
}

void td_memplan_drafter_rest(const struct td_drafter_config *c, enum td_dtype act, const struct td_shm_config *s, const struct td_pool *pool,
			     const struct td_linear *head, struct td_memplan_worker *w)
{
	struct td_tensor b[TD_DRAFTER_BUFFERS];

	memset(w, 0, sizeof(*w));
	td_drafter_buffers(c, s, act, head, b);
	w->kv = td_drafter_kv_bytes(c, pool->kv_pages, act);
	w->buffers = sum(b, TD_DRAFTER_BUFFERS);
}

int td_memplan_target(const struct td_ops *ops, const char *dir, int form, const struct td_shm_config *s, const struct td_pool *pool,
		      struct td_memplan_worker *w, struct td_error *err)
{
	struct td_target_config c;
	size_t weights = 0;
	int rc;

	memset(w, 0, sizeof(*w));
	if ((rc = td_target_config_load(dir, &c, err)) || (rc = td_target_weights_plan(ops, dir, form, &weights, NULL, err)))
		return rc;
	td_memplan_target_rest(&c, ops->act, s, pool, w);
	w->weights = weights;
	return 0;
}

int td_memplan_drafter(const struct td_ops *ops, const char *dir, int form, const struct td_shm_config *s, const struct td_pool *pool,
		       const struct td_linear *head, struct td_memplan_worker *w, struct td_error *err)
{
	struct td_drafter_config c;
	size_t weights = 0;
	int rc;

	memset(w, 0, sizeof(*w));
	if ((rc = td_drafter_config_load(dir, &c, err)) || (rc = td_drafter_weights_plan(ops, dir, form, &weights, err)))
		return rc;
	td_memplan_drafter_rest(&c, ops->act, s, pool, head, w);
	w->weights = weights;
	return 0;
}

static uint64_t worker_sum(const struct td_memplan_worker *w)
{
	return w->weights + w->kv + w->state + w->prefix + w->buffers;
}

static int whole(const struct td_memplan_of *of, const struct td_ops *ops, struct td_memplan *p, struct td_error *err)
{
	int rc = td_memplan_target(ops, of->target_dir, of->form, &of->shm, &of->pool, &p->target, err);
	struct td_linear head;
	size_t bytes;

	if (!rc && of->drafter_dir && of->draft_ids)
		rc = td_target_weights_plan(ops, of->target_dir, of->form, &bytes, &head, err);
	head.out = of->draft_ids;
	if (!rc && of->drafter_dir)
		rc = td_memplan_drafter(ops, of->drafter_dir, of->form, &of->shm, &of->pool, of->draft_ids ? &head : NULL, &p->drafter, err);
	if (rc)
		return rc;
	p->exchange = td_exchange_bytes(&of->shm, ops->act);
	p->all = worker_sum(&p->target) + worker_sum(&p->drafter) + p->exchange;
	return 0;
}

int td_memplan_make(const struct td_memplan_of *of, struct td_memplan *p, struct td_error *err)
{
	int cuda = !strcmp(of->device, "cuda");
	const struct td_ops ops = { .name = cuda ? "cuda" : "cpu", .act = cuda ? TD_BF16 : TD_F32, .pack_bytes = cuda ? td_pack_bytes_cuda : td_pack_bytes_cpu };
	struct td_memplan_of more = *of;
	struct td_memplan next = { 0 };
	int rc;

	memset(p, 0, sizeof(*p));
	more.shm.slots++;
	if (of->shm.chunk == td_chunk_auto(of->device, of->shm.slots, of->shm.context)) /* which grows with the slots */
		more.shm.chunk = td_chunk_auto(of->device, more.shm.slots, of->shm.context);
	more.shm.feature_rows = max(max(more.shm.feature_rows, more.shm.chunk), more.shm.slots * TD_BLOCK_MAX);
	more.pool.kv_pages += more.shm.context / TD_PAGE;
	if ((rc = whole(of, &ops, p, err)) || (rc = whole(&more, &ops, &next, err)))
		return rc;
	p->per_slot = next.all - p->all;
	if (cuda) {
		p->target.context = CONTEXT_BYTES;
		p->drafter.context = of->drafter_dir ? CONTEXT_BYTES : 0;
		p->all += p->target.context + p->drafter.context;
	}
	return 0;
}

int td_memplan_states(const struct td_memplan_worker *w, int states, uint64_t free_bytes, uint64_t reserve)
{
	uint64_t rest = worker_sum(w) - w->prefix + reserve, fit;

	if (!states || !w->prefix)
		return states;
	if (rest >= free_bytes)
		return 0;
	fit = (free_bytes - rest) / (w->prefix / (uint64_t)states);
	return fit < (uint64_t)states ? (int)fit : states;
}

int td_memplan_check(const char *who, const struct td_memplan_worker *w, int form, uint64_t free_bytes, uint64_t total_bytes, struct td_error *err)
{
	uint64_t need = worker_sum(w);

	if (need <= free_bytes)
		return 0;
	return td_error_set(err, TD_E_NOMEM,
			    "%s: needs %.2f GiB on the device (weights %.2f, KV cache %.2f, state %.2f, checkpoints %.2f, buffers %.2f), but %.2f of its %.2f GiB are "
			    "free: %s", who,
			    (double)need / GIB, (double)w->weights / GIB, (double)w->kv / GIB, (double)w->state / GIB, (double)w->prefix / GIB,
			    (double)w->buffers / GIB, (double)free_bytes / GIB, (double)total_bytes / GIB,
			    w->weights <= free_bytes ? "lower engine.slots, engine.context or engine.kv_tokens" :
			    form & TD_FORM_BF16 ? "set model.weights = file, or take a smaller model" : "take a smaller model, or end other programs that use the device");
}

/* ---- text --------------------------------------------------------------------------------------------------------------------------------- */

static void worker_text(const char *who, const struct td_memplan_worker *w, char *text)
{
	char state[48] = "", prefix[64] = "", context[48] = "";

	if (w->state)
		snprintf(state, sizeof(state), ", state %.1f", (double)w->state / MIB);
	if (w->prefix)
		snprintf(prefix, sizeof(prefix), ", checkpoints of prefixes %.1f", (double)w->prefix / MIB);
	if (w->context)
		snprintf(context, sizeof(context), ", context about %.0f", (double)w->context / MIB);
	snprintf(text, TD_MEMPLAN_TEXT, "%s: %.1f MiB (weights %.1f, KV cache %.1f%s%s, buffers %.1f%s)", who, (double)(worker_sum(w) + w->context) / MIB,
		 (double)w->weights / MIB, (double)w->kv / MIB, state, prefix, (double)w->buffers / MIB, context);
}

void td_memplan_text(const struct td_memplan *p, char line[TD_MEMPLAN_LINES][TD_MEMPLAN_TEXT])
{
	worker_text("target", &p->target, line[0]);
	line[1][0] = '\0';
	if (p->drafter.weights)
		worker_text("drafter", &p->drafter, line[1]);
	snprintf(line[2], TD_MEMPLAN_TEXT, "in all: %.2f GiB, exchange region %.1f MiB included; one slot more would take %.1f MiB", (double)p->all / GIB,
		 (double)p->exchange / MIB, (double)p->per_slot / MIB);
}
