/*
 * attention.c: the target's gated attention over the paged cache, the drafter's context rows and its block attention.
 *
 * A query goes through the keys page by page, pages cut at absolute positions, keeping a running maximum, sum and weighted value ("online
 * softmax"). Where the cuts lie depends on the query's position alone, never on the batch, so each row's result is its own.
 *
 * Work: first all new keys and values are normalised, rotated and stored (an item = one row); then an item is one row and one kv head (target), or
 * one sequence and one kv head (drafter: its block's keys are made once and kept in scratch).
 */
#include "kernels/cpu/cpu.h"

struct job {
	struct td_dev *dev;
	const struct td_attn *w;
	const struct td_kv *kv;
	const struct td_batch *b;
	struct td_tensor x, out;
};

enum { GROUP_MAX = 16 };

/* A query's walk over the keys. */
struct walk {
	float max, sum;
	float q[TD__HEAD_MAX], acc[TD__HEAD_MAX]; /* (head_dim) */
};

static int shapes_ok(struct td_dev *dev, const char *op, const struct td_attn *w, const struct td_kv *kv, const struct td_batch *b, struct td_tensor x,
		     int cols)
{
	if (x.dtype != TD_F32 || x.cols != cols || w->head_dim > TD__HEAD_MAX || w->rotary_dim > w->head_dim || w->heads % w->kv_heads ||
	    w->heads / w->kv_heads > GROUP_MAX) {
		td__fail(dev, TD_E_INTERNAL, "%s: rows of %d columns, head_dim %d, rotary_dim %d, %d heads over %d do not fit", op, x.cols, w->head_dim,
			 w->rotary_dim, w->heads, w->kv_heads);
		return 0;
	}
	for (int i = 0; i < b->n_seq; i++) {
		const struct td_seq *s = &b->dev[i];

		if (s->pos0 < 0 || s->pos0 + s->rows > kv->max_pages * TD_PAGE || s->row0 < 0 || s->row0 + s->rows > x.rows) {
			td__fail(dev, TD_E_INTERNAL, "%s: positions %d to %d do not fit %d pages, or rows %d to %d the batch", op, s->pos0, s->pos0 + s->rows,
				 kv->max_pages, s->row0, s->row0 + s->rows);
			return 0;
		}
	}
	return 1;
}

/* Norm of a head and rotary at position pos, qwen35 3.2.3-4, dflash 1.2: y and x may be the same. */
TD__INLINE void norm_rotate(const struct td_attn *w, const float *weight, const float *x, int pos, float *y)
{
	const float one = w->zero_centred ? 1.0f : 0.0f, scale = 1.0f / sqrtf(td__dot(x, x, w->head_dim) / (float)w->head_dim + w->eps);
	const int half = w->rotary_dim / 2;

	for (int i = 0; i < w->head_dim; i++)
		y[i] = x[i] * scale * (one + weight[i]);
	for (int i = 0; i < half; i++) {
		float angle = (float)pos * w->inv_freq[i], c = cosf(angle), s = sinf(angle), a = y[i], b = y[i + half];

		y[i] = a * c - b * s;
		y[i + half] = b * c + a * s;
	}
}

/* Where row `pos` of a kv head lies in a cache. */
static float *cache_row(const struct td_attn *w, const struct td_kv *kv, void *cache, int slot, int pos, int head)
{
	size_t page = (size_t)kv->table[(size_t)slot * (size_t)kv->max_pages + (size_t)(pos / TD_PAGE)];

	return (float *)cache + ((page * (size_t)w->kv_heads + (size_t)head) * TD_PAGE + (size_t)(pos % TD_PAGE)) * (size_t)w->head_dim;
}

/* k|v of one row into the cache. */
TD__INLINE void append_row_body(const struct job *j, const struct td_seq *s, int r, const float *k)
{
	const struct td_attn *w = j->w;
	const float *v = k + w->kv_heads * w->head_dim;
	int pos = s->pos0 + r - s->row0;

	for (int h = 0; h < w->kv_heads; h++) {
		norm_rotate(w, w->k_norm, k + h * w->head_dim, pos, cache_row(w, j->kv, j->kv->k, s->slot, pos, h));
		memcpy(cache_row(w, j->kv, j->kv->v, s->slot, pos, h), v + h * w->head_dim, (size_t)w->head_dim * sizeof(float));
	}
}
TD__DISPATCH(append_row, (const struct job *j, const struct td_seq *s, int r, const float *k), (j, s, r, k))

