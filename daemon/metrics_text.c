/*
 * metrics_text.c: the figures in Prometheus' text format, 0.0.4: what metrics.c counted, and what is read where it lives.
 *
 * Each family is written once, its HELP and TYPE before its samples. Times are kept in microseconds and told in seconds by writing the decimal
 * point at its place, so that no digit is lost. Codes that never happened are left out; tenants, positions, states and outcomes are all there.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/daemon.h"

enum { LABEL_MAX = 2 * 480 + 1, TENANT_LABEL = 2 * TD_METRICS_NAME + 16 };

#define PART(field) offsetof(struct td_meter, field)

/* ---- writing ----------------------------------------------------------------------------------------------------------------------- */

static void family(FILE *f, const char *name, const char *type, const char *help)
{
	fprintf(f, "# HELP tandem_%s %s\n# TYPE tandem_%s %s\n", name, help, name, type);
}

/* A label's value as the format wants it: backslash, quote and line end are escaped. */
static const char *escaped(const char *value, char out[LABEL_MAX])
{
	size_t n = 0;

	for (; *value && n + 2 < LABEL_MAX; value++) {
		if (*value == '\\' || *value == '"' || *value == '\n')
			out[n++] = '\\';
		out[n++] = *value == '\n' ? 'n' : *value;
	}
	out[n] = '\0';
	return out;
}

static void count(FILE *f, uint64_t value, const char *name, const char *labels, ...) __attribute__((format(printf, 4, 5)));
static void count(FILE *f, uint64_t value, const char *name, const char *labels, ...)
{
	va_list ap;

	fprintf(f, "tandem_%s", name);
	va_start(ap, labels);
	vfprintf(f, labels, ap);
	va_end(ap);
	fprintf(f, " %llu\n", (unsigned long long)value);
}

static void seconds(FILE *f, uint64_t us, const char *name, const char *labels, ...) __attribute__((format(printf, 4, 5)));
static void seconds(FILE *f, uint64_t us, const char *name, const char *labels, ...)
{
	va_list ap;

	fprintf(f, "tandem_%s", name);
	va_start(ap, labels);
	vfprintf(f, labels, ap);
	va_end(ap);
	fprintf(f, " %llu.%06u\n", (unsigned long long)(us / 1000000), (unsigned)(us % 1000000));
}

/* One number without labels, and its family. */
static void single(FILE *f, const char *name, const char *type, const char *help, uint64_t value)
{
	family(f, name, type, help);
	count(f, value, name, "%s", "");
}

static void single_seconds(FILE *f, const char *name, const char *type, const char *help, uint64_t us)
{
	family(f, name, type, help);
	seconds(f, us, name, "%s", "");
}

struct bounds { /* a list of bounds as le has them */
	char le[TD_METRICS_BOUNDS + 1][16];
};

static void bounds_write(struct bounds *b, const uint64_t us[TD_METRICS_BOUNDS])
{
	for (int i = 0; i < TD_METRICS_BOUNDS; i++)
		snprintf(b->le[i], sizeof(b->le[i]), "%g", (double)us[i] / 1e6);
	snprintf(b->le[TD_METRICS_BOUNDS], sizeof(b->le[0]), "+Inf");
}

static char *put_count(char *at, uint64_t v)
{
	char digit[20];
	int n = 0;

	do
		digit[n++] = (char)('0' + v % 10);
	while (v /= 10);
	while (n)
		*at++ = digit[--n];
	return at;
}

/* `label`: nothing, or name="value" of what tells this histogram from the others of its family. Most of the text is these lines, and the loop waits
 * meanwhile: they are put together by hand, which is quicker than fprintf. */
static void histogram(FILE *f, const char *name, const char *label, const struct td_histogram *h, const struct bounds *b)
{
	char head[TENANT_LABEL + 128], text[(TD_METRICS_BOUNDS + 1) * (sizeof(head) + 48)], *at = text;
	const char *open = *label ? "{" : "", *close = *label ? "}" : "";
	uint64_t sum = 0;

	snprintf(head, sizeof(head), "tandem_%s_bucket{%s%sle=\"", name, label, *label ? "," : "");
	for (int i = 0; i <= TD_METRICS_BOUNDS; i++) {
		sum += h->bucket[i];
		at = stpcpy(stpcpy(stpcpy(at, head), b->le[i]), "\"} ");
		at = put_count(at, sum);
		*at++ = '\n';
	}
	fwrite(text, 1, (size_t)(at - text), f);
	fprintf(f, "tandem_%s_sum%s%s%s %llu.%06u\n", name, open, label, close, (unsigned long long)(h->sum_us / 1000000), (unsigned)(h->sum_us % 1000000));
	fprintf(f, "tandem_%s_count%s%s%s %llu\n", name, open, label, close, (unsigned long long)h->count);
}

