/*
 * test_prefix.c: the prefix cache with the tiny pair: what comes out with hits is what comes out without, bit for bit.
 *
 *   test_prefix [--device D] [--target DIR --drafter DIR --tokenizer FILE] [--activations int8] [--chunk N] [--history N] [--full 1]
 *
 * Without arguments a short run with units of 64 tokens; --full runs more of each; --chunk 256 or 1024: units of 256.
 *
 * Two pairs of the same models: `plain` has no cache and runs each request alone; `kept` has one, and runs requests in company, with cancels, evictions
 * and new epochs between. Compared are tokens, drafts, accepted counts and log-probabilities. Beside that: when it must hit, how much is left to compute, who
 * goes first, and that what the target writes for the drafter is checked.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "engine/clock.h"
#include "tests/lib/pair.h"
#include "tests/lib/prompts.h"

enum { SLOTS = 4, OUT = 6, MOST = 4096, TEXTS = 6 };

static struct pair plain, kept;
static struct td_ids pool;
static int failures, checks, full, chunk = 256, unit, context = 2048;
static struct pair_options options = {.device = "cpu", .target_dir = "models/tiny/target-int4", .drafter_dir = "models/tiny/drafter-int4", .slots = SLOTS};

/* A request, and what is compared of it. */
struct ask {
	struct pair_request r;
	int32_t ids[MOST], out[MOST];
	uint64_t drafts, logprobs, draft; /* sums of what was verified; the draft that waits */
};

struct group { /* what the hooks look at */
	struct pair *pair;
	struct ask *ask[SLOTS];
	int n;
};

static void check(int good, const char *what, long long got, long long want)
{
	checks++;
	if (good)
		return;
	failures++;
	printf("%s: %lld, expected %lld\n", what, got, want);
}
#define EQUAL(what, got, want) check((got) == (want), what, got, want)

static void ask(struct ask *a, const int32_t *ids, int n, int k)
{
	memset(a, 0, sizeof(*a));
	memcpy(a->ids, ids, sizeof(*ids) * (size_t)n);
	pair_greedy(&a->r.sampling);
	a->r.n_ids = a->r.n_prompt = n;
	a->r.max_total = n + OUT;
	a->r.k = k;
	a->r.sampling.logprobs = 0; /* a token hides what a log-probability shows */
	a->r.cache = 1;
}

static void on_draft(void *ctx, int slot, const struct td_draft *d)
{
	struct group *g = ctx;

	for (int i = 0; i < g->n; i++)
		if (g->ask[i]->r.slot == slot)
			g->ask[i]->draft = XXH3_64bits(d->token, sizeof(*d->token) * (size_t)d->n);
}

static void on_commit(void *ctx, const struct td_record *rec)
{
	struct group *g = ctx;

	for (int i = 0; i < g->n; i++) {
		struct ask *a = g->ask[i];
		const struct td_verdict *v;

		if (a->r.request != rec->request)
			continue;
		if (rec->drafted)
			a->drafts = a->drafts * 31 + a->draft;
		v = &td_shm_slot(g->pair->shm, rec->slot)->verdict[rec->b % TD_VERDICTS];
		if (a->r.sampling.logprobs >= 0)
			for (int j = 0; j < rec->n; j++) {
				a->logprobs = a->logprobs * 31 + XXH3_64bits(&v->logprob[j], sizeof(v->logprob[j]));
				a->logprobs = a->logprobs * 31 + XXH3_64bits(v->top_logprob[j], sizeof(float) * (size_t)v->n_top);
			}
	}
}

