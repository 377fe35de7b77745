/*
 * check_replay.c: steps that are kept (td_ops.replay) against the same calls made one by one on the same backend, bit for bit.
 *
 * The step is a small model's: ids, embedding, norm, attention of several sequences, a product. Batches come again in nearly the same form: other
 * positions, rows, slots, numbers of sequences; two engines and two kinds of step with other memory; more forms than are kept; memory that was freed in
 * between. A step that is launched with the form of another computes too few rows or spans, or reads the wrong sequences, and differs.
 */
#include "tests/gpu/check.h"

enum { SLOTS = 4, ROWS = SLOTS * TD_BLOCK_MAX, DIM = 64, HEADS = 4, KV_HEADS = 2, HIDDEN = 128, PAGES = 24, CTX = PAGES * TD_PAGE, VOCAB = 300 };
enum { QKV = (2 * HEADS + 2 * KV_HEADS) * DIM };

struct model {
	struct side *s;
	struct td_tensor embed, x, norm, qkv, out;
	struct td_linear w;
	struct td_attn attn;
	struct td_kv kv[2]; /* of two kinds of step */
	int32_t *anchor, *ids;
	struct td_draft *draft;
	const float *norm_w;
};

static void calls(struct model *m, const struct td_batch *b, int kind, int marked)
{
	const struct td_ops *o = m->s->ops;
	struct td_tensor x = td_rows(m->x, 0, b->n_rows), norm = td_rows(m->norm, 0, b->n_rows), qkv = td_rows(m->qkv, 0, b->n_rows);

	o->verify_ids(m->s->dev, b, m->anchor, m->draft, m->ids);
	o->embed(m->s->dev, m->embed, m->ids, x);
	o->rms_norm(m->s->dev, x, m->norm_w, 1e-6f, 1, norm);
	o->linear(m->s->dev, norm, &m->w, qkv, 0);
	if (marked)
		o->mark(m->s->dev, TD_MARK_HEAD);
	o->attention(m->s->dev, &m->attn, &m->kv[kind], b, qkv, td_rows(m->out, 0, b->n_rows));
}

static void make_model(struct model *m, struct side *s)
{
	int32_t table[SLOTS * PAGES], anchor[SLOTS], *ids = host(sizeof(*ids) * ROWS);
	struct td_draft *draft = host(sizeof(*draft) * SLOTS);
	struct td_linear other;
	float *freq = random_values(DIM / 4, 0.3f);
	uint16_t *table16 = host(sizeof(*table16) * VOCAB * HIDDEN);
	size_t cache = (size_t)SLOTS * PAGES * KV_HEADS * TD_PAGE * DIM;

	memset(m, 0, sizeof(*m));
	m->s = s;
	for (int i = 0; i < SLOTS * PAGES; i++)
		table[i] = (i * 7 + 3) % (SLOTS * PAGES);
	for (int i = 0; i < SLOTS; i++) {
		anchor[i] = 5 + i;
		draft[i].n = TD_DRAFT_MAX;
		for (int k = 0; k < TD_DRAFT_MAX; k++)
			draft[i].token[k] = (int32_t)(rnd() % VOCAB);
	}
	make_linear(TD_W_BF16, QKV, HIDDEN, 0, 1, &other, &m->w);
	for (int i = 0; i < VOCAB * HIDDEN; i++)
		table16[i] = td_bf16(rnd_normal());
	m->embed = (struct td_tensor){put(s, table16, sizeof(*table16) * VOCAB * HIDDEN), TD_BF16, VOCAB, HIDDEN, HIDDEN, 0};
	m->x = new_f32(s, ROWS, HIDDEN, HIDDEN);
	m->norm = new_act(s, ROWS, HIDDEN, HIDDEN);
	m->qkv = new_act(s, ROWS, QKV, QKV);
	m->out = new_act(s, ROWS, HEADS * DIM, HEADS * DIM);
	for (int i = 0; i < 2; i++) {
		float *k = random_values(cache, 1);

		m->kv[i] = (struct td_kv){.k = put_act(s, k, 1, (int)cache, (int)cache).data, .v = put_act(s, k, 1, (int)cache, (int)cache).data,
					  .table = put(s, table, sizeof(table)), .max_pages = PAGES};
	}
	m->attn = (struct td_attn){.heads = HEADS, .kv_heads = KV_HEADS, .head_dim = DIM, .rotary_dim = DIM / 2, .eps = 1e-6f, .zero_centred = 1, .gated = 1,
				   .causal = 1, .q_norm = put(s, random_values(DIM, 1), sizeof(float) * DIM), .k_norm = put(s, random_values(DIM, 1), sizeof(float) * DIM),
				   .inv_freq = put(s, freq, sizeof(float) * DIM / 4)};
	m->anchor = put(s, anchor, sizeof(anchor));
	m->ids = put(s, ids, sizeof(*ids) * ROWS);
	m->draft = put(s, draft, sizeof(*draft) * SLOTS);
	m->norm_w = put(s, random_values(HIDDEN, 1), sizeof(float) * HIDDEN);
}

