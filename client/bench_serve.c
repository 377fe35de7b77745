/*
 * bench_serve.c: the suites cycle, latency and load, through a daemon's socket (bench_suite.h).
 *
 * With random weights hardly a draft is accepted. A daemon of our own that serves such obeys the seeds of requests as to how many tokens a step commits
 * (kernels/assume.h), so answers at the lengths of `assumed` are asked and measured whole; cycle and load go at USUAL. On any other daemon the latency
 * suite works out answers at these lengths: prefill + tokens / length * cycle. Either way the report says that the length is assumed.
 */
#include <stdlib.h>
#include <string.h>

#include "client/bench_suite.h"

static const struct {
	uint32_t prompt;
	int32_t tokens;
} cases[] = {{64, 128}, {2048, 256}, {8192, 256}};
enum { N_CASES = sizeof(cases) / sizeof(cases[0]), BLOCK = 16, LOAD_PROMPT = 64, LOAD_TOKENS = 64 };

static const int assumed[] = {33, 50, 60}; /* tenths of a token a step */
enum { N_ASSUMED = sizeof(assumed) / sizeof(assumed[0]), USUAL = 50 };

/* An assumed length is that of a whole block, so that is asked for; else the daemon chooses, or the caller did. */
static int32_t drafts(const struct td_bench *b)
{
	return b->assumes && b->draft_tokens == TD_BENCH_AUTO ? BLOCK - 1 : b->draft_tokens;
}

/* A verify has rows beyond the answer's end, which need room. */
static int fits(const struct td_bench *b, size_t i)
{
	return cases[i].prompt + (uint32_t)cases[i].tokens + BLOCK <= tandem_info(b->control)->context;
}

static void skip(json_t *list, size_t i)
{
	char name[32];

	snprintf(name, sizeof(name), "%u -> %d", cases[i].prompt, cases[i].tokens);
	json_array_append_new(list, json_string(name));
}

static int repeat(struct td_bench *b, struct td_bench_load *l, uint32_t warmups, uint32_t runs)
{
	struct td_bench_load warm = {.clients = l->clients, .requests = warmups, .prompt = l->prompt, .tokens = l->tokens, .drafts = l->drafts};
	int rc = warmups ? td_bench_load_run(b, &warm) : 0;

	td_bench_load_finish(&warm);
	l->requests = runs;
	return rc ? rc : td_bench_load_run(b, l);
}

/* ---- latency -------------------------------------------------------------------------------------------------------------------------- */

static double cycle_ms(const struct td_bench_load *l)
{
	return l->cycles ? (double)l->decode_us / 1e3 / (double)l->cycles : 0;
}

static json_t *way_json(const struct td_bench_load *l)
{
	uint64_t decoded = l->output > l->whole.n ? l->output - l->whole.n : 0; /* the first token of each comes from the prefill */

	return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "first_ms", td_bench_series_at(&l->first, 0.5), "prefill_ms",
			 td_bench_series_at(&l->prefill, 0.5), "whole_ms", td_bench_series_at(&l->whole, 0.5), "whole_p10_ms", td_bench_series_at(&l->whole, 0.1),
			 "whole_p90_ms", td_bench_series_at(&l->whole, 0.9), "cycle_ms", cycle_ms(l), "acceptance_length", td_acceptance(l->accepted, l->cycles),
			 "ms_per_token", decoded ? (double)l->decode_us / 1e3 / (double)decoded : 0);
}

static json_t *way(struct td_bench *b, size_t i, int32_t drafts, int tenths, const struct td_bench_options *o)
{
	struct td_bench_load l = {.clients = 1, .prompt = cases[i].prompt, .tokens = cases[i].tokens, .drafts = drafts, .tenths = (uint64_t)tenths};
	json_t *j = repeat(b, &l, o->warmups, o->runs) ? NULL : way_json(&l);

	td_bench_load_finish(&l);
	return j;
}

/* Answers at each of the lengths, asked and measured; NULL after a failure. */
static json_t *assumed_ways(struct td_bench *b, size_t i, const struct td_bench_options *o)
{
	json_t *list = json_array(), *one;
	size_t k;

	for (k = 0; k < N_ASSUMED; k++) {
		one = way(b, i, drafts(b), assumed[k], o);
		if (!one) {
			json_decref(list);
			return NULL;
		}
		json_object_set_new(one, "measured_length", json_real(td_bench_number(one, "acceptance_length")));
		json_object_set_new(one, "acceptance_length", json_real(assumed[k] / 10.0));
		json_array_append_new(list, one);
	}
	return list;
}

/* What the measured cycle gives at lengths that can't be asked for. */
static json_t *worked_out(const json_t *with, int32_t tokens)
{
	double cycle = td_bench_number(with, "cycle_ms"), prefill = td_bench_number(with, "prefill_ms");
	json_t *list = json_array();
	size_t k;

	for (k = 0; k < N_ASSUMED; k++) {
		double length = assumed[k] / 10.0;

		json_array_append_new(list, json_pack("{s:f, s:f, s:f}", "acceptance_length", length, "whole_ms", prefill + (tokens - 1) / length * cycle, "ms_per_token",
						      cycle / length));
	}
	return list;
}

