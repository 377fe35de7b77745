/*
 * fake_worker.c: a worker without a model, for testing tandemd: the real control channel, descriptors, rings, steps, flags and epochs, with tokens that
 * anybody can predict. Its role follows from the name of the control socket (target.ipc, drafter.ipc).
 *
 * Tokens: the answer repeats the prompt: output token i is prompt[(i + shift) % n_prompt], shift = seed with a temperature, else 0. So a test
 * chooses the answer's text by the prompt, and a request that is fed again after a crash must come out the same.
 *
 * Device time: a step takes step_us (1 us a row when that is 0), shared out by rows: prompt tokens, and drafts + 1. A step takes at most a chunk of
 * prompt tokens, of the slots with the least turn first.
 *
 * Told "cuda", the exchange region is "device memory": the target's Ready has a handle that names its process, and the drafter wants that of a
 * living one, when it starts and before each step: what it would otherwise touch is not there any more.
 *
 * Misbehaviour is set in FAKE_TARGET and FAKE_DRAFTER, words separated by commas:
 *   step_us=N     a step takes so long                       load_ms=N      loading takes so long
 *   exit          ends at once                               fail=CODE      Failure instead of Ready
 *   hang          never says Hello                           hang_load      never gets Ready
 *   crash_at=N    aborts at its N-th step                    hang_at=N      stops at its N-th step
 *   poison=ID     aborts at a step with a prompt that begins with this id
 *   bad=WHAT      from the 3rd commit on: slot, epoch, run, count, position, token, missing, kind, done, refuse, head (of the ring)
 *   version=N     in Hello                                   forget         does not take over the arena
 *   text=WORDS    what Failure says (no commas)                print=N        N lines to stderr when ready, and half a one when it dies
 *   fault_at=N    Failure "device" at its N-th step, as after a GPU's fault
 *   gpu_only=CODE this Failure when told cuda                  mps_only=CODE  this Failure under MPS
 *   no_handle     Ready without the handle
 *   once=FILE     all of this only for the process that creates FILE
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "engine/clock.h"
#include "engine/control.h"
#include "engine/model.h"
#include "engine/shm.h"

enum { FD_SOCK = 3, ARENA_BYTES = 8192, WAIT_MS = 20 };
#define ARENA_TEXT "an arena of the fake worker"

struct slot {
	int busy, paused, prefilled;
	uint64_t request;
	int total; /* prompt and output */
	uint32_t commits;
	uint32_t draft_step; /* wait for the drafter to have done this one */
	int rows; /* of the step that is being made */
	uint32_t us; /* what they cost */
};

static struct {
	int is_target;
	const char *name, *spec;
	struct td_control control;
	struct td_shm *shm;
	struct td_worker_stats *stats;
	struct td_bell *bell;
	struct td_ring *out;
	int shm_fd, events_fd, arena_fd;
	char fingerprint[256]; /* of the folder, as a real one's would be */
	uint32_t epoch, step;
	uint64_t steps, commits;
	int draining, gpu;
	uint8_t handle[TD_HANDLE_BYTES]; /* of the exchange region */
	struct slot slot[TD_SLOTS_MAX];
} w;

/* ---- the lever ----------------------------------------------------------------------------------------------------------------------- */

static const char *lever(const char *name)
{
	size_t n = strlen(name);

	for (const char *p = w.spec; p && *p; p += strcspn(p, ","), p += *p == ',')
		if (!strncmp(p, name, n) && (p[n] == '=' || p[n] == ',' || !p[n]))
			return p[n] == '=' ? p + n + 1 : "";
	return NULL;
}

static long number(const char *name, long otherwise)
{
	const char *v = lever(name);

	return v ? strtol(v, NULL, 10) : otherwise;
}

static int is(const char *name, const char *value)
{
	const char *v = lever(name);

	return v && !strncmp(v, value, strlen(value)) && (v[strlen(value)] == ',' || !v[strlen(value)]);
}

static void read_levers(void)
{
	static char file[512];
	const char *once;

	w.spec = getenv(w.is_target ? "FAKE_TARGET" : "FAKE_DRAFTER");
	once = lever("once");
	if (!once)
		return;
	snprintf(file, sizeof(file), "%.*s", (int)strcspn(once, ","), once);
	int fd = open(file, O_CREAT | O_EXCL | O_WRONLY, 0600);

	if (fd < 0)
		w.spec = NULL;
	else
		close(fd);
}

