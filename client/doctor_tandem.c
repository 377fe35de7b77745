/*
 * doctor_tandem.c: our own programs and whether they start, model folders, and the daemon's socket (doctor.h).
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/doctor.h"
#include "engine/memplan.h"
#include "engine/model.h"
#include "engine/tokenizer.h"

/* Long enough for a dynamic linker on a busy machine. */
enum { START_LIMIT_MS = 5000 };

static int is_program(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

int td_doctor_program(const char *name, char *path, size_t size)
{
	const char *dirs = getenv("PATH"), *end;
	char self[4096];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	char *slash;

	self[n > 0 ? n : 0] = '\0';
	slash = strrchr(self, '/');
	if (slash)
		*slash = '\0';
	snprintf(path, size, "%s/%s", self, name);
	if (is_program(path))
		return 0;
	snprintf(path, size, "%s/../lib/tandem/%s", self, name); /* installed workers */
	if (is_program(path))
		return 0;
	for (; dirs && *dirs; dirs = *end ? end + 1 : end) {
		end = dirs + strcspn(dirs, ":");
		snprintf(path, size, "%.*s/%s", (int)(end - dirs), dirs, name);
		if (is_program(path))
			return 0;
	}
	return -1;
}

/* ---- programs ---------------------------------------------------------------------------------------------------------------------- */

/* Starts a program that ends by itself at once; its exit code (128 + a signal's number), and what it said first, in `said`. */
static int try_start(const char *path, char *arg, char *said, size_t size)
{
	char *argv[] = {(char *)path, arg, NULL};
	int pipes[2], status = 0;
	size_t n = 0;
	ssize_t got;
	struct pollfd p;
	pid_t pid;

	said[0] = '\0';
	if (pipe2(pipes, O_CLOEXEC))
		return -1;
	pid = fork();
	if (pid == 0) {
		dup2(pipes[1], STDOUT_FILENO);
		dup2(pipes[1], STDERR_FILENO);
		execv(path, argv);
		_exit(126);
	}
	close(pipes[1]);
	p = (struct pollfd){.fd = pipes[0], .events = POLLIN};
	while (pid > 0 && n + 1 < size && poll(&p, 1, START_LIMIT_MS) > 0 && (got = read(pipes[0], said + n, size - n - 1)) > 0)
		n += (size_t)got;
	said[n] = '\0';
	said[strcspn(said, "\n")] = '\0';
	close(pipes[0]);
	if (pid < 0)
		return -1;
	if (waitpid(pid, &status, WNOHANG) == 0) {
		poll(NULL, 0, 100); /* its output is closed: it is about to end */
		if (waitpid(pid, &status, WNOHANG) == 0) {
			kill(pid, SIGKILL);
			waitpid(pid, &status, 0);
		}
	}
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* A worker that is started by hand ends with a usage line, code 2: that far its libraries are all there. */
static void check_program(struct td_doctor *d, const char *name, char *arg, int code_wanted)
{
	char path[4200], said[300];
	struct td_finding *f;
	int code;

	if (td_doctor_program(name, path, sizeof(path))) {
		f = td_found(d, TD_FOUND_MISSING, "programs", "no %s beside this program, in ../lib/tandem, nor in PATH", name);
		f->fatal = 1;
		td_advise(f, "install all of tandem's programs (make install)");
		return;
	}
	code = try_start(path, arg, said, sizeof(said));
	if (code == code_wanted) {
		td_found(d, TD_FOUND_OK, "programs", "%s", path);
		return;
	}
	f = td_found(d, TD_FOUND_MISSING, "programs", "%s doesn't start (code %d): %.200s", name, code, said);
	f->fatal = 1;
	td_advise(f, code == 127 ? "install the library that it names (tools/setup.sh lists the packages)" : "build it again for this machine");
}

void td_doctor_programs(struct td_doctor *d)
{
	static char version[] = "--version";

	check_program(d, "tandemd", version, 0);
	check_program(d, "tandem-target", NULL, 2);
	check_program(d, "tandem-drafter", NULL, 2);
}

/* ---- models ------------------------------------------------------------------------------------------------------------------------ */

static struct td_finding *bad_model(struct td_doctor *d, const char *name, const char *text)
{
	struct td_finding *f = td_found(d, TD_FOUND_MISSING, name, "%s", text);

	f->fatal = 1;
	return f;
}

/* Bytes of the folder's weight files. */
static double weights_bytes(const char *dir)
{
	DIR *handle = opendir(dir);
	struct dirent *e;
	struct stat st;
	double bytes = 0;
	char path[4200];
	size_t n;

	while (handle && (e = readdir(handle))) {
		n = strlen(e->d_name);
		if (n < 13 || strcmp(e->d_name + n - 12, ".safetensors"))
			continue;
		snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
		if (stat(path, &st) == 0 && access(path, R_OK) == 0)
			bytes += (double)st.st_size;
	}
	if (handle)
		closedir(handle);
	return bytes;
}

static void check_weights(struct td_doctor *d, const char *name, const char *dir)
{
	double bytes = td_synthetic(dir) ? 0 : weights_bytes(dir);

	if (td_synthetic(dir))
		td_found(d, TD_FOUND_OK, name, "random weights, for measurements");
	else if (bytes > 0)
		td_found(d, TD_FOUND_OK, name, "%.1f MiB of weights", bytes / (1 << 20));
	else
		td_advise(bad_model(d, name, "no readable .safetensors file in the folder"), "download the whole model folder, or fix its permissions");
}

/* With tandemd's defaults, but for slots and context. */
static void check_memory(struct td_doctor *d, const struct td_target_config *t, const struct td_drafter_config *c)
{
	int slots = d->slots, rows = slots * TD_BLOCK_MAX;
	int context = d->context ? d->context : (t->max_position < 4096 ? t->max_position : 4096) / TD_PAGE * TD_PAGE;
	struct td_memplan_of of = {.target_dir = d->model, .drafter_dir = d->drafter, .device = d->gpu ? "cuda" : "cpu", .form = td_form_head("auto", t, 0),
				   .pool = {.kv_pages = slots * (context / TD_PAGE), .prefix_states = TD_PREFIX_STATES}};
	char line[TD_MEMPLAN_LINES][TD_MEMPLAN_TEXT];
	struct td_memplan p;
	struct td_error err;

	of.shm = (struct td_shm_config){.slots = slots, .context = context, .vocab = t->vocab, .features = c ? c->n_taps * t->hidden : 0, .chunk = td_chunk_auto(of.device, slots, context)};
	of.shm.feature_rows = rows > of.shm.chunk ? rows : of.shm.chunk;
	if (td_memplan_make(&of, &p, &err)) {
		bad_model(d, "memory plan", err.text);
		return;
	}
	td_memplan_text(&p, line);
	for (int i = 0; i < TD_MEMPLAN_LINES; i++)
		if (line[i][0])
			td_found(d, TD_FOUND_OK, "memory plan", "%s", line[i]);
	td_advise(d->finding + d->n - 1, "this is for %d slots of %d tokens on the %s; --slots and --context plan for others", slots, context, d->gpu ? "GPU" : "CPU");
}

static void quant_text(const struct td_quant *q, char *text, size_t size)
{
	if (q->n_sizes > 1)
		snprintf(text, size, "%d-bit weights in groups of %d sizes", q->bits, q->n_sizes);
	else if (q->n_sizes && q->size[0] > 0)
		snprintf(text, size, "%d-bit weights in groups of %d", q->bits, q->size[0]);
	else if (q->n_sizes)
		snprintf(text, size, "%d-bit weights, a scale for each row", q->bits);
	else
		snprintf(text, size, "unquantised weights");
}

static void check_tokenizer(struct td_doctor *d, const char *dir, const struct td_target_config *c)
{
	static const char *const places[] = {"%s/tokenizer.json", "%s/../tokenizer.json"};
	struct td_tokenizer *t;
	struct td_error err;
	char path[4200];
	size_t i;

	for (i = 0; i < 2; i++) {
		snprintf(path, sizeof(path), places[i], dir);
		if (access(path, R_OK) == 0)
			break;
	}
	if (i == 2) {
		td_advise(bad_model(d, "tokenizer", "no tokenizer.json in the model's folder nor beside it"),
			  "put the model's tokenizer.json there, or set model.tokenizer in the configuration");
		return;
	}
	if (td_tokenizer_load(path, &t, &err)) {
		bad_model(d, "tokenizer", err.text);
		return;
	}
	if (td_tokenizer_size(t) <= c->vocab)
		td_found(d, TD_FOUND_OK, "tokenizer", "%d ids, %s", td_tokenizer_size(t), path);
	else
		td_advise(td_found(d, TD_FOUND_WARN, "tokenizer", "%d ids, but the model has %d", td_tokenizer_size(t), c->vocab),
			  "it belongs to another model: use the model's own");
	td_tokenizer_free(t);
}

void td_doctor_model(struct td_doctor *d)
{
	struct td_target_config t;
	struct td_drafter_config c;
	struct td_error err;
	char quant[64];
	int full = 0, i;

	if (!d->model)
		return;
	if (td_target_config_load(d->model, &t, &err)) {
		td_advise(bad_model(d, "model", err.text), "tandem serves Qwen3.5 text models in Hugging Face folders");
		return;
	}
	for (i = 0; i < t.layers; i++)
		full += t.full_attention[i];
	quant_text(&t.quant, quant, sizeof(quant));
	td_found(d, TD_FOUND_OK, "model", "%s, %d layers (%d with attention), hidden %d, vocabulary %d, %s", t.model_type, t.layers, full, t.hidden,
		 t.vocab, quant);
	check_weights(d, "model", d->model);
	check_tokenizer(d, d->model, &t);
	if (!d->drafter) {
		check_memory(d, &t, NULL);
		return;
	}
	if (td_drafter_config_load(d->drafter, &c, &err) || td_pair_check(&t, &c, &err)) {
		td_advise(bad_model(d, "drafter", err.text), "use a drafter that was trained for this model, or none");
		return;
	}
	quant_text(&c.quant, quant, sizeof(quant));
	td_found(d, TD_FOUND_OK, "drafter", "fits: %d layers, %d taps, drafts %d tokens a step, %s", c.layers, c.n_taps, c.block - 1, quant);
	check_weights(d, "drafter", d->drafter);
	check_memory(d, &t, &c);
}

/* ---- socket ------------------------------------------------------------------------------------------------------------------------ */

/* Who may use the socket, for the advice. */
static void say_owner(struct td_finding *f, const char *path)
{
	struct stat st;
	struct group *g;

	if (stat(path, &st))
		return;
	g = getgrgid(st.st_gid);
	td_advise(f, "it has mode %03o and group %s: become a member of the group (then log in again), or ask for tandem.socket_mode", st.st_mode & 0777,
		  g ? g->gr_name : "of a number without a name");
}

static void check_runtime_folder(struct td_doctor *d)
{
	const char *dir = getenv("XDG_RUNTIME_DIR");
	int xdg = dir && *dir;

	if (!xdg)
		dir = "/run";
	if (access(dir, W_OK | X_OK) == 0)
		td_found(d, TD_FOUND_OK, "runtime folder", "%s may be written", dir);
	else
		td_advise(td_found(d, TD_FOUND_WARN, "runtime folder", "%s: %s", dir, strerror(errno)),
			  "a daemon of your own needs one: set XDG_RUNTIME_DIR, or tandem.socket and tandem.runtime_dir in its configuration");
}

void td_doctor_socket(struct td_doctor *d)
{
	const struct tandem_options o = {.client = "tandem doctor", .timeout_ms = 2000};
	char path[4200];
	struct tandem_error err;
	struct tandem *t;
	struct td_finding *f;

	check_runtime_folder(d);
	if (d->socket)
		snprintf(path, sizeof(path), "%s", d->socket);
	else
		tandem_socket_path(path, sizeof(path));
	t = tandem_connect(path, &o, &err);
	if (t) {
		const struct tandem_info *info = tandem_info(t);

		td_found(d, TD_FOUND_OK, "daemon", "%s serves %s at %s as tenant %s%s", info->server, info->model, path, info->tenant,
			 info->ready ? "" : " (still loading)");
		tandem_close(t);
		return;
	}
	f = td_found(d, TD_FOUND_WARN, "daemon", "%.380s", err.text);
	if (err.code == TANDEM_E_PERMISSION)
		say_owner(f, path);
}
