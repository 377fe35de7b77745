/*
 * config.c: settings: one table that the INI file, the options and --help read.
 *
 * Order: defaults, file, options; the last one said counts. A setting is checked where it is said, so that the message can name file and line.
 * What depends on the model (the context's maximum, whether the drafter fits) is checked by model.c.
 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/daemon.h"
#include "engine/log.h"

#define DEFAULT_FILE "/etc/tandem/tandem.ini"

enum kind { TEXT, INT, SIZE, REAL, MODE, LEVEL, USERS, GROUPS, KEYS, BAND };

struct setting {
	const char *section, *key;
	enum kind kind;
	size_t offset;
	double lo, hi;
	const char *def; /* NULL: none, or computed */
	const char *help;
	const char *choice; /* TEXT: allowed values, by '|' */
};

#define AT(field) offsetof(struct td_daemon_config, field)
static const struct setting settings[] = {
	{"tandem", "socket", TEXT, AT(socket), 0, 0, NULL, "where clients connect", NULL},
	{"tandem", "socket_mode", MODE, AT(socket_mode), 0, 0777, "0660", "its permissions, octal", NULL},
	{"tandem", "runtime_dir", TEXT, AT(runtime_dir), 0, 0, NULL, "folder for the lock and the workers' control sockets; one daemon each", NULL},
	{"tandem", "log_file", TEXT, AT(log_file), 0, 0, "", "log to this file as well as to stderr; SIGHUP reopens it", NULL},
	{"tandem", "log_level", LEVEL, AT(log_level), 0, 0, "info", "debug, info, warn or error", NULL},
	{"tandem", "max_connections", INT, AT(max_connections), 1, 65536, "512", "more are answered with an error", NULL},
	{"tandem", "handshake_s", INT, AT(handshake_s), 1, 3600, "10", "a connection that has not said Hello by then is closed", NULL},
	{"tandem", "drain_s", INT, AT(drain_s), 0, 86400, "30", "on SIGTERM running requests may go on so long; a second signal ends at once", NULL},
	{"tandem", "resume_s", INT, AT(resume_s), 0, 86400, "60", "a request can be resumed so long after it ended or its client vanished", NULL},
	{"http", "socket", TEXT, AT(http_socket), 0, 0, "", "Unix socket for HTTP, the OpenAI API; empty: none; auto: http.sock beside tandem.socket", NULL},
	{"http", "socket_mode", MODE, AT(http_socket_mode), 0, 0777, "0660", "its permissions, octal", NULL},
	{"http", "listen", TEXT, AT(http_listen), 0, 0, "", "address and port for HTTP, such as 127.0.0.1:8080; empty: none", NULL},
	{"http", "allow_remote", TEXT, AT(http_allow_remote), 0, 0, "no", "yes: http.listen may be another than a loopback address", "yes|no"},
	{"http", "require_key", TEXT, AT(http_require_key), 0, 0, "auto", "on http.listen: no: who gives no API key is the tenant default; auto: yes as soon as a tenant has keys, where tenants.unknown = refuse, or for an address that is not loopback", "auto|yes|no"},
	{"http", "header_s", INT, AT(http_header_s), 1, 3600, "10", "the head of a request must have come by then", NULL},
	{"http", "body_s", INT, AT(http_body_s), 1, 86400, "60", "and its body so long after that", NULL},
	{"http", "idle_s", INT, AT(http_idle_s), 1, 86400, "300", "a connection that asks nothing for so long is closed", NULL},
	{"http", "ping_s", INT, AT(http_ping_s), 1, 3600, "15", "a stream that has nothing to say for so long gets a comment, so that nobody on the way gives it up", NULL},
	{"model", "target", TEXT, AT(target), 0, 0, "", "folder of the model; must be set", NULL},
	{"model", "drafter", TEXT, AT(drafter), 0, 0, "", "folder of its drafter, or none: plain decoding; must be set", NULL},
	{"model", "tokenizer", TEXT, AT(tokenizer), 0, 0, "", "tokenizer.json; empty: in the target's folder, else beside that folder; --synthetic: the shipped one", NULL},
	{"model", "name", TEXT, AT(name), 0, 0, "", "what clients are told; empty: name of the target's folder", NULL},
	{"model", "thinking", TEXT, AT(thinking), 0, 0, "auto", "for chats that do not say: auto is on from 4B up, as the models are published", "auto|on|off"},
	{"model", "trust_content", TEXT, AT(trust_content), 0, 0, "no", "yes: a control token written inside a chat's message (<|im_end|>) counts as one; no: it is text", "yes|no"},
	{"model", "weights", TEXT, AT(weights), 0, 0, "file", "file: as the files have them; bf16: 4-bit weights are expanded at load", "file|bf16"},
	{"model", "head", TEXT, AT(head), 0, 0, "auto", "int4: a BF16 head is quantised at load, which makes it quicker and less exact; rescored: so, too, but the target's best 8 logits are computed again in BF16; auto: rescored where the other weights have 4 bits, else bf16", "auto|bf16|int4|rescored"},
	{"model", "activations", TEXT, AT(activations), 0, 0, "auto", "what enters products with 4-bit weights: bf16: as it is; int8: rounded to 8 bits, 128 values to a scale, which takes a GPU less time and is a little less exact; auto: int8 on a GPU, else bf16", "auto|bf16|int8"},
	{"model", "draft_vocabulary", TEXT, AT(draft_vocabulary), 0, 0, "all", "all, or a file that lists the tokens that drafts are chosen from: drafting takes less time, and answers stay what they are (tandem bench --count makes one)", NULL},
	{"engine", "device", TEXT, AT(device), 0, 0, "auto", "auto: the GPU where one and the CUDA module are there", "auto|cpu|cuda"},
	{"engine", "slots", INT, AT(slots), 1, TD_SLOTS_MAX, "4", "requests that run at once", NULL},
	{"engine", "context", INT, AT(context), TD_PAGE, 1 << 22, "auto", "tokens of prompt and answer together, a multiple of 64; auto: the model's, at most 4096", NULL},
	{"engine", "kv_tokens", INT, AT(kv_tokens), TD_PAGE, 1 << 28, "auto", "tokens of cache for all slots; auto: slots * context", NULL},
	{"engine", "prefix_cache", TEXT, AT(prefix_cache), 0, 0, "on", "prompts that begin like an earlier one of the same tenant are computed from where they differ", "on|off"},
	{"engine", "prefix_states", INT, AT(prefix_states), 0, 4096, "auto", "checkpoints of recurrent state that it keeps; auto: 16, fewer where memory is short", NULL},
	{"engine", "chunk", INT, AT(chunk), 64, 65536, "auto", "prompt tokens of one step, a multiple of 64, while nobody decodes; auto: 4096 on a GPU, with one slot 2048, else 256", NULL},
	{"engine", "draft_tokens", INT, AT(draft_tokens), 0, TD_DRAFT_MAX, "auto", "drafts per step; auto: the drafter's block - 1, on the CPU 4 unless a request asks for more; 0: no speculation", NULL},
	{"engine", "widths", TEXT, AT(widths), 0, 0, "auto", "folder with what `tandem bench --tune` measured, for fewer drafts where many requests share a step; auto: $STATE_DIRECTORY, /var/lib/tandem for root, else ~/.local/state/tandem; off: always all drafts", NULL},
	{"engine", "threads", INT, AT(threads), 0, 1024, "0", "of each worker on the CPU; 0: one per processor", NULL},
	{"engine", "target_worker", TEXT, AT(target_worker), 0, 0, "", "executable; empty: tandem-target beside tandemd, or in ../lib/tandem", NULL},
	{"engine", "drafter_worker", TEXT, AT(drafter_worker), 0, 0, "", "executable; empty: tandem-drafter beside tandemd, or in ../lib/tandem", NULL},
	{"engine", "mps", TEXT, AT(mps), 0, 0, "auto", "on a GPU both workers run at once by MPS; auto: where it can be had, else they take turns", "auto|on|off"},
	{"engine", "mps_control", TEXT, AT(mps_control), 0, 0, "", "executable; empty: nvidia-cuda-mps-control in PATH", NULL},
	{"engine", "mps_active_thread_percentage", INT, AT(mps_active_thread_percentage), 1, 100, "100", "of the GPU's threads, for each worker under MPS", NULL},
	{"engine", "watchdog_s", INT, AT(watchdog_s), 1, 86400, "20", "a worker that has work and makes no progress for so long is replaced", NULL},
	{"engine", "load_timeout_s", INT, AT(load_timeout_s), 1, 86400, "120", "the same while it loads", NULL},
	{"limits", "queue", INT, AT(queue), 0, 1000000, "256", "requests that may wait for a slot", NULL},
	{"limits", "output_buffer", SIZE, AT(output_buffer), 4096, 1 << 30, "4M", "bytes that may wait for a client's reading before its requests pause", NULL},
	{"limits", "slow_reader_s", INT, AT(slow_reader_s), 1, 86400, "60", "a client that leaves its buffer full for so long is dropped", NULL},
	{"limits", "max_frame", SIZE, AT(max_frame), 65536, 1 << 30, "8M", "largest message of a client, bytes", NULL},
	{"limits", "input_memory", SIZE, AT(input_memory), 65536, 1LL << 40, "64M", "bytes of half-sent messages of all clients, at least max_frame; past it the largest is refused", NULL},
	{"limits", "resume_memory", SIZE, AT(resume_memory), 0, 1LL << 40, "64M", "bytes of ended requests kept for Resume; the oldest go first", NULL},
	{"limits", "batch_age_s", INT, AT(batch_age_s), 0, 86400, "60", "a batch request that waited so long counts as interactive", NULL},
	{"limits", "quantum_ms", INT, AT(quantum_ms), 0, 3600000, "1000", "device time after which a request may be interrupted for a tenant that is behind by as much; 0: never", NULL},
	{"tenants", "unknown", TEXT, AT(tenants.unknown), 0, 0, "own", "users that no tenant names: each its own tenant, all the tenant default, or refused", "own|default|refuse"},
	{"tenants", "order", TEXT, AT(tenants.order), 0, 0, "fair", "fair: by device time used and weight; arrival: one queue for all, bands and weights ignored", "fair|arrival"},
	{"defaults", "temperature", REAL, AT(temperature), 0, 100, "0", "of requests that do not say; 0: greedy", NULL},
	{"defaults", "top_k", INT, AT(top_k), 0, INT_MAX, "0", "0: off", NULL},
	{"defaults", "top_p", REAL, AT(top_p), 1e-6, 1, "1", "", NULL},
	{"defaults", "min_p", REAL, AT(min_p), 0, 0.999999, "0", "", NULL},
	{"defaults", "repetition_penalty", REAL, AT(repetition_penalty), 0.01, 10, "1", "", NULL},
	{"defaults", "presence_penalty", REAL, AT(presence_penalty), -2, 2, "0", "", NULL},
	{"defaults", "frequency_penalty", REAL, AT(frequency_penalty), -2, 2, "0", "", NULL},
	{"defaults", "max_tokens", INT, AT(max_tokens), 0, 1 << 22, "0", "0: to the end of the context", NULL},
};
enum { N_SETTINGS = sizeof(settings) / sizeof(settings[0]) };
#undef AT

