/*
 * http.h: HTTP/1.1 inside tandemd: the OpenAI-shaped API, on the same engine and queue as the frames of libtandem.
 *
 *   guard.c       are these bytes HTTP as strictly written as it must be
 *   http.c        one connection: heads, bodies, answers, time limits
 *   key.c         who asks, on a TCP connection
 *   routes.c      which path is what; all answers that need no generation
 *   openai_in.c   the JSON of a request becomes a Generate message (openai_chat.c: what only chats have)
 *   generate.c    a generation: jobs, choices, streams and whole answers
 *   openai_out.c  the JSON of answers
 *   answer.c      text of the model into thinking, content and calls of tools
 *   json_text.c   JSON as it is written
 *
 * A connection works on one message at a time; what a client sends ahead waits in its session, bounded. So answers come in order, and there is at most
 * one call (a generation of up to TD_HTTP_CHOICES_MAX choices) per connection. A call belongs to its connection; its requests belong to the daemon as all
 * requests do and are told apart by their tags.
 * What must never happen: a second validation beside td_request_create's; two answers to one message; bytes of one message taken for another's.
 */
#ifndef TD_HTTP_H
#define TD_HTTP_H

#include <http_parser.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/http/guard.h"
#include "engine/error.h"
#include "engine/text.h"

struct td_daemon;
struct td_session;
struct td_session_protocol;
struct td_http_call;

extern const struct td_session_protocol td_http;

enum { TD_HTTP_CHOICES_MAX = 16 };

enum td_http_stage { TD_HTTP_HEAD, TD_HTTP_BODY, TD_HTTP_ANSWER /* of a generation, or of a job */ };

struct td_http_route;

struct td_http {
	struct td_session *s;
	http_parser parser;
	enum td_http_stage stage;
	uint64_t since_us; /* of the stage; of HEAD: of its first byte, or of the last answer */
	/* the message */
	char *head; /* malloc'd; NULL between messages */
	size_t head_n, head_size;
	struct td_http_framing framing;
	struct td_http_body framed;
	char path[256]; /* without its query */
	int method;
	const struct td_http_route *route; /* NULL: refused */
	int refused; /* status, told when the body has passed */
	struct td_error why;
	char *body; /* malloc'd, NUL-terminated */
	size_t body_n, body_size;
	int too_large;
	int bodies_told; /* http-parser saw the end of the message */
	/* the answer */
	int close_after;
	struct td_http_call *call;
	uint64_t next_tag;
	uint64_t wrote_us; /* something was said last */
};

/* ---- http.c: answers --------------------------------------------------------------------------------------------------------------- */

/* A whole answer; `extra`: further header lines, each with its line end, or NULL. HEAD gets no body. The message is over with it. */
void td_http_answer(struct td_http *h, int status, const char *type, const char *extra, const char *body, size_t n);
void td_http_answer_json(struct td_http *h, int status, struct td__text *json); /* frees the text */
/* An error in OpenAI's shape; status 0: the code's own. */
void td_http_answer_error(struct td_http *h, int status, const struct td_error *e, const char *param, const char *code, const char *extra);
void td_http_stream_begin(struct td_http *h); /* 200, text/event-stream */
void td_http_stream_write(struct td_http *h, const char *data, size_t n);
void td_http_stream_end(struct td_http *h, int close_after); /* the message is over */
char *td_http_take_body(struct td_http *h, size_t *n); /* the caller's to free; NULL: no memory, *n is 0 then */
/* The message's answer will come later: nothing more is taken from the client till then. */
void td_http_wait(struct td_http *h);

/* ---- key.c -------------------------------------------------------------------------------------------------------------------- */

/* `auth`: value of Authorization (n bytes, 0: none). Sets the session's tenant; or TD_E_UNAUTHORIZED. */
int td_http_identify(struct td_session *s, const char *auth, size_t n, struct td_error *err);

/* ---- routes.c ----------------------------------------------------------------------------------------------------------------- */

struct td_http_route {
	const char *path; /* ending in '/': and anything behind */
	int get, post; /* allowed methods */
	int open; /* also without a key */
	void (*run)(struct td_http *h);
};
const struct td_http_route *td_http_route_find(const char *path);
void td_http_route_allow(const struct td_http_route *r, char *text, size_t size); /* "GET, HEAD, OPTIONS" */

/* ---- generate.c --------------------------------------------------------------------------------------------------------------- */

void td_http_generate(struct td_http *h, int chat);
void td_http_tokenize(struct td_http *h);
/* What the protocol's table calls (session.h). */
struct td_request;
void td_http_call_delta(struct td_http *h, struct td_request *r, int n, size_t text_end);
void td_http_call_finish(struct td_http *h, const struct td_request *r);
void td_http_call_error(struct td_http *h, uint64_t tag, const struct td_error *e, uint32_t retry_ms);
void td_http_call_ping(struct td_http *h);
void td_http_call_free(struct td_http_call *c); /* its requests are not touched; NULL is fine */

/* ---- json_text.c ------------------------------------------------------------------------------------------------------------------- */

void td_json_string(struct td__text *t, const char *s, size_t n); /* quoted; bytes that are no UTF-8 become U+FFFD */
void td_json_format(struct td__text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
