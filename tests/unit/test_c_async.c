/*
 * test_c_async.c: the form for a foreign event loop: several calls at once, calls from callbacks, cancel, closing from a callback, a daemon that
 * doesn't read for a while.
 */
#include <poll.h>

#include "tests/lib/fake_daemon.h"

static void script_two(struct fake *f)
{
	uint64_t a, b;

	a = fake_asked(f);
	b = fake_expect_tag(f, TANDEM__CLIENT_MESSAGE__BODY_GENERATE);
	FAKE_CHECK(a != b && a && b);
	fake_accepted(f, b, 2, "kb");
	fake_accepted(f, a, 1, "ka");
	fake_delta(f, a, 0, 1, "a0");
	fake_delta(f, b, 0, 2, "b0");
	fake_delta(f, a, 1, 1, "a1");
	fake_finish(f, b, TANDEM__FINISH_REASON__STOP, 2);
	fake_finish(f, a, TANDEM__FINISH_REASON__LENGTH, 2);
}

static void test_two_calls(void **state)
{
	struct talk k = {0};
	struct seen a = {0}, b = {0};
	struct tandem_handler ha = seen_handler(&a), hb = seen_handler(&b);

	(void)state;
	talk_open(&k, script_two, NULL);
	assert_int_equal(tandem_want(k.t), TANDEM_READ);
	assert_true(tandem_submit(k.t, &hello, &ha, &k.err) != 0);
	assert_true(tandem_submit(k.t, &hello, &hb, &k.err) != 0);
	assert_int_equal(tandem_want(k.t), TANDEM_READ | TANDEM_WRITE);
	assert_int_equal(tandem_timeout_ms(k.t), -1);
	assert_int_equal(pump(k.t, &a.finished, &k.err), 0);
	assert_string_equal(a.text, "a0a1");
	assert_string_equal(b.text, "b0");
	assert_int_equal(b.finished, 1);
	assert_int_equal(a.finish.reason, TANDEM_LENGTH);
	talk_close(&k);
}

/* A callback that tries everything that it may not do, and submits, which it may. */
struct inside {
	struct tandem *t;
	struct seen second;
	int tried;
};

static int inside_delta(void *ctx, const struct tandem_delta *d)
{
	struct inside *in = ctx;
	struct tandem_handler h = seen_handler(&in->second);
	struct tandem_error err;

	(void)d;
	in->tried++;
	assert_int_equal(tandem_process(in->t, &err), TANDEM_E_BUSY);
	assert_int_equal(tandem_reconnect(in->t, &err), TANDEM_E_BUSY);
	assert_int_equal(tandem_generate(in->t, &hello, NULL, &err), TANDEM_E_BUSY);
	assert_null(tandem_status(in->t, &err));
	assert_int_equal(err.code, TANDEM_E_BUSY);
	assert_true(tandem_submit(in->t, &hello, &h, &err) != 0);
	return 0;
}

static void script_inside(struct fake *f)
{
	uint64_t a, b;

	a = fake_begin(f);
	fake_delta(f, a, 0, 1, "a");
	b = fake_expect_tag(f, TANDEM__CLIENT_MESSAGE__BODY_GENERATE);
	fake_finish(f, a, TANDEM__FINISH_REASON__STOP, 1);
	fake_accepted(f, b, 2, "k");
	fake_finish(f, b, TANDEM__FINISH_REASON__STOP, 0);
}

static void test_calls_from_callback(void **state)
{
	struct fake f = {0};
	struct inside in = {0};
	struct tandem_handler h = {.ctx = &in, .delta = inside_delta};
	struct tandem_error err;

	(void)state;
	fake_start(&f, script_inside);
	in.t = tandem_connect(f.path, NULL, &err);
	assert_non_null(in.t);
	assert_true(tandem_submit(in.t, &hello, &h, &err) != 0);
	assert_int_equal(pump(in.t, &in.second.finished, &err), 0);
	assert_int_equal(in.tried, 1);
	tandem_close(in.t);
	fake_stop(&f);
}

static int close_delta(void *ctx, const struct tandem_delta *d)
{
	struct inside *in = ctx;

	(void)d;
	in->tried++;
	tandem_close(in->t);
	return 0;
}

static void script_closed(struct fake *f)
{
	uint64_t a = fake_begin(f);

	fake_delta(f, a, 0, 1, "a");
	fake_delta(f, a, 1, 1, "b");
	FAKE_CHECK(!fake_recv(f));
}