/* What a SIGHUP changes at once: single settings, or all of a section. Only what is looked up when it is needed; no text that another thread may read. */
static const char *const at_once[] = {
	"tandem.log_level", "tandem.max_connections", "tandem.handshake_s", "tandem.drain_s", "tandem.resume_s", "engine.watchdog_s", "engine.load_timeout_s",
	"http.require_key", "http.header_s", "http.body_s", "http.idle_s", "http.ping_s", "limits.", "tenants.", "defaults.",
};

/* Of each section [tenant NAME]. */
#define AT(field) offsetof(struct td_tenant_config, field)
#define TENANT "tenant NAME"
static const struct setting tenant_settings[] = {
	{TENANT, "uids", USERS, 0, 0, 0, "", "users that belong to it, numbers or names with commas; a user of several may choose (--tenant)", NULL},
	{TENANT, "gids", GROUPS, 0, 0, 0, "", "the same by group, for users that no tenant names", NULL},
	{TENANT, "api_keys", KEYS, 0, 0, 0, "", "keys of HTTP clients, with commas; of 8 to 256 characters; keep such a file unreadable for others", NULL},
	{TENANT, "weight", REAL, AT(weight), 0.001, 1000, "1", "its share of the device, next to the others' weights", NULL},
	{TENANT, "max_running", INT, AT(max_running), 0, TD_SLOTS_MAX, "0", "requests that run at once; 0: as many as there are slots", NULL},
	{TENANT, "queue", INT, AT(queue), 0, 1000000, "0", "requests that may wait; 0: limits.queue alone counts", NULL},
	{TENANT, "tokens_per_minute", SIZE, AT(tokens_per_minute), 0, 1LL << 40, "0", "of prompts and answers; 0: no limit", NULL},
	{TENANT, "context", INT, AT(context), 0, 1 << 22, "0", "tokens of prompt and answer together; 0: as the model", NULL},
	{TENANT, "memory_share", INT, AT(memory_share), 0, 100, "0", "per cent of the cache that it may hold while others wait; 0: no such limit", NULL},
	{TENANT, "band", BAND, AT(band), 0, 0, "interactive", "of requests that do not say (interactive|batch)", NULL},
};
enum { PREFIX = sizeof("tenant ") - 1, N_TENANT_SETTINGS = sizeof(tenant_settings) / sizeof(tenant_settings[0]) };

