/*
 * test_c_errors.c: what is not as it should be: no daemon, a daemon that says nothing or nonsense, answers that were never asked for, requests that can't
 * be sent. Each is one error with its code; none hangs, none crashes.
 */
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>

#include "tests/lib/fake_daemon.h"

/* One for what must run into the limit, one for what must not, on a machine that is busy. */
static const struct tandem_options brief = {.timeout_ms = 500}, patient = {.timeout_ms = 30000};

static long now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

static void expect_no_connection(const char *path, int code)
{
	struct tandem_error err;

	assert_null(tandem_connect(path, &brief, &err));
	assert_int_equal(err.code, code);
	assert_true(strlen(err.text) > 20);
	assert_null(strchr(err.text, '\n'));
}

static void test_no_socket(void **state)
{
	char longer[300], dir[] = "/tmp/td_errors.XXXXXX", path[64];
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int fd;

	(void)state;
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/none", dir);
	expect_no_connection(path, TANDEM_E_NOT_FOUND);
	memset(longer, 'a', sizeof(longer));
	longer[0] = '/';
	longer[299] = '\0';
	expect_no_connection(longer, TANDEM_E_TOO_LARGE);
	longer[108] = '\0'; /* one byte too long with its NUL */
	expect_no_connection(longer, TANDEM_E_TOO_LARGE);
	expect_no_connection("/", TANDEM_E_INVALID); /* there, but no socket */
	/* Left behind by somebody who died. */
	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", path);
	fd = socket(AF_UNIX, SOCK_STREAM, 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	close(fd);
	expect_no_connection(path, TANDEM_E_NOT_FOUND);
	/* Not a stream. */
	unlink(path);
	fd = socket(AF_UNIX, SOCK_DGRAM, 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	expect_no_connection(path, TANDEM_E_INVALID);
	close(fd);
	unlink(path);
	/* Listens, never accepts: the backlog fills up, then nobody greets. */
	fd = socket(AF_UNIX, SOCK_STREAM, 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	assert_int_equal(listen(fd, 0), 0);
	expect_no_connection(path, TANDEM_E_DEADLINE);
	close(fd);
	unlink(path);
	rmdir(dir);
}

static void test_socket_path(void **state)
{
	char path[256], dir[] = "/tmp/td_errors.XXXXXX", wanted[128];

	(void)state;
	setenv("TANDEM_SOCKET", "/some/where", 1);
	assert_int_equal(tandem_socket_path(path, sizeof(path)), 0);
	assert_string_equal(path, "/some/where");
	assert_int_equal(tandem_socket_path(path, 5), TANDEM_E_TOO_LARGE);
	setenv("TANDEM_SOCKET", "", 1); /* empty counts as not set */
	assert_non_null(mkdtemp(dir));
	setenv("XDG_RUNTIME_DIR", dir, 1);
	assert_int_equal(tandem_socket_path(path, sizeof(path)), 0);
	assert_string_equal(path, "/run/tandem/tandem.sock");
	snprintf(wanted, sizeof(wanted), "mkdir %s/tandem && touch %s/tandem/tandem.sock", dir, dir);
	assert_int_equal(system(wanted), 0);
	assert_int_equal(tandem_socket_path(path, sizeof(path)), 0);
	snprintf(wanted, sizeof(wanted), "%s/tandem/tandem.sock", dir);
	assert_string_equal(path, wanted);
	snprintf(wanted, sizeof(wanted), "rm -r %s", dir);
	assert_int_equal(system(wanted), 0);
	unsetenv("XDG_RUNTIME_DIR");
	unsetenv("TANDEM_SOCKET");
}

/* ---- at the greeting --------------------------------------------------------------------------------------------------------------- */

static void script_silent(struct fake *f)
{
	fake_accept(f);
	fake_expect_tag(f, TANDEM__CLIENT_MESSAGE__BODY_HELLO);
	FAKE_CHECK(!fake_recv(f));
}

static void script_trickle(struct fake *f)
{
	int i;

	/* Never silent for long, never done either: the time limit is for the whole greeting. */
	fake_accept(f);
	fake_raw(f, "\xff\0\0\0", 4);
	for (i = 0; i < 1500 && send(f->fd, "x", 1, MSG_NOSIGNAL) == 1; i++)
		usleep(20000);
}

static void script_version(struct fake *f)
{
	Tandem__ServerMessage m = TANDEM__SERVER_MESSAGE__INIT;
	Tandem__Welcome w = TANDEM__WELCOME__INIT;

	fake_accept(f);
	w.version = 2;
	w.server = w.model = w.tenant = (char *)"tandemd 9";
	m.body_case = TANDEM__SERVER_MESSAGE__BODY_WELCOME;
	m.welcome = &w;
	fake_send(f, fake_expect_tag(f, TANDEM__CLIENT_MESSAGE__BODY_HELLO), &m);
}

static void script_not_tandemd(struct fake *f)
{
	fake_accept(f);
	fake_raw(f, "HTTP/1.1 400 Bad Request\r\n\r\n", 28);
	fake_drain(f);
}

static void script_garbage(struct fake *f)
{
	fake_accept(f);
	fake_raw(f, "\x05\0\0\0\xff\xff\xff\xff\xff", 9);
	fake_drain(f);
}

static void script_no_welcome(struct fake *f)
{
	fake_accept(f);
	fake_finish(f, fake_expect_tag(f, TANDEM__CLIENT_MESSAGE__BODY_HELLO), TANDEM__FINISH_REASON__STOP, 0);
	fake_drain(f);
}

static void script_refuses(struct fake *f)
{
	fake_accept(f);
	fake_error(f, fake_expect_tag(f, TANDEM__CLIENT_MESSAGE__BODY_HELLO), "permission_denied", "your user has no tenant here", 0);
}

static void script_hangs_up(struct fake *f)
{
	fake_accept(f);
}

static void greeting(void (*script)(struct fake *f), int code, const char *text)
{
	struct fake f = {0};
	struct tandem_error err;
	long start = now_ms();

	fake_start(&f, script);
	assert_null(tandem_connect(f.path, code == TANDEM_E_DEADLINE ? &brief : &patient, &err));
	if (err.code != code)
		fprintf(stderr, "got: %s\n", err.text);
	assert_int_equal(err.code, code);
	assert_non_null(strstr(err.text, text));
	assert_in_range(now_ms() - start, code == TANDEM_E_DEADLINE ? 490 : 0, 20000);
	fake_stop(&f);
}

static void test_greetings(void **state)
{
	(void)state;
	greeting(script_silent, TANDEM_E_DEADLINE, "no greeting");
	greeting(script_trickle, TANDEM_E_DEADLINE, "no greeting");
	greeting(script_version, TANDEM_E_PROTOCOL, "version 2");
	greeting(script_not_tandemd, TANDEM_E_TOO_LARGE, "too large"); /* "HTTP" is a length of over a gigabyte */
	greeting(script_garbage, TANDEM_E_PROTOCOL, "can't be read");
	greeting(script_no_welcome, TANDEM_E_PROTOCOL, "didn't greet");
	greeting(script_refuses, TANDEM_E_PERMISSION, "no tenant");
	greeting(script_hangs_up, TANDEM_E_CLOSED, "closed");
}

/* ---- in a call --------------------------------------------------------------------------------------------------------------------- */

static void script_never_asked(struct fake *f)
{
	fake_delta(f, fake_begin(f) + 1000, 0, 1, "x");
	fake_drain(f);
}

static void script_other_kind(struct fake *f)
{
	Tandem__ServerMessage m = TANDEM__SERVER_MESSAGE__INIT;
	Tandem__Text text = TANDEM__TEXT__INIT;

	text.text = (char *)"x";
	m.body_case = TANDEM__SERVER_MESSAGE__BODY_TEXT;
	m.text = &text;
	fake_send(f, fake_begin(f), &m);
	fake_drain(f);
}

static void script_not_yet_accepted(struct fake *f)
{
	fake_greet(f);
	fake_delta(f, fake_expect_tag(f, TANDEM__CLIENT_MESSAGE__BODY_GENERATE), 0, 1, "x");
	fake_drain(f);
}

static void script_second_welcome(struct fake *f)
{
	fake_welcome(f, fake_begin(f));
	fake_drain(f);
}

static void script_oversized(struct fake *f)
{
	fake_begin(f);
	fake_raw(f, "\x01\0\x80\0", 4); /* 8 MiB and one byte */
	fake_drain(f);
}

static void script_bad_utf8(struct fake *f)
{
	fake_delta(f, fake_begin(f), 0, 1, "\xc3");
	fake_drain(f);
}

static void script_connection_error(struct fake *f)
{
	fake_begin(f);
	fake_error(f, 0, "slow_reader", "you read too slowly", 0);
}

static void script_unknown_code(struct fake *f)
{
	fake_error(f, fake_begin(f), "flux_low", "from a later release", 0);
	fake_drain(f);
}

static void script_silent_call(struct fake *f)
{
	Tandem__ClientMessage *m;
	uint64_t tag = fake_begin(f);

	m = fake_expect(f, TANDEM__CLIENT_MESSAGE__BODY_CANCEL);
	FAKE_CHECK(m->cancel->target_tag == tag);
	td_client_message_free(m);
	/* What crosses with the giving up is dropped, and the connection goes on. */
	fake_delta(f, tag, 0, 1, "late");
	fake_finish(f, tag, TANDEM__FINISH_REASON__CANCELLED, 1);
	tag = fake_expect_tag(f, TANDEM__CLIENT_MESSAGE__BODY_GENERATE);
	fake_accepted(f, tag, 2, "k");
	fake_finish(f, tag, TANDEM__FINISH_REASON__STOP, 0);
}

static void call(void (*script)(struct fake *f), int code, const char *text)
{
	struct talk k = {0};

	talk_open(&k, script, &patient);
	talk_ask(&k);
	if (k.err.code != code)
		fprintf(stderr, "got: %s\n", k.err.text);
	assert_int_equal(k.err.code, code);
	assert_non_null(strstr(k.err.text, text));
	assert_int_equal(k.s.failed, 1);
	assert_string_equal(k.s.text, "");
	talk_close(&k);
}

static void test_calls(void **state)
{
	(void)state;
	call(script_never_asked, TANDEM_E_PROTOCOL, "never asked");
	call(script_other_kind, TANDEM_E_PROTOCOL, "another kind");
	call(script_not_yet_accepted, TANDEM_E_PROTOCOL, "hadn't accepted");
	call(script_second_welcome, TANDEM_E_PROTOCOL, "second greeting");
	call(script_oversized, TANDEM_E_TOO_LARGE, "too large");
	call(script_bad_utf8, TANDEM_E_INVALID, "UTF-8");
	call(script_connection_error, TANDEM_E_SLOW_READER, "too slowly");
	call(script_unknown_code, TANDEM_E_INTERNAL, "later release");
}

static void test_silence(void **state)
{
	struct tandem_request r = hello;
	struct talk k = {0};
	struct seen next = {0};
	struct tandem_handler hn = seen_handler(&next);

	(void)state;
	r.silence_ms = 100;
	talk_open(&k, script_silent_call, NULL);
	assert_int_equal(tandem_generate(k.t, &r, &k.h, &k.err), TANDEM_E_DEADLINE);
	assert_int_equal(tandem_generate(k.t, &hello, &hn, &k.err), 0);
	assert_int_equal(next.finished, 1);
	assert_int_equal(k.s.failed, 1);
	assert_int_equal(k.s.deltas, 0);
	talk_close(&k);
}

static void script_status_never_comes(struct fake *f)
{
	fake_greet(f);
	fake_expect_tag(f, TANDEM__CLIENT_MESSAGE__BODY_STATUS);
	FAKE_CHECK(!fake_recv(f));
}

static void test_small_call_has_a_limit(void **state)
{
	struct talk k = {0};

	(void)state;
	talk_open(&k, script_status_never_comes, &brief);
	assert_null(tandem_status(k.t, &k.err));
	assert_int_equal(k.err.code, TANDEM_E_DEADLINE);
	talk_close(&k);
}

static void script_later_daemon(struct fake *f)
{
	uint64_t tag = fake_begin(f);
	/* tag 1 = our tag, then field 99, a message of three bytes that this library has never heard of */
	uint8_t frame[] = {8, 0, 0, 0, 0x08, (uint8_t)tag, 0x9a, 0x06, 0x03, 'a', 'b', 'c'};

	fake_raw(f, frame, sizeof(frame));
	fake_delta(f, tag, 0, 1, "ok");
	fake_finish(f, tag, TANDEM__FINISH_REASON__STOP, 1);
}

static void test_unknown_messages_are_ignored(void **state)
{
	struct talk k = {0};

	(void)state;
	talk_open(&k, script_later_daemon, NULL);
	assert_int_equal(talk_ask(&k), 0);
	assert_string_equal(k.s.text, "ok");
	talk_close(&k);
}

/* ---- requests that can't be sent --------------------------------------------------------------------------------------------------- */

static void script_idle(struct fake *f)
{
	fake_greet(f);
	FAKE_CHECK(!fake_recv(f));
}

static void refuse(struct tandem *t, struct tandem_prompt prompt, int code)
{
	struct tandem_request r = {.prompt = prompt};
	struct seen s = {0};
	struct tandem_handler h = seen_handler(&s);
	struct tandem_error err;

	assert_int_equal(tandem_submit(t, &r, &h, &err), 0);
	assert_int_equal(err.code, code);
	assert_int_equal(s.failed, 0); /* submit reports by itself, not through the handler */
	assert_int_equal(tandem_generate(t, &r, &h, &err), code);
	assert_int_equal(s.failed, 1);
	assert_int_equal(tandem_want(t), TANDEM_READ);
}

static void test_refused_here(void **state)
{
	static const int32_t id = 1;
	const struct tandem_message no_role = {.content = "x"}, bad = {.role = "user", .content = "\xff"};
	struct talk k = {.f = {.max_frame = 1000}};
	struct tandem_ids ids;
	char big[1001];

	(void)state;
	memset(big, 'x', sizeof(big));
	big[1000] = '\0';
	talk_open(&k, script_idle, NULL);
	refuse(k.t, (struct tandem_prompt){0}, TANDEM_E_INVALID);
	refuse(k.t, (struct tandem_prompt){.text = "a", .id = &id, .n_ids = 1}, TANDEM_E_INVALID);
	refuse(k.t, (struct tandem_prompt){.text = "\xed\xa0\x80"}, TANDEM_E_INVALID); /* a surrogate */
	refuse(k.t, (struct tandem_prompt){.message = &no_role, .n_messages = 1}, TANDEM_E_INVALID);
	refuse(k.t, (struct tandem_prompt){.message = &bad, .n_messages = 1}, TANDEM_E_INVALID);
	refuse(k.t, (struct tandem_prompt){.text = big}, TANDEM_E_TOO_LARGE);
	assert_int_equal(tandem_tokenize(k.t, &(struct tandem_prompt){.id = &id, .n_ids = 1}, &ids, &k.err), TANDEM_E_INVALID);
	talk_close(&k);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_no_socket),
		cmocka_unit_test(test_socket_path),
		cmocka_unit_test(test_greetings),
		cmocka_unit_test(test_calls),
		cmocka_unit_test(test_silence),
		cmocka_unit_test(test_small_call_has_a_limit),
		cmocka_unit_test(test_unknown_messages_are_ignored),
		cmocka_unit_test(test_refused_here),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
