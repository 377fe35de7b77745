/*
 * test_c_loss.c: the connection is lost: answers that had begun are resumed without gap or repetition, what was not accepted is sent again, and
 * where nothing can be done the caller hears of it once.
 */
#include "tests/lib/fake_daemon.h"

static const struct tandem_options retry = {.retry_ms = 3000, .timeout_ms = 1000};

static void script_resume(struct fake *f)
{
	Tandem__ClientMessage *m;
	uint64_t tag;
	int i;

	tag = fake_asked(f);
	fake_accepted(f, tag, 41, "secret");
	fake_delta(f, tag, 0, 3, "one ");
	for (i = 0; i < 2; i++) {
		fake_greet(f); /* hangs up on the old one first */
		m = fake_expect(f, TANDEM__CLIENT_MESSAGE__BODY_RESUME);
		FAKE_CHECK(m->resume->request == 41 && m->resume->key.len == 6 && !memcmp(m->resume->key.data, "secret", 6));
		FAKE_CHECK(m->resume->position == (i ? 5 : 3));
		tag = m->tag;
		td_client_message_free(m);
		fake_accepted(f, tag, 41, "secret");
		if (!i)
			fake_delta(f, tag, 3, 2, "two ");
	}
	fake_delta(f, tag, 5, 1, "three");
	fake_finish(f, tag, TANDEM__FINISH_REASON__STOP, 6);
	FAKE_CHECK(!fake_recv(f));
}

static void check_resumed(const struct seen *s)
{
	assert_int_equal(s->accepted, 1);
	assert_int_equal(s->n_ids, 6);
	assert_string_equal(s->text, "one two three");
	assert_int_equal(s->finished, 1);
	assert_int_equal(s->failed, 0);
	assert_int_equal(s->finish.resumes, 2);
}

static void test_resume_blocking(void **state)
{
	struct talk k = {0};

	(void)state;
	talk_open(&k, script_resume, &retry);
	assert_int_equal(talk_ask(&k), 0);
	check_resumed(&k.s);
	talk_close(&k);
}

static void test_resume_event_loop(void **state)
{
	struct talk k = {0};
	int lost = 0;

	(void)state;
	talk_open(&k, script_resume, NULL);
	assert_true(tandem_submit(k.t, &hello, &k.h, &k.err) != 0);
	while (pump(k.t, &k.s.finished, &k.err)) {
		assert_int_equal(k.err.code, TANDEM_E_CLOSED);
		assert_int_equal(tandem_fd(k.t), -1);
		assert_int_equal(tandem_want(k.t), 0);
		assert_int_equal(tandem_process(k.t, &k.err), TANDEM_E_CLOSED); /* and stays so */
		assert_int_equal(tandem_reconnect(k.t, &k.err), 0);
		lost++;
	}
	assert_int_equal(lost, 2);
	check_resumed(&k.s);
	talk_close(&k);
}

static void script_not_accepted(struct fake *f)
{
	uint64_t first, again;

	first = fake_asked(f);
	again = fake_asked(f);
	FAKE_CHECK(first == again);
	fake_accepted(f, again, 1, "k");
	fake_finish(f, again, TANDEM__FINISH_REASON__STOP, 0);
}

static void test_not_accepted_is_sent_again(void **state)
{
	struct talk k = {0};

	(void)state;
	talk_open(&k, script_not_accepted, &retry);
	assert_int_equal(talk_ask(&k), 0);
	assert_int_equal(k.s.finished, 1);
	assert_int_equal(k.s.finish.resumes, 0);
	talk_close(&k);
}

static void script_dies(struct fake *f)
{
	uint64_t tag = fake_begin(f);

	fake_delta(f, tag, 0, 1, "a");
	fake_raw(f, "\x20\0\0\0half", 8); /* in the middle of a frame */
	close(f->listener);
	f->listener = -1;
}