/* ---- one value --------------------------------------------------------------------------------------------------------------------- */

static int bad_value(const struct setting *s, const char *value, const char *want, struct td_error *err)
{
	return td_error_set(err, TD_E_INVALID, "%s.%s = %s: must be %s", s->section, s->key, value, want);
}

static int set_text(const struct setting *s, char **field, const char *value, struct td_error *err)
{
	char *copy;

	if (s->choice) {
		size_t n = strlen(value);
		const char *p = s->choice;
		int known = 0;

		while (*p) {
			size_t k = strcspn(p, "|");

			known |= k == n && !memcmp(p, value, n);
			p += k + (p[k] == '|');
		}
		if (!known)
			return bad_value(s, value, s->choice, err);
	}
	copy = strdup(value);
	if (!copy)
		return td_error_set(err, TD_E_NOMEM, "out of memory");
	free(*field);
	*field = copy;
	return 0;
}

static int set_number(const struct setting *s, void *field, const char *value, struct td_error *err)
{
	char want[96], *end;
	double x, scale = 1;

	snprintf(want, sizeof(want), s->kind == REAL ? "a number from %.6g to %.6g" : "a whole number from %.0f to %.0f", s->lo, s->hi);
	if (s->def && !strcmp(s->def, "auto")) {
		snprintf(want + strlen(want), sizeof(want) - strlen(want), ", or auto");
		if (!strcmp(value, "auto")) {
			*(int *)field = TD_AUTO;
			return 0;
		}
	}
	errno = 0;
	x = strtod(value, &end);
	if (end == value || errno || !isfinite(x))
		return bad_value(s, value, want, err);
	if (s->kind == SIZE && *end) {
		const char *unit = strchr("KMG", toupper((unsigned char)*end));

		if (unit && !end[1]) {
			scale = *unit == 'K' ? 1 << 10 : *unit == 'M' ? 1 << 20 : 1 << 30;
			end++;
		}
	}
	x *= scale;
	if (*end || x < s->lo || x > s->hi || (s->kind != REAL && x != floor(x)))
		return bad_value(s, value, want, err);
	if (s->kind == REAL)
		*(double *)field = x;
	else if (s->kind == SIZE)
		*(int64_t *)field = (int64_t)x;
	else
		*(int *)field = (int)x;
	return 0;
}

