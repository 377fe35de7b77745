/*
 * daemon.h: inside tandemd: every structure, and who owns what.
 *
 * One thread runs one libuv loop; only long prompts are tokenised on libuv's pool (job.c), on data that never changes (struct td_model).
 * The way of a request: listener -> session (frames) -> job (parse, tokenise) -> request -> queue -> scheduler (slot) -> rings -> commit log ->
 * stream (deltas) -> session. A callback only changes state; once per turn of the loop, before it sleeps, turn_end() in main.c lets the scheduler
 * bring the slots in line with that state and writes what the sessions have to say.
 *
 *   main.c        start, signals, draining, end          supervisor.c  the workers' lives, epochs, watchdog
 *   config.c      file and options                       child.c       one life of one worker: process, control channel, fds
 *   model.c       what is known before a worker runs     scheduler.c   slots, pages, rings
 *   listener.c    socket, lock, accepting                commitlog.c   prompt, committed tokens, log-probabilities
 *   session.c     one connection (session.h)             textstream.c  tokens to text, stop strings
 *   frames.c      its bytes, as libtandem speaks         stream.c      what its client gets of a request
 *   dispatch.c    what a message asks for                http/         the other protocol (http/http.h)
 *   width.c       drafts per step by requests in it
 *   device.c      GPU or CPU, and the way back           mps.c         the control daemon by which two processes share a GPU
 *   logpipe.c     what children print                    notify.c, fdstore.c, reload.c   the service manager (notify.h)
 *   job.c         work on a message off the loop         status.c      figures (metrics.c: the same and more for Prometheus)
 *   request.c     one request                            queue.c       who waits, who runs, who is next (queue.h)
 *   tenant.c      who a client is (tenant.h)             admission.c   who may wait, and what the others are told
 *
 * Ownership: the daemon owns sessions, requests, workers. A request belongs to the table d->requests from its creation until it is forgotten;
 * session, queue and slot only point at it and are told when that ends. A session is freed in its close callback, and not before its jobs ended.
 * What must never happen: a blocking call in the loop; an index, count or token from the shared memory used unchecked; an exit because of a client
 * or a worker.
 */
#ifndef TD_DAEMON_H
#define TD_DAEMON_H

#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>
#include <uthash.h>
#include <uv.h>

#include "daemon/http/http.h"
#include "daemon/metrics.h"
#include "daemon/notify.h"
#include "daemon/session.h"
#include "daemon/tenant.h"
#include "engine/clock.h"
#include "engine/control.h"
#include "engine/draft_list.h"
#include "engine/error.h"
#include "engine/log.h"
#include "engine/memplan.h"
#include "engine/model.h"
#include "engine/shm.h"
#include "engine/tokenizer.h"
#include "engine/widths.h"
#include "proto/frame.h"
#include "tandem.pb-c.h"

struct td_daemon;
struct td_session;
struct td_request;

/* ---- config.c ---------------------------------------------------------------------------------------------------------------------- */

enum { TD_AUTO = -1 }; /* of an int setting: decided by model.c */

struct td_daemon_config {
	/* tandem */
	char *socket, *runtime_dir, *log_file;
	int socket_by_default; /* nobody chose its path */
	int socket_mode, log_level, max_connections, handshake_s, drain_s, resume_s;
	/* http */
	char *http_socket, *http_listen, *http_allow_remote, *http_require_key;
	int http_socket_mode, http_header_s, http_body_s, http_idle_s, http_ping_s;
	/* model */
	char *target, *drafter, *tokenizer, *name, *thinking, *weights, *head, *activations, *draft_vocabulary, *trust_content;
	/* engine */
	char *device, *target_worker, *drafter_worker, *mps, *mps_control, *prefix_cache, *widths;
	int mps_active_thread_percentage;
	int slots, context, kv_tokens, prefix_states, chunk, draft_tokens, threads, watchdog_s, load_timeout_s;
	/* limits */
	int queue, slow_reader_s;
	int batch_age_s, quantum_ms;
	int64_t output_buffer, max_frame, input_memory, resume_memory;
	struct td_tenants_config tenants; /* taken over by td_tenants_apply, but for the words */
	/* defaults */
	double temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
	int top_k, max_tokens;
};