static void seqs(struct td_seq *q, struct td_batch *b, int n, int slot0, int rows, int pos0)
{
	memset(b, 0, sizeof(*b));
	b->seq = q;
	for (int i = 0; i < n; i++) {
		int r = i == n - 1 ? rows : 1 + (rows + i * 5) % TD_BLOCK_MAX;

		q[i] = (struct td_seq){.slot = (slot0 + i) % SLOTS, .row0 = b->n_rows, .rows = r, .pos0 = pos0 + i * 11};
		b->n_rows += r;
		b->max_rows = r > b->max_rows ? r : b->max_rows;
		b->max_ctx = q[i].pos0 + r > b->max_ctx ? q[i].pos0 + r : b->max_ctx;
	}
	b->n_seq = n;
}

static float *rows_of(struct model *m, int n)
{
	struct td_error err;

	if (m->s->ops->sync(m->s->dev, &err))
		die("a step", &err);
	return get_values(m->s, td_rows(m->out, 0, n));
}

/* The step by replay, then by its calls: equal rows? Both write the same keys at the same places. */
static int one(struct model *m, const void *who, int kind, int n, int slot0, int rows, int pos0, int *kept)
{
	struct td_seq q[SLOTS];
	struct td_batch b, again;
	struct td_replay r = {.who = who, .what = 1 + (unsigned)kind, .ctx_max = CTX, .n = 1, .batch = {&b}};
	struct td_error err;
	float *got, *want;
	int real, launched;

	seqs(q, &b, n, slot0, rows, pos0);
	again = b;
	real = b.n_rows;
	m->s->ops->zero(m->s->dev, m->out.data, (size_t)ROWS * HEADS * DIM * td_dtype_size(m->out.dtype));
	launched = m->s->ops->replay(m->s->dev, &r);
	*kept += launched;
	if (!launched) {
		calls(m, &b, kind, 1);
		m->s->ops->replay_end(m->s->dev);
	}
	memset(q, 0x7f, sizeof(q)); /* the caller's again */
	if (m->s->ops->replay_wait(m->s->dev, &err))
		die("replay_wait", &err);
	got = rows_of(m, real);
	seqs(q, &again, n, slot0, rows, pos0);
	m->s->ops->batch_set(m->s->dev, &again);
	calls(m, &again, kind, 0);
	want = rows_of(m, real);
	return same_bits(got, want, (size_t)real * HEADS * DIM);
}

void check_replay(void)
{
	struct model m, other;
	int ok = 1, kept = 0, before;
	struct td_error err;
	double us;

	make_model(&m, &dut);
	make_model(&other, &dut);
	for (int i = 0; i < 3; i++)
		for (int n = 1; n <= 3; n++)
			for (int rows = 1; rows <= TD_BLOCK_MAX; rows += 5)
				ok &= one(&m, &m, 0, n, i, rows, 40 + 13 * i, &kept);
	verdict_bool("replay", "other rows, slots, positions", ok && (self || kept > 0));
	us = dut.ops->elapsed_us(dut.dev, TD_MARK_BEGIN, TD_MARK_END);
	verdict_bool("replay", "times of its marks", us >= dut.ops->elapsed_us(dut.dev, TD_MARK_BEGIN, TD_MARK_HEAD) && us >= 0 && us < 60e6);
	ok = 1;
	for (int i = 0; i < 12; i++)
		ok &= one(&m, &m, 0, 2, i, TD_BLOCK_MAX, (i * 517) % (CTX - 32), &kept);
	verdict_bool("replay", "contexts up and down", ok);
	ok = 1;
	for (int i = 0; i < 9; i++)
		ok &= one(i % 3 ? &m : &other, i % 3 ? &m : &other, i % 2, 1, i, TD_BLOCK_MAX, 100, &kept);
	verdict_bool("replay", "two engines, two kinds of step", ok);
	ok = 1;
	before = kept;
	for (int i = 0; i < 4; i++)
		for (int k = 0; k < 40; k++)
			ok &= one(&m, (char *)&m + k, 1, 1, k, 1, 70, &kept);
	verdict_bool("replay", "many forms", ok && (self || kept - before == 2 * 40));
	ok = 1;
	for (int i = 0; i < 2; i++)
		for (int k = 0; k < 70; k++)
			ok &= one(&m, (char *)&m + 40 + k, 1, 1, k, 1, 70, &kept);
	verdict_bool("replay", "more forms than are kept", ok);
	ok = one(&m, &m, 0, 1, 0, 1, 70, &kept) & one(&m, &m, 0, 1, 0, 1, 70, &kept) & one(&m, &m, 0, 1, 0, 1, 70, &kept);
	dut.ops->free(dut.dev, dut.ops->alloc(dut.dev, 64, &err)); /* whatever was freed, addresses in recorded steps may be others' now */
	before = kept;
	ok &= one(&m, &m, 0, 1, 0, 1, 70, &kept);
	verdict_bool("replay", "forgotten when memory is freed", ok && kept == before);
	drop_all();
}
