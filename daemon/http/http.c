/*
 * http.c: one HTTP connection: bytes in, messages out; answers written.
 *
 * A head is collected whole (bounded), checked by guard.c and then read by http-parser; a body passes the guard piece by piece before http-parser takes the
 * chunks apart. What is wrong with the head alone (path, method, key, type, length) is known before the body comes: a body of moderate size is then read and
 * dropped so that the connection can go on, a larger one is not read at all, and the connection ends with the answer.
 * A message is worked on when it is whole. Until its answer is complete the session is on hold: what the client sends ahead waits there, bounded.
 * What must never happen: bytes that guard and parser understand differently; an answer's head sent twice.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "daemon/daemon.h"
#include "daemon/http/openai.h"
#include "engine/log.h"

enum { DROP_MOST = 1 << 20 /* of a refused body */, BODY_FIRST = 4096, BOUNDED_FROM = 65536 };

/* ---- life -------------------------------------------------------------------------------------------------------------------------- */

static void message_free(struct td_http *h)
{
	free(h->head);
	free(h->body);
	h->head = h->body = NULL;
	h->head_n = h->head_size = h->body_n = h->body_size = 0;
	h->route = NULL;
	h->refused = 0;
	h->bodies_told = h->too_large = 0;
}

static struct td_http *state_of(struct td_session *s)
{
	struct td_http *h = s->http;

	if (!h && (h = calloc(1, sizeof(*h)))) {
		h->s = s;
		h->since_us = s->opened_us;
		s->http = h;
	}
	return h;
}

static void closing(struct td_session *s)
{
	struct td_http *h = s->http;

	if (!h)
		return;
	s->http = NULL;
	td_http_call_free(h->call);
	message_free(h);
	free(h);
}

/* ---- writing ----------------------------------------------------------------------------------------------------------------------- */

static void put(struct td_http *h, const char *data, size_t n)
{
	uint8_t *out = n ? td_session_reserve(h->s, n) : NULL;

	if (out)
		memcpy(out, data, n);
	h->wrote_us = td_now_us();
}

static const char *status_text(int status)
{
	switch (status) {
#define XX(number, name, string) \
	case number: \
		return #string;
		HTTP_STATUS_MAP(XX)
#undef XX
	case 499:
		return "Client Closed Request";
	}
	return "Unknown";
}

/* The answer is complete: the next message may come, or the connection ends. */
static void message_over(struct td_http *h)
{
	struct td_session *s = h->s;
	int close_after = h->close_after;

	message_free(h);
	h->stage = TD_HTTP_HEAD;
	h->since_us = td_now_us();
	if (close_after)
		td_session_linger(s); /* frees h */
	else if (s->hold) {
		s->hold = 0;
		s->woken = 1;
	}
}

static void put_head(struct td_http *h, int status, const char *type, const char *extra, const char *framing)
{
	char text[2048];
	int n = snprintf(text, sizeof(text), "HTTP/1.1 %d %s\r\nServer: tandemd/" TD_VERSION "\r\n%s%s%s%s%s%s\r\n", status, status_text(status), type ? "Content-Type: " : "",
			 type ? type : "", type ? "\r\n" : "", extra ? extra : "", framing, h->close_after ? "Connection: close\r\n" : !h->framing.minor ? "Connection: keep-alive\r\n" : "");

	put(h, text, (size_t)n < sizeof(text) ? (size_t)n : sizeof(text) - 1);
}

void td_http_answer(struct td_http *h, int status, const char *type, const char *extra, const char *body, size_t n)
{
	char length[64];

	h->close_after |= h->s->d->draining != 0;
	snprintf(length, sizeof(length), status == 204 ? "" : "Content-Length: %zu\r\n", n);
	put_head(h, status, type, extra, length);
	if (h->method != HTTP_HEAD)
		put(h, body, n);
	message_over(h);
}

void td_http_answer_json(struct td_http *h, int status, struct td__text *json)
{
	if (json->failed) {
		struct td_error err;

		td__text_finish(json);
		td_error_set(&err, TD_E_NOMEM, "out of memory");
		td_http_answer_error(h, 0, &err, NULL, NULL, NULL);
		return;
	}
	td_http_answer(h, status, "application/json", NULL, json->s, json->n);
	td__text_finish(json);
}

