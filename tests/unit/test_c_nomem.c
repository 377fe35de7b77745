/*
 * test_c_nomem.c: the n-th allocation of libtandem fails, for every n: connecting, asking, being answered, losing the connection and resuming end with
 * success or with an error that says so; never with a crash, a second end of a call, or memory that is left behind.
 *
 * The daemon's thread has all the memory it wants. A sanitizer brings its own allocator: there the test has nothing to replace and says so.
 */
#include <sys/socket.h>

#include "failing_alloc.h"
#include "tests/lib/fake_daemon.h"

#if FAILING_ALLOC

/* Answers whatever comes, until the listener is shut down: half an answer to Generate and then a lost connection, the rest to Resume. */
static void script(struct fake *f)
{
	Tandem__ServerMessage status = TANDEM__SERVER_MESSAGE__INIT;
	Tandem__Status st = TANDEM__STATUS__INIT;
	Tandem__ClientMessage *m;

	alloc_spared = 1;
	st.server = st.model = st.state = (char *)"fake";
	status.body_case = TANDEM__SERVER_MESSAGE__BODY_STATUS;
	status.status = &st;
	while ((f->fd = accept(f->listener, NULL, NULL)) >= 0) {
		while (f->fd >= 0 && (m = fake_recv(f))) {
			uint64_t tag = m->tag;

			if (m->body_case == TANDEM__CLIENT_MESSAGE__BODY_HELLO) {
				fake_welcome(f, tag);
			} else if (m->body_case == TANDEM__CLIENT_MESSAGE__BODY_STATUS) {
				fake_send(f, tag, &status);
			} else if (m->body_case == TANDEM__CLIENT_MESSAGE__BODY_GENERATE) {
				fake_accepted(f, tag, 9, "key");
				fake_delta(f, tag, 0, 2, "one ");
				fake_hangup(f);
			} else if (m->body_case == TANDEM__CLIENT_MESSAGE__BODY_RESUME) {
				fake_accepted(f, tag, 9, "key");
				fake_delta(f, tag, m->resume->position, 1, "two");
				fake_finish(f, tag, TANDEM__FINISH_REASON__STOP, 3);
			}
			td_client_message_free(m);
		}
		fake_hangup(f);
	}
}

/* What a person would do; returns the first error's code. */
static int everything(const char *path, struct seen *s, struct tandem_error *err)
{
	const struct tandem_options o = {.retry_ms = 50, .client = "test", .tenant = "me"};
	const char *const stop[] = {"x"};
	const struct tandem_bias bias = {1, 2};
	const struct tandem_message message = {.role = "user", .content = "hi"};
	const struct tandem_request r = {.prompt = {.message = &message, .n_messages = 1},
					 .sampling = {.stop = stop, .n_stop = 1, .bias = &bias, .n_bias = 1}};
	struct tandem_handler h = seen_handler(s);
	struct tandem_status *st = NULL;
	struct tandem *t;
	int rc;

	t = tandem_connect(path, &o, err);
	if (!t)
		return err->code;
	rc = tandem_generate(t, &r, &h, err);
	if (!rc) {
		st = tandem_status(t, err);
		rc = err->code;
	}
	tandem_status_free(st);
	tandem_close(t);
	return rc;
}

static void test_every_allocation(void **state)
{
	struct fake f = {0};
	struct tandem_error err;
	int n, rc, failed = 0;
	long before, left;

	(void)state;
	fake_start(&f, script);
	for (n = 1;; n++) {
		struct seen s = {0};

		before = alloc_alive;
		alloc_countdown = n;
		rc = everything(f.path, &s, &err);
		left = alloc_countdown;
		alloc_countdown = 0;
		if (alloc_alive != before)
			fail_msg("allocation %d failed: %ld blocks are left behind", n, alloc_alive - before);
		assert_in_range(s.finished + s.failed, 0, 1);
		if (rc == 0)
			assert_string_equal(s.text, "one two");
		else
			assert_true(strlen(err.text) > 5);
		assert_int_equal(err.code, rc);
		failed += rc != 0;
		if (left)
			break;
	}
	assert_int_equal(rc, 0); /* with all memory it works */
	assert_true(n > 31);
	assert_true(failed > 20);
	shutdown(f.listener, SHUT_RDWR);
	fake_stop(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_allocation)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void)
{
	puts("skipped: the sanitizer's allocator can't be replaced");
	return 0;
}

#endif
