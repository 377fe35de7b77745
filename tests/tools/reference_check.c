/*
 * reference_check.c: the engines against values of an independent float32 implementation.
 *
 *   reference_check --target DIR --drafter DIR --tokenizer FILE [--device cpu|cuda] [--weights file|bf16] [--head bf16|int4|rescored] [--activations bf16|int8]
 *                   [--margin 0.01] [--draft-margin M] [--tolerance 1e-3] [--acceptance 0.03] [--limit N] [--tokens N] JSON
 *
 * JSON: an array of prompts with text, prompt_ids, output_ids, margins, draft_steps (pos, draft, accepted, min_margin), top. Beside it, if there, a
 * .safetensors of the same name with NAME.logits, .features, .hidden0.., .draft_logits of the last prompt rows. Every output token must agree
 * while its margin exceeds --margin; every draft and accepted count of a step whose margins do (exceed --draft-margin, which is --margin
 * unless given; those between the two that differ are counted); every tensor row within --tolerance
 * (norm of the difference over norm of the reference). A token or draft under the margin may differ: then the comparison of that prompt ends there
 * (said in the summary). With --acceptance, the mean acceptance length over the prompts, each up to there, must lie so near the reference's mean, as a
 * part of it.
 * --tokens: only so many of each prompt. On a device that counts its allocations, none may be made after the first prompt. Prints the first difference of each prompt and exits 1 if there is any.
 */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/bf16.h"
#include "engine/safetensors.h"
#include "engine/tokenizer.h"
#include "tests/lib/pair.h"

enum { ROWS_MAX = 1024, STEPS_MAX = 4096, SPARE = 64 };

struct grab { /* a tensor seen by a probe: the last rows of the first pass over the prompt */
	float *data; /* (rows, cols) */
	int rows, cols;
};

struct check {
	struct pair pair;
	struct td_tokenizer *tok;
	struct td_st *st;
	double margin, draft_margin, tolerance, acceptance;
	/* probes of the running prompt */
	int want_rows, tokens_max;
	struct grab hidden[TD_LAYERS_MAX + 1], features, logits, draft_logits;
	/* steps of the running prompt */
	int n_steps, pos[STEPS_MAX], accepted[STEPS_MAX], drafts[STEPS_MAX][TD_DRAFT_MAX], n_drafts[STEPS_MAX];
	struct td_draft last;
	int have_last;
	/* totals */
	int failures, tokens, steps, tensors, ended_early, close; /* close: drafts that differ between the two margins */
	double worst, lengths, lengths_want; /* sums of acceptance lengths */
	int n_lengths;
	uint64_t allocations; /* when the first prompt was done */
	char worst_name[64];
};

