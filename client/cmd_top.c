/*
 * cmd_top.c: `tandem top`: the daemon's figures again and again, as a live screen or as plain blocks (top.h).
 *
 * The terminal is set up by plain control sequences and put back by every way out: end, signal, suspension. Signals are blocked but while it sleeps, so
 * nothing is half drawn. A daemon that goes away is no end: the screen says so, and each interval tries to connect again.
 * What must never happen: a terminal left in the other mode.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "client/top.h"

static const char usage[] = "tandem top [options]";
static const char about[] =
	"Shows what the daemon does, live: tenants, queue, speed, acceptance, the parts of a cycle, cache, workers. Figures are those of the last interval;\n"
	"the first ones are since the daemon's start. Without a terminal it writes a block of plain text per interval.\n\n"
	"Keys: q ends; p or space pauses; tenants are sorted by n name, r running, w waiting, t tokens, d device time, a acceptance, x wasted time.\n"
	"While the daemon is away it says so and goes on when it is back. NO_COLOR=1 leaves bold and reverse letters out.\n\n"
	"Exit codes: 0 ended; 2 wrong usage; 3 no daemon at the start, or none at the last interval; 130 stopped by Ctrl-C.";

enum { ANSWER_MS = 2000, OTHER_LIFE_MS = 500, PLAIN_WIDTH = 120, LEAST_INTERVAL_MS = 50 };

struct top {
	struct td_common common;
	uint32_t interval_ms, count;
	const char *sort_name;
	enum td_top_sort sort;
	int json;
	/* the daemon */
	struct tandem *t;
	struct tandem_status *before, *now;
	struct tandem_error error; /* now is NULL: why */
	int64_t born_ms; /* when it started, by our clock */
	int restarted; /* since the answer before */
	/* the screen */
	int terminal, style, paused, raw;
	struct termios tio;
	sigset_t mask; /* while it sleeps */
	struct td_top_screen screen;
};

static volatile sig_atomic_t ended_by, resized, suspended;

static void on_signal(int sig)
{
	if (sig == SIGWINCH)
		resized = 1;
	else if (sig == SIGTSTP)
		suspended = 1;
	else
		ended_by = sig;
}

/* ---- terminal ---------------------------------------------------------------------------------------------------------------------- */

static void terminal_open(struct top *o)
{
	struct termios tio;

	if (tcgetattr(STDIN_FILENO, &o->tio))
		return;
	tio = o->tio;
	tio.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
	tio.c_cc[VMIN] = 0;
	tio.c_cc[VTIME] = 0;
	tcsetattr(STDIN_FILENO, TCSADRAIN, &tio);
	o->raw = 1;
	fputs("\033[?1049h\033[?25l\033[H\033[2J", stdout);
	fflush(stdout);
}

static void terminal_close(struct top *o)
{
	if (!o->raw)
		return;
	fputs("\033[0m\033[?25h\033[?1049l", stdout);
	fflush(stdout);
	tcsetattr(STDIN_FILENO, TCSADRAIN, &o->tio);
	o->raw = 0;
}

static void signals_catch(struct top *o)
{
	static const int caught[] = {SIGINT, SIGTERM, SIGHUP, SIGWINCH, SIGTSTP};
	struct sigaction sa = {.sa_handler = on_signal};
	sigset_t set;

	sigemptyset(&set);
	sigemptyset(&sa.sa_mask);
	for (size_t i = 0; i < sizeof(caught) / sizeof(caught[0]); i++) {
		if (caught[i] == SIGTSTP && !o->terminal)
			continue;
		sigaddset(&set, caught[i]);
		sigaction(caught[i], &sa, NULL);
	}
	sigprocmask(SIG_BLOCK, &set, &o->mask);
	for (size_t i = 0; i < sizeof(caught) / sizeof(caught[0]); i++)
		sigdelset(&o->mask, caught[i]);
}

/* Ctrl-Z: the shell gets its terminal as it was, and we ours when we go on. */
static void suspend(struct top *o)
{
	suspended = 0;
	terminal_close(o);
	raise(SIGSTOP);
	terminal_open(o);
}

