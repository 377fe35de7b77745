/*
 * test_c_async.c: the form for a foreign event loop: several calls at once, calls from callbacks, cancel, closing from a callback, a daemon that
 * doesn't read for a while.
 */
#include "tests/unit/fake_daemon.h"

static const struct tandem_request plain = {.prompt = {.text = "hello"}};

static void script_two(struct fake *f)
{
	uint64_t a, b;

	fake_greet(f);
	a = fake_expect_tag(f, TANDEM__CLIENT_MESSAGE__BODY_GENERATE);
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
	struct fake f = {0};
	struct seen a = {0}, b = {0};
	struct tandem_handler ha = seen_handler(&a), hb = seen_handler(&b);
	struct tandem_error err;
	struct tandem *t;

	(void)state;
	fake_start(&f, script_two);
	t = tandem_connect(f.path, NULL, &err);
	assert_non_null(t);
	assert_int_equal(tandem_want(t), TANDEM_READ);
	assert_true(tandem_submit(t, &plain, &ha, &err) != 0);
	assert_true(tandem_submit(t, &plain, &hb, &err) != 0);
	assert_int_equal(tandem_want(t), TANDEM_READ | TANDEM_WRITE);
	assert_int_equal(tandem_timeout_ms(t), -1);
	assert_int_equal(pump(t, &a.finished, &err), 0);
	assert_string_equal(a.text, "a0a1");
	assert_string_equal(b.text, "b0");
	assert_int_equal(b.finished, 1);
	assert_int_equal(a.finish.reason, TANDEM_LENGTH);
	tandem_close(t);
	fake_stop(&f);
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
	assert_int_equal(tandem_generate(in->t, &plain, NULL, &err), TANDEM_E_BUSY);
	assert_null(tandem_status(in->t, &err));
	assert_int_equal(err.code, TANDEM_E_BUSY);
	assert_true(tandem_submit(in->t, &plain, &h, &err) != 0);
	return 0;
}

static void script_inside(struct fake *f)
{
	uint64_t a, b;

	fake_greet(f);
	a = fake_expect_tag(f, TANDEM__CLIENT_MESSAGE__BODY_GENERATE);
	fake_accepted(f, a, 1, "k");
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
	assert_true(tandem_submit(in.t, &plain, &h, &err) != 0);
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
	uint64_t a;

	fake_greet(f);
	a = fake_expect_tag(f, TANDEM__CLIENT_MESSAGE__BODY_GENERATE);
	fake_accepted(f, a, 1, "k");
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
	assert_true(tandem_submit(in.t, &plain, &h, &err) != 0);
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
	assert_int_equal(tandem_generate(in.t, &plain, &h, &err), TANDEM_E_CANCELLED);
	assert_int_equal(in.tried, 1);
	fake_stop(&f);
}

static void script_cancel(struct fake *f)
{
	Tandem__ClientMessage *m;
	uint64_t tag;

	fake_greet(f);
	tag = fake_expect_tag(f, TANDEM__CLIENT_MESSAGE__BODY_GENERATE);
	fake_accepted(f, tag, 1, "k");
	fake_delta(f, tag, 0, 1, "a");
	m = fake_expect(f, TANDEM__CLIENT_MESSAGE__BODY_CANCEL);
	FAKE_CHECK(m->cancel->target_tag == tag);
	td_client_message_free(m);
	fake_finish(f, tag, TANDEM__FINISH_REASON__CANCELLED, 1);
	FAKE_CHECK(!fake_recv(f)); /* asked twice, sent once */
}

static void test_cancel(void **state)
{
	struct fake f = {0};
	struct seen s = {0};
	struct tandem_handler h = seen_handler(&s);
	struct tandem_error err;
	struct tandem *t;
	uint64_t call;

	(void)state;
	fake_start(&f, script_cancel);
	t = tandem_connect(f.path, NULL, &err);
	assert_non_null(t);
	call = tandem_submit(t, &plain, &h, &err);
	assert_int_equal(pump(t, &s.deltas, &err), 0);
	assert_int_equal(tandem_cancel(t, call + 1, &err), TANDEM_E_NOT_FOUND);
	assert_int_equal(tandem_cancel(t, call, &err), 0);
	assert_int_equal(tandem_cancel(t, call, &err), 0);
	assert_int_equal(pump(t, &s.finished, &err), 0);
	assert_int_equal(s.finish.reason, TANDEM_CANCELLED);
	assert_int_equal(tandem_cancel(t, call, &err), TANDEM_E_NOT_FOUND);
	tandem_close(t);
	fake_stop(&f);
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
	struct fake f = {0};
	struct seen s = {0};
	struct tandem_handler h = seen_handler(&s);
	struct tandem_error err;
	struct tandem *t;

	(void)state;
	memset(text, 'x', LARGE);
	text[LARGE] = '\0';
	fake_start(&f, script_slow);
	t = tandem_connect(f.path, NULL, &err);
	assert_non_null(t);
	assert_true(tandem_submit(t, &r, &h, &err) != 0);
	assert_int_equal(tandem_process(t, &err), 0);
	assert_int_equal(tandem_want(t), TANDEM_READ | TANDEM_WRITE); /* it couldn't all be written, and nobody waited for it */
	assert_int_equal(pump(t, &s.finished, &err), 0);
	tandem_close(t);
	free(text);
	fake_stop(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_two_calls), cmocka_unit_test(test_calls_from_callback), cmocka_unit_test(test_close_from_callback),
		cmocka_unit_test(test_cancel),	  cmocka_unit_test(test_large_request),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
