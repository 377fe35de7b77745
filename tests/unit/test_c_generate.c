/*
 * test_c_generate.c: the blocking form: what is sent is what was asked, what comes back in pieces of any size reaches the callbacks once and in order.
 */
#include "tests/lib/fake_daemon.h"

static void script_plain(struct fake *f)
{
	Tandem__ClientMessage *m;

	fake_greet(f);
	m = fake_expect(f, TANDEM__CLIENT_MESSAGE__BODY_GENERATE);
	FAKE_CHECK(m->generate->input_case == TANDEM__GENERATE__INPUT_TEXT && !strcmp(m->generate->text, "hello"));
	FAKE_CHECK(m->generate->stream && !m->generate->has_deadline_ms && !m->generate->has_band && !m->generate->has_cache);
	FAKE_CHECK(!m->generate->sampling->has_temperature && !m->generate->sampling->has_max_tokens && !m->generate->sampling->has_draft_tokens);
	fake_accepted(f, m->tag, 7, "key");
	fake_delta(f, m->tag, 0, 3, "The ");
	fake_delta(f, m->tag, 3, 2, NULL);
	fake_delta(f, m->tag, 5, 1, "answer\xc3\xa9");
	fake_delta(f, m->tag, 6, 0, "!");
	fake_finish(f, m->tag, TANDEM__FINISH_REASON__STOP, 6);
	td_client_message_free(m);
	FAKE_CHECK(!fake_recv(f));
}

static void answer_in_pieces(size_t piece)
{
	struct talk k = {.f = {.piece = piece}};

	talk_open(&k, script_plain, NULL);
	assert_string_equal(tandem_info(k.t)->server, "fake 1");
	assert_int_equal(tandem_info(k.t)->context, 512);
	assert_int_equal(talk_ask(&k), 0);
	assert_int_equal(k.err.code, 0);
	assert_int_equal(k.s.accepted, 1);
	assert_int_equal(k.s.deltas, 4);
	assert_int_equal(k.s.finished, 1);
	assert_int_equal(k.s.n_ids, 6);
	assert_int_equal(k.s.id[5], 5);
	assert_string_equal(k.s.text, "The answer\xc3\xa9!");
	assert_int_equal(k.s.finish.reason, TANDEM_STOP);
	assert_int_equal(k.s.finish.output_tokens, 6);
	assert_int_equal(k.s.finish.accepted, 4);
	assert_true(k.s.finish.seed == UINT64_MAX);
	assert_int_equal(k.s.finish.resumes, 0);
	talk_close(&k);
}

static void test_whole_frames(void **state)
{
	(void)state;
	answer_in_pieces(0);
}

static void test_single_bytes(void **state)
{
	(void)state;
	answer_in_pieces(1);
}

static void test_odd_pieces(void **state)
{
	(void)state;
	answer_in_pieces(7);
}

static void script_settings(struct fake *f)
{
	Tandem__ClientMessage *m;
	const Tandem__Generate *g;
	const Tandem__Sampling *s;
	const Tandem__Chat *c;

	fake_greet(f);
	m = fake_expect(f, TANDEM__CLIENT_MESSAGE__BODY_GENERATE);
	g = m->generate;
	s = g->sampling;
	FAKE_CHECK(g->input_case == TANDEM__GENERATE__INPUT_CHAT);
	c = g->chat;
	FAKE_CHECK(c->n_message == 3 && !strcmp(c->message[0]->role, "system") && !c->message[0]->content);
	FAKE_CHECK(c->message[1]->n_tool_call == 1 && !strcmp(c->message[1]->tool_call[0]->arguments, "{}") && !c->message[1]->tool_call[0]->id);
	FAKE_CHECK(!strcmp(c->message[1]->reasoning_content, "hm") && !strcmp(c->message[2]->tool_call_id, "c1"));
	FAKE_CHECK(c->n_tool == 1 && !strcmp(c->tool[0], "{\"type\":\"function\"}"));
	FAKE_CHECK(c->has_enable_thinking && !c->enable_thinking);
	FAKE_CHECK(!g->stream && g->has_deadline_ms && g->deadline_ms == 1500);
	FAKE_CHECK(g->has_band && g->band == TANDEM__BAND__BATCH && g->has_cache && !g->cache);
	FAKE_CHECK(s->has_temperature && s->temperature == 0.f && s->has_top_k && s->top_k == -3 && s->has_top_p && s->top_p == 0.5f);
	FAKE_CHECK(s->has_min_p && s->min_p == 0.25f && s->has_repetition_penalty && s->repetition_penalty == 1.5f);
	FAKE_CHECK(s->has_presence_penalty && s->presence_penalty == -1.f && s->has_frequency_penalty && s->frequency_penalty == 2.f);
	FAKE_CHECK(s->has_seed && s->seed == 1ull << 63 && s->has_logprobs && s->logprobs == 2 && s->has_ignore_eos && s->ignore_eos);
	FAKE_CHECK(s->has_max_tokens && s->max_tokens == 9 && s->has_draft_tokens && s->draft_tokens == 0);
	FAKE_CHECK(s->n_stop == 2 && !strcmp(s->stop[1], "##") && s->n_stop_token_ids == 1 && s->stop_token_ids[0] == 77);
	FAKE_CHECK(s->n_logit_bias == 1 && s->logit_bias[0]->id == 4 && s->logit_bias[0]->bias == -100.f);
	fake_error(f, m->tag, "queue_full", "too many", 250);
	td_client_message_free(m);
}

