/*
 * cmd_status.c: `tandem status`: what the daemon is doing, as a table or as JSON; with --wait until it is ready.
 */
#include <poll.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/command.h"

static const char usage[] = "tandem status [options]";
static const char about[] =
	"Shows the daemon's state, its workers, its tenants and the totals since it started.\n\n"
	"Exit codes: 0 it answered (with --wait: it is ready); 2 wrong usage; 3 no daemon; 4 with --wait: not ready in time, or it failed.";

enum { CYCLES_TELLING = 100 }; /* fewer would tell of connections and questions, not of cycles */

static void bytes_text(uint64_t bytes, char out[16])
{
	static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
	double v = (double)bytes;
	int u = 0;

	for (; v >= 1024 && u < 4; u++)
		v /= 1024;
	snprintf(out, 16, u ? "%.1f %s" : "%.0f %s", v, unit[u]);
}

static void duration_text(uint64_t us, char out[32])
{
	uint64_t s = us / 1000000;

	if (s >= 86400)
		snprintf(out, 32, "%llu d %llu h", (unsigned long long)(s / 86400), (unsigned long long)(s % 86400 / 3600));
	else if (s >= 3600)
		snprintf(out, 32, "%llu h %llu min", (unsigned long long)(s / 3600), (unsigned long long)(s % 3600 / 60));
	else
		snprintf(out, 32, "%llu min %llu s", (unsigned long long)(s / 60), (unsigned long long)(s % 60));
}

static void print_worker(const struct tandem_worker_status *w)
{
	char weights[16], cache[16];
	double steps = w->steps ? (double)w->steps : 1;

	printf("\n%-8s %s", w->role, w->state);
	if (w->stage && w->total)
		printf(" (%s, %.0f %%)", w->stage, 100.0 * (double)w->done / (double)w->total);
	if (w->pid)
		printf(", pid %u", w->pid);
	if (w->restarts)
		printf(", %u restart%s", w->restarts, w->restarts == 1 ? "" : "s");
	printf("\n");
	if (w->device)
		printf("  device   %s\n", w->device);
	if (w->weights_bytes) {
		bytes_text(w->weights_bytes, weights);
		bytes_text(w->cache_bytes, cache);
		printf("  memory   weights %s, caches %s; loaded in %.2f s%s\n", weights, cache, (double)w->load_us / 1e6, w->imported ? " (taken over)" : "");
	}
	if (w->steps)
		printf("  steps    %llu, on average %.3f ms and %.3f ms of waiting\n", (unsigned long long)w->steps, (double)w->step_us / 1e3 / steps,
		       (double)w->wait_us / 1e3 / steps);
	if (w->prefill_us)
		printf("  prefill  %llu tokens, %.0f/s\n", (unsigned long long)w->prefill_tokens, (double)w->prefill_tokens / ((double)w->prefill_us / 1e6));
}

static void print_tenants(const struct tandem_status *s)
{
	size_t i;

	printf("\n%-20s %7s %7s %9s %9s %9s %11s %9s %8s\n", "tenant", "running", "waiting", "requests", "refused", "read", "written", "device s", "wasted");
	for (i = 0; i < s->n_tenants; i++) {
		const struct tandem_tenant_status *t = s->tenant + i;

		printf("%-20s %7u %7u %9llu %9llu %9llu %11llu %9.1f %6.1f %%\n", t->name, t->running, t->queued, (unsigned long long)t->requests,
		       (unsigned long long)t->refused, (unsigned long long)t->prompt_tokens, (unsigned long long)t->output_tokens, (double)t->gpu_us / 1e6,
		       t->gpu_us ? 100.0 * (double)t->wasted_us / (double)t->gpu_us : 0);
	}
}

static void print_cache(const struct tandem_status *s)
{
	const struct tandem_prefix_status *p = s->prefix;

	if (s->kv_pages)
		printf("memory   %u of %u KV pages in use\n", s->kv_pages_used, s->kv_pages);
	if (p)
		printf("prefix   %llu of %llu requests found something, %llu tokens; %u pages and %u of %u states are kept\n", (unsigned long long)p->hits,
		       (unsigned long long)p->lookups, (unsigned long long)p->hit_tokens, p->pages, p->states, p->states_max);
}