static void run(struct pair *p, struct ask *const *a, int n)
{
	struct group g = {.pair = p, .n = n};
	struct pair_hooks hooks = {.ctx = &g, .draft = on_draft, .commit = on_commit};
	struct pair_request r[SLOTS];
	int open = n;

	for (int i = 0; i < n; i++) {
		g.ask[i] = a[i];
		a[i]->r.ids = a[i]->ids;
		a[i]->r.out = a[i]->out;
		a[i]->r.cache = a[i]->r.cache && p == &kept;
		a[i]->drafts = a[i]->logprobs = a[i]->draft = 0;
		pair_submit(p, &a[i]->r, i);
		r[i] = a[i]->r;
	}
	while (open) {
		if (!pair_step(p, r, n, &hooks)) {
			printf("nothing moves\n");
			exit(1);
		}
		open = 0;
		for (int i = 0; i < n; i++) {
			a[i]->r = r[i];
			open += !r[i].finish;
		}
	}
}

static void differ(const char *what, const struct ask *want, const struct ask *got)
{
	int i = 0;

	checks++;
	while (i < want->r.n_out && i < got->r.n_out && want->out[i] == got->out[i])
		i++;
	if (want->r.n_out == got->r.n_out && i == want->r.n_out && want->r.finish == got->r.finish && want->drafts == got->drafts &&
	    want->r.accepted == got->r.accepted && want->r.drafted == got->r.drafted && want->r.cycles == got->r.cycles && want->logprobs == got->logprobs)
		return;
	failures++;
	printf("%s: prompt of %d, k %d, %d cached: differs at token %d of %d/%d; finish %d/%d, drafts %s, accepted %d/%d of %d/%d, log-probabilities %s\n", what,
	       got->r.n_prompt, got->r.k, got->r.cached, i, got->r.n_out, want->r.n_out, got->r.finish, want->r.finish,
	       want->drafts == got->drafts ? "same" : "differ", got->r.accepted, want->r.accepted, got->r.drafted, want->r.drafted,
	       want->logprobs == got->logprobs ? "same" : "differ");
}

/* What a request gives alone, without a cache. Several ask the same: kept. */
static void alone(const struct ask *a, struct ask *want)
{
	enum { KNOWN = 6 };
	static struct ask known[KNOWN];
	static int next;

	for (int i = 0; i < KNOWN; i++)
		if (known[i].r.n_out && known[i].r.n_ids == a->r.n_ids && known[i].r.n_prompt == a->r.n_prompt && known[i].r.max_total == a->r.max_total &&
		    known[i].r.k == a->r.k && !memcmp(&known[i].r.sampling, &a->r.sampling, sizeof(a->r.sampling)) &&
		    !memcmp(known[i].ids, a->ids, sizeof(*a->ids) * (size_t)a->r.n_ids)) {
			*want = known[i];
			return;
		}
	*want = *a;
	run(&plain, &want, 1);
	known[next++ % KNOWN] = *want;
}

/* The same requests, each alone without a cache, then together with one; got[i] keeps what the cached run gave. */
static void compare(const char *what, struct ask *const *got, int n)
{
	static struct ask want[SLOTS];

	for (int i = 0; i < n; i++)
		alone(got[i], &want[i]);
	run(&kept, got, n);
	for (int i = 0; i < n; i++) {
		differ(what, &want[i], got[i]);
		EQUAL("tokens computed and cached", got[i]->r.prefilled + got[i]->r.cached, got[i]->r.n_prompt);
		check(got[i]->r.cached % unit == 0 && got[i]->r.cached < got[i]->r.n_prompt, "cached", got[i]->r.cached, got[i]->r.n_prompt);
		check(got[i]->r.charge_us > 0 && got[i]->r.wasted_us <= got[i]->r.charge_us, "wasted", (long long)got[i]->r.wasted_us,
		      (long long)got[i]->r.charge_us);
	}
}

static void one(const char *what, struct ask *a)
{
	compare(what, &a, 1);
}

static void reopen(struct pair *p, int states, int pages)
{
	struct pair_options o = options;

	o.context = context;
	o.chunk = chunk;
	o.prefix_states = states;
	o.kv_pages = pages;
	if (p->ops)
		pair_close(p);
	pair_open(p, &o);
}

static const int32_t *text(int i)
{
	return pool.id + i * 613 % ((int)pool.n - 1200);
}

