/*
 * nfc.h: Unicode normalization form C, in time linear in the text whatever the text is. Internal to engine/.
 */
#ifndef TD_NFC_H
#define TD_NFC_H

#include <stddef.h>
#include <stdint.h>

#include "engine/error.h"

/* Working memory, reused from call to call; zeroed memory is a fresh one. */
struct td__nfc {
	char *text; /* the normalized text of the last call */
	size_t n, text_size;
	int32_t *code, *sorted; /* code points of one span */
	size_t code_size;
};
void td__nfc_finish(struct td__nfc *w);

/* Normalizes valid UTF-8. *out is `text` itself when nothing changes, otherwise w->text; either stays valid until the next call with w. */
int td__nfc_apply(struct td__nfc *w, const char *text, size_t n, const char **out, size_t *out_n, struct td_error *err);

#endif
