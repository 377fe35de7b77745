/*
 * promtext.h: a strict reader of Prometheus' text format (0.0.4), for tests of what tandemd tells.
 */
#ifndef TD_PROMTEXT_H
#define TD_PROMTEXT_H

#include <stddef.h>

struct td_promtext_sample {
	char *name, *labels; /* labels: as written, without the braces, "" when there are none */
	double value;
	int family;
};

struct td_promtext_family {
	char *name, *type;
	int samples;
};

struct td_promtext {
	struct td_promtext_family *family;
	struct td_promtext_sample *sample;
	int n_families, n_samples;
	char why[300]; /* the first thing that is wrong */
};

/* 0 when the text is well formed and consistent in itself; else -1 and p->why. Finish in both cases. */
int td_promtext_read(struct td_promtext *p, const char *text);
/* The value of a series, `otherwise` when it isn't there. */
double td_promtext_value(const struct td_promtext *p, const char *name, const char *labels, double otherwise);
/* 0 when no counter of `before` is less, or missing, in `after`; else -1 and after->why. */
int td_promtext_grows(const struct td_promtext *before, struct td_promtext *after);
void td_promtext_finish(struct td_promtext *p);

#endif
