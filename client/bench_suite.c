/*
 * bench_suite.c: which suites, on which daemon, in which order (bench_suite.h).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "client/bench_suite.h"

static json_t *(*const suite_run[])(struct td_bench *, const struct td_bench_options *) = {NULL, td_bench_cycle, td_bench_latency, td_bench_load_suite};
static const char *const suite_name[] = {"ops", "cycle", "latency", "load"};
enum { OPS, CYCLE, LATENCY, LOAD, SUITES };

static int number_of(const char *name)
{
	int i;

	for (i = 0; i < SUITES && strcmp(name, suite_name[i]); i++)
		;
	return i;
}

int td_bench_suite_known(const char *name)
{
	return number_of(name) < SUITES;
}

double td_bench_number(const json_t *j, const char *key)
{
	return json_number_value(json_object_get(j, key));
}

const char *td_bench_string(const json_t *j, const char *key)
{
	const char *text = json_string_value(json_object_get(j, key));

	return text ? text : "";
}

static json_t *head(const struct td_bench *b, const struct td_bench_options *o)
{
	double load[3] = {0};
	char when[32] = "";
	time_t now = time(NULL);
	struct utsname u = {0};
	struct tm tm;

	if (gmtime_r(&now, &tm))
		strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", &tm);
	uname(&u);
	if (getloadavg(load, 3) < 0)
		load[0] = 0;
	return json_pack("{s:s, s:s, s:s, s:s, s:s, s:i, s:f, s:i, s:s, s:s}", "server", b->server ? b->server : "", "model", b->model ? b->model : o->model ? o->model : "",
			 "client", "tandem " TD_VERSION, "time", when, "machine", u.machine, "processors", (int)sysconf(_SC_NPROCESSORS_ONLN), "load_average",
			 load[0], "sm_share", (int)(o->share ? o->share : 100), "draft_vocabulary", o->draft_vocabulary ? o->draft_vocabulary : "",
			 "activations", o->activations ? o->activations : "");
}

/* Those that need a daemon, on the one that b->common names. */
static int serve(struct td_bench *b, const struct td_bench_options *o, const int *want, json_t *suites, json_t **latency)
{
	int i, rc = td_bench_open(b);

	for (i = CYCLE; !rc && i < SUITES; i++) {
		json_t *j = want[i] ? suite_run[i](b, o) : NULL;

		rc = want[i] && !j ? -1 : 0;
		if (!rc && j)
			json_array_append_new(suites, j);
		if (!rc && i == LATENCY)
			*latency = j;
	}
	return rc;
}

static int own_daemon(struct td_bench *b, const struct td_bench_options *o, struct td_bench_daemon *d, const char *weights)
{
	struct td_bench_daemon_how how = {.model = o->model, .drafter = weights ? "none" : o->drafter, .device = o->device, .weights = weights,
					  .slots = b->clients, .context = o->context, .share = o->share, .widths = o->widths, .tokenizer = o->tokenizer,
					  .draft_vocabulary = o->draft_vocabulary, .activations = o->activations, .assume = td_bench_synthetic(o->model)};

	if (td_bench_daemon_start(d, &how)) {
		b->code = td_bench_interrupted ? TD_EXIT_INTERRUPTED : TD_EXIT_FAILED;
		return -1;
	}
	b->common.socket = d->socket;
	b->assumes = how.assume;
	return 0;
}

/* The same engine with BF16 weights and without speculation, in a daemon of its own after the other one has gone. */
static int baseline(struct td_bench *b, const struct td_bench_options *o, json_t *latency)
{
	struct td_bench plain = {.clients = 1, .draft_tokens = 0};
	struct td_bench_daemon d = {0};
	int rc = own_daemon(&plain, o, &d, "bf16");

	if (!rc)
		rc = td_bench_open(&plain) || td_bench_latency_baseline(&plain, o, latency) ? -1 : 0;
	td_bench_close(&plain);
	td_bench_daemon_stop(&d);
	if (rc)
		b->code = plain.code;
	return rc;
}

