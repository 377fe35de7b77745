/*
 * file.h: opening what a model folder holds. Internal to engine/.
 */
#ifndef TD_FILE_H
#define TD_FILE_H

#include <sys/stat.h>

#include "engine/error.h"

/* A regular file, for reading: *fd is the caller's. Never waits: a FIFO or a device of that name is refused. TD_E_NOT_FOUND when nothing is there. */
int td__file_open(const char *path, int *fd, struct stat *st, struct td_error *err);

#endif
