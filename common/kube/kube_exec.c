/* kube_exec.c: see kube_exec.h. */
#include "kube_exec.h"

#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/fs.h"
#include "common/base/json_read.h"
#include "common/base/process.h"

enum { WORDS_BYTES = 120, REPLY_DEPTH_MAX = 16 };

static const char info_name[] = "KUBERNETES_EXEC_INFO";
static const char *const versions[] = {"client.authentication.k8s.io/v1",
                                       "client.authentication.k8s.io/v1beta1"};

/* The command to run. `argv` points into the kubeconfig, `envp` into `own` and our environment. */
typedef struct command {
    const char *name;    /* as in the kubeconfig */
    const char *version; /* one of `versions` */
    char path[FS_PATH_BYTES];
    char *argv[KUBE_EXEC_ITEMS_MAX + 2];
    char *own[KUBE_EXEC_ITEMS_MAX + 1]; /* NAME=VALUE, KUBERNETES_EXEC_INFO among them */
    size_t own_count;
    char **envp;
} command;

static void command_free(command *c)
{
    for (size_t i = 0; i < c->own_count; i++)
        free(c->own[i]);
    free(c->envp);
}

static const char *text_in(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text && *text ? text : NULL;
}

/* ---- which program --------------------------------------------------------------------------- */

static int find_program(command *c, const json_t *exec, const char *folder, err *e)
{
    const char *hint = text_in(exec, "installHint");
    char named[FS_PATH_BYTES];
    bool beside = strchr(c->name, '/') && c->name[0] != '/'; /* relative to the kubeconfig */
    if (fs_path(named, e, "%s%s%s", beside && folder ? folder : "", beside && folder ? "/" : "",
                c->name))
        return -1;
    bool found = fs_find_program(named, c->path);
    return found ? 0
                 : err_set(e, ERR_NOT_FOUND, "%.60s, by which the kubeconfig's user signs in, %s%s",
                           c->name, hint ? "is missing: " : "is missing", hint ? hint : "");
}

static int take_arguments(command *c, const json_t *exec, err *e)
{
    const json_t *list = json_object_get(exec, "args"), *one;
    size_t i, count = 1;
    c->argv[0] = c->path;
    json_array_foreach (list, i, one) {
        if (count > KUBE_EXEC_ITEMS_MAX || !json_is_string(one))
            return err_set(e, ERR_INVALID, "%.60s: args are not at most %d texts", c->name,
                           KUBE_EXEC_ITEMS_MAX);
        c->argv[count++] = (char *)(uintptr_t)json_string_value(one);
    }
    c->argv[count] = NULL;
    return 0;
}

/* ---- its environment ------------------------------------------------------------------------- */

static int add_variable(command *c, const char *name, const char *value, err *e)
{
    if (asprintf(&c->own[c->own_count], "%s=%s", name, value) < 0)
        return err_set(e, ERR_NOMEM, "no memory for the environment of %.60s", c->name);
    c->own_count++;
    return 0;
}

static int take_variables(command *c, const json_t *exec, err *e)
{
    json_t *one;
    size_t i;
    json_array_foreach (json_object_get(exec, "env"), i, one) {
        const char *name = text_in(one, "name"),
                   *value = json_string_value(json_object_get(one, "value"));
        if (i == KUBE_EXEC_ITEMS_MAX || !name || strchr(name, '=') || !value)
            return err_set(e, ERR_INVALID, "%.60s: env is not at most %d names and values", c->name,
                           KUBE_EXEC_ITEMS_MAX);
        if (add_variable(c, name, value, e))
            return -1;
    }
    return 0;
}

/* Writes the cluster's CA certificate in base64, for `spec.cluster`; "" where there is none. */
static int authority(const kube_config *k, buf *out, err *e)
{
    cleanup_buf buf file;
    buf_init(&file, KUBE_FILE_BYTES_MAX);
    if (!k->ca_pem && k->ca_file && fs_read_file(k->ca_file, &file, e))
        return -1;
    const char *pem = k->ca_pem ? k->ca_pem : file.len ? file.bytes : "";
    size_t len = strlen(pem);
    if (buf_reserve(out, len / 3 * 4 + 5, e))
        return -1;
    out->len =
        (size_t)EVP_EncodeBlock((unsigned char *)out->bytes, (const unsigned char *)pem, (int)len);
    return 0;
}