/* How much of the bandwidth measured in this run a verify's weights came with. */
static void relate(json_t *suites)
{
	const json_t *ops = NULL, *cycle = NULL, *s;
	json_t *one;
	double bytes, us;
	size_t i;

	json_array_foreach(suites, i, s) {
		ops = strcmp(td_bench_string(s, "suite"), "ops") ? ops : s;
		cycle = strcmp(td_bench_string(s, "suite"), "cycle") ? cycle : s;
	}
	bytes = ops ? td_bench_number(ops, "body_bytes") : 0;
	json_array_foreach(json_object_get(cycle, "cases"), i, one) {
		us = td_bench_number(one, "verify_us");
		if (!(bytes > 0) || !(us > 0))
			continue;
		json_object_set_new(one, "verify_gb_per_s", json_real(bytes / us / 1e3));
		json_object_set_new(one, "verify_roof_share", json_real(bytes / us / 1e3 / td_bench_number(ops, "roof_gb_per_s")));
	}
}

static int run_ops(struct td_bench *b, const struct td_bench_options *o, const struct td_bench_daemon *d, json_t *suites)
{
	json_t *j = td_bench_ops(b, o, d);

	if (j)
		json_array_append_new(suites, j);
	return j ? 0 : -1;
}

/* Operations alone on the whole GPU come first. On a slice of it they are measured beside the idle daemon, as a client of its MPS. */
static int run(struct td_bench *b, const struct td_bench_options *o, const int *want, json_t *suites)
{
	int serving = want[CYCLE] || want[LATENCY] || want[LOAD], rc = 0;
	struct td_bench_daemon d = {0};
	json_t *latency = NULL;

	if (want[OPS] && !o->share)
		rc = run_ops(b, o, &d, suites);
	if (rc || (!serving && !o->share))
		return rc;
	b->clients = want[LOAD] ? o->max_clients : 1;
	if (o->model)
		rc = own_daemon(b, o, &d, NULL);
	if (!rc && want[OPS] && o->share)
		rc = run_ops(b, o, &d, suites);
	if (!rc && serving)
		rc = serve(b, o, want, suites, &latency);
	td_bench_daemon_stop(&d);
	if (!rc && latency && o->model)
		rc = baseline(b, o, latency);
	if (!rc && latency)
		td_bench_latency_means(latency);
	relate(suites);
	return rc;
}

static int save(const json_t *report, const char *path)
{
	if (!json_dump_file(report, path, JSON_INDENT(2)))
		return 0;
	fprintf(stderr, "tandem bench: %s can't be written: %s\n", path, strerror(errno));
	return -1;
}

/* A page or a file that can't be written is told before everything is measured. */
static int try_files(const struct td_bench *b, const struct td_bench_options *o)
{
	json_t *report = head(b, o);
	int rc = (o->html && td_bench_html(report, o->html)) || (o->save && save(report, o->save)) ? -1 : 0;

	json_decref(report);
	return rc;
}

static void tell(struct td_bench *b, const struct td_bench_options *o, const json_t *report)
{
	if (o->json)
		td_json_print(json_deep_copy(report), JSON_INDENT(2));
	else
		td_bench_text(report);
	if ((o->html && td_bench_html(report, o->html)) || (o->save && save(report, o->save)))
		b->code = TD_EXIT_FAILED;
}

int td_bench_suites(struct td_bench *b, const struct td_bench_options *o, const struct td_list *words)
{
	int want[SUITES] = {0};
	json_t *suites = json_array(), *report;
	size_t i;
	int rc;

	for (i = 0; i < words->n; i++)
		want[number_of(words->item[i])] = 1;
	rc = try_files(b, o);
	if (rc)
		b->code = TD_EXIT_FAILED;
	else
		rc = run(b, o, want, suites);
	report = rc ? NULL : head(b, o);
	if (report) {
		json_array_append_new(suites, td_bench_summary(suites));
		json_object_set(report, "suites", suites);
		tell(b, o, report);
	}
	json_decref(report);
	json_decref(suites);
	td_bench_close(b);
	return b->code;
}
