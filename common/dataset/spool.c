/* spool.c: see spool.h.
 *
 *     feed -> (gunzip) -> head, until the format and its header are known -> file
 */
#include "spool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "cifar.h"
#include "common/base/buf.h"
#include "common/base/cleanup.h"
#include "common/base/fs.h"
#include "common/formats/idx.h"
#include "common/formats/npy.h"
#include "dataset.h"

enum {
    INFLATE_BYTES = 1 << 16,
    ROOM_BYTES = 4 << 20, /* keep_room: the disk must have this many more bytes */
};
#define CIFAR_BYTES_MAX ((uint64_t)DATASET_SAMPLES_MAX * CIFAR_100_RECORD_BYTES)

typedef enum packing { PACKING_UNKNOWN, PACKING_NONE, PACKING_GZIP } packing;

struct spool {
    int fd;
    char dir[FS_PATH_BYTES];
    spool_quota *quota;
    spool_disk *disk; /* the quota's */
    uint64_t taken;   /* bytes of this spool in `disk` */
    uint64_t bytes; /* in the file */
    uint64_t room;  /* the file may grow to this size until keep_room asks the disk again */
    packing packing;
    uint8_t first[2]; /* bytes that came, while the packing is unknown */
    size_t first_len;
    z_stream inflate;
    bool inflating; /* `inflate` is set up */
    bool member_ended;
    spool_format format, expected;
    unsigned cifar; /* the CIFAR formats that the file may have */
    bool head_known;
    array_head head;
    buf start; /* the bytes that came before the format was known */
};

int spool_new(const char *dir, spool_quota *quota, spool **out, err *e)
{
    spool *s = calloc(1, sizeof *s);
    if (!s)
        return err_set(e, ERR_NOMEM, "no memory for an upload");
    s->fd = -1;
    s->cifar = CIFAR_ANY;
    s->quota = quota;
    s->disk = quota->disk;
    buf_init(&s->start, NPY_HEADER_BYTES_MAX + INFLATE_BYTES);
    if (fs_path(s->dir, e, "%s", dir) != 0 || fs_scratch_file(dir, &s->fd, e) != 0) {
        spool_free(s);
        return -1;
    }
    *out = s;
    return 0;
}

void spool_free(spool *s)
{
    if (!s)
        return;
    if (s->inflating)
        inflateEnd(&s->inflate);
    if (s->fd >= 0)
        close(s->fd);
    if (s->disk)
        atomic_fetch_sub(&s->disk->bytes, s->taken);
    buf_free(&s->start);
    free(s);
}

void spool_expect(spool *s, spool_format format)
{
    s->expected = format;
}

/* ---- recognising --------------------------------------------------------------------------- */

/* Unsupported formats that people upload, by their first bytes. */
static const struct {
    const char *bytes;
    size_t len;
    const char *name, *help;
} others[] = {
    {"\x89PNG", 4, "a PNG image", "upload all images as one array (npy, npz or IDX)"},
    {"\xFF\xD8\xFF", 3, "a JPEG image", "upload all images as one array (npy, npz or IDX)"},
    {"\x89HDF", 4, "an HDF5 file", "np.savez(\"d.npz\", x=f[\"x\"][:], y=f[\"y\"][:])"},
    {"PAR1", 4, "a Parquet file", "np.savez(\"d.npz\", x=x, y=y) from its columns"},
    {"BZh", 3, "a bzip2 file", "bunzip2 it first"},
    {"\xFD\x37zXZ", 5, "an xz file", "unxz it first"},
    {"\x28\xB5\x2F\xFD", 4, "a zstd file", "unzstd it first"},
};

/* Whether the file is a Python pickle: protocols from 2 on begin with 0x80 and the protocol, older
 * pickles with a mark. */
static bool is_pickle(const uint8_t *p, size_t len)
{
    return len >= 2 && ((p[0] == 0x80 && p[1] >= 2 && p[1] <= 5) ||
                        (p[0] == '(' && (p[1] == 'd' || p[1] == 'l' || p[1] == 't')));
}

/* The lines work unchanged for CIFAR's own batches, whose samples are rows. They are short, so that
 * the field and its file have room in front. */