static void test_settings(void **state)
{
	const struct tandem_tool_call call = {"look", "{}", NULL};
	const struct tandem_message messages[] = {
		{.role = "system"}, {.role = "assistant", .reasoning = "hm", .call = &call, .n_calls = 1}, {.role = "tool", .content = "x", .tool_call_id = "c1"}};
	const char *const tools[] = {"{\"type\":\"function\"}"}, *const stops[] = {"\n\n", "##"};
	const struct tandem_bias bias = {4, -100.f};
	const int32_t stop_id = 77;
	const struct tandem_request r = {
		.prompt = {.message = messages, .n_messages = 3, .tool = tools, .n_tools = 1, .thinking = TANDEM_THINK_OFF},
		.sampling = {.set = (1 << 12) - 1, .temperature = 0, .top_k = -3, .top_p = 0.5f, .min_p = 0.25f, .repetition_penalty = 1.5f,
			     .presence_penalty = -1, .frequency_penalty = 2, .seed = 1ull << 63, .logprobs = 2, .ignore_eos = 1, .max_tokens = 9,
			     .draft_tokens = 0, .bias = &bias, .n_bias = 1, .stop = stops, .n_stop = 2, .stop_id = &stop_id, .n_stop_id = 1},
		.whole = 1,
		.deadline_ms = 1500,
		.band = TANDEM_BATCH,
		.no_cache = 1,
	};
	struct talk k = {0};

	(void)state;
	talk_open(&k, script_settings, NULL);
	assert_int_equal(tandem_generate(k.t, &r, &k.h, &k.err), TANDEM_E_QUEUE_FULL);
	assert_string_equal(k.err.name, "queue_full");
	assert_string_equal(k.err.text, "too many");
	assert_int_equal(k.err.retry_after_ms, 250);
	assert_int_equal(k.s.failed, 1);
	assert_int_equal(k.s.error.code, k.err.code);
	talk_close(&k);
}

static void send_place(struct fake *f, uint64_t tag, uint32_t position)
{
	Tandem__ServerMessage m = TANDEM__SERVER_MESSAGE__INIT;
	Tandem__Queue q = TANDEM__QUEUE__INIT;

	q.position = position;
	m.body_case = TANDEM__SERVER_MESSAGE__BODY_QUEUE;
	m.queue = &q;
	fake_send(f, tag, &m);
}

static void script_places(struct fake *f)
{
	fake_greet(f);
	for (int i = 0; i < 2; i++) {
		uint64_t tag = fake_expect_tag(f, TANDEM__CLIENT_MESSAGE__BODY_GENERATE);

		fake_accepted(f, tag, 1, "k");
		send_place(f, tag, 4);
		send_place(f, tag, 1);
		fake_delta(f, tag, 0, 1, "x");
		send_place(f, tag, 0); /* interrupted: it waits again */
		fake_delta(f, tag, 1, 1, "y");
		fake_finish(f, tag, TANDEM__FINISH_REASON__STOP, 2);
	}
}

static uint32_t places[8];
static int n_places;

static void on_place(void *ctx, uint32_t before)
{
	(void)ctx;
	if (n_places < 8)
		places[n_places++] = before;
}