/* Columns [0, 8 * width) of acc = acc * keep + sum of p[i] * v[i] over n values of `dim`, in registers. */
TD__INLINE void weigh_strip(float *acc, float keep, const float *p, const float *v, int n, int dim, int width)
{
	td__v8 a[8];

	for (int q = 0; q < width; q++)
		a[q] = *(const td__v8_any *)(acc + 8 * q) * keep;
	for (int i = 0; i < n; i++)
		for (int q = 0; q < width; q++)
			a[q] += p[i] * *(const td__v8_any *)(v + (size_t)i * (size_t)dim + 8 * q);
	for (int q = 0; q < width; q++)
		*(td__v8_any *)(acc + 8 * q) = a[q];
}

TD__INLINE void weigh(float *acc, float keep, const float *p, const float *v, int n, int dim)
{
	int c = 0;

	for (; c + 64 <= dim; c += 64)
		weigh_strip(acc + c, keep, p, v + c, n, dim, 8);
	for (; c + 8 <= dim; c += 8)
		weigh_strip(acc + c, keep, p, v + c, n, dim, 1);
	for (; c < dim; c++) {
		float a = acc[c] * keep;

		for (int i = 0; i < n; i++)
			a += p[i] * v[(size_t)i * (size_t)dim + (size_t)c];
		acc[c] = a;
	}
}

/* One run of at most TD_PAGE neighbouring keys and values (n, dim). */
TD__INLINE void visit(struct walk *a, const float *k, const float *v, int n, int dim, float scale)
{
	float p[TD_PAGE], max = a->max, keep, sum = 0;
	int done = 0;

	for (; done + 4 <= n; done += 4)
		td__dot4(a->q, k + (size_t)done * (size_t)dim, dim, p + done);
	for (; done < n; done++)
		p[done] = td__dot(a->q, k + (size_t)done * (size_t)dim, dim);
	for (int i = 0; i < n; i++) {
		p[i] *= scale;
		max = p[i] > max ? p[i] : max;
	}
	keep = td__exp(a->max - max);
	for (int i = 0; i < n; i++)
		p[i] = td__exp(p[i] - max);
	for (int i = 0; i < n; i++)
		sum += p[i];
	weigh(a->acc, keep, p, v, n, dim);
	a->sum = a->sum * keep + sum;
	a->max = max;
}

/* A query before its first key: norm and rotary of x at position pos. */
TD__INLINE void walk_start(struct walk *a, const struct td_attn *w, const float *x, int pos)
{
	a->max = -INFINITY;
	a->sum = 0;
	memset(a->acc, 0, sizeof(a->acc));
	norm_rotate(w, w->q_norm, x, pos, a->q);
}

/* Keys of positions [from, to) in the cache, page by page, for the `n` heads that share them: a page is read from memory once. */
TD__INLINE void visit_cache(struct walk *a, int n, const struct job *j, int slot, int head, int from, int to, float scale)
{
	for (int p = from; p < to;) {
		const float *k = cache_row(j->w, j->kv, j->kv->k, slot, p, head), *v = cache_row(j->w, j->kv, j->kv->v, slot, p, head);
		int end = (p / TD_PAGE + 1) * TD_PAGE;

		end = end < to ? end : to;
		for (int i = 0; i < n; i++)
			visit(&a[i], k, v, end - p, j->w->head_dim, scale);
		p = end;
	}
}

/* ---- target ----------------------------------------------------------------------------------------------------------------------- */

TD__INLINE void target_row_body(const struct job *j, const struct td_seq *s, int r, int kv_head)
{
	const struct td_attn *w = j->w;
	const int dim = w->head_dim, group = w->heads / w->kv_heads, pos = s->pos0 + r - s->row0;
	const int stride = (w->gated ? 2 : 1) * dim, h0 = kv_head * group;
	const float scale = 1.0f / sqrtf((float)dim), *x = td__row(&j->x, r);
	struct walk a[GROUP_MAX];

	for (int g = 0; g < group; g++)
		walk_start(&a[g], w, x + (h0 + g) * stride, pos);
	visit_cache(a, group, j, s->slot, kv_head, 0, pos + 1, scale);
	for (int g = 0; g < group; g++) {
		const float *gate = x + (h0 + g) * stride + dim;
		float *out = td__row(&j->out, r) + (h0 + g) * dim;

		for (int i = 0; i < dim; i++)
			out[i] = a[g].acc[i] / a[g].sum * (w->gated ? td__sigmoid(gate[i]) : 1.0f);
	}
}
TD__DISPATCH(target_row, (const struct job *j, const struct td_seq *s, int r, int kv_head), (j, s, r, kv_head))

static void target_append(void *job, int r, int thread)
{
	const struct job *j = job;
	const struct td_seq *s = td__seq_of(j->b, r);

	(void)thread;
	if (s)
		append_row(j, s, r, td__row(&j->x, r) + (j->w->gated ? 2 : 1) * j->w->heads * j->w->head_dim);
}

