/*
 * test_frame.c: frames in any pieces; lengths that lie; messages made to cost memory, to nest, to hold bad text; random bytes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "engine/utf8.h"
#include "proto/frame_internal.h"

/* A Generate with something in every kind of field. */
static uint8_t *sample(size_t *n)
{
	Tandem__ClientMessage msg = TANDEM__CLIENT_MESSAGE__INIT;
	Tandem__Generate g = TANDEM__GENERATE__INIT;
	Tandem__Chat chat = TANDEM__CHAT__INIT;
	Tandem__ChatMessage m = TANDEM__CHAT_MESSAGE__INIT, *ms[] = {&m, &m};
	Tandem__Sampling s = TANDEM__SAMPLING__INIT;
	Tandem__LogitBias b = TANDEM__LOGIT_BIAS__INIT, *bs[] = {&b, &b, &b};
	char *tools[] = {(char *)"{}", (char *)"{\"a\":1}"}, *stops[] = {(char *)"\n\n"};
	int32_t ids[] = {1, -1, 8191};

	msg.tag = 77;
	msg.body_case = TANDEM__CLIENT_MESSAGE__BODY_GENERATE;
	msg.generate = &g;
	g.input_case = TANDEM__GENERATE__INPUT_CHAT;
	g.chat = &chat;
	m.role = (char *)"user";
	m.content = (char *)"Gr\xc3\xbc\xc3\x9f \xf0\x9f\x90\xa7";
	chat.n_message = 2;
	chat.message = ms;
	chat.n_tool = 2;
	chat.tool = tools;
	g.sampling = &s;
	s.has_temperature = 1;
	s.temperature = 0.5f;
	s.has_seed = 1;
	s.seed = UINT64_MAX;
	b.id = 5;
	b.bias = -1;
	s.n_logit_bias = 3;
	s.logit_bias = bs;
	s.n_stop = 1;
	s.stop = stops;
	s.n_stop_token_ids = 3;
	s.stop_token_ids = ids;
	return td_client_message_pack(&msg, n);
}

static void check_sample(const uint8_t *payload, size_t n)
{
	struct td_error err = {0};
	Tandem__ClientMessage *m = td_client_message_unpack(payload, n, &err);

	assert_string_equal(err.text, "");
	assert_non_null(m);
	assert_int_equal(m->tag, 77);
	assert_int_equal(m->body_case, TANDEM__CLIENT_MESSAGE__BODY_GENERATE);
	assert_int_equal(m->generate->chat->n_message, 2);
	assert_string_equal(m->generate->chat->message[1]->content, "Gr\xc3\xbc\xc3\x9f \xf0\x9f\x90\xa7");
	assert_int_equal(m->generate->sampling->seed, UINT64_MAX);
	assert_int_equal(m->generate->sampling->stop_token_ids[1], -1);
	td_client_message_free(m);
}

/* ---- reader ------------------------------------------------------------------------------------------------------------------------ */

static void any_pieces(void **state)
{
	size_t n, total;
	uint8_t *one = sample(&n), *many;
	const uint8_t *payload;

	(void)state;
	total = 5 * n;
	many = malloc(total);
	for (size_t i = 0; i < 5; i++)
		memcpy(many + i * n, one, n);
	for (size_t piece = 1; piece <= total; piece = piece < 8 ? piece + 1 : piece * 3 / 2) {
		struct td_frame_reader r;
		size_t got, at = 0, frames = 0;

		td_frame_reader_init(&r, TD_FRAME_MAX);
		while (at < total) {
			size_t k = piece < total - at ? piece : total - at, done = 0;

			while (done < k) {
				long taken = td_frame_feed(&r, many + at + done, k - done);

				assert_true(taken >= 0);
				done += (size_t)taken;
				while (td_frame_peek(&r, &payload, &got)) {
					assert_int_equal(got, n - TD_FRAME_HEAD);
					check_sample(payload, got);
					td_frame_drop(&r);
					frames++;
				}
			}
			at += k;
		}
		assert_int_equal(frames, 5);
		assert_int_equal(td_frame_peek(&r, &payload, &got), 0);
		td_frame_reader_finish(&r);
		td_frame_reader_finish(&r);
	}
	free(many);
	free(one);
}

