/*
 * test_constrained.c: the tiny pair under constraints: whatever comes out is JSON that fits the schema, greedy or sampled, with any number of drafts;
 * greedy output does not depend on speculation, nor on a second life that is fed what a first one committed; neighbours in the batch that are free
 * give what they give alone, to the token; a constraint that the model can't follow ends one request and no more.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/json_schema.h"
#include "engine/token_mask.h"
#include "tests/lib/pair.h"
#include "tests/lib/schema_gen.h"
#include "tests/lib/unit.h"

enum { TOKENS = 64, SLOTS = 4, SCHEMAS = 5 };

static struct td_tokenizer *tok;
static struct td_error err;
static struct pair pair;
static const char *const prompts[] = {"list the files of", "how do I find large", "{", "the"};
static struct td_ids ids[4];

static char *text_of(const struct pair_request *r)
{
	size_t n;

	return td_decode(tok, r->out, (size_t)r->n_out, 1, &n);
}

static void request(struct pair_request *r, int prompt, int k, float temperature, uint64_t seed, const uint8_t *grammar, size_t n)
{
	memset(r, 0, sizeof(*r));
	r->ids = ids[prompt].id;
	r->n_ids = r->n_prompt = (int)ids[prompt].n;
	r->max_total = r->n_ids + TOKENS;
	r->k = k;
	r->stop_at_eos = 1;
	pair_greedy(&r->sampling);
	r->sampling.temperature = temperature;
	r->sampling.seed = seed;
	r->grammar = grammar;
	r->n_grammar = n;
	r->out = calloc(TOKENS + TD_BLOCK_MAX, sizeof(*r->out));
}

/* Ended by its end: JSON that fits. Cut by its length: a beginning of such, which the target itself saw to. */
static void check(json_t *schema, const struct pair_request *r, const char *what)
{
	char *text = text_of(r);
	json_t *v = json_loads(text, JSON_DECODE_ANY, NULL);

	if (r->finish != TD_FIN_STOP && r->finish != TD_FIN_LENGTH)
		fail_msg("%s: ended with %d", what, r->finish);
	if (r->finish == TD_FIN_STOP && (!v || !schema_fits(schema, schema, v)))
		fail_msg("%s: %s: %s", what, v ? "does not fit" : "is no JSON", text);
	json_decref(v);
	free(text);
}

static void same(const struct pair_request *a, const struct pair_request *b, const char *what)
{
	if (a->n_out != b->n_out || a->finish != b->finish || memcmp(a->out, b->out, sizeof(*a->out) * (size_t)a->n_out))
		fail_msg("%s: %d tokens (finish %d) against %d (%d)", what, a->n_out, a->finish, b->n_out, b->finish);
}

static int ended;
static long cycles[2], accepted[2]; /* free, constrained; K = 4 */

static void one_schema(uint64_t seed, const uint8_t *grammar, size_t n, json_t *schema)
{
	static const int widths[] = {0, 4, 15};
	struct pair_request greedy[3], r;
	char what[64];

	for (int w = 0; w < 3; w++) {
		snprintf(what, sizeof(what), "schema %llu, greedy, K=%d", (unsigned long long)seed, widths[w]);
		request(&greedy[w], (int)(seed % 4), widths[w], 0, 0, grammar, n);
		pair_run(&pair, &greedy[w], 1, NULL);
		check(schema, &greedy[w], what);
		same(&greedy[0], &greedy[w], what);
		ended += greedy[w].finish == TD_FIN_STOP;
		if (w != (int)(seed % 3))
			continue;
		snprintf(what, sizeof(what), "schema %llu, sampled, K=%d", (unsigned long long)seed, widths[w]);
		request(&r, (int)(seed + 1) % 4, widths[w], 1, seed, grammar, n);
		pair_run(&pair, &r, 1, NULL);
		check(schema, &r, what);
		ended += r.finish == TD_FIN_STOP;
		free(r.out);
	}
	cycles[1] += greedy[1].cycles;
	accepted[1] += greedy[1].accepted;
	if (greedy[0].n_out > 2) { /* a second life */
		int cut = 1 + (int)(seed % (uint64_t)(greedy[0].n_out - 1)), prompt = (int)(seed % 4);
		struct pair_request rest = greedy[0];
		int32_t *all = calloc(ids[prompt].n + (size_t)cut, sizeof(*all));

		memcpy(all, ids[prompt].id, sizeof(*all) * ids[prompt].n);
		memcpy(all + ids[prompt].n, greedy[0].out, sizeof(*all) * (size_t)cut);
		request(&r, prompt, 4, 0, 0, grammar, n);
		r.ids = all;
		r.n_ids += cut;
		pair_run(&pair, &r, 1, NULL);
		rest.out += cut;
		rest.n_out -= cut;
		same(&rest, &r, "a second life");
		free(r.out);
		free(all);
	}
	for (int w = 0; w < 3; w++)
		free(greedy[w].out);
}