static void target_item(void *job, int i, int thread)
{
	const struct job *j = job;
	int r = i / j->w->kv_heads;
	const struct td_seq *s = td__seq_of(j->b, r);

	(void)thread;
	if (s)
		target_row(j, s, r, i % j->w->kv_heads);
}

void td__attention(struct td_dev *dev, const struct td_attn *w, const struct td_kv *kv, const struct td_batch *b, struct td_tensor qkv, struct td_tensor out)
{
	struct job job = { dev, w, kv, b, qkv, out };

	if (!shapes_ok(dev, "attention", w, kv, b, qkv, ((w->gated ? 2 : 1) * w->heads + 2 * w->kv_heads) * w->head_dim))
		return;
	td__parallel(dev, b->n_rows, 4, target_append, &job);
	td__parallel(dev, b->n_rows * w->kv_heads, 1, target_item, &job);
}

/* ---- drafter ---------------------------------------------------------------------------------------------------------------------- */

static void context_item(void *job, int r, int thread)
{
	const struct job *j = job;
	const struct td_seq *s = td__seq_of(j->b, r);

	(void)thread;
	if (s)
		append_row(j, s, r, td__row(&j->x, r));
}

void td__draft_context(struct td_dev *dev, const struct td_attn *w, const struct td_kv *kv, const struct td_batch *b, struct td_tensor kvrow)
{
	struct job job = { .dev = dev, .w = w, .kv = kv, .b = b, .x = kvrow };

	if (shapes_ok(dev, "draft_context", w, kv, b, kvrow, 2 * w->kv_heads * w->head_dim))
		td__parallel(dev, b->n_rows, 4, context_item, &job);
}

/* Which context and block keys slot i sees: dflash 1.4. `k`, `v`: scratch (TD_BLOCK_MAX, head_dim). */
TD__INLINE void draft_block_body(const struct job *j, const struct td_seq *s, int kv_head, float *k, float *v)
{
	const struct td_attn *w = j->w;
	const int dim = w->head_dim, group = w->heads / w->kv_heads;
	const float scale = 1.0f / sqrtf((float)dim);
	struct walk a[GROUP_MAX];

	for (int m = 0; m < s->rows; m++) {
		const float *x = td__row(&j->x, s->row0 + m) + (w->heads + kv_head) * dim;

		norm_rotate(w, w->k_norm, x, s->pos0 + m, k + m * dim);
		memcpy(v + m * dim, x + w->kv_heads * dim, (size_t)dim * sizeof(float));
	}
	for (int i = 0; i < s->rows; i++) {
		int from = w->window ? s->pos0 + i - (w->window - 1) : 0, first = 0, end = w->causal ? i + 1 : s->rows;

		from = from > 0 ? from : 0;
		if (w->window && !w->causal) {
			first = i - (w->window - 1) > 0 ? i - (w->window - 1) : 0;
			end = i + w->window < end ? i + w->window : end;
		}
		for (int g = 0; g < group; g++)
			walk_start(&a[g], w, td__row(&j->x, s->row0 + i) + (kv_head * group + g) * dim, s->pos0 + i);
		visit_cache(a, group, j, s->slot, kv_head, from, s->pos0, scale);
		for (int g = 0; g < group; g++) {
			float *out = td__row(&j->out, s->row0 + i) + (kv_head * group + g) * dim;

			visit(&a[g], k + first * dim, v + first * dim, end - first, dim, scale);
			for (int c = 0; c < dim; c++)
				out[c] = a[g].acc[c] / a[g].sum;
		}
	}
}
TD__DISPATCH(draft_block, (const struct job *j, const struct td_seq *s, int kv_head, float *k, float *v), (j, s, kv_head, k, v))

static void draft_item(void *job, int i, int thread)
{
	const struct job *j = job;
	float *k = j->dev->scratch[thread].mem;

	draft_block(j, &j->b->dev[i / j->w->kv_heads], i % j->w->kv_heads, k, k + TD_BLOCK_MAX * j->w->head_dim);
}

void td__draft_attention(struct td_dev *dev, const struct td_attn *w, const struct td_kv *kv, const struct td_batch *b, struct td_tensor qkv,
			 struct td_tensor out)
{
	struct job job = { dev, w, kv, b, qkv, out };

	if (!shapes_ok(dev, "draft_attention", w, kv, b, qkv, (w->heads + 2 * w->kv_heads) * w->head_dim))
		return;
	for (int i = 0; i < b->n_seq; i++) {
		if (b->dev[i].rows > TD_BLOCK_MAX) {
			td__fail(dev, TD_E_INTERNAL, "draft_attention: a block of %d rows", b->dev[i].rows);
			return;
		}
	}
	if (!td__scratch_need(dev, 2 * TD_BLOCK_MAX * (size_t)w->head_dim * sizeof(float)))
		td__parallel(dev, b->n_seq * w->kv_heads, 1, draft_item, &job);
}