enum td_config_action { TD_RUN, TD_CHECK, TD_HELP, TD_SETTINGS, TD_VERSION_ACTION };

/* Defaults, then the file (--config, else /etc/tandem/tandem.ini when it is there), then the options. On failure *c is finished. */
int td_daemon_config_load(int argc, char **argv, struct td_daemon_config *c, enum td_config_action *action, struct td_error *err);
/* The same for a daemon that runs: waits for nothing, so a file that is none (a pipe) is refused. */
int td_daemon_config_again(int argc, char **argv, struct td_daemon_config *c, struct td_error *err);
void td_daemon_config_finish(struct td_daemon_config *c);
void td_daemon_config_help(FILE *out);
void td_daemon_config_list(FILE *out); /* a line per setting, for programs */
/* Settings in which `fresh` differs: those that may change while tandemd runs are taken from it (texts change hands), the others stay. `tell` hears of each. */
void td_daemon_config_apply(struct td_daemon_config *c, struct td_daemon_config *fresh, void (*tell)(void *ctx, const char *section, const char *key, int taken),
			    void *ctx);

/* ---- model.c ----------------------------------------------------------------------------------------------------------------------- */

/* What is known before a worker runs. Jobs on other threads read it: after td_model_load only td_device_fall_back changes something, and that is
 * nothing that a job looks at (device, shm.host_exchange). */
struct td_model {
	struct td_target_config target;
	struct td_drafter_config drafter;
	int has_drafter;
	int form; /* of the weights in both arenas: enum td_form */
	struct td_tokenizer *tokenizer;
	int vocab_real; /* ids from here on do not exist */
	int vocab_fd; /* the tokens' bytes, for the target (engine/token_mask.h); 0 = none */
	struct td_draft_list draft; /* ids that drafts are chosen from */
	int n_end, end[TD_STOP_IDS_MAX]; /* ids that end an answer unless ignore_eos */
	int thinking_default;
	int trust_content; /* control tokens written in a chat's contents count */
	char name[128];
	const char *device; /* "cpu" or "cuda" */
	struct td_shm_config shm;
	int kv_pages;
	int prefix_states; /* checkpoints of the prefix cache; 0: it is off */
	int k, k_max; /* drafts per step: of a request that does not say, and the most of one that does; 0 without drafter */
	char *target_worker, *drafter_worker; /* executables */
	struct td_memplan memory;
	int memory_known;
	char target_files[TD_IDENTITY], drafter_files[TD_IDENTITY]; /* of the folders when their config.json was read; empty: they could not be looked at */
};

int td_model_load(const struct td_daemon_config *c, struct td_model *m, struct td_error *err);
void td_model_finish(struct td_model *m);
/* 1 when an arena of this fingerprint holds what the folder held when tandemd read it, for its device and form. */
int td_model_is_of(const struct td_model *m, int is_target, const char *fingerprint);
char *td_model_beside(const char *name); /* path of something beside this executable; malloc'd, or NULL */
/* Reads the heads of the weight files. What no other start would find different (a file or tensor that is missing, damaged, of a wrong shape) is an error;
 * that memory can't be planned for another reason is only told. */
int td_model_plan_memory(const struct td_daemon_config *c, struct td_model *m, struct td_error *err);
/* What the drafter will take of the device, its weights left out when they lie there already; 0 when that is not known. */
uint64_t td_model_drafter_bytes(const struct td_model *m, int loaded);
void td_model_tell_memory(const struct td_model *m); /* the plan, if there is one, into the log */

/* ---- device.c ---------------------------------------------------------------------------------------------------------------------- */

/* "cpu" or "cuda" for engine.device: both workers and the place of the exchange region follow from it. */
const char *td_device_choose(const char *wanted);
/* What to do about an error that the CUDA runtime only names: appended to `text`. */
void td_device_advise(const struct td_daemon *d, char *text, size_t size);
/* engine.device = auto, the GPU cannot be had and nothing was served yet: from now on the CPU. 1 when it was done; no worker may be alive. */
int td_device_fall_back(struct td_daemon *d, const char *why);
static inline int td_device_is_gpu(const struct td_model *m)
{
	return !m->shm.host_exchange;
}

/* ---- logpipe.c --------------------------------------------------------------------------------------------------------------------- */

