/*
 * request.c: a Generate message becomes a request, and a request comes to its end.
 *
 * td_request_create checks every value of the message, in one place and with one sentence each, and tokenises; the rest of the daemon trusts the
 * result. Values are checked as they came: a NaN compares false with everything, so ranges are written in the form that it fails.
 * An ended or lost request stays in the table for a while, so that its client can resume; what it holds then is bounded by limits.resume_memory.
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "daemon/daemon.h"
#include "engine/chat_template.h"
#include "engine/json_schema.h"
#include "engine/log.h"

enum { CALLS_MAX = 128, STOP_IDS_ASKED_MAX = 24, PENALTY_MAX = 10, BIAS_BOUND = 100 };

/* ---- prompt ------------------------------------------------------------------------------------------------------------------------ */

static int chat_calls(const Tandem__ChatMessage *in, struct td_chat_call **out, struct td_error *err)
{
	*out = NULL;
	if (!in->n_tool_call)
		return 0;
	if (in->n_tool_call > CALLS_MAX)
		return td_error_set(err, TD_E_INVALID, "a message has %zu tool calls; %d are allowed", in->n_tool_call, CALLS_MAX);
	*out = calloc(in->n_tool_call, sizeof(**out));
	if (!*out)
		return td_error_set(err, TD_E_NOMEM, "out of memory");
	for (size_t i = 0; i < in->n_tool_call; i++)
		(*out)[i] = (struct td_chat_call){in->tool_call[i]->name, in->tool_call[i]->arguments};
	return 0;
}

static int render(const struct td_model *m, const Tandem__Chat *chat, char **text, size_t *n, struct td_spans *given, struct td_error *err)
{
	struct td_chat_message *msg = calloc(chat->n_message ? chat->n_message : 1, sizeof(*msg));
	struct td_chat c = {.message = msg, .n_messages = (int)chat->n_message, .tool = (const char *const *)chat->tool, .n_tools = (int)chat->n_tool,
			    .add_generation_prompt = 1, .thinking_default = m->thinking_default};
	int rc = 0;

	c.enable_thinking = chat->has_enable_thinking ? !!chat->enable_thinking : -1;
	if (!msg)
		return td_error_set(err, TD_E_NOMEM, "out of memory");
	if (!chat->n_message)
		rc = td_error_set(err, TD_E_INVALID, "the chat has no message");
	for (size_t i = 0; i < chat->n_message && !rc; i++) {
		const Tandem__ChatMessage *in = chat->message[i];
		struct td_chat_call *call;

		if (strcmp(in->role, "system") && strcmp(in->role, "user") && strcmp(in->role, "assistant") && strcmp(in->role, "tool")) {
			rc = td_error_set(err, TD_E_INVALID, "message %zu has the role \"%.40s\"; known are system, user, assistant and tool", i + 1, in->role);
			break;
		}
		rc = chat_calls(in, &call, err);
		msg[i] = (struct td_chat_message){in->role, in->content, in->reasoning_content, call, (int)in->n_tool_call};
	}
	if (!rc)
		rc = td_chat_render(&c, text, n, given, err);
	for (size_t i = 0; i < chat->n_message; i++)
		free((void *)msg[i].call);
	free(msg);
	return rc;
}

int td_request_chat_ids(const struct td_model *m, const Tandem__Chat *chat, struct td_ids *ids, struct td_error *err)
{
	struct td_spans given = {0};
	char *text = NULL;
	size_t n = 0;
	int rc = render(m, chat, &text, &n, &given, err);

	if (!rc)
		rc = m->trust_content ? td_encode(m->tokenizer, text, n, 1, ids, err) : td_encode_guarded(m->tokenizer, text, n, &given, ids, err);
	td_spans_finish(&given);
	free(text);
	return rc;
}

