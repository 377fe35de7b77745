/*
 * cmd_chat.c: `tandem chat`: a conversation, with line editing on a terminal and plain lines otherwise.
 *
 * The conversation is kept here and sent whole with every question; the daemon's prefix cache makes that cheap. Nothing is said twice: a question that
 * failed is taken out again, an answer that was stopped stays as far as it came. On a terminal a failure ends the answer and not the program.
 */
#include <errno.h>
#include <histedit.h>
#include <locale.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wchar.h>

#include "client/command.h"

enum { HISTORY_LINES = 1000 };

static const char usage[] = "tandem chat [options]";
static const char about[] =
	"A conversation with the model. On a terminal with line editing and a history ($XDG_STATE_HOME/tandem/history, else ~/.local/state/tandem/history);\n"
	"otherwise each line of stdin is a question. A line that ends in a backslash goes on in the next one. Ctrl-C stops the answer, Ctrl-D ends.\n"
	"In the conversation: /help, /reset, /system TEXT, /save FILE, /load FILE, /stats, /quit. Files are JSON arrays of messages: role, content.\n\n"
	"Exit codes: 0 ended; 1 failed; 2 wrong usage; 3 no daemon; 4 not now. Without a terminal the first failure ends it.";

struct turn {
	const char *role; /* literal */
	char *content;
};

struct chat {
	struct td_common common;
	struct td_generation gen;
	struct tandem *t; /* NULL while there is no connection */
	char *system;
	struct turn *turn;
	size_t n_turns, size;
	struct td_text answer;
	int terminal, dim, json;
	struct tandem_finish last, sum; /* figures: of the last answer, and added up */
	uint32_t answers;
	EditLine *editor;
	History *history;
	char history_path[4096];
};

/*
 * Ctrl-C. A handler that only sets a flag loses the key when it comes just before the blocking read() of the next key. So the signal stays blocked
 * but for that read (and for the sleep in td_call_generate), and the handler leaves the read by a jump: no moment is left in which the key could be
 * missed. What the jump may lose is a byte just read, and its line is thrown away anyway. Nothing but that read is ever jumped out of.
 */
static volatile sig_atomic_t at_prompt_interrupted;
static sigjmp_buf out_of_read;
static sigset_t interrupt_set;
static const char *prompt_text = "> ";

static void on_interrupt(int sig)
{
	(void)sig;
	at_prompt_interrupted = 1;
	siglongjmp(out_of_read, 1);
}

static void interrupts_open(void)
{
	struct sigaction sa = {.sa_handler = on_interrupt};

	sigemptyset(&interrupt_set);
	sigaddset(&interrupt_set, SIGINT);
	sigprocmask(SIG_BLOCK, &interrupt_set, NULL);
	sigemptyset(&sa.sa_mask);
	sigaction(SIGINT, &sa, NULL);
}

/* One byte of the terminal: 1, 0 at its end, -1 after Ctrl-C or an error. */
static int read_byte(char *byte)
{
	ssize_t n;

	if (sigsetjmp(out_of_read, 1)) /* which blocks the signal again */
		return -1;
	do {
		sigprocmask(SIG_UNBLOCK, &interrupt_set, NULL);
		n = read(STDIN_FILENO, byte, 1);
		sigprocmask(SIG_BLOCK, &interrupt_set, NULL);
	} while (n < 0 && errno == EINTR);
	return (int)n;
}

/* For the editor: the next character. Bytes that are none in this locale are left out. */
static int read_key(EditLine *editor, wchar_t *key)
{
	mbstate_t state = {0};
	size_t used;
	char byte;
	int n;

	(void)editor;
	while ((n = read_byte(&byte)) == 1) {
		used = mbrtowc(key, &byte, 1, &state);
		if (used <= 1)
			return 1;
		if (used == (size_t)-1)
			state = (mbstate_t){0};
	}
	*key = L'\0';
	return n;
}

/* ---- the conversation -------------------------------------------------------------------------------------------------------------- */