/* The same list, each beside `plain` decoding. */
static json_t *against(const json_t *list, const json_t *plain)
{
	json_t *out = json_deep_copy(list), *one;
	size_t k;

	json_array_foreach(out, k, one) {
		double whole = td_bench_number(one, "whole_ms"), per = td_bench_number(one, "ms_per_token");

		json_object_set_new(one, "ratio_whole", json_real(whole > 0 ? td_bench_number(plain, "whole_ms") / whole : 0));
		json_object_set_new(one, "ratio_per_token", json_real(per > 0 ? td_bench_number(plain, "ms_per_token") / per : 0));
	}
	return out;
}

static json_t *latency_case(struct td_bench *b, const struct td_bench_options *o, size_t i)
{
	json_t *plain = way(b, i, 0, 0, o), *with = NULL, *list = NULL, *j = NULL;

	if (plain && !b->assumes)
		with = way(b, i, b->draft_tokens, 0, o);
	if (plain && b->assumes)
		list = assumed_ways(b, i, o);
	else if (with)
		list = worked_out(with, cases[i].tokens);
	if (list)
		j = json_pack("{s:i, s:i, s:O, s:o}", "prompt", (int)cases[i].prompt, "tokens", (int)cases[i].tokens, "plain", plain, "assumed", against(list, plain));
	if (j && with)
		json_object_set(j, "speculation", with);
	json_decref(list);
	json_decref(with);
	json_decref(plain);
	return j;
}

json_t *td_bench_latency(struct td_bench *b, const struct td_bench_options *o)
{
	json_t *list = json_array(), *skipped = json_array(), *one;
	size_t i;

	for (i = 0; i < N_CASES; i++) {
		if (!fits(b, i)) {
			skip(skipped, i);
			continue;
		}
		one = latency_case(b, o, i);
		if (!one) {
			json_decref(list);
			json_decref(skipped);
			return NULL;
		}
		json_array_append_new(list, one);
	}
	return json_pack("{s:s, s:i, s:i, s:b, s:o, s:o}", "suite", "latency", "warmups", (int)o->warmups, "runs", (int)o->runs, "answered_at_length", b->assumes, "cases",
			 list, "skipped", skipped);
}

int td_bench_latency_baseline(struct td_bench *b, const struct td_bench_options *o, json_t *latency)
{
	json_t *list = json_object_get(latency, "cases"), *plain, *of;
	size_t i, at = 0;

	for (i = 0; i < N_CASES && at < json_array_size(list); i++) {
		of = json_array_get(list, at);
		if (td_bench_number(of, "prompt") != cases[i].prompt)
			continue;
		at++;
		plain = way(b, i, 0, 0, o);
		if (!plain)
			return -1;
		json_object_set_new(of, "assumed_against_bf16", against(json_object_get(of, "assumed"), plain));
		json_object_set_new(of, "bf16", plain);
	}
	return 0;
}

void td_bench_latency_means(json_t *latency)
{
	const json_t *list = json_object_get(latency, "cases"), *first = json_array_get(list, 0), *c;
	const char *key = json_object_get(first, "bf16") ? "assumed_against_bf16" : "assumed";
	json_t *means = json_array();
	size_t i, k;

	for (k = 0; k < N_ASSUMED && first; k++) {
		double whole = 0, per = 0, n = (double)json_array_size(list);

		json_array_foreach(list, i, c) {
			const json_t *one = json_array_get(json_object_get(c, key), k);

			whole += td_bench_number(one, "ratio_whole") / n;
			per += td_bench_number(one, "ratio_per_token") / n;
		}
		json_array_append_new(means, json_pack("{s:f, s:f, s:f}", "acceptance_length", assumed[k] / 10.0, "ratio_whole", whole, "ratio_per_token", per));
	}
	json_object_set_new(latency, "mean_of_ratios", means);
}

/* ---- cycle ---------------------------------------------------------------------------------------------------------------------------- */

/* Parts of one cycle in microseconds; what the parts leave of it is idle. */
static json_t *cycle_json(size_t i, const struct td_bench_load *l, const struct tandem_status *from, const struct tandem_status *to)
{
	const struct tandem_worker_status *t0 = td_bench_worker(from, "target"), *t1 = td_bench_worker(to, "target"), *d0 = td_bench_worker(from, "drafter"), *d1 = td_bench_worker(to, "drafter");
	double n = t1->steps > t0->steps ? (double)(t1->steps - t0->steps) : 1, all = cycle_ms(l) * 1e3;
	double verify = (double)(t1->step_us - t0->step_us) / n, accept = (double)(t1->commit_us - t0->commit_us) / n;
	double wait = (double)(t1->wait_us - t0->wait_us) / n, draft = d1->steps > d0->steps ? (double)(d1->step_us - d0->step_us) / n : 0;
	double over = wait > draft ? wait - draft : 0, idle = all - verify - accept - draft - over;

	return json_pack("{s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "prompt", (int)cases[i].prompt, "cycles", (int)l->cycles, "cycle_us", all, "draft_us",
			 draft, "verify_us", verify, "accept_us", accept, "handover_us", over, "idle_us", idle > 0 ? idle : 0, "acceptance_length",
			 td_acceptance(l->accepted, l->cycles), "daemon_cpu_us", (double)(to->daemon_cpu_us - from->daemon_cpu_us) / n);
}

