/*
 * gdn.c: the Gated DeltaNet layer: causal convolution, L2 norms, gates, delta rule, gated norm (qwen35 3.4, 3.5, 3.8).
 *
 * Work: an item is one sequence and one key head with the value heads that use it; its channels, state, ring and tail columns are nobody else's.
 * The item gathers its channels q|k|v side by side ("local" rows), so the convolution runs over one short row.
 *
 *	replay     step() over the ring's rows, on the state itself; then s and tail are written: the only place a verify step writes state
 *	commit     chunk() over segments that end at absolute positions that are multiples of TD__CHUNK, on the state itself; tail is written
 *	otherwise  rows go to the ring, step() runs on a copy of the state, nothing else is kept
 *
 * Why two forms. step() is the recurrence in the order of the formulas. Replay and new rows both use it, so speculation on and off give the same
 * bits. chunk() solves 64 tokens at once by matrix products for prefill; it sums in another order, and since its cuts are absolute a prompt fed in
 * chunks of multiples of 64 gives the same bits as one fed whole. Short segments are padded with k = 0, beta = 0, g = 0, which change
 * nothing, so that every product has the same shape.
 *
 * What must never happen: exp(-G) of a cumulative decay (it overflows); differences are formed first and masked before exp.
 */
#include <cblas.h>

#include "kernels/cpu/cpu.h"

enum { N = TD__CHUNK, TAIL = TD_CONV_TAIL, TAPS = TD_CONV_TAIL + 1, STRIP = 32 };

struct job {
	struct td_dev *dev;
	const struct td_gdn *w;
	const struct td_gdn_state *st;
	const struct td_batch *b;
	struct td_tensor qkvz, ba, out;
	int channels, group, local; /* C; value heads of a key head; columns of a local row */
};

/* One item's view of its head and its part of the thread's scratch. */
struct head {
	const struct job *j;
	const struct td_seq *s;
	int k_head;
	float *conv; /* (TAPS, local), transposed weights */
	float *raw; /* (TAIL + N, local): tail, then the rows at hand */
	float *y; /* (N, local): after convolution, silu and norms */
	float *state; /* (group, k_dim, v_dim): copy, for rows that are not committed */
	float *kk, *qk; /* (N, N) */
	float *d, *o; /* (N, v_dim) */
	float *kd; /* (N, k_dim) */
};

static size_t head_floats(const struct job *j)
{
	size_t local = (size_t)j->local, kd = (size_t)j->w->k_dim, vd = (size_t)j->w->v_dim;

	return (TAPS + TAIL + N + N) * local + (size_t)j->group * kd * vd + 2 * N * N + 2 * N * vd + N * kd;
}

static void head_place(struct head *h, float *mem)
{
	const struct job *j = h->j;
	size_t local = (size_t)j->local, kd = (size_t)j->w->k_dim, vd = (size_t)j->w->v_dim;

	h->conv = mem;
	h->raw = h->conv + TAPS * local;
	h->y = h->raw + (TAIL + N) * local;
	h->state = h->y + N * local;
	h->kk = h->state + (size_t)j->group * kd * vd;
	h->qk = h->kk + N * N;
	h->d = h->qk + N * N;
	h->o = h->d + N * vd;
	h->kd = h->o + N * vd;
}

/* The three runs of this head's channels in a row of C: q, k, v. Calls for each: (column in C, column in the local row, width). */
#define EACH_RUN(h, from, to, n) \
	for (int run_ = 0, from, to, n; run_ < 3 && (run_of((h), run_, &from, &to, &n), 1); run_++)

TD__INLINE void run_of(const struct head *h, int run, int *from, int *to, int *n)
{
	const struct td_gdn *w = h->j->w;
	const int vn = h->j->group * w->v_dim;

	*n = run == 2 ? vn : w->k_dim;
	*to = run * w->k_dim;
	*from = run == 2 ? 2 * w->k_heads * w->k_dim + h->k_head * vn : run * w->k_heads * w->k_dim + h->k_head * w->k_dim;
}

static void gather(const struct head *h, const float *row, float *local)
{
	EACH_RUN(h, from, to, n)
		memcpy(local + to, row + from, (size_t)n * sizeof(float));
}

static void scatter(const struct head *h, const float *local, float *row)
{
	EACH_RUN(h, from, to, n)
		memcpy(row + from, local + to, (size_t)n * sizeof(float));
}

static void gather_conv(struct head *h)
{
	EACH_RUN(h, from, to, n)
		for (int c = 0; c < n; c++)
			for (int i = 0; i < TAPS; i++)
				h->conv[i * h->j->local + to + c] = h->j->w->conv[(size_t)(from + c) * TAPS + (size_t)i];
}

