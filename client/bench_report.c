/*
 * bench_report.c: what the bench found, as a table and as JSON. A figure over prompts is the median with its smallest and largest value; a figure per
 * cycle is a mean over all cycles.
 */
#include <stdlib.h>
#include <string.h>

#include "client/bench.h"

struct spread {
	double median, min, max;
	size_t n;
};

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

/* Sorts v. */
static struct spread spread_of(double *v, size_t n)
{
	if (!n)
		return (struct spread){0};
	qsort(v, n, sizeof(*v), by_value);
	return (struct spread){n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2, v[0], v[n - 1], n};
}

/* Tokens per second while the answer was written; 0 = can't be told (one token, or left out). */
static double speed(const struct td_bench_answer *a)
{
	if (a->error.code || a->finish.output_tokens < 2 || !a->finish.decode_us)
		return 0;
	return (a->finish.output_tokens - 1) / ((double)a->finish.decode_us / 1e6);
}

enum what { SPEED_WITH, SPEED_WITHOUT, SPEEDUP, ACCEPTANCE };

static double value(const struct td_bench_file *f, size_t i, enum what what)
{
	const struct td_bench_answer *with = f->answer[0] + i, *without = f->answer[1] + i;

	switch (what) {
	case SPEED_WITH:
		return speed(with);
	case SPEED_WITHOUT:
		return speed(without);
	case SPEEDUP:
		return speed(without) > 0 ? speed(with) / speed(without) : 0;
	default:
		return with->error.code ? 0 : td_acceptance(with->finish.accepted, with->finish.cycles);
	}
}

static struct spread figure(const struct td_bench_file *f, enum what what)
{
	double *v = malloc((f->n + 1) * sizeof(*v));
	struct spread s;
	size_t i, n = 0;

	for (i = 0; v && i < f->n; i++) {
		v[n] = value(f, i, what);
		n += v[n] > 0;
	}
	s = spread_of(v, n);
	free(v);
	return s;
}

static size_t left_out(const struct td_bench_file *f)
{
	size_t i, n = 0;

	for (i = 0; i < f->n; i++)
		n += f->answer[0][i].error.code || f->answer[1][i].error.code;
	return n;
}

double td_bench_acceptance(const struct td_bench_file *f)
{
	uint64_t accepted = 0, cycles = 0;
	size_t i;

	for (i = 0; i < f->n; i++) {
		accepted += f->answer[0][i].finish.accepted;
		cycles += f->answer[0][i].finish.cycles;
	}
	return td_acceptance(accepted, cycles);
}

void td_bench_compare(const struct td_bench_file *f, struct td_bench_difference *d)
{
	size_t i, k;

	*d = (struct td_bench_difference){0};
	for (i = 0; i < f->n; i++) {
		const struct td_bench_answer *a = f->answer[0] + i, *b = f->answer[1] + i;

		if (a->error.code || b->error.code)
			continue;
		d->compared++;
		for (k = 0; k < a->n && k < b->n && a->id[k] == b->id[k]; k++)
			;
		if (k == a->n && k == b->n)
			continue;
		if (!d->count++) {
			d->prompt = i;
			d->place = k;
			d->with = k < a->n ? a->id[k] : -1;
			d->without = k < b->n ? b->id[k] : -1;
		}
	}
}

/* ---- per cycle --------------------------------------------------------------------------------------------------------------------- */

struct per_cycle { /* microseconds */
	double draft, verify, commit, channel, rest, daemon;
};

/*
 * The channel is what the target waits beyond the drafter's own time: the way of flags and records there and back. The rest is what the client's clock
 * saw beyond all that. Both need one client (with several, steps are shared); the rest goes below zero where threads outnumber processors, since
 * the first delta then reaches us late.
 */
static struct per_cycle per_cycle(const struct td_bench_cost *c, uint32_t clients)
{
	double n = c->steps ? (double)c->steps : 1;
	struct per_cycle p = {.draft = (double)c->draft_us / n, .verify = (double)c->verify_us / n, .commit = (double)c->commit_us / n,
			      .daemon = (double)c->daemon_us / n};

	if (clients == 1) {
		p.channel = (double)c->wait_us / n - p.draft;
		p.rest = (double)c->window_us / n - p.verify - p.commit - (double)c->wait_us / n;
	}
	return p;
}

static double rate(uint64_t n, uint64_t us)
{
	return us ? (double)n / ((double)us / 1e6) : 0;
}

/* ---- text -------------------------------------------------------------------------------------------------------------------------- */

static void print_spread(const char *name, struct spread s, int digits)
{
	printf("  %-27s %.*f   (%.*f to %.*f, %zu prompts)\n", name, digits, s.median, digits, s.min, digits, s.max, s.n);
}

static void print_cycle(const char *name, const struct td_bench_cost *c, uint32_t clients, int drafts)
{
	struct per_cycle p = per_cycle(c, clients);

	printf("  %-27s ", name);
	if (drafts)
		printf("draft %.3f ms, ", p.draft / 1e3);
	printf("%s %.3f ms, commit %.3f ms", drafts ? "verify" : "step", p.verify / 1e3, p.commit / 1e3);
	if (clients == 1 && drafts)
		printf(", channel %.3f ms", p.channel / 1e3);
	if (clients == 1)
		printf(", rest %.3f ms", p.rest / 1e3);
	printf("; daemon's CPU %.0f us (%llu cycles)\n", p.daemon, (unsigned long long)c->steps);
}

