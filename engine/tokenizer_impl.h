/*
 * tokenizer_impl.h: what a loaded tokenizer is made of. For tokenizer.c, tokenizer_load.c and detok.c only.
 */
#ifndef TD_TOKENIZER_IMPL_H
#define TD_TOKENIZER_IMPL_H

#include "engine/added.h"
#include "engine/bpe.h"
#include "engine/split.h"
#include "engine/tokenizer.h"

struct td_tokenizer {
	struct td__bpe bpe; /* owns every token's bytes, those of added tokens too */
	struct td__added added;
	char **added_text; /* (added.n) texts as written in the file; added.token[].text points here */
	struct td__split *split; /* NULL: no split pattern */
	int nfc;
};

#endif