static void hang(void)
{
	for (;;)
		pause();
}

static void sleep_us(long us)
{
	if (us > 0)
		usleep((useconds_t)us);
}

static void must(int rc, const struct td_error *err)
{
	if (rc >= 0)
		return;
	fprintf(stderr, "fake %s: %s\n", w.name, err->text);
	_exit(3);
}

/* ---- control ------------------------------------------------------------------------------------------------------------------------- */

static void say(Tandem__Worker__Message *m, Tandem__Worker__Message__BodyCase body)
{
	struct td_error err;

	m->body_case = body;
	must(td_control_send(&w.control, m, &err), &err);
}

static void say_hello(void)
{
	Tandem__Worker__Hello h = TANDEM__WORKER__HELLO__INIT;
	Tandem__Worker__Message m = TANDEM__WORKER__MESSAGE__INIT;

	h.version = (uint32_t)number("version", TD_SHM_VERSION);
	h.role = w.is_target ? TANDEM__WORKER__ROLE__TARGET : TANDEM__WORKER__ROLE__DRAFTER;
	h.pid = (uint32_t)getpid();
	m.hello = &h;
	say(&m, TANDEM__WORKER__MESSAGE__BODY_HELLO);
}

static void say_progress(uint64_t done, uint64_t total)
{
	Tandem__Worker__Progress p = TANDEM__WORKER__PROGRESS__INIT;
	Tandem__Worker__Message m = TANDEM__WORKER__MESSAGE__INIT;

	p.stage = (char *)"pretending";
	p.done = done;
	p.total = total;
	m.progress = &p;
	say(&m, TANDEM__WORKER__MESSAGE__BODY_PROGRESS);
}

static void say_failure(const char *code)
{
	Tandem__Worker__Failure f = TANDEM__WORKER__FAILURE__INIT;
	Tandem__Worker__Message m = TANDEM__WORKER__MESSAGE__INIT;
	char name[64], text[256] = "the fake worker was told to fail";

	snprintf(name, sizeof(name), "%.*s", (int)strcspn(code, ","), code);
	f.code = name;
	if (lever("text"))
		snprintf(text, sizeof(text), "%.*s", (int)strcspn(lever("text"), ","), lever("text"));
	f.text = text;
	m.failure = &f;
	say(&m, TANDEM__WORKER__MESSAGE__BODY_FAILURE);
	_exit(1);
}

/* A new arena, or the predecessor's when it holds what it should. 1 when taken over. */
static int arena(void)
{
	static char text[] = ARENA_TEXT;
	Tandem__Worker__Arena a = TANDEM__WORKER__ARENA__INIT;
	Tandem__Worker__Message m = TANDEM__WORKER__MESSAGE__INIT;
	struct td_error err;
	char found[sizeof(text)] = "";
	uint64_t checksum = 42;

	if (w.arena_fd >= 0 && !lever("forget") && pread(w.arena_fd, found, sizeof(found), 0) == (ssize_t)sizeof(found) && !strcmp(found, text))
		return 1;
	w.arena_fd = memfd_create("fake-arena", MFD_CLOEXEC);
	if (w.arena_fd < 0 || ftruncate(w.arena_fd, ARENA_BYTES) < 0 || pwrite(w.arena_fd, text, sizeof(text), 0) < 0)
		_exit(3);
	a.name = (char *)w.name;
	a.size = ARENA_BYTES;
	a.fingerprint = w.fingerprint;
	a.block = 4096;
	a.n_checksum = 1;
	a.checksum = &checksum;
	m.arena = &a;
	if (!w.is_target) { /* both orders must do */
		must(td_fd_send(FD_SOCK, w.arena_fd, w.name, &err), &err);
		say(&m, TANDEM__WORKER__MESSAGE__BODY_ARENA);
	} else {
		say(&m, TANDEM__WORKER__MESSAGE__BODY_ARENA);
		must(td_fd_send(FD_SOCK, w.arena_fd, w.name, &err), &err);
	}
	return 0;
}

static void say_ready(int imported)
{
	Tandem__Worker__Ready r = TANDEM__WORKER__READY__INIT;
	Tandem__Worker__Message m = TANDEM__WORKER__MESSAGE__INIT;

	r.device = (char *)(w.gpu ? "pretence of a GPU" : "pretence");
	r.weights_bytes = ARENA_BYTES;
	r.cache_bytes = 4096;
	r.load_us = 1000;
	r.imported = imported;
	if (w.gpu && w.is_target && !lever("no_handle")) {
		snprintf((char *)w.handle, sizeof(w.handle), "%d", (int)getpid());
		r.has_exchange = 1;
		r.exchange = (ProtobufCBinaryData){sizeof(w.handle), w.handle};
	}
	m.ready = &r;
	say(&m, TANDEM__WORKER__MESSAGE__BODY_READY);
}