struct td_logpipe {
	uv_poll_t poll;
	int fd;
	const char *who;
	enum td_log_level level;
	size_t n;
	char line[TD_LOG_LINE]; /* [0, n): its end has not come yet */
};
/* *far_end is the child's, to be closed here once it has it. `level`: of lines that are not from a log such as ours. */
int td_logpipe_open(struct td_daemon *d, struct td_logpipe *p, const char *who, enum td_log_level level, int *far_end, struct td_error *err);
/* Reads what is left and closes; `closed` gets a handle with this data. */
void td_logpipe_close(struct td_logpipe *p, void *data, uv_close_cb closed);

/* ---- width.c ----------------------------------------------------------------------------------------------------------------------- */

struct td_width {
	int known;
	struct td_widths table;
};

void td_width_load(struct td_daemon *d); /* the target is ready */
void td_width_count(struct td_daemon *d); /* after each cycle */

/* ---- mps.c ------------------------------------------------------------------------------------------------------------------------- */

enum td_mps_state {
	TD_MPS_OFF, /* not wanted, or given up */
	TD_MPS_DOWN, /* waits for its time to start */
	TD_MPS_STARTING, /* runs, its socket is not there yet */
	TD_MPS_UP,
	TD_MPS_ENDING, /* told to end; not reaped yet */
};
struct td_mps_life;
struct td_mps {
	enum td_mps_state state, after; /* after: OFF or DOWN once it has ended */
	struct td_mps_life *life;
	pid_t pid;
	uint64_t since_us, retry_us;
	int failures; /* in a row */
	char program[4096];
	char pipe_var[4200], log_var[4200], share_var[64]; /* NAME=value, for environments */
	char how[480]; /* state OFF: how the workers share the device instead, and why */
};
int td_mps_find(struct td_daemon *d, struct td_error *err); /* whether it is wanted and there: what can be known without starting anything */
int td_mps_open(struct td_daemon *d, struct td_error *err);
void td_mps_check(struct td_daemon *d, uint64_t now_us);
int td_mps_settled(const struct td_daemon *d); /* 1: workers may start */
int td_mps_used(const struct td_daemon *d); /* 1: workers are its clients */
void td_mps_off(struct td_daemon *d, const char *how); /* ends it, for good */
void td_mps_stop(struct td_daemon *d, int at_once); /* td_mps_check sees to the end */
void td_mps_close(struct td_daemon *d); /* ended: removes its folder */
/* The environment of a client, or of MPS itself: malloc'd array, the strings are lent; NULL: no memory. */
char **td_mps_env(struct td_daemon *d, int client);
void td_mps_sharing(const struct td_daemon *d, char *text, size_t size); /* one line for people */

/* ---- commitlog.c ------------------------------------------------------------------------------------------------------------------- */

/* Append-only: the prompt, then what was committed. It is fed again to a successor after a crash and read again by a client that resumes. */
struct td_commitlog {
	int32_t *ids;
	int n_prompt, n, size;
	uint32_t *shown; /* per output token: bytes of text that were ready after it */
	int n_top; /* log-probabilities: -1 off, else best ones per token */
	float *logprob; /* per output token */
	int32_t *top_id; /* (output tokens, n_top) */
	float *top_logprob;
	int size_out;
};

/* Takes over `prompt` (malloc'd). */
void td_commitlog_init(struct td_commitlog *log, int32_t *prompt, int n_prompt, int n_top);
void td_commitlog_finish(struct td_commitlog *log);
/* Appends one token; `shown` is set by the caller once the text is known. v and i: its log-probabilities, or NULL. 0 or TD_E_NOMEM. */
int td_commitlog_append(struct td_commitlog *log, int32_t token, const struct td_verdict *v, int i);
size_t td_commitlog_bytes(const struct td_commitlog *log);
static inline int td_commitlog_outputs(const struct td_commitlog *log)
{
	return log->n - log->n_prompt;
}

/* ---- textstream.c ------------------------------------------------------------------------------------------------------------------ */

enum { TD_STOPS_MAX = 16, TD_STOP_BYTES_MAX = 256 };

