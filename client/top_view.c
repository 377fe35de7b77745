/*
 * top_view.c: the lines of `tandem top` (top.h).
 *
 * Every figure but what is "now" is a difference between two answers over the daemon's own clock, so a slow terminal or a pause changes no rate. Lines of
 * the head break between their items, columns of the table are left out from the right where the terminal is narrow.
 */
#include "client/top.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

const char *const td_top_sort_name[TD_TOP_SORT_COUNT] = {
#define X(id, name, key) name,
	TD_TOP_SORTS(X)
#undef X
};
const char td_top_sort_key[TD_TOP_SORT_COUNT] = {
#define X(id, name, key) key,
	TD_TOP_SORTS(X)
#undef X
};

/* ---- lines ------------------------------------------------------------------------------------------------------------------------- */

/* Copies at most `columns` characters; control characters become question marks. Returns how many characters there are now. */
static int harmless(char *out, const char *text, int columns)
{
	int n = 0;

	for (; *text; text++) {
		unsigned char c = (unsigned char)*text;
		int is_c1 = c == 0xc2 && ((unsigned char)text[1] & 0xe0) == 0x80; /* U+0080 to U+009F: controls as well */

		if ((c & 0xc0) != 0x80 && n++ == columns)
			break;
		*out++ = c < 0x20 || c == 0x7f || is_c1 ? '?' : *text;
		text += is_c1;
	}
	*out = '\0';
	return n < columns ? n : columns;
}

void td_top_add(struct td_top_screen *s, enum td_top_style style, const char *fmt, ...)
{
	char text[4 * TD_TOP_WIDTH + 1];
	va_list ap;

	if (s->n == TD_TOP_LINES)
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	harmless(s->line[s->n].text, text, s->width);
	s->line[s->n++].style = style;
}

struct head { /* a line of the head that grows by items */
	struct td_top_screen *screen;
	char text[4 * TD_TOP_WIDTH + 1];
	size_t indent;
};

static void head_end(struct head *h)
{
	if (strlen(h->text) > h->indent)
		td_top_add(h->screen, TD_TOP_PLAIN, "%s", h->text);
	h->text[0] = '\0';
}

static void head_begin(struct head *h, const char *name)
{
	head_end(h);
	h->indent = 10;
	snprintf(h->text, sizeof(h->text), "%-10s", name);
}