/* The region can be touched: its owner lives. */
static void touch_exchange(void)
{
	if (w.is_target || !w.gpu)
		return;
	if (kill((pid_t)atoi((char *)w.handle), 0) < 0) {
		fprintf(stderr, "fake drafter: the exchange region of process %s is gone\n", (char *)w.handle);
		say_failure("device");
	}
}

static void take_device(const Tandem__Worker__Configure *c)
{
	w.gpu = !strcmp(c->device, "cuda");
	if (w.gpu && lever("gpu_only"))
		say_failure(lever("gpu_only"));
	if (getenv("CUDA_MPS_PIPE_DIRECTORY") && lever("mps_only"))
		say_failure(lever("mps_only"));
	if (w.gpu == w.shm->cfg.host_exchange || c->has_exchange != (w.gpu && !w.is_target) || (c->has_exchange && c->exchange.len != sizeof(w.handle)))
		_exit(10);
	if (c->has_exchange)
		memcpy(w.handle, c->exchange.data, sizeof(w.handle));
	touch_exchange();
}

static void print_lines(void)
{
	char env[] = "CUDA_MPS_PIPE_DIRECTORY";
	long n = number("print", 0);

	for (long i = 0; i < n; i++)
		fprintf(stderr, "line %ld of %ld\n", i + 1, n);
	if (n)
		fprintf(stderr, "MPS folder: %s, share: %s\n", getenv(env) ? getenv(env) : "none",
			getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") ? getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") : "all");
}

static void step_levers(void)
{
	touch_exchange();
	w.steps++;
	if (number("crash_at", -1) == (long)w.steps) {
		if (lever("print"))
			fprintf(stderr, "%4000s last words", "");
		abort();
	}
	if (number("hang_at", -1) == (long)w.steps)
		hang();
	if (number("fault_at", -1) == (long)w.steps)
		say_failure("device");
}

static void take_fds(const Tandem__Worker__Configure *c)
{
	int wanted = 2 + (c->own != NULL) + (c->target != NULL) + (c->vocab != 0);
	struct td_error err;

	w.arena_fd = -1;
	while (wanted--) {
		char name[32];
		int fd;

		must(td_fd_recv(FD_SOCK, &fd, name, 5000, &err), &err);
		if (!strcmp(name, "shm"))
			w.shm_fd = fd;
		else if (!strcmp(name, "events"))
			w.events_fd = fd;
		else if (!strcmp(name, w.name))
			w.arena_fd = fd;
		else if (strcmp(name, "peer") && strcmp(name, "vocab"))
			_exit(4);
	}
	must(td_shm_map(w.shm_fd, &w.shm, &err), &err);
}

static void start(const char *path)
{
	Tandem__Worker__Message *m = NULL;
	struct td_error err;
	long load_ms;

	if (lever("exit"))
		_exit(7);
	if (lever("hang"))
		hang();
	must(td_control_connect(&w.control, path, &err), &err);
	say_hello();
	must(td_control_recv(&w.control, &m, 10000, &err) == 1 ? 0 : -1, &err);
	if (m->body_case != TANDEM__WORKER__MESSAGE__BODY_CONFIGURE)
		_exit(5);
	if (!w.is_target && !m->configure->target)
		_exit(6); /* the drafter must be told of the target's arena */
	w.epoch = m->configure->epoch;
	must(td_weights_fingerprint(&(struct td_ops){.name = m->configure->device}, m->configure->model_dir, (int)m->configure->form, w.fingerprint, &err), &err);
	take_fds(m->configure);
	take_device(m->configure);
	tandem__worker__message__free_unpacked(m, NULL);
	w.stats = w.is_target ? &w.shm->stats_target : &w.shm->stats_drafter;
	w.bell = w.is_target ? &w.shm->bell_target : &w.shm->bell_drafter;
	w.out = w.is_target ? &w.shm->from_target : &w.shm->from_drafter;
	load_ms = number("load_ms", 0);
	for (long at = 0; at < load_ms; at += 50) {
		say_progress((uint64_t)at, (uint64_t)load_ms);
		sleep_us(50000);
	}
	if (lever("fail"))
		say_failure(lever("fail"));
	if (lever("hang_load"))
		hang();
	print_lines();
	say_ready(arena());
}

