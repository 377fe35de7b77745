/*
 * bench_summary.c: the handful of figures that everybody asks for, out of the suites' JSON, each with what the memory's speed alone would allow
 * (bench_suite.h). Figures whose suite was not run are left out.
 */
#include <string.h>

#include "client/bench_suite.h"

enum { PROMPT = 2048, LONG_PROMPT = 8192 };
static const double at = 5.0; /* the acceptance length of the figures that hang on one */

#define N(j, key) td_bench_number(j, key)

static const json_t *suite(const json_t *suites, const char *name)
{
	const json_t *s;
	size_t i;

	json_array_foreach(suites, i, s)
		if (!strcmp(td_bench_string(s, "suite"), name))
			return s;
	return NULL;
}

/* The entry of a list whose key has this value; the list's last one for `closest`. */
static const json_t *entry(const json_t *list, const char *key, double value, int closest)
{
	const json_t *e;
	size_t i;

	json_array_foreach(list, i, e)
		if (N(e, key) == value)
			return e;
	return closest ? json_array_get(list, json_array_size(list) - 1) : NULL;
}

static void add(json_t *list, const char *figure, double value, const char *unit, double floor_value)
{
	if (value > 0)
		json_array_append_new(list, json_pack("{s:s, s:f, s:s, s:f}", "figure", figure, "value", value, "unit", unit, "floor", floor_value));
}

static void of_cycle(json_t *list, const json_t *c, double floor_us)
{
	char name[96];
	double all = N(c, "cycle_us");

	snprintf(name, sizeof(name), "verify with head and accept, prompt of %d", (int)N(c, "prompt"));
	add(list, name, (N(c, "verify_us") + N(c, "accept_us")) / 1e3, "ms", floor_us / 1e3);
	add(list, "draft", N(c, "draft_us") / 1e3, "ms", 0);
	add(list, "whole cycle", all / 1e3, "ms", 0);
	if (all > 0) /* nothing at all is a figure, too */
		json_array_append_new(list, json_pack("{s:s, s:f, s:s, s:f}", "figure", "idle and hand-over of a cycle", "value",
						      100 * (N(c, "idle_us") + N(c, "handover_us")) / all, "unit", "%", "floor", 0.0));
	add(list, "weight streaming in verify, share of the bandwidth", 100 * N(c, "verify_roof_share"), "%", 0);
	add(list, "CPU time of the daemon per cycle", N(c, "daemon_cpu_us"), "us", 0);
}

static void of_latency(json_t *list, const json_t *s, double floor_us)
{
	const json_t *cases = json_object_get(s, "cases"), *c = entry(cases, "prompt", PROMPT, 1), *means = json_object_get(s, "mean_of_ratios"), *m;
	const char *against = json_object_get(c, "bf16") ? "assumed_against_bf16" : "assumed";
	char name[96];
	size_t i;

	snprintf(name, sizeof(name), "plain decoding, a step, prompt of %d", (int)N(c, "prompt"));
	add(list, name, N(json_object_get(c, "plain"), "cycle_ms"), "ms", floor_us / 1e3);
	add(list, "BF16 plain decoding, a step", N(json_object_get(c, "bf16"), "cycle_ms"), "ms", 0);
	snprintf(name, sizeof(name), "per token at length 5, times plain%s decoding", json_object_get(c, "bf16") ? " BF16" : "");
	add(list, name, N(entry(json_object_get(c, against), "acceptance_length", at, 0), "ratio_per_token"), "x", 0);
	c = entry(cases, "prompt", LONG_PROMPT, 0);
	add(list, "prefill of 8192", N(json_object_get(c, "plain"), "prefill_ms"), "ms", 0);
	json_array_foreach(means, i, m) {
		snprintf(name, sizeof(name), "mean of the latency ratios at length %.1f", N(m, "acceptance_length"));
		add(list, name, N(m, "ratio_whole"), "x", 0);
	}
}

json_t *td_bench_summary(const json_t *suites)
{
	const json_t *ops = suite(suites, "ops"), *cycle = suite(suites, "cycle"), *latency = suite(suites, "latency"), *load = suite(suites, "load"), *l;
	double floor_us = ops && N(ops, "roof_gb_per_s") > 0 ? (N(ops, "body_bytes") + N(ops, "head_bytes")) / N(ops, "roof_gb_per_s") / 1e3 : 0;
	json_t *list = json_array();
	char name[64];
	size_t i;

	if (ops)
		add(list, "bandwidth measured", N(ops, "roof_gb_per_s"), "GB/s", 0);
	if (cycle)
		of_cycle(list, entry(json_object_get(cycle, "cases"), "prompt", PROMPT, 1), floor_us);
	if (latency)
		of_latency(list, latency, floor_us);
	json_array_foreach(json_object_get(load, "levels"), i, l)
		if (N(l, "clients") > 1) {
			snprintf(name, sizeof(name), "%d clients, tokens per second, times one", (int)N(l, "clients"));
			add(list, name, N(l, "against_one"), "x", 0);
		}
	return json_pack("{s:s, s:o}", "suite", "summary", "figures", list);
}
