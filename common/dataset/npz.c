/* npz.c: see npz.h. */
#include "npz.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zip.h>

#include "common/base/cleanup.h"
#include "common/base/fs.h"

enum {
    BLOCK_BYTES = 1 << 16,
    END_BYTES = 22, /* the end record of a zip file, which a comment may follow */
    COMMENT_BYTES_MAX = 65535,
    LOCATOR_BYTES = 20, /* the zip64 locator, before the end record of a large file */
    END64_BYTES = 56,   /* the zip64 end record */
};

struct npz {
    zip_t *zip;
    size_t count;
    char (*names)[NPZ_NAME_BYTES];
};

/* The error for a member that is no npy file. PyTorch's checkpoints are zip files too, of a
 * pickle. */
static int refuse_member(const char *name, err *e)
{
    size_t len = strlen(name);
    if (len >= 4 && strcmp(name + len - 4, ".pkl") == 0)
        return err_set(e, ERR_UNSUPPORTED,
                       "a PyTorch file, which is a pickle and can run code; convert it with\n"
                       "import torch, numpy as np\n"
                       "d = torch.load(\"file.pt\")\n"
                       "np.savez(\"file.npz\", x=d[\"x\"].numpy(), y=d[\"y\"].numpy())");
    return err_set(e, ERR_UNSUPPORTED, "a zip file of \"%.60s\" and not of npy arrays", name);
}

static int read_names(npz *z, err *e)
{
    zip_int64_t count = zip_get_num_entries(z->zip, 0);
    if (count <= 0)
        return err_set(e, ERR_CORRUPT, "the npz file has no arrays");
    if (count > NPZ_ARRAYS_MAX)
        return err_set(e, ERR_LIMIT, "the npz file has %lld entries, more than %d",
                       (long long)count, NPZ_ARRAYS_MAX);
    z->names = calloc((size_t)count, sizeof *z->names);
    if (!z->names)
        return err_set(e, ERR_NOMEM, "no memory for an npz file");
    for (zip_int64_t i = 0; i < count; i++) {
        const char *name = zip_get_name(z->zip, (zip_uint64_t)i, 0);
        size_t len = name ? strlen(name) : 0;
        if (len < 5 || strcmp(name + len - 4, ".npy") != 0)
            return refuse_member(name ? name : "", e);
        if (len - 4 >= NPZ_NAME_BYTES)
            return err_set(e, ERR_LIMIT, "the npz file has an array with a name of %zu characters",
                           len - 4);
        memcpy(z->names[i], name, len - 4);
    }
    z->count = (size_t)count;
    return 0;
}

/* ---- opening ------------------------------------------------------------------------------- */

static uint64_t number(const uint8_t *at, size_t bytes)
{
    uint64_t value = 0;
    for (size_t i = bytes; i-- > 0;)
        value = value << 8 | at[i];
    return value;
}

static int check_size(uint64_t entries, uint64_t bytes, err *e)
{
    if (entries > NPZ_ARRAYS_MAX)
        return err_set(e, ERR_LIMIT, "the npz file has %llu entries, more than %d",
                       (unsigned long long)entries, NPZ_ARRAYS_MAX);
    if (bytes > NPZ_DIRECTORY_BYTES_MAX)
        return err_set(e, ERR_LIMIT, "the npz file's directory has %llu bytes, more than %d",
                       (unsigned long long)bytes, NPZ_DIRECTORY_BYTES_MAX);
    return 0;
}

/* Checks the zip64 end record, whose place `locator` gives; it lies before offset `before`. */
static int check_end64(int fd, const uint8_t *locator, uint64_t before, err *e)
{
    uint8_t end[END64_BYTES];
    uint64_t place = number(locator + 8, 8);
    if (before < END64_BYTES || place > before - END64_BYTES)
        return 0; /* libzip reports the damage, here and below */
    if (fs_pread_all(fd, end, sizeof end, place, "npz file", e) != 0)
        return -1;
    return memcmp(end, "PK\6\6", 4) == 0 ? check_size(number(end + 32, 8), number(end + 40, 8), e)
                                         : 0;
}

/* Checks the end record at `place` in the file, if its directory can lie before it. */
static int check_end(const uint8_t *end, uint64_t place, err *e)
{
    uint64_t bytes = number(end + 12, 4), begin = number(end + 16, 4);
    return begin + bytes > place ? 0 : check_size(number(end + 10, 2), bytes, e);
}