static json_t *cluster_info(const kube_config *k, err *e)
{
    cleanup_buf buf ca;
    buf_init(&ca, KUBE_FILE_BYTES_MAX * 2);
    if (authority(k, &ca, e))
        return NULL;
    json_t *info = json_pack("{s:s}", "server", k->server);
    if (!info ||
        (ca.len &&
         json_object_set_new(info, "certificate-authority-data", json_stringn(ca.bytes, ca.len))) ||
        (k->insecure && json_object_set_new(info, "insecure-skip-tls-verify", json_true()))) {
        json_decref(info);
        err_set(e, ERR_NOMEM, "no memory for %s", info_name);
        return NULL;
    }
    return info;
}

static int add_info(command *c, const json_t *exec, const kube_config *k, err *e)
{
    const char *wanted = text_in(exec, "provideClusterInfo");
    cleanup_json json_t *info = json_pack("{s:s, s:s, s:{s:b}}", "kind", "ExecCredential",
                                          "apiVersion", c->version, "spec", "interactive", 0);
    json_t *cluster = NULL;
    if (wanted && strcmp(wanted, "true") == 0 &&
        (!(cluster = cluster_info(k, e)) ||
         json_object_set_new(json_object_get(info, "spec"), "cluster", cluster)))
        return err_wrap(e, "%.60s", c->name);
    cleanup_free char *text = info ? json_dumps(info, JSON_COMPACT) : NULL;
    return text ? add_variable(c, info_name, text, e)
                : err_set(e, ERR_NOMEM, "no memory for %s", info_name);
}

static bool is_own(const command *c, const char *variable)
{
    size_t name = strcspn(variable, "=") + 1;
    for (size_t i = 0; i < c->own_count; i++)
        if (strncmp(c->own[i], variable, name) == 0)
            return true;
    return false;
}

/* Makes the program's environment: the kubeconfig's variables, and ours of other names. */
static int make_environment(command *c, err *e)
{
    size_t count = 0, used = 0;
    while (environ[count])
        count++;
    c->envp = calloc(count + c->own_count + 1, sizeof *c->envp);
    if (!c->envp)
        return err_set(e, ERR_NOMEM, "no memory for the environment of %.60s", c->name);
    for (size_t i = 0; i < c->own_count; i++)
        c->envp[used++] = c->own[i];
    for (size_t i = 0; i < count; i++)
        if (!is_own(c, environ[i]))
            c->envp[used++] = environ[i];
    return 0;
}

static int command_init(command *c, const json_t *exec, const char *folder, const kube_config *k,
                        err *e)
{
    const char *version = text_in(exec, "apiVersion"), *mode = text_in(exec, "interactiveMode");
    *c = (command){.name = text_in(exec, "command")};
    if (!c->name)
        return err_set(e, ERR_INVALID, "exec of the kubeconfig's user has no command");
    for (size_t i = 0; i < sizeof versions / sizeof *versions && !c->version; i++)
        c->version = version && strcmp(version, versions[i]) == 0 ? versions[i] : NULL;
    if (!c->version)
        return err_set(e, ERR_UNSUPPORTED, "%.60s signs in by apiVersion %.60s, not %s", c->name,
                       version ? version : "none", versions[0]);
    if (mode && strcmp(mode, "Always") == 0)
        return err_set(e, ERR_UNSUPPORTED,
                       "%.60s asks at a terminal (interactiveMode: Always), which it has not here",
                       c->name);
    return find_program(c, exec, folder, e) || take_arguments(c, exec, e) ||
                   take_variables(c, exec, e) || add_info(c, exec, k, e) || make_environment(c, e)
               ? -1
               : 0;
}

/* ---- its output ------------------------------------------------------------------------------ */

/* Copies the end of its stderr, in one line. */
static void last_words(const process_run *r, char out[WORDS_BYTES + 1])
{
    size_t len = r->last_len;
    while (len && (unsigned char)r->last[len - 1] <= ' ')
        len--;
    size_t n = len < WORDS_BYTES ? len : WORDS_BYTES;
    memcpy(out, r->last + len - n, n);
    out[n] = '\0';
    for (char *c = out; *c; c++)
        *c = (unsigned char)*c < ' ' ? ' ' : *c;
}