static void schemas(void **unused)
{
	int done = 0;

	(void)unused;
	for (uint64_t seed = 1; done < SCHEMAS; seed++) {
		json_t *s = (schema_seed(seed * 31), schema_random(2));
		char *text = json_dumps(s, JSON_COMPACT);
		uint8_t *grammar;
		size_t n;

		if (!td_constraint_schema(text, 0, &grammar, &n, &err)) {
			one_schema(seed, grammar, n, s);
			free(grammar);
			done++;
		}
		free(text);
		json_decref(s);
	}
	for (int i = 0; i < 4; i++) {
		struct pair_request r;

		request(&r, i, 4, 0, 0, NULL, 0);
		r.max_total = r.n_ids + 30;
		pair_run(&pair, &r, 1, NULL);
		cycles[0] += r.cycles;
		accepted[0] += r.accepted;
		free(r.out);
	}
	print_message("%d of %d answers came to their end; acceptance length at K=4: free %.2f, constrained %.2f\n", ended, done * 4,
		      1 + (double)accepted[0] / (double)cycles[0], 1 + (double)accepted[1] / (double)cycles[1]);
	assert_true(ended >= done);
}

/* Free requests beside constrained ones. */
static void neighbours(void **unused)
{
	struct pair_request alone[SLOTS], all[SLOTS];
	uint8_t *grammar;
	size_t n;

	(void)unused;
	OK(td_constraint_object(0, &grammar, &n, &err));
	for (int i = 0; i < SLOTS; i++) {
		int bound = i % 2;

		request(&alone[i], i, i == 3 ? 0 : 7, i < 2 ? 0 : 0.9f, 5, bound ? grammar : NULL, bound ? n : 0);
		alone[i].max_total = alone[i].n_ids + 24;
		all[i] = alone[i];
		all[i].out = calloc(TOKENS + TD_BLOCK_MAX, sizeof(*all[i].out));
		pair_run(&pair, &alone[i], 1, NULL);
	}
	pair_run(&pair, all, SLOTS, NULL);
	for (int i = 0; i < SLOTS; i++) {
		same(&alone[i], &all[i], i % 2 ? "constrained, in company" : "free, beside constrained ones");
		free(alone[i].out);
		free(all[i].out);
	}
	free(grammar);
}