static void dies(const struct tandem_options *o)
{
	struct talk k = {0};

	talk_open(&k, script_dies, o);
	assert_int_not_equal(talk_ask(&k), 0);
	assert_int_equal(k.err.code, o ? TANDEM_E_NOT_FOUND : TANDEM_E_CLOSED);
	assert_int_equal(k.s.failed, 1);
	assert_string_equal(k.s.text, "a");
	assert_int_not_equal(tandem_reconnect(k.t, &k.err), 0);
	talk_close(&k);
}

static void test_daemon_dies(void **state)
{
	const struct tandem_options brief = {.retry_ms = 100, .timeout_ms = 100};

	(void)state;
	dies(NULL);
	dies(&brief);
}

static void script_refused(struct fake *f)
{
	uint64_t tag = fake_begin(f);

	fake_delta(f, tag, 0, 1, "a");
	fake_greet(f);
	tag = fake_expect_tag(f, TANDEM__CLIENT_MESSAGE__BODY_RESUME);
	fake_error(f, tag, "not_found", "no such request", 0);
}

static void test_resume_refused(void **state)
{
	struct talk k = {0};

	(void)state;
	talk_open(&k, script_refused, &retry);
	assert_int_equal(talk_ask(&k), TANDEM_E_NOT_FOUND);
	assert_string_equal(k.err.text, "no such request");
	assert_int_equal(k.s.failed, 1);
	talk_close(&k);
}

static uint32_t resumed_at;

static void script_wrong_place(struct fake *f)
{
	uint64_t tag = fake_begin(f);

	fake_delta(f, tag, 0, 3, "abc");
	fake_greet(f);
	tag = fake_expect_tag(f, TANDEM__CLIENT_MESSAGE__BODY_RESUME);
	fake_delta(f, tag, resumed_at, 1, "?");
}

static void test_wrong_place_is_refused(void **state)
{
	(void)state;
	for (resumed_at = 2; resumed_at <= 4; resumed_at += 2) { /* repetition, gap */
		struct talk k = {0};

		talk_open(&k, script_wrong_place, &retry);
		assert_int_equal(talk_ask(&k), TANDEM_E_PROTOCOL);
		assert_string_equal(k.s.text, "abc");
		talk_close(&k);
	}
}

static void script_hangup_while_cancelling(struct fake *f)
{
	uint64_t tag = fake_begin(f);

	fake_delta(f, tag, 0, 1, "a");
	fake_expect_tag(f, TANDEM__CLIENT_MESSAGE__BODY_CANCEL);
}

static void test_cancel_then_loss(void **state)
{
	struct talk k = {.s = {.cancel_at = 1}};
	struct seen late = {0};
	struct tandem_handler hl = seen_handler(&late);
	uint64_t call;

	(void)state;
	talk_open(&k, script_hangup_while_cancelling, NULL);
	assert_true(tandem_submit(k.t, &hello, &k.h, &k.err) != 0);
	assert_int_equal(pump(k.t, &k.s.failed, &k.err), 0);
	assert_int_equal(k.s.failed, 1);
	assert_int_equal(k.s.error.code, TANDEM_E_CANCELLED);
	/* Submitted and cancelled while lost: ends at the next process. */
	call = tandem_submit(k.t, &hello, &hl, &k.err);
	assert_true(call != 0);
	assert_int_equal(tandem_cancel(k.t, call, &k.err), 0);
	assert_int_equal(late.failed, 0);
	assert_int_equal(tandem_process(k.t, &k.err), TANDEM_E_CLOSED);
	assert_int_equal(late.failed, 1);
	talk_close(&k);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_resume_blocking), cmocka_unit_test(test_resume_event_loop), cmocka_unit_test(test_not_accepted_is_sent_again),
		cmocka_unit_test(test_daemon_dies),	cmocka_unit_test(test_resume_refused),	  cmocka_unit_test(test_wrong_place_is_refused),
		cmocka_unit_test(test_cancel_then_loss),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