/* A model answers an empty question with an invented one; who asks so has lost the question on the way. */
static int check_question(const Tandem__Chat *chat, struct td_error *err)
{
	size_t i = chat->n_message;

	while (i > 0 && strcmp(chat->message[i - 1]->role, "user"))
		i--;
	if (i && td_chat_blank(chat->message[i - 1]->content))
		return td_error_set(err, TD_E_INVALID, "the prompt is empty: message %zu, the last of the user, holds no text", i);
	return 0;
}

static int copy_ids(const struct td_model *m, const Tandem__TokenIds *in, struct td_ids *out, struct td_error *err)
{
	for (size_t i = 0; i < in->n_id; i++)
		if (in->id[i] < 0 || in->id[i] >= m->vocab_real)
			return td_error_set(err, TD_E_INVALID, "prompt token %zu is %d; ids go from 0 to %d", i + 1, in->id[i], m->vocab_real - 1);
	out->id = malloc((in->n_id ? in->n_id : 1) * sizeof(*out->id));
	if (!out->id)
		return td_error_set(err, TD_E_NOMEM, "out of memory");
	memcpy(out->id, in->id, in->n_id * sizeof(*out->id));
	out->n = out->size = in->n_id;
	return 0;
}

static int read_prompt(const struct td_model *m, const Tandem__Generate *g, struct td_ids *ids, struct td_error *err)
{
	int rc;

	switch (g->input_case) {
	case TANDEM__GENERATE__INPUT_TEXT:
		rc = td_encode(m->tokenizer, g->text, strlen(g->text), 1, ids, err);
		break;
	case TANDEM__GENERATE__INPUT_CHAT:
		rc = check_question(g->chat, err);
		if (!rc)
			rc = td_request_chat_ids(m, g->chat, ids, err);
		break;
	case TANDEM__GENERATE__INPUT_TOKENS:
		rc = copy_ids(m, g->tokens, ids, err);
		break;
	default:
		return td_error_set(err, TD_E_INVALID, "the request has no prompt: give text, chat or tokens");
	}
	if (rc)
		return rc;
	if (ids->n == 0)
		return td_error_set(err, TD_E_INVALID, "the prompt is empty");
	if (ids->n >= (size_t)m->shm.context)
		return td_error_set(err, TD_E_CONTEXT, "the prompt has %zu tokens; the context holds %d, one of them for the answer", ids->n, m->shm.context);
	return 0;
}

/* ---- sampling ---------------------------------------------------------------------------------------------------------------------- */

static int real(const char *name, int given, float value, double def, double lo, double hi, const char *range, float *out, struct td_error *err)
{
	*out = given ? value : (float)def;
	if (*out >= (float)lo && *out <= (float)hi)
		return 0;
	return td_error_set(err, TD_E_INVALID, "%s is %g; it must be %s", name, (double)*out, range);
}

static int read_numbers(const struct td_daemon_config *c, const Tandem__Sampling *s, struct td_sampling *o, struct td_error *err)
{
	int rc;

	if ((rc = real("temperature", s->has_temperature, s->temperature, c->temperature, 0, 100, "from 0 to 100", &o->temperature, err)) ||
	    (rc = real("top_p", s->has_top_p, s->top_p, c->top_p, 1e-30, 1, "above 0 and at most 1", &o->top_p, err)) ||
	    (rc = real("min_p", s->has_min_p, s->min_p, c->min_p, 0, nextafterf(1, 0), "at least 0 and below 1", &o->min_p, err)) ||
	    (rc = real("repetition_penalty", s->has_repetition_penalty, s->repetition_penalty, c->repetition_penalty, 1e-30, PENALTY_MAX,
		       "above 0 and at most 10", &o->repetition, err)) ||
	    (rc = real("presence_penalty", s->has_presence_penalty, s->presence_penalty, c->presence_penalty, -2, 2, "from -2 to 2", &o->presence, err)) ||
	    (rc = real("frequency_penalty", s->has_frequency_penalty, s->frequency_penalty, c->frequency_penalty, -2, 2, "from -2 to 2", &o->frequency, err)))
		return rc;
	o->top_k = s->has_top_k ? s->top_k : c->top_k;
	if (o->top_k < 0)
		return td_error_set(err, TD_E_INVALID, "top_k is %d; it must be 0 (off) or more", o->top_k);
	o->logprobs = s->has_logprobs ? s->logprobs : -1;
	if (s->has_logprobs && (s->logprobs < 0 || s->logprobs > TD_TOP_MAX))
		return td_error_set(err, TD_E_INVALID, "logprobs is %d; it must be from 0 to %d", s->logprobs, TD_TOP_MAX);
	if (s->has_seed)
		o->seed = s->seed;
	else if (getrandom(&o->seed, sizeof(o->seed), 0) != sizeof(o->seed))
		return td_error_set(err, TD_E_INTERNAL, "the system gives no random numbers");
	else
		o->seed >>= 11; /* 53 bits: whoever is told it in JSON can give it back, whatever his numbers are */
	return 0;
}