/* y of the row whose oldest input is raw[0]: convolution, silu, L2 norms of q and k, scale of q (3.4.2, 3.4.4). */
TD__INLINE void conv_row(const struct head *h, const float *raw, float *y)
{
	const int local = h->j->local, kd = h->j->w->k_dim;
	const float *w = h->conv;
	float q, k;

	for (int c = 0; c < local; c++) {
		float v = w[c] * raw[c];

		v += w[local + c] * raw[local + c];
		v += w[2 * local + c] * raw[2 * local + c];
		v += w[3 * local + c] * raw[3 * local + c];
		y[c] = v * td__sigmoid(v);
	}
	q = 1.0f / sqrtf(td__dot(y, y, kd) + 1e-6f) * (1.0f / sqrtf((float)kd));
	k = 1.0f / sqrtf(td__dot(y + kd, y + kd, kd) + 1e-6f);
	for (int c = 0; c < kd; c++) {
		y[c] *= q;
		y[kd + c] *= k;
	}
}

/* beta and g of a value head from its b and a (3.4.5). */
static void gates(const struct td_gdn *w, int v_head, const float *ba, float *beta, float *g)
{
	float u = ba[w->v_heads + v_head] + w->dt_bias[v_head];

	*beta = 1.0f / (1.0f + expf(-ba[v_head]));
	*g = -expf(w->a_log[v_head]) * (u > 20.0f ? u : log1pf(expf(u)));
}

/*
 * The recurrence (3.4.6) on STRIP columns of one state, whose sums stay in registers. The decay is taken out of the first sum, so the state is only
 * read there, and applied with the write.
 */
TD__INLINE void step_strip(float *s, int ld, int k_dim, const float *q, const float *k, const float *v, float beta, float decay, float *o)
{
	td__v8 d[STRIP / 8] = { 0 }, out[STRIP / 8] = { 0 };

	for (int i = 0; i < k_dim; i++)
		for (int c = 0; c < STRIP / 8; c++)
			d[c] += *(const td__v8_any *)(s + (size_t)i * (size_t)ld + 8 * c) * k[i];
	for (int c = 0; c < STRIP / 8; c++)
		d[c] = beta * (*(const td__v8_any *)(v + 8 * c) - decay * d[c]);
	for (int i = 0; i < k_dim; i++)
		for (int c = 0; c < STRIP / 8; c++) {
			td__v8_any *at = (td__v8_any *)(s + (size_t)i * (size_t)ld + 8 * c);
			td__v8 new = *at * decay + k[i] * d[c];

			*at = new;
			out[c] += new * q[i];
		}
	for (int c = 0; c < STRIP / 8; c++)
		*(td__v8_any *)(o + 8 * c) = out[c];
}

/* The same on one column, for what is left of a v_dim that is no multiple of STRIP. */
TD__INLINE void step_column(float *s, int ld, int k_dim, const float *q, const float *k, float v, float beta, float decay, float *o)
{
	float d = 0;

	*o = 0;
	for (int i = 0; i < k_dim; i++)
		d += s[(size_t)i * (size_t)ld] * k[i];
	d = beta * (v - decay * d);
	for (int i = 0; i < k_dim; i++) {
		float *at = s + (size_t)i * (size_t)ld;

		*at = *at * decay + k[i] * d;
		*o += *at * q[i];
	}
}

/* One token of one value head on state s (k_dim, v_dim); o (v_dim). */
TD__INLINE void step(const struct td_gdn *w, float *s, const float *q, const float *k, const float *v, float beta, float g, float *o)
{
	const int n = w->v_dim;
	const float decay = expf(g);
	int c = 0;

	for (; c + STRIP <= n; c += STRIP)
		step_strip(s + c, n, w->k_dim, q, k, v + c, beta, decay, o + c);
	for (; c < n; c++)
		step_column(s + c, n, w->k_dim, q, k, v[c], beta, decay, o + c);
}

/* Gated norm of one value head's output into the row (3.1 rmsg). */
TD__INLINE void emit(const struct head *h, int row, int v_head, const float *o)
{
	const struct td_gdn *w = h->j->w;
	const int n = w->v_dim;
	const float *z = td__row(&h->j->qkvz, row) + h->j->channels + v_head * n;
	float *out = td__row(&h->j->out, row) + v_head * n;
	const float scale = 1.0f / sqrtf(td__dot(o, o, n) / (float)n + w->eps);

	for (int c = 0; c < n; c++)
		out[c] = o[c] * scale * w->norm[c] * (z[c] * td__sigmoid(z[c]));
}