static int set(void *base, const struct setting *s, const char *value, struct td_error *err)
{
	void *field = (char *)base + s->offset;
	char *end;
	long mode;

	switch (s->kind) {
	case TEXT:
		return set_text(s, field, value, err);
	case MODE:
		mode = strtol(value, &end, 8);
		if (end == value || *end || mode < 0 || mode > 0777)
			return bad_value(s, value, "octal permissions such as 0660", err);
		*(int *)field = (int)mode;
		return 0;
	case LEVEL:
		*(int *)field = td_log_level_parse(value);
		return *(int *)field < 0 ? bad_value(s, value, "debug, info, warn or error", err) : 0;
	default:
		return set_number(s, field, value, err);
	}
}

static int set_band(const struct setting *s, int *band, const char *value, struct td_error *err)
{
	if (strcmp(value, "interactive") && strcmp(value, "batch"))
		return bad_value(s, value, "interactive or batch", err);
	*band = strcmp(value, "batch") ? TD_BAND_INTERACTIVE : TD_BAND_BATCH;
	return 0;
}

static int set_of_tenant(struct td_daemon_config *c, const char *name, size_t n_name, const struct setting *s, const char *value, struct td_error *err)
{
	struct td_tenant_config *t = td_tenant_config_get(&c->tenants, name, n_name, err);
	struct setting its = *s;
	char section[TD_TENANT_NAME + 16];
	int rc;

	if (!t)
		return err->code;
	snprintf(section, sizeof(section), "tenant %s", t->name);
	its.section = section;
	switch (s->kind) {
	case USERS:
		rc = td_tenant_config_uids(t, value, err);
		break;
	case GROUPS:
		rc = td_tenant_config_gids(t, value, err);
		break;
	case KEYS:
		rc = td_tenant_config_keys(&c->tenants, t, value, err);
		break;
	case BAND:
		return set_band(&its, &t->band, value, err);
	default:
		return set(t, &its, value, err);
	}
	return rc ? td_error_prefix(err, "%s.%s", section, s->key) : 0;
}