static const char *code_name(int place)
{
	return td_error_name(-place);
}

/* ---- tenants ----------------------------------------------------------------------------------------------------------------------- */

struct tenants { /* those that are told, each with its label */
	const struct td_meter *meter[TD_METRICS_TENANTS + 1];
	char label[TD_METRICS_TENANTS + 1][TENANT_LABEL];
	int n;
};

static void tenants_find(struct tenants *t, const struct td_daemon *d)
{
	char name[LABEL_MAX];

	t->n = td_metrics_meters(&d->metrics, t->meter);
	for (int i = 0; i < t->n; i++)
		snprintf(t->label[i], TENANT_LABEL, "tenant=\"%s\"", escaped(t->meter[i]->name, name));
}

static void tenant_counters(FILE *f, const struct tenants *t)
{
	static const struct {
		const char *name, *help;
		size_t at;
		int time;
	} table[] = {
		{"requests_total", "Requests that were accepted.", PART(requests), 0},
		{"prompt_tokens_total", "Tokens of the prompts of accepted requests.", PART(prompt_tokens), 0},
		{"cached_tokens_total", "Of the prompt tokens: taken from the prefix cache, not computed again.", PART(cached_tokens), 0},
		{"output_tokens_total", "Tokens of answers.", PART(output_tokens), 0},
		{"cycles_total", "Verify steps, counted once for each request in them.", PART(cycles), 0},
		{"drafted_tokens_total", "Tokens that the drafter proposed.", PART(drafted), 0},
		{"accepted_tokens_total", "Of the proposed tokens: those that the target agreed with.", PART(accepted), 0},
		{"device_seconds_total", "Device time charged: the share of each step that went into this tenant's rows.", PART(device_us), 1},
		{"device_wasted_seconds_total", "Of the device time: rows of drafts that were rejected.", PART(wasted_us), 1},
	};
	for (size_t k = 0; k < sizeof(table) / sizeof(table[0]); k++) {
		family(f, table[k].name, "counter", table[k].help);
		for (int i = 0; i < t->n; i++) {
			uint64_t value = *(const uint64_t *)((const char *)t->meter[i] + table[k].at);

			(table[k].time ? seconds : count)(f, value, table[k].name, "{%s}", t->label[i]);
		}
	}
}

static void tenant_ends(FILE *f, const struct tenants *t)
{
	static const char *const finish[TD_OUT_ERROR] = {"stop", "length", "cancelled", "lost"};
	family(f, "requests_ended_total", "counter", "Accepted requests that ended: finish reason, lost (the client hung up), or the error's code.");
	for (int i = 0; i < t->n; i++)
		for (int k = 0; k < TD_OUTCOMES; k++)
			if (k < TD_OUT_ERROR || t->meter[i]->ended[k])
				count(f, t->meter[i]->ended[k], "requests_ended_total", "{%s,outcome=\"%s\"}", t->label[i],
				      k < TD_OUT_ERROR ? finish[k] : code_name(k - TD_OUT_ERROR));
	family(f, "requests_refused_total", "counter", "Requests that were not accepted, by the error's code.");
	for (int i = 0; i < t->n; i++)
		for (int k = 0; k < TD_METRICS_CODES; k++)
			if (t->meter[i]->refused[k])
				count(f, t->meter[i]->refused[k], "requests_refused_total", "{%s,code=\"%s\"}", t->label[i], code_name(k));
}

