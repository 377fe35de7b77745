/*
 * tandem.h: libtandem, the C library for talking to tandemd over its Unix socket.
 *
 * Two forms over one connection object:
 *   - blocking: tandem_generate(), tandem_status(), tandem_tokenize(), tandem_detokenize(). They send, wait and return; pieces of the answer
 *     reach your callbacks on the way. They can reconnect and resume by themselves (struct tandem_options, retry_ms).
 *   - callbacks from your own event loop: tandem_submit() and friends only queue the request. Poll tandem_fd() for what tandem_want() says, at
 *     most tandem_timeout_ms() long, then call tandem_process(), which calls your callbacks. Both forms may be used on one connection.
 *
 * Threads: a connection belongs to one thread at a time; the library has no global state and no lock. Use one connection per thread.
 * Signals: never raises SIGPIPE, installs no handler. A blocking call goes on after a signal that was handled elsewhere (EINTR).
 * Callbacks: run inside tandem_process() or a blocking call, in the caller's thread. They may submit and cancel. They may not call
 *   tandem_process(), tandem_reconnect() or a blocking function (these answer TANDEM_E_BUSY). tandem_close() from a callback takes effect when
 *   the function that called the callback is about to return: after that the connection must not be touched.
 * Ownership: what you pass in is copied before the function returns; what a callback is given belongs to the library and is valid only until
 *   that callback returns. What a function returns to you by pointer is freed by the function named beside it.
 * Units: times end in _ms or _us and are milli- or microseconds; counts are tokens; text is UTF-8, NUL-terminated, without NUL inside.
 * Errors: functions that can fail return 0 or a negative code and fill in *err (may be NULL). The name is stable, the sentence is not.
 */
#ifndef TANDEM_H
#define TANDEM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TANDEM_VERSION "0.1.0"

const char *tandem_version(void); /* of the library that runs, to compare with TANDEM_VERSION */

/* ---- errors ------------------------------------------------------------------------------------------------------------------------ */

enum tandem_code {
	TANDEM_OK = 0,
	TANDEM_E_INTERNAL = -1,
	TANDEM_E_NOMEM = -2,
	TANDEM_E_IO = -3,
	TANDEM_E_NOT_FOUND = -4,
	TANDEM_E_INVALID = -5,
	TANDEM_E_FORMAT = -6,
	TANDEM_E_UNSUPPORTED = -7,
	TANDEM_E_MISMATCH = -8,
	TANDEM_E_CONTEXT = -9,
	TANDEM_E_QUEUE_FULL = -10,
	TANDEM_E_TOO_LARGE = -11,
	TANDEM_E_PROTOCOL = -12,
	TANDEM_E_CANCELLED = -13,
	TANDEM_E_DEADLINE = -14,
	TANDEM_E_LOADING = -15,
	TANDEM_E_WORKER = -16,
	TANDEM_E_DEVICE = -17,
	TANDEM_E_BUSY = -18,
	TANDEM_E_PERMISSION = -19,
	TANDEM_E_DRAINING = -20,
	TANDEM_E_STALE = -21,
	TANDEM_E_LIMIT = -22,
	TANDEM_E_CLOSED = -23,
	TANDEM_E_SLOW_READER = -24,
	TANDEM_E_UNAUTHORIZED = -25,
	TANDEM_E_TENANT_QUEUE = -26,
	TANDEM_E_TENANT_RATE = -27,
	TANDEM_E_DEADLINE_EARLY = -28,
	TANDEM_E_SCHEMA = -29,
};

struct tandem_error {
	int code; /* enum tandem_code; TANDEM_E_INTERNAL for a name that this library doesn't know */
	uint32_t retry_after_ms; /* 0 = not said */
	char name[32]; /* "queue_full", ... */
	char text[480]; /* one line for people */
};

/* ---- connection -------------------------------------------------------------------------------------------------------------------- */

struct tandem; /* a connection */

struct tandem_options { /* all zero = the defaults */
	const char *client; /* name and version of your program, for the daemon's log */
	const char *tenant; /* asked for; the daemon decides by your uid */
	uint32_t timeout_ms; /* for connecting, and for the answer of status and tokenize calls; 0 = 5,000 */
	uint32_t retry_ms; /* blocking calls: how long to try to reconnect when the connection is lost; 0 = not at all */
};

struct tandem_info { /* what the daemon said at connect; valid until the next connect or close */
	const char *server, *model, *tenant;
	uint32_t context; /* tokens of prompt and answer together */
	uint32_t slots; /* requests that run at once */
	uint32_t max_frame; /* bytes */
	int ready; /* 0 while the model was loading */
};