static int read_bias(const struct td_model *m, const Tandem__Sampling *s, struct td_sampling *o, struct td_error *err)
{
	if (s->n_logit_bias > TD_BIAS_MAX)
		return td_error_set(err, TD_E_INVALID, "logit_bias has %zu entries; %d are allowed", s->n_logit_bias, TD_BIAS_MAX);
	for (size_t i = 0; i < s->n_logit_bias; i++) {
		int32_t id = s->logit_bias[i]->id;
		float bias = s->logit_bias[i]->bias;

		if (id < 0 || id >= m->vocab_real)
			return td_error_set(err, TD_E_INVALID, "logit_bias names token %d; ids go from 0 to %d", id, m->vocab_real - 1);
		if (!(bias >= -BIAS_BOUND && bias <= BIAS_BOUND))
			return td_error_set(err, TD_E_INVALID, "the logit_bias of token %d is %g; it must be from -%d to %d", id, (double)bias, BIAS_BOUND,
					    BIAS_BOUND);
		o->bias_id[i] = id;
		o->bias[i] = bias;
	}
	o->n_bias = (int32_t)s->n_logit_bias;
	return 0;
}

static int add_stop_id(struct td_request *r, int32_t id)
{
	for (int i = 0; i < r->n_stop_ids; i++)
		if (r->stop_id[i] == id)
			return 0;
	if (r->n_stop_ids == TD_STOP_IDS_MAX)
		return -1;
	r->stop_id[r->n_stop_ids++] = id;
	return 0;
}

static int read_stops(const struct td_model *m, const Tandem__Sampling *s, int constrained, struct td_request *r, struct td_error *err)
{
	int full = 0;

	if (s->n_stop > TD_STOPS_MAX)
		return td_error_set(err, TD_E_INVALID, "%zu stop strings are given; %d are allowed", s->n_stop, TD_STOPS_MAX);
	for (size_t i = 0; i < s->n_stop; i++) {
		size_t n = strlen(s->stop[i]);

		if (n < 1 || n > TD_STOP_BYTES_MAX)
			return td_error_set(err, TD_E_INVALID, "stop string %zu has %zu bytes; it must have 1 to %d", i + 1, n, TD_STOP_BYTES_MAX);
	}
	if (s->n_stop_token_ids > STOP_IDS_ASKED_MAX)
		return td_error_set(err, TD_E_INVALID, "%zu stop_token_ids are given; %d are allowed", s->n_stop_token_ids, STOP_IDS_ASKED_MAX);
	/* With a constraint an end can come only where the output is complete: there ignore_eos has nothing to ignore. */
	for (int i = 0; i < m->n_end && (constrained || !s->ignore_eos); i++)
		full |= add_stop_id(r, m->end[i]);
	for (size_t i = 0; i < s->n_stop_token_ids; i++) {
		if (s->stop_token_ids[i] < 0 || s->stop_token_ids[i] >= m->vocab_real)
			return td_error_set(err, TD_E_INVALID, "stop_token_ids names token %d; ids go from 0 to %d", s->stop_token_ids[i], m->vocab_real - 1);
		full |= add_stop_id(r, s->stop_token_ids[i]);
	}
	if (full)
		return td_error_set(err, TD_E_INVALID, "stop_token_ids and the model's own ends are more than %d", TD_STOP_IDS_MAX);
	if (td_textstream_init(&r->text, m->tokenizer, s->stop, s->n_stop))
		return td_error_set(err, TD_E_NOMEM, "out of memory");
	return 0;
}