static void print_table(const struct tandem_status *s)
{
	char up[32];
	size_t i;

	duration_text(s->uptime_us, up);
	printf("%s, %s for %s\n", s->server, s->state, up);
	printf("model    %s, context of %u tokens\n", s->model, s->context);
	printf("slots    %u of %u in use, %u waiting, %u connection%s\n", s->slots_used, s->slots, s->queued, s->connections, s->connections == 1 ? "" : "s");
	printf("requests %llu: %llu finished, %llu cancelled, %llu failed\n", (unsigned long long)s->requests, (unsigned long long)s->finished,
	       (unsigned long long)s->cancelled, (unsigned long long)s->failed);
	printf("tokens   %llu read, %llu written in %llu cycles\n", (unsigned long long)s->prompt_tokens, (unsigned long long)s->output_tokens,
	       (unsigned long long)s->cycles);
	if (s->drafted)
		printf("drafts   %llu of %llu accepted, acceptance length %.2f\n", (unsigned long long)s->accepted, (unsigned long long)s->drafted,
		       td_acceptance(s->accepted, s->cycles));
	if (s->cycles >= CYCLES_TELLING)
		printf("daemon   %.1f us of CPU per cycle\n", (double)s->daemon_cpu_us / (double)s->cycles);
	if (s->sharing)
		printf("sharing  %s\n", s->sharing);
	print_cache(s);
	if (s->last_error)
		printf("error    %s\n", s->last_error);
	for (i = 0; i < s->n_workers; i++)
		print_worker(s->worker + i);
	if (s->n_tenants)
		print_tenants(s);
}

static double seconds(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static struct tandem_status *fetch(const struct td_common *common, struct tandem_error *err)
{
	struct tandem_options o = {.client = "tandem " TANDEM_VERSION, .tenant = common->tenant};
	struct tandem *t = tandem_connect(common->socket, &o, err);
	struct tandem_status *s = t ? tandem_status(t, err) : NULL;

	tandem_close(t);
	return s;
}

/* The status once it is ready, or what there was when the time was over (NULL: no daemon, *err says why). */
static struct tandem_status *fetch_ready(const struct td_common *common, uint32_t wait_ms, struct tandem_error *err)
{
	struct td_progress progress = {.command = "status", .quiet = !isatty(STDERR_FILENO)};
	double until = seconds() + wait_ms / 1000.0;
	struct tandem_status *s;

	for (;;) {
		s = fetch(common, err);
		if ((s && (!strcmp(s->state, "ready") || !strcmp(s->state, "failed"))) || seconds() >= until)
			break;
		if (s)
			td_progress_show(&progress, s);
		tandem_status_free(s);
		poll(NULL, 0, 50);
	}
	td_progress_end(&progress);
	return s;
}

int td_cmd_status(int argc, char **argv)
{
	struct td_common c = {0};
	uint32_t wait_ms = 0, waits = 0;
	int json = 0, code;
	struct td_option common[TD_COMMON_OPTIONS];
	const struct td_option own[] = {
		{TD_OPT_TITLE, .help = "Form:"},
		{TD_OPT_FLAG, "json", 0, NULL, "one JSON object", &json, 1, NULL, 0},
		{TD_OPT_SECONDS, "wait", 0, "[SECONDS]", "wait until the daemon is there and ready, so long at most; without a number as long as it takes", &wait_ms, 1,
		 &waits, 1},
		{TD_OPT_END},
	};
	const struct td_option *tables[] = {own, common, NULL};
	struct td_list words = {0};
	struct tandem_status *s = NULL;
	struct tandem_error err;

	td_common_options(&c, common);
	if (td_options_parse(argc, argv, usage, about, tables, &words, &code))
		goto out;
	code = TD_EXIT_USAGE;
	if (words.n) {
		fprintf(stderr, "tandem status: '%s' is not an option (see tandem status --help)\n", words.item[0]);
		goto out;
	}
	s = waits ? fetch_ready(&c, wait_ms, &err) : fetch(&c, &err);
	if (!s) {
		c.json = json;
		td_common_say_error(&c, "status", &err);
		code = TD_EXIT_NO_DAEMON;
		goto out;
	}
	if (json)
		td_json_print(td_json_status(s), JSON_INDENT(2));
	else
		print_table(s);
	code = waits && strcmp(s->state, "ready") ? TD_EXIT_LATER : TD_EXIT_OK;
	if (td_flush_stdout("status"))
		code = TD_EXIT_FAILED;
out:
	tandem_status_free(s);
	td_list_finish(&words);
	return code;
}