/* A bias can't bring back what is forbidden, nor take away the last that is allowed. */
static void bias(void **unused)
{
	struct pair_request r;
	struct td_ids yes = {0};
	uint8_t *grammar;
	char *text;
	size_t n;

	(void)unused;
	OK(td_constraint_schema("{\"enum\":[true]}", 0, &grammar, &n, &err));
	OK(td_encode(tok, "Xtrue", 5, 0, &yes, &err));
	request(&r, 0, 4, 1, 3, grammar, n);
	r.sampling.n_bias = (int32_t)yes.n + 4;
	for (int i = 0; i < r.sampling.n_bias; i++) {
		r.sampling.bias_id[i] = i < (int)yes.n ? yes.id[i] : 83 + i; /* ids of single bytes, "t" among them */
		r.sampling.bias[i] = i ? -100 : 100;
	}
	pair_run(&pair, &r, 1, NULL);
	text = text_of(&r);
	assert_string_equal(text, "true");
	assert_int_equal(r.finish, TD_FIN_STOP);
	free(text);
	free(r.out);
	/* Infinite ones can: nothing is left, the request ends by an error of its own, and the next one is served. */
	request(&r, 0, 4, 0, 3, grammar, n);
	r.sampling.n_bias = TD_BIAS_MAX;
	for (int i = 0, id = 0; i < TD_BIAS_MAX; id++) {
		size_t k = 0;
		const char *b = td_token_bytes(tok, id, &k);

		if (id >= td_tokenizer_size(tok) || (b && k && k < 5 && !memcmp(b, "true", k))) {
			r.sampling.bias_id[i] = id < td_tokenizer_size(tok) ? id : 0;
			r.sampling.bias[i++] = -INFINITY;
		}
	}
	pair_run(&pair, &r, 1, NULL);
	assert_int_equal(r.finish, TD_FIN_CONSTRAINT);
	assert_int_equal(r.n_out, 0);
	free(r.out);
	request(&r, 0, 4, 0, 3, grammar, n);
	pair_run(&pair, &r, 1, NULL);
	assert_int_equal(r.finish, TD_FIN_STOP);
	free(r.out);
	/* A grammar that was spoiled on the way is refused. */
	grammar[3] ^= 1;
	request(&r, 0, 4, 0, 3, grammar, n);
	pair_run(&pair, &r, 1, NULL);
	assert_int_equal(r.finish, TD_FIN_ERROR);
	free(r.out);
	free(grammar);
	td_ids_finish(&yes);
}

/* Log-probabilities are those after the mask: what is allowed sums to 1. */
static void logprobs(void **unused)
{
	struct pair_request r;
	const struct td_verdict *v;
	uint8_t *grammar;
	size_t n;

	(void)unused;
	OK(td_constraint_schema("{\"enum\":[7,8]}", 0, &grammar, &n, &err));
	request(&r, 0, 0, 0, 0, grammar, n);
	r.sampling.logprobs = 2;
	pair_run(&pair, &r, 1, NULL);
	assert_int_equal(r.finish, TD_FIN_STOP);
	v = &td_shm_slot(pair.shm, 0)->verdict[0];
	assert_true(fabs(exp((double)v->top_logprob[0][0]) + exp((double)v->top_logprob[0][1]) - 1) < 1e-3);
	assert_true(v->logprob[0] == v->top_logprob[0][0]);
	free(r.out);
	free(grammar);
}

static int open_all(void **unused)
{
	struct pair_options o = {.device = "cpu", .target_dir = "models/tiny/target-int4", .drafter_dir = "models/tiny/drafter-int4", .slots = SLOTS, .context = 512,
				 .chunk = 256};

	(void)unused;
	OK(td_tokenizer_load("models/tiny", &tok, &err));
	OK(td_vocab_make(tok, td_tokenizer_size(tok), &o.vocab_fd, &err));
	pair_open(&pair, &o);
	close(o.vocab_fd);
	for (int i = 0; i < 4; i++)
		OK(td_encode(tok, prompts[i], strlen(prompts[i]), 0, &ids[i], &err));
	return 0;
}

static int close_all(void **unused)
{
	(void)unused;
	pair_close(&pair);
	for (int i = 0; i < 4; i++)
		td_ids_finish(&ids[i]);
	td_tokenizer_free(tok);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(logprobs), cmocka_unit_test(bias), cmocka_unit_test(neighbours), cmocka_unit_test(schemas)};

	return cmocka_run_group_tests(tests, open_all, close_all);
}
