/*
 * model.c: what tandemd knows of the model before a worker runs: config.json of both, the tokenizer, and the sizes that follow.
 *
 * Of the weights only the files' heads are read: tensors are the workers' part. Whatever a person can get wrong in configuration and files is refused
 * here, in one sentence, before anything is started. The result never changes, so other threads may read it.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/daemon.h"
#include "engine/fault.h"
#include "engine/log.h"
#include "engine/token_mask.h"

enum {
	DEFAULT_CONTEXT = 4096,
	CPU_DRAFTS = 4,
	THINKING_HIDDEN = 2560, /* of the 4B model, the smallest that thinks unless told not to */
};

char *td_model_beside(const char *name)
{
	char self[PATH_MAX], *path;
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	char *slash;

	if (n < 0)
		return NULL;
	self[n] = 0;
	slash = strrchr(self, '/');
	if (!slash)
		return NULL;
	*slash = 0;
	return asprintf(&path, "%s/%s", self, name) < 0 ? NULL : path;
}

static int readable(const char *path)
{
	return path && access(path, R_OK) == 0;
}

static int is_folder(const char *setting, const char *path, struct td_error *err)
{
	struct stat st;

	if (td_synthetic(path))
		return 0;
	if (stat(path, &st) < 0)
		return td_error_set(err, errno == ENOENT ? TD_E_NOT_FOUND : TD_E_IO, "%s = %s: %s", setting, path, strerror(errno));
	if (!S_ISDIR(st.st_mode))
		return td_error_set(err, TD_E_INVALID, "%s = %s: is not a folder", setting, path);
	return 0;
}

/* What can't be looked at is told by whoever reads it next. */
static void identify(const char *dir, char identity[TD_IDENTITY])
{
	struct td_error err;

	if (td_weights_identity(dir, identity, &err))
		identity[0] = 0;
}

/* First of all: a file that is replaced from now on is noticed when a worker has read it. */
static void identify_both(const struct td_daemon_config *c, struct td_model *m)
{
	identify(c->target, m->target_files);
	if (strcmp(c->drafter, "none"))
		identify(c->drafter, m->drafter_files);
}

int td_model_is_of(const struct td_model *m, int is_target, const char *fingerprint)
{
	const char *files = is_target ? m->target_files : m->drafter_files;
	const struct td_ops ops = {.name = m->device};
	char ours[256];

	td_weights_fingerprint_of(&ops, files, m->form, ours);
	return !files[0] || !strcmp(fingerprint, ours);
}

static int load_configs(const struct td_daemon_config *c, struct td_model *m, struct td_error *err)
{
	int rc;

	if ((rc = is_folder("model.target", c->target, err)))
		return rc;
	if ((rc = td_target_config_load(c->target, &m->target, err)))
		return td_error_prefix(err, "model.target");
	m->form = td_form_head(c->head, &m->target, strcmp(c->weights, "bf16") ? 0 : TD_FORM_BF16);
	m->has_drafter = strcmp(c->drafter, "none") != 0;
	if (!m->has_drafter)
		return 0;
	if ((rc = is_folder("model.drafter", c->drafter, err)))
		return rc;
	if ((rc = td_drafter_config_load(c->drafter, &m->drafter, err)))
		return td_error_prefix(err, "model.drafter");
	if ((rc = td_pair_check(&m->target, &m->drafter, err)))
		return td_error_prefix(err, "model.drafter does not fit model.target");
	return 0;
}

/* ---- tokenizer --------------------------------------------------------------------------------------------------------------------- */

/* A model without files has none; any that fits will do, and the shipped one is there: installed, in a bundle, in the source tree. */
static int shipped_tokenizer(char path[PATH_MAX])
{
	static const char *const place[] = {"../share/tandem", "..", "../.."};
	int found = 0;

	for (size_t i = 0; i < sizeof(place) / sizeof(*place) && !found; i++) {
		char name[64], *at;

		snprintf(name, sizeof(name), "%s/models/tiny/tokenizer.json", place[i]);
		at = td_model_beside(name);
		found = readable(at) && snprintf(path, PATH_MAX, "%s", at) < PATH_MAX;
		free(at);
	}
	return found;
}

