/*
 * bench_tune.c: `tandem bench --tune`: the time of a cycle for some numbers of requests and of drafts, into the file that tandemd chooses by
 * (engine/widths.h). On a daemon of our own, whose requests say how many drafts they want.
 */
#include <stdlib.h>
#include <string.h>

#include "client/bench_suite.h"
#include "engine/widths.h"

enum { PROMPT = 64, TOKENS = 64, WARM_TOKENS = 24, USUAL = 50 };

static int configs(const struct td_bench_options *o, struct td_target_config *t, struct td_drafter_config *d)
{
	char *target = NULL, *drafter = NULL;
	struct td_error err;
	int rc = 0;

	if (!o->drafter && td_bench_synthetic(o->model))
		rc = td_synthetic_pair(strchr(o->model, ':') + 1, &target, &drafter, &err);
	else if (!o->drafter || !strcmp(o->drafter, "none"))
		rc = td_error_set(&err, TD_E_INVALID, "without a drafter there is nothing to choose");
	if (!rc)
		rc = td_target_config_load(o->model, t, &err);
	if (!rc)
		rc = td_drafter_config_load(drafter ? drafter : o->drafter, d, &err);
	if (rc)
		fprintf(stderr, "tandem bench: %s\n", err.text);
	free(target);
	free(drafter);
	return rc;
}

static double spent(const struct tandem_status *s)
{
	const struct tandem_worker_status *t = td_bench_worker(s, "target");

	return (double)(t->step_us + t->commit_us + t->wait_us);
}

/* Mean time of a cycle in microseconds; 0 after a failure. Prefill is not in these sums. */
static double cycle_us(struct td_bench *b, uint32_t requests, int drafts)
{
	struct td_bench_load warm = {.clients = requests, .requests = 1, .prompt = PROMPT, .tokens = WARM_TOKENS, .drafts = drafts, .tenths = b->assumes ? USUAL : 0};
	struct td_bench_load l = {.clients = requests, .requests = 1, .prompt = PROMPT, .tokens = TOKENS, .drafts = drafts, .tenths = warm.tenths};
	struct tandem_status *from = NULL, *to = NULL;
	struct tandem_error err;
	double us = 0;

	if (td_bench_load_run(b, &warm))
		goto out;
	from = tandem_status(b->control, &err);
	if (from && td_bench_load_run(b, &l))
		goto out;
	to = from ? tandem_status(b->control, &err) : NULL;
	if (!to)
		b->code = td_say_error("bench", &err);
	else if (td_bench_worker(to, "target")->steps > td_bench_worker(from, "target")->steps)
		us = (spent(to) - spent(from)) / (double)(td_bench_worker(to, "target")->steps - td_bench_worker(from, "target")->steps);
out:
	tandem_status_free(from);
	tandem_status_free(to);
	td_bench_load_finish(&warm);
	td_bench_load_finish(&l);
	return us;
}

static int measure(struct td_bench *b, const struct td_bench_options *o, int most, struct td_widths *w)
{
	memset(w, 0, sizeof(*w));
	for (int r = 0; r < TD_WIDTH_COUNTS && (uint32_t)td_width_requests[r] <= o->max_clients; r++)
		for (int k = 0; k < TD_WIDTH_CHOICES && td_width_drafts[k] <= most; k++) {
			w->us[r][k] = cycle_us(b, (uint32_t)td_width_requests[r], td_width_drafts[k]);
			if (!(w->us[r][k] > 0))
				return -1;
		}
	return 0;
}

/* Times, and what would be chosen at the usual acceptance. */
static void tell(const struct td_widths *w, int most, const char *path)
{
	double rate[TD_DRAFT_MAX];

	td_widths_rates(NULL, NULL, 0, USUAL, rate);
	printf("milliseconds of a cycle, by requests that share it and drafts of each\n  %8s", "requests");
	for (int k = 0; k < TD_WIDTH_CHOICES && td_width_drafts[k] <= most; k++)
		printf(" %8d", td_width_drafts[k]);
	printf("   best at %.1f tokens in a whole block\n", USUAL / 10.0);
	for (int r = 0; r < TD_WIDTH_COUNTS && w->us[r][0] > 0; r++) {
		printf("  %8d", td_width_requests[r]);
		for (int k = 0; k < TD_WIDTH_CHOICES && td_width_drafts[k] <= most; k++)
			printf(" %8.2f", w->us[r][k] / 1e3);
		printf("   %d\n", td_widths_choose(w, td_width_requests[r], most, rate));
	}
	printf("kept in %s\n", path);
}

static int keep(const struct td_bench_options *o, const struct td_target_config *t, const struct td_drafter_config *d, const struct tandem_status *s,
		const struct td_widths *w)
{
	const char *device = td_bench_worker(s, "target")->device;
	char form[64], key[512], path[TD_WIDTH_PATH];
	struct td_error err;

	snprintf(form, sizeof(form), "file, auto, %s", o->activations ? o->activations : "auto");
	td_widths_key(device ? device : "", t, d, form, key);
	if (td_widths_path(o->widths, key, path)) {
		fprintf(stderr, "tandem bench: there is no state folder: name one with --widths\n");
		return -1;
	}
	if (td_widths_write(path, key, w, &err)) {
		fprintf(stderr, "tandem bench: %s\n", err.text);
		return -1;
	}
	tell(w, d->block - 1, path);
	return 0;
}

int td_bench_tune(struct td_bench *b, const struct td_bench_options *o)
{
	struct td_bench_daemon_how how = {.model = o->model, .drafter = o->drafter, .device = o->device, .slots = o->max_clients, .context = o->context, .share = o->share,
					  .tokenizer = o->tokenizer, .draft_vocabulary = o->draft_vocabulary, .activations = o->activations, .widths = "off", .assume = td_bench_synthetic(o->model)};
	struct td_bench_daemon d = {0};
	struct tandem_status *s = NULL;
	struct tandem_error err;
	struct td_target_config target;
	struct td_drafter_config drafter;
	struct td_widths w;

	b->code = TD_EXIT_FAILED;
	if (configs(o, &target, &drafter))
		return b->code;
	b->clients = o->max_clients;
	if (!td_bench_daemon_start(&d, &how)) {
		b->common.socket = d.socket;
		b->assumes = how.assume;
		b->code = TD_EXIT_OK;
		if (!td_bench_open(b) && !measure(b, o, drafter.block - 1, &w)) {
			s = tandem_status(b->control, &err);
			b->code = !s ? td_say_error("bench", &err) : keep(o, &target, &drafter, s, &w) ? TD_EXIT_FAILED : TD_EXIT_OK;
		} else if (b->code == TD_EXIT_OK) {
			b->code = TD_EXIT_FAILED;
		}
	} else if (td_bench_interrupted) {
		b->code = TD_EXIT_INTERRUPTED;
	}
	tandem_status_free(s);
	td_bench_close(b);
	td_bench_daemon_stop(&d);
	return b->code;
}
