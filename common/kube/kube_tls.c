/* kube_tls.c: see kube_tls.h. */
#include "kube_tls.h"

#include <stdio.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/fs.h"

int kube_bearer(const kube_config *c, char **out, err *e)
{
    cleanup_buf buf text;
    buf_init(&text, KUBE_TOKEN_BYTES_MAX);
    if (c->token_file) {
        if (fs_read_file(c->token_file, &text, e))
            return err_wrap(e, "the API server's token");
    } else if (!c->token) {
        return 0;
    } else if (buf_append(&text, c->token, strlen(c->token), e)) {
        return -1;
    }
    size_t len = text.bytes ? strcspn(text.bytes, "\r\n") : 0;
    if (asprintf(out, "Authorization: Bearer %.*s", (int)len, len ? text.bytes : "") < 0)
        *out = NULL;
    return *out ? 0 : err_set(e, ERR_NOMEM, "no memory for the token");
}

static void set_blob(CURL *curl, CURLoption option, char *pem)
{
    struct curl_blob blob = {.data = pem, .len = strlen(pem), .flags = CURL_BLOB_NOCOPY};
    curl_easy_setopt(curl, option, &blob);
}

void kube_tls_set(CURL *curl, const kube_config *c)
{
    if (c->ca_pem)
        set_blob(curl, CURLOPT_CAINFO_BLOB, c->ca_pem);
    else if (c->ca_file)
        curl_easy_setopt(curl, CURLOPT_CAINFO, c->ca_file);
    if (c->cert_pem)
        set_blob(curl, CURLOPT_SSLCERT_BLOB, c->cert_pem);
    else if (c->cert_file)
        curl_easy_setopt(curl, CURLOPT_SSLCERT, c->cert_file);
    if (c->key_pem)
        set_blob(curl, CURLOPT_SSLKEY_BLOB, c->key_pem);
    else if (c->key_file)
        curl_easy_setopt(curl, CURLOPT_SSLKEY, c->key_file);
    if (c->insecure) {
        curl_easy_setopt(curl, CURLOPT_SSL_VERIFYPEER, 0L);
        curl_easy_setopt(curl, CURLOPT_SSL_VERIFYHOST, 0L);
    }
}
