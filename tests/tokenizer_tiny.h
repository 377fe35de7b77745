/*
 * tokenizer_tiny.h: the tiny model's tokenizer as a fixture of a test group (load_tiny, free_tiny).
 */
#ifndef TD_TOKENIZER_TINY_H
#define TD_TOKENIZER_TINY_H

#include "engine/tokenizer.h"

#define TINY "models/tiny/tokenizer.json"

static struct td_tokenizer *tiny;

static int load_tiny(void **state)
{
	struct td_error err = {0};

	(void)state;
	if (td_tokenizer_load(TINY, &tiny, &err))
		fail_msg("%s", err.text);
	return 0;
}

static int free_tiny(void **state)
{
	(void)state;
	td_tokenizer_free(tiny);
	return 0;
}

#endif
