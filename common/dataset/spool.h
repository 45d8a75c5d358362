/* spool.h: receives an uploaded file: decompresses it, recognises its format, and stores it in a
 * nameless file.
 *
 * Only a buffer is in memory. The first bytes show the format, and the format's header gives the
 * length of the file. A longer file is refused as soon as it exceeds that length, which bounds a gz
 * bomb; a shorter file is refused at its end, with both numbers. A format without a length (CIFAR,
 * npz) is bounded by the samples of a split, the quota and the room on the disk. Errors:
 * ERR_CORRUPT, ERR_UNSUPPORTED, ERR_LIMIT, ERR_UNAVAILABLE (other uploads have the disk), ERR_IO;
 * messages do not name the field, which the caller adds. A spool belongs to one thread. */
#ifndef KUBEML_SPOOL_H
#define KUBEML_SPOOL_H

#include <stdatomic.h>

#include "common/formats/array.h"

typedef enum spool_format {
    SPOOL_UNKNOWN, /* too few bytes have come */
    SPOOL_NPY,
    SPOOL_IDX,
    SPOOL_CIFAR,
    SPOOL_NPZ,
} spool_format;

typedef struct spool spool;

/* The limits of all uploads of a process on a disk that others use too. */
typedef struct spool_disk {
    uint64_t bytes_max;          /* of all uploads together, at once */
    unsigned kept_percent;       /* of the file system, which stays free */
    atomic_uint_least64_t bytes; /* of all uploads now */
} spool_disk;

/* Shared by the spools of an upload. */
typedef struct spool_quota {
    uint64_t bytes;   /* that may still be written */
    spool_disk *disk; /* may be NULL; outlives the spools */
    uint64_t taken;   /* bytes of this upload in `disk` */
} spool_quota;

int spool_new(const char *dir, spool_quota *quota, spool **out, err *e);
void spool_free(spool *s); /* NULL is fine */
/* Refuses any other format as soon as it is recognised. Call before the first bytes. */
void spool_expect(spool *s, spool_format format);
int spool_feed(spool *s, const void *bytes, size_t len, err *e);
/* Ends the file, and checks that it is complete. May be called again after spool_next. */
int spool_end(spool *s, err *e);
/* Begins another file after a complete one; ERR_INVALID unless that was CIFAR binary. */
int spool_next(spool *s, err *e);

spool_format spool_get_format(const spool *s);
const char *spool_format_name(spool_format format);
bool spool_is_cifar_100(const spool *s);      /* otherwise SPOOL_CIFAR is CIFAR-10 */
const array_head *spool_head(const spool *s); /* of SPOOL_NPY and SPOOL_IDX */
int spool_fd(const spool *s);
uint64_t spool_bytes(const spool *s); /* decompressed */

#endif
