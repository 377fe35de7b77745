/*
 * bench_html.c: the suites' figures as one page with its drawings inside (bench_suite.h): no script, no font, no file but this one.
 */
#include <errno.h>
#include <string.h>

#include "client/bench_suite.h"

#define N(j, key) td_bench_number(j, key)
enum { WIDTH = 960, LABEL = 260, BAR = 380, ROW = 20 };

static const char style[] =
	"body{font:15px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222;background:#fff}h1,h2{font-weight:600}"
	"table{border-collapse:collapse;margin:1em 0}td,th{padding:.15em .7em;text-align:right;border-bottom:1px solid #ddd}"
	"td:first-child,th:first-child{text-align:left}"
	"svg{max-width:100%;height:auto}text{font:12px sans-serif;fill:#222}.note{color:#555}"
	"@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}text{fill:#ddd}td,th{border-color:#444}.note{color:#aaa}}";

static const char *const colour[] = {"#2b6cb0", "#2f855a", "#b7791f", "#805ad5", "#9aa5b1", "#c53030"};

static void text(FILE *f, const char *s)
{
	for (; *s; s++)
		if (*s == '<')
			fputs("&lt;", f);
		else if (*s == '>')
			fputs("&gt;", f);
		else if (*s == '&')
			fputs("&amp;", f);
		else if (*s == '"')
			fputs("&quot;", f);
		else
			fputc(*s, f);
}

/* ---- drawing ------------------------------------------------------------------------------------------------------------------------ */

static void svg_begin(FILE *f, int rows, const char *title)
{
	fprintf(f, "<svg viewBox=\"0 0 %d %d\" width=\"%d\" role=\"img\" aria-label=\"", WIDTH, rows * ROW + 4, WIDTH);
	text(f, title);
	fputs("\">\n", f);
}

static void label(FILE *f, int row, const char *s)
{
	fprintf(f, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">", LABEL - 8, row * ROW + 15);
	text(f, s);
	fputs("</text>", f);
}

/* A piece of a bar, from and to as parts of its full length; longer ones are cut and marked. */
static void piece(FILE *f, int row, double from, double to, const char *fill, const char *what)
{
	double over = to > 1 ? 1 : to;

	if (over <= from)
		return;
	fprintf(f, "<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"%s\"><title>", LABEL + from * BAR, row * ROW + 3,
		(over - from) * BAR, ROW - 5, fill);
	text(f, what);
	fputs("</title></rect>", f);
}

static void value(FILE *f, int row, double at, const char *s)
{
	fprintf(f, "<text x=\"%.1f\" y=\"%d\">", LABEL + (at > 1 ? 1 : at) * BAR + 6, row * ROW + 15);
	text(f, s);
	fputs("</text>\n", f);
}

static void bar(FILE *f, int row, const char *name, double part, const char *fill, const char *said)
{
	label(f, row, name);
	piece(f, row, 0, part, fill, said);
	value(f, row, part, said);
}

static double largest(const json_t *list, const char *key)
{
	const json_t *one;
	double most = 0;
	size_t i;

	json_array_foreach(list, i, one)
		most = N(one, key) > most ? N(one, key) : most;
	return most > 0 ? most : 1;
}

static void legend(FILE *f, int row, const char *const *name, int n)
{
	int i;

	for (i = 0; i < n; i++)
		fprintf(f, "<rect x=\"%d\" y=\"%d\" width=\"12\" height=\"12\" fill=\"%s\"/><text x=\"%d\" y=\"%d\">%s</text>", LABEL + i * 110,
			row * ROW + 5, colour[i], LABEL + i * 110 + 17, row * ROW + 15, name[i]);
	fputc('\n', f);
}

/* ---- suites ------------------------------------------------------------------------------------------------------------------------- */

static void ops(FILE *f, const json_t *s)
{
	const json_t *list = json_object_get(s, "ops"), *o;
	char name[128], said[128];
	size_t i;

	fputs("<h2>Operations</h2>\n<p>", f);
	text(f, td_bench_string(s, "device"));
	fprintf(f, ". Roofs measured in this run: %.1f GB/s and %.1f GFLOP/s. A bar is the share of the nearer roof: blue where memory bounds, green where "
		"arithmetic does.</p><p class=\"note\">What may lie in a cache can be beyond the roof of memory; its bar is cut there.</p>\n", N(s, "roof_gb_per_s"),
		N(s, "roof_gflop_per_s"));
	svg_begin(f, (int)json_array_size(list), "share of the roof");
	json_array_foreach(list, i, o) {
		snprintf(name, sizeof(name), "%s, %d row%s", td_bench_string(o, "name"), (int)N(o, "rows"), N(o, "rows") > 1 ? "s" : "");
		snprintf(said, sizeof(said), "%.0f %%   %.1f us, %.1f GB/s, %.1f GFLOP/s", 100 * N(o, "roof_share"), N(o, "us"), N(o, "gb_per_s"),
			 N(o, "gflop_per_s"));
		bar(f, (int)i, name, N(o, "roof_share"), strcmp(td_bench_string(o, "bound"), "memory") ? colour[1] : colour[0], said);
	}
	fputs("</svg>\n", f);
}

