/*
 * generate.c: a generation over HTTP: a job reads the body and makes the requests, they are admitted, and what they say becomes events of a stream or
 * one whole answer.
 *
 * A call has one choice per request; the request's tag leads to it. All requests of a call are admitted or none. Whatever ends one with an error ends the
 * call: an answer has one status. The head of a stream is sent with its first event, so that a refusal still can be a status; a call whose stream has begun
 * is told the error as an event, and the connection ends.
 * What must never happen: a call touched after its message is over (td_http_answer*, td_http_stream_end: the call is freed before); memory for
 * a whole answer without bound.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "daemon/http/answer.h"
#include "daemon/daemon.h"
#include "daemon/http/openai.h"

enum { WHOLE_MAX = 64 << 20, CHOICES = TD_OPENAI_CHOICES_MAX };

struct choice {
	struct td_http_call *call;
	int index;
	int done, first_of_prompt;
	struct td_answer answer; /* of a chat */
	uint64_t reasoning; /* tokens of thinking */
	int think_open; /* it has not ended yet */
	int role_told;
	/* a whole answer, or what the delta that is going on has so far */
	struct td__text content, thinking, calls, logprobs;
	struct td_openai_columns columns;
	int has_content, arguments_open;
	const char *finish;
};

struct td_http_call {
	struct td_http *h;
	int chat, stream, include_usage, logprobs;
	int n, left; /* choices; of these not done */
	int begun; /* the stream's head is sent */
	json_t *tools;
	uint64_t tag; /* of choice 0 */
	char id[40];
	long long created;
	struct td_openai_usage usage;
	struct choice choice[CHOICES];
};

/* The job: everything that depends on the body alone. */
struct generate_job {
	struct td_job job;
	char *body;
	size_t n;
	int chat;
	struct td_openai_request q;
	struct td_request *request[CHOICES];
	int n_requests;
};

/* ---- calls ------------------------------------------------------------------------------------------------------------------------- */

void td_http_call_free(struct td_http_call *c)
{
	if (!c)
		return;
	for (int i = 0; i < c->n; i++) {
		struct choice *o = &c->choice[i];

		td_answer_finish(&o->answer);
		td__text_finish(&o->content);
		td__text_finish(&o->thinking);
		td__text_finish(&o->calls);
		td__text_finish(&o->logprobs);
		td_openai_columns_finish(&o->columns);
	}
	json_decref(c->tools);
	free(c);
}

/* Its connection forgets it; requests that still listen are cancelled. */
static void drop_call(struct td_http *h)
{
	struct td_session *s = h->s;

	td_http_call_free(h->call);
	h->call = NULL;
	while (s->requests) {
		struct td_request *r = s->requests;

		td_session_detach(r);
		td_request_end(s->d, r, TANDEM__FINISH_REASON__CANCELLED);
	}
}

static const char *object_of(const struct td_http_call *c)
{
	return !c->chat ? "text_completion" : c->stream ? "chat.completion.chunk" : "chat.completion";
}

/* {"id": ..., up to the choices. */
static void put_front(struct td__text *t, const struct td_http_call *c)
{
	const char *name = c->h->s->d->model.name;

	td_json_format(t, "{\"id\": \"%s\", \"object\": \"%s\", \"created\": %lld, \"model\": ", c->id, object_of(c), c->created);
	td_json_string(t, name, strlen(name));
	td__text_puts(t, ", \"system_fingerprint\": \"tandem-" TD_VERSION "\", \"choices\": [");
}

static void send_event(struct td_http_call *c, struct td__text *t)
{
	if (!c->begun)
		td_http_stream_begin(c->h);
	c->begun = 1;
	td__text_puts(t, "\n\n");
	td_http_stream_write(c->h, t->s, t->n);
	td__text_finish(t);
}

/* ---- pieces of an answer: callbacks of answer.c ------------------------------------------------------------------------------------ */

static void add_string(struct td__text *t, const char *s, size_t n)
{
	td__text_add(t, s, n);
}

static void on_thinking(void *ctx, const char *s, size_t n)
{
	struct choice *o = ctx;

	add_string(&o->thinking, s, n);
}

static void on_content(void *ctx, const char *s, size_t n)
{
	struct choice *o = ctx;

	o->has_content = 1;
	add_string(&o->content, s, n);
}

