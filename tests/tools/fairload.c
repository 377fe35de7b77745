/*
 * fairload.c: several tenants' load on a real daemon, and what each of them got of it.
 *
 *   fairload SOCKET WARM_S SECONDS NAME,clients=N,prompt=N,out=N,think_ms=N...
 *
 * Each tenant has a connection of its own, asked for by Hello.tenant, and so many clients on it, each with one request at a time and a pause between. After
 * WARM_S seconds the figures begin. Prints a line per tenant: device time charged (by the daemon's status), tokens, requests, and the milliseconds in
 * the queue, to the first token and between deltas, at 50 and 99 per cent.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/tandem.h"
#include "engine/clock.h"

enum { TENANTS = 72, CLIENTS = 64, SAMPLES = 1 << 16, PROMPT_MAX = 8192 };

struct tenant;
struct client {
	struct tenant *t;
	int busy;
	uint64_t next_us, sent_us, last_us;
};

struct samples {
	double ms[SAMPLES];
	int n;
};

static struct tenant {
	char name[64];
	struct tandem *c;
	int clients, prompt, out, think_ms;
	struct client client[CLIENTS];
	uint64_t tokens, requests, gpu_us, gpu_before;
	struct samples wait, first, gap;
} tenant[TENANTS];
static int n_tenants, measuring, stopping;

static _Noreturn void fail(const char *what, const struct tandem_error *err)
{
	fprintf(stderr, "fairload: %s: %s\n", what, err->text);
	exit(1);
}

static void sample(struct samples *s, double ms)
{
	if (measuring && s->n < SAMPLES)
		s->ms[s->n++] = ms;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static double percentile(struct samples *s, double p)
{
	qsort(s->ms, (size_t)s->n, sizeof(s->ms[0]), by_value);
	return s->n ? s->ms[(int)((s->n - 1) * p)] : 0;
}

static int on_delta(void *ctx, const struct tandem_delta *d)
{
	struct client *c = ctx;
	uint64_t now = td_now_us();

	sample(c->last_us ? &c->t->gap : &c->t->first, (double)(now - (c->last_us ? c->last_us : c->sent_us)) / 1000);
	c->last_us = now;
	c->t->tokens += measuring ? d->n_ids : 0;
	return 0;
}

static void on_finish(void *ctx, const struct tandem_finish *f)
{
	struct client *c = ctx;

	sample(&c->t->wait, (double)f->queue_us / 1000);
	c->busy = 0;
	c->next_us = td_now_us() + (uint64_t)c->t->think_ms * 1000;
	c->t->requests += (uint64_t)measuring;
}

static void on_error(void *ctx, const struct tandem_error *e)
{
	struct client *c = ctx;

	if (!stopping)
		fail(c->t->name, e);
	c->busy = 0;
}

static void ask(struct client *c)
{
	static int32_t ids[PROMPT_MAX];
	struct tandem_handler h = {.ctx = c, .delta = on_delta, .finish = on_finish, .error = on_error};
	struct tandem_request r = {.prompt = {.id = ids, .n_ids = (size_t)c->t->prompt}};
	struct tandem_error err;

	for (int i = 0; i < c->t->prompt; i++)
		ids[i] = 300 + i % 100;
	r.sampling.set = TANDEM_MAX_TOKENS | TANDEM_IGNORE_EOS;
	r.sampling.max_tokens = c->t->out;
	r.sampling.ignore_eos = 1;
	c->busy = 1;
	c->sent_us = td_now_us();
	c->last_us = 0;
	if (!tandem_submit(c->t->c, &r, &h, &err))
		fail(c->t->name, &err);
}

static void read_tenant(char *spec)
{
	struct tenant *t = &tenant[n_tenants++];
	char *word = strtok(spec, ",");

	*t = (struct tenant){.clients = 1, .prompt = 16, .out = 16};
	snprintf(t->name, sizeof(t->name), "%s", word);
	while ((word = strtok(NULL, ","))) {
		char *eq = strchr(word, '=');
		int v = eq ? atoi(eq + 1) : 0;

		if (!strncmp(word, "clients=", 8))
			t->clients = v < CLIENTS ? v : CLIENTS;
		else if (!strncmp(word, "prompt=", 7))
			t->prompt = v < PROMPT_MAX ? v : PROMPT_MAX;
		else if (!strncmp(word, "out=", 4))
			t->out = v;
		else if (!strncmp(word, "think_ms=", 9))
			t->think_ms = v;
	}
}

static void read_status(struct tandem *c)
{
	struct tandem_error err;
	struct tandem_status *s = tandem_status(c, &err);

	if (!s)
		fail("status", &err);
	for (size_t i = 0; i < s->n_tenants; i++)
		for (int k = 0; k < n_tenants; k++)
			if (!strcmp(s->tenant[i].name, tenant[k].name))
				tenant[k].gpu_us = s->tenant[i].gpu_us;
	tandem_status_free(s);
}

/* Everybody's requests, until then. */
static void drive(uint64_t end_us)
{
	struct pollfd p[TENANTS];
	struct tandem_error err;

	while (td_now_us() < end_us) {
		uint64_t now = td_now_us();

		for (int i = 0; i < n_tenants; i++) {
			for (int k = 0; k < tenant[i].clients; k++)
				if (!tenant[i].client[k].busy && tenant[i].client[k].next_us <= now)
					ask(&tenant[i].client[k]);
			if (tandem_process(tenant[i].c, &err))
				fail(tenant[i].name, &err);
			p[i].fd = tandem_fd(tenant[i].c);
			p[i].events = (short)(POLLIN | (tandem_want(tenant[i].c) & TANDEM_WRITE ? POLLOUT : 0));
		}
		poll(p, (nfds_t)n_tenants, 2);
	}
}