static int read_constraint(const struct td_model *m, const Tandem__Generate *g, struct td_request *r, struct td_error *err)
{
	const Tandem__Constraint *c = g->constraint;
	const Tandem__Chat *chat = g->input_case == TANDEM__GENERATE__INPUT_CHAT ? g->chat : NULL;
	int thinking = chat && (chat->has_enable_thinking ? chat->enable_thinking : m->thinking_default); /* the prompt ends inside <think> */

	if (!c || (c->kind_case == TANDEM__CONSTRAINT__KIND_JSON_OBJECT && !c->json_object))
		return 0;
	if (m->n_end == 0 || m->vocab_fd <= 0)
		return td_error_set(err, TD_E_UNSUPPORTED, "a constraint needs a model with a token that ends an answer");
	switch (c->kind_case) {
	case TANDEM__CONSTRAINT__KIND_JSON_OBJECT:
		return td_constraint_object(thinking, &r->grammar, &r->n_grammar, err);
	case TANDEM__CONSTRAINT__KIND_JSON_SCHEMA:
		return td_constraint_schema(c->json_schema, thinking, &r->grammar, &r->n_grammar, err);
	case TANDEM__CONSTRAINT__KIND_TOOL_CHOICE:
		if (!chat)
			return td_error_set(err, TD_E_INVALID, "tool_choice is for a chat with tools");
		return td_constraint_tools((const char *const *)chat->tool, chat->n_tool, c->tool_choice, thinking, &r->grammar, &r->n_grammar, err);
	default:
		return td_error_set(err, TD_E_INVALID, "the constraint says nothing: give json_object, json_schema or tool_choice");
	}
}

static int read_lengths(const struct td_daemon_config *c, const struct td_model *m, const Tandem__Sampling *s, struct td_request *r, struct td_error *err)
{
	int room = m->shm.context - r->log.n_prompt, most = c->max_tokens ? c->max_tokens : room;

	if (s->has_max_tokens && s->max_tokens < 1)
		return td_error_set(err, TD_E_INVALID, "max_tokens is %d; it must be 1 or more", s->max_tokens);
	if (s->has_max_tokens)
		most = s->max_tokens;
	r->max_total = r->log.n_prompt + (most < room ? most : room);
	if (s->has_draft_tokens && (s->draft_tokens < 0 || s->draft_tokens > TD_DRAFT_MAX))
		return td_error_set(err, TD_E_INVALID, "draft_tokens is %d; it must be from 0 to %d", s->draft_tokens, TD_DRAFT_MAX);
	/* A seed's answer hangs on how many drafts there were; a greedy one doesn't. */
	r->k_may_fall = !s->has_draft_tokens && !(r->sampling.temperature > 0);
	r->k = !s->has_draft_tokens ? m->k : s->draft_tokens < m->k_max ? s->draft_tokens : m->k_max;
	return 0;
}

struct td_request *td_request_create(const struct td_daemon_config *c, const struct td_model *m, const Tandem__Generate *g, struct td_error *err)
{
	static const Tandem__Sampling none = TANDEM__SAMPLING__INIT;
	const Tandem__Sampling *s = g->sampling ? g->sampling : &none;
	struct td_request *r = calloc(1, sizeof(*r));
	struct td_ids ids = {0};