/* Places in the queue reach the callback, and are no trouble where there is none. */
static void test_places(void **state)
{
	const struct tandem_request r = {.prompt = {.text = "p"}, .band = TANDEM_INTERACTIVE};
	struct talk k = {0};

	(void)state;
	talk_open(&k, script_places, NULL);
	assert_int_equal(tandem_generate(k.t, &r, &k.h, &k.err), 0);
	assert_int_equal(n_places, 0);
	memset(&k.s, 0, sizeof(k.s));
	k.h.queue = on_place;
	assert_int_equal(tandem_generate(k.t, &r, &k.h, &k.err), 0);
	assert_int_equal(n_places, 3);
	assert_int_equal(places[0], 4);
	assert_int_equal(places[1], 1);
	assert_int_equal(places[2], 0);
	talk_close(&k);
}

static void script_logprobs(struct fake *f)
{
	Tandem__ServerMessage m = TANDEM__SERVER_MESSAGE__INIT;
	Tandem__Delta d = TANDEM__DELTA__INIT;
	Tandem__TokenLogprob lp[2] = {TANDEM__TOKEN_LOGPROB__INIT, TANDEM__TOKEN_LOGPROB__INIT}, *lps[] = {lp, lp + 1};
	Tandem__TopLogprob top = TANDEM__TOP_LOGPROB__INIT, *tops[] = {&top};
	int32_t ids[] = {10, 11};
	uint8_t bytes[] = {0xc3, 0};
	uint64_t tag = fake_asked(f);

	fake_accepted(f, tag, 1, "");
	lp[0].logprob = -0.5f;
	lp[1].logprob = -1.5f;
	top.id = 3;
	top.logprob = -0.25f;
	top.has_token = 1;
	top.token.data = bytes;
	top.token.len = 2;
	lp[1].top = tops;
	lp[1].n_top = 1;
	d.id = ids;
	d.n_id = 2;
	d.logprob = lps;
	d.n_logprob = 2;
	m.body_case = TANDEM__SERVER_MESSAGE__BODY_DELTA;
	m.delta = &d;
	fake_send(f, tag, &m);
	fake_finish(f, tag, TANDEM__FINISH_REASON__LENGTH, 2);
	tag = fake_expect_tag(f, TANDEM__CLIENT_MESSAGE__BODY_GENERATE);
	fake_accepted(f, tag, 2, "");
	d.n_logprob = 1; /* fewer than ids: a lie */
	fake_send(f, tag, &m);
}

static int check_logprobs(void *ctx, const struct tandem_delta *d)
{
	assert_int_equal(d->n_ids, 2);
	assert_true(d->logprob[0].logprob == -0.5f && d->logprob[1].logprob == -1.5f);
	assert_int_equal(d->logprob[0].n_top, 0);
	assert_int_equal(d->logprob[1].n_top, 1);
	assert_int_equal(d->logprob[1].top[0].id, 3);
	assert_int_equal(d->logprob[1].top[0].n_token, 2);
	assert_memory_equal(d->logprob[1].top[0].token, "\xc3\0", 2);
	++*(int *)ctx;
	return 0;
}

static void test_logprobs(void **state)
{
	struct talk k = {0};
	int deltas = 0;
	struct tandem_handler h = {.ctx = &deltas, .delta = check_logprobs};

	(void)state;
	talk_open(&k, script_logprobs, NULL);
	assert_int_equal(tandem_generate(k.t, &hello, &h, &k.err), 0);
	assert_int_equal(deltas, 1);
	assert_int_equal(tandem_generate(k.t, &hello, &h, &k.err), TANDEM_E_PROTOCOL);
	assert_int_equal(deltas, 1);
	talk_close(&k);
}