static int refuse_pickle(err *e)
{
    return err_set(e, ERR_UNSUPPORTED,
                   "a pickle; convert it:\n"
                   "import numpy as np\n"
                   "d = np.load(\"f\", None, True, encoding=\"latin1\")\n"
                   "x = np.array(d[\"data\"])\n"
                   "if x.shape[1:] == (3072,): x = x.reshape(-1, 3, 32, 32)\n"
                   "np.savez(\"f.npz\", x=x, y=d.get(\"fine_labels\") or d[\"labels\"])");
}

static int refuse_other(const uint8_t *p, size_t len, err *e)
{
    if (is_pickle(p, len))
        return refuse_pickle(e);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (len >= others[i].len && memcmp(p, others[i].bytes, others[i].len) == 0)
            return err_set(e, ERR_UNSUPPORTED, "%s, none of npy, npz, IDX and CIFAR binary; %s",
                           others[i].name, others[i].help);
    return err_set(e, ERR_UNSUPPORTED,
                   "neither npy, npz, IDX nor CIFAR binary: it begins with %02x %02x %02x %02x",
                   p[0], len > 1 ? p[1] : 0u, len > 2 ? p[2] : 0u, len > 3 ? p[3] : 0u);
}

/* The bytes of the disk that may still be taken. */
static int find_room(const spool *s, uint64_t *left, err *e)
{
    uint64_t all, kept;
    if (fs_free_bytes(s->dir, left, &all, e) != 0)
        return -1;
    if (s->disk) {
        kept = all / 100 * s->disk->kept_percent;
        *left = *left > kept ? *left - kept : 0;
    }
    return 0;
}

/* Checks that `more` bytes fit the limit of all uploads, which have `taken` bytes, this upload
 * `own` of them. ERR_LIMIT: they never fit; ERR_UNAVAILABLE: they may fit after other uploads. */
static int need_share(const spool *s, uint64_t taken, uint64_t own, uint64_t more, err *e)
{
    const uint64_t max = s->disk->bytes_max;
    if (more <= max && taken <= max - more)
        return 0;
    if (more > max || own > max - more)
        return err_set(e, ERR_LIMIT,
                       "%llu more bytes do not fit: uploads may have %llu together (--scratch-max, "
                       "in a cluster controller.homeSize)",
                       (unsigned long long)more, (unsigned long long)max);
    return err_set(e, ERR_UNAVAILABLE,
                   "%llu more bytes do not fit now: uploads may have %llu together, and others "
                   "have %llu",
                   (unsigned long long)more, (unsigned long long)max,
                   (unsigned long long)(taken - own));
}

/* Takes the share, then checks it: other uploads take theirs at the same time. */
static int take_share(spool *s, uint64_t more, err *e)
{
    uint64_t own = s->quota->taken;
    s->taken += more;
    s->quota->taken += more;
    return need_share(s, atomic_fetch_add(&s->disk->bytes, more), own, more, e);
}

static int need_room(const spool *s, uint64_t more, err *e)
{
    uint64_t left;
    if (more > s->quota->bytes)
        return err_set(e, ERR_LIMIT, "its %llu bytes are over the limit of the upload",
                       (unsigned long long)more);
    if ((s->disk && need_share(s, atomic_load(&s->disk->bytes), s->quota->taken, more, e) != 0) ||
        find_room(s, &left, e) != 0)
        return -1;
    if (more > left)
        return err_set(e, ERR_LIMIT, "its %llu bytes do not fit: %s has %llu left",
                       (unsigned long long)more, s->dir, (unsigned long long)left);
    return 0;
}

/* Checks the room on the disk as the file grows: for a file without a length in its header, or
 * where others use the disk too. */
static int keep_room(spool *s, uint64_t more, err *e)
{
    uint64_t left;
    if (s->bytes + more <= s->room)
        return 0;
    if (find_room(s, &left, e) != 0)
        return -1;
    if (more + ROOM_BYTES > left)
        return err_set(e, ERR_LIMIT, "it does not fit: behind %llu bytes of it %s has %llu left",
                       (unsigned long long)s->bytes, s->dir, (unsigned long long)left);
    s->room = s->bytes + more + ROOM_BYTES;
    return 0;
}

/* Finds the format and reads the header. 1: both are known; 0: more bytes are needed; -1:
 * refused. */