/* Appends n tokens of a text to a prompt. */
static int append(int32_t *ids, int n, const int32_t *more, int m)
{
	memcpy(ids + n, more, sizeof(*ids) * (size_t)m);
	return n + m;
}

/* ---- chats -------------------------------------------------------------------------------------------------------------------------------- */

/* Three chats that begin with one system prompt, turn by turn, side by side; each turn's prompt is the last one, its answer and something new. */
static void chats(void)
{
	static const int widths[SLOTS] = {4, 0, 15, 3};
	static struct ask a[SLOTS];
	struct ask *list[SLOTS] = {&a[0], &a[1], &a[2], &a[3]};
	static int32_t ids[SLOTS][MOST];
	int n[SLOTS], system = unit + 37, last[SLOTS] = {0};

	pair_new_epoch(&kept);
	for (int i = 0; i < SLOTS; i++)
		n[i] = append(ids[i], append(ids[i], 0, text(0), system), text(i + 1), unit / 2 + 11 * i);
	for (int turn = 0; turn < 2 + full; turn++) {
		for (int i = 0; i < SLOTS; i++) {
			ask(&a[i], ids[i], n[i], widths[i]);
			a[i].r.sampling.logprobs = i % 2 ? 3 : 0;
			if (i == 3) {
				a[i].r.sampling.temperature = 0.7f;
				a[i].r.sampling.seed = (uint64_t)turn + 5;
			}
		}
		compare("chats", list, SLOTS);
		for (int i = 0; i < SLOTS; i++) {
			if (turn)
				EQUAL("cached of a later turn", a[i].r.cached, last[i]);
			last[i] = (n[i] - 1) / unit * unit;
			n[i] = append(ids[i], n[i], a[i].out, a[i].r.n_out);
			n[i] = append(ids[i], n[i], text(10 * turn + i), unit / 2 + 60);
		}
	}
	/* one more with that system prompt, for which a state was left where the others part */
	n[0] = append(ids[0], append(ids[0], 0, text(0), system), text(20), 2 * unit);
	ask(&a[0], ids[0], n[0], 15);
	one("a further chat", &a[0]);
	EQUAL("its system prompt", a[0].r.cached, unit);
	/* the same again: all but what comes after the last edge */
	ask(&a[0], ids[0], n[0], 15);
	one("again", &a[0]);
	EQUAL("its whole prompt", a[0].r.cached, (n[0] - 1) / unit * unit);
}

/* Who may not use it, and what speculation needs. */
static void apart(void)
{
	static struct ask a;
	int n = 2 * unit + 1;

	pair_new_epoch(&kept);
	ask(&a, text(1), n, 0);
	a.r.cache = 0;
	one("no cache", &a);
	ask(&a, text(1), n, 0);
	one("without drafts", &a);
	EQUAL("after one that left nothing", a.r.cached, 0);
	ask(&a, text(1), n, 0);
	a.r.cache = 0;
	one("no cache", &a);
	EQUAL("a request that must not use it", a.r.cached, 0);
	ask(&a, text(1), n, 0);
	a.r.tenant = 7;
	one("another tenant", &a);
	EQUAL("another tenant", a.r.cached, 0);
	ask(&a, text(1), n, 15);
	one("drafts over pages that the drafter never saw", &a);
	EQUAL("pages that the drafter never saw", a.r.cached, 0);
	ask(&a, text(1), n, 15);
	one("drafts over pages that both filled", &a);
	EQUAL("pages that both filled", a.r.cached, 2 * unit);
	check(a.r.wasted_us > 0, "wasted by rejected drafts", (long long)a.r.wasted_us, 1);
	ask(&a, text(1), n, 0);
	one("no drafts over them", &a);
	EQUAL("without drafts", a.r.cached, 2 * unit);
	/* ends with its first token: the drafter must have followed all the same */
	ask(&a, text(2), n, 4);
	a.r.max_total = n + 1;
	one("one token", &a);
	ask(&a, text(2), n, 4);
	one("after one that ended with its first token", &a);
	EQUAL("after one token", a.r.cached, 2 * unit);
}

