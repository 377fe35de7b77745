/*
 * quantise.h: BF16 rows to 4-bit codes with a scale for each group of columns, the form of packed checkpoints (struct td_linear_part).
 */
#ifndef TD_QUANTISE_H
#define TD_QUANTISE_H

#include <stdint.h>

enum { TD_QUANTISE_GROUP = 128, TD_QUANTISE_STEP = 32 /* groups are multiples of it, as every backend takes them */ };

/* Columns that share a scale: the largest multiple of TD_QUANTISE_STEP up to TD_QUANTISE_GROUP that divides cols; 0 when there is none. */
int td_quantise_group(int cols);
/* w (rows, cols) bf16, finite -> codes (rows, cols / 8) words, low nibble first, value + 8; scales (rows, cols / group) bf16, of either sign. The same
 * bytes on every machine, with any number of threads. */
void td_quantise(const uint16_t *w, int rows, int cols, int group, uint32_t *codes, uint16_t *scale);

#endif