/*
 * Where a client looks for the daemon: $TANDEM_SOCKET; else $XDG_RUNTIME_DIR/tandem/tandem.sock when it exists; else /run/tandem/tandem.sock.
 * TANDEM_E_TOO_LARGE when it doesn't fit into `size`.
 */
int tandem_socket_path(char *path, size_t size);

/* Connects and greets, for at most timeout_ms. path NULL: tandem_socket_path(). NULL and *err on failure. Free with tandem_close(). */
struct tandem *tandem_connect(const char *path, const struct tandem_options *options, struct tandem_error *err);
/* Open calls end here without a callback; the daemon cancels them. NULL is fine. */
void tandem_close(struct tandem *t);
const struct tandem_info *tandem_info(const struct tandem *t);

/*
 * After tandem_process() answered TANDEM_E_CLOSED: connects again (blocking, at most timeout_ms, one attempt) and takes up every open call.
 * Answers that had begun are resumed after the last token that your callback saw; requests that the daemon had not accepted yet are sent again.
 * On failure the calls stay open: try again, or close.
 */
int tandem_reconnect(struct tandem *t, struct tandem_error *err);

/* ---- requests ---------------------------------------------------------------------------------------------------------------------- */

/* Which members of struct tandem_sampling are set; the others take the daemon's defaults. */
enum tandem_sampling_set {
	TANDEM_TEMPERATURE = 1 << 0,
	TANDEM_TOP_K = 1 << 1,
	TANDEM_TOP_P = 1 << 2,
	TANDEM_MIN_P = 1 << 3,
	TANDEM_REPETITION_PENALTY = 1 << 4,
	TANDEM_PRESENCE_PENALTY = 1 << 5,
	TANDEM_FREQUENCY_PENALTY = 1 << 6,
	TANDEM_SEED = 1 << 7,
	TANDEM_LOGPROBS = 1 << 8,
	TANDEM_IGNORE_EOS = 1 << 9,
	TANDEM_MAX_TOKENS = 1 << 10,
	TANDEM_DRAFT_TOKENS = 1 << 11,
};

struct tandem_bias {
	int32_t id;
	float bias; /* added to the logit */
};

struct tandem_sampling {
	uint32_t set; /* TANDEM_TEMPERATURE | ... */
	float temperature; /* 0 = greedy */
	int32_t top_k; /* 0 = off */
	float top_p, min_p;
	float repetition_penalty, presence_penalty, frequency_penalty;
	uint64_t seed;
	int32_t logprobs; /* 0..20: log-probability of each token, and of so many best ones */
	int ignore_eos;
	int32_t max_tokens; /* >= 1 */
	int32_t draft_tokens; /* drafts per step, 0 = no speculation */
	const struct tandem_bias *bias; /* at most 300 */
	size_t n_bias;
	const char *const *stop; /* at most 16 strings of 1..256 bytes */
	size_t n_stop;
	const int32_t *stop_id; /* at most 24 */
	size_t n_stop_id;
};

struct tandem_tool_call {
	const char *name, *arguments; /* arguments: a JSON object */
	const char *id; /* NULL = none */
};

struct tandem_message {
	const char *role; /* system, user, assistant, tool */
	const char *content; /* NULL = empty */
	const char *reasoning; /* of an assistant; NULL = none */
	const struct tandem_tool_call *call;
	size_t n_calls;
	const char *tool_call_id; /* of a tool; NULL = none */
};

enum tandem_thinking { TANDEM_THINK_DEFAULT = 0, TANDEM_THINK_ON, TANDEM_THINK_OFF };

struct tandem_prompt { /* exactly one of text, messages, ids */
	const char *text; /* raw, without a template; special tokens in it are recognised */
	const struct tandem_message *message; /* through the model's chat template */
	size_t n_messages;
	const char *const *tool; /* with messages: JSON objects in OpenAI's form */
	size_t n_tools;
	enum tandem_thinking thinking; /* with messages */
	const int32_t *id; /* token ids as they are */
	size_t n_ids;
};

/* Whom a request waits among: those of batch run when no interactive one waits, or when they have waited long. */
enum tandem_band { TANDEM_BAND_DEFAULT = 0 /* the tenant's */, TANDEM_INTERACTIVE, TANDEM_BATCH };

