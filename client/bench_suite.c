/*
 * bench_suite.c: which suites, on which daemon, in which order (bench_suite.h).
 */
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "client/bench_suite.h"

static json_t *(*const suite_run[])(struct td_bench *, const struct td_bench_options *) = {td_bench_ops, td_bench_cycle, td_bench_latency, td_bench_load_suite};
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
	return json_pack("{s:s, s:s, s:s, s:s, s:s, s:i, s:f}", "server", b->server ? b->server : "", "model", b->model ? b->model : o->model ? o->model : "",
			 "client", "tandem " TD_VERSION, "time", when, "machine", u.machine, "processors", (int)sysconf(_SC_NPROCESSORS_ONLN), "load_average",
			 load[0]);
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
					  .slots = b->clients, .context = o->context};

	if (td_bench_daemon_start(d, &how)) {
		b->code = td_bench_interrupted ? TD_EXIT_INTERRUPTED : TD_EXIT_FAILED;
		return -1;
	}
	b->common.socket = d->socket;
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

static int run(struct td_bench *b, const struct td_bench_options *o, const int *want, json_t *suites)
{
	struct td_bench_daemon d = {0};
	json_t *j, *latency = NULL;
	int rc = 0;

	if (want[OPS]) {
		j = td_bench_ops(b, o);
		if (!j)
			return -1;
		json_array_append_new(suites, j);
	}
	if (!want[CYCLE] && !want[LATENCY] && !want[LOAD])
		return 0;
	b->clients = want[LOAD] ? o->max_clients : 1;
	if (o->model)
		rc = own_daemon(b, o, &d, NULL);
	if (!rc)
		rc = serve(b, o, want, suites, &latency);
	td_bench_daemon_stop(&d);
	if (!rc && latency && o->model)
		rc = baseline(b, o, latency);
	return rc;
}

int td_bench_suites(struct td_bench *b, const struct td_bench_options *o, const struct td_list *words)
{
	int want[SUITES] = {0};
	json_t *suites = json_array(), *report;
	size_t i;
	int rc;

	for (i = 0; i < words->n; i++)
		want[number_of(words->item[i])] = 1;
	report = head(b, o); /* a page that can't be written is told before everything is measured */
	rc = o->html && td_bench_html(report, o->html) ? -1 : 0;
	json_decref(report);
	if (rc)
		b->code = TD_EXIT_FAILED;
	else
		rc = run(b, o, want, suites);
	report = rc ? NULL : head(b, o);
	if (report) {
		json_object_set(report, "suites", suites);
		if (o->json)
			td_json_print(json_incref(report), JSON_INDENT(2));
		else
			td_bench_text(report);
		if (o->html && td_bench_html(report, o->html))
			b->code = TD_EXIT_FAILED;
	}
	json_decref(report);
	json_decref(suites);
	td_bench_close(b);
	return b->code;
}
