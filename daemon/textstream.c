/*
 * textstream.c: from tokens to text that may be shown, and stop strings.
 *
 * Each stop string is an automaton (Knuth, Morris, Pratt) that is fed every byte once: its state is how many bytes of the string the text ends with,
 * which is just what must be held back. So a stop string is found wherever the borders of tokens lie, never shown in part, and the cost per
 * byte does not depend on its length. Text and stop strings are whole UTF-8, so what is held back begins at a character.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/daemon.h"

struct td_stop {
	char text[TD_STOP_BYTES_MAX + 1];
	uint16_t fail[TD_STOP_BYTES_MAX + 1]; /* [i]: longest proper border of the first i bytes */
	int n, state;
};

static void stop_init(struct td_stop *s, const char *text)
{
	int k = 0;

	s->n = (int)strlen(text);
	memcpy(s->text, text, (size_t)s->n + 1);
	for (int i = 2; i <= s->n; i++) {
		while (k && text[i - 1] != text[k])
			k = s->fail[k];
		k += text[i - 1] == text[k];
		s->fail[i] = (uint16_t)k;
	}
}

static int stop_feed(struct td_stop *s, char byte)
{
	while (s->state && s->text[s->state] != byte)
		s->state = s->fail[s->state];
	s->state += s->text[s->state] == byte;
	return s->state == s->n;
}

int td_textstream_init(struct td_textstream *s, const struct td_tokenizer *t, char *const *stops, size_t n_stops)
{
	*s = (struct td_textstream){.matched = -1};
	td_detok_init(&s->detok, t, 1);
	if (n_stops) {
		s->stop = calloc(n_stops, sizeof(*s->stop));
		if (!s->stop)
			return TD_E_NOMEM;
	}
	s->n_stops = (int)n_stops;
	for (size_t i = 0; i < n_stops; i++)
		stop_init(&s->stop[i], stops[i]);
	return 0;
}

void td_textstream_finish(struct td_textstream *s)
{
	free(s->text);
	free(s->stop);
	s->text = NULL;
	s->stop = NULL;
	s->n_stops = 0;
}

static int reserve(struct td_textstream *s, size_t more)
{
	size_t size = s->size ? s->size : 512;
	char *bigger;

	while (size < s->n + more + 1)
		size *= 2;
	if (size == s->size)
		return 0;
	bigger = realloc(s->text, size);
	if (!bigger)
		return TD_E_NOMEM;
	s->text = bigger;
	s->size = size;
	return 0;
}

/* The new bytes from `from` on go through the automata. 1 when one is complete; of several at one byte the longest, since it began first. */
static int scan(struct td_textstream *s, size_t from)
{
	int held = 0;

	for (size_t at = from; at < s->n; at++) {
		if (!s->text[at]) /* a NUL would end the string on the wire; no model means one */
			s->text[at] = '?';
		for (int i = 0; i < s->n_stops; i++)
			if (stop_feed(&s->stop[i], s->text[at]) && (s->matched < 0 || s->stop[i].n > s->stop[s->matched].n))
				s->matched = i;
		if (s->matched >= 0) {
			s->n = s->shown = at + 1 - (size_t)s->stop[s->matched].n;
			return 1;
		}
	}
	for (int i = 0; i < s->n_stops; i++)
		if (s->stop[i].state > held)
			held = s->stop[i].state;
	s->shown = s->n - (size_t)held;
	return 0;
}

int td_textstream_push(struct td_textstream *s, int32_t id)
{
	size_t bytes = 0, from = s->n;
	int stopped;

	td_token_bytes(s->detok.t, id, &bytes);
	if (reserve(s, 3 * (bytes + 8)))
		return TD_E_NOMEM;
	s->n += td_detok_push(&s->detok, id, s->text + s->n);
	stopped = scan(s, from);
	s->text[s->n] = 0;
	return stopped;
}

int td_textstream_flush(struct td_textstream *s)
{
	size_t from = s->n;

	if (s->matched >= 0)
		return 0;
	if (reserve(s, 3 * 8))
		return TD_E_NOMEM;
	s->n += td_detok_flush(&s->detok, s->text + s->n);
	if (scan(s, from)) {
		s->text[s->n] = 0;
		return 1;
	}
	s->shown = s->n;
	s->text[s->n] = 0;
	return 0;
}

const char *td_textstream_stop(const struct td_textstream *s)
{
	return s->matched < 0 ? NULL : s->stop[s->matched].text;
}