static int add_turn(struct chat *c, const char *role, const char *content)
{
	struct turn *grown;
	char *copy = strdup(content);

	if (c->n_turns == c->size) {
		grown = realloc(c->turn, (c->size ? 2 * c->size : 16) * sizeof(*grown));
		if (grown) {
			c->turn = grown;
			c->size = c->size ? 2 * c->size : 16;
		}
	}
	if (!copy || c->n_turns == c->size) {
		free(copy);
		fprintf(stderr, "tandem chat: no memory\n");
		return -1;
	}
	c->turn[c->n_turns++] = (struct turn){role, copy};
	return 0;
}

static void drop_turns(struct chat *c, size_t keep)
{
	while (c->n_turns > keep)
		free(c->turn[--c->n_turns].content);
}

/* ---- one answer -------------------------------------------------------------------------------------------------------------------- */

static int on_delta(void *ctx, const struct tandem_delta *d)
{
	struct chat *c = ctx;

	if (td_text_add(&c->answer, d->text))
		return 1;
	if (c->json)
		return 0;
	fputs(d->text, stdout);
	if (c->dim && strstr(c->answer.data, "</think>")) {
		fputs("\033[0m", stdout);
		c->dim = 0;
	}
	fflush(stdout);
	return ferror(stdout);
}

static void on_finish(void *ctx, const struct tandem_finish *f)
{
	struct chat *c = ctx;

	c->last = *f;
	c->last.stop = NULL;
	c->sum.prompt_tokens += f->prompt_tokens;
	c->sum.output_tokens += f->output_tokens;
	c->sum.cycles += f->cycles;
	c->sum.drafted += f->drafted;
	c->sum.accepted += f->accepted;
	c->sum.decode_us += f->decode_us;
	c->answers++;
}

static int generate(struct chat *c, struct tandem_error *err)
{
	struct tandem_request r = {.sampling = c->gen.sampling, .deadline_ms = c->gen.deadline_ms, .band = c->gen.band, .no_cache = c->gen.no_cache};
	struct td_progress progress = {.command = "chat", .quiet = c->gen.quiet || c->json};
	struct tandem_handler h = {.ctx = c, .delta = on_delta, .finish = on_finish};
	struct tandem_message *message = calloc(c->n_turns + 1, sizeof(*message));
	size_t n = 0, i;
	int rc;

	if (!message) {
		*err = (struct tandem_error){.code = TANDEM_E_NOMEM, .name = "out_of_memory", .text = "no memory for the conversation"};
		return err->code;
	}
	if (c->system)
		message[n++] = (struct tandem_message){.role = "system", .content = c->system};
	for (i = 0; i < c->n_turns; i++)
		message[n++] = (struct tandem_message){.role = c->turn[i].role, .content = c->turn[i].content};
	r.prompt.message = message;
	r.prompt.n_messages = n;
	r.prompt.thinking = (enum tandem_thinking)c->gen.thinking;
	c->dim = c->terminal && c->gen.thinking == TANDEM_THINK_ON;
	if (c->dim)
		fputs("\033[2m", stdout);
	rc = td_call_generate(&c->t, &r, &h, &progress, err);
	if (c->dim)
		fputs("\033[0m", stdout);
	free(message);
	return rc;
}

/* An answer, or why there is none, on one line. */
static void print_json(const struct chat *c, const struct tandem_error *err)
{
	json_t *j;

	if (err) {
		j = json_pack("{s:o}", "error", td_json_error(err));
	} else {
		j = json_pack("{s:s}", "text", c->answer.data ? c->answer.data : "");
		json_object_update_missing_new(j, td_json_finish(&c->last));
	}
	td_json_print(j, JSON_COMPACT);
}