static void tenant_histograms(FILE *f, const struct tenants *t)
{
	static const struct {
		const char *name, *help;
		size_t at;
		const uint64_t *bounds;
	} table[] = {
		{"queue_wait_seconds", "From acceptance to the first slot.", PART(queue_wait), td_bounds_wait},
		{"time_to_first_token_seconds", "From acceptance to the first token, waiting included.", PART(first_token), td_bounds_wait},
		{"inter_token_seconds", "Time per token after the first: n tokens at once count as n times its n-th part.", PART(inter_token), td_bounds_token},
	};
	struct bounds bounds;

	for (size_t k = 0; k < sizeof(table) / sizeof(table[0]); k++) {
		bounds_write(&bounds, table[k].bounds);
		family(f, table[k].name, "histogram", table[k].help);
		for (int i = 0; i < t->n; i++)
			histogram(f, table[k].name, t->label[i], (const struct td_histogram *)((const char *)t->meter[i] + table[k].at), &bounds);
	}
}

/* Those that wait and those that run, by tenant and band. */
static void tenant_now(FILE *f, const struct td_daemon *d, const struct tenants *t)
{
	static const char *const band[] = {"interactive", "batch"};
	struct td_metrics_now now;

	td_metrics_now(d, &now);
	family(f, "requests_waiting", "gauge", "Requests that wait for a slot.");
	for (int i = 0; i < t->n; i++)
		for (int b = 0; b < 2; b++)
			count(f, now.waiting[i][b], "requests_waiting", "{%s,band=\"%s\"}", t->label[i], band[b]);
	family(f, "requests_running", "gauge", "Requests in slots.");
	for (int i = 0; i < t->n; i++)
		for (int b = 0; b < 2; b++)
			count(f, now.running[i][b], "requests_running", "{%s,band=\"%s\"}", t->label[i], band[b]);
}

/* ---- daemon ------------------------------------------------------------------------------------------------------------------------ */

static void about_daemon(FILE *f, const struct td_daemon *d)
{
	static const char *const states[] = {"loading", "ready", "degraded", "failed", "draining"};
	const char *state = td_status_state(d);
	char model[LABEL_MAX];

	family(f, "build_info", "gauge", "Always 1: version, model and device.");
	count(f, 1, "build_info", "{version=\"" TD_VERSION "\",model=\"%s\",device=\"%s\"}", escaped(d->model.name, model), d->model.device);
	single(f, "up", "gauge", "Always 1: tandemd answered.", 1);
	single(f, "ready", "gauge", "1 while both workers serve.", !strcmp(state, "ready"));
	family(f, "state", "gauge", "1 for the state that tandemd is in.");
	for (size_t i = 0; i < sizeof(states) / sizeof(states[0]); i++)
		count(f, !strcmp(state, states[i]), "state", "{state=\"%s\"}", states[i]);
	single_seconds(f, "uptime_seconds", "gauge", "Time since tandemd was started.", td_now_us() - d->started_us);
	single_seconds(f, "daemon_cpu_seconds_total", "counter", "CPU time of tandemd itself since it serves, user and system.",
		       td_status_cpu_us() - d->start_cpu_us);
	single(f, "slots", "gauge", "Requests that can run at once.", (uint64_t)d->model.shm.slots);
	single(f, "slots_used", "gauge", "Slots that are taken.", (uint64_t)td_scheduler_used(d));
	single(f, "context_tokens", "gauge", "Tokens of prompt and answer together that a request may have.", (uint64_t)d->model.shm.context);
	single(f, "resumable_bytes", "gauge", "Memory of ended requests that are kept for clients that resume.", d->retired_bytes);
}

static void about_connections(FILE *f, const struct td_daemon *d)
{
	static const char *const name[TD_PROTOCOLS] = {"socket", "http"};
	uint32_t n[TD_PROTOCOLS] = {0};

	for (const struct td_session *s = d->sessions; s; s = s->next)
		n[s->protocol->metric]++;
	family(f, "connections", "gauge", "Open connections.");
	for (int i = 0; i < TD_PROTOCOLS; i++)
		count(f, n[i], "connections", "{protocol=\"%s\"}", name[i]);
	family(f, "connections_opened_total", "counter", "Connections that were opened.");
	for (int i = 0; i < TD_PROTOCOLS; i++)
		count(f, d->metrics.opened[i], "connections_opened_total", "{protocol=\"%s\"}", name[i]);
	single(f, "connections_refused_total", "counter", "Connections that were refused, because there were too many.", d->listener.refused);
	family(f, "errors_total", "counter", "Errors that were told to clients, by code.");
	for (int k = 0; k < TD_METRICS_CODES; k++)
		if (d->metrics.errors[k])
			count(f, d->metrics.errors[k], "errors_total", "{code=\"%s\"}", code_name(k));
}