struct tandem_request {
	struct tandem_prompt prompt;
	struct tandem_sampling sampling;
	int whole; /* 1: one delta with everything instead of a stream */
	uint32_t deadline_ms; /* kept by the daemon, from arrival; 0 = none */
	enum tandem_band band;
	int no_cache; /* 1: the prefix cache neither serves this prompt nor keeps it */
	/* What the output must be (docs/json-schema.md); at most one of the three. */
	int json_object; /* 1: any JSON object */
	const char *json_schema; /* a JSON document that fits this schema; NULL = none */
	const char *tool_choice; /* with tools: "required", or the name of the function to call; NULL = none */
	uint32_t silence_ms; /* kept here: give up (and cancel) after so long without a word about this request; 0 = never */
};

/* ---- answers ----------------------------------------------------------------------------------------------------------------------- */

struct tandem_accepted {
	uint64_t request; /* the daemon's number, as in its log */
	uint32_t prompt_tokens;
	uint32_t queue_position; /* 0 = starts at once */
};

struct tandem_top {
	int32_t id;
	float logprob;
	const char *token; /* its bytes, not always whole UTF-8; NULL when not sent */
	size_t n_token;
};

struct tandem_logprob {
	float logprob;
	const struct tandem_top *top;
	size_t n_top;
};

struct tandem_delta {
	uint32_t position; /* output tokens before this delta; deltas follow each other without gap or repetition */
	const int32_t *id;
	size_t n_ids;
	const char *text; /* whole UTF-8, never NULL; may lag behind the ids */
	const struct tandem_logprob *logprob; /* one per id when asked for, else NULL */
};

enum tandem_reason { TANDEM_STOP = 1, TANDEM_LENGTH, TANDEM_CANCELLED, TANDEM_FAILED };

struct tandem_finish {
	enum tandem_reason reason;
	const char *stop; /* the stop string that matched, or NULL */
	uint32_t prompt_tokens, output_tokens;
	uint32_t cached_tokens; /* of the prompt: taken from the daemon's prefix cache */
	uint32_t cycles, drafted, accepted; /* mean acceptance length = (accepted + cycles) / cycles */
	uint64_t queue_us; /* until a slot was free */
	uint64_t prefill_us; /* from the slot to the first token */
	uint64_t decode_us; /* from the first token to the last */
	uint64_t gpu_us; /* device time charged to the request */
	uint64_t wasted_us; /* of these: rows of drafts that were rejected */
	uint64_t seed;
	uint32_t restarts; /* workers' restarts that the request lived through */
	uint32_t resumes; /* connections lost and taken up again by this library */
};

struct tandem_worker_status {
	const char *role, *state; /* starting, loading, ready, failed, restarting */
	const char *device, *stage; /* NULL when not said; stage: while loading */
	uint32_t pid, restarts;
	int imported; /* weights taken over from a predecessor */
	uint64_t weights_bytes, cache_bytes, load_us;
	uint64_t done, total; /* of the stage */
	uint64_t steps, step_us, wait_us, commit_us; /* sums since start */
	uint64_t prefill_tokens, prefill_us;
};

struct tandem_tenant_status { /* totals since start, but for what is marked "now" */
	const char *name; /* "other": those beyond the number that have figures of their own */
	double weight;
	uint32_t running, queued; /* now */
	uint64_t requests, finished, cancelled, failed; /* of those that were accepted */
	uint64_t refused; /* not accepted */
	uint64_t prompt_tokens, cached_tokens, output_tokens; /* cached: of the prompt tokens, from the prefix cache */
	uint64_t cycles, drafted, accepted;
	uint64_t gpu_us, wasted_us; /* device time charged; of these: rows of rejected drafts */
	uint64_t queue_us; /* sum of waits */
};

struct tandem_prefix_status { /* the prefix cache */
	uint64_t lookups, hits, hit_tokens; /* requests that asked, those that found something, and how much */
	uint32_t pages; /* now: KV pages that only the cache holds */
	uint32_t states, states_max; /* now: recurrent-state checkpoints */
	uint64_t evicted; /* pages */
};

struct tandem_status {
	const char *server, *model, *state; /* loading, ready, degraded, failed, draining */
	const char *last_error; /* NULL = none */
	const char *sharing; /* how the workers share the device: "MPS", "time slices: why", "host memory"; NULL when not said */
	uint64_t uptime_us, daemon_cpu_us;
	uint32_t slots, slots_used, queued, connections, context;
	uint64_t requests, finished, cancelled, failed; /* totals since start, from here on */
	uint64_t prompt_tokens, output_tokens;
	uint64_t cycles, drafted, accepted;
	const uint64_t *accepted_at; /* [i]: how often the draft at place i was accepted */
	size_t n_accepted_at;
	const uint64_t *drafted_at; /* [i]: how often a draft at place i was verified */
	size_t n_drafted_at;
	const struct tandem_worker_status *worker;
	size_t n_workers;
	const struct tandem_tenant_status *tenant;
	size_t n_tenants;
	const struct tandem_prefix_status *prefix; /* NULL when not said */
	uint32_t kv_pages, kv_pages_used; /* of 64 tokens each: all, and those of requests that run; 0 when not said */
};