static void on_call(void *ctx, int index, const char *name, size_t n)
{
	struct choice *o = ctx;
	struct td__text *t = &o->calls;
	uint8_t random[12] = {0};

	if (getrandom(random, sizeof(random), GRND_NONBLOCK) < 0)
		memcpy(random, &index, sizeof(index));
	if (t->n)
		td__text_puts(t, ", ");
	td__text_puts(t, "{");
	if (o->call->stream)
		td_json_format(t, "\"index\": %d, ", index);
	td__text_puts(t, "\"id\": \"call_");
	for (size_t i = 0; i < sizeof(random); i++)
		td_json_format(t, "%02x", random[i]);
	td__text_puts(t, "\", \"type\": \"function\", \"function\": {\"name\": ");
	td_json_string(t, name, n);
	td__text_puts(t, ", \"arguments\": ");
	o->arguments_open = 1;
	if (o->call->stream) {
		td__text_puts(t, "\"\"}}");
		o->arguments_open = 0;
	}
}

static void on_arguments(void *ctx, int index, const char *json, size_t n)
{
	struct choice *o = ctx;
	struct td__text *t = &o->calls;

	if (o->call->stream)
		td_json_format(t, "%s{\"index\": %d, \"function\": {\"arguments\": ", t->n ? ", " : "", index);
	td_json_string(t, json, n);
	td__text_puts(t, "}}");
	o->arguments_open = 0;
}

static int failed(const struct choice *o)
{
	return td_answer_failed(&o->answer) || o->content.failed || o->thinking.failed || o->calls.failed || o->logprobs.failed;
}

static size_t bytes_of(const struct choice *o)
{
	return o->content.n + o->thinking.n + o->calls.n + o->logprobs.n + o->columns.tokens.n + o->columns.top.n;
}

/* ---- events ------------------------------------------------------------------------------------------------------------------------ */

static void put_named(struct td__text *t, int *any, const char *name, struct td__text *value)
{
	if (!value->n)
		return;
	td_json_format(t, "%s\"%s\": ", *any ? ", " : "", name);
	td_json_string(t, value->s, value->n);
	value->n = 0;
	*any = 1;
}

/* What a choice has to tell now; `finish`: its last event. */
static void send_chunk(struct choice *o, const char *finish)
{
	struct td_http_call *c = o->call;
	struct td__text t = {0};
	int any = 0;

	td__text_puts(&t, "data: ");
	put_front(&t, c);
	td_json_format(&t, "{\"index\": %d, ", o->index);
	if (c->chat) {
		td__text_puts(&t, "\"delta\": {");
		if (!o->role_told)
			td__text_puts(&t, o->content.n || o->thinking.n || o->calls.n ? "\"role\": \"assistant\"" : "\"role\": \"assistant\", \"content\": \"\"");
		any = !o->role_told;
		o->role_told = 1;
		put_named(&t, &any, "reasoning_content", &o->thinking);
		put_named(&t, &any, "content", &o->content);
		if (o->calls.n) {
			td_json_format(&t, "%s\"tool_calls\": [", any ? ", " : "");
			td__text_add(&t, o->calls.s, o->calls.n);
			td__text_puts(&t, "]");
			o->calls.n = 0;
		}
		td__text_puts(&t, "}, \"logprobs\": ");
		if (c->logprobs) {
			td__text_puts(&t, "{\"content\": [");
			td__text_add(&t, o->logprobs.s ? o->logprobs.s : "", o->logprobs.n);
			td__text_puts(&t, "], \"refusal\": null}");
			o->logprobs.n = 0;
		} else {
			td__text_puts(&t, "null");
		}
	} else {
		td__text_puts(&t, "\"text\": ");
		td_json_string(&t, o->content.s ? o->content.s : "", o->content.n);
		o->content.n = 0;
		td__text_puts(&t, ", \"logprobs\": ");
		if (c->logprobs)
			td_openai_columns_put(&t, &o->columns);
		else
			td__text_puts(&t, "null");
	}
	td_json_format(&t, ", \"finish_reason\": %s%s%s}]%s}", finish ? "\"" : "", finish ? finish : "null", finish ? "\"" : "",
		       c->include_usage ? ", \"usage\": null" : "");
	if (t.failed) {
		c->h->close_after = 1; /* the stream ends without [DONE] */
		td__text_finish(&t);
		return;
	}
	send_event(c, &t);
}

