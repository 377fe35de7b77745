/*
 * raw_send.c: the messages that rawclient sends (raw.h).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "tests/lib/raw.h"

uint32_t raw_spoil;

void raw_send_bytes(const uint8_t *data, size_t n)
{
	while (n) {
		ssize_t k = send(raw->fd, data, n, MSG_NOSIGNAL);

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

	m->tag = raw_get_number("tag", 1);
	m->body_case = body;
	frame = td_client_message_pack(m, &n);
	for (uint32_t x = raw_spoil, i = raw_spoil ? 1 + (raw_spoil >> 28) % 4 : 0; i; i--, x = x * 1664525u + 1013904223u)
		frame[(x >> 8) % n < TD_FRAME_HEAD && i > 1 ? n - 1 : (x >> 8) % n] ^= (uint8_t)(1u << (x >> 5) % 8);
	raw_send_bytes(frame, n);
	free(frame);
}

void raw_send_hex(const char *hex, int framed)
{
	size_t n = strlen(hex) / 2;
	uint8_t *data = malloc(n + TD_FRAME_HEAD);

	for (size_t i = 0; i < n; i++) {
		char two[3] = {hex[2 * i], hex[2 * i + 1], 0};

		data[TD_FRAME_HEAD + i] = (uint8_t)strtol(two, NULL, 16);
	}
	for (int i = 0; i < TD_FRAME_HEAD; i++)
		data[i] = (uint8_t)(n >> 8 * i);
	raw_send_bytes(framed ? data : data + TD_FRAME_HEAD, framed ? n + TD_FRAME_HEAD : n);
	free(data);
}

void raw_send_half(size_t n)
{
	uint8_t *data = calloc(1, n + TD_FRAME_HEAD);

	for (int i = 0; i < TD_FRAME_HEAD; i++)
		data[i] = (uint8_t)(n >> 8 * i);
	raw_send_bytes(data, n + TD_FRAME_HEAD - 1);
	free(data);
}

#define SET_FLOAT(field) \
	if (raw_get(#field)) { \
		s->has_##field = 1; \
		s->field = strtof(raw_get(#field), NULL); \
	}
#define SET_INT(field) \
	if (raw_get(#field)) { \
		s->has_##field = 1; \
		s->field = (__typeof__(s->field))strtoull(raw_get(#field), NULL, 0); \
	}

static void fill_lists(Tandem__Sampling *s)
{
	static char *stop[RAW_ARGS];
	static Tandem__LogitBias bias[512], *bias_ptr[512];
	static int32_t stop_ids[128];
	char *end;

	for (int i = 1; i < raw_n_args; i++)
		if (!strcmp(raw_args[i].name, "stop"))
			stop[s->n_stop++] = raw_args[i].value;
	s->stop = stop;
	if (raw_get("bias")) {
		int id = (int)strtol(raw_get("bias"), &end, 10);
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
	if (raw_get("stop_id")) {
		int id = (int)strtol(raw_get("stop_id"), &end, 10);
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
	static Tandem__ChatMessage msg[RAW_ARGS], *ptr[RAW_ARGS];
	static char *tool[RAW_ARGS];

	for (int i = 1; i < raw_n_args; i++) {
		Tandem__ChatMessage *m = ptr[chat->n_message] = &msg[chat->n_message];
		char *colon;

		if (strcmp(raw_args[i].name, "chat"))
			continue;
		chat->n_message++;
		tandem__chat_message__init(m);
		m->role = raw_args[i].value;
		colon = strchr(m->role, ':');
		if (colon) {
			*colon = 0;
			m->content = colon + 1;
		}
	}
	chat->message = ptr;
	for (int i = 1; i < raw_n_args; i++)
		if (!strcmp(raw_args[i].name, "tool"))
			tool[chat->n_tool++] = raw_args[i].value;
	chat->tool = tool;
	chat->has_enable_thinking = raw_get("thinking") != NULL;
	chat->enable_thinking = (int)raw_get_number("thinking", 0);
}

static void fill_constraint(Tandem__Generate *g)
{
	static Tandem__Constraint c;

	tandem__constraint__init(&c);
	if (raw_get("json_object")) {
		c.kind_case = TANDEM__CONSTRAINT__KIND_JSON_OBJECT;
		c.json_object = (int)raw_get_number("json_object", 1);
	} else if (raw_get("schema")) {
		c.kind_case = TANDEM__CONSTRAINT__KIND_JSON_SCHEMA;
		c.json_schema = (char *)raw_get("schema");
	} else if (raw_get("tool_choice")) {
		c.kind_case = TANDEM__CONSTRAINT__KIND_TOOL_CHOICE;
		c.tool_choice = (char *)raw_get("tool_choice");
	}
	if (c.kind_case || raw_get("no_constraint"))
		g->constraint = &c;
}

void raw_gen(void)
{
	Tandem__Sampling s = TANDEM__SAMPLING__INIT;
	Tandem__TokenIds ids = TANDEM__TOKEN_IDS__INIT;
	Tandem__Chat chat = TANDEM__CHAT__INIT;
	Tandem__Generate g = TANDEM__GENERATE__INIT;
	Tandem__ClientMessage m = TANDEM__CLIENT_MESSAGE__INIT;

	fill_sampling(&s);
	fill_chat(&chat);
	g.sampling = &s;
	if (raw_get("ids")) {
		ids.id = raw_get_ids(&ids.n_id);
		g.input_case = TANDEM__GENERATE__INPUT_TOKENS;
		g.tokens = &ids;
	} else if (raw_get("text")) {
		g.input_case = TANDEM__GENERATE__INPUT_TEXT;
		g.text = (char *)raw_get("text");
	} else if (chat.n_message || raw_get("nochat")) {
		g.input_case = TANDEM__GENERATE__INPUT_CHAT;
		g.chat = &chat;
	}
	if (raw_get("stream")) {
		g.has_stream = 1;
		g.stream = (int)raw_get_number("stream", 1);
	}
	g.has_deadline_ms = raw_get("deadline_ms") != NULL;
	g.deadline_ms = (uint32_t)raw_get_number("deadline_ms", 0);
	g.has_band = raw_get("band") != NULL;
	g.band = g.has_band && !strcmp(raw_get("band"), "batch") ? TANDEM__BAND__BATCH : TANDEM__BAND__INTERACTIVE;
	g.has_cache = raw_get("cache") != NULL;
	g.cache = (int)raw_get_number("cache", 1);
	fill_constraint(&g);
	m.generate = &g;
	send_message(&m, TANDEM__CLIENT_MESSAGE__BODY_GENERATE);
	free(ids.id);
}

void raw_resume(void)
{
	Tandem__Resume r = TANDEM__RESUME__INIT;
	Tandem__ClientMessage m = TANDEM__CLIENT_MESSAGE__INIT;

	r.request = raw_get_number("request", raw_last_request);
	r.key = raw_get("key") ? (ProtobufCBinaryData){strlen(raw_get("key")), (uint8_t *)raw_get("key")} : (ProtobufCBinaryData){raw_last_key_n, raw_last_key};
	r.position = (uint32_t)raw_get_number("position", 0);
	m.resume = &r;
	send_message(&m, TANDEM__CLIENT_MESSAGE__BODY_RESUME);
}

void raw_hello(void)
{
	Tandem__ClientMessage m = TANDEM__CLIENT_MESSAGE__INIT;
	Tandem__Hello hello = TANDEM__HELLO__INIT;

	hello.version = (uint32_t)raw_get_number("version", 1);
	hello.client = (char *)"rawclient";
	hello.tenant = (char *)raw_get("tenant");
	m.hello = &hello;
	send_message(&m, TANDEM__CLIENT_MESSAGE__BODY_HELLO);
}

void raw_status(void)
{
	Tandem__ClientMessage m = TANDEM__CLIENT_MESSAGE__INIT;
	Tandem__StatusQuery status = TANDEM__STATUS_QUERY__INIT;

	m.status = &status;
	send_message(&m, TANDEM__CLIENT_MESSAGE__BODY_STATUS);
}

void raw_cancel(void)
{
	Tandem__ClientMessage m = TANDEM__CLIENT_MESSAGE__INIT;
	Tandem__Cancel cancel = TANDEM__CANCEL__INIT;

	cancel.target_tag = raw_get_number("target", 1);
	m.cancel = &cancel;
	send_message(&m, TANDEM__CLIENT_MESSAGE__BODY_CANCEL);
}

void raw_tokenize(void)
{
	Tandem__ClientMessage m = TANDEM__CLIENT_MESSAGE__INIT;
	Tandem__Tokenize tok = TANDEM__TOKENIZE__INIT;

	tok.input_case = raw_get("text") ? TANDEM__TOKENIZE__INPUT_TEXT : TANDEM__TOKENIZE__INPUT__NOT_SET;
	tok.text = (char *)raw_get("text");
	m.tokenize = &tok;
	send_message(&m, TANDEM__CLIENT_MESSAGE__BODY_TOKENIZE);
}

void raw_detokenize(void)
{
	Tandem__ClientMessage m = TANDEM__CLIENT_MESSAGE__INIT;
	Tandem__Detokenize detok = TANDEM__DETOKENIZE__INIT;

	detok.id = raw_get_ids(&detok.n_id);
	m.detokenize = &detok;
	send_message(&m, TANDEM__CLIENT_MESSAGE__BODY_DETOKENIZE);
	free(detok.id);
}