int main(int argc, char **argv)
{
	struct tandem_error err;
	struct tandem *watch;
	double warm, seconds;

	if (argc < 5 || argc - 4 > TENANTS)
		return 2;
	warm = atof(argv[2]);
	seconds = atof(argv[3]);
	for (int i = 4; i < argc; i++) {
		struct tenant *t = &tenant[n_tenants];
		struct tandem_options o = {.client = "fairload"};

		read_tenant(argv[i]);
		o.tenant = t->name;
		t->c = tandem_connect(argv[1], &o, &err);
		if (!t->c || strcmp(tandem_info(t->c)->tenant, t->name))
			fail(t->name, t->c ? &(struct tandem_error){.text = "the daemon says that this user is another tenant"} : &err);
		for (int k = 0; k < t->clients; k++)
			t->client[k] = (struct client){.t = t, .next_us = td_now_us() + (uint64_t)k * 1000};
	}
	watch = tandem_connect(argv[1], NULL, &err);
	if (!watch)
		fail("status", &err);
	drive(td_now_us() + (uint64_t)(warm * 1e6));
	read_status(watch);
	for (int i = 0; i < n_tenants; i++)
		tenant[i].gpu_before = tenant[i].gpu_us;
	measuring = 1;
	drive(td_now_us() + (uint64_t)(seconds * 1e6));
	read_status(watch);
	stopping = 1;
	for (int i = 0; i < n_tenants; i++) {
		struct tenant *t = &tenant[i];

		printf("%s gpu_us=%llu tokens=%llu requests=%llu", t->name, (unsigned long long)(t->gpu_us - t->gpu_before), (unsigned long long)t->tokens,
		       (unsigned long long)t->requests);
		printf(" wait_p50=%.1f wait_p99=%.1f", percentile(&t->wait, 0.5), percentile(&t->wait, 0.99));
		printf(" first_p50=%.1f first_p99=%.1f", percentile(&t->first, 0.5), percentile(&t->first, 0.99));
		printf(" gap_p50=%.2f gap_p99=%.2f\n", percentile(&t->gap, 0.5), percentile(&t->gap, 0.99));
		tandem_close(t->c);
	}
	tandem_close(watch);
	return 0;
}