static int find_tokenizer(const struct td_daemon_config *c, char path[PATH_MAX], struct td_error *err)
{
	static const char *const place[] = {"%s/tokenizer.json", "%s/../tokenizer.json"};

	if (c->tokenizer[0]) {
		if (snprintf(path, PATH_MAX, "%s", c->tokenizer) < PATH_MAX && readable(path))
			return 0;
		return td_error_set(err, TD_E_NOT_FOUND, "model.tokenizer = %s: %s", c->tokenizer, strerror(errno));
	}
	if (td_synthetic(c->target)) {
		if (shipped_tokenizer(path))
			return 0;
		return td_error_set(err, TD_E_NOT_FOUND, "the tokenizer that ships with tandem (models/tiny) is not where it was installed: set model.tokenizer");
	}
	for (int i = 0; i < 2; i++)
		if (snprintf(path, PATH_MAX, place[i], c->target) < PATH_MAX && readable(path))
			return 0;
	return td_error_set(err, TD_E_NOT_FOUND, "there is no tokenizer.json in %s nor beside it: set model.tokenizer", c->target);
}

/* The chat template writes these as single tokens; without them a chat would be read as plain text that happens to hold angle brackets. */
static int check_template_tokens(const struct td_model *m, const char *path, struct td_error *err)
{
	static const char *const token[] = {"<|im_start|>", "<|im_end|>"};

	for (int i = 0; i < 2; i++)
		if (td_tokenizer_added(m->tokenizer, token[i]) < 0)
			return td_error_set(err, TD_E_MISMATCH, "%s has no added token %s, which chats of a %s model are made of: it belongs to another model", path,
					    token[i], m->target.model_type);
	return 0;
}

static int load_tokenizer(const struct td_daemon_config *c, struct td_model *m, struct td_error *err)
{
	char path[PATH_MAX];
	int rc;

	if ((rc = find_tokenizer(c, path, err)))
		return rc;
	if ((rc = td_tokenizer_load(path, &m->tokenizer, err)))
		return td_error_prefix(err, "model.tokenizer");
	m->vocab_real = td_tokenizer_size(m->tokenizer);
	if (m->vocab_real > m->target.vocab)
		return td_error_set(err, TD_E_MISMATCH, "%s has ids up to %d, the target's vocabulary only %d: it belongs to another model", path,
				    m->vocab_real - 1, m->target.vocab);
	return check_template_tokens(m, path, err);
}

static void end_add(struct td_model *m, int id)
{
	for (int i = 0; i < m->n_end; i++)
		if (m->end[i] == id)
			return;
	if (id >= 0 && m->n_end < TD_STOP_IDS_MAX)
		m->end[m->n_end++] = id;
}

/* The ids that the model's files name, and the end of a chat turn, which config.json of the base models leaves out. */
static void find_ends(struct td_model *m)
{
	for (int i = 0; i < m->target.n_eos; i++)
		end_add(m, m->target.eos[i]);
	end_add(m, td_tokenizer_added(m->tokenizer, "<|im_end|>"));
}

/* After the ends and vocab_real are known. */
static int read_draft_list(const struct td_daemon_config *c, struct td_model *m, struct td_error *err)
{
	if (!m->has_drafter || !strcmp(c->draft_vocabulary, "all"))
		return 0;
	if (td_draft_list_read(c->draft_vocabulary, m->tokenizer, m->vocab_real, m->end, m->n_end, &m->draft, err))
		return td_error_prefix(err, "model.draft_vocabulary");
	td_log(TD_LOG_INFO, "drafts are chosen from %d of %d tokens: %d of %s, and those that are always there", m->draft.n, m->vocab_real, m->draft.listed,
	       c->draft_vocabulary);
	return 0;
}

/* ---- sizes ------------------------------------------------------------------------------------------------------------------------- */

static int plan_context(const struct td_daemon_config *c, struct td_model *m, struct td_error *err)
{
	int most = m->target.max_position, context = c->context;

	if (m->has_drafter && m->drafter.max_position > 0 && m->drafter.max_position < most)
		most = m->drafter.max_position;
	if (context == TD_AUTO)
		context = (most < DEFAULT_CONTEXT ? most : DEFAULT_CONTEXT) / TD_PAGE * TD_PAGE;
	if (context > most)
		return td_error_set(err, TD_E_INVALID, "engine.context = %d: the model's positions end at %d", context, most);
	if (context < TD_PAGE)
		return td_error_set(err, TD_E_INVALID, "the model has only %d positions; tandem needs %d", most, TD_PAGE);
	m->shm.context = context;
	return 0;
}