	if (!r) {
		td_error_set(err, TD_E_NOMEM, "out of memory");
		return NULL;
	}
	r->slot = -1;
	r->stream = g->stream;
	r->cache = g->cache;
	r->band = !g->has_band ? -1 : g->band == TANDEM__BAND__BATCH ? TD_BAND_BATCH : TD_BAND_INTERACTIVE;
	/* The cheap checks come first: a request that fails them is not worth the tokenising. */
	if (read_numbers(c, s, &r->sampling, err) || read_bias(m, s, &r->sampling, err) ||
	    read_stops(m, s, g->constraint != NULL, r, err) || read_constraint(m, g, r, err) || read_prompt(m, g, &ids, err))
		goto refused;
	td_commitlog_init(&r->log, ids.id, (int)ids.n, r->sampling.logprobs);
	ids.id = NULL;
	if (read_lengths(c, m, s, r, err))
		goto refused;
	if (getrandom(r->key, sizeof(r->key), 0) != sizeof(r->key)) {
		td_error_set(err, TD_E_INTERNAL, "the system gives no random numbers");
		goto refused;
	}
	return r;
refused:
	free(ids.id);
	td_request_free(r);
	return NULL;
}

void td_request_free(struct td_request *r)
{
	if (!r)
		return;
	td_commitlog_finish(&r->log);
	td_textstream_finish(&r->text);
	free(r->grammar);
	free(r);
}

/* ---- tokens ------------------------------------------------------------------------------------------------------------------------ */

static int is_stop_id(const struct td_request *r, int32_t id)
{
	for (int i = 0; i < r->n_stop_ids; i++)
		if (r->stop_id[i] == id)
			return 1;
	return 0;
}

int td_request_commit(struct td_request *r, const int32_t *token, int n, const struct td_verdict *v, int *stopped, struct td_error *err)
{
	*stopped = 0;
	for (int i = 0; i < n; i++) {
		int end = is_stop_id(r, token[i]), rc = 0;

		if (td_commitlog_append(&r->log, token[i], v, i))
			return td_error_set(err, TD_E_NOMEM, "no memory for the answer");
		/* An ending token is told by its id, not shown as text. */
		rc = end ? 0 : td_textstream_push(&r->text, token[i]);
		if (rc == 1) {
			r->finish = TANDEM__FINISH_REASON__STOP;
			*stopped = 1;
		} else if (rc == 0 && (end || r->log.n >= r->max_total)) {
			r->finish = end ? TANDEM__FINISH_REASON__STOP : TANDEM__FINISH_REASON__LENGTH;
			end = 1;
			rc = td_textstream_flush(&r->text);
		}
		if (rc < 0)
			return td_error_set(err, TD_E_NOMEM, "no memory for the answer");
		r->log.shown[td_commitlog_outputs(&r->log) - 1] = (uint32_t)r->text.shown;
		if (*stopped || end)
			return 1;
	}
	return 0;
}

/* ---- ends -------------------------------------------------------------------------------------------------------------------------- */

static size_t bytes_of(const struct td_request *r)
{
	return sizeof(*r) + td_commitlog_bytes(&r->log) + r->text.size + r->n_grammar;
}

static void forget(struct td_daemon *d, struct td_request *r)
{
	HASH_DEL(d->requests, r);
	td_tenant_drop(&d->tenants, r->tenant);
	td_request_free(r);
}

void td_request_unretire(struct td_daemon *d, struct td_request *r)
{
	struct td_request **p = &d->retired_head, *before = NULL;

	if (!r->retired)
		return;
	while (*p != r) {
		before = *p;
		p = &(*p)->retired_next;
	}
	*p = r->retired_next;
	if (d->retired_tail == r)
		d->retired_tail = before;
	r->retired_next = NULL;
	r->retired = 0;
	d->retired_bytes -= bytes_of(r);
}

static void retire(struct td_daemon *d, struct td_request *r)
{
	int at_once = r->forget && !r->session; /* nobody will ask for it: first in the row */

	r->retired = 1;
	r->retired_next = at_once ? d->retired_head : NULL;
	r->expires_us = td_now_us() + (at_once ? 0 : (uint64_t)d->cfg.resume_s * 1000000);
	if (at_once) {
		d->retired_head = r;
		if (!d->retired_tail)
			d->retired_tail = r;
	} else {
		*(d->retired_tail ? &d->retired_tail->retired_next : &d->retired_head) = r;
		d->retired_tail = r;
	}
	d->retired_bytes += bytes_of(r);
}