static int set_by_name(struct td_daemon_config *c, const char *section, size_t n_section, const char *key, size_t n_key, const char *value,
		       struct td_error *err)
{
	for (int i = 0; i < N_SETTINGS; i++) {
		const struct setting *s = &settings[i];

		if (strlen(s->section) == n_section && !memcmp(s->section, section, n_section) && strlen(s->key) == n_key && !memcmp(s->key, key, n_key))
			return set(c, s, value, err);
	}
	for (int i = 0; i < N_TENANT_SETTINGS && n_section > PREFIX && !memcmp(section, TENANT, PREFIX); i++)
		if (strlen(tenant_settings[i].key) == n_key && !memcmp(tenant_settings[i].key, key, n_key))
			return set_of_tenant(c, section + PREFIX, n_section - PREFIX, &tenant_settings[i], value, err);
	return td_error_set(err, TD_E_INVALID, "unknown setting %.*s.%.*s; tandemd --help lists them", (int)n_section, section, (int)n_key, key);
}

/* ---- file -------------------------------------------------------------------------------------------------------------------------- */

struct file {
	FILE *f;
	struct td_daemon_config *c;
	struct td_error *err;
	int line, too_long, rc;
};

/* inih cuts lines at its buffer's size and goes on with the rest as a new line: that must not pass unseen. */
static char *read_line(char *buf, int size, void *ctx)
{
	struct file *f = ctx;
	char *line = f->rc ? NULL : fgets(buf, size, f->f);

	if (!line)
		return NULL;
	f->line++;
	if (!strchr(line, '\n') && !feof(f->f)) {
		f->too_long = size - 2;
		return NULL;
	}
	return line;
}

static int take_pair(void *ctx, const char *section, const char *name, const char *value)
{
	struct file *f = ctx;

	f->rc = set_by_name(f->c, section, strlen(section), name, strlen(name), value, f->err);
	return f->rc == 0;
}

/* Keys in a file that everybody may read are everybody's: told once the log is open. */
static int note_exposed(struct td_daemon_config *c, const struct file *f, const char *path)
{
	struct stat st;
	int keys = 0;

	for (int i = 0; i < c->tenants.n; i++)
		keys += c->tenants.tenant[i].keys.n;
	if (!keys || fstat(fileno(f->f), &st) || !(st.st_mode & S_IROTH))
		return 0;
	c->tenants.exposed = strdup(path);
	return c->tenants.exposed ? 0 : td_error_set(f->err, TD_E_NOMEM, "out of memory");
}

/* At start a pipe is a file as good as any. Later tandemd would wait for a writer there, or find it empty and take the defaults. */
static FILE *open_file(const char *path, int again, struct td_error *err)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | (again ? O_NONBLOCK : 0));
	FILE *f = fd < 0 ? NULL : fdopen(fd, "r");
	struct stat st;

	if (!f)
		td_error_set(err, errno == ENOENT ? TD_E_NOT_FOUND : TD_E_IO, "cannot read %s: %s", path, strerror(errno));
	if (!f && fd >= 0)
		close(fd);
	if (!f || !again || (fstat(fd, &st) == 0 && S_ISREG(st.st_mode)))
		return f;
	fclose(f);
	td_error_set(err, TD_E_INVALID, "%s is not a regular file, so it can't be read again", path);
	return NULL;
}

static int load_file(struct td_daemon_config *c, const char *path, int again, struct td_error *err)
{
	struct file f = {.c = c, .err = err};
	int bad;

	f.f = open_file(path, again, err);
	if (!f.f)
		return err->code;
	bad = ini_parse_stream(read_line, &f, take_pair, &f);
	if (f.rc)
		td_error_prefix(err, "%s:%d", path, f.line);
	else if (ferror(f.f))
		f.rc = td_error_set(err, TD_E_IO, "cannot read %s: %s", path, strerror(errno));
	else if (f.too_long)
		f.rc = td_error_set(err, TD_E_INVALID, "%s:%d: the line is longer than %d bytes; use an option for this value", path, f.line, f.too_long);
	else if (bad)
		f.rc = td_error_set(err, TD_E_INVALID, "%s:%d: neither [section] nor key = value", path, bad > 0 ? bad : f.line);
	else
		f.rc = note_exposed(c, &f, path);
	fclose(f.f);
	return f.rc;
}

/* ---- options ----------------------------------------------------------------------------------------------------------------------- */

/* The value of an option "--name=value" or "--name value" into *value; moves *i past what it used. 0 when this argument is another option. */
static int option_value(int argc, char **argv, int *i, const char *name, const char **value, struct td_error *err)
{
	const char *arg = argv[*i];
	size_t n = strlen(name);

	if (strncmp(arg, name, n) || (arg[n] && arg[n] != '='))
		return 0;
	*value = arg[n] == '=' ? arg + n + 1 : *i + 1 < argc ? argv[++*i] : "";
	return **value ? 1 : td_error_set(err, TD_E_INVALID, "option %s needs a value", name);
}