static void fail(struct check *c, const char *name, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void fail(struct check *c, const char *name, const char *fmt, ...)
{
	va_list ap;

	printf("%s: ", name);
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	printf("\n");
	c->failures++;
}

/* ---- probes ------------------------------------------------------------------------------------------------------------------------- */

/* Appends the tensor's rows until the prompt's rows are complete: later passes (drafts, verify) are not looked at. */
static void grab_rows(struct check *c, struct grab *g, struct td_tensor t, int want)
{
	size_t size = td_dtype_size(t.dtype);
	char *raw;
	struct td_error err;

	if (g->rows >= want)
		return;
	if (!g->data) {
		g->cols = t.cols;
		g->data = malloc(sizeof(float) * (size_t)ROWS_MAX * (size_t)t.cols);
	}
	raw = malloc((size_t)t.cols * size);
	for (int r = 0; r < t.rows && g->rows < want; r++) {
		if (c->pair.ops->download(c->pair.dev, raw, (char *)t.data + (size_t)r * (size_t)t.ld * size, (size_t)t.cols * size, &err)) {
			fprintf(stderr, "%s\n", err.text);
			exit(1);
		}
		for (int i = 0; i < t.cols; i++)
			g->data[(size_t)g->rows * (size_t)g->cols + (size_t)i] = size == 4 ? ((float *)raw)[i] : td_bf16_float(((uint16_t *)raw)[i]);
		g->rows++;
	}
	free(raw);
}

static void target_probe(void *ctx, const char *what, int index, struct td_tensor t)
{
	struct check *c = ctx;

	if (!strcmp(what, "hidden"))
		grab_rows(c, &c->hidden[index], t, c->want_rows);
	else if (!strcmp(what, "features"))
		grab_rows(c, &c->features, t, c->want_rows);
	else
		grab_rows(c, &c->logits, t, c->want_rows);
}

static void drafter_probe(void *ctx, const char *what, struct td_tensor t)
{
	struct check *c = ctx;

	(void)what;
	grab_rows(c, &c->draft_logits, t, t.rows < TD_DRAFT_MAX ? t.rows : TD_DRAFT_MAX);
}

static void grab_clear(struct check *c, int rows)
{
	struct grab *one[] = {&c->features, &c->logits, &c->draft_logits};

	for (int i = 0; i <= TD_LAYERS_MAX; i++) {
		free(c->hidden[i].data);
		c->hidden[i] = (struct grab){0};
	}
	for (int i = 0; i < 3; i++) {
		free(one[i]->data);
		*one[i] = (struct grab){0};
	}
	c->want_rows = rows;
}

/* ---- hooks -------------------------------------------------------------------------------------------------------------------------- */

static void on_draft(void *ctx, int slot, const struct td_draft *draft)
{
	struct check *c = ctx;

	(void)slot;
	c->last = *draft;
	c->have_last = 1;
}

static void on_commit(void *ctx, const struct td_record *rec)
{
	struct check *c = ctx;
	int s = c->n_steps;

	if (!rec->reason || !c->have_last || s == STEPS_MAX)
		return;
	c->pos[s] = (int)rec->a - 1;
	c->accepted[s] = rec->accepted;
	c->n_drafts[s] = c->last.n;
	memcpy(c->drafts[s], c->last.token, sizeof(c->drafts[s]));
	c->n_steps++;
	c->have_last = 0;
}

/* ---- comparisons -------------------------------------------------------------------------------------------------------------------- */

static void check_tensor(struct check *c, const char *prompt, const char *what, const struct grab *g)
{
	char name[128];
	struct td_st_tensor *t;

	snprintf(name, sizeof(name), "%s.%s", prompt, what);
	t = c->st ? td_st_find(c->st, name) : NULL;
	if (!t)
		return;
	if (t->dtype != TD_F32 || t->n_dims != 2 || t->dim[1] != g->cols || t->dim[0] > g->rows) {
		fail(c, prompt, "%s: the reference has %lld x %lld values, this run %d x %d", what, (long long)t->dim[0], (long long)t->dim[1], g->rows, g->cols);
		return;
	}
	c->tensors++;
	for (int r = 0; r < t->dim[0]; r++) {
		const float *got = g->data + (size_t)(g->rows - (int)t->dim[0] + r) * (size_t)g->cols;
		double diff = 0, norm = 0;

		for (int i = 0; i < g->cols; i++) {
			float ref;

			memcpy(&ref, (const char *)t->data + ((size_t)r * (size_t)g->cols + (size_t)i) * sizeof(float), sizeof(ref));
			diff += ((double)got[i] - ref) * ((double)got[i] - ref);
			norm += (double)ref * ref;
		}
		double rel = sqrt(diff) / (sqrt(norm) + 1e-30);

		if (!(rel <= c->worst)) {
			c->worst = rel;
			snprintf(c->worst_name, sizeof(c->worst_name), "%.40s row %d", name, r);
		}
		if (!(rel <= c->tolerance)) {
			fail(c, prompt, "%s row %d: relative error %.3g exceeds %.3g", what, r, rel, c->tolerance);
			return;
		}
	}
}

static void check_tensors(struct check *c, const char *prompt)
{
	char what[32];

	check_tensor(c, prompt, "features", &c->features);
	check_tensor(c, prompt, "logits", &c->logits);
	check_tensor(c, prompt, "draft_logits", &c->draft_logits);
	for (int i = 0; i <= c->pair.tw->cfg.layers; i++) {
		snprintf(what, sizeof(what), "hidden%d", i);
		check_tensor(c, prompt, what, &c->hidden[i]);
	}
}

static int ids_of(const json_t *a, int32_t *ids, int max)
{
	int n = (int)json_array_size(a);

	for (int i = 0; i < n && i < max; i++)
		ids[i] = (int32_t)json_integer_value(json_array_get(a, (size_t)i));
	return n < max ? n : max;
}

/* Position of the first output token that may legitimately differ from the reference on, or n. */
static int check_output(struct check *c, const char *name, const struct pair_request *r, const json_t *p, const int32_t *want, int n_want)
{
	const json_t *margins = json_object_get(p, "margins");

	for (int i = 0; i < n_want; i++) {
		double margin = json_number_value(json_array_get(margins, (size_t)i));

		if (i < r->n_out && r->out[i] == want[i]) {
			c->tokens++;
			continue;
		}
		if (margin <= c->margin) {
			c->ended_early++;
			return i;
		}
		fail(c, name, "output token %d is %d, the reference has %d (margin %.4f)", i, i < r->n_out ? r->out[i] : -1, want[i], margin);
		return i;
	}
	if (r->n_out != n_want)
		fail(c, name, "%d output tokens, the reference has %d", r->n_out, n_want);
	return n_want;
}

/* Steps up to the anchor position `limit`, beyond which the outputs differ legitimately. */
static void check_steps(struct check *c, const char *name, const json_t *p, int limit)
{
	size_t i;
	json_t *step;
	int s = 0;

	json_array_foreach(json_object_get(p, "draft_steps"), i, step) {
		int pos = (int)json_integer_value(json_object_get(step, "pos")), accepted = (int)json_integer_value(json_object_get(step, "accepted"));
		double margin = json_number_value(json_object_get(step, "min_margin"));
		int32_t want[TD_DRAFT_MAX];
		int n = ids_of(json_object_get(step, "draft"), want, TD_DRAFT_MAX);

		while (s < c->n_steps && c->pos[s] < pos)
			s++;
		if (pos + accepted + 1 > limit)
			return;
		if (s == c->n_steps || c->pos[s] != pos) {
			if (!i || margin <= c->margin)
				continue;
			/* An earlier step under the margin shifted the steps; they may meet again. */
			c->ended_early++;
			continue;
		}
		for (int k = 0; k < n; k++) {
			if (c->drafts[s][k] == want[k])
				continue;
			if (margin > c->draft_margin) {
				fail(c, name, "step at %d: draft %d is %d, the reference has %d (least margin %.4f)", pos, k, c->drafts[s][k], want[k], margin);
				return;
			}
			c->close += margin > c->margin;
			c->ended_early += margin <= c->margin;
			goto next;
		}
		if (c->accepted[s] != accepted) {
			fail(c, name, "step at %d: %d drafts accepted, the reference has %d", pos, c->accepted[s], accepted);
			return;
		}
		c->steps++;
next:;
	}
}

static void check_prompt_ids(struct check *c, const char *name, const json_t *p, const int32_t *ids, int n)
{
	const json_t *text = json_object_get(p, "text");
	struct td_ids got = {0};
	struct td_error err;

	if (!c->tok || !text)
		return;
	if (td_encode(c->tok, json_string_value(text), json_string_length(text), 1, &got, &err))
		fail(c, name, "the text can't be encoded: %s", err.text);
	else if ((int)got.n != n || memcmp(got.id, ids, sizeof(int32_t) * (size_t)n))
		fail(c, name, "the text encodes to %zu ids that differ from the reference's %d", got.n, n);
	td_ids_finish(&got);
}

static void check_top(struct check *c, const char *name, const json_t *p)
{
	const json_t *top = json_object_get(p, "top"), *ids = json_array_get(top, 0), *values = json_array_get(top, 1);
	const float *row = c->logits.data + (size_t)(c->logits.rows - 1) * (size_t)c->logits.cols;

	for (size_t i = 0; i < json_array_size(ids); i++) {
		int id = (int)json_integer_value(json_array_get(ids, i));
		double want = json_number_value(json_array_get(values, i));

		if (fabs(row[id] - want) > c->tolerance * 10 * (1 + fabs(want))) {
			fail(c, name, "logit of token %d after the prompt is %.5f, the reference has %.5f", id, row[id], want);
			return;
		}
	}
}

/* Acceptance lengths of the prompt over the steps that lie before `limit`, in this run and in the reference: behind it the texts differ. */
static void add_lengths(struct check *c, const json_t *p, int limit)
{
	double got = 0, want = 0;
	int n_got = 0, n_want = 0;
	size_t i;
	json_t *step;

	json_array_foreach(json_object_get(p, "draft_steps"), i, step) {
		int tokens = (int)json_integer_value(json_object_get(step, "accepted")) + 1;

		if ((int)json_integer_value(json_object_get(step, "pos")) + tokens > limit)
			break;
		want += tokens;
		n_want++;
	}
	for (int s = 0; s < c->n_steps && c->pos[s] + c->accepted[s] + 1 <= limit; s++, n_got++)
		got += c->accepted[s] + 1;
	if (!n_got || !n_want)
		return;
	c->lengths += got / n_got;
	c->lengths_want += want / n_want;
	c->n_lengths++;
}

static void check_prompt(struct check *c, const json_t *p)
{
	const char *name = json_string_value(json_object_get(p, "name"));
	static int32_t ids[ROWS_MAX], want[ROWS_MAX], out[ROWS_MAX];
	int n = ids_of(json_object_get(p, "prompt_ids"), ids, ROWS_MAX), n_want = ids_of(json_object_get(p, "output_ids"), want, ROWS_MAX - SPARE < c->tokens_max ? ROWS_MAX - SPARE : c->tokens_max), eos = 0;
	int before = c->failures, limit;
	const struct td_target_config *t = &c->pair.tw->cfg;
	const struct pair_hooks hooks = {c, on_draft, on_commit};

	for (int i = 0; i < t->n_eos; i++)
		eos |= n_want && want[n_want - 1] == t->eos[i];
	struct pair_request r = {.ids = ids, .n_ids = n, .n_prompt = n, .max_total = n + n_want + (eos ? SPARE : 0), .stop_at_eos = 1, .out = out};

	r.k = c->pair.dw ? c->pair.dw->cfg.block - 1 : 0;
	pair_greedy(&r.sampling);
	grab_clear(c, n);
	c->n_steps = c->have_last = 0;
	check_prompt_ids(c, name, p, ids, n);
	pair_run(&c->pair, &r, 1, &hooks);
	check_tensors(c, name);
	check_top(c, name, p);
	limit = n + check_output(c, name, &r, p, want, n_want);
	if (c->pair.dw)
		check_steps(c, name, p, limit);
	add_lengths(c, p, limit);
	printf("%-6s %s  %d prompt + %d output tokens, %d steps, acceptance length %.4f (reference %.4f)\n", name, c->failures == before ? "ok  " : "FAIL", n,
	       r.n_out, r.cycles, r.cycles ? (double)(r.accepted + r.cycles) / r.cycles : 0.0, json_number_value(json_object_get(p, "acceptance_length")));
}

static void check_acceptance(struct check *c)
{
	double got = c->lengths / (c->n_lengths ? c->n_lengths : 1), want = c->lengths_want / (c->n_lengths ? c->n_lengths : 1);

	printf("mean acceptance length %.4f over %d prompts, the reference has %.4f (%+.2f %%)\n", got, c->n_lengths, want, want > 0 ? 100 * (got / want - 1) : 0.0);
	if (c->acceptance > 0 && !(fabs(got - want) <= c->acceptance * want))
		fail(c, "all", "the mean acceptance length is more than %.1f %% away from the reference's", 100 * c->acceptance);
}

static void open_tensors(struct check *c, const char *json_path)
{
	char path[4096];
	size_t n = strlen(json_path);
	struct td_error err;
	FILE *f;

	if (n < 5 || n + 8 > sizeof(path))
		return;
	snprintf(path, sizeof(path), "%.*s.safetensors", (int)(n - 5), json_path);
	f = fopen(path, "rb");
	if (!f)
		return;
	fclose(f);
	if (td_st_open(path, &c->st, &err)) {
		fprintf(stderr, "%s\n", err.text);
		exit(1);
	}
}

static _Noreturn void usage(void)
{
	fprintf(stderr, "usage: reference_check --target DIR [--drafter DIR] [--tokenizer FILE] [--device cpu|cuda] [--weights file|bf16] [--head bf16|int4|rescored]\n                       [--activations bf16|int8] [--margin M] [--draft-margin M] [--tolerance T] [--acceptance A] [--limit N] [--tokens N] JSON\n");
	exit(2);
}

int main(int argc, char **argv)
{
	static struct check c = {.margin = 0.01, .draft_margin = -1, .tolerance = 1e-3, .tokens_max = ROWS_MAX};
	struct pair_options o = {.device = "cpu", .slots = 1, .context = ROWS_MAX * 2, .chunk = ROWS_MAX, .target_probe = target_probe,
				 .drafter_probe = drafter_probe, .probe_ctx = &c};
	const char *tokenizer = NULL, *file = NULL;
	struct td_error err;
	json_error_t jerr;
	json_t *root, *p;
	size_t i, limit = SIZE_MAX;

	for (int a = 1; a < argc; a++) {
		const char *value = a + 1 < argc ? argv[a + 1] : NULL;

		if (argv[a][0] != '-') {
			file = argv[a];
			continue;
		}
		if (!value)
			usage();
		if (!strcmp(argv[a], "--target"))
			o.target_dir = value;
		else if (!strcmp(argv[a], "--drafter"))
			o.drafter_dir = value;
		else if (!strcmp(argv[a], "--tokenizer"))
			tokenizer = value;
		else if (!strcmp(argv[a], "--device"))
			o.device = value;
		else if (!strcmp(argv[a], "--weights") && (!strcmp(value, "file") || !strcmp(value, "bf16")))
			o.form |= strcmp(value, "bf16") ? 0 : TD_FORM_BF16;
		else if (!strcmp(argv[a], "--head") && (!strcmp(value, "bf16") || !strcmp(value, "int4") || !strcmp(value, "rescored")))
			o.form = td_form_head(value, NULL, o.form);
		else if (!strcmp(argv[a], "--activations") && (!strcmp(value, "bf16") || !strcmp(value, "int8")))
			o.form = td_form_activations(value, o.device, o.form);
		else if (!strcmp(argv[a], "--margin"))
			c.margin = atof(value);
		else if (!strcmp(argv[a], "--draft-margin"))
			c.draft_margin = atof(value);
		else if (!strcmp(argv[a], "--limit"))
			limit = strtoul(value, NULL, 10);
		else if (!strcmp(argv[a], "--tokens"))
			c.tokens_max = atoi(value);
		else if (!strcmp(argv[a], "--tolerance"))
			c.tolerance = atof(value);
		else if (!strcmp(argv[a], "--acceptance"))
			c.acceptance = atof(value);
		else
			usage();
		a++;
	}
	if (!o.target_dir || !file)
		usage();
	root = json_load_file(file, 0, &jerr);
	if (!json_is_array(root)) {
		fprintf(stderr, "%s: not a JSON array of prompts: %s\n", file, root ? "wrong type" : jerr.text);
		return 2;
	}
	if (tokenizer && td_tokenizer_load(tokenizer, &c.tok, &err)) {
		fprintf(stderr, "%s\n", err.text);
		return 2;
	}
	open_tensors(&c, file);
	pair_open(&c.pair, &o);
	if (c.draft_margin < 0)
		c.draft_margin = c.margin;
	json_array_foreach(root, i, p) {
		if (i == limit)
			break;
		check_prompt(&c, p);
		if (!i)
			c.allocations = pair_allocations(&c.pair);
	}
	if (pair_allocations(&c.pair) != c.allocations)
		fail(&c, "all", "%llu allocations on the device after the first prompt", (unsigned long long)(pair_allocations(&c.pair) - c.allocations));
	check_acceptance(&c);
	if (c.draft_margin > c.margin)
		printf("steps whose least margin lies between %g and %g with a draft that differs: %d\n", c.margin, c.draft_margin, c.close);
	printf("%zu prompts: %d tokens, %d steps, %d tensors agree (largest relative error %.3g at %s); %d comparisons ended at a margin <= %g\n", i, c.tokens,
	       c.steps, c.tensors, c.worst, c.worst_name, c.ended_early, c.margin);
	pair_close(&c.pair);
	td_st_close(c.st);
	td_tokenizer_free(c.tok);
	json_decref(root);
	return c.failures != 0;
}
