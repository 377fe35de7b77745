/*
 * common.c: what the sub-commands share (command.h).
 */
#include "client/command.h"
#include "engine/clock.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RECONNECT_S = 10, TEXT_MAX = 64 << 20, LOADING_MS = 250 };

static volatile sig_atomic_t interrupted; /* SIGINTs since the call in hand began */

static int exit_code(const struct tandem_error *e)
{
	switch (e->code) {
	case TANDEM_E_LOADING:
	case TANDEM_E_QUEUE_FULL:
	case TANDEM_E_DRAINING:
	case TANDEM_E_LIMIT:
	case TANDEM_E_TENANT_QUEUE:
	case TANDEM_E_TENANT_RATE:
	case TANDEM_E_DEADLINE:
	case TANDEM_E_DEADLINE_EARLY:
		return TD_EXIT_LATER;
	case TANDEM_E_CLOSED:
		return TD_EXIT_NO_DAEMON;
	case TANDEM_E_CANCELLED:
		return TD_EXIT_INTERRUPTED;
	default:
		return TD_EXIT_FAILED;
	}
}

int td_say_error(const char *command, const struct tandem_error *e)
{
	if (e->retry_after_ms)
		fprintf(stderr, "tandem %s: %s (%s; try again in %.1f s)\n", command, e->text, e->name, e->retry_after_ms / 1000.0);
	else
		fprintf(stderr, "tandem %s: %s (%s)\n", command, e->text, e->name);
	return exit_code(e);
}

void td_say_stats(const struct tandem_finish *f)
{
	double prefill = (double)f->prefill_us / 1e6, decode = (double)f->decode_us / 1e6;

	fprintf(stderr, "[%s; prompt %u tokens in %.3f s (%.0f/s), answer %u tokens in %.3f s (%.1f/s), waited %.3f s;", td_reason_name(f->reason),
		f->prompt_tokens, prefill, prefill > 0 ? f->prompt_tokens / prefill : 0, f->output_tokens, decode,
		decode > 0 && f->output_tokens > 1 ? (f->output_tokens - 1) / decode : 0, (double)f->queue_us / 1e6);
	fprintf(stderr, " %u cycles, %u of %u drafts accepted, acceptance length %.2f; seed %llu]\n", f->cycles, f->accepted, f->drafted,
		td_acceptance(f->accepted, f->cycles), (unsigned long long)f->seed);
}

/* A buffer of text that grows; what it holds is always a string. */
int td_text_add(struct td_text *t, const char *more)
{
	size_t n = strlen(more), size = t->size ? t->size : 4096;
	char *grown;

	while (size < t->n + n + 1)
		size *= 2;
	if (size > t->size) {
		grown = realloc(t->data, size);
		if (!grown)
			return -1;
		t->data = grown;
		t->size = size;
	}
	memcpy(t->data + t->n, more, n + 1);
	t->n += n;
	return 0;
}

/* ---- connection -------------------------------------------------------------------------------------------------------------------- */

void td_common_options(struct td_common *c, struct td_option table[TD_COMMON_OPTIONS])
{
	const struct td_option all[TD_COMMON_OPTIONS] = {
		{TD_OPT_TITLE, .help = "Connection:"},
		{TD_OPT_TEXT, "socket", 0, "PATH", "the daemon's socket; else $TANDEM_SOCKET, $XDG_RUNTIME_DIR/tandem/tandem.sock, /run/tandem/tandem.sock",
		 &c->socket, 0, NULL, 0},
		{TD_OPT_TEXT, "tenant", 0, "NAME", "tenant to ask for (the daemon decides by your user)", &c->tenant, 0, NULL, 0},
		{TD_OPT_END},
	};

	memcpy(table, all, sizeof(all));
}

struct tandem *td_common_connect(const struct td_common *c, const char *command, int *code)
{
	struct tandem_options o = {.client = "tandem " TANDEM_VERSION, .tenant = c->tenant, .retry_ms = RECONNECT_S * 1000};
	struct tandem_error err;
	struct tandem *t = tandem_connect(c->socket, &o, &err);

	if (!t) {
		td_common_say_error(c, command, &err);
		*code = err.code == TANDEM_E_PERMISSION ? TD_EXIT_FAILED : TD_EXIT_NO_DAEMON; /* it is there, but not for this user */
	}
	return t;
}

