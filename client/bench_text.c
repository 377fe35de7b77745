/*
 * bench_text.c: the suites' figures as tables (bench_suite.h).
 */
#include <string.h>

#include "client/bench_suite.h"

#define N(j, key) td_bench_number(j, key)

static void ops(const json_t *s)
{
	const json_t *o;
	size_t i;

	printf("ops: %s, model %s, %d keys; roofs measured here: %.1f GB/s, %.1f GFLOP/s\n", td_bench_string(s, "device"), td_bench_string(s, "model"),
	       (int)N(s, "context"), N(s, "roof_gb_per_s"), N(s, "roof_gflop_per_s"));
	printf("  %-17s %5s  %-38s %11s %9s %9s  %s\n", "operation", "rows", "shape", "us", "GB/s", "GFLOP/s", "of the roof");
	json_array_foreach(json_object_get(s, "ops"), i, o)
		printf("  %-17s %5d  %-38s %11.1f %9.2f %9.1f  %3.0f %% (%s%s)\n", td_bench_string(o, "name"), (int)N(o, "rows"), td_bench_string(o, "shape"), N(o, "us"),
		       N(o, "gb_per_s"), N(o, "gflop_per_s"), 100 * N(o, "roof_share"), td_bench_string(o, "bound"),
		       json_is_true(json_object_get(o, "from_memory")) ? "" : ", perhaps cached");
	printf("\n");
}

static void skipped(const json_t *s)
{
	const json_t *one;
	size_t i;

	json_array_foreach(json_object_get(s, "skipped"), i, one)
		printf("  %s left out: it doesn't fit into the daemon's context\n", json_string_value(one));
	printf("\n");
}

static void cycle(const json_t *s)
{
	const json_t *c;
	size_t i;

	printf("cycle: microseconds of a mean one\n  %7s %9s %9s %9s %9s %9s %9s  %-10s %s\n", "prompt", "whole", "draft", "verify", "accept", "hand-over", "idle",
	       "acceptance", "daemon's CPU");
	json_array_foreach(json_object_get(s, "cases"), i, c) {
		printf("  %7d %9.0f %9.0f %9.0f %9.0f %9.0f %9.0f  %-10.2f %.0f", (int)N(c, "prompt"), N(c, "cycle_us"), N(c, "draft_us"), N(c, "verify_us"),
		       N(c, "accept_us"), N(c, "handover_us"), N(c, "idle_us"), N(c, "acceptance_length"), N(c, "daemon_cpu_us"));
		if (N(c, "verify_gb_per_s") > 0)
			printf("   verify streams its layers' weights at %.1f GB/s, %.0f %% of the roof", N(c, "verify_gb_per_s"), 100 * N(c, "verify_roof_share"));
		printf("\n");
	}
	skipped(s);
}

static void way(const char *name, const json_t *w)
{
	if (w)
		printf("  %-34s %9.1f %9.1f %9.2f %9.2f %9.3f\n", name, N(w, "first_ms"), N(w, "whole_ms"), N(w, "cycle_ms"), N(w, "acceptance_length"),
		       N(w, "ms_per_token"));
}

static void assumed(const json_t *list, const char *against)
{
	char name[64], first[32], one[32];
	const json_t *a;
	int measured;
	size_t i;

	json_array_foreach(list, i, a) {
		measured = N(a, "measured_length") > 0;
		snprintf(name, sizeof(name), "assumed length %.1f, %s", N(a, "acceptance_length"), measured ? "answered so" : "cycle as measured");
		first[0] = one[0] = '\0';
		if (measured) {
			snprintf(first, sizeof(first), "%.1f", N(a, "first_ms"));
			snprintf(one, sizeof(one), "%.2f", N(a, "cycle_ms"));
		}
		printf("  %-34s %9s %9.1f %9s %9.2f %9.3f   %.2f times %s; per token %.2f times\n", name, first, N(a, "whole_ms"), one,
		       N(a, measured ? "measured_length" : "acceptance_length"), N(a, "ms_per_token"), N(a, "ratio_whole"), against, N(a, "ratio_per_token"));
	}
}

