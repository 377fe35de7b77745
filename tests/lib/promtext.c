/*
 * promtext.c: see promtext.h. It takes what the format allows and no more; where the format leaves a choice (order of families, blanks) it wants the tidy one.
 */
#include "tests/lib/promtext.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/utf8.h"

static int wrong(struct td_promtext *p, int line, const char *what, const char *where)
{
	snprintf(p->why, sizeof(p->why), "line %d: %s: %.200s", line, what, where);
	return -1;
}

static size_t name_span(const char *s, int colon)
{
	size_t n = 0;

	if (isdigit((unsigned char)*s))
		return 0;
	while (isalnum((unsigned char)s[n]) || s[n] == '_' || (colon && s[n] == ':'))
		n++;
	return n;
}

static int ends_with(const char *s, const char *end)
{
	size_t n = strlen(s), k = strlen(end);

	return n >= k && strcmp(s + n - k, end) == 0;
}

static int find_family(const struct td_promtext *p, const char *name)
{
	for (int i = 0; i < p->n_families; i++)
		if (!strcmp(p->family[i].name, name))
			return i;
	return -1;
}

/* "# HELP name text" begins a family, "# TYPE name type" follows at once. */
static int comment(struct td_promtext *p, int line, char *s)
{
	static const char *const types[] = {"counter", "gauge", "histogram"};
	struct td_promtext_family *last = p->n_families ? &p->family[p->n_families - 1] : NULL;
	int is_help = !strncmp(s, "# HELP ", 7);
	char *name = s + 7, *rest;
	size_t n;

	if (!is_help && strncmp(s, "# TYPE ", 7))
		return wrong(p, line, "neither HELP nor TYPE", s);
	n = name_span(name, 1);
	if (!n || name[n] != ' ' || !name[n + 1])
		return wrong(p, line, "no name, or nothing after it", s);
	name[n] = '\0';
	rest = name + n + 1;
	if (is_help) {
		if (last && !last->type)
			return wrong(p, line, "the family before has no TYPE", name);
		if (find_family(p, name) >= 0)
			return wrong(p, line, "the family is there already", name);
		for (char *c = rest; *c; c++)
			if (*c == '\\' && c[1] != '\\' && c[1] != 'n')
				return wrong(p, line, "an escape that HELP doesn't have", rest);
		p->family = realloc(p->family, (size_t)(p->n_families + 1) * sizeof(*p->family));
		p->family[p->n_families++] = (struct td_promtext_family){.name = strdup(name)};
		return 0;
	}
	if (!last || strcmp(last->name, name) || last->type)
		return wrong(p, line, "TYPE doesn't follow its HELP", name);
	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
		if (!strcmp(rest, types[i]))
			last->type = strdup(rest);
	if (!last->type)
		return wrong(p, line, "unknown type", rest);
	if ((strcmp(last->type, "counter") == 0) != ends_with(name, "_total"))
		return wrong(p, line, "counters, and only they, end in _total", name);
	return 0;
}

/* Behind the opening brace; returns the closing one, or NULL. */
static char *labels(char *s)
{
	while (*s != '}') {
		size_t n = name_span(s, 0);

		if (!n || s[n] != '=' || s[n + 1] != '"')
			return NULL;
		for (s += n + 2; *s != '"'; s++) {
			if (!*s || (*s == '\\' && !strchr("\\\"n", s[1])))
				return NULL;
			s += *s == '\\';
		}
		s++;
		if (*s == ',' && s[1] != '}')
			s++;
		else if (*s != '}')
			return NULL;
	}
	return s;
}

/* The suffix that a histogram's series has behind its family's name, or NULL when the name is of another family. */
static const char *suffix(const struct td_promtext_family *f, const char *name)
{
	size_t n = strlen(f->name);

	if (strncmp(name, f->name, n))
		return NULL;
	if (strcmp(f->type, "histogram"))
		return name[n] ? NULL : "";
	return !strcmp(name + n, "_bucket") || !strcmp(name + n, "_sum") || !strcmp(name + n, "_count") ? name + n : NULL;
}