static int take_option(struct td_daemon_config *c, int argc, char **argv, int *i, struct td_error *err)
{
	const char *arg = argv[*i], *name, *dot, *value;
	size_t n;

	if (strncmp(arg, "--", 2) || !strchr(arg, '.'))
		return td_error_set(err, TD_E_INVALID, "unknown option %s; see tandemd --help", arg);
	name = arg + 2;
	n = strcspn(name, "=");
	dot = memrchr(name, '.', n); /* a tenant's name may have some, a key has none */
	if (!dot)
		return td_error_set(err, TD_E_INVALID, "unknown option %s; see tandemd --help", arg);
	if (name[n] == '=')
		value = name + n + 1;
	else if (*i + 1 < argc)
		value = argv[++*i];
	else
		return td_error_set(err, TD_E_INVALID, "option %s needs a value", arg);
	return set_by_name(c, name, (size_t)(dot - name), dot + 1, n - (size_t)(dot - name) - 1, value, err);
}

/* What systemd made for the service ($RUNTIME_DIRECTORY, the first of them), $XDG_RUNTIME_DIR/tandem, or /run/tandem for root. */
static int default_dir(char *path, size_t size, struct td_error *err)
{
	const char *made = getenv("RUNTIME_DIRECTORY"), *xdg = getenv("XDG_RUNTIME_DIR");
	int n;

	if (made && made[0] == '/')
		n = snprintf(path, size, "%.*s", (int)strcspn(made, ":"), made);
	else if (xdg && xdg[0] == '/')
		n = snprintf(path, size, "%s/tandem", xdg);
	else if (geteuid() == 0)
		n = snprintf(path, size, "/run/tandem");
	else
		return td_error_set(err, TD_E_INVALID, "XDG_RUNTIME_DIR is not set: set tandem.socket and tandem.runtime_dir");
	return n < (int)size ? 0 : td_error_set(err, TD_E_INVALID, "RUNTIME_DIRECTORY or XDG_RUNTIME_DIR is too long");
}

static int fill_paths(struct td_daemon_config *c, struct td_error *err)
{
	char dir[PATH_MAX - 32], path[PATH_MAX];
	int rc;

	if (c->socket && c->socket[0] && c->runtime_dir && c->runtime_dir[0])
		return 0;
	if ((rc = default_dir(dir, sizeof(dir), err)))
		return rc;
	snprintf(path, sizeof(path), "%s/tandem.sock", dir);
	if (!c->socket || !c->socket[0]) {
		free(c->socket);
		c->socket = strdup(path);
		c->socket_by_default = 1;
	}
	if (!c->runtime_dir || !c->runtime_dir[0]) {
		free(c->runtime_dir);
		c->runtime_dir = strdup(dir);
	}
	return c->socket && c->runtime_dir ? 0 : td_error_set(err, TD_E_NOMEM, "out of memory");
}

/* http.socket = auto: beside tandem.socket. */
static int fill_http_socket(struct td_daemon_config *c, struct td_error *err)
{
	const char *slash = strrchr(c->socket, '/');
	char path[PATH_MAX];

	if (strcmp(c->http_socket, "auto"))
		return 0;
	snprintf(path, sizeof(path), "%.*shttp.sock", slash ? (int)(slash - c->socket + 1) : 0, c->socket);
	free(c->http_socket);
	c->http_socket = strdup(path);
	return c->http_socket ? 0 : td_error_set(err, TD_E_NOMEM, "out of memory");
}

static int check_whole(const struct td_daemon_config *c, struct td_error *err)
{
	if (!c->target[0])
		return td_error_set(err, TD_E_INVALID, "model.target is not set: name the folder of a model (--model.target=DIR)");
	if (!c->drafter[0])
		return td_error_set(err, TD_E_INVALID, "model.drafter is not set: name the folder of its drafter, or none for plain decoding");
	if (c->context != TD_AUTO && c->context % TD_PAGE)
		return td_error_set(err, TD_E_INVALID, "engine.context = %d: must be a multiple of %d", c->context, TD_PAGE);
	if (c->chunk != TD_AUTO && c->chunk % 64)
		return td_error_set(err, TD_E_INVALID, "engine.chunk = %d: must be a multiple of 64", c->chunk);
	return 0;
}