/* Checks the size of the directory in the file's end, because libzip reads the whole directory, of
 * any size, when it opens a file. If several places look like an end record, libzip chooses one of
 * them: so all of them are checked. */
static int check_directory(int fd, err *e)
{
    enum { TAIL = LOCATOR_BYTES + END_BYTES + COMMENT_BYTES_MAX };
    struct stat st;
    if (fstat(fd, &st) != 0)
        return err_set_errno(e, errno, "cannot read the npz file");
    uint64_t size = (uint64_t)st.st_size, from = size < TAIL ? 0 : size - TAIL;
    size_t len = (size_t)(size - from);
    cleanup_free uint8_t *tail = malloc(TAIL);
    if (!tail)
        return err_set(e, ERR_NOMEM, "no memory for an npz file");
    if (fs_pread_all(fd, tail, len, from, "npz file", e) != 0)
        return -1;
    for (size_t at = 0; at + END_BYTES <= len; at++) {
        const uint8_t *end = tail + at, *locator = at < LOCATOR_BYTES ? NULL : end - LOCATOR_BYTES;
        if (memcmp(end, "PK\5\6", 4) != 0)
            continue;
        bool large = locator && memcmp(locator, "PK\6\7", 4) == 0;
        if ((large ? check_end64(fd, locator, from + at, e) : check_end(end, from + at, e)) != 0)
            return -1;
    }
    return 0;
}

/* Opens the archive on a descriptor of its own, because libzip closes the file that it reads. The
 * descriptor is opened, not duplicated: a duplicate would share the file offset. */
static int open_zip(npz *z, int fd, err *e)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int own = open(path, O_RDONLY | O_CLOEXEC);
    if (own < 0)
        return err_set_errno(e, errno, "cannot read the npz file");
    int code = 0;
    z->zip = zip_fdopen(own, 0, &code);
    if (!z->zip) {
        close(own);
        zip_error_t problem;
        zip_error_init_with_code(&problem, code);
        err_set(e, ERR_CORRUPT, "the npz file is damaged or cut: %.120s",
                zip_error_strerror(&problem));
        zip_error_fini(&problem);
        return -1;
    }
    return 0;
}

int npz_open(int fd, npz **out, err *e)
{
    npz *z = calloc(1, sizeof *z);
    if (!z)
        return err_set(e, ERR_NOMEM, "no memory for an npz file");
    if (check_directory(fd, e) != 0 || open_zip(z, fd, e) != 0 || read_names(z, e) != 0) {
        npz_close(z);
        return -1;
    }
    *out = z;
    return 0;
}

void npz_close(npz *z)
{
    if (!z)
        return;
    if (z->zip)
        zip_discard(z->zip);
    free(z->names);
    free(z);
}

size_t npz_count(const npz *z)
{
    return z->count;
}

const char *npz_name(const npz *z, size_t i)
{
    return z->names[i];
}

int npz_find(const npz *z, const char *name)
{
    for (size_t i = 0; i < z->count; i++)
        if (strcmp(z->names[i], name) == 0)
            return (int)i;
    return -1;
}

static int copy_member(zip_file_t *file, spool *s, err *e)
{
    cleanup_free char *block = malloc(BLOCK_BYTES);
    if (!block)
        return err_set(e, ERR_NOMEM, "no memory for an npz file");
    for (;;) {
        zip_int64_t got = zip_fread(file, block, BLOCK_BYTES);
        if (got < 0)
            return err_set(e, ERR_CORRUPT, "damaged: %.120s", zip_file_strerror(file));
        if (got == 0)
            return spool_end(s, e);
        if (spool_feed(s, block, (size_t)got, e) != 0)
            return -1;
    }
}

int npz_extract(npz *z, size_t i, const char *dir, spool_quota *quota, spool **out, err *e)
{
    zip_file_t *file = zip_fopen_index(z->zip, i, 0);
    if (!file)
        return err_set(e, ERR_CORRUPT, "array \"%s\": %.120s", z->names[i], zip_strerror(z->zip));
    spool *s = NULL;
    int result = spool_new(dir, quota, &s, e);
    if (result == 0) {
        spool_expect(s, SPOOL_NPY);
        result = copy_member(file, s, e);
    }
    zip_fclose(file);
    if (result != 0) {
        spool_free(s);
        return err_wrap(e, "array \"%s\"", z->names[i]);
    }
    *out = s;
    return 0;
}