static void item(struct head *h, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void item(struct head *h, const char *fmt, ...)
{
	char text[512];
	size_t n = strlen(h->text), more;
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	more = strlen(text);
	if (n > h->indent && n + 3 + more > (size_t)h->screen->width) {
		head_end(h);
		n = (size_t)snprintf(h->text, sizeof(h->text), "%*s", (int)h->indent, "");
	}
	snprintf(h->text + n, sizeof(h->text) - n, "%s%s", n > h->indent ? "   " : "", text);
}

/* ---- differences ------------------------------------------------------------------------------------------------------------------- */

static const struct tandem_worker_status *worker(const struct tandem_status *s, const char *role)
{
	static const struct tandem_worker_status none;

	for (size_t i = 0; s && i < s->n_workers; i++)
		if (!strcmp(s->worker[i].role, role))
			return &s->worker[i];
	return &none;
}

static const struct tandem_tenant_status *tenant(const struct tandem_status *s, const char *name)
{
	static const struct tandem_tenant_status none;

	for (size_t i = 0; s && i < s->n_tenants; i++)
		if (!strcmp(s->tenant[i].name, name))
			return &s->tenant[i];
	return &none;
}

static double since(uint64_t now, uint64_t before)
{
	return (double)(now >= before ? now - before : now);
}

static double ratio(double a, double b)
{
	return b > 0 ? a / b : 0;
}

struct row { /* one tenant */
	const struct tandem_tenant_status *now;
	double tokens, device, accept, wasted, refused, requests;
};

static enum td_top_sort order; /* of `compare`, which has no argument for it; one thread draws */

static int compare(const void *a, const void *b)
{
	const struct row *x = a, *y = b;
	double d = 0;

	switch (order) {
	case TD_TOP_BY_RUNNING:
		d = (double)y->now->running - x->now->running;
		break;
	case TD_TOP_BY_WAITING:
		d = (double)y->now->queued - x->now->queued;
		break;
	case TD_TOP_BY_TOKENS:
		d = y->tokens - x->tokens;
		break;
	case TD_TOP_BY_DEVICE:
		d = y->device - x->device;
		break;
	case TD_TOP_BY_ACCEPT:
		d = y->accept - x->accept;
		break;
	case TD_TOP_BY_WASTED:
		d = y->wasted - x->wasted;
		break;
	default:
		break;
	}
	return d > 0 ? 1 : d < 0 ? -1 : strcmp(x->now->name, y->now->name);
}

/* ---- the head ---------------------------------------------------------------------------------------------------------------------- */

static void view_daemon(struct head *h, const struct tandem_status *before, const struct tandem_status *now, double s)
{
	uint64_t up = now->uptime_us / 1000000;

	td_top_add(h->screen, TD_TOP_BOLD, "%s  %s  %s for %llu:%02u:%02u", now->model, now->server, now->state, (unsigned long long)(up / 3600),
		   (unsigned)(up / 60 % 60), (unsigned)(up % 60));
	head_begin(h, "requests");
	item(h, "slots %u/%u", now->slots_used, now->slots);
	item(h, "waiting %u", now->queued);
	item(h, "connections %u", now->connections);
	item(h, "finished %.1f/s", since(now->finished, before->finished) / s);
	item(h, "cancelled %.1f/s", since(now->cancelled, before->cancelled) / s);
	item(h, "failed %llu", (unsigned long long)now->failed);
	head_begin(h, "tokens");
	item(h, "written %.1f/s", since(now->output_tokens, before->output_tokens) / s);
	item(h, "read %.1f/s", since(now->prompt_tokens, before->prompt_tokens) / s);
	if (now->kv_pages)
		item(h, "KV pages %u/%u (%.0f %%)", now->kv_pages_used, now->kv_pages, 100.0 * now->kv_pages_used / now->kv_pages);
	if (now->prefix) {
		static const struct tandem_prefix_status none;
		const struct tandem_prefix_status *p = now->prefix, *b = before->prefix ? before->prefix : &none;

		item(h, "cached %u", p->pages);
		item(h, "prefix hits %.0f %% (%.1f tokens/s)", 100 * ratio(since(p->hits, b->hits), since(p->lookups, b->lookups)),
		     since(p->hit_tokens, b->hit_tokens) / s);
		item(h, "states %u/%u", p->states, p->states_max);
	}
}

static void view_cycle(struct head *h, const struct tandem_status *before, const struct tandem_status *now, double s)
{
	const struct tandem_worker_status *t = worker(now, "target"), *tb = worker(before, "target");
	const struct tandem_worker_status *d = worker(now, "drafter"), *db = worker(before, "drafter");
	double steps = since(t->steps, tb->steps), cycles = since(now->cycles, before->cycles);
	double verify = ratio(since(t->step_us, tb->step_us), steps) / 1e3, commit = ratio(since(t->commit_us, tb->commit_us), steps) / 1e3;
	double wait = ratio(since(t->wait_us, tb->wait_us), steps) / 1e3, draft = ratio(since(d->step_us, db->step_us), since(d->steps, db->steps)) / 1e3;

	head_begin(h, "cycle");
	item(h, "%.1f/s", steps / s);
	item(h, "%.2f ms", wait + verify + commit);
	item(h, "draft %.2f", draft);
	item(h, "wait %.2f", wait);
	item(h, "verify %.2f", verify);
	item(h, "commit %.2f", commit);
	item(h, "tandemd %.1f %% CPU", since(now->daemon_cpu_us, before->daemon_cpu_us) / 1e4 / s);
	if (!now->drafted)
		return;
	head_begin(h, "drafts");
	item(h, "length %.2f", ratio(since(now->accepted, before->accepted) + cycles, cycles));
	item(h, "accepted %.0f %%", 100 * ratio(since(now->accepted, before->accepted), since(now->drafted, before->drafted)));
	for (size_t i = 0; i < now->n_accepted_at; i++) {
		double at = since(now->accepted_at[i], i < before->n_accepted_at ? before->accepted_at[i] : 0);
		int never = i < now->n_drafted_at && !now->drafted_at[i];
		double of = i < now->n_drafted_at ? since(now->drafted_at[i], i < before->n_drafted_at ? before->drafted_at[i] : 0) : cycles;

		if (!never)
			item(h, "%zu: %.0f %%", i + 1, 100 * ratio(at, of));
	}
}

static void view_workers(struct head *h, const struct tandem_status *now)
{
	char bar[32];

	for (size_t i = 0; i < now->n_workers; i++) {
		const struct tandem_worker_status *w = now->worker + i;

		head_begin(h, w->role);
		item(h, "%s", w->state);
		if (w->stage && w->total) {
			td_progress_bar(bar, 20, w->done, w->total);
			item(h, "%s %s %.0f %%", w->stage, bar, 100.0 * (double)w->done / (double)w->total);
		}
		if (w->pid)
			item(h, "pid %u", w->pid);
		item(h, "restarts %u", w->restarts);
		if (w->device)
			item(h, "%s", w->device);
	}
	if (now->last_error) {
		head_begin(h, "error");
		item(h, "%s", now->last_error);
	}
	head_end(h);
}

/* ---- tenants ----------------------------------------------------------------------------------------------------------------------- */

enum { NAME_WIDTH = 20, NAME_LEAST = 8, CELL = 10 };

static void cell(char *line, size_t size, int width, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
static void cell(char *line, size_t size, int width, const char *fmt, ...)
{
	size_t n = strlen(line);
	char text[32];
	va_list ap;

	if (n + CELL > (size_t)width) /* no room: this column and those after it are left out */
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	snprintf(line + n, size - n, "%*.*s", CELL, CELL, text);
}

static void view_row(struct td_top_screen *s, const struct row *r, int name_width)
{
	char line[4 * TD_TOP_WIDTH + 1] = "", name[4 * NAME_WIDTH + 1];
	int columns = harmless(name, r->now->name, name_width), bytes = (int)strlen(name), width = s->width + bytes - columns;

	snprintf(line, sizeof(line), "%s%*s", name, name_width - columns, "");
	cell(line, sizeof(line), width, "%u", r->now->running);
	cell(line, sizeof(line), width, "%u", r->now->queued);
	cell(line, sizeof(line), width, "%.1f", r->tokens);
	cell(line, sizeof(line), width, "%.1f", 100 * r->device);
	cell(line, sizeof(line), width, "%.2f", r->accept);
	cell(line, sizeof(line), width, "%.1f", 100 * r->wasted);
	cell(line, sizeof(line), width, "%.1f", r->requests);
	cell(line, sizeof(line), width, "%.1f", r->refused);
	td_top_add(s, TD_TOP_PLAIN, "%s", line);
}

static void view_tenants(struct td_top_screen *s, const struct tandem_status *before, const struct tandem_status *now, double secs, enum td_top_sort by)
{
	static const char *const title[] = {"running", "waiting", "tokens/s", "device %", "accept", "wasted %", "req/s", "refused/s"};
	struct row *row = calloc(now->n_tenants + 1, sizeof(*row));
	int name_width = s->width >= NAME_WIDTH + 4 * CELL ? NAME_WIDTH : NAME_LEAST;
	char line[4 * TD_TOP_WIDTH + 1];
	double device = 0;

	if (!row)
		return;
	for (size_t i = 0; i < now->n_tenants; i++) {
		const struct tandem_tenant_status *n = now->tenant + i, *b = tenant(before, n->name);

		row[i].now = n;
		row[i].tokens = since(n->output_tokens, b->output_tokens) / secs;
		row[i].device = since(n->gpu_us, b->gpu_us);
		row[i].wasted = ratio(since(n->wasted_us, b->wasted_us), row[i].device);
		row[i].accept = ratio(since(n->accepted, b->accepted) + since(n->cycles, b->cycles), since(n->cycles, b->cycles));
		row[i].requests = since(n->requests, b->requests) / secs;
		row[i].refused = since(n->refused, b->refused) / secs;
		device += row[i].device;
	}
	for (size_t i = 0; i < now->n_tenants; i++)
		row[i].device = ratio(row[i].device, device);
	order = by;
	qsort(row, now->n_tenants, sizeof(*row), compare);
	snprintf(line, sizeof(line), "%-*s", name_width, "tenant");
	for (size_t i = 0; i < sizeof(title) / sizeof(title[0]); i++)
		cell(line, sizeof(line), s->width, "%s", title[i]);
	td_top_add(s, TD_TOP_PLAIN, "%s", "");
	td_top_add(s, TD_TOP_REVERSE, "%s", line);
	for (size_t i = 0; i < now->n_tenants; i++)
		view_row(s, &row[i], name_width);
	free(row);
}

void td_top_view(struct td_top_screen *s, const struct tandem_status *before, const struct tandem_status *now, enum td_top_sort by)
{
	static const struct tandem_status none;
	struct head h = {.screen = s};
	double secs;

	if (!before || before->uptime_us >= now->uptime_us)
		before = &none;
	secs = (double)(now->uptime_us - before->uptime_us) / 1e6;
	if (secs <= 0)
		secs = 1e-6;
	view_daemon(&h, before, now, secs);
	view_cycle(&h, before, now, secs);
	view_workers(&h, now);
	view_tenants(s, before, now, secs, by);
}