static void look_at_control(void)
{
	Tandem__Worker__Message *m;

	if (td_control_recv(&w.control, &m, 0, NULL) != 1)
		return;
	if (m->body_case == TANDEM__WORKER__MESSAGE__BODY_DRAIN)
		w.draining = 1;
	tandem__worker__message__free_unpacked(m, NULL);
}

/* ---- records ------------------------------------------------------------------------------------------------------------------------- */

static void push(struct td_record *rec)
{
	uint64_t one = 1;

	rec->epoch = w.epoch;
	if (is("bad", "epoch") && rec->kind == TD_REC_COMMIT && w.commits >= 3)
		rec->epoch += 7;
	while (!td_ring_push(w.out, rec) && atomic_load(&w.shm->epoch) == w.epoch)
		sleep_us(200);
	if (write(w.events_fd, &one, sizeof(one)) < 0) {
		/* full of wake-ups: it wakes anyway */
	}
}

static void reset(void)
{
	struct td_record rec = {.kind = TD_REC_RESET_DONE};

	memset(w.slot, 0, sizeof(w.slot));
	w.epoch = atomic_load(&w.shm->epoch);
	w.step = 0;
	push(&rec);
}

static void done(int i, int reason)
{
	struct td_record rec = {.kind = TD_REC_DONE, .slot = (uint16_t)i, .request = w.slot[i].request, .reason = (uint16_t)reason};

	memset(&w.slot[i], 0, sizeof(w.slot[i]));
	push(&rec);
}

static int32_t token_at(const struct td_slot_area *a, const int32_t *ids, int p)
{
	uint64_t shift = a->sampling.temperature > 0 ? a->sampling.seed : 0;

	return ids[((uint64_t)(p - a->n_prompt) + shift) % (uint64_t)a->n_prompt];
}

static int is_stop(const struct td_slot_area *a, int32_t id)
{
	for (int i = 0; i < a->n_stop; i++)
		if (a->stop[i] == id)
			return 1;
	return 0;
}

/* Spoils a record as told. */
static void spoil(struct td_record *rec)
{
	if (w.commits++ < 3)
		return;
	rec->slot = is("bad", "slot") ? 9999 : rec->slot;
	rec->request += is("bad", "run");
	rec->n = is("bad", "count") ? 4000 : rec->n;
	rec->a += (uint32_t)is("bad", "position");
	rec->token[0] = is("bad", "token") ? 1 << 30 : rec->token[0];
	rec->b += (uint32_t)is("bad", "missing");
	rec->kind = is("bad", "kind") ? 77 : is("bad", "done") || is("bad", "refuse") ? TD_REC_DONE : rec->kind;
	if (rec->kind == TD_REC_DONE)
		rec->reason = is("bad", "done") ? TD_FIN_STOP : TD_FIN_ERROR;
	if (is("bad", "head"))
		atomic_fetch_add(&w.out->head, 100000);
}

/* Commits up to n tokens. */
static void commit(int i, int n, int drafted)
{
	struct slot *s = &w.slot[i];
	struct td_slot_area *a = td_shm_slot(w.shm, i);
	const int32_t *ids = td_shm_ids(w.shm, i);
	struct td_verdict *v = &a->verdict[s->commits % TD_VERDICTS];
	struct td_record rec = {.kind = TD_REC_COMMIT, .slot = (uint16_t)i, .request = s->request, .a = (uint32_t)s->total, .b = s->commits++};
	int stopped = 0;

	while (rec.n < n && !stopped && s->total < a->max_total) {
		int32_t id = token_at(a, ids, s->total++);

		v->logprob[rec.n] = -0.25f;
		v->n_top = a->sampling.logprobs > 0 ? a->sampling.logprobs : 0;
		for (int j = 0; j < v->n_top; j++) {
			v->top_id[rec.n][j] = j ? j : id;
			v->top_logprob[rec.n][j] = -0.25f * (float)(j + 1);
		}
		rec.token[rec.n++] = id;
		stopped = is_stop(a, id);
	}
	rec.reason = drafted >= 0;
	rec.drafted = (uint16_t)(drafted > 0 ? drafted : 0);
	rec.accepted = (uint16_t)(drafted > 0 ? rec.n - 1 : 0);
	if (drafted >= 0) {
		rec.us_step = (uint32_t)number("step_us", 0);
		rec.us_charge = s->us;
		rec.us_wasted = s->us * (uint32_t)(rec.drafted - rec.accepted) / (uint32_t)s->rows;
	}
	spoil(&rec);
	push(&rec);
	if (stopped)
		done(i, TD_FIN_STOP);
	else if (s->total >= a->max_total)
		done(i, TD_FIN_LENGTH);
}