static void screen_size(int *width, int *height)
{
	struct winsize w;

	*width = 80;
	*height = 24;
	if (!ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) && w.ws_col && w.ws_row) {
		*width = w.ws_col;
		*height = w.ws_row;
	}
	if (*width > TD_TOP_WIDTH)
		*width = TD_TOP_WIDTH;
}

/* ---- drawing ----------------------------------------------------------------------------------------------------------------------- */

static void compose(struct top *o)
{
	struct td_top_screen *s = &o->screen;

	s->n = 0;
	if (o->paused)
		td_top_add(s, TD_TOP_BOLD, "paused: p goes on");
	if (!o->now)
		td_top_add(s, TD_TOP_BOLD, "no daemon, trying again: %s (%s)", o->error.text, o->error.name);
	else if (o->restarted)
		td_top_add(s, TD_TOP_BOLD, "the daemon was restarted: figures are since then");
	if (o->now)
		td_top_view(s, o->before, o->now, o->sort);
}

static void draw_terminal(struct top *o)
{
	static const char *const style[] = {"", "\033[1m", "\033[7m"};
	int height;

	screen_size(&o->screen.width, &height);
	compose(o);
	fputs("\033[H", stdout);
	for (int i = 0; i < o->screen.n && i < height; i++) {
		int styled = o->style && o->screen.line[i].style != TD_TOP_PLAIN;

		printf("%s%s%s%s\033[K", i ? "\n" : "", styled ? style[o->screen.line[i].style] : "", o->screen.line[i].text, styled ? "\033[0m" : "");
	}
	fputs("\033[J", stdout);
	fflush(stdout);
}

static void draw_plain(struct top *o)
{
	if (o->json) {
		td_json_print(o->now ? td_json_status(o->now) : json_pack("{s:o}", "error", td_json_error(&o->error)), JSON_COMPACT);
	} else {
		o->screen.width = PLAIN_WIDTH;
		compose(o);
		for (int i = 0; i < o->screen.n; i++)
			puts(o->screen.line[i].text);
		putchar('\n');
	}
	fflush(stdout);
}

static void draw(struct top *o)
{
	if (o->terminal)
		draw_terminal(o);
	else
		draw_plain(o);
}

/* ---- the daemon -------------------------------------------------------------------------------------------------------------------- */

static int64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

/* A connection that was lost is made again at once: a daemon that just restarts is not away. */
static struct tandem_status *ask(struct top *o)
{
	struct tandem_options options = {.client = "tandem " TANDEM_VERSION, .tenant = o->common.tenant, .timeout_ms = ANSWER_MS};
	struct tandem_status *s = NULL;

	for (int again = o->t != NULL; !s && again >= 0; again--) {
		if (!o->t)
			o->t = tandem_connect(o->common.socket, &options, &o->error);
		s = o->t ? tandem_status(o->t, &o->error) : NULL;
		if (!s) {
			tandem_close(o->t);
			o->t = NULL;
		}
	}
	return s;
}

static void take(struct top *o)
{
	struct tandem_status *s = ask(o);
	int64_t born_ms = s ? now_ms() - (int64_t)(s->uptime_us / 1000) : o->born_ms;

	if (o->now) {
		tandem_status_free(o->before);
		o->before = o->now;
	}
	o->now = s;
	o->restarted = o->before && born_ms > o->born_ms + OTHER_LIFE_MS;
	if (o->restarted) {
		tandem_status_free(o->before);
		o->before = NULL;
	}
	o->born_ms = born_ms;
}

/* ---- the loop ---------------------------------------------------------------------------------------------------------------------- */

/* 1 when it shall end. Keys that come as sequences (arrows) mean nothing here. */
static int keys(struct top *o)
{
	char key[64];
	ssize_t n = read(STDIN_FILENO, key, sizeof(key));

	if (n <= 0)
		return n == 0 || (errno != EINTR && errno != EAGAIN); /* the terminal is gone */
	for (ssize_t i = 0; i < n && key[i] != '\033'; i++) {
		if (key[i] == 'q' || key[i] == 'Q' || key[i] == 4)
			return 1;
		if (key[i] == 'p' || key[i] == ' ')
			o->paused = !o->paused;
		for (int k = 0; k < TD_TOP_SORT_COUNT; k++)
			if (key[i] == td_top_sort_key[k])
				o->sort = (enum td_top_sort)k;
	}
	draw(o);
	return 0;
}