/* The same prompt four times at once: the first computes it, the others come after it. */
static void copies(void)
{
	static struct ask a[SLOTS];
	struct ask *list[SLOTS];

	pair_new_epoch(&kept);
	for (int i = 0; i < SLOTS; i++) {
		list[i] = &a[i];
		ask(&a[i], text(3), 2 * unit + 40, i * 5);
	}
	list[0]->r.k = 3;
	compare("four at once", list, SLOTS);
	for (int i = 1; i < SLOTS && chunk == unit; i++)
		EQUAL("of a copy", a[i].r.cached, 2 * unit);
}

/* A second life after a crash: the prompt from the cache, what was committed by blocks. */
static void second_life(void)
{
	static struct ask a, whole;
	int n = unit + 50;

	pair_new_epoch(&kept);
	ask(&whole, text(4), n, 4);
	one("first life", &whole);
	for (int cut = 1; cut < OUT; cut += 3) {
		ask(&a, text(4), n, 15);
		append(a.ids, n, whole.out, cut);
		a.r.n_ids = n + cut;
		a.r.max_total = n + OUT;
		one("second life", &a);
		EQUAL("of a second life", a.r.cached, unit);
		checks++;
		if (memcmp(a.out, whole.out + cut, sizeof(*a.out) * (size_t)(OUT - cut)) || a.r.n_out != OUT - cut) {
			failures++;
			printf("second life: goes on otherwise than the first\n");
		}
	}
}

/* ---- what goes wrong ---------------------------------------------------------------------------------------------------------------------- */

/* Cancelled after every number of steps, with a drafter that comes late; then the same prompt must come out as ever, and its slot's next one. */
static void cancels(void)
{
	static struct ask a, b, want;
	struct ask *list = &want;
	static const int after[] = {0, 1, 3, 4, 7, 2, 3, 5, 6, 8}; /* 1 or 3: the last edge was computed, and the drafter is behind */
	int n = 3 * unit + 21, hit = 0;

	pair_new_epoch(&kept);
	ask(&want, text(5), n, 15);
	run(&plain, &list, 1);
	for (int turn = 0; turn < 5 + 5 * full; turn++) {
		int steps = after[turn];

		kept.lazy = steps != 4;
		ask(&a, text(5), n, 15);
		a.r.tenant = turn == 4 ? (uint64_t)turn - 1 : (uint64_t)turn; /* mostly from the beginning */
		a.r.ids = a.ids;
		a.r.out = a.out;
		pair_submit(&kept, &a.r, 0);
		for (int i = 0; i < steps && !a.r.finish; i++)
			pair_step(&kept, &a.r, 1, NULL);
		pair_cancel(&kept, &a.r);
		ask(&b, text(5), n, 15);
		b.r.tenant = a.r.tenant;
		list = &b;
		while (!a.r.finish)
			pair_step(&kept, &a.r, 1, NULL);
		run(&kept, &list, 1);
		differ("after a cancel", &want, &b);
		hit += b.r.cached > 0;
	}
	kept.lazy = 0;
	check(hit > 1, "hits after cancels", hit, 2);
}

