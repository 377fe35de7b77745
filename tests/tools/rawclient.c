/*
 * rawclient.c: a client for tests that does what a good client never would. Reads a script from standard input, a command per line, and prints what the
 * daemon says, one line a message. Exit code 0 when every expectation held.
 *
 *   rawclient SOCKET < script
 *
 * Several connections: `connect N [rcvbuf=BYTES]` opens one and makes it current, `use N` changes, `close`; `greet N [rcvbuf=BYTES]` connects, says
 * hello and is welcome. Commands on the current one:
 *   hello [version=N]
 *   gen tag=N text="..." | ids=1,2*10 | chat="role:content"... [fields of Sampling, stream=0, deadline_ms=N, stop="..."..., bias=ID:X*N, stop_id=ID*N]
 *   tokenize tag=N text="..."                  detokenize tag=N ids=...
 *   cancel tag=N target=N                      resume tag=N position=N [request=N] [key=bad]   defaults: the last Accepted
 *   status [tag=N]
 *   bytes HEX                                  as they are
 *   frame HEX                                  with its length before it
 *   half BYTES                                 a frame of so many bytes, less the last one
 *   expect "text"                              the next message's line contains it
 *   until "text"                               read on until a line contains it
 *   wait_status "text"                         ask for the status until it contains it
 *   eof                                        the daemon closes (messages before it are printed)
 *   silence MS                                 nothing comes for so long
 *   total tag=N                                print all ids and the text of a request, as its deltas put them together
 *   noise N [seed=S]                           N connections, each with a good request in which some bits are wrong
 *   crowd N                                    open N more connections that say nothing
 *   sleep MS        timeout MS        note TEXT        kill WORKER SIGNAL (by the pid of the last status)
 */
#include <ctype.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "engine/clock.h"
#include "proto/frame.h"

enum { CONNECTIONS = 64, ARGS = 64, TAGS = 256, LINE = 1 << 20, READ = 4096 };

struct arg {
	char *name, *value;
};

struct total {
	uint32_t n_ids;
	char *ids, *text;
	int gap; /* a delta did not follow the one before */
};

static struct connection {
	int fd;
	struct td_frame_reader in;
	uint8_t raw[READ];
	size_t raw_n, raw_at;
	struct total total[TAGS];
} conn[CONNECTIONS];
static struct connection *c;
static const char *path;
static int timeout_ms = 60000, line_number; /* for what never comes; a busy machine is given time */
static char said[LINE];
static size_t said_n;
static uint64_t last_request;
static uint8_t last_key[64];
static size_t last_key_n;
static struct arg args[ARGS];
static int n_args;
static uint32_t spoil; /* not 0: the next message is damaged, by this seed */

static _Noreturn __attribute__((format(printf, 1, 2))) void fail(const char *fmt, ...)
{
	va_list ap;

	fflush(stdout);
	fprintf(stderr, "rawclient: line %d: ", line_number);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	exit(1);
}

/* ---- script ------------------------------------------------------------------------------------------------------------------------- */

/* One word, with "..." and \n \" \\ \xHH in it. */
static char *word(char **at)
{
	char *p = *at, *out, *start;
	int quoted = 0;

	while (isspace((unsigned char)*p))
		p++;
	if (!*p)
		return NULL;
	start = out = p;
	for (; *p && (quoted || !isspace((unsigned char)*p)); p++) {
		if (*p == '"') {
			quoted = !quoted;
		} else if (*p == '\\' && p[1] == 'x') {
			char hex[3] = {p[2], p[3], 0};

			*out++ = (char)strtol(hex, NULL, 16);
			p += 3;
		} else if (*p == '\\' && p[1]) {
			p++;
			*out++ = *p == 'n' ? '\n' : *p;
		} else {
			*out++ = *p;
		}
	}
	*at = *p ? p + 1 : p;
	*out = 0;
	return start;
}

static void split(char *line)
{
	char *w;

	n_args = 0;
	while (n_args < ARGS && (w = word(&line))) {
		char *eq = n_args ? strchr(w, '=') : NULL;

		args[n_args++] = (struct arg){w, eq ? eq + 1 : w};
		/* A text to look for may hold a '='; only names are cut. */
		if (eq && strcmp(args[0].name, "expect") && strcmp(args[0].name, "until") && strcmp(args[0].name, "wait_status"))
			*eq = 0;
	}
}