/* Returns the exit code of this question. */
static int ask(struct chat *c, const char *question)
{
	struct tandem_error err = {0};
	uint32_t answers = c->answers;
	size_t before = c->n_turns;
	int code = TD_EXIT_OK;

	if (!c->t)
		c->t = td_common_connect(&c->common, "chat", &code);
	if (!c->t)
		return code;
	if (add_turn(c, "user", question))
		return TD_EXIT_FAILED;
	c->answer.n = 0;
	if (c->answer.data)
		c->answer.data[0] = '\0';
	generate(c, &err);
	if (c->json)
		print_json(c, c->answers == answers ? &err : NULL);
	else if (c->answer.n && c->answer.data[c->answer.n - 1] != '\n')
		putchar('\n');
	fflush(stdout);
	if (c->answers == answers) {
		code = td_say_error("chat", &err);
		if (err.code == TANDEM_E_CONTEXT)
			fprintf(stderr, "The conversation is too long for the model: /reset starts anew.\n");
		drop_turns(c, before);
		return code;
	}
	if (c->last.reason == TANDEM_CANCELLED && c->terminal)
		fprintf(stderr, "[stopped]\n");
	return add_turn(c, "assistant", c->answer.data ? c->answer.data : "") ? TD_EXIT_FAILED : TD_EXIT_OK;
}

/* ---- commands ---------------------------------------------------------------------------------------------------------------------- */

static void say_stats(const struct chat *c)
{
	const struct tandem_finish *s = &c->sum;

	if (!c->answers) {
		fprintf(stderr, "No answer yet.\n");
		return;
	}
	fprintf(stderr, "Last answer: ");
	td_say_stats(&c->last);
	fprintf(stderr, "All %u: %u tokens read, %u written (%.1f/s), acceptance length %.2f.\n", c->answers, s->prompt_tokens, s->output_tokens,
		s->decode_us && s->output_tokens > c->answers ? (s->output_tokens - c->answers) / ((double)s->decode_us / 1e6) : 0,
		td_acceptance(s->accepted, s->cycles));
}

static int save(const struct chat *c, const char *path)
{
	json_t *list = json_array();
	int rc;

	if (c->system)
		json_array_append_new(list, json_pack("{s:s, s:s}", "role", "system", "content", c->system));
	for (size_t i = 0; i < c->n_turns; i++)
		json_array_append_new(list, json_pack("{s:s, s:s}", "role", c->turn[i].role, "content", c->turn[i].content));
	rc = td_chat_file_write(path, list);
	if (!rc)
		fprintf(stderr, "Saved: %zu messages.\n", json_array_size(list));
	json_decref(list);
	return rc;
}

/* Takes the place of the conversation so far; one that can't be read changes nothing. */
static int load(struct chat *c, const char *path)
{
	json_t *list = td_chat_file_read(path), *m;
	size_t i;
	int rc = 0;

	if (!list)
		return -1;
	drop_turns(c, 0);
	free(c->system);
	c->system = NULL;
	json_array_foreach(list, i, m) {
		const char *role = json_string_value(json_object_get(m, "role")), *content = json_string_value(json_object_get(m, "content"));

		if (rc)
			break;
		if (*role == 's')
			c->system = strdup(content);
		else
			rc = add_turn(c, *role == 'u' ? "user" : "assistant", content);
	}
	if (!rc)
		fprintf(stderr, "Loaded: %zu messages.\n", json_array_size(list));
	json_decref(list);
	return rc;
}