static void latency(const json_t *s)
{
	const json_t *c;
	size_t i;

	printf("latency: one at a time, medians of %d answers after %d warm-ups, milliseconds\n", (int)N(s, "runs"), (int)N(s, "warmups"));
	json_array_foreach(json_object_get(s, "cases"), i, c) {
		const json_t *bf16 = json_object_get(c, "bf16");

		printf("  %-34s %9s %9s %9s %9s %9s\n", "", "first", "whole", "cycle", "accepted", "per token");
		printf("  %d -> %d tokens\n", (int)N(c, "prompt"), (int)N(c, "tokens"));
		way("with speculation", json_object_get(c, "speculation"));
		way("without", json_object_get(c, "plain"));
		way("BF16 weights, without", bf16);
		assumed(json_object_get(c, bf16 ? "assumed_against_bf16" : "assumed"), bf16 ? "BF16 without" : "without");
	}
	json_array_foreach(json_object_get(s, "mean_of_ratios"), i, c)
		printf("  mean of the ratios at length %.1f: %.2f times; per token %.2f times\n", N(c, "acceptance_length"), N(c, "ratio_whole"), N(c, "ratio_per_token"));
	skipped(s);
}

static void load(const json_t *s)
{
	const json_t *l;
	size_t i;

	printf("load: %d answers of %d tokens for each client, prompts of %d; %d slots\n", (int)N(s, "requests"), (int)N(s, "tokens"), (int)N(s, "prompt"),
	       (int)N(s, "slots"));
	printf("  %7s %10s %8s  %21s  %25s  %9s %16s\n", "clients", "tokens/s", "of one", "first token p50, p99", "between tokens p50, p99", "fairness", "slowest/fastest");
	json_array_foreach(json_object_get(s, "levels"), i, l)
		printf("  %7d %10.1f %8.2f  %9.1f %8.1f ms  %11.2f %10.2f ms  %9.3f %16.2f\n", (int)N(l, "clients"), N(l, "tokens_per_s"), N(l, "against_one"), N(l, "first_p50_ms"),
		       N(l, "first_p99_ms"), N(l, "gap_p50_ms"), N(l, "gap_p99_ms"), N(l, "fairness"), N(l, "slowest_over_fastest"));
	printf("\n");
}

static void summary(const json_t *s)
{
	const json_t *list = json_object_get(s, "figures"), *f;
	size_t i;

	if (json_array_size(list))
		printf("summary; in brackets what streaming the weights once takes at the bandwidth measured here\n");
	json_array_foreach(list, i, f) {
		printf("  %-52s %10.3f %s", td_bench_string(f, "figure"), N(f, "value"), td_bench_string(f, "unit"));
		if (N(f, "floor") > 0)
			printf("  (%.3f)", N(f, "floor"));
		printf("\n");
	}
}

void td_bench_text(const json_t *report)
{
	static const struct {
		const char *name;
		void (*say)(const json_t *);
	} suite[] = {{"ops", ops}, {"cycle", cycle}, {"latency", latency}, {"load", load}, {"summary", summary}};
	const json_t *s;
	size_t i, k;

	printf("%s%smodel %s; %d processors, load average %.1f\n\n", td_bench_string(report, "server"), *td_bench_string(report, "server") ? ", " : "",
	       td_bench_string(report, "model"), (int)N(report, "processors"), N(report, "load_average"));
	if (*td_bench_string(report, "draft_vocabulary"))
		printf("drafts are chosen from the tokens that %s lists\n\n", td_bench_string(report, "draft_vocabulary"));
	if (*td_bench_string(report, "activations"))
		printf("model.activations = %s\n\n", td_bench_string(report, "activations"));
	if (N(report, "sm_share") < 100)
		printf("on %d %% of the GPU's multiprocessors\n\n", (int)N(report, "sm_share"));
	json_array_foreach(json_object_get(report, "suites"), i, s)
		for (k = 0; k < sizeof(suite) / sizeof(*suite); k++)
			if (!strcmp(td_bench_string(s, "suite"), suite[k].name))
				suite[k].say(s);
}