static void print_difference(const struct td_bench_file *f)
{
	struct td_bench_difference d;

	td_bench_compare(f, &d);
	if (!d.count)
		printf("  %-27s all %zu answers, token for token\n", "equal with and without", d.compared);
	else
		printf("  %-27s %zu of %zu answers differ; first: prompt %zu, token %zu, %d with speculation and %d without\n", "NOT EQUAL", d.count, d.compared,
		       d.prompt, d.place, d.with, d.without);
}

void td_bench_report(const struct td_bench *b, const struct td_bench_file *f)
{
	const struct td_bench_cost *with = &f->cost[0], *without = &f->cost[1];
	double all_with = rate(with->tokens, with->wall_us), all_without = rate(without->tokens, without->wall_us);

	printf("%s: %zu prompts", f->name, f->n);
	if (left_out(f))
		printf(" (%zu left out: too long for the context)", left_out(f));
	printf(", answers of at most %d tokens, %u client%s\n", b->max_tokens, b->clients, b->clients == 1 ? "" : "s");
	print_spread("tokens/s with speculation", figure(f, SPEED_WITH), 1);
	print_spread("tokens/s without", figure(f, SPEED_WITHOUT), 1);
	print_spread("ratio", figure(f, SPEEDUP), 2);
	print_spread("acceptance length", figure(f, ACCEPTANCE), 2);
	printf("  %-27s %.2f\n", "  over all cycles", td_bench_acceptance(f));
	printf("  %-27s %.1f tokens/s with, %.1f without, ratio %.2f\n", "whole requests, all clients", all_with, all_without,
	       all_without > 0 ? all_with / all_without : 0);
	print_cycle("a cycle with speculation", with, b->clients, 1);
	print_cycle("a cycle without", without, b->clients, 0);
	printf("  %-27s %.0f tokens/s\n", "prefill", rate(with->prefill_tokens + without->prefill_tokens, with->prefill_us + without->prefill_us));
	print_difference(f);
	printf("\n");
	fflush(stdout);
}

/* ---- JSON -------------------------------------------------------------------------------------------------------------------------- */

static json_t *json_spread(struct spread s)
{
	return json_pack("{s:f, s:f, s:f, s:I}", "median", s.median, "min", s.min, "max", s.max, "prompts", (json_int_t)s.n);
}

static json_t *json_cost(const struct td_bench_cost *c, uint32_t clients)
{
	struct per_cycle p = per_cycle(c, clients);
	json_t *j = json_pack("{s:f, s:f, s:f, s:f, s:I, s:I}", "draft_us", p.draft, "verify_us", p.verify, "commit_us", p.commit, "daemon_cpu_us", p.daemon,
			      "steps", (json_int_t)c->steps, "cycles", (json_int_t)c->cycles);

	if (clients == 1) {
		json_object_set_new(j, "channel_us", json_real(p.channel));
		json_object_set_new(j, "rest_us", json_real(p.rest));
	}
	return j;
}

json_t *td_bench_report_json(const struct td_bench *b, const struct td_bench_file *f)
{
	const struct td_bench_cost *with = &f->cost[0], *without = &f->cost[1];
	struct td_bench_difference d;
	json_t *j;

	td_bench_compare(f, &d);
	j = json_pack("{s:s, s:I, s:I, s:I, s:I}", "file", f->name, "prompts", (json_int_t)f->n, "left_out", (json_int_t)left_out(f), "compared",
		      (json_int_t)d.compared, "differing", (json_int_t)d.count);
	if (d.count)
		json_object_set_new(j, "first_difference",
				    json_pack("{s:I, s:I, s:i, s:i}", "prompt", (json_int_t)d.prompt, "token", (json_int_t)d.place, "with", (int)d.with,
					      "without", (int)d.without));
	json_object_set_new(j, "tokens_per_s_with", json_spread(figure(f, SPEED_WITH)));
	json_object_set_new(j, "tokens_per_s_without", json_spread(figure(f, SPEED_WITHOUT)));
	json_object_set_new(j, "ratio", json_spread(figure(f, SPEEDUP)));
	json_object_set_new(j, "acceptance_length", json_spread(figure(f, ACCEPTANCE)));
	json_object_set_new(j, "acceptance_length_all", json_real(td_bench_acceptance(f)));
	json_object_set_new(j, "all_clients_tokens_per_s_with", json_real(rate(with->tokens, with->wall_us)));
	json_object_set_new(j, "all_clients_tokens_per_s_without", json_real(rate(without->tokens, without->wall_us)));
	json_object_set_new(j, "cycle_with", json_cost(with, b->clients));
	json_object_set_new(j, "cycle_without", json_cost(without, b->clients));
	json_object_set_new(j, "prefill_tokens_per_s",
			    json_real(rate(with->prefill_tokens + without->prefill_tokens, with->prefill_us + without->prefill_us)));
	return j;
}