/* 1 when the conversation shall end, -1 when it failed. */
static int command(struct chat *c, const char *line)
{
	size_t n = strcspn(line, " \t");
	const char *rest = line + n + strspn(line + n, " \t");

	if ((n == 5 && !strncmp(line, "/quit", n)) || (n == 5 && !strncmp(line, "/exit", n)))
		return 1;
	if (n == 6 && !strncmp(line, "/reset", n)) {
		drop_turns(c, 0);
		fprintf(stderr, "A new conversation%s.\n", c->system ? " with the same system message" : "");
	} else if (n == 7 && !strncmp(line, "/system", n)) {
		free(c->system);
		c->system = *rest ? strdup(rest) : NULL;
		fprintf(stderr, c->system ? "The system message is set.\n" : "There is no system message now.\n");
	} else if (n == 5 && (!strncmp(line, "/save", n) || !strncmp(line, "/load", n))) {
		if (*rest)
			return line[1] == 's' ? save(c, rest) : load(c, rest);
		fprintf(stderr, "%.5s needs the name of a file.\n", line);
		return -1;
	} else if (n == 6 && !strncmp(line, "/stats", n)) {
		say_stats(c);
	} else if (n == 5 && !strncmp(line, "/help", n)) {
		fprintf(stderr, "/reset         forget the conversation\n"
				"/system TEXT   set the system message, without TEXT take it away\n"
				"/save FILE     write the conversation as JSON\n"
				"/load FILE     go on with the conversation that a file holds\n"
				"/stats         figures of the last answer and of all\n"
				"/quit          end, as Ctrl-D does\n"
				"Ctrl-C stops an answer. A line that ends in \\ goes on in the next. A question that begins with / needs a space before it.\n");
	} else {
		fprintf(stderr, "There is no command %.*s: /help lists them; a question that begins with / needs a space before it.\n", (int)n, line);
	}
	return 0;
}

/* ---- lines ------------------------------------------------------------------------------------------------------------------------- */

static char *prompt(EditLine *editor)
{
	(void)editor;
	return (char *)prompt_text;
}

/* mkdir -p for the folder of the history, which is nobody else's business; 0 when it is there. */
static int history_folder(struct chat *c)
{
	const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
	char *slash;
	int n;

	if (state && *state == '/')
		n = snprintf(c->history_path, sizeof(c->history_path), "%s/tandem/history", state);
	else if (home && *home == '/')
		n = snprintf(c->history_path, sizeof(c->history_path), "%s/.local/state/tandem/history", home);
	else
		return -1;
	if (n < 0 || (size_t)n >= sizeof(c->history_path))
		return -1;
	for (slash = c->history_path + 1; (slash = strchr(slash, '/')); slash++) {
		*slash = '\0';
		n = mkdir(c->history_path, 0700) && errno != EEXIST;
		*slash = '/';
		if (n)
			return -1;
	}
	return 0;
}

static void editor_open(struct chat *c)
{
	HistEvent ev;

	c->editor = el_init("tandem", stdin, stdout, stderr);
	c->history = history_init();
	if (!c->editor)
		return;
	interrupts_open();
	el_set(c->editor, EL_GETCFN, read_key);
	if (!c->history)
		return;
	history(c->history, &ev, H_SETSIZE, HISTORY_LINES);
	history(c->history, &ev, H_SETUNIQUE, 1);
	el_set(c->editor, EL_PROMPT, prompt);
	el_set(c->editor, EL_EDITOR, "emacs");
	el_set(c->editor, EL_HIST, history, c->history);
	el_set(c->editor, EL_BIND, "^R", "em-inc-search-prev", NULL);
	el_source(c->editor, NULL);
	if (history_folder(c))
		c->history_path[0] = '\0';
	else
		history(c->history, &ev, H_LOAD, c->history_path);
}

static void remember(struct chat *c, const char *line)
{
	mode_t mask = umask(077);
	HistEvent ev;

	if (c->history && line[strspn(line, " \t\n")]) {
		history(c->history, &ev, H_ENTER, line);
		if (*c->history_path)
			history(c->history, &ev, H_SAVE, c->history_path);
	}
	umask(mask);
}

static void editor_close(struct chat *c)
{
	if (c->history)
		history_end(c->history);
	if (c->editor)
		el_end(c->editor);
}

/* One line, malloc'd, without its newline. NULL at the end; "" with at_prompt_interrupted set after Ctrl-C. */
static char *read_line(struct chat *c)
{
	const char *edited;
	char *line = NULL;
	size_t size = 0;
	int n = 0;

	at_prompt_interrupted = 0;
	if (!c->editor)
		return getline(&line, &size, stdin) < 0 ? (free(line), NULL) : line;
	edited = el_gets(c->editor, &n);
	if (at_prompt_interrupted) {
		el_reset(c->editor);
		fputc('\n', stdout);
		return strdup("");
	}
	if (!edited || n <= 0)
		return NULL;
	remember(c, edited);
	return strdup(edited);
}