static int recognise(spool *s, bool over, err *e)
{
    const uint8_t *p = (const uint8_t *)s->start.bytes;
    size_t len = s->start.len;
    if (len < 6 && !over)
        return 0;
    if (len == 0)
        return err_set(e, ERR_CORRUPT, "the file is empty");
    int known = 1;
    if (npy_is(p, len)) {
        s->format = SPOOL_NPY;
        known = npy_parse(p, len, &s->head, e);
    } else if (len >= 4 && (memcmp(p, "PK\3\4", 4) == 0 || memcmp(p, "PK\5\6", 4) == 0)) {
        s->format = SPOOL_NPZ;
    } else if (idx_is(p, len)) {
        s->format = SPOOL_IDX;
        known = idx_parse(p, len, &s->head, e);
    } else if (cifar_may_be(p, len)) {
        s->format = SPOOL_CIFAR;
    } else {
        return refuse_other(p, len, e);
    }
    if (s->expected != SPOOL_UNKNOWN && s->format != s->expected)
        return err_set(e, ERR_CORRUPT, "is no %s array", spool_format_name(s->expected));
    if (known == 0 && over)
        return err_set(e, ERR_CORRUPT, "the %s file is cut within its header, after %zu bytes",
                       spool_format_name(s->format), len);
    if (known == 1 && (s->format == SPOOL_NPY || s->format == SPOOL_IDX) &&
        need_room(s, s->head.data_offset + s->head.data_bytes, e) != 0)
        return -1;
    return known;
}

/* ---- writing ------------------------------------------------------------------------------- */

static bool has_length(const spool *s)
{
    return s->format == SPOOL_NPY || s->format == SPOOL_IDX;
}

static int store_bytes(spool *s, const void *bytes, size_t len, err *e)
{
    if (has_length(s) && s->bytes + len > s->head.data_offset + s->head.data_bytes)
        return err_set(e, ERR_CORRUPT,
                       "the %s header says %llu bytes of data, and more follow them",
                       spool_format_name(s->format), (unsigned long long)s->head.data_bytes);
    if (s->format == SPOOL_CIFAR && s->bytes + len > CIFAR_BYTES_MAX)
        return err_set(e, ERR_LIMIT, "more than %d samples", DATASET_SAMPLES_MAX);
    if (s->format == SPOOL_CIFAR && cifar_check(&s->cifar, bytes, len, s->bytes, e) != 0)
        return -1;
    if (len > s->quota->bytes)
        return err_set(e, ERR_LIMIT, "the upload is over its limit of bytes");
    if ((s->disk && take_share(s, len, e) != 0) ||
        ((!has_length(s) || s->disk) && keep_room(s, len, e) != 0))
        return -1;
    if (fs_pwrite_all(s->fd, bytes, len, s->bytes, "upload's spool file", e) != 0)
        return -1;
    s->quota->bytes -= len;
    s->bytes += len;
    return 0;
}

/* Takes decompressed bytes. */
static int feed_plain(spool *s, const uint8_t *bytes, size_t len, err *e)
{
    if (s->head_known)
        return store_bytes(s, bytes, len, e);
    if (buf_append(&s->start, bytes, len, e) != 0)
        return -1;
    int known = recognise(s, false, e);
    if (known <= 0)
        return known;
    s->head_known = true;
    int result = store_bytes(s, s->start.bytes, s->start.len, e);
    buf_free(&s->start);
    return result;
}

static int feed_gzip(spool *s, const uint8_t *bytes, size_t len, err *e)
{
    uint8_t plain[INFLATE_BYTES];
    z_stream *z = &s->inflate;
    z->next_in = (uint8_t *)(uintptr_t)bytes; /* zlib does not write there */
    z->avail_in = (uInt)len;
    do {
        if (s->member_ended) {
            if (z->avail_in == 0)
                break;
            inflateReset(z); /* a gz file may have several members, one after the other */
            s->member_ended = false;
        }
        z->next_out = plain;
        z->avail_out = sizeof plain;
        int status = inflate(z, Z_NO_FLUSH);
        if (status == Z_MEM_ERROR)
            return err_set(e, ERR_NOMEM, "no memory to decompress");
        if (status != Z_OK && status != Z_STREAM_END && status != Z_BUF_ERROR)
            return err_set(
                e, ERR_CORRUPT, "the gz file is damaged behind byte %llu of its contents: %s",
                (unsigned long long)(s->bytes + s->start.len), z->msg ? z->msg : "bad data");
        s->member_ended = status == Z_STREAM_END;
        if (feed_plain(s, plain, sizeof plain - z->avail_out, e) != 0)
            return -1;
    } while (z->avail_in > 0 || z->avail_out == 0);
    return 0;
}