static int has_news(const struct choice *o)
{
	return o->content.n || o->thinking.n || o->calls.n || o->logprobs.n || o->columns.tokens.n;
}

/* ---- whole answers ----------------------------------------------------------------------------------------------------------------- */

static void put_whole_choice(struct td__text *t, struct choice *o)
{
	struct td_http_call *c = o->call;

	td_json_format(t, "%s{\"index\": %d, ", o->index ? ", " : "", o->index);
	if (c->chat) {
		td__text_puts(t, "\"message\": {\"role\": \"assistant\", \"content\": ");
		if (o->has_content || !o->answer.calls)
			td_json_string(t, o->content.s ? o->content.s : "", o->content.n);
		else
			td__text_puts(t, "null");
		if (o->thinking.n) {
			td__text_puts(t, ", \"reasoning_content\": ");
			td_json_string(t, o->thinking.s, o->thinking.n);
		}
		if (o->calls.n) {
			td__text_puts(t, ", \"tool_calls\": [");
			td__text_add(t, o->calls.s, o->calls.n);
			td__text_puts(t, "]");
		}
		td__text_puts(t, ", \"refusal\": null}, \"logprobs\": ");
		if (c->logprobs) {
			td__text_puts(t, "{\"content\": [");
			td__text_add(t, o->logprobs.s ? o->logprobs.s : "", o->logprobs.n);
			td__text_puts(t, "], \"refusal\": null}");
		} else {
			td__text_puts(t, "null");
		}
	} else {
		td__text_puts(t, "\"text\": ");
		td_json_string(t, o->content.s ? o->content.s : "", o->content.n);
		td__text_puts(t, ", \"logprobs\": ");
		if (c->logprobs)
			td_openai_columns_put(t, &o->columns);
		else
			td__text_puts(t, "null");
	}
	td_json_format(t, ", \"finish_reason\": \"%s\"}", o->finish);
}

/* All choices are done. */
static void call_over(struct td_http *h)
{
	struct td_http_call *c = h->call;
	struct td__text t = {0};

	if (c->stream) {
		if (c->include_usage) {
			td__text_puts(&t, "data: ");
			put_front(&t, c);
			td__text_puts(&t, "], \"usage\": ");
			td_openai_usage(&t, &c->usage);
			td__text_puts(&t, "}");
			send_event(c, &t);
		}
		td__text_puts(&t, "data: [DONE]");
		send_event(c, &t);
		drop_call(h);
		td_http_stream_end(h, 0);
		return;
	}
	put_front(&t, c);
	for (int i = 0; i < c->n; i++)
		put_whole_choice(&t, &c->choice[i]);
	td__text_puts(&t, "], \"usage\": ");
	td_openai_usage(&t, &c->usage);
	td__text_puts(&t, "}");
	drop_call(h);
	td_http_answer_json(h, 200, &t);
}

/* ---- what the daemon says of a request --------------------------------------------------------------------------------------------- */

static struct choice *choice_of(struct td_http_call *c, uint64_t tag)
{
	return tag >= c->tag && tag - c->tag < (uint64_t)c->n ? &c->choice[tag - c->tag] : NULL;
}

static void fail_call(struct td_http *h, int code, const char *text)
{
	struct td_error err;

	td_error_set(&err, code, "%s", text);
	td_metrics_error(h->s->d, code);
	td_http_call_error(h, 0, &err, 0);
}

/* Tokens of thinking are those up to its closing tag. */
static void count_thinking(struct choice *o, const struct td_request *r, int n)
{
	int close = o->think_open ? td_tokenizer_added(r->text.detok.t, "</think>") : -1;

	for (int i = 0; i < n && o->think_open; i++) {
		o->reasoning++;
		o->think_open = r->log.ids[r->log.n_prompt + r->sent + i] != close;
	}
}