/* The text of an answer as its tokens come. `shown` bytes of it may be shown: what could become a stop string, or is half a character, may not. */
struct td_textstream {
	struct td_detok detok;
	char *text; /* NUL-terminated; malloc'd */
	size_t n, size, shown;
	struct td_stop *stop; /* malloc'd (n_stops) */
	int n_stops;
	int matched; /* index of the stop string that ended the text, or -1 */
};

int td_textstream_init(struct td_textstream *s, const struct td_tokenizer *t, char *const *stops, size_t n_stops);
void td_textstream_finish(struct td_textstream *s);
/* 1 when a stop string was completed: the text now ends before it. 0, or TD_E_NOMEM. */
int td_textstream_push(struct td_textstream *s, int32_t id);
/* The end came otherwise: shows what was held back. */
int td_textstream_flush(struct td_textstream *s);
const char *td_textstream_stop(const struct td_textstream *s); /* the string that matched, or NULL */

/* ---- request.c --------------------------------------------------------------------------------------------------------------------- */

enum td_request_state {
	TD_REQ_QUEUED, /* in d->queue */
	TD_REQ_RUNNING, /* in a slot */
	TD_REQ_LOST, /* its client hung up, or no worker could be had; goes on when it is resumed */
	TD_REQ_ENDED, /* nothing will be appended any more */
};

struct td_request {
	UT_hash_handle hh; /* d->requests, by number */
	uint64_t number; /* order of arrival */
	uint8_t key[16];
	enum td_request_state state;
	struct td_tenant *tenant; /* whose: a reference, from the admission on */
	struct td_entry entry; /* its place while it waits */
	int told_place; /* its place as its client knows it; -1: not told */
	int cache; /* the prefix cache may serve it */
	int band; /* enum td_band; -1: the tenant's */
	struct td_request *retired_next; /* request.c: ended or lost, oldest first */
	uint64_t expires_us;
	int retired;
	int forget; /* its client has no way to resume it */
	/* the client */
	struct td_session *session; /* NULL when nobody listens */
	struct td_request *session_next;
	uint64_t tag;
	int stream;
	int sent; /* output tokens in deltas so far */
	/* what to do */
	struct td_commitlog log;
	struct td_textstream text;
	struct td_sampling sampling;
	uint8_t *grammar; /* compiled (engine/grammar.h), malloc'd; NULL: the output is free */
	size_t n_grammar;
	int n_stop_ids;
	int32_t stop_id[TD_STOP_IDS_MAX];
	int max_total, k, k_may_fall;
	uint64_t deadline_us; /* 0 = none */
	/* how it goes */
	int slot; /* -1 when not running */
	int barren, lone; /* workers' deaths since its last token; of these, while it ran alone as a suspect */
	Tandem__FinishReason finish; /* when ENDED and code is 0 */
	struct td_error error; /* code != 0: ended by an error */
	uint64_t arrived_us, queued_us, queue_sum_us, started_us, first_us, last_us;
	uint32_t cycles, drafted, accepted, restarts;
	uint32_t cached_tokens; /* of the prompt, at its last start: from the prefix cache */
	uint64_t gpu_us, wasted_us; /* device time charged; of that, rows of rejected drafts */
	struct td_meter *meter; /* metrics.c: its tenant's, from the admission on */
};

/* Checks everything and tokenises; touches nothing but the model and the configuration, so any thread may call it. NULL + err when refused. */
struct td_request *td_request_create(const struct td_daemon_config *c, const struct td_model *m, const Tandem__Generate *g, struct td_error *err);
void td_request_free(struct td_request *r);
/* A chat's ids, by the template. Control tokens inside its contents are text unless the model's configuration trusts them. */
int td_request_chat_ids(const struct td_model *m, const Tandem__Chat *chat, struct td_ids *ids, struct td_error *err);
/* Appends the tokens of a commit as far as they count. 1 when the answer is complete (*stopped: by a stop string, so the target goes on), or an error. */
int td_request_commit(struct td_request *r, const int32_t *token, int n, const struct td_verdict *v, int *stopped, struct td_error *err);

