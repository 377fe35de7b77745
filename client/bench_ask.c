/*
 * bench_ask.c: rounds of prompts through the daemon's socket (bench.h).
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/bench.h"

enum { LOOK_MS = 200 /* Ctrl-C that comes just before poll() is seen after that */ };

volatile sig_atomic_t td_bench_interrupted;

static void on_interrupt(int sig)
{
	(void)sig;
	td_bench_interrupted = 1;
}

void td_bench_catch_interrupt(void)
{
	struct sigaction sa = {.sa_handler = on_interrupt}; /* without SA_RESTART: poll() ends at once */

	sigemptyset(&sa.sa_mask);
	sigaction(SIGINT, &sa, NULL);
}

static uint64_t now_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000u + (uint64_t)ts.tv_nsec / 1000u;
}

static int failed(struct td_bench *b, const struct tandem_error *e)
{
	b->code = td_say_error("bench", e);
	return -1;
}

static int no_memory(struct td_bench *b)
{
	fprintf(stderr, "tandem bench: no memory\n");
	b->code = TD_EXIT_FAILED;
	return -1;
}

int td_bench_open(struct td_bench *b)
{
	uint32_t i;

	b->t = calloc(b->clients, sizeof(*b->t));
	b->control = td_common_connect(&b->common, "bench", &b->code);
	if (!b->control)
		return -1;
	b->server = strdup(tandem_info(b->control)->server);
	b->model = strdup(tandem_info(b->control)->model);
	for (i = 0; b->t && i < b->clients; i++) {
		b->t[i] = td_common_connect(&b->common, "bench", &b->code);
		if (!b->t[i])
			return -1;
	}
	return b->t && b->server && b->model ? 0 : no_memory(b);
}

void td_bench_close(struct td_bench *b)
{
	uint32_t i;

	for (i = 0; b->t && i < b->clients; i++)
		tandem_close(b->t[i]);
	tandem_close(b->control);
	free(b->t);
	free(b->server);
	free(b->model);
}

/* ---- one answer -------------------------------------------------------------------------------------------------------------------- */

static int on_delta(void *ctx, const struct tandem_delta *d)
{
	struct td_bench_answer *a = ctx;
	size_t size = 2 * a->size + d->n_ids + 64;
	int32_t *grown;

	if (!a->first_us)
		a->first_us = now_us();
	if (a->n + d->n_ids > a->size) {
		grown = realloc(a->id, size * sizeof(*grown));
		if (!grown)
			return 1; /* cancels, and on_finish() calls that a failure */
		a->id = grown;
		a->size = size;
	}
	if (d->n_ids)
		memcpy(a->id + a->n, d->id, d->n_ids * sizeof(*a->id));
	a->n += d->n_ids;
	return 0;
}

static void on_finish(void *ctx, const struct tandem_finish *f)
{
	struct td_bench_answer *a = ctx;

	a->end_us = now_us();
	a->finish = *f;
	a->finish.stop = NULL;
	a->done = 1;
	if (f->reason == TANDEM_CANCELLED || f->reason == TANDEM_FAILED) {
		a->error = (struct tandem_error){.code = TANDEM_E_INTERNAL, .name = "internal"};
		snprintf(a->error.text, sizeof(a->error.text), "an answer ended early (%s)", td_reason_name(f->reason));
	}
}

static void on_error(void *ctx, const struct tandem_error *e)
{
	struct td_bench_answer *a = ctx;

	a->error = *e;
	a->done = 1;
}

static int submit(struct td_bench *b, struct tandem *t, const char *prompt, int32_t drafts, struct td_bench_answer *a)
{
	struct tandem_message message = {.role = "user", .content = prompt};
	struct tandem_request r = {
		.prompt = {.message = &message, .n_messages = 1, .thinking = b->thinking},
		.sampling = {.set = TANDEM_TEMPERATURE | TANDEM_MAX_TOKENS, .max_tokens = b->max_tokens},
	};
	struct tandem_handler h = {.ctx = a, .delta = on_delta, .finish = on_finish, .error = on_error};
	struct tandem_error err;

	if (drafts != TD_BENCH_AUTO) {
		r.sampling.set |= TANDEM_DRAFT_TOKENS;
		r.sampling.draft_tokens = drafts;
	}
	free(a->id);
	*a = (struct td_bench_answer){.asked_us = now_us()};
	return tandem_submit(t, &r, &h, &err) ? 0 : failed(b, &err);
}

/* ---- a round ----------------------------------------------------------------------------------------------------------------------- */

static int all_done(const struct td_bench_answer *a, size_t n)
{
	size_t i;

	for (i = 0; i < n && a[i].done; i++)
		;
	return i == n;
}