static json_t *cycle_case(struct td_bench *b, const struct td_bench_options *o, size_t i)
{
	struct td_bench_load l = {.clients = 1, .prompt = cases[i].prompt, .tokens = cases[i].tokens, .drafts = drafts(b), .requests = 1,
				  .tenths = b->assumes ? USUAL : 0};
	struct tandem_status *from = NULL, *to = NULL;
	struct tandem_error err;
	json_t *j = NULL;

	if (td_bench_load_run(b, &l)) /* warms up; prefill and cold caches stay out of the figures */
		goto out;
	td_bench_load_finish(&l);
	l.cycles = l.accepted = l.decode_us = 0;
	l.requests = o->runs < 5 ? o->runs : 5;
	from = tandem_status(b->control, &err);
	if (from && td_bench_load_run(b, &l))
		goto out;
	to = from ? tandem_status(b->control, &err) : NULL;
	if (to)
		j = cycle_json(i, &l, from, to);
	else
		b->code = td_say_error("bench", &err);
out:
	tandem_status_free(from);
	tandem_status_free(to);
	td_bench_load_finish(&l);
	return j;
}

json_t *td_bench_cycle(struct td_bench *b, const struct td_bench_options *o)
{
	json_t *list = json_array(), *skipped = json_array(), *one;
	size_t i;

	for (i = 0; i < N_CASES; i++) {
		if (!fits(b, i)) {
			skip(skipped, i);
			continue;
		}
		one = cycle_case(b, o, i);
		if (!one) {
			json_decref(list);
			json_decref(skipped);
			return NULL;
		}
		json_array_append_new(list, one);
	}
	return json_pack("{s:s, s:o, s:o}", "suite", "cycle", "cases", list, "skipped", skipped);
}

/* ---- load ----------------------------------------------------------------------------------------------------------------------------- */

/* Jain's index of the clients' rates: 1 when all got the same, 1/n when one got everything. */
static double fairness(const struct td_bench_series *s)
{
	double sum = 0, squares = 0;
	size_t i;

	for (i = 0; i < s->n; i++) {
		sum += s->v[i];
		squares += s->v[i] * s->v[i];
	}
	return squares > 0 ? sum * sum / ((double)s->n * squares) : 0;
}

static json_t *level_json(struct td_bench_load *l, double *alone)
{
	double rate = l->window_us ? (double)l->output * 1e6 / (double)l->window_us : 0;
	double lowest = td_bench_series_at(&l->client_rate, 0), highest = td_bench_series_at(&l->client_rate, 1);

	*alone = l->clients == 1 ? rate : *alone;
	return json_pack("{s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "clients", (int)l->clients, "tokens_per_s", rate, "against_one",
			 *alone > 0 ? rate / *alone : 0, "first_p50_ms", td_bench_series_at(&l->first, 0.5), "first_p99_ms",
			 td_bench_series_at(&l->first, 0.99), "gap_p50_ms", td_bench_series_at(&l->gap, 0.5), "gap_p99_ms", td_bench_series_at(&l->gap, 0.99),
			 "acceptance_length", td_acceptance(l->accepted, l->cycles), "fairness", fairness(&l->client_rate), "slowest_over_fastest",
			 highest > 0 ? lowest / highest : 0);
}

json_t *td_bench_load_suite(struct td_bench *b, const struct td_bench_options *o)
{
	json_t *list = json_array();
	double alone = 0;
	uint32_t n;
	int rc = 0;

	for (n = 1; !rc && n <= o->max_clients; n *= 2) {
		struct td_bench_load warm = {.clients = n, .requests = 1, .prompt = LOAD_PROMPT, .tokens = BLOCK, .drafts = b->draft_tokens, .tenths = b->assumes ? USUAL : 0};
		struct td_bench_load l = {.clients = n, .requests = o->requests, .prompt = LOAD_PROMPT, .tokens = LOAD_TOKENS, .drafts = b->draft_tokens, .tenths = warm.tenths};

		rc = td_bench_load_run(b, &warm) || td_bench_load_run(b, &l) ? -1 : 0;
		if (!rc)
			json_array_append_new(list, level_json(&l, &alone));
		td_bench_load_finish(&warm);
		td_bench_load_finish(&l);
	}
	if (rc) {
		json_decref(list);
		return NULL;
	}
	return json_pack("{s:s, s:i, s:i, s:i, s:i, s:o}", "suite", "load", "requests", (int)o->requests, "prompt", LOAD_PROMPT, "tokens", LOAD_TOKENS, "slots",
			 (int)tandem_info(b->control)->slots, "levels", list);
}
