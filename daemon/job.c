/*
 * job.c: the part of a message that takes long, which is tokenising, away from the loop.
 *
 * Short prompts are worked on at once: handing them to another thread costs more than the work. A job knows its session only as long as that is
 * open; the work itself touches the message, the model and the job's own copy of the settings, none of which changes meanwhile. HTTP's jobs (http/generate.c) also read
 * the JSON of their request there.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/daemon.h"

enum { AT_ONCE_BYTES = 16384 };

static void detach(struct td_job *j)
{
	struct td_job **p;

	if (!j->session)
		return;
	for (p = &j->session->jobs; *p != j; p = &(*p)->next)
		;
	*p = j->next;
}

static void on_work(uv_work_t *w)
{
	struct td_job *j = w->data;

	j->run(j);
}

static void on_done(uv_work_t *w, int status)
{
	struct td_job *j = w->data;

	(void)status; /* never cancelled */
	detach(j);
	j->done(j);
}

void td_job_begin(struct td_job *j, struct td_session *s, size_t bytes)
{
	j->d = s->d;
	j->cfg = s->d->cfg;
	j->session = s;
	j->work.data = j;
	j->next = s->jobs;
	s->jobs = j;
	if (bytes > AT_ONCE_BYTES && uv_queue_work(&s->d->loop, &j->work, on_work, on_done) == 0)
		return;
	j->run(j);
	on_done(&j->work, 0);
}

struct td_job *td_job_find(struct td_session *s, uint64_t tag)
{
	struct td_job *j = s->jobs;

	while (j && j->tag != tag)
		j = j->next;
	return j;
}

/* ---- messages of libtandem's protocol ---------------------------------------------------------------------------------------------- */

static void run(struct td_job *j)
{
	const struct td_model *m = &j->d->model;
	const Tandem__Tokenize *t = j->msg->tokenize;

	if (j->msg->body_case == TANDEM__CLIENT_MESSAGE__BODY_GENERATE) {
		j->request = td_request_create(&j->cfg, m, j->msg->generate, &j->error);
		return;
	}
	if (t->input_case == TANDEM__TOKENIZE__INPUT_TEXT) {
		td_encode(m->tokenizer, t->text, strlen(t->text), 1, &j->ids, &j->error);
	} else if (t->input_case == TANDEM__TOKENIZE__INPUT_CHAT) {
		td_request_chat_ids(m, t->chat, &j->ids, &j->error);
	} else {
		td_error_set(&j->error, TD_E_INVALID, "nothing to tokenise: give text or chat");
	}
}

static void done(struct td_job *j)
{
	td_dispatch_job(j);
	td_ids_finish(&j->ids);
	td_client_message_free(j->msg);
	free(j);
}

static size_t text_bytes(const Tandem__ClientMessage *m)
{
	const Tandem__Chat *chat = NULL;
	size_t n = 0;

	if (m->body_case == TANDEM__CLIENT_MESSAGE__BODY_GENERATE) {
		if (m->generate->input_case == TANDEM__GENERATE__INPUT_TEXT)
			return strlen(m->generate->text);
		if (m->generate->input_case == TANDEM__GENERATE__INPUT_CHAT)
			chat = m->generate->chat;
	} else {
		if (m->tokenize->input_case == TANDEM__TOKENIZE__INPUT_TEXT)
			return strlen(m->tokenize->text);
		if (m->tokenize->input_case == TANDEM__TOKENIZE__INPUT_CHAT)
			chat = m->tokenize->chat;
	}
	for (size_t i = 0; chat && i < chat->n_message; i++)
		n += (chat->message[i]->content ? strlen(chat->message[i]->content) : 0) +
		     (chat->message[i]->reasoning_content ? strlen(chat->message[i]->reasoning_content) : 0);
	for (size_t i = 0; chat && i < chat->n_tool; i++)
		n += strlen(chat->tool[i]);
	return n;
}

void td_job_start(struct td_session *s, Tandem__ClientMessage *msg, uint64_t number)
{
	struct td_job *j = calloc(1, sizeof(*j));

	if (!j) {
		struct td_error err;

		td_error_set(&err, TD_E_NOMEM, "out of memory");
		td_session_error(s, msg->tag, &err);
		td_client_message_free(msg);
		return;
	}
	j->run = run;
	j->done = done;
	j->tag = msg->tag;
	j->msg = msg;
	j->number = number;
	td_job_begin(j, s, text_bytes(msg));
}