/* ---- target -------------------------------------------------------------------------------------------------------------------------- */

static void command(const struct td_record *rec)
{
	struct slot *s = &w.slot[rec->slot];
	const struct td_slot_area *a = td_shm_slot(w.shm, rec->slot);

	if (rec->epoch != w.epoch)
		return;
	if (rec->kind == TD_REC_START) {
		if (s->busy || a->request != rec->request || a->n_tokens < a->n_prompt || a->max_total <= a->n_tokens) {
			fprintf(stderr, "fake target: a START that cannot be: slot %d, %d tokens of %d\n", rec->slot, a->n_tokens, a->max_total);
			_exit(8);
		}
		*s = (struct slot){.busy = 1, .request = rec->request, .total = a->n_tokens};
	}
	if (!s->busy || s->request != rec->request)
		return;
	if (rec->kind == TD_REC_CANCEL)
		done(rec->slot, TD_FIN_CANCELLED);
	else if (rec->kind != TD_REC_START)
		s->paused = rec->kind == TD_REC_PAUSE;
}

/* Waits for a step of the drafter, and says meanwhile that it is not busy itself; 0 when the epoch ended. */
static int wait_drafter(uint32_t step)
{
	atomic_store(&w.stats->busy, 0);
	for (;;) {
		uint32_t seen = atomic_load(&w.bell->count);

		if (atomic_load(&w.shm->drafter.value) >= td_step_value(w.epoch, step))
			break;
		td_bell_wait(w.bell, seen, WAIT_MS);
	}
	atomic_store(&w.stats->busy, 1);
	return atomic_load(&w.shm->epoch) == w.epoch;
}

static int is_prefilling(int i)
{
	return w.slot[i].prefilled < td_shm_slot(w.shm, i)->n_tokens;
}

static int k_of(int i)
{
	return atomic_load(&w.shm->drafter_present) ? td_shm_slot(w.shm, i)->k : 0;
}

/* How many rows of the step each slot gets, and what they cost. */
static void share_out(const int *active, int n)
{
	int total = 0, left = w.shm->cfg.chunk;
	long us = number("step_us", 0);

	for (int i = 0; i < n; i++)
		w.slot[active[i]].rows = is_prefilling(active[i]) ? 0 : 1 + k_of(active[i]);
	while (left > 0) {
		int best = -1;

		for (int i = 0; i < n; i++) {
			int a = active[i];

			if (!w.slot[a].rows && (best < 0 || td_shm_slot(w.shm, a)->turn < td_shm_slot(w.shm, best)->turn ||
						(td_shm_slot(w.shm, a)->turn == td_shm_slot(w.shm, best)->turn && w.slot[a].request < w.slot[best].request)))
				best = a;
		}
		if (best < 0)
			break;
		w.slot[best].rows = td_shm_slot(w.shm, best)->n_tokens - w.slot[best].prefilled;
		if (w.slot[best].rows > left)
			w.slot[best].rows = left;
		left -= w.slot[best].rows;
	}
	for (int i = 0; i < n; i++)
		total += w.slot[active[i]].rows;
	for (int i = 0; i < n; i++)
		w.slot[active[i]].us = (uint32_t)(us ? us * w.slot[active[i]].rows / total : w.slot[active[i]].rows);
}

static void step_of_slot(int i, struct td_step *rec)
{
	struct slot *s = &w.slot[i];
	const struct td_slot_area *a = td_shm_slot(w.shm, i);
	int k = k_of(i), from = s->total;

	if (is_prefilling(i)) {
		struct td_record p = {.kind = TD_REC_PREFILL, .slot = (uint16_t)i, .request = s->request, .n = (uint16_t)s->rows, .us_charge = s->us};

		if (!s->rows)
			return;
		s->prefilled += s->rows;
		p.a = (uint32_t)s->prefilled;
		p.b = (uint32_t)a->n_tokens;
		push(&p);
		if (s->prefilled == a->n_tokens && a->n_tokens == a->n_prompt)
			commit(i, 1, -1);
	} else {
		int accepted = k ? (int)((uint32_t)from * 2654435761u >> 8) % (k + 1) : 0;

		commit(i, 1 + accepted, k);
	}
	if (s->busy && k && s->prefilled == a->n_tokens) {
		rec->entry[rec->n_entries++] = (struct td_step_entry){.request = s->request, .slot = i, .rows = s->total - from, .pos0 = from, .draft = k};
		s->draft_step = w.step;
	}
}