static void lengths(void **state)
{
	static const uint8_t over[] = {0x01, 0x00, 0x80, 0x00, 'x'}, most[] = {0xff, 0xff, 0xff, 0xff}, exact[] = {0x00, 0x00, 0x80, 0x00},
			     empty[] = {0, 0, 0, 0, 0, 0, 0, 0};
	struct td_frame_reader r;
	const uint8_t *payload;
	uint8_t *big = calloc(1, TD_FRAME_MAX);
	size_t n;

	(void)state;
	td_frame_reader_init(&r, TD_FRAME_MAX);
	assert_int_equal(td_frame_feed(&r, over, 3), 3); /* not known yet */
	assert_int_equal(td_frame_feed(&r, over + 3, 2), TD_E_TOO_LARGE);
	assert_int_equal(td_frame_feed(&r, over + 4, 1), TD_E_TOO_LARGE); /* and it stays so */
	assert_int_equal(td_frame_peek(&r, &payload, &n), 0);
	assert_true(r.size <= 4096);
	td_frame_reader_finish(&r);

	td_frame_reader_init(&r, TD_FRAME_MAX);
	assert_int_equal(td_frame_feed(&r, most, 4), TD_E_TOO_LARGE);
	td_frame_reader_finish(&r);

	/* 8 MiB announced and nothing sent costs nothing */
	td_frame_reader_init(&r, TD_FRAME_MAX);
	assert_int_equal(td_frame_feed(&r, exact, 4), 4);
	assert_true(r.size <= 4096);
	assert_int_equal(td_frame_feed(&r, big, TD_FRAME_MAX - 1), TD_FRAME_MAX - 1);
	assert_int_equal(td_frame_peek(&r, &payload, &n), 0);
	assert_int_equal(td_frame_feed(&r, big, 2), 1); /* the second byte is the next frame's */
	assert_int_equal(td_frame_feed(&r, big, 1), 0);
	assert_int_equal(td_frame_peek(&r, &payload, &n), 1);
	assert_int_equal(n, TD_FRAME_MAX);
	assert_true(r.size <= TD_FRAME_MAX + TD_FRAME_HEAD);
	td_frame_drop(&r);
	assert_int_equal(r.size, 0);

	/* frames of no bytes are frames */
	assert_int_equal(td_frame_feed(&r, empty, 8), 4);
	assert_int_equal(td_frame_peek(&r, &payload, &n), 1);
	assert_int_equal(n, 0);
	assert_null(td_client_message_unpack(payload, n, NULL));
	td_frame_drop(&r);
	assert_int_equal(td_frame_feed(&r, empty, 4), 4);
	assert_int_equal(td_frame_feed(&r, empty, 0), 0);
	td_frame_reader_finish(&r);
	free(big);
}

/* ---- unpacking --------------------------------------------------------------------------------------------------------------------- */

/* A small writer of wire form, for messages that no library would make. */
struct wire {
	uint8_t data[1 << 20];
	size_t n;
};
static struct wire w;

static void put_varint(uint64_t v)
{
	for (; v >= 0x80; v >>= 7)
		w.data[w.n++] = (uint8_t)(v | 0x80);
	w.data[w.n++] = (uint8_t)v;
}

static void put_bytes(unsigned field, const void *p, size_t n)
{
	put_varint(field << 3 | 2);
	put_varint(n);
	memmove(w.data + w.n, p, n);
	w.n += n;
}

/* Wraps what was written so far as field `field`. */
static void wrap(unsigned field)
{
	static uint8_t old[1 << 20];
	size_t n = w.n;

	memcpy(old, w.data, n);
	w.n = 0;
	put_bytes(field, old, n);
}

static int unpack_code(size_t *peak)
{
	struct td_error err = {0};
	uint8_t *copy = malloc(w.n ? w.n : 1); /* of exactly this size, so that ASan sees a read past it */
	ProtobufCMessage *m;

	memcpy(copy, w.data, w.n);
	m = td__message_unpack(&tandem__client_message__descriptor, copy, w.n, TD__BUDGET_FACTOR * w.n + TD__BUDGET_BASE, peak, &err);
	free(copy);
	if (m) {
		protobuf_c_message_free_unpacked(m, NULL);
		return 0;
	}
	assert_true(strlen(err.text) > 10);
	return err.code;
}

static void tag(void)
{
	put_varint(1 << 3);
	put_varint(9);
}

static void truncated(void **state)
{
	size_t n;
	uint8_t *one = sample(&n);

	(void)state;
	for (size_t cut = 0; cut < n - TD_FRAME_HEAD; cut++) {
		w.n = cut;
		memcpy(w.data, one + TD_FRAME_HEAD, cut);
		/* the tag alone is a whole message (one without a body, which the daemon refuses); any other cut is not */
		assert_int_equal(unpack_code(NULL), cut == 2 ? 0 : TD_E_PROTOCOL);
	}
	free(one);
}