/* A pool that holds little more than what runs, few checkpoints, many prompts: all the time something is evicted. */
static void evictions(void)
{
	static struct ask a[SLOTS];
	struct ask *list[SLOTS];
	unsigned seed = 9;
	int hits = 0, longest = unit + unit * full, most = (longest + 2 * unit + 60 + OUT + TD_PAGE) / TD_PAGE;

	reopen(&kept, 3, most * 2);
	for (int round = 0; round < 4 + 14 * full; round++) {
		int n = 1 + rand_r(&seed) % 2;

		kept.lazy = round & 1;
		for (int i = 0; i < n; i++) {
			static int32_t ids[MOST];
			int which = rand_r(&seed) % 5, common = unit * (rand_r(&seed) % 3) + rand_r(&seed) % 40;

			common = append(ids, 0, text(which % 2), common);
			ask(&a[i], ids, append(ids, common, text(which), 20 + rand_r(&seed) % longest), rand_r(&seed) % 3 * 7);
			a[i].r.turn = rand_r(&seed) % 3u;
			list[i] = &a[i];
		}
		compare("evictions", list, n);
		for (int i = 0; i < n; i++)
			hits += a[i].r.cached > 0;
	}
	kept.lazy = 0;
	check(hits > 0, "hits", hits, 1);
	check(atomic_load(&kept.shm->stats_target.prefix_evicted) > 0, "evicted", (long long)atomic_load(&kept.shm->stats_target.prefix_evicted), 1);
	check(atomic_load(&kept.shm->stats_target.prefix_states) <= 3, "states", (long long)atomic_load(&kept.shm->stats_target.prefix_states), 3);
	EQUAL("hits told", (long long)atomic_load(&kept.shm->stats_target.prefix_hits), hits);
}

/* Edges inside of a step: it is one step all the same, and each keeps the state of its own place. */
static void edges(void)
{
	static struct ask a;
	static int32_t ids[MOST];
	int n = append(ids, append(ids, 0, text(6), unit), text(8), unit + 40);
	uint64_t steps;

	pair_new_epoch(&kept);
	ask(&a, text(6), 2 * unit + 40, 0); /* leaves the last edge's state */
	steps = atomic_load(&kept.shm->stats_target.progress);
	a.r.ids = a.ids;
	a.r.out = a.out;
	pair_submit(&kept, &a.r, 0);
	while (!a.r.n_out)
		pair_step(&kept, &a.r, 1, NULL);
	EQUAL("steps of a prompt that fits a step", (long long)(atomic_load(&kept.shm->stats_target.progress) - steps), 1);
	while (!a.r.finish)
		pair_step(&kept, &a.r, 1, NULL);
	ask(&a, text(6), 2 * unit + 40, 0);
	one("from the last edge", &a);
	EQUAL("from the last edge", a.r.cached, 2 * unit);
	ask(&a, ids, n, 0); /* leaves two states, that of the branch first */
	one("a branch", &a);
	EQUAL("of a branch without a state", a.r.cached, 0);
	ask(&a, ids, n, 0);
	one("from a branch's last edge", &a);
	EQUAL("from a branch's last edge", a.r.cached, 2 * unit);
	ask(&a, ids, append(ids, unit, text(9), unit + 3), 0);
	one("from the branch", &a);
	EQUAL("from the branch", a.r.cached, unit);
}

/* A worker dies: both drop everything, the cache too, and begin again. */
static void epochs(void)
{
	static struct ask a;
	int n = 2 * unit + 9;

	pair_new_epoch(&kept);
	for (int i = 0; i < 2 + full; i++) {
		ask(&a, text(1), n, 15);
		one("before", &a);
		EQUAL("in a new epoch", a.r.cached, 0);
		ask(&a, text(1), n, 15);
		one("hit", &a);
		EQUAL("once something is there", a.r.cached, 2 * unit);
		ask(&a, text(i + 2), n, 15);
		a.r.ids = a.ids;
		a.r.out = a.out;
		pair_submit(&kept, &a.r, 1);
		for (int s = 0; s < i + 1; s++)
			pair_step(&kept, &a.r, 1, NULL);
		pair_new_epoch(&kept);
		EQUAL("states after it", (long long)atomic_load(&kept.shm->stats_target.prefix_states), 0);
		EQUAL("pages after it", (long long)atomic_load(&kept.shm->stats_target.prefix_pages), 0);
	}
}