static void cycle(FILE *f, const json_t *s)
{
	static const char *const key[] = {"draft_us", "verify_us", "accept_us", "handover_us", "idle_us"};
	static const char *const name[] = {"draft", "verify", "accept", "hand-over", "idle"};
	const json_t *list = json_object_get(s, "cases"), *c;
	double most = largest(list, "cycle_us"), at;
	char said[96];
	size_t i, k;

	fputs("<h2>A cycle</h2>\n", f);
	svg_begin(f, (int)json_array_size(list) + 1, "parts of a cycle");
	json_array_foreach(list, i, c) {
		snprintf(said, sizeof(said), "prompt of %d tokens", (int)N(c, "prompt"));
		label(f, (int)i, said);
		for (k = 0, at = 0; k < 5; k++) {
			snprintf(said, sizeof(said), "%s %.0f us", name[k], N(c, key[k]));
			piece(f, (int)i, at / most, (at + N(c, key[k])) / most, colour[k], said);
			at += N(c, key[k]);
		}
		snprintf(said, sizeof(said), "%.0f us", N(c, "cycle_us"));
		value(f, (int)i, at / most, said);
	}
	legend(f, (int)json_array_size(list), name, 5);
	fputs("</svg>\n<table><tr><th>prompt</th><th>cycle</th>", f);
	for (k = 0; k < 5; k++)
		fprintf(f, "<th>%s</th>", name[k]);
	fputs("<th>acceptance length</th></tr>\n", f);
	json_array_foreach(list, i, c) {
		fprintf(f, "<tr><td>%d</td><td>%.0f us</td>", (int)N(c, "prompt"), N(c, "cycle_us"));
		for (k = 0; k < 5; k++)
			fprintf(f, "<td>%.0f us</td>", N(c, key[k]));
		fprintf(f, "<td>%.2f</td></tr>\n", N(c, "acceptance_length"));
	}
	fputs("</table>\n", f);
}

static int latency_way(FILE *f, int row, const char *name, const json_t *w, double most, const char *fill)
{
	char said[96];

	if (!w)
		return row;
	snprintf(said, sizeof(said), "%.1f ms, %.3f ms per token", N(w, "whole_ms"), N(w, "ms_per_token"));
	bar(f, row, name, N(w, "whole_ms") / most, fill, said);
	return row + 1;
}

static void latency_case(FILE *f, const json_t *c)
{
	const json_t *bf16 = json_object_get(c, "bf16"), *list = json_object_get(c, bf16 ? "assumed_against_bf16" : "assumed"), *a;
	double most = N(json_object_get(c, "plain"), "whole_ms"), with = N(json_object_get(c, "speculation"), "whole_ms");
	char name[96], said[128];
	int row = 0;
	size_t i;

	most = with > most ? with : most;
	most = bf16 && N(bf16, "whole_ms") > most ? N(bf16, "whole_ms") : most;
	most = most > 0 ? most : 1;
	fprintf(f, "<h3>%d &rarr; %d tokens</h3>\n", (int)N(c, "prompt"), (int)N(c, "tokens"));
	svg_begin(f, 3 + (int)json_array_size(list), "time of an answer");
	snprintf(name, sizeof(name), "speculation, measured length %.2f", N(json_object_get(c, "speculation"), "acceptance_length"));
	row = latency_way(f, row, name, json_object_get(c, "speculation"), most, colour[0]);
	row = latency_way(f, row, "without speculation", json_object_get(c, "plain"), most, colour[4]);
	row = latency_way(f, row, "BF16 weights, without speculation", bf16, most, colour[5]);
	json_array_foreach(list, i, a) {
		snprintf(name, sizeof(name), "assumed length %.1f, %s", N(a, "acceptance_length"), N(a, "measured_length") > 0 ? "answered so" : "measured cycle");
		snprintf(said, sizeof(said), "%.1f ms, %.2f times as fast as %s", N(a, "whole_ms"), N(a, "ratio_whole"), bf16 ? "BF16" : "without");
		bar(f, row++, name, N(a, "whole_ms") / most, colour[1], said);
	}
	fputs("</svg>\n", f);
}