static int with_text(const char *text, size_t n)
{
	w.n = 0;
	put_bytes(1, text, n);
	wrap(3);
	tag();
	return unpack_code(NULL);
}

static void strings(void **state)
{
	static const struct {
		const char *text;
		int ok;
	} cases[] = {
		{"", 1}, {"plain", 1}, {"\xc2\x80\xdf\xbf", 1}, {"\xe0\xa0\x80\xef\xbf\xbf", 1}, {"\xed\x9f\xbf\xee\x80\x80", 1}, {"\xf0\x90\x80\x80\xf4\x8f\xbf\xbf", 1},
		{"\x80", 0}, {"\xc0\x80", 0}, {"\xc1\xbf", 0}, {"\xe0\x9f\xbf", 0}, {"\xed\xa0\x80", 0}, {"\xf0\x8f\xbf\xbf", 0}, {"\xf4\x90\x80\x80", 0},
		{"\xf5\x80\x80\x80", 0}, {"\xff", 0}, {"abc\xe2\x82", 0}, {"\xe2\x82z", 0}, {"\xf0\x9f\x90", 0}, {"\xc3", 0},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		assert_int_equal(with_text(cases[i].text, strlen(cases[i].text)), cases[i].ok ? 0 : TD_E_INVALID);
	assert_int_equal(with_text("a\0b", 3), TD_E_INVALID);
	assert_int_equal(with_text("\0", 1), TD_E_INVALID);

	/* repeated strings, deeper down: sampling.stop */
	w.n = 0;
	put_bytes(11, "fine", 4);
	put_bytes(11, "\xff", 1);
	wrap(4);
	wrap(3);
	tag();
	assert_int_equal(unpack_code(NULL), TD_E_INVALID);
	/* bytes fields may hold anything: Resume.key */
	w.n = 0;
	put_varint(1 << 3);
	put_varint(1);
	put_bytes(2, "\xff\0\xfe", 3);
	put_varint(3 << 3);
	put_varint(0);
	wrap(5);
	tag();
	assert_int_equal(unpack_code(NULL), 0);
	/* a field nobody knows as well */
	w.n = 0;
	tag();
	put_bytes(500, "\xff", 1);
	assert_int_equal(unpack_code(NULL), 0);
}

static void odd_wire(void **state)
{
	(void)state;
	w.n = 0;
	put_varint(0); /* field 0 */
	put_varint(1);
	assert_int_equal(unpack_code(NULL), TD_E_PROTOCOL);
	for (unsigned type = 3; type < 8; type++) { /* groups, and types that do not exist */
		if (type == 5)
			continue;
		w.n = 0;
		tag();
		put_varint(100 << 3 | type);
		put_varint(0);
		assert_int_equal(unpack_code(NULL), TD_E_PROTOCOL);
	}
	w.n = 0;
	tag();
	memset(w.data + w.n, 0xff, 20); /* a varint without end */
	w.n += 20;
	assert_int_equal(unpack_code(NULL), TD_E_PROTOCOL);
	w.n = 0;
	tag();
	put_varint(3 << 3 | 2);
	put_varint(UINT64_MAX); /* a length that wraps around */
	assert_int_equal(unpack_code(NULL), TD_E_PROTOCOL);
	w.n = 0;
	put_bytes(1, "ab", 2); /* tag as bytes */
	assert_int_equal(unpack_code(NULL), TD_E_PROTOCOL);
	w.n = 0;
	put_bytes(2, "", 0); /* no tag; Hello without its version */
	assert_int_equal(unpack_code(NULL), TD_E_PROTOCOL);
}

/* Fields of two bytes that cost a structure each: refused, and never more memory than the budget. */
static void amplification(void **state)
{
	size_t peak, budget;

	(void)state;
	for (int kind = 0; kind < 4; kind++) {
		w.n = 0;
		while (w.n < 200000) {
			if (kind == 0) {
				put_bytes(2, "", 0); /* Chat.tool */
			} else if (kind == 1) { /* fields nobody knows */
				put_varint(100 << 3);
				put_varint(0);
			} else if (kind == 2) {
				put_bytes(1, "\x0a\x00", 2); /* Chat.message with an empty role */
			} else {
				put_bytes(1, "\x0a\x00\x22\x04\x0a\x00\x12\x00", 8); /* and a tool call */
			}
		}
		wrap(2);
		wrap(3);
		tag();
		budget = TD__BUDGET_FACTOR * w.n + TD__BUDGET_BASE;
		assert_int_equal(unpack_code(&peak), TD_E_TOO_LARGE);
		assert_true(peak > budget / 2 && peak <= budget);
	}
	/* what clients send honestly passes: a chat of many short messages, 300 biases */
	w.n = 0;
	for (int i = 0; i < 1000; i++)
		put_bytes(1, "\x0a\x04user\x12\x02hi", 10);
	wrap(2);
	wrap(3);
	tag();
	assert_int_equal(unpack_code(&peak), 0);
	w.n = 0;
	for (int i = 0; i < 300; i++)
		put_bytes(9, "\x08\x7f\x15\x00\x00\x80\x3f", 7);
	wrap(4);
	wrap(3);
	tag();
	assert_int_equal(unpack_code(&peak), 0);
}

/* Every allocation that a message needs may be the one that is refused: the same result, nothing leaks (ASan), nothing crashes. */
static void each_allocation_fails(void **state)
{
	struct td_error err = {0};
	size_t n, peak = 0;
	uint8_t *one = sample(&n);
	ProtobufCMessage *m;

	(void)state;
	m = td__message_unpack(&tandem__client_message__descriptor, one + 4, n - 4, 1 << 20, &peak, &err);
	assert_non_null(m);
	protobuf_c_message_free_unpacked(m, NULL);
	for (size_t budget = 0; budget < peak; budget += 8) {
		m = td__message_unpack(&tandem__client_message__descriptor, one + 4, n - 4, budget, NULL, &err);
		assert_null(m);
		assert_int_equal(err.code, TD_E_TOO_LARGE);
	}
	m = td__message_unpack(&tandem__client_message__descriptor, one + 4, n - 4, peak, NULL, &err);
	assert_non_null(m);
	protobuf_c_message_free_unpacked(m, NULL);
	free(one);
}

/* The protocol's own messages nest to a fixed depth; what is deeper is a field that nobody knows, and is not walked into. */
static void nesting(void **state)
{
	(void)state;
	w.n = 0;
	for (int i = 0; i < 1000; i++)
		wrap(3);
	tag();
	assert_int_equal(unpack_code(NULL), 0);
}

static uint64_t next(void)
{
	static uint64_t x = 88172645463325252ull;

	x ^= x << 13;
	x ^= x >> 7;
	return x ^= x << 17;
}

static void random_bytes(void **state)
{
	size_t n;
	uint8_t *one = sample(&n);
	int ok = 0;

	(void)state;
	for (int i = 0; i < 60000; i++) {
		if (i % 3 == 0) { /* noise */
			w.n = next() % 300;
			for (size_t k = 0; k < w.n; k++)
				w.data[k] = (uint8_t)(next() >> 24);
		} else { /* a message with a few bytes changed, cut or doubled */
			w.n = n - 4;
			memcpy(w.data, one + 4, w.n);
			for (int k = 0; k < 1 + i % 4; k++)
				w.data[next() % w.n] = (uint8_t)(next() >> 24);
			if (i % 5 == 0)
				w.n = next() % w.n;
			if (i % 7 == 0) {
				memcpy(w.data + w.n, w.data, w.n);
				w.n *= 2;
			}
		}
		ok += unpack_code(NULL) == 0;
	}
	assert_true(ok > 100 && ok < 50000);
	free(one);
}

static void server_side(void **state)
{
	Tandem__ServerMessage msg = TANDEM__SERVER_MESSAGE__INIT, *back;
	Tandem__Error e = TANDEM__ERROR__INIT;
	struct td_error err = {0};
	size_t n;
	uint8_t *buf;

	(void)state;
	msg.body_case = TANDEM__SERVER_MESSAGE__BODY_ERROR;
	msg.error = &e;
	e.code = (char *)"queue_full";
	e.text = (char *)"try again";
	buf = td_server_message_pack(&msg, &n);
	assert_non_null(buf);
	assert_int_equal(buf[0] | buf[1] << 8 | buf[2] << 16 | buf[3] << 24, n - 4);
	back = td_server_message_unpack(buf + 4, n - 4, &err);
	assert_non_null(back);
	assert_string_equal(back->error->code, "queue_full");
	td_server_message_free(back);
	td_server_message_free(NULL);
	td_client_message_free(NULL);
	free(buf);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(any_pieces), cmocka_unit_test(lengths), cmocka_unit_test(truncated), cmocka_unit_test(strings), cmocka_unit_test(odd_wire),
		cmocka_unit_test(amplification), cmocka_unit_test(each_allocation_fails), cmocka_unit_test(nesting), cmocka_unit_test(random_bytes),
		cmocka_unit_test(server_side),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