/* A record that names a page that is not there, or a context that is not: the drafter refuses it rather than use it. */
static void lies(void)
{
	static struct ask a;

	for (int lie = 0; lie < 4; lie++) {
		struct td_error err = {0};
		struct td_step_entry *e;
		int32_t *row;

		pair_new_epoch(&kept);
		ask(&a, text(1), unit + 5, 15);
		a.r.ids = a.ids;
		a.r.out = a.out;
		pair_submit(&kept, &a.r, 0);
		if (td_target_work(kept.target, &err) != 1)
			EQUAL("a step", err.code, 0);
		row = td_shm_table(kept.shm, 1, 0);
		e = &kept.shm->step[1].entry[0];
		EQUAL("begins", e->begins, 1);
		if (lie == 0)
			row[0] = kept.shm->cfg.slots * kept.shm->cfg.context / TD_PAGE;
		else if (lie == 1)
			row[1] = -1;
		else if (lie == 2)
			e->begins = 0;
		else
			e->pos0 = context;
		EQUAL("the drafter", td_drafter_work(kept.drafter, &err), TD_E_INTERNAL);
	}
}

/* ---- order and cost ----------------------------------------------------------------------------------------------------------------------- */

/* Two long prompts: the one with the lesser turn is computed first, also when it came later. */
static void turns(void)
{
	static struct ask a[2];
	struct pair_request r[2];

	pair_new_epoch(&kept);
	for (int first = 0; first < 2; first++) {
		for (int i = 0; i < 2; i++) {
			ask(&a[i], text(i + 2), 2 * chunk, 0);
			a[i].r.ids = a[i].ids;
			a[i].r.out = a[i].out;
			a[i].r.cache = 0;
			a[i].r.turn = (uint64_t)(i == first ? 5 : 6);
			pair_submit(&kept, &a[i].r, i);
			r[i] = a[i].r;
		}
		pair_step(&kept, r, 2, NULL);
		EQUAL("computed of the one whose turn it is", r[first].prefilled, chunk);
		EQUAL("computed of the other", r[!first].prefilled, 0);
		atomic_store(&td_shm_slot(kept.shm, first)->turn, 9);
		pair_step(&kept, r, 2, NULL);
		EQUAL("computed after the turn changed", r[!first].prefilled, chunk);
		while (!r[0].finish || !r[1].finish)
			pair_step(&kept, r, 2, NULL);
	}
}

/* A long prompt beside one who decodes, in parts of 512 at most so that the other has its next token soon; alone, in whole chunks. */
static void beside(void)
{
	enum { LONG = 1100, PART = 512 };
	static struct ask a[2];
	struct pair_request *r[2] = {&a[0].r, &a[1].r}, both[2];

	ask(&a[0], text(1), 20, 0);
	ask(&a[1], text(2), LONG, 0);
	for (int i = 0; i < 2; i++) {
		r[i]->ids = a[i].ids;
		r[i]->out = a[i].out;
		r[i]->cache = 0;
	}
	pair_submit(&kept, r[0], 0);
	pair_step(&kept, r[0], 1, NULL);
	EQUAL("tokens of the one who decodes", r[0]->n_out, 1);
	pair_submit(&kept, r[1], 1);
	both[0] = *r[0];
	both[1] = *r[1];
	while (!both[1].prefilled)
		pair_step(&kept, both, 2, NULL);
	EQUAL("computed beside one who decodes", both[1].prefilled, PART);
	pair_cancel(&kept, &both[0]);
	while (both[1].prefilled == PART)
		pair_step(&kept, both, 2, NULL);
	EQUAL("computed in two steps", both[1].prefilled, LONG);
	while (!both[1].finish)
		pair_step(&kept, both, 2, NULL);
}

