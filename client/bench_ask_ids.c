/*
 * bench_ask_ids.c: clients that ask one prompt after the other, all at once (bench_suite.h).
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "client/bench_suite.h"
#include "engine/clock.h"

enum { LOOK_MS = 200 /* Ctrl-C that comes just before poll() is seen after that */, ID_FIRST = 300, ID_COUNT = 1500 };

struct client {
	struct td_bench *b;
	struct td_bench_load *load;
	struct tandem *t;
	uint32_t left, seed;
	int busy, failed;
	uint64_t asked_us, last_us, began_us, ended_us, output;
};

void td_bench_series_add(struct td_bench_series *s, double v)
{
	double *grown;

	if (s->n == s->size) {
		grown = realloc(s->v, (2 * s->size + 64) * sizeof(*grown));
		if (!grown)
			return;
		s->v = grown;
		s->size = 2 * s->size + 64;
	}
	s->v[s->n++] = v;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

double td_bench_series_at(const struct td_bench_series *s, double part)
{
	if (!s->n)
		return 0;
	qsort(s->v, s->n, sizeof(*s->v), compare);
	return s->v[(size_t)(part * (double)(s->n - 1) + 0.5)];
}

void td_bench_series_finish(struct td_bench_series *s)
{
	free(s->v);
	*s = (struct td_bench_series){0};
}

/* ---- one request -------------------------------------------------------------------------------------------------------------------- */

static int on_delta(void *ctx, const struct tandem_delta *d)
{
	struct client *c = ctx;
	uint64_t now = td_now_us();
	size_t i;

	if (!c->last_us)
		td_bench_series_add(&c->load->first, (double)(now - c->asked_us) / 1e3);
	else /* tokens that come together share the time since those before them */
		for (i = 0; i < d->n_ids; i++)
			td_bench_series_add(&c->load->gap, (double)(now - c->last_us) / 1e3 / (double)d->n_ids);
	if (d->n_ids)
		c->last_us = now;
	return 0;
}

static void on_finish(void *ctx, const struct tandem_finish *f)
{
	struct client *c = ctx;
	struct td_bench_load *l = c->load;

	c->busy = 0;
	c->ended_us = td_now_us();
	if (f->reason != TANDEM_LENGTH && f->reason != TANDEM_STOP) {
		fprintf(stderr, "tandem bench: an answer ended early (%s)\n", td_reason_name(f->reason));
		c->b->code = TD_EXIT_FAILED;
		c->failed = 1;
		return;
	}
	c->output += f->output_tokens;
	td_bench_series_add(&l->whole, (double)(c->ended_us - c->asked_us) / 1e3);
	td_bench_series_add(&l->prefill, (double)f->prefill_us / 1e3);
	l->cycles += f->cycles;
	l->accepted += f->accepted;
	l->decode_us += f->decode_us;
	l->output += f->output_tokens;
}

static void on_error(void *ctx, const struct tandem_error *e)
{
	struct client *c = ctx;

	c->busy = 0;
	c->failed = 1;
	c->b->code = td_say_error("bench", e);
}

/* Ids that every tokenizer has, other ones for every seed. */
static int32_t *prompt_ids(uint32_t n, uint32_t seed)
{
	int32_t *id = malloc(n * sizeof(*id));
	uint32_t x = seed * 2654435761u + 1, i;

	for (i = 0; id && i < n; i++) {
		x = x * 1664525u + 1013904223u;
		id[i] = ID_FIRST + (int32_t)((x >> 8) % ID_COUNT);
	}
	return id;
}

static int ask(struct client *c)
{
	const struct td_bench_load *l = c->load;
	int32_t *id = prompt_ids(l->prompt, c->seed++);
	struct tandem_request r = {
		.prompt = {.id = id, .n_ids = l->prompt},
		.sampling = {.set = TANDEM_TEMPERATURE | TANDEM_MAX_TOKENS | TANDEM_IGNORE_EOS, .max_tokens = l->tokens, .ignore_eos = 1},
	};
	struct tandem_handler h = {.ctx = c, .delta = on_delta, .finish = on_finish, .error = on_error};
	struct tandem_error err = {.code = TANDEM_E_NOMEM, .name = "out_of_memory", .text = "no memory"};
	uint64_t call = 0;

	if (l->drafts != TD_BENCH_AUTO) {
		r.sampling.set |= TANDEM_DRAFT_TOKENS;
		r.sampling.draft_tokens = l->drafts;
	}
	if (l->tenths) {
		r.sampling.set |= TANDEM_SEED;
		r.sampling.seed = l->tenths;
	}
	c->asked_us = td_now_us();
	c->began_us = c->began_us ? c->began_us : c->asked_us;
	c->last_us = 0;
	if (id)
		call = tandem_submit(c->t, &r, &h, &err);
	free(id);
	if (!call)
		c->b->code = td_say_error("bench", &err);
	c->busy = call != 0;
	c->left--;
	return call ? 0 : -1;
}

/* ---- all of them -------------------------------------------------------------------------------------------------------------------- */

/* 1 while it has something to do, 0 at its end, -1 after a failure. */
static int turn(struct client *c)
{
	struct tandem_error err;

	if (!c->busy && c->left && ask(c))
		return -1;
	if (c->busy && tandem_process(c->t, &err) && c->busy) {
		c->b->code = td_say_error("bench", &err);
		return -1;
	}
	return c->failed ? -1 : c->busy || c->left;
}

static int drive(struct td_bench *b, struct client *c, struct pollfd *p, uint32_t n)
{
	uint32_t i, open;
	int rc;

	for (;;) {
		for (i = open = 0; i < n; i++) {
			rc = turn(&c[i]);
			if (rc < 0)
				return -1;
			open += (uint32_t)rc;
			p[i] = (struct pollfd){.fd = rc ? tandem_fd(c[i].t) : -1, .events = POLLIN};
			if (rc && (tandem_want(c[i].t) & TANDEM_WRITE || !c[i].busy))
				p[i].events |= POLLOUT;
		}
		if (td_bench_interrupted) {
			b->code = TD_EXIT_INTERRUPTED;
			return -1;
		}
		if (!open)
			return 0;
		poll(p, n, LOOK_MS);
	}
}

int td_bench_load_run(struct td_bench *b, struct td_bench_load *l)
{
	struct client *c = calloc(l->clients, sizeof(*c));
	struct pollfd *p = calloc(l->clients, sizeof(*p));
	uint64_t begin = UINT64_MAX, end = 0;
	static uint32_t seed = 1; /* no prompt is asked twice in a run of this program */
	uint32_t i;
	int rc = -1;

	for (i = 0; c && p && i < l->clients; i++, seed += l->requests)
		c[i] = (struct client){.b = b, .load = l, .t = b->t[i], .left = l->requests, .seed = seed};
	if (c && p) {
		rc = drive(b, c, p, l->clients);
	} else {
		fprintf(stderr, "tandem bench: no memory\n");
		b->code = TD_EXIT_FAILED;
	}
	for (i = 0; !rc && i < l->clients; i++) {
		begin = c[i].began_us < begin ? c[i].began_us : begin;
		end = c[i].ended_us > end ? c[i].ended_us : end;
		if (c[i].ended_us > c[i].began_us)
			td_bench_series_add(&l->client_rate, (double)c[i].output * 1e6 / (double)(c[i].ended_us - c[i].began_us));
	}
	l->window_us += end > begin ? end - begin : 0;
	free(c);
	free(p);
	return rc;
}

void td_bench_load_finish(struct td_bench_load *l)
{
	td_bench_series_finish(&l->first);
	td_bench_series_finish(&l->gap);
	td_bench_series_finish(&l->whole);
	td_bench_series_finish(&l->prefill);
	td_bench_series_finish(&l->client_rate);
}