/* A row more costs a GPU almost nothing and the CPU its whole price, so there a short draft is the best one for most texts (bench/LOG.md). */
static int plan_drafts(const struct td_daemon_config *c, struct td_model *m, struct td_error *err)
{
	int most = m->has_drafter ? m->drafter.block - 1 : 0;

	if (m->has_drafter && c->draft_tokens > most)
		return td_error_set(err, TD_E_INVALID, "engine.draft_tokens = %d: the drafter's block of %d gives at most %d", c->draft_tokens, m->drafter.block, most);
	m->k_max = c->draft_tokens == TD_AUTO ? most : c->draft_tokens < most ? c->draft_tokens : most;
	m->k = c->draft_tokens == TD_AUTO && m->shm.host_exchange && most > CPU_DRAFTS ? CPU_DRAFTS : m->k_max;
	return 0;
}

static int plan(const struct td_daemon_config *c, struct td_model *m, struct td_error *err)
{
	int64_t kv;
	int rc;

	if ((rc = plan_context(c, m, err)))
		return rc;
	kv = c->kv_tokens == TD_AUTO ? (int64_t)c->slots * m->shm.context : c->kv_tokens;
	if (kv < m->shm.context)
		return td_error_set(err, TD_E_INVALID, "engine.kv_tokens = %lld: must hold at least one context of %d tokens", (long long)kv, m->shm.context);
	if (kv / TD_PAGE > INT_MAX / 2)
		return td_error_set(err, TD_E_INVALID, "engine.slots * engine.context is too large");
	m->kv_pages = (int)(kv / TD_PAGE);
	m->prefix_states = !strcmp(c->prefix_cache, "off") ? 0 : c->prefix_states == TD_AUTO ? TD_PREFIX_STATES : c->prefix_states;
	m->shm.slots = c->slots;
	m->shm.vocab = m->target.vocab;
	m->shm.features = m->has_drafter ? m->drafter.n_taps * m->target.hidden : 0;
	m->device = td_device_choose(c->device);
	m->form = td_form_activations(c->activations, m->device, m->form);
	m->shm.chunk = c->chunk == TD_AUTO ? td_chunk_auto(m->device, c->slots, m->shm.context) : c->chunk;
	m->shm.feature_rows = m->shm.chunk > c->slots * TD_BLOCK_MAX ? m->shm.chunk : c->slots * TD_BLOCK_MAX;
	m->shm.host_exchange = strcmp(m->device, "cuda") != 0;
	if ((rc = plan_drafts(c, m, err)))
		return rc;
	m->thinking_default = !strcmp(c->thinking, "auto") ? m->target.hidden >= THINKING_HIDDEN : !strcmp(c->thinking, "on");
	return 0;
}

/* ---- names ------------------------------------------------------------------------------------------------------------------------- */

static int find_worker(const char *setting, const char *configured, const char *name, char **path, struct td_error *err)
{
	struct stat st;

	*path = configured[0] ? strdup(configured) : td_model_beside(name);
	if (!configured[0] && *path && access(*path, X_OK) < 0) { /* installed: programs in bin, workers in lib/tandem */
		char installed[64];

		snprintf(installed, sizeof(installed), "../lib/tandem/%s", name);
		free(*path);
		*path = td_model_beside(installed);
	}
	if (!*path)
		return td_error_set(err, TD_E_NOMEM, "out of memory");
	if (access(*path, X_OK) < 0 || stat(*path, &st) < 0)
		return td_error_set(err, TD_E_NOT_FOUND, "%s: cannot run %s: %s", setting, *path, strerror(errno));
	if (!S_ISREG(st.st_mode)) /* a folder has the right that access asks about */
		return td_error_set(err, TD_E_NOT_FOUND, "%s: cannot run %s: it is not a program", setting, *path);
	return 0;
}