static int begin_gzip(spool *s, err *e)
{
    s->packing = PACKING_GZIP;
    s->member_ended = false;
    if (s->inflating ? inflateReset(&s->inflate) != Z_OK
                     : inflateInit2(&s->inflate, 15 + 16) != Z_OK) /* 16: gzip's header */
        return err_set(e, ERR_NOMEM, "no memory to decompress");
    s->inflating = true;
    return 0;
}

static int feed_packed(spool *s, const uint8_t *bytes, size_t len, err *e)
{
    while (len > 0) {
        size_t part = len < INFLATE_BYTES ? len : INFLATE_BYTES;
        if ((s->packing == PACKING_GZIP ? feed_gzip : feed_plain)(s, bytes, part, e) != 0)
            return -1;
        bytes += part;
        len -= part;
    }
    return 0;
}

int spool_feed(spool *s, const void *bytes, size_t len, err *e)
{
    const uint8_t *p = bytes;
    while (s->packing == PACKING_UNKNOWN && len > 0) {
        s->first[s->first_len++] = *p++;
        len--;
        if (s->first_len < 2)
            continue;
        s->packing = PACKING_NONE;
        if (s->first[0] == 0x1F && s->first[1] == 0x8B && begin_gzip(s, e) != 0)
            return -1;
        if (feed_packed(s, s->first, 2, e) != 0)
            return -1;
    }
    return len > 0 ? feed_packed(s, p, len, e) : 0;
}

int spool_end(spool *s, err *e)
{
    if (s->packing == PACKING_UNKNOWN && s->first_len > 0 &&
        (s->packing = PACKING_NONE, feed_packed(s, s->first, s->first_len, e) != 0))
        return -1;
    if (s->packing == PACKING_GZIP && !s->member_ended)
        return err_set(e, ERR_CORRUPT,
                       "the gz file is cut: it ends after %llu bytes of its contents",
                       (unsigned long long)(s->bytes + s->start.len));
    if (!s->head_known) {
        if (recognise(s, true, e) < 0)
            return -1;
        s->head_known = true;
        if (store_bytes(s, s->start.bytes, s->start.len, e) != 0)
            return -1;
        buf_free(&s->start);
    }
    if (s->format == SPOOL_CIFAR && cifar_check_length(&s->cifar, s->bytes, e) != 0)
        return -1;
    uint64_t want = s->head.data_offset + s->head.data_bytes;
    if (has_length(s) && s->bytes < want)
        return err_set(e, ERR_CORRUPT,
                       "the %s file is cut: its header says %llu bytes of data, %llu are there",
                       spool_format_name(s->format), (unsigned long long)s->head.data_bytes,
                       (unsigned long long)(s->bytes > s->head.data_offset
                                                ? s->bytes - s->head.data_offset
                                                : 0));
    return 0;
}

int spool_next(spool *s, err *e)
{
    if (spool_end(s, e) != 0)
        return -1;
    if (s->format != SPOOL_CIFAR)
        return err_set(e, ERR_INVALID,
                       "given twice: only CIFAR's binary batches may come as several files; join "
                       "the arrays first, with np.concatenate");
    s->packing = PACKING_UNKNOWN;
    s->first_len = 0;
    return 0;
}

/* ---- results ------------------------------------------------------------------------------- */

spool_format spool_get_format(const spool *s)
{
    return s->format;
}

const char *spool_format_name(spool_format format)
{
    static const char *const names[] = {"unknown", "npy", "IDX", "CIFAR", "npz"};
    return names[format];
}

bool spool_is_cifar_100(const spool *s)
{
    return s->format == SPOOL_CIFAR && !(s->cifar & CIFAR_10);
}

const array_head *spool_head(const spool *s)
{
    return &s->head;
}

int spool_fd(const spool *s)
{
    return s->fd;
}

uint64_t spool_bytes(const spool *s)
{
    return s->bytes;
}