struct tandem_ids { /* what tandem_tokenize() gives */
	int32_t *id;
	size_t n;
};

/*
 * Members may be NULL. A call ends with exactly one of finish, status, tokens, text or error, and its number is void after that.
 * A delta callback that returns non-zero cancels the request; it then ends with finish, reason TANDEM_CANCELLED.
 */
struct tandem_handler {
	void *ctx;
	void (*accepted)(void *ctx, const struct tandem_accepted *a);
	int (*delta)(void *ctx, const struct tandem_delta *d);
	void (*finish)(void *ctx, const struct tandem_finish *f);
	void (*status)(void *ctx, const struct tandem_status *s);
	void (*tokens)(void *ctx, const int32_t *id, size_t n);
	void (*text)(void *ctx, const char *text);
	void (*error)(void *ctx, const struct tandem_error *e);
	void (*queue)(void *ctx, uint32_t before); /* of a generation that waits: how many will start before it, when that changed */
};

/* ---- from your event loop ---------------------------------------------------------------------------------------------------------- */

enum tandem_events { TANDEM_READ = 1, TANDEM_WRITE = 2 };

/* -1 while the connection is lost; another one after tandem_reconnect(). */
int tandem_fd(const struct tandem *t);
/* TANDEM_READ, or both while something waits to be sent: ask again after each submit, cancel and process. */
int tandem_want(const struct tandem *t);
/* How long to poll at most, -1 = for ever. */
int tandem_timeout_ms(const struct tandem *t);
/*
 * Does what can be done without blocking. TANDEM_E_CLOSED: the connection is lost, open calls wait for tandem_reconnect() or tandem_close().
 * TANDEM_E_PROTOCOL and other codes: the daemon broke the protocol or refused the connection; reconnecting is unlikely to help.
 */
int tandem_process(struct tandem *t, struct tandem_error *err);

/* Queue a call: its number (never 0, never used twice on a connection), or 0 and *err. Nothing is sent before tandem_process(). */
uint64_t tandem_submit(struct tandem *t, const struct tandem_request *request, const struct tandem_handler *handler, struct tandem_error *err);
uint64_t tandem_submit_status(struct tandem *t, const struct tandem_handler *handler, struct tandem_error *err);
/* Answered by text: see tandem_metrics(). */
uint64_t tandem_submit_metrics(struct tandem *t, const struct tandem_handler *handler, struct tandem_error *err);
/* Prompts of text or messages, not of ids. */
uint64_t tandem_submit_tokenize(struct tandem *t, const struct tandem_prompt *prompt, const struct tandem_handler *handler, struct tandem_error *err);
uint64_t tandem_submit_detokenize(struct tandem *t, const int32_t *id, size_t n, const struct tandem_handler *handler, struct tandem_error *err);
/*
 * Ask the daemon to stop a generation; its finish callback follows. TANDEM_E_NOT_FOUND when the call is over or isn't a generation: harmless.
 * While the connection is lost the call ends at the next tandem_process() by error, TANDEM_E_CANCELLED.
 */
int tandem_cancel(struct tandem *t, uint64_t call, struct tandem_error *err);

/* ---- blocking ---------------------------------------------------------------------------------------------------------------------- */

/* 0 when the answer finished (also when cancelled by the delta callback: see finish->reason), else the error that handler->error also got. */
int tandem_generate(struct tandem *t, const struct tandem_request *request, const struct tandem_handler *handler, struct tandem_error *err);
/* NULL and *err on failure. Free with tandem_status_free(); may outlive the connection. */
struct tandem_status *tandem_status(struct tandem *t, struct tandem_error *err);
void tandem_status_free(struct tandem_status *s);
/* The daemon's figures in Prometheus' text format. malloc'd: free(). NULL and *err on failure. */
char *tandem_metrics(struct tandem *t, struct tandem_error *err);
/* Free with tandem_ids_free(). */
int tandem_tokenize(struct tandem *t, const struct tandem_prompt *prompt, struct tandem_ids *ids, struct tandem_error *err);
void tandem_ids_free(struct tandem_ids *ids);
/* malloc'd: free(). NULL and *err on failure. */
char *tandem_detokenize(struct tandem *t, const int32_t *id, size_t n, struct tandem_error *err);

#ifdef __cplusplus
}
#endif
#endif
