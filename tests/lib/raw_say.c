/*
 * raw_say.c: what the daemon said, a line a message (raw.h).
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/raw.h"

char raw_said[RAW_LINE];
uint64_t raw_last_request;
uint8_t raw_last_key[64];
size_t raw_last_key_n;
static size_t said_n;

static __attribute__((format(printf, 1, 2))) void add(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	said_n += (size_t)vsnprintf(raw_said + said_n, sizeof(raw_said) - said_n, fmt, ap);
	va_end(ap);
	if (said_n >= sizeof(raw_said))
		said_n = sizeof(raw_said) - 1;
}

static void add_text(const char *text)
{
	add("\"");
	for (; text && *text; text++)
		if (*text == '\n')
			add("\\n");
		else
			add("%c", *text);
	add("\"");
}

static void add_ids(const int32_t *id, size_t n)
{
	for (size_t i = 0; i < n; i++)
		add("%s%d", i ? "," : "", id[i]);
}

static void append(char **to, const char *text)
{
	size_t n = *to ? strlen(*to) : 0;

	*to = realloc(*to, n + strlen(text) + 1);
	strcpy(*to + n, text);
}

static void keep_total(uint64_t tag, const Tandem__Delta *d)
{
	struct raw_total *t = &raw->total[tag % RAW_TAGS];
	char one[16];

	if (t->n_ids == 0 && d->n_id)
		t->n_ids = d->position; /* of a resumed stream */
	t->gap |= d->position != t->n_ids;
	for (size_t i = 0; i < d->n_id; i++) {
		snprintf(one, sizeof(one), "%d,", d->id[i]);
		append(&t->ids, one);
	}
	t->n_ids += (uint32_t)d->n_id;
	append(&t->text, d->text ? d->text : "");
}

static void add_delta(uint64_t tag, const Tandem__Delta *d)
{
	keep_total(tag, d);
	add("delta position=%u n=%zu ids=", d->position, d->n_id);
	add_ids(d->id, d->n_id);
	add(" text=");
	add_text(d->text);
	if (!d->n_logprob)
		return;
	add(" logprobs=%zu first=%g top=", d->n_logprob, (double)d->logprob[0]->logprob);
	for (size_t i = 0; i < d->logprob[0]->n_top; i++)
		add("%s%d:%g:%.*s", i ? "," : "", d->logprob[0]->top[i]->id, (double)d->logprob[0]->top[i]->logprob, (int)d->logprob[0]->top[i]->token.len,
		    (char *)d->logprob[0]->top[i]->token.data);
}

static void add_status(const Tandem__Status *s)
{
	add("status state=%s slots=%u used=%u queued=%u connections=%u requests=%llu finished=%llu cancelled=%llu failed=%llu", s->state, s->slots,
	    s->slots_used, s->queued, s->connections, (unsigned long long)s->requests, (unsigned long long)s->finished, (unsigned long long)s->cancelled,
	    (unsigned long long)s->failed);
	add(" cycles=%llu drafted=%llu accepted=%llu output=%llu at0=%llu cpu_us=%llu uptime_us=%llu", (unsigned long long)s->cycles,
	    (unsigned long long)s->drafted, (unsigned long long)s->accepted, (unsigned long long)s->output_tokens,
	    s->n_accepted_at ? (unsigned long long)s->accepted_at[0] : 0, (unsigned long long)s->daemon_cpu_us, (unsigned long long)s->uptime_us);
	for (size_t i = 0; i < s->n_worker; i++) {
		const Tandem__WorkerStatus *w = s->worker[i];

		add(" %s=%s restarts_%s=%u pid_%s=%u imported_%s=%d", w->role, w->state, w->role, w->restarts, w->role, w->pid, w->role, w->imported);
	}
	for (size_t i = 0; i < s->n_tenant; i++)
		add(" gpu_%s=%llu running_%s=%u queued_%s=%u", s->tenant[i]->name, (unsigned long long)s->tenant[i]->gpu_us, s->tenant[i]->name,
		    s->tenant[i]->running, s->tenant[i]->name, s->tenant[i]->queued);
	add(" sharing=\"%s\"", s->sharing ? s->sharing : "none");
	add(" last_error=%s", s->last_error ? s->last_error : "none");
}

static void add_accepted(const Tandem__Accepted *a)
{
	raw_last_request = a->request;
	raw_last_key_n = a->key.len < sizeof(raw_last_key) ? a->key.len : sizeof(raw_last_key);
	memcpy(raw_last_key, a->key.data, raw_last_key_n);
	add("accepted request=%llu prompt=%u queue=%u", (unsigned long long)a->request, a->prompt_tokens, a->queue_position);
}

static void add_finish(const Tandem__Finish *f)
{
	add("finish reason=%d stop=%s prompt=%u output=%u cycles=%u drafted=%u accepted=%u restarts=%u seed=%llu", (int)f->reason, f->stop ? f->stop : "-",
	    f->usage->prompt_tokens, f->usage->output_tokens, f->usage->cycles, f->usage->drafted, f->usage->accepted, f->usage->restarts,
	    (unsigned long long)f->usage->seed);
}

void raw_describe(const Tandem__ServerMessage *m)
{
	said_n = 0;
	add("tag=%llu ", (unsigned long long)m->tag);
	switch (m->body_case) {
	case TANDEM__SERVER_MESSAGE__BODY_WELCOME:
		add("welcome version=%u server=%s model=%s context=%u slots=%u tenant=%s max_frame=%u ready=%d", m->welcome->version, m->welcome->server,
		    m->welcome->model, m->welcome->context, m->welcome->slots, m->welcome->tenant, m->welcome->max_frame, m->welcome->ready);
		break;
	case TANDEM__SERVER_MESSAGE__BODY_ACCEPTED:
		add_accepted(m->accepted);
		break;
	case TANDEM__SERVER_MESSAGE__BODY_DELTA:
		add_delta(m->tag, m->delta);
		break;
	case TANDEM__SERVER_MESSAGE__BODY_FINISH:
		add_finish(m->finish);
		break;
	case TANDEM__SERVER_MESSAGE__BODY_ERROR:
		add("error code=%s text=%s", m->error->code, m->error->text);
		if (m->error->has_retry_after_ms)
			add(" retry_ms=%u", m->error->retry_after_ms);
		break;
	case TANDEM__SERVER_MESSAGE__BODY_STATUS:
		add_status(m->status);
		break;
	case TANDEM__SERVER_MESSAGE__BODY_TOKENS:
		add("tokens n=%zu ids=", m->tokens->n_id);
		add_ids(m->tokens->id, m->tokens->n_id);
		break;
	case TANDEM__SERVER_MESSAGE__BODY_QUEUE:
		add("queue position=%u", m->queue->position);
		break;
	case TANDEM__SERVER_MESSAGE__BODY_TEXT:
		add("text=");
		add_text(m->text->text);
		break;
	default:
		add("unknown");
	}
}

void raw_total(void)
{
	struct raw_total *t = &raw->total[raw_get_number("tag", 1) % RAW_TAGS];

	said_n = 0;
	add_text(t->text);
	printf("total n=%u gap=%d ids=%s text=%s\n", t->n_ids, t->gap, t->ids ? t->ids : "", raw_said);
	if (t->gap)
		raw_fail("the deltas do not follow each other");
}