static void name_model(const struct td_daemon_config *c, struct td_model *m)
{
	const char *name = c->name[0] ? c->name : c->target, *slash;
	size_t n = strlen(name);

	while (!c->name[0] && n > 1 && name[n - 1] == '/')
		n--;
	slash = c->name[0] ? NULL : memrchr(name, '/', n);
	if (slash && slash + 1 < name + n) {
		n -= (size_t)(slash + 1 - name);
		name = slash + 1;
	}
	snprintf(m->name, sizeof(m->name), "%.*s", (int)n, name);
	if (!td_utf8_check(m->name, strlen(m->name)))
		snprintf(m->name, sizeof(m->name), "model");
	if (td_fault_set("target.assume")) /* whoever asks what is served shall see it */
		snprintf(m->name, sizeof(m->name), "%.60s (acceptance assumed, ANSWERS ARE MEANINGLESS)", td_synthetic(c->target) ? c->target : "");
}

/* A lever for measuring must never change what somebody takes for an answer. */
static int check_assume(const struct td_daemon_config *c, struct td_error *err)
{
	if (!td_fault_set("target.assume"))
		return 0;
	if (!td_synthetic(c->target))
		return td_error_set(err, TD_E_INVALID, "TANDEM_FAULT=target.assume is for --synthetic models: with it answers are meaningless");
	td_log(TD_LOG_WARN, "TANDEM_FAULT=target.assume: acceptance is assumed, as seeds say: ANSWERS ARE MEANINGLESS");
	return 0;
}

int td_model_plan_memory(const struct td_daemon_config *c, struct td_model *m, struct td_error *err)
{
	const struct td_memplan_of of = {.target_dir = c->target, .drafter_dir = m->has_drafter ? c->drafter : NULL, .device = m->device,
					 .form = m->form, .draft_ids = m->draft.n, .shm = m->shm,
					 .pool = {.kv_pages = m->kv_pages, .prefix_states = m->prefix_states}};
	int rc = td_memplan_make(&of, &m->memory, err);

	m->memory_known = rc == 0;
	if (td_is_lasting(rc))
		return rc;
	if (rc)
		td_log(TD_LOG_WARN, "memory can't be planned: %s", err->text);
	return 0;
}

uint64_t td_model_drafter_bytes(const struct td_model *m, int loaded)
{
	const struct td_memplan_worker *w = &m->memory.drafter;

	return m->memory_known && m->has_drafter ? (loaded ? 0 : w->weights) + w->kv + w->buffers + w->context : 0;
}

/* Only told: the workers compare it with what is free, and refuse. */
void td_model_tell_memory(const struct td_model *m)
{
	char line[TD_MEMPLAN_LINES][TD_MEMPLAN_TEXT];

	if (!m->memory_known)
		return;
	td_memplan_text(&m->memory, line);
	for (int i = 0; i < TD_MEMPLAN_LINES; i++)
		if (line[i][0])
			td_log(TD_LOG_INFO, "memory of the %s: %s", m->device, line[i]);
}

int td_model_load(const struct td_daemon_config *c, struct td_model *m, struct td_error *err)
{
	int rc;

	memset(m, 0, sizeof(*m));
	identify_both(c, m);
	if ((rc = check_assume(c, err)) || (rc = load_configs(c, m, err)) || (rc = load_tokenizer(c, m, err)) || (rc = plan(c, m, err)) ||
	    (rc = find_worker("engine.target_worker", c->target_worker, "tandem-target", &m->target_worker, err)) ||
	    (m->has_drafter && (rc = find_worker("engine.drafter_worker", c->drafter_worker, "tandem-drafter", &m->drafter_worker, err)))) {
		td_model_finish(m);
		return rc;
	}
	if (td_fault_set("target.assume")) /* the shipped tokenizer is small; sampling shall take what it takes with all ids of the model */
		m->vocab_real = m->target.vocab;
	find_ends(m);
	if ((rc = read_draft_list(c, m, err)) || (rc = td_vocab_make(m->tokenizer, m->vocab_real, &m->vocab_fd, err))) {
		m->vocab_fd = 0;
		td_model_finish(m);
		return rc;
	}
	m->trust_content = !strcmp(c->trust_content, "yes");
	name_model(c, m);
	return 0;
}

void td_model_finish(struct td_model *m)
{
	td_draft_list_finish(&m->draft);
	td_tokenizer_free(m->tokenizer);
	if (m->vocab_fd > 0)
		close(m->vocab_fd);
	m->vocab_fd = 0;
	free(m->target_worker);
	free(m->drafter_worker);
	m->tokenizer = NULL;
	m->target_worker = m->drafter_worker = NULL;
}