/* Sleeps until `until`, serving keys and signals. 1 when it shall end. */
static int rest(struct top *o, int64_t until)
{
	for (int64_t left; (left = until - now_ms()) > 0 || o->paused;) {
		struct timespec ts = {.tv_sec = left / 1000, .tv_nsec = left % 1000 * 1000000L};
		struct pollfd p = {.fd = o->terminal ? STDIN_FILENO : -1, .events = POLLIN};
		int n = ppoll(&p, 1, o->paused ? NULL : &ts, &o->mask);

		if (ended_by)
			return 1;
		if (suspended)
			suspend(o);
		if (n > 0 && keys(o))
			return 1;
		if (resized) {
			resized = 0;
			draw(o);
		}
	}
	return 0;
}

static int watch(struct top *o)
{
	uint32_t shown = 0;
	int64_t next = now_ms();

	for (;;) {
		draw(o);
		if (ferror(stdout) || (o->count && ++shown == o->count))
			break;
		next += o->interval_ms;
		if (next < now_ms()) /* it was stopped, or the daemon took its time */
			next = now_ms() + o->interval_ms;
		if (rest(o, next))
			break;
		take(o);
	}
	if (ended_by)
		return ended_by == SIGINT ? TD_EXIT_INTERRUPTED : 128 + ended_by;
	return ferror(stdout) ? TD_EXIT_FAILED : o->now ? TD_EXIT_OK : TD_EXIT_NO_DAEMON;
}

static int start(struct top *o)
{
	const char *term = getenv("TERM"), *no_color = getenv("NO_COLOR");
	int code;

	take(o);
	if (!o->now) {
		td_say_error("top", &o->error);
		return TD_EXIT_NO_DAEMON;
	}
	o->terminal = !o->json && isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) && term && *term && strcmp(term, "dumb");
	o->style = !no_color || !*no_color;
	signals_catch(o);
	if (o->terminal)
		terminal_open(o);
	code = watch(o);
	terminal_close(o);
	return code;
}

static int find_sort(struct top *o)
{
	for (int k = 0; o->sort_name && k < TD_TOP_SORT_COUNT; k++)
		if (!strcmp(o->sort_name, td_top_sort_name[k])) {
			o->sort = (enum td_top_sort)k;
			return 0;
		}
	return o->sort_name ? -1 : 0;
}

int td_cmd_top(int argc, char **argv)
{
	struct top o = {.interval_ms = 1000, .sort = TD_TOP_BY_DEVICE};
	struct td_option common[TD_COMMON_OPTIONS];
	const struct td_option own[] = {
		{TD_OPT_TITLE, .help = "Screen:"},
		{TD_OPT_SECONDS, "delay", 'd', "SECONDS", "between two answers (default: 1)", &o.interval_ms, 0, NULL, 0},
		{TD_OPT_COUNT, "count", 'n', "N", "end after so many", &o.count, 0, NULL, 0},
		{TD_OPT_TEXT, "sort", 0, "KEY", "tenants by name, running, waiting, tokens, device (default), accept or wasted", &o.sort_name, 0, NULL, 0},
		{TD_OPT_FLAG, "json", 0, NULL, "one JSON object a line per interval, as tandem status --json gives", &o.json, 1, NULL, 0},
		{TD_OPT_END},
	};
	const struct td_option *tables[] = {own, common, NULL};
	struct td_list words = {0};
	int code;

	td_common_options(&o.common, common);
	if (td_options_parse(argc, argv, usage, about, tables, &words, &code))
		goto out;
	code = TD_EXIT_USAGE;
	if (words.n)
		fprintf(stderr, "tandem top: '%s' is not an option (see tandem top --help)\n", words.item[0]);
	else if (o.interval_ms < LEAST_INTERVAL_MS)
		fprintf(stderr, "tandem top: option --delay takes 0.05 seconds or more\n");
	else if (find_sort(&o))
		fprintf(stderr, "tandem top: option --sort takes name, running, waiting, tokens, device, accept or wasted, not '%s'\n", o.sort_name);
	else
		code = start(&o);
out:
	tandem_close(o.t);
	tandem_status_free(o.before);
	tandem_status_free(o.now);
	td_list_finish(&words);
	return code;
}