int td_common_say_error(const struct td_common *c, const char *command, const struct tandem_error *e)
{
	json_t *j = c->json ? td_json_error(e) : NULL;

	if (c->json == 2)
		json_object_set_new(j, "event", json_string("error"));
	if (c->json)
		td_json_print(c->json == 1 ? json_pack("{s:o}", "error", j) : j, JSON_COMPACT);
	return td_say_error(command, e);
}

/* ---- generation options ------------------------------------------------------------------------------------------------------------ */

void td_generation_options(struct td_generation *g, struct td_option table[TD_GENERATION_OPTIONS])
{
	struct tandem_sampling *s = &g->sampling;
	uint32_t *set = &s->set;
	const struct td_option all[TD_GENERATION_OPTIONS] = {
		{TD_OPT_TITLE, .help = "Answer:"},
		{TD_OPT_INT, "max-tokens", 'n', "N", "longest answer", &s->max_tokens, 0, set, TANDEM_MAX_TOKENS},
		{TD_OPT_FLAG, "think", 0, NULL, "let the model think first", &g->thinking, TANDEM_THINK_ON, NULL, 0},
		{TD_OPT_FLAG, "no-think", 0, NULL, "answer at once", &g->thinking, TANDEM_THINK_OFF, NULL, 0},
		{TD_OPT_LIST, "stop", 0, "TEXT", "end before this text appears; may be repeated", &g->stop, 0, NULL, 0},
		{TD_OPT_LIST, "stop-id", 0, "ID", "end at this token; may be repeated", &g->stop_id, 0, NULL, 0},
		{TD_OPT_FLAG, "ignore-eos", 0, NULL, "don't end at the model's own end token", &s->ignore_eos, 1, set, TANDEM_IGNORE_EOS},
		{TD_OPT_SECONDS, "deadline", 0, "SECONDS", "give up when it isn't finished by then, waiting included", &g->deadline_ms, 0, NULL, 0},
		{TD_OPT_TEXT, "band", 0, "BAND", "interactive, or batch: waits while interactive requests do; else as the tenant is set up", &g->band_name, 0, NULL, 0},
		{TD_OPT_FLAG, "no-cache", 0, NULL, "neither use nor leave anything in the prefix cache", &g->no_cache, 1, NULL, 0},
		{TD_OPT_FLAG, "quiet", 'q', NULL, "say nothing on stderr while the model loads or others go first", &g->quiet, 1, NULL, 0},
		{TD_OPT_TITLE, .help = "Sampling (the daemon's configuration says what holds when nothing is given):"},
		{TD_OPT_FLAG, "greedy", 'g', NULL, "always the likeliest token, the same as --temperature 0", &g->greedy, 1, NULL, 0},
		{TD_OPT_FLOAT, "temperature", 't', "T", "0 is greedy", &s->temperature, 0, set, TANDEM_TEMPERATURE},
		{TD_OPT_INT, "top-k", 0, "N", "only the N likeliest tokens, 0 = all", &s->top_k, 0, set, TANDEM_TOP_K},
		{TD_OPT_FLOAT, "top-p", 0, "P", "only the likeliest tokens that together reach P", &s->top_p, 0, set, TANDEM_TOP_P},
		{TD_OPT_FLOAT, "min-p", 0, "P", "only tokens at least P times as likely as the likeliest", &s->min_p, 0, set, TANDEM_MIN_P},
		{TD_OPT_FLOAT, "repetition-penalty", 0, "X", "divides the logits of tokens that have occurred", &s->repetition_penalty, 0, set,
		 TANDEM_REPETITION_PENALTY},
		{TD_OPT_FLOAT, "presence-penalty", 0, "X", "taken off once for tokens in the answer", &s->presence_penalty, 0, set, TANDEM_PRESENCE_PENALTY},
		{TD_OPT_FLOAT, "frequency-penalty", 0, "X", "taken off for each time a token is in the answer", &s->frequency_penalty, 0, set,
		 TANDEM_FREQUENCY_PENALTY},
		{TD_OPT_LIST, "bias", 0, "ID=X", "add X to a token's logit; may be repeated", &g->bias, 0, NULL, 0},
		{TD_OPT_SEED, "seed", 0, "N", "the same seed gives the same answer", &s->seed, 0, set, TANDEM_SEED},
		{TD_OPT_INT, "logprobs", 0, "N", "with --json: log-probability of each token and of the N likeliest (0 to 20)", &s->logprobs, 0, set,
		 TANDEM_LOGPROBS},
		{TD_OPT_INT, "draft-tokens", 'k', "K", "tokens drafted per step, 0 = no speculation", &s->draft_tokens, 0, set, TANDEM_DRAFT_TOKENS},
		{TD_OPT_END},
	};

	memcpy(table, all, sizeof(all));
}