static void script_small_calls(struct fake *f)
{
	Tandem__ServerMessage m = TANDEM__SERVER_MESSAGE__INIT;
	Tandem__Tokens tokens = TANDEM__TOKENS__INIT;
	Tandem__Text text = TANDEM__TEXT__INIT;
	Tandem__Status st = TANDEM__STATUS__INIT;
	Tandem__WorkerStatus w = TANDEM__WORKER_STATUS__INIT, *ws[] = {&w};
	Tandem__ClientMessage *q;
	int32_t ids[] = {5, 6, 7};
	uint64_t at[] = {9, 4};

	fake_greet(f);
	q = fake_expect(f, TANDEM__CLIENT_MESSAGE__BODY_TOKENIZE);
	FAKE_CHECK(q->tokenize->input_case == TANDEM__TOKENIZE__INPUT_TEXT && !strcmp(q->tokenize->text, "abc"));
	tokens.id = ids;
	tokens.n_id = 3;
	m.body_case = TANDEM__SERVER_MESSAGE__BODY_TOKENS;
	m.tokens = &tokens;
	fake_send(f, q->tag, &m);
	td_client_message_free(q);
	q = fake_expect(f, TANDEM__CLIENT_MESSAGE__BODY_DETOKENIZE);
	FAKE_CHECK(q->detokenize->n_id == 2 && q->detokenize->id[1] == -1);
	text.text = (char *)"ab";
	m.body_case = TANDEM__SERVER_MESSAGE__BODY_TEXT;
	m.text = &text;
	fake_send(f, q->tag, &m);
	td_client_message_free(q);
	q = fake_expect(f, TANDEM__CLIENT_MESSAGE__BODY_STATUS);
	st.server = st.model = st.state = (char *)"ready";
	st.cycles = 12;
	st.accepted_at = at;
	st.n_accepted_at = 2;
	w.role = (char *)"target";
	w.state = (char *)"loading";
	w.has_step_us = 1;
	w.step_us = 1ull << 40;
	st.worker = ws;
	st.n_worker = 1;
	m.body_case = TANDEM__SERVER_MESSAGE__BODY_STATUS;
	m.status = &st;
	fake_send(f, q->tag, &m);
	td_client_message_free(q);
}

static void test_small_calls(void **state)
{
	const struct tandem_prompt prompt = {.text = "abc"};
	const int32_t ask[] = {4, -1};
	struct talk k = {0};
	struct tandem_ids ids;
	struct tandem_status *st;
	char *text;

	(void)state;
	talk_open(&k, script_small_calls, NULL);
	assert_int_equal(tandem_tokenize(k.t, &prompt, &ids, &k.err), 0);
	assert_int_equal(ids.n, 3);
	assert_int_equal(ids.id[2], 7);
	tandem_ids_free(&ids);
	text = tandem_detokenize(k.t, ask, 2, &k.err);
	assert_string_equal(text, "ab");
	free(text);
	st = tandem_status(k.t, &k.err);
	assert_non_null(st);
	tandem_close(k.t);
	assert_int_equal(st->cycles, 12);
	assert_int_equal(st->n_accepted_at, 2);
	assert_int_equal(st->accepted_at[1], 4);
	assert_int_equal(st->n_workers, 1);
	assert_string_equal(st->worker[0].state, "loading");
	assert_true(st->worker[0].step_us == 1ull << 40);
	assert_null(st->worker[0].device);
	tandem_status_free(st);
	fake_stop(&k.f);
}

static void script_cancel(struct fake *f)
{
	Tandem__ClientMessage *m;
	uint64_t tag = fake_begin(f);

	fake_delta(f, tag, 0, 1, "a");
	fake_delta(f, tag, 1, 1, "b");
	m = fake_expect(f, TANDEM__CLIENT_MESSAGE__BODY_CANCEL);
	FAKE_CHECK(m->cancel->target_tag == tag && m->tag != tag);
	fake_delta(f, tag, 2, 1, "c"); /* was under way */
	fake_finish(f, tag, TANDEM__FINISH_REASON__CANCELLED, 3);
	fake_error(f, m->tag, "not_found", "over already", 0); /* an answer to the cancel itself disturbs nobody */
	td_client_message_free(m);
	FAKE_CHECK(!fake_recv(f));
}

static void test_cancel_by_callback(void **state)
{
	struct talk k = {.s = {.cancel_at = 2}};

	(void)state;
	talk_open(&k, script_cancel, NULL);
	assert_int_equal(talk_ask(&k), 0);
	assert_int_equal(k.s.finish.reason, TANDEM_CANCELLED);
	assert_string_equal(k.s.text, "abc");
	usleep(20000);
	assert_int_equal(tandem_process(k.t, &k.err), 0);
	talk_close(&k);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_whole_frames), cmocka_unit_test(test_single_bytes), cmocka_unit_test(test_odd_pieces),
		cmocka_unit_test(test_settings),
		cmocka_unit_test(test_places),     cmocka_unit_test(test_logprobs),	 cmocka_unit_test(test_small_calls),
		cmocka_unit_test(test_cancel_by_callback),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
