/* digest.c: see digest.h. */
#include "digest.h"

#include <assert.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "fs.h"

struct digest_sum {
    EVP_MD_CTX *context;
};

int digest_new(digest_sum **out, err *e)
{
    digest_sum *d = calloc(1, sizeof *d);
    if (!d || !(d->context = EVP_MD_CTX_new()) ||
        EVP_DigestInit_ex(d->context, EVP_sha256(), NULL) != 1) {
        digest_free(d);
        return err_set(e, ERR_NOMEM, "no memory for a SHA-256 sum");
    }
    *out = d;
    return 0;
}

void digest_free(digest_sum *d)
{
    if (!d)
        return;
    EVP_MD_CTX_free(d->context);
    free(d);
}

void digest_update(digest_sum *d, const void *bytes, size_t len)
{
    /* Cannot fail for a context that digest_new made and digest_finish has not ended. */
    int ok = EVP_DigestUpdate(d->context, bytes, len);
    assert(ok == 1);
    (void)ok;
}

void digest_finish(digest_sum *d, uint8_t out[DIGEST_BYTES])
{
    unsigned len = 0;
    int ok = EVP_DigestFinal_ex(d->context, out, &len);
    assert(ok == 1 && len == DIGEST_BYTES);
    (void)ok;
}

void digest_finish_hex(digest_sum *d, char out[DIGEST_HEX_BYTES])
{
    uint8_t sum[DIGEST_BYTES];
    digest_finish(d, sum);
    digest_hex(sum, out);
}

void digest_hex(const uint8_t sum[DIGEST_BYTES], char out[DIGEST_HEX_BYTES])
{
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < DIGEST_BYTES; i++) {
        out[2 * i] = digits[sum[i] >> 4];
        out[2 * i + 1] = digits[sum[i] & 15];
    }
    out[2 * DIGEST_BYTES] = '\0';
}

int digest_of(const void *bytes, size_t len, char out[DIGEST_HEX_BYTES], err *e)
{
    digest_sum *d;
    if (digest_new(&d, e) != 0)
        return -1;
    digest_update(d, bytes, len);
    digest_finish_hex(d, out);
    digest_free(d);
    return 0;
}

int digest_of_fd(int fd, char out[DIGEST_HEX_BYTES], err *e)
{
    enum { BLOCK = 1 << 16 };
    cleanup_free char *block = malloc(BLOCK);
    if (!block)
        return err_set(e, ERR_NOMEM, "no memory for a SHA-256 sum");
    digest_sum *d;
    if (digest_new(&d, e) != 0)
        return -1;
    uint64_t offset = 0;
    for (;;) {
        size_t got;
        if (fs_pread_some(fd, block, BLOCK, offset, &got, "file to sum", e) != 0) {
            digest_free(d);
            return -1;
        }
        if (got == 0)
            break;
        digest_update(d, block, got);
        offset += got;
    }
    digest_finish_hex(d, out);
    digest_free(d);
    return 0;
}

bool digest_is_hex(const char *text)
{
    return text && strlen(text) == 2 * DIGEST_BYTES &&
           strspn(text, "0123456789abcdef") == 2 * DIGEST_BYTES;
}