/* The same as naming both models; a later model.target or model.drafter counts. */
static int take_synthetic(struct td_daemon_config *c, const char *name, struct td_error *err)
{
	char *target, *drafter;
	int rc = td_synthetic_pair(name, &target, &drafter, err);

	if (rc)
		return td_error_prefix(err, "--synthetic");
	free(c->target);
	free(c->drafter);
	c->target = target;
	c->drafter = drafter;
	return 0;
}

static int load(int argc, char **argv, int again, struct td_daemon_config *c, enum td_config_action *action, struct td_error *err)
{
	const char *file = NULL, *value;
	int rc = 0;

	for (int i = 0; i < N_SETTINGS; i++)
		if (settings[i].def && (rc = set(c, &settings[i], settings[i].def, err)))
			return rc;
	for (int i = 1; i < argc; i++)
		if ((rc = option_value(argc, argv, &i, "--config", &file, err)) < 0)
			return rc;
	if (file || access(DEFAULT_FILE, F_OK) == 0)
		if ((rc = load_file(c, file ? file : DEFAULT_FILE, again, err)))
			return rc;
	for (int i = 1; i < argc; i++) {
		if (option_value(argc, argv, &i, "--config", &file, err))
			continue;
		if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))
			*action = TD_HELP;
		else if (!strcmp(argv[i], "--version"))
			*action = TD_VERSION_ACTION;
		else if (!strcmp(argv[i], "--settings"))
			*action = TD_SETTINGS;
		else if (!strcmp(argv[i], "--check"))
			*action = TD_CHECK;
		else if ((rc = option_value(argc, argv, &i, "--synthetic", &value, err)) > 0)
			rc = take_synthetic(c, value, err);
		else if (!rc)
			rc = take_option(c, argc, argv, &i, err);
		if (rc)
			return rc;
		if (*action == TD_HELP || *action == TD_VERSION_ACTION || *action == TD_SETTINGS)
			return 0;
	}
	if ((rc = fill_paths(c, err)) || (rc = fill_http_socket(c, err)))
		return rc;
	if (c->input_memory < c->max_frame)
		c->input_memory = c->max_frame;
	return check_whole(c, err);
}

static int load_all(int argc, char **argv, int again, struct td_daemon_config *c, enum td_config_action *action, struct td_error *err)
{
	int rc;

	memset(c, 0, sizeof(*c));
	*action = TD_RUN;
	rc = load(argc, argv, again, c, action, err);
	if (rc)
		td_daemon_config_finish(c);
	return rc;
}

int td_daemon_config_load(int argc, char **argv, struct td_daemon_config *c, enum td_config_action *action, struct td_error *err)
{
	return load_all(argc, argv, 0, c, action, err);
}

int td_daemon_config_again(int argc, char **argv, struct td_daemon_config *c, struct td_error *err)
{
	enum td_config_action action;

	return load_all(argc, argv, 1, c, &action, err);
}

void td_daemon_config_finish(struct td_daemon_config *c)
{
	for (int i = 0; i < N_SETTINGS; i++) {
		char **field = (char **)((char *)c + settings[i].offset);

		if (settings[i].kind != TEXT)
			continue;
		free(*field);
		*field = NULL;
	}
	td_tenants_config_finish(&c->tenants);
}

static void help_tenants(FILE *out)
{
	fputs("\n[tenant NAME]               as many as there are; the settings of [tenant default] are those of users that no section names;\n"
	      "                             as options: \"--tenant NAME.weight=3\", in one word of the shell\n",
	      out);
	for (int i = 0; i < N_TENANT_SETTINGS; i++) {
		char name[128];

		snprintf(name, sizeof(name), "%s = %s", tenant_settings[i].key, tenant_settings[i].def);
		fprintf(out, "  %-28s %s\n", name, tenant_settings[i].help);
	}
}

static int is_same(const struct setting *s, const void *a, const void *b)
{
	switch (s->kind) {
	case TEXT:
		return !strcmp(*(char *const *)a, *(char *const *)b);
	case REAL:
		return *(const double *)a == *(const double *)b;
	case SIZE:
		return *(const int64_t *)a == *(const int64_t *)b;
	default:
		return *(const int *)a == *(const int *)b;
	}
}

static void trade(const struct setting *s, void *a, void *b)
{
	size_t n = s->kind == TEXT ? sizeof(char *) : s->kind == REAL ? sizeof(double) : s->kind == SIZE ? sizeof(int64_t) : sizeof(int);
	char kept[sizeof(int64_t)];

	memcpy(kept, a, n);
	memcpy(a, b, n);
	memcpy(b, kept, n);
}