/* A request ended (finish), failed (error.code != 0), or lost its client; frees queue place and slot, tells the client, keeps the log for Resume. */
void td_request_end(struct td_daemon *d, struct td_request *r, Tandem__FinishReason finish);
void td_request_fail(struct td_daemon *d, struct td_request *r, int code, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
void td_request_lose(struct td_daemon *d, struct td_request *r);
void td_requests_expire(struct td_daemon *d, uint64_t now_us); /* forgets old logs, ends those over their deadline */
void td_requests_finish(struct td_daemon *d);
void td_request_unretire(struct td_daemon *d, struct td_request *r);

static inline struct td_request *td_request_of(struct td_entry *e)
{
	return e ? (struct td_request *)((char *)e - offsetof(struct td_request, entry)) : NULL;
}

/* ---- admission.c ------------------------------------------------------------------------------------------------------------------- */

struct td_refusal {
	struct td_error error;
	uint32_t retry_after_ms; /* 0: nothing is known */
};
/* The tenant of a session's client, looked up again when the configuration changed; NULL + err: it has none any more. A Unix socket's client is known by
 * its user, `asked` counts where several name it; a session of TCP has the tenant that its key said (td_session_be). */
struct td_tenant *td_session_tenant(struct td_session *s, const char *asked, struct td_error *err);
void td_session_be(struct td_session *s, struct td_tenant *t); /* takes over the reference; NULL: nobody */
const char *td_session_who(const struct td_session *s); /* for the log */
/* 0 when the session's client may ask now: before a message is worked on. */
int td_admission_open(struct td_session *s, struct td_refusal *no);
/* 0 when this request may wait: charges its prompt and sets tenant, entry, band. `band`: enum td_band, -1 = the tenant's. */
int td_admission_take(struct td_session *s, struct td_request *r, struct td_refusal *no);
void td_admission_enqueue(struct td_daemon *d, struct td_request *r); /* in its place */
uint32_t td_admission_position(const struct td_daemon *d, const struct td_request *r); /* 0: starts at once */
/* Puts tenants, limits.queue, batch_age_s and quantum_ms of a configuration into force, at start and while requests run. On an error nothing changed. */
int td_admission_configure(struct td_daemon *d, struct td_daemon_config *c, struct td_error *err);
void td_admission_tell(struct td_daemon *d, uint64_t now_us); /* waiting clients whose place changed, not more often than twice a second */

/* ---- stream.c ---------------------------------------------------------------------------------------------------------------------- */

enum { TD_DELTA_IDS = 256 };
struct td_delta_scratch { /* for packing a delta with log-probabilities */
	Tandem__TokenLogprob token[TD_DELTA_IDS], *token_ptr[TD_DELTA_IDS];
	Tandem__TopLogprob top[TD_DELTA_IDS * TD_TOP_MAX], *top_ptr[TD_DELTA_IDS * TD_TOP_MAX];
};
/* Sends what the client has not got yet, as far as its buffer has room; after the end also Finish or Error, which frees the tag. */
void td_stream_pump(struct td_daemon *d, struct td_request *r);
size_t td_stream_text_from(const struct td_request *r); /* where the text begins that the next delta tells */
void td_stream_usage(const struct td_request *r, Tandem__Usage *u);

/* ---- dispatch.c -------------------------------------------------------------------------------------------------------------------- */

/* Takes over msg. */
void td_dispatch(struct td_session *s, Tandem__ClientMessage *msg);
/* Takes over r: into the queue, attached to s by `tag`, and Accepted; or freed and refused by an error under the tag, whose code is returned. */
int td_dispatch_admit(struct td_session *s, struct td_request *r, const Tandem__Generate *g, uint64_t number, uint64_t tag);
/* A job is done: what became of its message goes on from here. */
void td_dispatch_job(struct td_job *j);

/* ---- job.c ------------------------------------------------------------------------------------------------------------------------- */

/* A message that needs tokenising. Small ones are worked on at once, large ones on another thread while the loop goes on. */
struct td_job {
	uv_work_t work;
	struct td_job *next; /* of the session */
	struct td_session *session; /* NULL after it closed */
	struct td_daemon *d;
	void (*run)(struct td_job *j); /* on any thread */
	void (*done)(struct td_job *j); /* in the loop; frees it */
	struct td_daemon_config cfg; /* as it was when this began; for its numbers: its texts may be gone after a reload */
	uint64_t tag;
	uint64_t number; /* order of arrival, for Generate */
	int cancelled;
	/* of libtandem's protocol: the message and what becomes of it */
	Tandem__ClientMessage *msg;
	struct td_request *request;
	struct td_ids ids;
	struct td_error error;
};
void td_job_start(struct td_session *s, Tandem__ClientMessage *msg, uint64_t number);
/* Runs a job whose run, done, tag and number are set; `bytes`: how much work it is. */
void td_job_begin(struct td_job *j, struct td_session *s, size_t bytes);
struct td_job *td_job_find(struct td_session *s, uint64_t tag);

/* ---- listener.c -------------------------------------------------------------------------------------------------------------------- */

enum td_listen_kind { TD_LISTEN_FRAMES, TD_LISTEN_HTTP, TD_LISTEN_HTTP_TCP };
enum { TD_LISTEN_MAX = 8 };

struct td_listen { /* one listening socket */
	struct td_daemon *d;
	enum td_listen_kind kind;
	int fd;
	char *path; /* of the socket file that we made, else NULL */
	ino_t ino;
	dev_t dev;
	uv_poll_t poll;
	int polling, resting; /* no descriptor left: accepting rests until a turn of the timer */
	uint64_t looked_us; /* when its file was looked for */
	int lost; /* the file is gone and can't be made again: told once */
};
struct td_listener {
	int lock_fd, spare_fd;
	struct td_listen at[TD_LISTEN_MAX];
	int n;
	unsigned long refused;
};
int td_listener_lock(struct td_daemon *d, struct td_error *err); /* runtime folder */
int td_listener_keep_folder(struct td_daemon *d, struct td_error *err); /* makes and locks it again when somebody removed it */
int td_listener_open(struct td_daemon *d, struct td_error *err);
/* Accepts on a non-blocking socket that listens already; takes the fd, also on failure. */
int td_listener_adopt(struct td_daemon *d, int fd, enum td_listen_kind kind, struct td_error *err);
void td_listener_check(struct td_daemon *d);
void td_listener_close(struct td_daemon *d); /* also removes the socket files */

/* ---- scheduler.c ------------------------------------------------------------------------------------------------------------------- */

/* What is taken, by whom, and until when is the queue's: d->queue.stay[i]. */
struct td_slot {
	uint64_t run; /* number of this START: what records call `request` */
	int cancel, cancel_told, pause_told;
	uint32_t commits;
	uint64_t started_us;
};
int td_scheduler_used(const struct td_daemon *d);
void td_scheduler_run(struct td_daemon *d); /* starts what can start, tells the target of cancels and pauses */
void td_scheduler_read_target(struct td_daemon *d);
void td_scheduler_read_drafter(struct td_daemon *d);
void td_scheduler_detach(struct td_daemon *d, struct td_request *r, int cancel); /* the request leaves its slot */
void td_scheduler_reset(struct td_daemon *d); /* new epoch: running requests go back to the queue */

/* ---- child.c, supervisor.c -------------------------------------------------------------------------------------------------------- */

enum td_child_state {
	TD_CHILD_OFF, /* not configured */
	TD_CHILD_DOWN, /* waits for its time to start */
	TD_CHILD_STARTING, /* spawned, no Hello yet */
	TD_CHILD_LOADING,
	TD_CHILD_READY,
	TD_CHILD_ENDING, /* killed or told to end; not reaped yet */
};

struct td_child_life; /* child.c: handles of one process */

struct td_child {
	struct td_daemon *d;
	Tandem__Worker__Role role;
	const char *name; /* "target", "drafter": also the name of its arena */
	enum td_child_state state;
	struct td_child_life *life;
	pid_t pid;
	int was_ready; /* this life got to READY */
	int ever_ready; /* some life did */
	int failed; /* gave up for now: refuse requests, try again slowly */
	uint64_t since_us; /* of the last sign of life while starting or loading; of the kill while ending */
	uint64_t killed_us; /* this life was told to end by force, first; 0: it was not */
	uint64_t retry_us; /* DOWN: when to start */
	int lives, restarts, failures; /* failures in a row */
	uint64_t failed_at_us[5];
	/* watchdog */
	uint64_t progress, progress_us;
	int reset_wait; /* READY, but RESET_DONE of the current epoch has not come */
	uint64_t reset_us;
	/* what it said */
	int events_fd;
	uv_poll_t events;
	int arena_fd; /* kept for successors, -1 = none */
	Tandem__Worker__Arena *arena;
	uint64_t stored; /* fdstore.c: sum of the note on what the service manager keeps; 0: nothing */
	char stage[64], device[256];
	uint64_t stage_done, stage_total, weights_bytes, cache_bytes, load_us;
	int imported;
	uint8_t exchange[TD_HANDLE_BYTES]; /* target, device memory: for the drafter; good while this life lasts */
	int why; /* error code of the last end */
	char why_text[480];
};

/* child.c */
int td_child_spawn(struct td_child *c, struct td_error *err);
void td_child_kill(struct td_child *c, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
int td_child_drain(struct td_child *c); /* asks it to end by itself; 0 when it heard */
void td_child_gone(struct td_child *c); /* child.c calls it when the process was reaped: implemented by supervisor.c */
void td_child_ready(struct td_child *c); /* likewise, after Ready */

/* supervisor.c */
int td_is_lasting(int code); /* what will be the same the next time: files and settings, as opposed to crashes */
int td_supervisor_open(struct td_daemon *d, struct td_error *err);
void td_supervisor_check(struct td_daemon *d, uint64_t now_us); /* starts, time limits, watchdog */
void td_supervisor_close(struct td_daemon *d);
/* MPS ended, or cannot be had: its clients end; with `lasting` requests are refused until it is there. */
void td_supervisor_no_mps(struct td_daemon *d, int lasting, const char *why);
void td_supervisor_forget_arenas(struct td_daemon *d);
int td_supervisor_stuck(const struct td_daemon *d, uint64_t now_us); /* a worker stands still, and what is done about it does not help */
int td_supervisor_serving(const struct td_daemon *d); /* 1: STARTs may be pushed */
const struct td_child *td_supervisor_failed(const struct td_daemon *d); /* the worker that can't be had, or NULL */
void td_supervisor_progress(struct td_daemon *d); /* tokens were committed: the workers are well */
void td_supervisor_reset_done(struct td_daemon *d, struct td_child *c, uint32_t epoch);

/* ---- status.c ---------------------------------------------------------------------------------------------------------------------- */

struct td_counters {
	uint64_t requests, finished, cancelled, failed, prompt_tokens, output_tokens, cycles, drafted, accepted, commits;
	uint64_t accepted_at[TD_DRAFT_MAX];
};
void td_status_send(struct td_session *s, uint64_t tag);
void td_status_send_metrics(struct td_session *s, uint64_t tag);
uint64_t td_status_cpu_us(void); /* of this process */
const char *td_status_state(const struct td_daemon *d);
const char *td_status_worker_state(const struct td_child *w);

/* ---- main.c ------------------------------------------------------------------------------------------------------------------------ */

struct td_daemon {
	uv_loop_t loop;
	struct td_daemon_config cfg;
	struct td_model model;
	struct td_shm *shm;
	int shm_fd;
	uint32_t epoch;
	struct td_listener listener;
	int fds_short; /* cfg.max_connections had to be lowered to what the limit of open files leaves */
	int fds_room; /* which is so many */
	int argc; /* the command line, for reload.c */
	char **argv;
	struct td_notify notify;
	struct td_session *sessions, *dirty;
	int n_sessions;
	struct td_request *requests, *retired_head, *retired_tail;
	size_t retired_bytes;
	struct td_queue queue;
	struct td_slot slot[TD_SLOTS_MAX];
	struct td_tenants tenants;
	struct td_child target, drafter;
	struct td_mps mps;
	struct td_width width;
	uint64_t asked_us; /* when a client said something; 0 since memory was given back */
	uint64_t told_us; /* when waiting clients were told their places */
	uint64_t checked_us; /* when td_supervisor_check ran last */
	uint64_t next_request, next_run, next_session;
	struct td_counters count;
	struct td_metrics metrics;
	struct td_delta_scratch *scratch;
	uv_timer_t tick;
	uv_prepare_t prepare;
	uv_signal_t sig_term, sig_int, sig_hup;
	int draining; /* 1: no new requests; 2: ending now */
	int end_at_once; /* asked twice */
	uint64_t drain_us, started_us;
	uint64_t start_cpu_us; /* spent before serving began: what is told is the cost of serving */
	char last_error[480];
};

#endif