/* A question: one line, and what follows while lines end in a backslash. */
static int read_question(struct chat *c, struct td_text *q)
{
	int more = 1, rc = 0;
	char *line;

	q->n = 0;
	prompt_text = "> ";
	while (more && !rc && (line = read_line(c))) {
		size_t n = strcspn(line, "\n");

		line[n] = '\0';
		more = n > 0 && line[n - 1] == '\\';
		if (more)
			line[n - 1] = '\n';
		if (at_prompt_interrupted)
			q->n = 0;
		rc = td_text_add(q, line);
		free(line);
		prompt_text = "... ";
		if (!more)
			return rc ? -1 : 1;
	}
	return rc ? -1 : q->n > 0; /* the end in the middle of a question: ask it */
}

static int converse(struct chat *c)
{
	struct td_text q = {0};
	int code = TD_EXIT_OK, rc = 0;

	while ((c->terminal || !code) && (rc = read_question(c, &q)) > 0) {
		if (!q.data[strspn(q.data, " \t\n")])
			continue;
		if (q.data[0] == '/') {
			int did = command(c, q.data);

			if (did > 0)
				break;
			if (did < 0)
				code = TD_EXIT_FAILED;
		} else {
			code = ask(c, q.data);
		}
	}
	free(q.data);
	if (c->terminal && !rc)
		putchar('\n');
	if (rc < 0)
		fprintf(stderr, "tandem chat: no memory\n");
	return rc < 0 ? TD_EXIT_FAILED : c->terminal ? TD_EXIT_OK : code;
}

int td_cmd_chat(int argc, char **argv)
{
	struct chat c = {.terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO)};
	const char *system = NULL;
	struct td_option common[TD_COMMON_OPTIONS], gen[TD_GENERATION_OPTIONS];
	const struct td_option own[] = {
		{TD_OPT_TITLE, .help = "Conversation:"},
		{TD_OPT_TEXT, "system", 's', "TEXT", "system message; @FILE: what the file holds", &system, 0, NULL, 0},
		{TD_OPT_FLAG, "json", 0, NULL, "one JSON object a line per answer: text, figures, or an error", &c.json, 1, NULL, 0},
		{TD_OPT_END},
	};
	const struct td_option *tables[] = {own, gen, common, NULL};
	struct td_list words = {0};
	int code = TD_EXIT_USAGE;

	td_common_options(&c.common, common);
	td_generation_options(&c.gen, gen);
	if (td_options_parse(argc, argv, usage, about, tables, &words, &code))
		goto out;
	code = TD_EXIT_USAGE;
	c.terminal &= !c.json;
	c.common.json = c.json;
	if (words.n) {
		fprintf(stderr, "tandem chat: '%s' is not an option; for one question there is tandem run\n", words.item[0]);
		goto out;
	}
	if (td_generation_ready(&c.gen, "chat"))
		goto out;
	if (system && !(c.system = td_option_text(system, "system", "chat")))
		goto out;
	c.t = td_common_connect(&c.common, "chat", &code);
	if (!c.t)
		goto out;
	setlocale(LC_CTYPE, "");
	if (c.terminal) {
		const struct tandem_info *info = tandem_info(c.t);

		fprintf(stderr, "%s, %s, context of %u tokens. /help tells more, Ctrl-D ends.\n", info->model, info->server, info->context);
		editor_open(&c);
	}
	code = converse(&c);
out:
	editor_close(&c);
	tandem_close(c.t);
	drop_turns(&c, 0);
	free(c.turn);
	free(c.system);
	free(c.answer.data);
	td_list_finish(&words);
	td_generation_finish(&c.gen);
	return code;
}