static int run(const command *c, int64_t deadline_ms, buf *out, err *e)
{
    process_run r = {.argv = c->argv, .envp = c->envp, .folder = ".", .deadline_ms = deadline_ms};
    buf none;
    char words[WORDS_BYTES + 1];
    buf_init(&none, 0); /* stderr does not fit, so that its end goes to r.last */
    if (process_run_program(&r, out, &none, e))
        return err_wrap(e, "the kubeconfig's user signs in by a program");
    buf_free(&none);
    last_words(&r, words);
    if (r.timed_out)
        return err_set(e, ERR_TIMEOUT, "%.60s, by which the user signs in, took too long%s%s",
                       c->name, *words ? ": " : "", words);
    if (r.output_over)
        return err_set(e, ERR_LIMIT, "%.60s printed more than %d bytes", c->name,
                       KUBE_EXEC_REPLY_BYTES_MAX);
    if (r.status == 0)
        return 0;
    return err_set(e, ERR_FORBIDDEN, "%.60s, by which the user signs in, ended with %s %d%s%s",
                   c->name, WIFSIGNALED(r.status) ? "signal" : "status",
                   WIFSIGNALED(r.status) ? WTERMSIG(r.status) : WEXITSTATUS(r.status),
                   *words ? ": " : "", words);
}

/* When the credentials expire; 0 where there is no such time in UTC. */
static int64_t expiry_ms(const json_t *status)
{
    struct tm when = {0};
    const char *text = text_in(status, "expirationTimestamp"),
               *rest = text ? strptime(text, "%Y-%m-%dT%H:%M:%S", &when) : NULL;
    if (!rest || rest[strspn(rest, ".0123456789")] != 'Z')
        return 0;
    return (int64_t)timegm(&when) * 1000;
}

static int replace(char **text, char **file, const char *with, err *e)
{
    char *own = strdup(with);
    if (!own)
        return err_set(e, ERR_NOMEM, "no memory for the cluster's access");
    free(*text);
    free(*file);
    *text = own;
    *file = NULL;
    return 0;
}

static int take_status(const command *c, const json_t *reply, kube_config *k, err *e)
{
    const char *kind = text_in(reply, "kind"), *version = text_in(reply, "apiVersion");
    const json_t *status = json_object_get(reply, "status");
    const char *token = text_in(status, "token"), *cert = text_in(status, "clientCertificateData"),
               *key = text_in(status, "clientKeyData");
    if (!kind || strcmp(kind, "ExecCredential") != 0 || !version ||
        strcmp(version, c->version) != 0)
        return err_set(e, ERR_INVALID, "%.60s printed no ExecCredential of %s", c->name,
                       c->version);
    if ((!token && !cert) || !cert != !key)
        return err_set(e, ERR_INVALID, "%.60s gave neither a token nor a certificate with its key",
                       c->name);
    k->expires_ms = expiry_ms(status);
    return (token && replace(&k->token, &k->token_file, token, e)) ||
                   (cert && (replace(&k->cert_pem, &k->cert_file, cert, e) ||
                             replace(&k->key_pem, &k->key_file, key, e)))
               ? -1
               : 0;
}

static int run_and_take(const command *c, int64_t deadline_ms, kube_config *k, err *e)
{
    cleanup_buf buf out;
    cleanup_json json_t *reply = NULL;
    err why = ERR_INIT;
    buf_init(&out, KUBE_EXEC_REPLY_BYTES_MAX);
    if (run(c, deadline_ms, &out, e))
        return -1;
    int bad = json_read(out.bytes ? out.bytes : "", out.len, REPLY_DEPTH_MAX, &reply, &why);
    if (out.bytes)
        explicit_bzero(out.bytes, out.len);
    if (bad)
        return err_set(e, ERR_INVALID, "%.60s printed no JSON: %.120s", c->name, why.message);
    return take_status(c, reply, k, e);
}

int kube_exec_run(const json_t *exec, const char *folder, int64_t deadline_ms, kube_config *k,
                  err *e)
{
    command c;
    int status = command_init(&c, exec, folder, k, e);
    if (status == 0)
        status = run_and_take(&c, deadline_ms, k, e);
    command_free(&c);
    return status;
}