void td_http_call_delta(struct td_http *h, struct td_request *r, int n, size_t text_end)
{
	struct td_http_call *c = h->call;
	struct choice *o = choice_of(c, r->tag);
	size_t from = td_stream_text_from(r);

	if (!o)
		return;
	count_thinking(o, r, n);
	if (c->logprobs && n && c->chat)
		td_openai_logprobs(&o->logprobs, r->text.detok.t, &r->log, r->sent, n, !o->logprobs.n);
	else if (c->logprobs && n)
		td_openai_columns_add(&o->columns, r->text.detok.t, &r->log, r->sent, n);
	if (text_end > from && c->chat)
		td_answer_push(&o->answer, r->text.text + from, text_end - from);
	else if (text_end > from)
		add_string(&o->content, r->text.text + from, text_end - from);
	if (failed(o))
		fail_call(h, TD_E_NOMEM, "no memory for the answer");
	else if (!c->stream && bytes_of(o) > WHOLE_MAX)
		fail_call(h, TD_E_TOO_LARGE, "the whole answer is too large with its log-probabilities: stream it");
	else if (c->stream && has_news(o))
		send_chunk(o, NULL);
}

void td_http_call_finish(struct td_http *h, const struct td_request *r)
{
	struct td_http_call *c = h->call;
	struct choice *o = choice_of(c, r->tag);
	Tandem__Usage u = TANDEM__USAGE__INIT;

	if (!o || o->done)
		return;
	if (r->finish == TANDEM__FINISH_REASON__CANCELLED) { /* by the daemon's end: nobody else cancels these */
		fail_call(h, TD_E_DRAINING, "the request was cancelled: tandemd is ending");
		return;
	}
	if (c->chat)
		td_answer_end(&o->answer);
	if (o->arguments_open)
		on_arguments(o, 0, "", 0);
	if (failed(o)) {
		fail_call(h, TD_E_NOMEM, "no memory for the answer");
		return;
	}
	o->done = 1;
	o->finish = r->finish == TANDEM__FINISH_REASON__LENGTH ? "length" : o->answer.calls ? "tool_calls" : "stop";
	td_stream_usage(r, &u);
	td_openai_usage_add(&c->usage, &u, o->first_of_prompt, o->reasoning);
	if (c->stream)
		send_chunk(o, o->finish);
	if (--c->left == 0)
		call_over(h);
}

void td_http_call_error(struct td_http *h, uint64_t tag, const struct td_error *e, uint32_t retry_ms)
{
	struct td_http_call *c = h->call;
	struct td__text t = {0};
	char extra[64] = "";

	(void)tag; /* whichever choice it was, the call ends */
	if (!c->begun) {
		if (retry_ms)
			snprintf(extra, sizeof(extra), "Retry-After: %u\r\n", (retry_ms + 999) / 1000);
		drop_call(h);
		td_http_answer_error(h, 0, e, NULL, NULL, extra);
		return;
	}
	td__text_puts(&t, "data: ");
	td_openai_error(&t, td_error_http(e->code), e, NULL, NULL);
	send_event(c, &t);
	drop_call(h);
	td_http_stream_end(h, 1);
}

void td_http_call_ping(struct td_http *h)
{
	struct td_http_call *c = h->call;
	struct td__text t = {0};

	if (!c->stream || !c->n) {
		h->wrote_us = td_now_us();
		return;
	}
	td__text_puts(&t, ": still here");
	send_event(c, &t);
}

/* ---- from the body to requests ----------------------------------------------------------------------------------------------------- */

/* One request per choice; seeds follow each other when one is given. */
static void make_requests(struct generate_job *g)
{
	const struct td_model *m = &g->job.d->model;
	struct td_openai_request *q = &g->q;
	uint64_t seed = q->g->sampling->seed;

	for (size_t p = 0; p < q->n_prompts; p++) {
		if (!q->chat && q->prompt[p].text) {
			q->g->input_case = TANDEM__GENERATE__INPUT_TEXT;
			q->g->text = q->prompt[p].text;
		} else if (!q->chat) {
			q->g->input_case = TANDEM__GENERATE__INPUT_TOKENS;
			q->g->tokens = q->prompt[p].ids;
		}
		for (int i = 0; i < q->n; i++) {
			struct td_request *r;

			q->g->sampling->seed = seed + (uint64_t)i;
			r = td_request_create(&g->job.cfg, m, q->g, &g->job.error);
			if (!r)
				return;
			g->request[g->n_requests++] = r;
		}
	}
}

static void run(struct td_job *j)
{
	struct generate_job *g = (struct generate_job *)j;

	if (td_openai_read(&g->q, g->chat, g->body, g->n, j->d->model.name, &j->error) == 0)
		make_requests(g);
}