static const char *get(const char *name)
{
	for (int i = 1; i < n_args; i++)
		if (!strcmp(args[i].name, name))
			return args[i].value;
	return NULL;
}

static uint64_t get_number(const char *name, uint64_t otherwise)
{
	const char *v = get(name);

	return v ? strtoull(v, NULL, 0) : otherwise;
}

static int32_t *get_ids(size_t *n)
{
	const char *v = get("ids");
	int32_t *ids = malloc(sizeof(*ids));
	char *end;

	*n = 0;
	while (v && *v) { /* "7" or "7*100", by commas */
		long id = strtol(v, &end, 10), times = 1;

		if (*end == '*')
			times = strtol(end + 1, &end, 10);
		ids = realloc(ids, (*n + (size_t)times + 1) * sizeof(*ids));
		while (times-- > 0)
			ids[(*n)++] = (int32_t)id;
		v = *end == ',' ? end + 1 : "";
	}
	return ids;
}

/* ---- sending ------------------------------------------------------------------------------------------------------------------------ */

static void send_bytes(const uint8_t *data, size_t n)
{
	while (n) {
		ssize_t k = send(c->fd, data, n, MSG_NOSIGNAL);

		if (k < 0 && errno == EINTR)
			continue;
		if (k < 0)
			return; /* the daemon closed: what it said is read next */
		data += k;
		n -= (size_t)k;
	}
}

static void send_message(Tandem__ClientMessage *m, Tandem__ClientMessage__BodyCase body)
{
	uint8_t *frame;
	size_t n;

	m->tag = get_number("tag", 1);
	m->body_case = body;
	frame = td_client_message_pack(m, &n);
	for (uint32_t x = spoil, i = spoil ? 1 + (spoil >> 28) % 4 : 0; i; i--, x = x * 1664525u + 1013904223u)
		frame[(x >> 8) % n < TD_FRAME_HEAD && i > 1 ? n - 1 : (x >> 8) % n] ^= (uint8_t)(1u << (x >> 5) % 8);
	send_bytes(frame, n);
	free(frame);
}

static void send_hex(const char *hex, int framed)
{
	size_t n = strlen(hex) / 2;
	uint8_t *data = malloc(n + TD_FRAME_HEAD);

	for (size_t i = 0; i < n; i++) {
		char two[3] = {hex[2 * i], hex[2 * i + 1], 0};

		data[TD_FRAME_HEAD + i] = (uint8_t)strtol(two, NULL, 16);
	}
	for (int i = 0; i < TD_FRAME_HEAD; i++)
		data[i] = (uint8_t)(n >> 8 * i);
	send_bytes(framed ? data : data + TD_FRAME_HEAD, framed ? n + TD_FRAME_HEAD : n);
	free(data);
}

static void send_half(size_t n)
{
	uint8_t *data = calloc(1, n + TD_FRAME_HEAD);

	for (int i = 0; i < TD_FRAME_HEAD; i++)
		data[i] = (uint8_t)(n >> 8 * i);
	send_bytes(data, n + TD_FRAME_HEAD - 1);
	free(data);
}