/* Leaves queue and slot. `cancel`: the target still works on it. */
static void stop_running(struct td_daemon *d, struct td_request *r, int cancel)
{
	if (r->state == TD_REQ_QUEUED) {
		td_queue_remove(&d->queue, &r->entry);
		r->queue_sum_us += td_now_us() - r->queued_us;
	}
	if (r->slot >= 0)
		td_scheduler_detach(d, r, cancel);
}

static void log_end(const struct td_request *r, const char *how)
{
	td_log(TD_LOG_DEBUG, "request %llu: %s after %d tokens (prompt %d, %u cycles, %u of %u drafts accepted)", (unsigned long long)r->number, how,
	       td_commitlog_outputs(&r->log), r->log.n_prompt, r->cycles, r->accepted, r->drafted);
}

void td_request_end(struct td_daemon *d, struct td_request *r, Tandem__FinishReason finish)
{
	if (r->state == TD_REQ_ENDED)
		return;
	/* At its natural end the target frees the slot by itself; it has to be told of a stop string and of a cancel. */
	stop_running(d, r, finish == TANDEM__FINISH_REASON__CANCELLED || r->text.matched >= 0);
	r->state = TD_REQ_ENDED;
	r->finish = finish;
	if (finish == TANDEM__FINISH_REASON__CANCELLED) {
		td_textstream_flush(&r->text);
		d->count.cancelled++;
	} else {
		d->count.finished++;
	}
	td_metrics_end(d, r);
	log_end(r, finish == TANDEM__FINISH_REASON__CANCELLED ? "cancelled" : "finished");
	td_stream_pump(d, r);
	retire(d, r);
}

void td_request_fail(struct td_daemon *d, struct td_request *r, int code, const char *fmt, ...)
{
	va_list ap;

	if (r->state == TD_REQ_ENDED)
		return;
	r->error.code = code;
	va_start(ap, fmt);
	vsnprintf(r->error.text, sizeof(r->error.text), fmt, ap);
	va_end(ap);
	stop_running(d, r, 1);
	r->state = TD_REQ_ENDED;
	d->count.failed++;
	td_metrics_end(d, r);
	td_log(TD_LOG_INFO, "request %llu failed: %s", (unsigned long long)r->number, r->error.text);
	td_stream_pump(d, r);
	retire(d, r);
}

void td_request_lose(struct td_daemon *d, struct td_request *r)
{
	if (r->state == TD_REQ_LOST)
		return;
	if (r->state == TD_REQ_ENDED) { /* it is retired already; its time begins anew */
		td_request_unretire(d, r);
		retire(d, r);
		return;
	}
	stop_running(d, r, 1);
	r->state = TD_REQ_LOST;
	d->count.cancelled++;
	td_metrics_end(d, r);
	log_end(r, "its client hung up");
	retire(d, r);
}

void td_requests_expire(struct td_daemon *d, uint64_t now_us)
{
	struct td_request *r, *next;

	while ((r = d->retired_head) && (now_us >= r->expires_us || d->retired_bytes > (size_t)d->cfg.resume_memory)) {
		int waits = r->session != NULL; /* its client has not got the end yet */

		td_request_unretire(d, r);
		if (!waits) {
			forget(d, r);
			continue;
		}
		retire(d, r);
		if (now_us < r->expires_us)
			break;
	}
	HASH_ITER(hh, d->requests, r, next)
		if (r->deadline_us && now_us >= r->deadline_us && (r->state == TD_REQ_QUEUED || r->state == TD_REQ_RUNNING))
			td_request_fail(d, r, TD_E_DEADLINE, "the request's deadline has passed");
}

void td_requests_finish(struct td_daemon *d)
{
	struct td_request *r, *next;

	HASH_ITER(hh, d->requests, r, next)
		forget(d, r);
	d->retired_head = d->retired_tail = NULL;
}