static struct td_http_call *call_of(struct td_http *h, struct generate_job *g)
{
	static const struct td_answer_out out = {NULL, on_thinking, on_content, on_call, on_arguments};
	struct td_http_call *c = calloc(1, sizeof(*c));
	const Tandem__Chat *chat = g->chat ? g->q.g->chat : NULL;
	int thinking = chat && (chat->has_enable_thinking ? !!chat->enable_thinking : h->s->d->model.thinking_default);
	uint64_t random = 0;

	if (!c)
		return NULL;
	if (getrandom(&random, sizeof(random), GRND_NONBLOCK) < 0)
		random = td_now_us();
	*c = (struct td_http_call){.h = h, .chat = g->chat, .stream = g->q.stream, .include_usage = g->q.include_usage, .logprobs = g->q.logprobs,
				   .n = g->n_requests, .left = g->n_requests, .tag = h->next_tag + 1, .created = (long long)time(NULL)};
	snprintf(c->id, sizeof(c->id), "%s-%016llx%llx", g->chat ? "chatcmpl" : "cmpl", (unsigned long long)random, (unsigned long long)g->job.number);
	h->next_tag += (uint64_t)c->n;
	c->tools = g->q.tools;
	g->q.tools = NULL;
	for (int i = 0; i < c->n; i++) {
		struct choice *o = &c->choice[i];
		struct td_answer_out its = out;

		*o = (struct choice){.call = c, .index = i, .first_of_prompt = i % g->q.n == 0, .think_open = thinking};
		its.ctx = o;
		td_answer_init(&o->answer, thinking, c->tools, &its);
	}
	return c;
}

/* The call exists from here on; a refusal of any of its requests ends it. */
static void admit(struct td_http *h, struct generate_job *g)
{
	struct td_session *s = h->s;
	uint64_t tag = h->call->tag;

	for (int i = 0; i < g->n_requests; i++) {
		struct td_request *r = g->request[i];

		g->request[i] = NULL;
		if (td_dispatch_admit(s, r, g->q.g, i ? ++s->d->next_request : g->job.number, tag + (uint64_t)i))
			return;
	}
}

static void answer_refused(struct td_http *h, struct generate_job *g)
{
	const char *param = g->q.param;

	td_metrics_refuse(h->s->d, td_session_who(h->s), g->job.error.code);
	td_metrics_error(h->s->d, g->job.error.code);
	if (!*param && !g->chat && !strncmp(g->job.error.text, "the prompt", 10))
		param = "prompt";
	td_http_answer_error(h, 0, &g->job.error, *param ? param : NULL, g->q.code, NULL);
}

static void done(struct td_job *j)
{
	struct generate_job *g = (struct generate_job *)j;
	struct td_session *s = j->session;
	struct td_http *h = s ? s->http : NULL;

	if (h && s->state == TD_SES_OPEN) {
		if (!j->error.code && !(h->call = call_of(h, g)))
			td_error_set(&j->error, TD_E_NOMEM, "out of memory");
		if (j->error.code)
			answer_refused(h, g);
		else
			admit(h, g);
	}
	for (int i = 0; i < g->n_requests; i++)
		td_request_free(g->request[i]);
	td_openai_finish(&g->q);
	free(g->body);
	free(g);
}

void td_http_generate(struct td_http *h, int chat)
{
	struct td_session *s = h->s;
	struct generate_job *g;
	struct td_refusal no;

	if (td_admission_open(s, &no)) {
		char extra[64] = "";

		td_metrics_refuse(s->d, td_session_who(s), no.error.code);
		td_metrics_error(s->d, no.error.code);
		if (no.retry_after_ms)
			snprintf(extra, sizeof(extra), "Retry-After: %u\r\n", (no.retry_after_ms + 999) / 1000);
		td_http_answer_error(h, 0, &no.error, NULL, NULL, extra);
		return;
	}
	g = calloc(1, sizeof(*g));
	if (!g) {
		td_error_set(&no.error, TD_E_NOMEM, "out of memory");
		td_http_answer_error(h, 0, &no.error, NULL, NULL, NULL);
		return;
	}
	g->chat = chat;
	g->body = td_http_take_body(h, &g->n);
	g->job.run = run;
	g->job.done = done;
	g->job.number = ++s->d->next_request;
	td_http_wait(h);
	td_job_begin(&g->job, s, g->n);
}