void td_http_answer_error(struct td_http *h, int status, const struct td_error *e, const char *param, const char *code, const char *extra)
{
	struct td__text t = {0};

	if (!status)
		status = td_error_http(e->code);
	if (e->code == TD_E_DRAINING && (!extra || !*extra))
		extra = "Retry-After: 5\r\n"; /* another one may be up by then */
	td_openai_error(&t, status, e, param, code);
	if (t.failed)
		h->close_after = 1;
	td_http_answer(h, status, "application/json", extra, t.failed ? "" : t.s, t.failed ? 0 : t.n);
	td__text_finish(&t);
}

void td_http_stream_begin(struct td_http *h)
{
	if (!h->framing.minor)
		h->close_after = 1; /* the end of the connection is the end of the answer */
	put_head(h, 200, "text/event-stream", "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n", h->framing.minor ? "Transfer-Encoding: chunked\r\n" : "");
}

void td_http_stream_write(struct td_http *h, const char *data, size_t n)
{
	char head[32];

	if (h->framing.minor)
		put(h, head, (size_t)snprintf(head, sizeof(head), "%zx\r\n", n));
	put(h, data, n);
	if (h->framing.minor)
		put(h, "\r\n", 2);
}

void td_http_stream_end(struct td_http *h, int close_after)
{
	h->close_after |= close_after || h->s->d->draining;
	if (h->framing.minor)
		put(h, "0\r\n\r\n", 5);
	message_over(h);
}

char *td_http_take_body(struct td_http *h, size_t *n)
{
	char *body = h->body ? h->body : strdup("");

	*n = h->body_n;
	h->body = NULL;
	return body;
}

void td_http_wait(struct td_http *h)
{
	h->stage = TD_HTTP_ANSWER;
	h->since_us = td_now_us();
	h->s->hold = 1;
}

/* ---- head -------------------------------------------------------------------------------------------------------------------------- */

/* Nothing more can be understood of this client: the answer, and the end. */
static void bad_message(struct td_http *h, int status, const char *why)
{
	struct td_error err;

	td_error_set(&err, status == 413 ? TD_E_TOO_LARGE : status == 408 ? TD_E_DEADLINE : TD_E_PROTOCOL, "%s", why);
	td_metrics_error(h->s->d, err.code);
	h->close_after = 1;
	td_http_answer_error(h, status, &err, NULL, NULL, NULL);
}

static void refuse(struct td_http *h, int status, int code, const char *text)
{
	if (h->refused)
		return;
	h->refused = status;
	td_error_set(&h->why, code, "%s", text);
}

static int on_url(http_parser *p, const char *at, size_t n)
{
	struct td_http *h = p->data;
	struct http_parser_url url;
	size_t len;

	h->path[0] = 0;
	if (n == 1 && *at == '*') {
		strcpy(h->path, "*");
		return 0;
	}
	http_parser_url_init(&url);
	if (http_parser_parse_url(at, n, p->method == HTTP_CONNECT, &url) || !(url.field_set & 1 << UF_PATH))
		return 0;
	len = url.field_data[UF_PATH].len;
	if (len < sizeof(h->path))
		snprintf(h->path, sizeof(h->path), "%.*s", (int)len, at + url.field_data[UF_PATH].off);
	else
		strcpy(h->path, "/...");
	return 0;
}

static int on_body(http_parser *p, const char *at, size_t n)
{
	struct td_http *h = p->data;

	size_t most = h->refused ? DROP_MOST : (size_t)h->s->d->cfg.max_frame;

	if (n > most || h->body_n > most - n) {
		h->too_large = 1;
		return 0;
	}
	if (h->refused) {
		h->body_n += n;
		return 0;
	}
	if (h->body_n + n + 1 > h->body_size) {
		size_t size = h->body_size ? h->body_size : BODY_FIRST;
		char *bigger;

		while (size < h->body_n + n + 1)
			size *= 2;
		size = size < most + 1 ? size : most + 1;
		bigger = realloc(h->body, size);
		if (!bigger) {
			refuse(h, 503, TD_E_NOMEM, "no memory for this body");
			return 0;
		}
		h->body = bigger;
		h->body_size = size;
	}
	memcpy(h->body + h->body_n, at, n);
	h->body_n += n;
	h->body[h->body_n] = 0;
	return 0;
}