static void about_drafts(FILE *f, const struct td_daemon *d)
{
	family(f, "draft_position_drafted_total", "counter", "Drafts at this place of a block that were verified.");
	for (int i = 0; i < d->model.k_max; i++)
		count(f, d->metrics.drafted_at[i], "draft_position_drafted_total", "{position=\"%d\"}", i + 1);
	family(f, "draft_position_accepted_total", "counter", "Drafts at this place of a block that were accepted.");
	for (int i = 0; i < d->model.k_max; i++)
		count(f, d->count.accepted_at[i], "draft_position_accepted_total", "{position=\"%d\"}", i + 1);
}

/* ---- workers ----------------------------------------------------------------------------------------------------------------------- */

static uint64_t load(const _Atomic uint64_t *v)
{
	return atomic_load_explicit(v, memory_order_relaxed);
}

static void about_cycles(FILE *f, const struct td_daemon *d)
{
	const struct td_worker_stats *t = &d->shm->stats_target, *w = &d->shm->stats_drafter;
	struct bounds bounds;

	family(f, "cycle_stage_seconds_total", "counter",
	       "Where cycles spend their time: draft, wait (of the target for drafts), verify, commit. wait less draft is the part of the hand-overs.");
	seconds(f, load(&w->draft_us), "cycle_stage_seconds_total", "{stage=\"%s\"}", "draft");
	seconds(f, load(&t->wait_us), "cycle_stage_seconds_total", "{stage=\"%s\"}", "wait");
	seconds(f, load(&t->step_us), "cycle_stage_seconds_total", "{stage=\"%s\"}", "verify");
	seconds(f, load(&t->commit_us), "cycle_stage_seconds_total", "{stage=\"%s\"}", "commit");
	family(f, "worker_steps_total", "counter", "Steps: verifies of the target, drafts of the drafter.");
	count(f, load(&t->steps), "worker_steps_total", "{worker=\"%s\"}", "target");
	count(f, load(&w->steps), "worker_steps_total", "{worker=\"%s\"}", "drafter");
	single(f, "prefill_tokens_total", "counter", "Prompt tokens that the target computed.", load(&t->prefill_tokens));
	single_seconds(f, "prefill_seconds_total", "counter", "The target's time in prompts.", load(&t->prefill_us));
	family(f, "verify_step_seconds", "histogram", "A verify step, waiting left out; counted once for each request in it.");
	bounds_write(&bounds, td_bounds_token);
	histogram(f, "verify_step_seconds", "", &d->metrics.step, &bounds);
	family(f, "commit_gap_seconds", "histogram", "Between two deliveries of tokens to one request: what its client sees as a pause.");
	histogram(f, "commit_gap_seconds", "", &d->metrics.gap, &bounds);
	family(f, "request_duration_seconds", "histogram", "From acceptance to the end, however it ended.");
	bounds_write(&bounds, td_bounds_request);
	histogram(f, "request_duration_seconds", "", &d->metrics.duration, &bounds);
}

static void about_workers(FILE *f, const struct td_daemon *d)
{
	static const char *const states[] = {"starting", "loading", "ready", "failed", "restarting"};
	const struct td_child *child[] = {&d->target, &d->drafter};
	int n = d->model.has_drafter ? 2 : 1;

	family(f, "worker_state", "gauge", "1 for the state that the worker is in.");
	for (int i = 0; i < n; i++)
		for (size_t k = 0; k < sizeof(states) / sizeof(states[0]); k++)
			count(f, !strcmp(td_status_worker_state(child[i]), states[k]), "worker_state", "{worker=\"%s\",state=\"%s\"}",
			      child[i]->name, states[k]);
	family(f, "worker_restarts_total", "counter", "How often the worker was replaced.");
	for (int i = 0; i < n; i++)
		count(f, (uint64_t)child[i]->restarts, "worker_restarts_total", "{worker=\"%s\"}", child[i]->name);
	family(f, "worker_load_ratio", "gauge", "How much of the present loading stage is done, 0 to 1; 1 when nothing loads.");
	for (int i = 0; i < n; i++) {
		int loading = child[i]->state == TD_CHILD_LOADING || child[i]->state == TD_CHILD_STARTING;
		double part = !loading ? 1 : child[i]->stage_total ? (double)child[i]->stage_done / (double)child[i]->stage_total : 0;

		fprintf(f, "tandem_worker_load_ratio{worker=\"%s\"} %.4f\n", child[i]->name, part < 1 ? part : 1);
	}
	family(f, "worker_weights_bytes", "gauge", "Memory of the worker's weights, as it said when it was ready.");
	for (int i = 0; i < n; i++)
		count(f, child[i]->weights_bytes, "worker_weights_bytes", "{worker=\"%s\"}", child[i]->name);
	family(f, "worker_cache_bytes", "gauge", "Memory of the worker's caches, as it said when it was ready.");
	for (int i = 0; i < n; i++)
		count(f, child[i]->cache_bytes, "worker_cache_bytes", "{worker=\"%s\"}", child[i]->name);
}