static void latency(FILE *f, const json_t *s)
{
	const json_t *c;
	size_t i;

	fprintf(f, "<h2>Latency</h2>\n<p>One request at a time, medians of %d after %d warm-ups. Green bars %s, at an acceptance length that is assumed.</p>\n",
		(int)N(s, "runs"), (int)N(s, "warmups"), json_is_true(json_object_get(s, "answered_at_length")) ? "were answered so" :
		"are worked out: prefill and the measured cycle");
	json_array_foreach(json_object_get(s, "cases"), i, c)
		latency_case(f, c);
	json_array_foreach(json_object_get(s, "mean_of_ratios"), i, c)
		fprintf(f, "<p>Mean of the ratios at an assumed length of %.1f: %.2f times.</p>\n", N(c, "acceptance_length"), N(c, "ratio_whole"));
	json_array_foreach(json_object_get(s, "skipped"), i, c)
		fprintf(f, "<p class=\"note\">%s was left out: it doesn't fit into the daemon's context.</p>\n", json_string_value(c));
}

static void load(FILE *f, const json_t *s)
{
	const json_t *list = json_object_get(s, "levels"), *l;
	double most = largest(list, "tokens_per_s");
	char name[64], said[96];
	size_t i;

	fprintf(f, "<h2>Load</h2>\n<p>%d answers of %d tokens for each client; %d slots.</p>\n", (int)N(s, "requests"), (int)N(s, "tokens"), (int)N(s, "slots"));
	svg_begin(f, (int)json_array_size(list), "tokens per second");
	json_array_foreach(list, i, l) {
		snprintf(name, sizeof(name), "%d client%s", (int)N(l, "clients"), N(l, "clients") > 1 ? "s" : "");
		snprintf(said, sizeof(said), "%.1f tokens/s", N(l, "tokens_per_s"));
		bar(f, (int)i, name, N(l, "tokens_per_s") / most, colour[0], said);
	}
	fputs("</svg>\n<table><tr><th>clients</th><th>tokens/s</th><th>first token p50</th><th>p99</th><th>between tokens p50</th><th>p99</th>"
	      "<th>fairness</th></tr>\n", f);
	json_array_foreach(list, i, l)
		fprintf(f, "<tr><td>%d</td><td>%.1f</td><td>%.1f ms</td><td>%.1f ms</td><td>%.2f ms</td><td>%.2f ms</td><td>%.3f</td></tr>\n", (int)N(l, "clients"),
			N(l, "tokens_per_s"), N(l, "first_p50_ms"), N(l, "first_p99_ms"), N(l, "gap_p50_ms"), N(l, "gap_p99_ms"), N(l, "fairness"));
	fputs("</table>\n", f);
}

static void summary(FILE *f, const json_t *s)
{
	const json_t *list = json_object_get(s, "figures"), *one;
	size_t i;

	fputs("<h2>Summary</h2>\n<table><tr><th>figure</th><th>measured</th><th>weights at the bandwidth measured</th></tr>\n", f);
	json_array_foreach(list, i, one) {
		fputs("<tr><td>", f);
		text(f, td_bench_string(one, "figure"));
		fprintf(f, "</td><td>%.3f %s</td><td>", N(one, "value"), td_bench_string(one, "unit"));
		if (N(one, "floor") > 0)
			fprintf(f, "%.3f %s", N(one, "floor"), td_bench_string(one, "unit"));
		fputs("</td></tr>\n", f);
	}
	fputs("</table>\n", f);
}

int td_bench_html(const json_t *report, const char *path)
{
	static const struct {
		const char *name;
		void (*draw)(FILE *, const json_t *);
	} suite[] = {{"ops", ops}, {"cycle", cycle}, {"latency", latency}, {"load", load}, {"summary", summary}};
	FILE *f = fopen(path, "w");
	const json_t *s;
	size_t i, k;
	int bad;

	if (!f) {
		fprintf(stderr, "tandem bench: %s: %s\n", path, strerror(errno));
		return -1;
	}
	fprintf(f, "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>tandem bench</title><style>%s</style></head><body>\n"
		"<h1>tandem bench</h1>\n<p>", style);
	text(f, td_bench_string(report, "model"));
	fputs("; ", f);
	text(f, *td_bench_string(report, "server") ? td_bench_string(report, "server") : td_bench_string(report, "client"));
	fprintf(f, "; %s; %d processors, load average %.1f.</p>\n", td_bench_string(report, "time"), (int)N(report, "processors"), N(report, "load_average"));
	json_array_foreach(json_object_get(report, "suites"), i, s)
		for (k = 0; k < sizeof(suite) / sizeof(*suite); k++)
			if (!strcmp(td_bench_string(s, "suite"), suite[k].name))
				suite[k].draw(f, s);
	fputs("</body></html>\n", f);
	bad = ferror(f);
	if (fclose(f) || bad) {
		fprintf(stderr, "tandem bench: %s can't be written: %s\n", path, strerror(errno));
		return -1;
	}
	return 0;
}