/* One step for all slots. 0 when there is nothing to do. */
static int target_step(void)
{
	int active[TD_SLOTS_MAX], n = 0, present = atomic_load(&w.shm->drafter_present) != 0;
	struct td_step *rec;

	for (int i = 0; i < w.shm->cfg.slots; i++)
		if (w.slot[i].busy && !w.slot[i].paused)
			active[n++] = i;
	atomic_store(&w.stats->busy, n > 0);
	if (!n)
		return 0;
	for (int i = 0; i < n; i++)
		if (present && w.slot[active[i]].draft_step && !wait_drafter(w.slot[active[i]].draft_step))
			return 1;
	w.step++;
	if (present && w.step > TD_FEATURE_BUFS && !wait_drafter(w.step - TD_FEATURE_BUFS))
		return 1;
	step_levers();
	sleep_us(number("step_us", 0));
	rec = &w.shm->step[w.step % TD_STEPS];
	rec->epoch = w.epoch;
	rec->number = w.step;
	rec->n_entries = rec->n_rows = 0;
	share_out(active, n);
	for (int i = 0; i < n; i++) {
		if (number("poison", -1) == td_shm_ids(w.shm, active[i])[0])
			abort();
		step_of_slot(active[i], rec);
	}
	if (present) {
		atomic_store(&w.shm->target.value, td_step_value(w.epoch, w.step));
		td_bell_ring(&w.shm->bell_drafter);
	}
	atomic_fetch_add(&w.stats->steps, 1);
	atomic_fetch_add(&w.stats->progress, 1);
	return 1;
}

static int target_work(void)
{
	struct td_record rec;

	while (td_ring_pop(&w.shm->to_target, &rec)) {
		atomic_fetch_add(&w.stats->progress, 1);
		command(&rec);
	}
	return target_step();
}

/* ---- drafter ------------------------------------------------------------------------------------------------------------------------- */

static int drafter_work(void)
{
	uint64_t have = atomic_load(&w.shm->target.value);

	if (have < td_step_value(w.epoch, w.step + 1) || have >= TD_FLAG_POISON(w.epoch)) {
		atomic_store(&w.stats->busy, 0);
		return 0;
	}
	atomic_store(&w.stats->busy, 1);
	w.step++;
	step_levers();
	if (w.shm->step[w.step % TD_STEPS].epoch != w.epoch || w.shm->step[w.step % TD_STEPS].number != w.step) {
		fprintf(stderr, "fake drafter: step record %u is not there\n", w.step);
		_exit(9);
	}
	sleep_us(number("step_us", 0));
	atomic_store(&w.shm->drafter.value, td_step_value(w.epoch, w.step));
	td_bell_ring(&w.shm->bell_target);
	atomic_fetch_add(&w.stats->steps, 1);
	atomic_fetch_add(&w.stats->progress, 1);
	return 1;
}

int main(int argc, char **argv)
{
	struct pollfd parent = {.fd = FD_SOCK};

	if (argc != 3 || strcmp(argv[1], "--control"))
		return 2;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (poll(&parent, 1, 0) > 0 && parent.revents & POLLHUP)
		return 0;
	signal(SIGPIPE, SIG_IGN);
	w.is_target = strstr(argv[2], "target.ipc") != NULL;
	w.name = w.is_target ? "target" : "drafter";
	w.control = TD_CONTROL_CLOSED;
	read_levers();
	start(argv[2]);
	for (unsigned turn = 0;; turn++) {
		uint32_t seen = atomic_load(&w.bell->count);

		if (atomic_load(&w.shm->epoch) != w.epoch) {
			reset();
			continue;
		}
		if (turn % 256 == 0)
			look_at_control();
		if (w.is_target ? target_work() : drafter_work())
			continue;
		look_at_control();
		if (w.draining)
			return 0;
		td_bell_wait(w.bell, seen, WAIT_MS);
	}
}
