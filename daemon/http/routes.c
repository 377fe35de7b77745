/*
 * routes.c: which path is what, and the answers that need no generation.
 *
 * /tokenize and /detokenize take the fields of vLLM and of llama.cpp's server alike; both run as jobs, since a text may be long.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/daemon.h"
#include "daemon/http/openai.h"

/* ---- figures ----------------------------------------------------------------------------------------------------------------------- */

static void put_model(struct td__text *t, const struct td_daemon *d)
{
	td__text_puts(t, "{\"id\": ");
	td_json_string(t, d->model.name, strlen(d->model.name));
	td_json_format(t, ", \"object\": \"model\", \"created\": %lld, \"owned_by\": \"tandem\", \"max_model_len\": %d}",
		       (long long)time(NULL) - (long long)((td_now_us() - d->started_us) / 1000000), d->model.shm.context);
}

static void models(struct td_http *h)
{
	struct td__text t = {0};

	td__text_puts(&t, "{\"object\": \"list\", \"data\": [");
	put_model(&t, h->s->d);
	td__text_puts(&t, "]}");
	td_http_answer_json(h, 200, &t);
}

static int hex(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* Percent-encoding undone, in place. */
static void decode(char *s)
{
	char *out = s;

	for (; *s; s++) {
		if (*s == '%' && hex(s[1]) >= 0 && hex(s[2]) >= 0) {
			*out++ = (char)(hex(s[1]) << 4 | hex(s[2]));
			s += 2;
		} else {
			*out++ = *s;
		}
	}
	*out = 0;
}

static void model(struct td_http *h)
{
	const char *name = h->path + strlen("/v1/models/");
	struct td__text t = {0};
	struct td_error err;

	decode(h->path + strlen("/v1/models/"));
	if (strcmp(name, h->s->d->model.name)) {
		td_error_set(&err, TD_E_NOT_FOUND, "The model `%.100s` does not exist: `%.100s` is served here", name, h->s->d->model.name);
		td_http_answer_error(h, 404, &err, "model", "model_not_found", NULL);
		return;
	}
	put_model(&t, h->s->d);
	td_http_answer_json(h, 200, &t);
}

static void put_worker(struct td__text *t, const struct td_child *w)
{
	td_json_format(t, "{\"role\": \"%s\", \"ready\": %s, \"stage\": ", w->name, w->state == TD_CHILD_READY ? "true" : "false");
	td_json_string(t, w->stage, w->state == TD_CHILD_LOADING ? strlen(w->stage) : 0);
	td_json_format(t, ", \"done\": %llu, \"total\": %llu}", (unsigned long long)w->stage_done, (unsigned long long)w->stage_total);
}

static void health(struct td_http *h)
{
	const struct td_daemon *d = h->s->d;
	const char *state = td_status_state(d);
	int serving = !d->draining && td_supervisor_serving(d);
	struct td__text t = {0};

	if (serving) {
		td__text_puts(&t, "{\"status\": \"ok\"}");
		td_http_answer_json(h, 200, &t);
		return;
	}
	td_json_format(&t, "{\"status\": \"%s\", \"workers\": [", state);
	put_worker(&t, &d->target);
	if (d->model.has_drafter) {
		td__text_puts(&t, ", ");
		put_worker(&t, &d->drafter);
	}
	td__text_puts(&t, "]}");
	td_http_answer_json(h, 503, &t);
}

static void metrics(struct td_http *h)
{
	struct td_error err;
	size_t n;
	const char *text = td_metrics_text(h->s->d, td_now_us(), &n);

	if (!text) {
		td_error_set(&err, TD_E_NOMEM, "out of memory");
		td_http_answer_error(h, 0, &err, NULL, NULL, NULL);
		return;
	}
	td_http_answer(h, 200, "text/plain; version=0.0.4; charset=utf-8", NULL, text, n);
}

static void version(struct td_http *h)
{
	struct td__text t = {0};

	td__text_puts(&t, "{\"version\": \"" TD_VERSION "\"}");
	td_http_answer_json(h, 200, &t);
}

/* ---- tokens ------------------------------------------------------------------------------------------------------------------------ */

struct token_job {
	struct td_job job;
	char *body;
	size_t n;
	int back; /* detokenize */
	int strings;
	struct td_openai_request q;
	struct td__text answer;
};

static void put_tokens(struct token_job *t)
{
	const struct td_model *m = &t->job.d->model;
	const struct td_ids *ids = &t->job.ids;
	struct td__text *o = &t->answer;

	td_json_format(o, "{\"count\": %zu, \"max_model_len\": %d, \"tokens\": [", ids->n, m->shm.context);
	for (size_t i = 0; i < ids->n; i++)
		td_json_format(o, "%s%d", i ? ", " : "", ids->id[i]);
	td__text_puts(o, "]");
	if (t->strings) {
		td__text_puts(o, ", \"token_strs\": [");
		for (size_t i = 0; i < ids->n; i++) {
			size_t n = 0;
			const char *bytes = td_token_bytes(m->tokenizer, ids->id[i], &n);

			td__text_puts(o, i ? ", " : "");
			td_json_string(o, bytes ? bytes : "", n);
		}
		td__text_puts(o, "]");
	}
	td__text_puts(o, "}");
}

static void tokenize(struct token_job *t)
{
	const struct td_model *m = &t->job.d->model;
	struct td_error *err = &t->job.error;
	Tandem__Tokenize *in = NULL;
	int rc = td_openai_read_tokenize(&t->q, t->body, t->n, m->name, &in, &t->strings, err);

	if (!rc && in->input_case == TANDEM__TOKENIZE__INPUT_TEXT)
		rc = td_encode(m->tokenizer, in->text, strlen(in->text), 1, &t->job.ids, err);
	else if (!rc)
		rc = td_request_chat_ids(m, in->chat, &t->job.ids, err);
	if (!rc)
		put_tokens(t);
	if (in)
		tandem__tokenize__free_unpacked(in, NULL);
}

static void detokenize(struct token_job *t)
{
	const struct td_model *m = &t->job.d->model;
	struct td_error *err = &t->job.error;
	struct td_ids *ids = &t->job.ids;
	size_t n = 0;
	char *text;

	if (td_openai_read_detokenize(&t->q, t->body, t->n, m->name, ids, err))
		return;
	for (size_t i = 0; i < ids->n; i++)
		if (ids->id[i] < 0 || ids->id[i] >= m->vocab_real) {
			td_error_set(err, TD_E_INVALID, "tokens[%zu] is %d; ids go from 0 to %d", i, ids->id[i], m->vocab_real - 1);
			return;
		}
	text = td_decode(m->tokenizer, ids->id, ids->n, 0, &n);
	if (!text) {
		td_error_set(err, TD_E_NOMEM, "out of memory");
		return;
	}
	td__text_puts(&t->answer, "{\"prompt\": ");
	td_json_string(&t->answer, text, n);
	td__text_puts(&t->answer, ", \"content\": ");
	td_json_string(&t->answer, text, n);
	td__text_puts(&t->answer, "}");
	free(text);
}

static void run(struct td_job *j)
{
	struct token_job *t = (struct token_job *)j;

	if (t->back)
		detokenize(t);
	else
		tokenize(t);
}

static void done(struct td_job *j)
{
	struct token_job *t = (struct token_job *)j;
	struct td_session *s = j->session;
	struct td_http *h = s && s->state == TD_SES_OPEN ? s->http : NULL;

	if (h && j->error.code) {
		td_metrics_error(j->d, j->error.code);
		td_http_answer_error(h, 0, &j->error, t->q.param[0] ? t->q.param : NULL, t->q.code, NULL);
	} else if (h) {
		td_http_answer_json(h, 200, &t->answer);
	}
	td__text_finish(&t->answer);
	td_openai_finish(&t->q);
	td_ids_finish(&j->ids);
	free(t->body);
	free(t);
}

static void begin(struct td_http *h, int back)
{
	struct token_job *t = calloc(1, sizeof(*t));
	struct td_error err;

	if (!t) {
		td_error_set(&err, TD_E_NOMEM, "out of memory");
		td_http_answer_error(h, 0, &err, NULL, NULL, NULL);
		return;
	}
	t->back = back;
	t->body = td_http_take_body(h, &t->n);
	t->job.run = run;
	t->job.done = done;
	td_http_wait(h);
	td_job_begin(&t->job, h->s, t->n);
}

static void to_tokens(struct td_http *h)
{
	begin(h, 0);
}

static void to_text(struct td_http *h)
{
	begin(h, 1);
}

static void chat(struct td_http *h)
{
	td_http_generate(h, 1);
}

static void completion(struct td_http *h)
{
	td_http_generate(h, 0);
}

/* ---- the table --------------------------------------------------------------------------------------------------------------------- */

static const struct td_http_route routes[] = {
	{"/v1/chat/completions", 0, 1, 0, chat},
	{"/v1/completions", 0, 1, 0, completion},
	{"/v1/models", 1, 0, 0, models},
	{"/v1/models/", 1, 0, 0, model},
	{"/tokenize", 0, 1, 0, to_tokens},
	{"/detokenize", 0, 1, 0, to_text},
	{"/health", 1, 0, 1, health},
	{"/metrics", 1, 0, 0, metrics},
	{"/version", 1, 0, 1, version},
};

const struct td_http_route *td_http_route_find(const char *path)
{
	for (size_t i = 0; i < sizeof(routes) / sizeof(*routes); i++) {
		size_t n = strlen(routes[i].path);

		if (!strcmp(path, routes[i].path) || (routes[i].path[n - 1] == '/' && !strncmp(path, routes[i].path, n) && path[n]))
			return &routes[i];
	}
	return NULL;
}

void td_http_route_allow(const struct td_http_route *r, char *text, size_t size)
{
	snprintf(text, size, "%s", !r ? "GET, HEAD, POST, OPTIONS" : r->post ? "POST, OPTIONS" : "GET, HEAD, OPTIONS");
}