/* A second turn after a long history: what is left to compute, and how long the first token takes. */
static void history(int n)
{
	static struct ask a;
	static int32_t ids[MOST];
	uint64_t us[2];
	int prefilled[2];

	append(ids, 0, pool.id, n);
	for (int turn = 0; turn < 2; turn++) {
		if (turn)
			n = append(ids, append(ids, n, a.out, a.r.n_out), text(7), 30);
		ask(&a, ids, n, 15);
		a.r.ids = a.ids;
		a.r.out = a.out;
		us[turn] = td_now_us();
		pair_submit(&kept, &a.r, 0);
		while (!a.r.n_out)
			pair_step(&kept, &a.r, 1, NULL);
		us[turn] = td_now_us() - us[turn];
		while (!a.r.finish)
			pair_step(&kept, &a.r, 1, NULL);
		prefilled[turn] = a.r.prefilled;
	}
	printf("a prompt of %d tokens computes %d in %.1f ms, the next turn %d in %.1f ms: %.1fx fewer, first token %.1fx earlier\n", n - 30 - OUT, prefilled[0],
	       (double)us[0] / 1e3, prefilled[1], (double)us[1] / 1e3, (double)prefilled[0] / prefilled[1], (double)us[0] / (double)us[1]);
	check(prefilled[0] >= 10 * prefilled[1], "tokens computed by the next turn", prefilled[1], prefilled[0] / 10);
}

static void part(const char *name, void (*run_part)(void))
{
	uint64_t began = td_now_us();

	run_part();
	printf("%-12s chunk %4d: %d checks, %d failures so far, %.1f s\n", name, chunk, checks, failures, (double)(td_now_us() - began) / 1e6);
	fflush(stdout);
}

/* Steps of several units, so that edges lie inside of them. */
static void wide(void)
{
	chunk = 3 * unit;
	reopen(&plain, 0, 0);
	reopen(&kept, 16, 0);
	part("chats", chats);
	part("copies", copies);
	part("edges", edges);
	part("evictions", evictions);
}

static void all(void)
{
	unit = chunk < 256 ? 64 : 256;
	context = unit == 64 ? 1024 : 2560;
	reopen(&plain, 0, 0);
	reopen(&kept, 16, 0);
	part("chats", chats);
	part("apart", apart);
	part("copies", copies);
	part("second_life", second_life);
	part("cancels", cancels);
	part("epochs", epochs);
	part("lies", lies);
	part("turns", turns);
	part("evictions", evictions);
}

int main(int argc, char **argv)
{
	const char *tokenizer = "models/tiny/tokenizer.json";
	struct td_tokenizer *tok;
	struct td_error err;
	int only = 0, long_history = 0;

	for (int i = 1; i + 1 < argc; i += 2) {
		const char **word = !strcmp(argv[i], "--device") ? &options.device : !strcmp(argv[i], "--target") ? &options.target_dir :
				    !strcmp(argv[i], "--drafter") ? &options.drafter_dir : !strcmp(argv[i], "--tokenizer") ? &tokenizer : NULL;

		if (word)
			*word = argv[i + 1];
		else if (!strcmp(argv[i], "--chunk"))
			only = atoi(argv[i + 1]);
		else if (!strcmp(argv[i], "--history"))
			long_history = atoi(argv[i + 1]);
		else if (!strcmp(argv[i], "--activations"))
			options.form = td_form_activations(argv[i + 1], options.device, options.form);
		else if (!strcmp(argv[i], "--full"))
			full = atoi(argv[i + 1]);
	}
	if (td_tokenizer_load(tokenizer, &tok, &err)) {
		fprintf(stderr, "%s\n", err.text);
		return 1;
	}
	prompts_long(&pool, tok, 6000);
	for (int i = 0; i < 3; i++) {
		static const int sizes[] = {64, 256, 1024};

		chunk = sizes[i];
		if (only ? chunk == only : !i) {
			all();
			wide();
		}
	}
	chunk = 1024;
	context = 1152;
	reopen(&kept, 0, 0);
	part("beside", beside);
	context = long_history ? long_history + 128 : 1024;
	context = (context + 63) / 64 * 64;
	chunk = long_history ? 256 : 64;
	reopen(&kept, 8, 0);
	history(long_history ? long_history : 900);
	pair_close(&plain);
	pair_close(&kept);
	td_ids_finish(&pool);
	td_tokenizer_free(tok);
	printf("%d checks, %d failures\n", checks, failures);
	return failures || !checks;
}