static int changes_at_once(const struct setting *s)
{
	char name[64];
	size_t section = (size_t)snprintf(name, sizeof(name), "%s.%s", s->section, s->key) - strlen(s->key);

	for (size_t i = 0; i < sizeof(at_once) / sizeof(*at_once); i++)
		if (!strcmp(at_once[i], name) || (strlen(at_once[i]) == section && !memcmp(at_once[i], name, section)))
			return 1;
	return 0;
}

void td_daemon_config_apply(struct td_daemon_config *c, struct td_daemon_config *fresh, void (*tell)(void *ctx, const char *section, const char *key, int taken),
			    void *ctx)
{
	for (int i = 0; i < N_SETTINGS; i++) {
		const struct setting *s = &settings[i];
		void *old = (char *)c + s->offset, *new = (char *)fresh + s->offset;
		int now = changes_at_once(s);

		if (is_same(s, old, new))
			continue;
		if (now)
			trade(s, old, new);
		tell(ctx, s->section, s->key, now);
	}
}

void td_daemon_config_help(FILE *out)
{
	const char *section = "";

	fputs("usage: tandemd [--config FILE] [--check] [--settings] [--version] [--synthetic NAME] [--section.key=value]...\n\n"
	      "Serves one model over a Unix socket. --check validates the configuration and the model's files' heads, and ends.\n"
	      "--settings lists all settings for programs: section, key, values, default, whether a reload is enough, meaning; with tabs between.\n"
	      "--synthetic qwen3.5-4b (or -0.8b, -2b, -9b, tiny; then :bf16, :g32, :seed=N) serves random weights of that size, to measure speed and memory;\n"
	      "without model.tokenizer the one that ships with tandem turns its tokens into text.\n"
	      "Settings, with their defaults; in the file they are lines `key = value` under [section] (default file: " DEFAULT_FILE ").\n"
	      "A SIGHUP reads the file again: tenants and settings with a * change at once, the others at the next start.\n"
	      "Exit codes: 0 ended by a signal; 2 the command line, the settings, the files or the system's limits must be changed before it can start; 1 anything\n"
	      "else failed, and the same command may do another time (a path or socket that is in use, for example).\n",
	      out);
	for (int i = 0; i < N_SETTINGS; i++) {
		const struct setting *s = &settings[i];
		const char *def = s->def ? s->def : !strcmp(s->key, "socket") ? "$RUNTIME_DIRECTORY/tandem.sock as a service, else $XDG_RUNTIME_DIR/tandem/tandem.sock, or /run/tandem/tandem.sock for root"
								      : "$RUNTIME_DIRECTORY as a service, else $XDG_RUNTIME_DIR/tandem, or /run/tandem for root";
		char name[128];

		if (strcmp(section, s->section))
			fprintf(out, "\n[%s]\n", section = s->section);
		snprintf(name, sizeof(name), "%s = %s", s->key, def);
		if (s->def)
			fprintf(out, "%c %-28s %s%s%s%s\n", changes_at_once(s) ? '*' : ' ', name, s->help, s->choice ? " (" : "", s->choice ? s->choice : "", s->choice ? ")" : "");
		else
			fprintf(out, "  %-28s %s\n  %-28s (default: %s)\n", s->key, s->help, "", def);
	}
	help_tenants(out);
}

/* "int 1 to 64, or auto" as reference pages have it. */
static void list_range(const struct setting *s, FILE *out)
{
	static const char *const form[] = {"text", "whole number", "number with K, M or G", "number", "octal permissions", "debug|info|warn|error", "users", "groups", "keys",
					   "interactive|batch"};

	fputs(s->choice ? s->choice : form[s->kind], out);
	if (s->kind == INT || s->kind == SIZE || s->kind == REAL)
		fprintf(out, s->kind == REAL ? ", %.6g to %.6g" : ", %.0f to %.0f", s->lo, s->hi);
	if (!s->choice && s->def && !strcmp(s->def, "auto"))
		fputs(", or auto", out);
}

static void list(const struct setting *s, int reload, FILE *out)
{
	fprintf(out, "%s\t%s\t", s->section, s->key);
	list_range(s, out);
	fprintf(out, "\t%s\t%s\t%s\n", s->def ? s->def : "-", reload ? "reload" : "restart", s->help);
}

void td_daemon_config_list(FILE *out)
{
	for (int i = 0; i < N_SETTINGS; i++)
		list(&settings[i], changes_at_once(&settings[i]), out);
	for (int i = 0; i < N_TENANT_SETTINGS; i++)
		list(&tenant_settings[i], 1, out);
}