static void planned(FILE *f, const char *worker, const struct td_memplan_worker *w)
{
	const struct {
		const char *part;
		uint64_t bytes;
	} table[] = {{"weights", w->weights}, {"kv", w->kv}, {"state", w->state}, {"buffers", w->buffers}, {"context", w->context}};

	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
		count(f, table[i].bytes, "planned_memory_bytes", "{worker=\"%s\",part=\"%s\"}", worker, table[i].part);
}

static void about_prefix(FILE *f, const struct td_worker_stats *t)
{
	single(f, "prefix_lookups_total", "counter", "Requests that asked the prefix cache.", load(&t->prefix_lookups));
	single(f, "prefix_hits_total", "counter", "Of the lookups: those that found something.", load(&t->prefix_hits));
	single(f, "prefix_hit_tokens_total", "counter", "Prompt tokens that the prefix cache gave.", load(&t->prefix_hit_tokens));
	single(f, "prefix_evicted_pages_total", "counter", "KV pages that the prefix cache gave up.", load(&t->prefix_evicted));
	single(f, "state_checkpoints", "gauge", "Checkpoints of recurrent state that the prefix cache holds.", load(&t->prefix_states));
	single(f, "state_checkpoints_limit", "gauge", "The most checkpoints that there can be.", load(&t->prefix_states_max));
}

static void about_memory(FILE *f, const struct td_daemon *d)
{
	const struct td_worker_stats *t = &d->shm->stats_target;

	if (d->model.memory_known) {
		family(f, "planned_memory_bytes", "gauge", "Device memory as planned at the start.");
		planned(f, "target", &d->model.memory.target);
		if (d->model.has_drafter)
			planned(f, "drafter", &d->model.memory.drafter);
		count(f, d->model.memory.exchange, "planned_memory_bytes", "{worker=\"%s\",part=\"%s\"}", "both", "exchange");
	}
	single(f, "kv_pages", "gauge", "Pages of the KV cache, of 64 tokens each.", (uint64_t)d->model.kv_pages);
	single(f, "kv_pages_cached", "gauge", "KV pages that only the prefix cache holds.", load(&t->prefix_pages));
	single(f, "kv_pages_used", "gauge", "KV pages that running requests have.", (uint64_t)d->queue.pages_used);
}

char *td_metrics_render(const struct td_daemon *d, size_t *n)
{
	char *text = NULL;
	FILE *f = open_memstream(&text, n);
	struct tenants tenants;
	int bad;

	if (!f)
		return NULL;
	tenants_find(&tenants, d);
	about_daemon(f, d);
	about_connections(f, d);
	tenant_now(f, d, &tenants);
	tenant_counters(f, &tenants);
	tenant_ends(f, &tenants);
	tenant_histograms(f, &tenants);
	about_drafts(f, d);
	about_cycles(f, d);
	about_workers(f, d);
	about_memory(f, d);
	about_prefix(f, &d->shm->stats_target);
	bad = ferror(f);
	if (fclose(f) || bad) {
		free(text);
		return NULL;
	}
	return text;
}

const char *td_metrics_text(struct td_daemon *d, uint64_t now_us, size_t *n)
{
	struct td_metrics *m = &d->metrics;

	if (!m->kept.text || now_us - m->kept.at_us >= TD_METRICS_KEEP_US) {
		td_metrics_finish(m);
		m->kept.text = td_metrics_render(d, &m->kept.n);
		m->kept.at_us = now_us;
	}
	*n = m->kept.n;
	return m->kept.text;
}

void td_metrics_finish(struct td_metrics *m)
{
	free(m->kept.text);
	m->kept.text = NULL;
}