static int wrong_value(const char *command, const char *option, const char *form, const char *value)
{
	fprintf(stderr, "tandem %s: option --%s takes %s, not '%s' (see tandem %s --help)\n", command, option, form, value, command);
	return -1;
}

int td_generation_ready(struct td_generation *g, const char *command)
{
	struct tandem_sampling *s = &g->sampling;
	struct tandem_bias *bias = calloc(g->bias.n + 1, sizeof(*bias));
	int32_t *ids = calloc(g->stop_id.n + 1, sizeof(*ids));
	char id[16];
	size_t i;

	s->bias = bias;
	s->stop_id = ids;
	if (!bias || !ids) {
		fprintf(stderr, "tandem %s: no memory\n", command);
		return -1;
	}
	if (g->band_name && strcmp(g->band_name, "interactive") && strcmp(g->band_name, "batch"))
		return wrong_value(command, "band", "interactive or batch", g->band_name);
	g->band = !g->band_name ? TANDEM_BAND_DEFAULT : strcmp(g->band_name, "batch") ? TANDEM_INTERACTIVE : TANDEM_BATCH;
	for (i = 0; i < g->bias.n; i++) {
		const char *text = g->bias.item[i], *eq = strchr(text, '=');

		snprintf(id, sizeof(id), "%.*s", (int)(eq && eq - text < 15 ? eq - text : 0), text);
		if (!eq || !td_parse_int(id, &bias[i].id) || !td_parse_float(eq + 1, &bias[i].bias))
			return wrong_value(command, "bias", "ID=NUMBER", text);
	}
	for (i = 0; i < g->stop_id.n; i++)
		if (!td_parse_int(g->stop_id.item[i], ids + i))
			return wrong_value(command, "stop-id", "a token id", g->stop_id.item[i]);
	s->n_bias = g->bias.n;
	s->n_stop_id = g->stop_id.n;
	s->stop = g->stop.item;
	s->n_stop = g->stop.n;
	if (g->greedy) {
		s->set |= TANDEM_TEMPERATURE;
		s->temperature = 0;
	}
	return 0;
}

void td_generation_finish(struct td_generation *g)
{
	free((void *)g->sampling.bias);
	free((void *)g->sampling.stop_id);
	td_list_finish(&g->stop);
	td_list_finish(&g->stop_id);
	td_list_finish(&g->bias);
}

/* ---- waiting ----------------------------------------------------------------------------------------------------------------------- */

struct wait {
	const struct tandem_handler *user;
	struct td_progress *progress; /* NULL: nobody wants to know */
	int done;
	struct tandem_error error;
};

/* Asking how far the loading is. It outlives the call that it is for, since an answer may come after that one's end. */
static struct {
	struct td_progress *progress; /* NULL: nobody wants to know */
	int asked; /* and not answered yet */
	uint64_t asked_us;
} loading;

static void loading_end(void)
{
	if (loading.progress)
		td_progress_end(loading.progress);
	loading.progress = NULL;
}

static void loading_status(void *ctx, const struct tandem_status *s)
{
	(void)ctx;
	loading.asked = 0;
	if (strcmp(s->state, "loading"))
		loading_end();
	else if (loading.progress)
		td_progress_show(loading.progress, s);
}

static void loading_error(void *ctx, const struct tandem_error *e)
{
	(void)ctx;
	(void)e;
	loading.asked = 0;
	loading_end();
}

static void loading_ask(struct tandem *t)
{
	const struct tandem_handler h = {.status = loading_status, .error = loading_error};

	uint64_t now = td_now_us();

	if (!loading.progress || loading.asked || now < loading.asked_us + LOADING_MS * 1000)
		return;
	loading.asked = tandem_submit_status(t, &h, NULL) != 0;
	loading.asked_us = now;
}