static int on_message_complete(http_parser *p)
{
	((struct td_http *)p->data)->bodies_told = 1;
	return 0;
}

static const http_parser_settings callbacks = {.on_url = on_url, .on_body = on_body, .on_message_complete = on_message_complete};

/* A page of the web must not reach a daemon that asks for no key, by whatever name it gave this machine's address. */
static int host_is_local(const struct td_http *h)
{
	const char *v;
	size_t n, name;

	if (!td_http_head_field(h->head, h->head_n, "Host", &v, &n))
		return 1; /* HTTP/1.0; no browser */
	if (n && *v == '[')
		return 1;
	for (name = 0; name < n && v[name] != ':'; name++)
		;
	if (name == 9 && !strncasecmp(v, "localhost", 9))
		return 1;
	for (size_t i = 0; i < name; i++)
		if (v[i] != '.' && (v[i] < '0' || v[i] > '9'))
			return 0;
	return 1;
}

static void check_key(struct td_http *h)
{
	struct td_session *s = h->s;
	struct td_error err;
	const char *v = NULL;
	size_t n = 0;
	int open;

	if (!s->tcp)
		return; /* the peer's uid says who it is */
	if (!td_http_head_field(h->head, h->head_n, "Authorization", &v, &n))
		n = 0;
	open = h->route && h->route->open;
	if (td_http_identify(s, n ? v : "", n, &err) == 0) {
		if (!n && !open && !host_is_local(h))
			refuse(h, 403, TD_E_PERMISSION, "this Host is not this machine's own name (localhost or an address): use one of these, or API keys (http.require_key)");
		return;
	}
	if (!open)
		refuse(h, 401, TD_E_UNAUTHORIZED, err.text);
}

static void check_type(struct td_http *h)
{
	const char *v;
	size_t n;

	if (td_http_head_field(h->head, h->head_n, "Content-Encoding", &v, &n) && !(n == 8 && !strncasecmp(v, "identity", 8)))
		refuse(h, 415, TD_E_INVALID, "a body must not be compressed");
	if (td_http_head_field(h->head, h->head_n, "Content-Type", &v, &n) && n >= 16 && !strncasecmp(v, "application/json", 16) &&
	    (n == 16 || v[16] == ';' || v[16] == ' ' || v[16] == '\t'))
		return;
	refuse(h, 415, TD_E_INVALID, "the body's Content-Type must be application/json");
}

/* What is wrong already before the body comes. */
static void check_route(struct td_http *h)
{
	const struct td_http_route *r = td_http_route_find(h->path);
	char text[480];

	h->route = r;
	if (h->method == HTTP_OPTIONS && (r || !strcmp(h->path, "*")))
		return;
	if (!r) {
		snprintf(text, sizeof(text), "there is nothing at %.200s", h->path[0] ? h->path : "this address");
		refuse(h, 404, TD_E_NOT_FOUND, text);
		return;
	}
	if (!(r->post && h->method == HTTP_POST) && !(r->get && (h->method == HTTP_GET || h->method == HTTP_HEAD))) {
		snprintf(text, sizeof(text), "%s is not done at %.200s", http_method_str((enum http_method)h->method), h->path);
		refuse(h, 405, TD_E_INVALID, text);
	}
	check_key(h);
	if (h->method == HTTP_POST && !h->framing.chunked && !h->framing.has_length)
		refuse(h, 411, TD_E_INVALID, "a POST needs Content-Length or Transfer-Encoding: chunked");
	if (h->method == HTTP_POST)
		check_type(h);
}

static void run(struct td_http *h)
{
	char extra[256] = "", allow[128];

	h->s->d->asked_us = td_now_us();
	h->close_after |= h->s->d->draining != 0;
	td_http_route_allow(h->route, allow, sizeof(allow));
	if (h->refused || h->method == HTTP_OPTIONS) {
		if (h->refused == 405 || h->method == HTTP_OPTIONS)
			snprintf(extra, sizeof(extra), "Allow: %s\r\n", allow);
		else if (h->refused == 401)
			snprintf(extra, sizeof(extra), "WWW-Authenticate: Bearer realm=\"tandem\"\r\n");
		if (h->refused) {
			td_metrics_error(h->s->d, h->why.code);
			td_http_answer_error(h, h->refused, &h->why, NULL, h->refused == 401 ? "invalid_api_key" : NULL, extra);
		} else {
			td_http_answer(h, 204, NULL, extra, "", 0);
		}
		return;
	}
	h->route->run(h);
}

