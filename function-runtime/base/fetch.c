/* fetch.c: see fetch.h. */
#include "fetch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/cleanup.h"
#include "common/store/store.h"

/* Writes the object to memory: a file would stay after the process is killed, and another user
 * might guess its name. */
static int write_object(const void *bytes, size_t len, int *object_fd, err *e)
{
    int fd = memfd_create("kubeml-object", MFD_CLOEXEC);
    if (fd < 0)
        return err_set_errno(e, errno, "memory for the code");
    if (fs_write_all(fd, bytes, len, "the code", e) != 0) {
        close(fd);
        return -1;
    }
    *object_fd = fd;
    return 0;
}

static int fetch_object(store *from, const char *name, int *object_fd, err *e)
{
    cleanup_buf buf bytes;
    buf_init(&bytes, FETCH_OBJECT_BYTES_MAX);
    if (store_blob_read(from, name, &bytes, e) != 0)
        return err_wrap(e, "the code");
    return write_object(bytes.bytes, bytes.len, object_fd, e);
}

/* The value of a base64 digit; -1: it is none. */
static int digit_of(char c)
{
    return c >= 'A' && c <= 'Z'   ? c - 'A'
           : c >= 'a' && c <= 'z' ? c - 'a' + 26
           : c >= '0' && c <= '9' ? c - '0' + 52
           : c == '+'             ? 62
           : c == '/'             ? 63
                                  : -1;
}

int fetch_given(const char *text, int *object_fd, err *e)
{
    size_t digits =
        strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/");
    size_t padding = strspn(text + digits, "="),
           len = digits / 4 * 3 + (digits % 4 ? digits % 4 - 1 : 0);
    if (text[digits + padding] || (digits + padding) % 4 || padding > 2 || len == 0)
        return err_set(e, ERR_INVALID, "the code is not base64");
    if (len > FETCH_OBJECT_BYTES_MAX)
        return err_set(e, ERR_LIMIT, "the code has %zu bytes, over %d", len,
                       FETCH_OBJECT_BYTES_MAX);
    cleanup_free uint8_t *bytes = malloc(len);
    if (!bytes)
        return err_set(e, ERR_NOMEM, "no memory for the code");
    uint32_t held = 0;
    for (size_t i = 0, at = 0, bits = 0; i < digits; i++) {
        held = held << 6 | (uint32_t)digit_of(text[i]);
        bits += 6;
        if (bits >= 8) {
            bits -= 8;
            bytes[at++] = (uint8_t)(held >> bits);
        }
    }
    return write_object(bytes, len, object_fd, e);
}

static int fetch_model(store *from, const char *name, int *fd, err *e)
{
    blob *b = NULL;
    int own;
    if (store_blob_open(from, name, &b, e) != 0)
        return err_wrap(e, "the model");
    int rc = blob_fd(b, &own, e);
    if (rc == 0) {
        *fd = fcntl(own, F_DUPFD_CLOEXEC, 3);
        rc = *fd < 0 ? err_set_errno(e, errno, "the model") : 0;
    }
    blob_close(b);
    return rc;
}

int fetch(char *locator, const char *object, int *object_fd, const char *model, int *fd, err *e)
{
    bool coded = object && strncmp(object, "zoo:", 4) != 0;
    store *from = store_open(locator, e);
    explicit_bzero(locator, strlen(locator));
    if (!from)
        return -1;
    int rc = model ? fetch_model(from, model, fd, e) : 0;
    if (rc == 0 && coded)
        rc = fetch_object(from, object, object_fd, e);
    if (rc != 0 && model && *fd >= 0) {
        close(*fd);
        *fd = -1;
    }
    store_close(from);
    return rc;
}