static void wait_queue(void *ctx, uint32_t before)
{
	struct wait *w = ctx;

	if (w->progress && !loading.progress)
		td_progress_place(w->progress, before);
	if (w->user->queue)
		w->user->queue(w->user->ctx, before);
}

static void wait_over(struct wait *w)
{
	loading_end();
	if (w->progress)
		td_progress_end(w->progress);
}

static void wait_accepted(void *ctx, const struct tandem_accepted *a)
{
	struct wait *w = ctx;

	if (a->queue_position && w->progress && !loading.progress)
		td_progress_place(w->progress, a->queue_position - 1);
	if (w->user->accepted)
		w->user->accepted(w->user->ctx, a);
}

static int wait_delta(void *ctx, const struct tandem_delta *d)
{
	struct wait *w = ctx;

	wait_over(w);
	return w->user->delta ? w->user->delta(w->user->ctx, d) : 0;
}

static void wait_finish(void *ctx, const struct tandem_finish *f)
{
	struct wait *w = ctx;

	w->done = 1;
	wait_over(w);
	if (w->user->finish)
		w->user->finish(w->user->ctx, f);
}

static void wait_error(void *ctx, const struct tandem_error *e)
{
	struct wait *w = ctx;

	w->done = 1;
	wait_over(w);
	w->error = *e;
}

/* SIGINT is caught and kept blocked for the length of a call, except while it sleeps: nothing is ever interrupted in the middle. One that is pending
 * when the call begins (the caller had it blocked) counts as well. */
struct interrupts {
	struct sigaction action;
	sigset_t mask, asleep, set;
};

static void on_interrupt(int sig)
{
	(void)sig;
	interrupted++;
}

static void interrupts_catch(struct interrupts *before)
{
	struct sigaction sa = {.sa_handler = on_interrupt};

	interrupted = 0;
	sigemptyset(&before->set);
	sigaddset(&before->set, SIGINT);
	sigprocmask(SIG_BLOCK, &before->set, &before->mask);
	before->asleep = before->mask;
	sigdelset(&before->asleep, SIGINT);
	sigemptyset(&sa.sa_mask);
	sigaction(SIGINT, &sa, &before->action);
}

/* A sleep that finds the socket readable at once lets no signal through, and behind a slow terminal it always does. */
static void interrupts_take(const struct interrupts *before)
{
	static const struct timespec none;

	if (sigtimedwait(&before->set, NULL, &none) == SIGINT)
		interrupted++;
}

static void interrupts_restore(const struct interrupts *before)
{
	sigaction(SIGINT, &before->action, NULL);
	sigprocmask(SIG_SETMASK, &before->mask, NULL);
}

/* Sleeps until the socket wants something, a signal came, or `most` milliseconds are over (-1: however long it takes). */
static void sleep_on(const struct tandem *t, const sigset_t *mask, int most)
{
	int want = tandem_want(t), own = tandem_timeout_ms(t), ms = own < 0 || (most >= 0 && most < own) ? most : own;
	struct pollfd p = {.fd = tandem_fd(t), .events = (short)((want & TANDEM_READ ? POLLIN : 0) | (want & TANDEM_WRITE ? POLLOUT : 0))};
	struct timespec ts = {.tv_sec = ms / 1000, .tv_nsec = (ms % 1000) * 1000000L};

	ppoll(&p, 1, ms < 0 ? NULL : &ts, mask);
}

/* 0 when the connection is there again; else *err is left as it was. */
static int take_up(struct tandem *t, const sigset_t *mask, const struct tandem_error *err)
{
	static const struct timespec pause = {.tv_nsec = 200 * 1000000L};
	struct tandem_error again;
	int tries = RECONNECT_S * 5;

	while (tries-- > 0 && !interrupted) {
		if (!tandem_reconnect(t, &again))
			return 0;
		ppoll(NULL, 0, &pause, mask);
	}
	return err->code;
}

