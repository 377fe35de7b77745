/*
 * check_bench.c: what only a bench asks of the device: assumed acceptance, equal to the CPU's to the bit, and roofs that are measured at all.
 */
#include "kernels/assume.h"
#include "tests/gpu/check.h"

enum { SLOTS = 6, VOCAB = 300 };

static void assumed(void)
{
	static const uint64_t seed[SLOTS] = {0, 33, 50, 160, 61, 9};
	struct td_seq seq[SLOTS] = {{.rows = 16, .pos0 = 5}, {.rows = 16, .pos0 = 101}, {.rows = 1, .pos0 = 7}, {.rows = 16, .pos0 = 3}, {.rows = 4, .pos0 = 250},
				    {.rows = 9, .pos0 = 8}};
	struct td_sampling *s = host(SLOTS * sizeof(*s));
	struct td_draft *d = host(SLOTS * sizeof(*d));
	struct td_batch br, bd;
	struct td_tensor lr, ld;
	int rows = 0, changed = 0, want = 0;
	float *l, *a, *b;

	for (int i = 0; i < SLOTS; i++) {
		int n = td_assumed(seed[i], seq[i].pos0, seq[i].rows);

		seq[i].slot = SLOTS - 1 - i;
		seq[i].row0 = rows;
		rows += seq[i].rows;
		s[seq[i].slot].seed = seed[i];
		for (int k = 0; k < TD_DRAFT_MAX; k++)
			d[seq[i].slot].token[k] = (int32_t)(rnd() % VOCAB);
		want += n < seq[i].rows - 1 ? n : seq[i].rows - 1;
	}
	d[seq[3].slot].token[2] = -1; /* no id at all: left out */
	d[seq[3].slot].token[3] = VOCAB;
	want -= 2;
	l = random_values((size_t)rows * VOCAB, 1);
	lr = put_f32(&ref, l, rows, VOCAB, VOCAB + 3);
	ld = put_f32(&dut, l, rows, VOCAB, VOCAB + 3);
	make_batch(&ref, &br, seq, SLOTS);
	make_batch(&dut, &bd, seq, SLOTS);
	ref.ops->assume(ref.dev, &br, lr, put(&ref, d, SLOTS * sizeof(*d)), put(&ref, s, SLOTS * sizeof(*s)));
	dut.ops->assume(dut.dev, &bd, ld, put(&dut, d, SLOTS * sizeof(*d)), put(&dut, s, SLOTS * sizeof(*s)));
	a = get_values(&ref, lr);
	b = get_values(&dut, ld);
	for (int i = 0; i < rows * VOCAB; i++)
		changed += memcmp(&a[i], &l[i], 4) != 0;
	verdict_bool("assume", "as many logits change as the seeds say", changed == want);
	verdict_bool("assume", "equal to the CPU's", same_bits(a, b, (size_t)rows * VOCAB));
	drop_all();
}

static void roofs(void)
{
	const struct td_linear shape[] = {{.in = 128, .out = 96}, {.in = 64, .out = 256}, {.in = 256, .out = 64}};
	struct td_error err = {0};
	double us = 0;

	if (!dut.ops->roof_read)
		return;
	if (dut.ops->roof_read(dut.dev, (size_t)1 << 18, &us, &err))
		die("reading memory", &err);
	verdict_bool("roof", "reading takes time", us > 0);
	us = 0;
	if (dut.ops->roof_dense(dut.dev, shape, 3, 16, &us, &err))
		die("products", &err);
	verdict_bool("roof", "products take time", us > 0);
	verdict_bool("roof", "memory that can't be had is told", dut.ops->roof_read(dut.dev, (size_t)1 << 46, &us, &err) == TD_E_NOMEM);
	if (dut.ops->sync(dut.dev, &err))
		die("sync", &err);
}

void check_bench(void)
{
	assumed();
	roofs();
}