/* All value heads of one row whose inputs are raw[TAIL] and before, by the recurrence. `row` < 0: no output. */
TD__INLINE void step_row_body(struct head *h, float *state, const float *ba, int row)
{
	const struct td_gdn *w = h->j->w;
	const int kd = w->k_dim, vd = w->v_dim;

	conv_row(h, h->raw, h->y);
	for (int i = 0; i < h->j->group; i++) {
		const int v_head = h->k_head * h->j->group + i;
		float beta, g;

		gates(w, v_head, ba, &beta, &g);
		step(w, state + (size_t)i * (size_t)kd * (size_t)vd, h->y, h->y + kd, h->y + 2 * kd + i * vd, beta, g, h->o);
		if (row >= 0)
			emit(h, row, v_head, h->o);
	}
	memmove(h->raw, h->raw + h->j->local, sizeof(float) * TAIL * (size_t)h->j->local);
}
TD__DISPATCH(step_row, (struct head *h, float *state, const float *ba, int row), (h, state, ba, row))

/* One value head over the n rows in y, qwen35 3.5. With the decays inside the products: D solves (I + A) D = beta (V - exp(G) K S). */
TD__INLINE void chunk_head(struct head *h, float *s, int i, int n, int row0)
{
	const struct td_gdn *w = h->j->w;
	const int kd = w->k_dim, vd = w->v_dim, local = h->j->local, v_head = h->k_head * h->j->group + i;
	const float *q = h->y, *k = h->y + kd, *v = h->y + 2 * kd + i * vd;
	float beta[N] = { 0 }, sum[N], a[N * N], p[N * N], last;

	for (int t = 0; t < N; t++) {
		float g = 0;

		if (t < n)
			gates(w, v_head, td__row(&h->j->ba, row0 + t), &beta[t], &g);
		sum[t] = (t ? sum[t - 1] : 0) + g;
	}
	for (int t = 0; t < N; t++)
		for (int u = 0; u < N; u++) {
			float decay = u <= t ? td__exp(sum[t] - sum[u]) : 0;

			a[t * N + u] = u < t ? beta[t] * h->kk[t * N + u] * decay : 0;
			p[t * N + u] = h->qk[t * N + u] * decay;
		}
	cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, N, vd, kd, 1, k, local, s, vd, 0, h->d, vd);
	cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, N, vd, kd, 1, q, local, s, vd, 0, h->o, vd);
	for (int t = 0; t < N; t++) {
		float e = td__exp(sum[t]);

		for (int c = 0; c < vd; c++) {
			h->d[t * vd + c] = t < n ? beta[t] * (v[t * local + c] - e * h->d[t * vd + c]) : 0;
			h->o[t * vd + c] *= e;
		}
	}
	cblas_strsm(CblasRowMajor, CblasLeft, CblasLower, CblasNoTrans, CblasUnit, N, vd, 1, a, N, h->d, vd);
	cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, N, vd, N, 1, p, N, h->d, vd, 1, h->o, vd);
	last = sum[N - 1];
	for (int t = 0; t < N; t++) {
		float e = td__exp(last - sum[t]);

		for (int c = 0; c < kd; c++)
			h->kd[t * kd + c] = e * k[t * local + c];
	}
	cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, kd, vd, N, 1, h->kd, kd, h->d, vd, td__exp(last), s, vd);
	for (int t = 0; t < n; t++)
		emit(h, row0 + t, v_head, h->o + t * vd);
}

/* The n <= TD__CHUNK rows that stand in raw after the tail, from batch row row0 on. */
TD__INLINE void chunk_body(struct head *h, float *state, int n, int row0)
{
	const struct td_gdn *w = h->j->w;
	const int kd = w->k_dim, local = h->j->local;

	for (int t = 0; t < n; t++)
		conv_row(h, h->raw + t * local, h->y + t * local);
	memset(h->y + n * local, 0, sizeof(float) * (size_t)(N - n) * (size_t)local);
	cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, N, N, kd, 1, h->y + kd, local, h->y + kd, local, 0, h->kk, N);
	cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, N, N, kd, 1, h->y, local, h->y + kd, local, 0, h->qk, N);
	for (int i = 0; i < h->j->group; i++)
		chunk_head(h, state + (size_t)i * (size_t)kd * (size_t)w->v_dim, i, n, row0);
	memmove(h->raw, h->raw + n * local, sizeof(float) * TAIL * (size_t)local);
}
TD__DISPATCH(chunk, (struct head *h, float *state, int n, int row0), (h, state, n, row0))

static void commit_rows(struct head *h, float *state)
{
	const struct td_seq *s = h->s;

	for (int r = 0, n; r < s->rows; r += n) {
		int pos = s->pos0 + r, to_cut = N - pos % N;

		n = s->rows - r < to_cut ? s->rows - r : to_cut;
		for (int t = 0; t < n; t++)
			gather(h, td__row(&h->j->qkvz, s->row0 + r + t), h->raw + (TAIL + t) * h->j->local);
		chunk(h, state, n, s->row0 + r);
	}
}

