/* spool.h: an uploaded file on its way in: decompressed, recognised and kept in a nameless file.
 *
 * Nothing but a buffer is in memory. The format follows from the first bytes, and from its header
 * how long the file must be: one that is longer is refused where it exceeds that (which is what
 * bounds a gz bomb), one that is shorter at its end, with both numbers. A format without a length
 * (CIFAR, npz) is bounded by the samples of a split, the quota and the room on the disk. Errors:
 * ERR_CORRUPT, ERR_UNSUPPORTED, ERR_LIMIT, ERR_IO; messages do not name the field, the caller does.
 * A spool belongs to one thread. */
#ifndef KUBEML_SPOOL_H
#define KUBEML_SPOOL_H

#include <stdatomic.h>

#include "common/formats/array.h"

typedef enum spool_format {
    SPOOL_UNKNOWN, /* nothing has come yet */
    SPOOL_NPY,
    SPOOL_IDX,
    SPOOL_CIFAR,
    SPOOL_NPZ,
} spool_format;

typedef struct spool spool;

/* What all uploads of a process may have of a disk that is not theirs alone. */
typedef struct spool_disk {
    uint64_t bytes_max;          /* together, at once */
    unsigned kept_percent;       /* of the file system: it stays free */
    atomic_uint_least64_t bytes; /* what they have */
} spool_disk;

/* Shared by the spools of an upload. */
typedef struct spool_quota {
    uint64_t bytes;   /* that may be written yet: what a spool writes is taken off */
    spool_disk *disk; /* may be NULL; outlives the spools */
    uint64_t taken;   /* of it, by this upload */
} spool_quota;

int spool_new(const char *dir, spool_quota *quota, spool **out, err *e);
void spool_free(spool *s); /* NULL is fine */
/* Before the first bytes: any other format is refused as soon as it is recognised. */
void spool_expect(spool *s, spool_format format);
int spool_feed(spool *s, const void *bytes, size_t len, err *e);
/* The file is over: is it whole? May be called again after spool_next. */
int spool_end(spool *s, err *e);
/* Another file follows the first, which was CIFAR binary and whole. */
int spool_next(spool *s, err *e);

spool_format spool_get_format(const spool *s);
const char *spool_format_name(spool_format format);
bool spool_is_cifar_100(const spool *s);      /* otherwise SPOOL_CIFAR is CIFAR-10 */
const array_head *spool_head(const spool *s); /* of SPOOL_NPY and SPOOL_IDX */
int spool_fd(const spool *s);
uint64_t spool_bytes(const spool *s); /* decompressed */

#endif