static void test_close_from_callback(void **state)
{
	struct fake f = {0};
	struct inside in = {0};
	struct tandem_handler h = {.ctx = &in, .delta = close_delta};
	struct tandem_error err;
	struct pollfd p;

	(void)state;
	fake_start(&f, script_closed);
	in.t = tandem_connect(f.path, NULL, &err);
	assert_non_null(in.t);
	assert_true(tandem_submit(in.t, &hello, &h, &err) != 0);
	while (!in.tried) {
		p = (struct pollfd){.fd = tandem_fd(in.t), .events = POLLIN | (tandem_want(in.t) & TANDEM_WRITE ? POLLOUT : 0)};
		poll(&p, 1, -1);
		tandem_process(in.t, &err);
	}
	assert_int_equal(in.tried, 1); /* nothing after the close, though the next delta was there */
	fake_stop(&f);

	memset(&in, 0, sizeof(in));
	fake_start(&f, script_closed);
	in.t = tandem_connect(f.path, NULL, &err);
	assert_non_null(in.t);
	assert_int_equal(tandem_generate(in.t, &hello, &h, &err), TANDEM_E_CANCELLED);
	assert_int_equal(in.tried, 1);
	fake_stop(&f);
}

static void script_cancel(struct fake *f)
{
	Tandem__ClientMessage *m;
	uint64_t tag = fake_begin(f);

	fake_delta(f, tag, 0, 1, "a");
	m = fake_expect(f, TANDEM__CLIENT_MESSAGE__BODY_CANCEL);
	FAKE_CHECK(m->cancel->target_tag == tag);
	td_client_message_free(m);
	fake_finish(f, tag, TANDEM__FINISH_REASON__CANCELLED, 1);
	FAKE_CHECK(!fake_recv(f)); /* asked twice, sent once */
}

static void test_cancel(void **state)
{
	struct talk k = {0};
	uint64_t call;

	(void)state;
	talk_open(&k, script_cancel, NULL);
	call = tandem_submit(k.t, &hello, &k.h, &k.err);
	assert_int_equal(pump(k.t, &k.s.deltas, &k.err), 0);
	assert_int_equal(tandem_cancel(k.t, call + 1, &k.err), TANDEM_E_NOT_FOUND);
	assert_int_equal(tandem_cancel(k.t, call, &k.err), 0);
	assert_int_equal(tandem_cancel(k.t, call, &k.err), 0);
	assert_int_equal(pump(k.t, &k.s.finished, &k.err), 0);
	assert_int_equal(k.s.finish.reason, TANDEM_CANCELLED);
	assert_int_equal(tandem_cancel(k.t, call, &k.err), TANDEM_E_NOT_FOUND);
	talk_close(&k);
}

enum { LARGE = 6 << 20 }; /* far over a socket's buffer */

static void script_slow(struct fake *f)
{
	Tandem__ClientMessage *m;

	fake_greet(f);
	usleep(100000);
	m = fake_expect(f, TANDEM__CLIENT_MESSAGE__BODY_GENERATE);
	FAKE_CHECK(strlen(m->generate->text) == LARGE);
	fake_accepted(f, m->tag, 1, "k");
	fake_finish(f, m->tag, TANDEM__FINISH_REASON__STOP, 0);
	td_client_message_free(m);
}

static void test_large_request(void **state)
{
	char *text = malloc(LARGE + 1);
	struct tandem_request r = {.prompt = {.text = text}};
	struct talk k = {0};

	(void)state;
	memset(text, 'x', LARGE);
	text[LARGE] = '\0';
	talk_open(&k, script_slow, NULL);
	assert_true(tandem_submit(k.t, &r, &k.h, &k.err) != 0);
	assert_int_equal(tandem_process(k.t, &k.err), 0);
	assert_int_equal(tandem_want(k.t), TANDEM_READ | TANDEM_WRITE); /* it couldn't all be written, and nobody waited for it */
	assert_int_equal(pump(k.t, &k.s.finished, &k.err), 0);
	talk_close(&k);
	free(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_two_calls), cmocka_unit_test(test_calls_from_callback), cmocka_unit_test(test_close_from_callback),
		cmocka_unit_test(test_cancel),	  cmocka_unit_test(test_large_request),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