#define SET_FLOAT(field) \
	if (get(#field)) { \
		s->has_##field = 1; \
		s->field = strtof(get(#field), NULL); \
	}
#define SET_INT(field) \
	if (get(#field)) { \
		s->has_##field = 1; \
		s->field = (__typeof__(s->field))strtoull(get(#field), NULL, 0); \
	}

static void fill_lists(Tandem__Sampling *s)
{
	static char *stop[ARGS];
	static Tandem__LogitBias bias[512], *bias_ptr[512];
	static int32_t stop_ids[128];
	char *end;

	for (int i = 1; i < n_args; i++)
		if (!strcmp(args[i].name, "stop"))
			stop[s->n_stop++] = args[i].value;
	s->stop = stop;
	if (get("bias")) {
		int id = (int)strtol(get("bias"), &end, 10);
		float value = strtof(end + 1, &end);
		long times = *end == '*' ? strtol(end + 1, NULL, 10) : 1;

		for (long i = 0; i < times; i++) {
			tandem__logit_bias__init(&bias[i]);
			bias[i].id = id;
			bias[i].bias = value;
			bias_ptr[i] = &bias[i];
		}
		s->logit_bias = bias_ptr;
		s->n_logit_bias = (size_t)times;
	}
	if (get("stop_id")) {
		int id = (int)strtol(get("stop_id"), &end, 10);
		long times = *end == '*' ? strtol(end + 1, NULL, 10) : 1;

		for (long i = 0; i < times; i++)
			stop_ids[i] = id;
		s->stop_token_ids = stop_ids;
		s->n_stop_token_ids = (size_t)times;
	}
}

static void fill_sampling(Tandem__Sampling *s)
{
	SET_FLOAT(temperature)
	SET_INT(top_k)
	SET_FLOAT(top_p)
	SET_FLOAT(min_p)
	SET_FLOAT(repetition_penalty)
	SET_FLOAT(presence_penalty)
	SET_FLOAT(frequency_penalty)
	SET_INT(seed)
	SET_INT(logprobs)
	SET_INT(ignore_eos)
	SET_INT(max_tokens)
	SET_INT(draft_tokens)
	fill_lists(s);
}

static void fill_chat(Tandem__Chat *chat)
{
	static Tandem__ChatMessage msg[ARGS], *ptr[ARGS];

	for (int i = 1; i < n_args; i++) {
		Tandem__ChatMessage *m = ptr[chat->n_message] = &msg[chat->n_message];
		char *colon;

		if (strcmp(args[i].name, "chat"))
			continue;
		chat->n_message++;
		tandem__chat_message__init(m);
		m->role = args[i].value;
		colon = strchr(m->role, ':');
		if (colon) {
			*colon = 0;
			m->content = colon + 1;
		}
	}
	chat->message = ptr;
}

static void do_gen(void)
{
	Tandem__Sampling s = TANDEM__SAMPLING__INIT;
	Tandem__TokenIds ids = TANDEM__TOKEN_IDS__INIT;
	Tandem__Chat chat = TANDEM__CHAT__INIT;
	Tandem__Generate g = TANDEM__GENERATE__INIT;
	Tandem__ClientMessage m = TANDEM__CLIENT_MESSAGE__INIT;

	fill_sampling(&s);
	fill_chat(&chat);
	g.sampling = &s;
	if (get("ids")) {
		ids.id = get_ids(&ids.n_id);
		g.input_case = TANDEM__GENERATE__INPUT_TOKENS;
		g.tokens = &ids;
	} else if (get("text")) {
		g.input_case = TANDEM__GENERATE__INPUT_TEXT;
		g.text = (char *)get("text");
	} else if (chat.n_message || get("nochat")) {
		g.input_case = TANDEM__GENERATE__INPUT_CHAT;
		g.chat = &chat;
	}
	if (get("stream")) {
		g.has_stream = 1;
		g.stream = (int)get_number("stream", 1);
	}
	g.has_deadline_ms = get("deadline_ms") != NULL;
	g.deadline_ms = (uint32_t)get_number("deadline_ms", 0);
	m.generate = &g;
	send_message(&m, TANDEM__CLIENT_MESSAGE__BODY_GENERATE);
	free(ids.id);
}

static void do_resume(void)
{
	Tandem__Resume r = TANDEM__RESUME__INIT;
	Tandem__ClientMessage m = TANDEM__CLIENT_MESSAGE__INIT;

	r.request = get_number("request", last_request);
	r.key = get("key") ? (ProtobufCBinaryData){strlen(get("key")), (uint8_t *)get("key")} : (ProtobufCBinaryData){last_key_n, last_key};
	r.position = (uint32_t)get_number("position", 0);
	m.resume = &r;
	send_message(&m, TANDEM__CLIENT_MESSAGE__BODY_RESUME);
}

static void do_hello(void)
{
	Tandem__ClientMessage m = TANDEM__CLIENT_MESSAGE__INIT;
	Tandem__Hello hello = TANDEM__HELLO__INIT;

	hello.version = (uint32_t)get_number("version", 1);
	hello.client = (char *)"rawclient";
	m.hello = &hello;
	send_message(&m, TANDEM__CLIENT_MESSAGE__BODY_HELLO);
}

static void do_status(void)
{
	Tandem__ClientMessage m = TANDEM__CLIENT_MESSAGE__INIT;
	Tandem__StatusQuery status = TANDEM__STATUS_QUERY__INIT;

	m.status = &status;
	send_message(&m, TANDEM__CLIENT_MESSAGE__BODY_STATUS);
}

static void do_cancel(void)
{
	Tandem__ClientMessage m = TANDEM__CLIENT_MESSAGE__INIT;
	Tandem__Cancel cancel = TANDEM__CANCEL__INIT;

	cancel.target_tag = get_number("target", 1);
	m.cancel = &cancel;
	send_message(&m, TANDEM__CLIENT_MESSAGE__BODY_CANCEL);
}

static void do_tokenize(void)
{
	Tandem__ClientMessage m = TANDEM__CLIENT_MESSAGE__INIT;
	Tandem__Tokenize tok = TANDEM__TOKENIZE__INIT;

	tok.input_case = get("text") ? TANDEM__TOKENIZE__INPUT_TEXT : TANDEM__TOKENIZE__INPUT__NOT_SET;
	tok.text = (char *)get("text");
	m.tokenize = &tok;
	send_message(&m, TANDEM__CLIENT_MESSAGE__BODY_TOKENIZE);
}

static void do_detokenize(void)
{
	Tandem__ClientMessage m = TANDEM__CLIENT_MESSAGE__INIT;
	Tandem__Detokenize detok = TANDEM__DETOKENIZE__INIT;

	detok.id = get_ids(&detok.n_id);
	m.detokenize = &detok;
	send_message(&m, TANDEM__CLIENT_MESSAGE__BODY_DETOKENIZE);
	free(detok.id);
}

/* ---- receiving ---------------------------------------------------------------------------------------------------------------------- */

static __attribute__((format(printf, 1, 2))) void add(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	said_n += (size_t)vsnprintf(said + said_n, sizeof(said) - said_n, fmt, ap);
	va_end(ap);
	if (said_n >= sizeof(said))
		said_n = sizeof(said) - 1;
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
	struct total *t = &c->total[tag % TAGS];
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
	add(" sharing=\"%s\"", s->sharing ? s->sharing : "none");
	add(" last_error=%s", s->last_error ? s->last_error : "none");
}

static void add_accepted(const Tandem__Accepted *a)
{
	last_request = a->request;
	last_key_n = a->key.len < sizeof(last_key) ? a->key.len : sizeof(last_key);
	memcpy(last_key, a->key.data, last_key_n);
	add("accepted request=%llu prompt=%u queue=%u", (unsigned long long)a->request, a->prompt_tokens, a->queue_position);
}

static void add_finish(const Tandem__Finish *f)
{
	add("finish reason=%d stop=%s prompt=%u output=%u cycles=%u drafted=%u accepted=%u restarts=%u seed=%llu", (int)f->reason, f->stop ? f->stop : "-",
	    f->usage->prompt_tokens, f->usage->output_tokens, f->usage->cycles, f->usage->drafted, f->usage->accepted, f->usage->restarts,
	    (unsigned long long)f->usage->seed);
}

static void describe(const Tandem__ServerMessage *m)
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
		break;
	case TANDEM__SERVER_MESSAGE__BODY_STATUS:
		add_status(m->status);
		break;
	case TANDEM__SERVER_MESSAGE__BODY_TOKENS:
		add("tokens n=%zu ids=", m->tokens->n_id);
		add_ids(m->tokens->id, m->tokens->n_id);
		break;
	case TANDEM__SERVER_MESSAGE__BODY_TEXT:
		add("text=");
		add_text(m->text->text);
		break;
	default:
		add("unknown");
	}
}

/* A whole frame out of what was read already. */
static int take_frame(int quiet)
{
	const uint8_t *payload;
	struct td_error err;
	size_t n;
	long taken = td_frame_feed(&c->in, c->raw + c->raw_at, c->raw_n - c->raw_at);
	Tandem__ServerMessage *m;

	if (taken < 0)
		fail("the daemon sent a frame that is too large");
	c->raw_at += (size_t)taken;
	if (td_frame_peek(&c->in, &payload, &n) != 1)
		return 0;
	m = td_server_message_unpack(payload, n, &err);
	if (!m)
		fail("the daemon sent a message that cannot be read: %s", err.text);
	describe(m);
	td_server_message_free(m);
	td_frame_drop(&c->in);
	if (!quiet)
		printf("%d: %s\n", (int)(c - conn), said);
	return 1;
}

/* 1 and a line in `said`; 0 at the end; -1 when nothing came in time. */
static int receive(int wait_ms, int quiet)
{
	uint64_t end = td_now_us() + (uint64_t)wait_ms * 1000;

	for (;;) {
		struct pollfd p = {.fd = c->fd, .events = POLLIN};
		uint64_t now = td_now_us();
		ssize_t k;

		if (take_frame(quiet))
			return 1;
		if (now >= end || poll(&p, 1, (int)((end - now) / 1000) + 1) == 0)
			return -1;
		k = recv(c->fd, c->raw, sizeof(c->raw), 0);
		if (k <= 0)
			return 0;
		c->raw_n = (size_t)k;
		c->raw_at = 0;
	}
}

static void must_receive(const char *want, int quiet)
{
	int rc = receive(timeout_ms, quiet);

	if (rc == 0)
		fail("the daemon closed the connection; wanted \"%s\"", want);
	if (rc < 0)
		fail("nothing came for %d ms; wanted \"%s\"; the last was: %s", timeout_ms, want, said);
}

static void do_expect(const char *want)
{
	must_receive(want, 0);
	if (!strstr(said, want))
		fail("wanted \"%s\", got: %s", want, said);
}

static void do_eof(void)
{
	int rc;

	while ((rc = receive(timeout_ms, 0)) == 1)
		;
	if (rc < 0)
		fail("the daemon did not close the connection within %d ms", timeout_ms);
	printf("%d: eof\n", (int)(c - conn));
}

static void do_wait_status(const char *want)
{
	uint64_t end = td_now_us() + (uint64_t)timeout_ms * 1000;

	do {
		do_status();
		do
			must_receive(want, 1);
		while (!strstr(said, " status "));
		if (strstr(said, want)) {
			printf("%d: %s\n", (int)(c - conn), said);
			return;
		}
		usleep(5000);
	} while (td_now_us() < end);
	fail("the status did not become \"%s\" within %d ms; it is: %s", want, timeout_ms, said);
}

static void do_kill(const char *worker, int number)
{
	char key[64], *at;

	snprintf(key, sizeof(key), "pid_%s=", worker);
	at = strstr(said, key);
	if (!at)
		fail("the last message was no status that tells %s", key);
	kill((pid_t)strtol(at + strlen(key), NULL, 10), number);
}

static void do_total(void)
{
	struct total *t = &c->total[get_number("tag", 1) % TAGS];

	said_n = 0;
	add_text(t->text);
	printf("total n=%u gap=%d ids=%s text=%s\n", t->n_ids, t->gap, t->ids ? t->ids : "", said);
	if (t->gap)
		fail("the deltas do not follow each other");
}

/* ---- connections -------------------------------------------------------------------------------------------------------------------- */

static int open_socket(int rcvbuf)
{
	struct sockaddr_un sa = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	snprintf(sa.sun_path, sizeof(sa.sun_path), "%s", path);
	if (fd < 0 || connect(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0)
		fail("cannot connect to %s: %s", path, strerror(errno));
	if (rcvbuf)
		setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &rcvbuf, sizeof(rcvbuf));
	return fd;
}

static void do_close(void)
{
	if (c->fd > 0)
		close(c->fd);
	c->fd = 0;
	td_frame_reader_finish(&c->in);
	for (int i = 0; i < TAGS; i++) {
		free(c->total[i].ids);
		free(c->total[i].text);
		c->total[i] = (struct total){0};
	}
}

static void do_connect(int i)
{
	if (i < 0 || i >= CONNECTIONS)
		fail("there are only %d connections", CONNECTIONS);
	c = &conn[i];
	do_close();
	c->fd = open_socket((int)get_number("rcvbuf", 0));
	c->raw_n = c->raw_at = 0;
	td_frame_reader_init(&c->in, TD_FRAME_MAX);
}

/* Spoils a few bytes or the length of a good frame; what the daemon answers is read and thrown away. */
static void do_noise(long times)
{
	static char good[] = "gen tag=3 text=\"some words\" max_tokens=3 stop=\"a b\" stop=xyz temperature=0.5 bias=5:1*3 stop_id=7*2 logprobs=3";
	static char chat[] = "gen tag=4 chat=\"system:be brief\" chat=\"user:hello there\" max_tokens=2 deadline_ms=5000 seed=9";
	uint32_t x = (uint32_t)get_number("seed", 1);
	long answers = 0;

	for (long i = 0; i < times; i++) {
		char line[sizeof(good) > sizeof(chat) ? sizeof(good) : sizeof(chat)];

		do_connect(0);
		do_hello();
		strcpy(line, i & 1 ? good : chat);
		split(line);
		spoil = x = x * 1664525u + 1013904223u;
		do_gen();
		spoil = 0;
		while (receive(answers % 8 ? 2 : 20, 1) == 1)
			answers++;
	}
	printf("%ld answers to %ld spoiled requests\n", answers, times);
}

static void command(void)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} plain[] = {{"hello", do_hello}, {"gen", do_gen}, {"cancel", do_cancel}, {"resume", do_resume}, {"status", do_status}, {"tokenize", do_tokenize},
		     {"detokenize", do_detokenize}, {"eof", do_eof}, {"total", do_total}};
	const char *name = args[0].name, *value = n_args > 1 ? args[1].name : "";

	for (size_t i = 0; i < sizeof(plain) / sizeof(*plain); i++)
		if (!strcmp(name, plain[i].name)) {
			plain[i].run();
			return;
		}
	if (!strcmp(name, "connect")) {
		do_connect(atoi(value));
	} else if (!strcmp(name, "greet")) {
		do_connect(atoi(value));
		do_hello();
		do_expect("welcome");
	} else if (!strcmp(name, "use")) {
		c = &conn[atoi(value)];
	} else if (!strcmp(name, "close")) {
		do_close();
	} else if (!strcmp(name, "bytes") || !strcmp(name, "frame")) {
		send_hex(value, *name == 'f');
	} else if (!strcmp(name, "half")) {
		send_half((size_t)atol(value));
	} else if (!strcmp(name, "expect")) {
		do_expect(value);
	} else if (!strcmp(name, "until")) {
		do
			must_receive(value, 0);
		while (!strstr(said, value));
	} else if (!strcmp(name, "wait_status")) {
		do_wait_status(value);
	} else if (!strcmp(name, "silence")) {
		int rc = receive(atoi(value), 0);

		if (rc >= 0)
			fail("wanted silence, got: %s", rc ? said : "the end");
	} else if (!strcmp(name, "crowd")) {
		for (int i = atoi(value); i > 0; i--)
			open_socket(0); /* closed by the exit */
	} else if (!strcmp(name, "noise")) {
		do_noise(atol(value));
	} else if (!strcmp(name, "sleep")) {
		usleep((useconds_t)atoi(value) * 1000);
	} else if (!strcmp(name, "timeout")) {
		timeout_ms = atoi(value);
	} else if (!strcmp(name, "note")) {
		printf("note %s\n", value);
	} else if (!strcmp(name, "kill") && n_args == 3) {
		do_kill(value, atoi(args[2].name));
	} else {
		fail("no such command: %s", name);
	}
}

int main(int argc, char **argv)
{
	static char line[LINE];

	if (argc != 2) {
		fprintf(stderr, "usage: rawclient SOCKET < script\n");
		return 2;
	}
	path = argv[1];
	signal(SIGPIPE, SIG_IGN);
	while (fgets(line, sizeof(line), stdin)) {
		line_number++;
		split(line);
		if (n_args && args[0].name[0] != '#')
			command();
		fflush(stdout);
	}
	return 0;
}
