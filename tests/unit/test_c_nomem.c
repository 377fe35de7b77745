/*
 * test_c_nomem.c: the n-th allocation of libtandem fails, for every n: connecting, asking, being answered, losing the connection and resuming end with
 * success or with an error that says so; never with a crash, a second end of a call, or memory that is left behind.
 *
 * malloc and its kin are replaced for this process. They count only in a thread that is armed, so the daemon's thread has all the memory it wants. A
 * sanitizer brings its own allocator: there the test has nothing to replace and says so.
 */
#include <errno.h>

#include "tests/unit/fake_daemon.h"

#ifndef __SANITIZE_ADDRESS__

enum { LIVE_MAX = 512 };

extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);
extern void __libc_free(void *p);

static __thread int armed;
static int countdown, refused;
static void *live[LIVE_MAX]; /* what was allocated while armed and not yet freed */
static int n_live;

static int refuse(void)
{
	if (!armed || countdown-- != 0)
		return 0;
	refused++;
	errno = ENOMEM;
	return 1;
}

static void *born(void *p)
{
	if (armed && p && n_live < LIVE_MAX)
		live[n_live++] = p;
	return p;
}

static void gone(const void *p)
{
	int i;

	for (i = 0; armed && p && i < n_live; i++)
		if (live[i] == p) {
			live[i] = live[--n_live];
			return;
		}
}

void *malloc(size_t n)
{
	return refuse() ? NULL : born(__libc_malloc(n));
}

void *calloc(size_t n, size_t size)
{
	return refuse() ? NULL : born(__libc_calloc(n, size));
}

void *realloc(void *p, size_t n)
{
	if (refuse())
		return NULL;
	gone(p);
	return born(__libc_realloc(p, n));
}

void free(void *p)
{
	gone(p);
	__libc_free(p);
}

/* Answers whatever comes, until the listener is shut down: half an answer to Generate and then a lost connection, the rest to Resume. */
static void script(struct fake *f)
{
	Tandem__ServerMessage status = TANDEM__SERVER_MESSAGE__INIT;
	Tandem__Status st = TANDEM__STATUS__INIT;
	Tandem__ClientMessage *m;

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
	int n, rc, most = 0, failed = 0;

	(void)state;
	fake_start(&f, script);
	for (n = 0;; n++) {
		struct seen s = {0};

		countdown = n;
		refused = 0;
		n_live = 0;
		armed = 1;
		rc = everything(f.path, &s, &err);
		armed = 0;
		if (n_live)
			fprintf(stderr, "allocation %d failed: %d blocks are left behind\n", n, n_live);
		assert_int_equal(n_live, 0);
		assert_in_range(s.finished + s.failed, 0, 1);
		if (rc == 0)
			assert_string_equal(s.text, "one two");
		else
			assert_true(strlen(err.text) > 5);
		assert_int_equal(err.code, rc);
		failed += rc != 0;
		most = n;
		if (!refused)
			break;
	}
	assert_int_equal(rc, 0); /* with all memory it works */
	assert_true(most > 30);
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