/* The head is whole: is there a body, and is it wanted? */
static void take_head(struct td_http *h)
{
	const char *why;
	size_t cap = (size_t)h->s->d->cfg.max_frame, done;
	int status = td_http_head_check(h->head, h->head_n, &h->framing, &why);

	h->method = -1;
	h->close_after = 0;
	if (status) {
		h->framing.minor = 1;
		bad_message(h, status, why);
		return;
	}
	http_parser_init(&h->parser, HTTP_REQUEST);
	h->parser.data = h;
	done = http_parser_execute(&h->parser, &callbacks, h->head, h->head_n);
	h->method = (int)h->parser.method;
	if (HTTP_PARSER_ERRNO(&h->parser) == HPE_INVALID_METHOD) {
		h->method = -1;
		bad_message(h, 501, "this method is not known");
		return;
	}
	if ((HTTP_PARSER_ERRNO(&h->parser) && !h->parser.upgrade) || (done != h->head_n && !h->parser.upgrade)) {
		bad_message(h, 400, "the head of the request is not well formed");
		return;
	}
	h->close_after = !http_should_keep_alive(&h->parser) || h->parser.upgrade;
	check_route(h);
	td_http_body_begin(&h->framed, &h->framing);
	if (h->framing.length > cap) {
		h->close_after = 1;
		refuse(h, 413, TD_E_TOO_LARGE, "the body is larger than limits.max_frame allows");
	}
	if (h->method == HTTP_CONNECT || (h->refused && (h->framing.length > DROP_MOST || h->framing.expects))) {
		h->close_after |= !h->framed.done;
		run(h);
		return;
	}
	h->stage = TD_HTTP_BODY;
	h->since_us = td_now_us();
	if (h->framing.expects && h->framing.minor && !h->framed.done)
		put(h, "HTTP/1.1 100 Continue\r\n\r\n", 25);
}

/* ---- input ------------------------------------------------------------------------------------------------------------------------- */

static size_t feed_head(struct td_http *h, const char *data, size_t n)
{
	size_t old = h->head_n, end, room = TD_HTTP_HEAD_MAX - old, some = n < room ? n : room, skip = 0;

	/* Empty lines before a request are forgiven. */
	while (!old && skip + 1 < some && data[skip] == '\r' && data[skip + 1] == '\n')
		skip += 2;
	if (skip)
		return skip;
	if (!old)
		h->since_us = td_now_us();
	if (old + some > h->head_size) {
		size_t size = h->head_size ? h->head_size : 1024;
		char *bigger;

		while (size < old + some)
			size *= 2;
		bigger = realloc(h->head, size);
		if (!bigger) {
			td_session_close(h->s);
			return n;
		}
		h->head = bigger;
		h->head_size = size;
	}
	memcpy(h->head + old, data, some);
	h->head_n += some;
	end = td_http_head_end(h->head, h->head_n, old);
	if (!end && h->head_n == TD_HTTP_HEAD_MAX) {
		h->method = -1;
		h->framing.minor = 1;
		bad_message(h, 431, "the head of the request is too large");
		return n;
	}
	if (!end)
		return some;
	h->head_n = end;
	take_head(h);
	return end - old;
}

static size_t feed_body(struct td_http *h, const char *data, size_t n)
{
	size_t before = h->body_size;
	long some = td_http_body_check(&h->framed, data, n);

	if (some > 0)
		http_parser_execute(&h->parser, &callbacks, data, (size_t)some);
	if (some < 0 || HTTP_PARSER_ERRNO(&h->parser) || h->framed.done != h->bodies_told) {
		bad_message(h, 400, "the chunks of the body are not well formed");
		return n;
	}
	if (h->too_large || (h->framed.chunked && h->framed.left > (uint64_t)h->s->d->cfg.max_frame)) {
		bad_message(h, 413, "the body is larger than limits.max_frame allows");
		return n;
	}
	if (h->body_size > BOUNDED_FROM && h->body_size != before)
		td_sessions_bound_input(h->s->d);
	return (size_t)some;
}