static int sample(struct td_promtext *p, int line, char *s)
{
	struct td_promtext_family *f = p->n_families ? &p->family[p->n_families - 1] : NULL;
	size_t n = name_span(s, 1);
	char *label = s + n, *end, *number, none[] = "";
	double value;

	if (!n)
		return wrong(p, line, "no name", s);
	if (*label == '{') {
		*label++ = '\0';
		end = labels(label);
		if (!end || end == label)
			return wrong(p, line, "labels are malformed", label);
		*end = '\0';
		number = end + 1;
	} else {
		number = label;
		label = none;
	}
	if (*number != ' ' || number[1] == ' ')
		return wrong(p, line, "no single blank before the value", s);
	*number++ = '\0';
	value = strtod(number, &end);
	if (end == number || *end || value != value)
		return wrong(p, line, "no value", number);
	if (!f || !f->type || !suffix(f, s))
		return wrong(p, line, "a sample outside of its family", s);
	if (value < 0 && strcmp(f->type, "gauge"))
		return wrong(p, line, "below zero", s);
	if (td_promtext_value(p, s, label, -1e300) != -1e300)
		return wrong(p, line, "the series is there already", s);
	p->sample = realloc(p->sample, (size_t)(p->n_samples + 1) * sizeof(*p->sample));
	p->sample[p->n_samples++] = (struct td_promtext_sample){strdup(s), strdup(label), value, p->n_families - 1};
	f->samples++;
	return 0;
}

/* Buckets of one set of labels stand together, le last and growing; the last is +Inf and equals the count that follows with the sum. */
static int histograms(struct td_promtext *p)
{
	char base[1024] = "";
	double le = -1, sum = 0;

	for (int i = 0; i < p->n_samples; i++) {
		const struct td_promtext_sample *s = &p->sample[i];
		const char *at, *kind = strcmp(p->family[s->family].type, "histogram") ? NULL : suffix(&p->family[s->family], s->name);
		double bound;

		if (!kind)
			continue;
		if (!strcmp(kind, "_bucket")) {
			at = strstr(s->labels, "le=\"");
			if (!at || strchr(at + 4, '"')[1] || (at > s->labels && at[-1] != ','))
				return wrong(p, 0, "le isn't the last label", s->labels);
			bound = !strncmp(at + 4, "+Inf", 4) ? 1e300 : strtod(at + 4, NULL);
			if (le < 0)
				snprintf(base, sizeof(base), "%.*s", (int)(at - s->labels), s->labels);
			if (strncmp(base, s->labels, (size_t)(at - s->labels)) || bound <= le || s->value < sum)
				return wrong(p, 0, "buckets don't grow, or are mixed", s->labels);
			le = bound;
			sum = s->value;
		} else if (!strcmp(kind, "_count")) {
			if (le != 1e300 || sum != s->value)
				return wrong(p, 0, "the count isn't that of +Inf", s->labels);
			if (strncmp(p->sample[i - 1].name + strlen(p->sample[i - 1].name) - 4, "_sum", 4))
				return wrong(p, 0, "no sum before the count", s->labels);
			le = -1;
			sum = 0;
		}
	}
	return le < 0 ? 0 : wrong(p, 0, "buckets without a count", base);
}

int td_promtext_read(struct td_promtext *p, const char *text)
{
	char *copy = strdup(text), *line = copy, *end;
	int number = 1, rc = 0;

	*p = (struct td_promtext){0};
	if (td_utf8_span((const uint8_t *)text, strlen(text)) != strlen(text))
		rc = wrong(p, 0, "it isn't UTF-8", "");
	for (; !rc && *line; line = end + 1, number++) {
		end = strchr(line, '\n');
		if (!end) {
			rc = wrong(p, number, "no line end", line);
			break;
		}
		*end = '\0';
		rc = *line == '#' ? comment(p, number, line) : sample(p, number, line);
	}
	if (!rc && p->n_families && !p->family[p->n_families - 1].type)
		rc = wrong(p, number, "the last family has no TYPE", p->family[p->n_families - 1].name);
	if (!rc && !p->n_samples)
		rc = wrong(p, number, "no sample", "");
	free(copy);
	return rc ? rc : histograms(p);
}

double td_promtext_value(const struct td_promtext *p, const char *name, const char *label, double otherwise)
{
	for (int i = 0; i < p->n_samples; i++)
		if (!strcmp(p->sample[i].name, name) && !strcmp(p->sample[i].labels, label))
			return p->sample[i].value;
	return otherwise;
}

int td_promtext_grows(const struct td_promtext *before, struct td_promtext *after)
{
	for (int i = 0; i < before->n_samples; i++) {
		const struct td_promtext_sample *s = &before->sample[i];
		double later = td_promtext_value(after, s->name, s->labels, -1);

		if (strcmp(before->family[s->family].type, "gauge") && later < s->value) {
			snprintf(after->why, sizeof(after->why), "%.100s{%.100s} was %g and is %g", s->name, s->labels, s->value, later);
			return -1;
		}
	}
	return 0;
}

void td_promtext_finish(struct td_promtext *p)
{
	for (int i = 0; i < p->n_families; i++) {
		free(p->family[i].name);
		free(p->family[i].type);
	}
	for (int i = 0; i < p->n_samples; i++) {
		free(p->sample[i].name);
		free(p->sample[i].labels);
	}
	free(p->family);
	free(p->sample);
	*p = (struct td_promtext){0};
}