/* Drives n connections until their answers have ended. */
static int drive(struct td_bench *b, const struct td_bench_answer *a, size_t n)
{
	struct pollfd *p = calloc(n, sizeof(*p));
	struct tandem_error err = {0};
	size_t i;
	int rc = p ? 0 : no_memory(b);

	while (!rc) {
		for (i = 0; !rc && i < n; i++)
			if (!a[i].done && tandem_process(b->t[i], &err) && !a[i].done)
				rc = failed(b, &err);
		if (td_bench_interrupted && !rc) {
			b->code = TD_EXIT_INTERRUPTED;
			rc = -1;
		}
		if (rc || all_done(a, n))
			break;
		for (i = 0; i < n; i++)
			p[i] = (struct pollfd){.fd = a[i].done ? -1 : tandem_fd(b->t[i]),
					       .events = POLLIN | (tandem_want(b->t[i]) & TANDEM_WRITE ? POLLOUT : 0)};
		poll(p, n, LOOK_MS);
	}
	free(p);
	return rc;
}

const struct tandem_worker_status *td_bench_worker(const struct tandem_status *s, const char *role)
{
	static const struct tandem_worker_status none;
	size_t i;

	for (i = 0; i < s->n_workers; i++)
		if (!strcmp(s->worker[i].role, role))
			return s->worker + i;
	return &none;
}

static void add_difference(const struct tandem_status *before, const struct tandem_status *after, struct td_bench_cost *c)
{
	const struct tandem_worker_status *t0 = td_bench_worker(before, "target"), *t1 = td_bench_worker(after, "target");
	const struct tandem_worker_status *d0 = td_bench_worker(before, "drafter"), *d1 = td_bench_worker(after, "drafter");

	c->steps += t1->steps - t0->steps;
	c->verify_us += t1->step_us - t0->step_us;
	c->commit_us += t1->commit_us - t0->commit_us;
	c->wait_us += t1->wait_us - t0->wait_us;
	c->prefill_tokens += t1->prefill_tokens - t0->prefill_tokens;
	c->prefill_us += t1->prefill_us - t0->prefill_us;
	c->draft_us += d1->step_us - d0->step_us;
	c->daemon_us += after->daemon_cpu_us - before->daemon_cpu_us;
}

static void add_answers(const struct td_bench_answer *a, size_t n, struct td_bench_cost *c)
{
	uint64_t begin = a[0].asked_us, end = 0;
	size_t i;

	for (i = 0; i < n; i++) {
		if (a[i].error.code)
			continue;
		c->tokens += a[i].finish.output_tokens;
		c->cycles += a[i].finish.cycles;
		if (a[i].first_us)
			c->window_us += a[i].end_us - a[i].first_us;
		end = a[i].end_us > end ? a[i].end_us : end;
	}
	c->wall_us += end > begin ? end - begin : 0;
}

int td_bench_round(struct td_bench *b, const struct td_bench_file *f, size_t from, size_t n, int without, struct td_bench_cost *cost)
{
	struct td_bench_answer *a = f->answer[without] + from;
	struct tandem_status *before, *after = NULL;
	struct tandem_error err;
	size_t i;
	int rc = 0;

	before = tandem_status(b->control, &err);
	if (!before)
		return failed(b, &err);
	for (i = 0; !rc && i < n; i++)
		rc = submit(b, b->t[i], f->prompt[from + i], without ? 0 : f->drafts, a + i);
	if (!rc)
		rc = drive(b, a, n);
	/* A prompt that is too long for this daemon is left out and counted; anything else ends the bench. */
	for (i = 0; !rc && i < n; i++)
		if (a[i].error.code && a[i].error.code != TANDEM_E_CONTEXT)
			rc = failed(b, &a[i].error);
	if (!rc) {
		after = tandem_status(b->control, &err);
		rc = after ? 0 : failed(b, &err);
	}
	if (!rc && cost) {
		add_difference(before, after, cost);
		add_answers(a, n, cost);
	}
	tandem_status_free(before);
	tandem_status_free(after);
	return rc;
}

int td_bench_file_start(struct td_bench *b, struct td_bench_file *f)
{
	f->answer[0] = calloc(f->n, sizeof(*f->answer[0]));
	f->answer[1] = calloc(f->n, sizeof(*f->answer[1]));
	return f->answer[0] && f->answer[1] ? 0 : no_memory(b);
}

void td_bench_file_finish(struct td_bench_file *f)
{
	size_t i;
	int m;

	for (m = 0; m < 2; m++) {
		for (i = 0; f->answer[m] && i < f->n; i++)
			free(f->answer[m][i].id);
		free(f->answer[m]);
		f->answer[m] = NULL;
	}
}