int td_call_generate(struct tandem **t, const struct tandem_request *r, const struct tandem_handler *h, struct td_progress *p, struct tandem_error *err)
{
	struct wait w = {.user = h, .progress = p};
	struct tandem_handler through = {.ctx = &w, .accepted = wait_accepted, .delta = wait_delta, .finish = wait_finish, .error = wait_error,
					 .queue = wait_queue};
	uint64_t call = tandem_submit(*t, r, &through, err);
	struct interrupts before;
	int cancelled = 0, rc;

	if (!call)
		return err->code;
	loading.progress = p && !p->quiet && !tandem_info(*t)->ready ? p : NULL;
	loading.asked = 0;
	interrupts_catch(&before);
	for (;;) {
		interrupts_take(&before);
		rc = tandem_process(*t, err);
		if (!w.done && rc == TANDEM_E_CLOSED)
			rc = take_up(*t, &before.asleep, err);
		if (w.done || rc)
			break;
		if (interrupted > 1) {
			*err = (struct tandem_error){.code = TANDEM_E_CANCELLED, .name = "cancelled", .text = "interrupted"};
			break;
		}
		if (interrupted && !cancelled) {
			cancelled = 1;
			tandem_cancel(*t, call, NULL);
		} else {
			loading_ask(*t);
			sleep_on(*t, &before.asleep, loading.progress ? LOADING_MS : -1);
		}
	}
	wait_over(&w);
	interrupts_restore(&before);
	if (w.done) {
		*err = w.error;
	} else { /* the call would outlive this function's handler */
		tandem_close(*t);
		*t = NULL;
	}
	return err->code;
}

/* ---- texts ------------------------------------------------------------------------------------------------------------------------- */

/* All of a file, malloc'd, NUL-terminated; NULL after telling why (NUL bytes, not readable, too large). `name`: as the sentence calls it. */
static char *read_all(FILE *f, const char *name, const char *command)
{
	size_t n = 0, size = 64 << 10, got;
	char *text = malloc(size), *grown;

	while (text && (got = fread(text + n, 1, size - n - 1, f)) > 0) {
		n += got;
		if (size - n > 1)
			continue;
		grown = size < TEXT_MAX ? realloc(text, size *= 2) : NULL;
		if (!grown) {
			fprintf(stderr, "tandem %s: the text %s is too large\n", command, name);
			free(text);
			return NULL;
		}
		text = grown;
	}
	if (!text || ferror(f)) {
		fprintf(stderr, "tandem %s: can't read the text %s: %s\n", command, name, strerror(errno));
		free(text);
		return NULL;
	}
	text[n] = '\0';
	if (strlen(text) != n) {
		fprintf(stderr, "tandem %s: the text %s has a NUL byte at %zu: it isn't text\n", command, name, strlen(text));
		free(text);
		return NULL;
	}
	return text;
}

char *td_option_text(const char *text, const char *option, const char *command)
{
	char name[300], *all;
	FILE *f;

	if (*text != '@' || text[1] == '@') {
		all = strdup(text + (*text == '@'));
		if (!all)
			fprintf(stderr, "tandem %s: no memory\n", command);
		return all;
	}
	f = fopen(text + 1, "r");
	if (!f) {
		fprintf(stderr, "tandem %s: option --%s: can't read %s: %s\n", command, option, text + 1, strerror(errno));
		return NULL;
	}
	snprintf(name, sizeof(name), "in %.255s", text + 1);
	all = read_all(f, name, command);
	fclose(f);
	return all;
}

char *td_prompt_text(const struct td_list *words, const char *command)
{
	char *in = NULL, *out, *at;
	size_t n = 1, i;

	for (i = 0; i < words->n; i++)
		n += strlen(words->item[i]) + 1;
	for (i = 0; i < words->n && strcmp(words->item[i], "-"); i++)
		;
	if (!words->n || i < words->n) {
		if (isatty(STDIN_FILENO))
			fprintf(stderr, "tandem %s: reading from the terminal, end with Ctrl-D\n", command);
		in = read_all(stdin, "on stdin", command);
		if (!in || !words->n)
			return in;
		n += strlen(in) * words->n + 2 * words->n;
	}
	out = at = malloc(n);
	for (i = 0; out && i < words->n; i++) {
		int is_stdin = in && !strcmp(words->item[i], "-");

		if (i)
			*at++ = is_stdin || !strcmp(words->item[i - 1], "-") ? '\n' : ' ';
		at = stpcpy(at, is_stdin ? in : words->item[i]);
	}
	free(in);
	if (!out)
		fprintf(stderr, "tandem %s: no memory\n", command);
	return out;
}

int td_flush_stdout(const char *command)
{
	if (fflush(stdout) || ferror(stdout)) {
		fprintf(stderr, "tandem %s: can't write the answer: %s\n", command, strerror(errno));
		return -1;
	}
	return 0;
}
