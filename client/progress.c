/*
 * progress.c: how far the model's loading is, for people who wait for it: a bar on a terminal, else a line per stage.
 */
#include <string.h>
#include <unistd.h>

#include "client/command.h"

enum { BAR_CELLS = 24 };

void td_progress_bar(char *out, int cells, uint64_t done, uint64_t total)
{
	int full = total ? (int)((double)(done < total ? done : total) / (double)total * cells) : 0;

	*out++ = '[';
	for (int i = 0; i < cells; i++)
		*out++ = i < full ? '#' : '.';
	*out++ = ']';
	*out = '\0';
}

/* The worker that everybody waits for: the first that is not ready. */
static const struct tandem_worker_status *slowest(const struct tandem_status *s)
{
	for (size_t i = 0; i < s->n_workers; i++)
		if (strcmp(s->worker[i].state, "ready"))
			return &s->worker[i];
	return NULL;
}

void td_progress_show(struct td_progress *p, const struct tandem_status *s)
{
	const struct tandem_worker_status *w = slowest(s);
	char what[128], bar[BAR_CELLS + 3];

	if (!w || p->quiet)
		return;
	snprintf(what, sizeof(what), "%s %s%s%s", w->role, w->state, w->stage && *w->stage ? ": " : "", w->stage ? w->stage : "");
	if (isatty(STDERR_FILENO)) {
		td_progress_bar(bar, BAR_CELLS, w->done, w->total);
		fprintf(stderr, "\r\033[K%s", what);
		if (w->total)
			fprintf(stderr, " %s %3.0f %%", bar, 100.0 * (double)(w->done < w->total ? w->done : w->total) / (double)w->total);
		p->drawn = 1;
	} else if (strcmp(what, p->last)) {
		fprintf(stderr, "tandem %s: waiting for the model, %s\n", p->command, what);
	}
	snprintf(p->last, sizeof(p->last), "%s", what);
	fflush(stderr);
}

void td_progress_place(struct td_progress *p, uint32_t before)
{
	if (p->quiet || !isatty(STDERR_FILENO))
		return;
	fprintf(stderr, "\r\033[Kwaiting, %u before you", before);
	fflush(stderr);
	p->drawn = 1;
}

void td_progress_end(struct td_progress *p)
{
	if (p->drawn)
		fputs("\r\033[K", stderr);
	p->drawn = 0;
}