static size_t feed(struct td_session *s, const uint8_t *data, size_t n)
{
	struct td_http *h = state_of(s);
	size_t done = 0;

	if (!h) {
		td_session_close(s);
		return n;
	}
	/* h goes away when the session ends. */
	while (s->http && s->state == TD_SES_OPEN && !s->blocked && !s->hold) {
		if (h->stage == TD_HTTP_BODY && h->framed.done) {
			run(h);
			continue;
		}
		if (done == n)
			break;
		if (h->stage == TD_HTTP_HEAD)
			done += feed_head(h, (const char *)data + done, n - done);
		else
			done += feed_body(h, (const char *)data + done, n - done);
	}
	return done;
}

static void go_on(struct td_session *s)
{
	if (s->http)
		feed(s, NULL, 0);
}

static int half(const struct td_session *s)
{
	return s->http && (s->http->head_n || s->http->stage != TD_HTTP_HEAD);
}

static size_t held(const struct td_session *s)
{
	return s->http && s->http->stage == TD_HTTP_BODY ? s->http->body_size : 0;
}

/* ---- what the daemon has to say ---------------------------------------------------------------------------------------------------- */

static void accepted(struct td_session *s, const struct td_request *r, uint32_t position)
{
	(void)s; /* an answer's head is sent when it is known how it begins */
	(void)r;
	(void)position;
}

static void delta(struct td_session *s, struct td_request *r, int n, size_t text_end)
{
	if (s->http && s->http->call)
		td_http_call_delta(s->http, r, n, text_end);
}

static void finish(struct td_session *s, const struct td_request *r)
{
	if (s->http && s->http->call)
		td_http_call_finish(s->http, r);
}

static void error(struct td_session *s, uint64_t tag, const struct td_error *e, uint32_t retry_ms)
{
	struct td_http *h = s->state == TD_SES_OPEN ? state_of(s) : NULL;

	if (!h)
		return;
	if (h->call) {
		h->close_after |= !tag;
		td_http_call_error(h, tag, e, retry_ms);
	} else if (!tag) {
		h->close_after = 1;
		td_http_answer_error(h, 0, e, NULL, NULL, NULL);
	}
}

static size_t last_words(uint8_t *out, size_t size, int code, const char *why)
{
	struct td__text t = {0};
	struct td_error err;
	int n;

	td_error_set(&err, code, "%s", why);
	td_openai_error(&t, 503, &err, NULL, NULL);
	n = snprintf((char *)out, size, "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n%s",
		     t.n, t.s ? t.s : "");
	td__text_finish(&t);
	return (size_t)n < size ? (size_t)n : size - 1;
}

static void check(struct td_session *s, uint64_t now_us)
{
	const struct td_daemon_config *c = &s->d->cfg;
	struct td_http *h = s->http;
	uint64_t since = h ? h->since_us : s->opened_us;

	if (h && h->stage == TD_HTTP_ANSWER) {
		if (h->call && !s->blocked && now_us > h->wrote_us + (uint64_t)c->http_ping_s * 1000000)
			td_http_call_ping(h);
	} else if (s->blocked) {
		/* drop_slow in session.c counts that time */
	} else if (h && h->stage == TD_HTTP_BODY) {
		if (now_us > since + (uint64_t)c->http_body_s * 1000000)
			bad_message(h, 408, "the body did not come within http.body_s");
	} else if (h && h->head_n) {
		if (now_us > since + (uint64_t)c->http_header_s * 1000000) {
			h->method = -1;
			h->framing.minor = 1;
			bad_message(h, 408, "the head of the request did not come within http.header_s");
		}
	} else if (now_us > since + (uint64_t)c->http_idle_s * 1000000) {
		td_session_close(s);
	}
}

const struct td_session_protocol td_http = {
	.name = "HTTP",
	.metric = TD_PROTOCOL_HTTP,
	.feed = feed,
	.go_on = go_on,
	.half = half,
	.held = held,
	.accepted = accepted,
	.queued = accepted,
	.delta = delta,
	.finish = finish,
	.error = error,
	.last_words = last_words,
	.check = check,
	.closing = closing,
	.answers_eof = 1,
	.one_call = 1,
};