/* Rows whose fate is not known yet: their raw inputs go to the ring. */
static void try_rows(struct head *h, const float *state)
{
	const struct job *j = h->j;
	const struct td_seq *s = h->s;
	const int vh = j->w->v_heads, v0 = h->k_head * j->group;
	float *ring_m = (float *)j->st->ring_m + (size_t)s->slot * TD_BLOCK_MAX * (size_t)j->channels;
	float *ring_ba = j->st->ring_ba + (size_t)s->slot * TD_BLOCK_MAX * 2 * (size_t)vh;

	memcpy(h->state, state, sizeof(float) * (size_t)j->group * (size_t)j->w->k_dim * (size_t)j->w->v_dim);
	for (int r = 0; r < s->rows; r++) {
		const float *ba = td__row(&j->ba, s->row0 + r);
		float *local = h->raw + TAIL * j->local;

		gather(h, td__row(&j->qkvz, s->row0 + r), local);
		scatter(h, local, ring_m + (size_t)r * (size_t)j->channels);
		memcpy(ring_ba + r * 2 * vh + v0, ba + v0, sizeof(float) * (size_t)j->group);
		memcpy(ring_ba + r * 2 * vh + vh + v0, ba + vh + v0, sizeof(float) * (size_t)j->group);
		step_row(h, h->state, ba, s->row0 + r);
	}
}

static void item(void *job, int index, int thread)
{
	const struct job *j = job;
	const struct td_gdn *w = j->w;
	struct head h = { .j = j, .s = &j->b->dev[index / w->k_heads], .k_head = index % w->k_heads };
	const struct td_seq *s = h.s;
	const size_t slot = (size_t)s->slot, c = (size_t)j->channels;
	float *state = j->st->s + (slot * (size_t)w->v_heads + (size_t)(h.k_head * j->group)) * (size_t)w->k_dim * (size_t)w->v_dim;
	float *tail = (float *)j->st->tail + slot * TAIL * c;

	head_place(&h, j->dev->scratch[thread].mem);
	gather_conv(&h);
	for (int i = 0; i < TAIL; i++)
		gather(&h, tail + (size_t)i * c, h.raw + i * j->local);
	for (int r = 0; r < s->replay; r++) {
		gather(&h, (const float *)j->st->ring_m + (slot * TD_BLOCK_MAX + (size_t)r) * c, h.raw + TAIL * j->local);
		step_row(&h, state, j->st->ring_ba + (slot * TD_BLOCK_MAX + (size_t)r) * 2 * (size_t)w->v_heads, -1);
	}
	if (s->commit)
		commit_rows(&h, state);
	if (s->commit || s->replay)
		for (int i = 0; i < TAIL; i++)
			scatter(&h, h.raw + i * j->local, tail + (size_t)i * c);
	if (!s->commit)
		try_rows(&h, state);
}

void td__gdn(struct td_dev *dev, const struct td_gdn *w, const struct td_gdn_state *st, const struct td_batch *b, struct td_tensor qkvz, struct td_tensor ba,
	     struct td_tensor out)
{
	struct job job = { dev, w, st, b, qkvz, ba, out, .channels = 2 * w->k_heads * w->k_dim + w->v_heads * w->v_dim };

	if (w->v_heads % w->k_heads || w->k_dim > TD__HEAD_MAX || w->v_dim > TD__HEAD_MAX || qkvz.dtype != TD_F32 || ba.dtype != TD_F32 ||
	    qkvz.cols != job.channels + w->v_heads * w->v_dim || ba.cols != 2 * w->v_heads || out.cols != w->v_heads * w->v_dim) {
		td__fail(dev, TD_E_INTERNAL, "gdn: %d key and %d value heads of %d and %d do not fit rows of %d, %d and %d", w->k_heads, w->v_heads, w->k_dim,
			 w->v_dim, qkvz.cols, ba.cols, out.cols);
		return;
	}
	for (int i = 0; i < b->n_seq; i++) {
		const struct td_seq *s = &b->dev[i];

		if (s->replay < 0 || s->replay > TD_BLOCK_MAX || (!s->commit && s->rows > TD_BLOCK_MAX)) {
			td__fail(dev, TD_E_INTERNAL, "gdn: %d rows to replay and %d new ones in a ring of %d", s->replay, s->rows, TD_BLOCK_MAX);
			return;
		}
		if (s->pos0 < 0 || s->row0 < 0 || s->rows < 0 || s->row0 + s->rows > qkvz.rows) {
			td__fail(dev, TD_E_INTERNAL, "gdn: rows %d to %d of %d", s->row0, s->row0 + s->rows, qkvz.rows);
			return;
		}
	}
	job.group = w->v_heads / w->k_heads;
	job.local = 2 * w->k_dim + job.group * w->v_dim;
	if (!td__scratch_need(dev, head_floats(&job) * sizeof(float)))
		td__parallel(dev, b->n_seq * w->k_heads, 1, item, &job);
}
