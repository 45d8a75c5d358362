/* kube_config.c: see kube_config.h. */
#include "kube_config.h"

#include <jansson.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "common/base/cleanup.h"
#include "common/base/fs.h"
#include "common/base/json_read.h"
#include "kube_exec.h"

enum { YAML_DEPTH_MAX = 24, YAML_NODES_MAX = 20000 };

static const char account_dir[] = "/var/run/secrets/kubernetes.io/serviceaccount";

void kube_config_free(kube_config *c)
{
    char *texts[] = {c->server,    c->ca_file,  c->ca_pem,   c->token_file, c->token,
                     c->cert_file, c->cert_pem, c->key_file, c->key_pem};
    if (c->key_pem)
        explicit_bzero(c->key_pem, strlen(c->key_pem));
    if (c->token)
        explicit_bzero(c->token, strlen(c->token));
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        free(texts[i]);
    *c = (kube_config){0};
}

static int copy(char **to, const char *from, err *e)
{
    *to = strdup(from);
    return *to ? 0 : err_set(e, ERR_NOMEM, "no memory for the cluster's access");
}

/* ---- in a pod -------------------------------------------------------------------------------- */

static int account_file(const char *dir, const char *name, char **out, err *e)
{
    char path[FS_PATH_BYTES];
    if (fs_path(path, e, "%s/%s", dir, name))
        return -1;
    if (!fs_exists(path))
        return err_set(e, ERR_NOT_FOUND,
                       "%.200s is not there: does the pod have a service account?", path);
    return copy(out, path, e);
}

static int account_namespace(const char *dir, kube_config *c, err *e)
{
    char path[FS_PATH_BYTES];
    cleanup_buf buf text;
    buf_init(&text, 4096);
    if (fs_path(path, e, "%s/namespace", dir) || fs_read_file(path, &text, e))
        return -1;
    size_t len = strcspn(text.bytes ? text.bytes : "", "\r\n ");
    if (len == 0 || len >= sizeof c->namespace_name)
        return err_set(e, ERR_INVALID, "%.200s holds no namespace", path);
    memcpy(c->namespace_name, text.bytes, len);
    c->namespace_name[len] = '\0';
    return 0;
}

int kube_config_in_cluster(const char *dir, kube_config *out, err *e)
{
    const char *host = getenv("KUBERNETES_SERVICE_HOST"), *port = getenv("KUBERNETES_SERVICE_PORT");
    char server[300];
    *out = (kube_config){0};
    if (!host || !*host || !port || !*port)
        return err_set(e, ERR_NOT_FOUND, "not in a pod: KUBERNETES_SERVICE_HOST is not set");
    snprintf(server, sizeof server, strchr(host, ':') ? "https://[%s]:%s" : "https://%s:%s", host,
             port);
    dir = dir ? dir : account_dir;
    if (copy(&out->server, server, e) || account_file(dir, "ca.crt", &out->ca_file, e) ||
        account_file(dir, "token", &out->token_file, e) || account_namespace(dir, out, e)) {
        kube_config_free(out);
        return -1;
    }
    return 0;
}

/* ---- YAML ------------------------------------------------------------------------------------ */

/* Converts YAML to JSON: scalars become strings, aliases are followed. NULL beyond the limits. */
static json_t *node_json(yaml_document_t *d, yaml_node_t *n, int depth, int *nodes)
{
    if (!n || depth > YAML_DEPTH_MAX || ++*nodes > YAML_NODES_MAX)
        return NULL;
    if (n->type == YAML_SCALAR_NODE)
        return json_stringn((const char *)n->data.scalar.value, n->data.scalar.length);
    if (n->type == YAML_SEQUENCE_NODE) {
        json_t *list = json_array();
        for (yaml_node_item_t *i = n->data.sequence.items.start;
             list && i < n->data.sequence.items.top; i++)
            if (json_array_append_new(
                    list, node_json(d, yaml_document_get_node(d, *i), depth + 1, nodes))) {
                json_decref(list);
                return NULL;
            }
        return list;
    }
    json_t *object = json_object();
    for (yaml_node_pair_t *p = n->data.mapping.pairs.start; object && p < n->data.mapping.pairs.top;
         p++) {
        yaml_node_t *key = yaml_document_get_node(d, p->key);
        json_t *value = key && key->type == YAML_SCALAR_NODE
                            ? node_json(d, yaml_document_get_node(d, p->value), depth + 1, nodes)
                            : NULL;
        if (!value || json_object_set_new(object, (const char *)key->data.scalar.value, value)) {
            json_decref(object);
            return NULL;
        }
    }
    return object;
}

static int yaml_read(const char *path, json_t **out, err *e)
{
    cleanup_buf buf text;
    buf_init(&text, KUBE_FILE_BYTES_MAX);
    if (fs_read_file(path, &text, e))
        return -1;
    yaml_parser_t parser;
    yaml_document_t document;
    int nodes = 0;
    if (!yaml_parser_initialize(&parser))
        return err_set(e, ERR_NOMEM, "no memory to read %.150s", path);
    yaml_parser_set_input_string(&parser, (const unsigned char *)(text.bytes ? text.bytes : ""),
                                 text.len);
    if (!yaml_parser_load(&parser, &document)) {
        err_set(e, ERR_INVALID, "%.150s, line %zu: %s", path, parser.problem_mark.line + 1,
                parser.problem ? parser.problem : "not YAML");
        yaml_parser_delete(&parser);
        return -1;
    }
    *out = node_json(&document, yaml_document_get_root_node(&document), 0, &nodes);
    yaml_document_delete(&document);
    yaml_parser_delete(&parser);
    if (json_is_object(*out))
        return 0;
    json_decref(*out);
    *out = NULL;
    return err_set(e, ERR_INVALID, "%.150s is not a kubeconfig", path);
}

/* ---- kubeconfig ------------------------------------------------------------------------------ */

/* Appends the `clusters`, `users` and `contexts` of one file to `all`. Each entry gets the folder
 * from which its relative paths start. The first file that has a name wins. */
static int merge(json_t *all, const json_t *one, const char *path, err *e)
{
    static const char *const lists[] = {"clusters", "users", "contexts"};
    const char *slash = strrchr(path, '/');
    char folder[FS_PATH_BYTES];
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    for (size_t k = 0; k < sizeof lists / sizeof *lists; k++) {
        json_t *into = json_object_get(all, lists[k]), *entry;
        size_t i;
        json_array_foreach(json_object_get(one, lists[k]), i, entry) {
            if (json_object_set_new(entry, "folder", json_string(folder)) ||
                json_array_append(into, entry))
                return err_set(e, ERR_INVALID, "%.150s: %s has an entry that is not one", path,
                               lists[k]);
        }
    }
    const char *now = json_string_value(json_object_get(one, "current-context"));
    if (now && *now && !json_object_get(all, "current-context"))
        json_object_set_new(all, "current-context", json_string(now));
    return 0;
}

static int read_all(const char *paths, json_t *all, err *e)
{
    int found = 0;
    cleanup_free char *list = strdup(paths);
    if (!list)
        return err_set(e, ERR_NOMEM, "no memory for the kubeconfig");
    char *rest = list;
    for (char *path; (path = strsep(&rest, ":"));) {
        if (!*path || !fs_exists(path))
            continue;
        cleanup_json json_t *one = NULL;
        if (yaml_read(path, &one, e) || merge(all, one, path, e))
            return -1;
        found++;
    }
    return found ? 0 : err_set(e, ERR_NOT_FOUND, "there is no kubeconfig at %.150s", paths);
}

static const json_t *named(const json_t *all, const char *list, const char *name, const char *what,
                           const char **folder, err *e)
{
    json_t *entry;
    size_t i;
    json_array_foreach(json_object_get(all, list), i, entry) {
        const char *this = json_string_value(json_object_get(entry, "name"));
        const json_t *value = json_object_get(entry, what);
        if (!this || strcmp(this, name) != 0 || !json_is_object(value))
            continue;
        if (folder)
            *folder = json_string_value(json_object_get(entry, "folder"));
        return value;
    }
    err_set(e, ERR_NOT_FOUND, "the kubeconfig has no %s \"%.100s\"", what, name);
    return NULL;
}

static const char *text_in(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text && *text ? text : NULL;
}

int kube_config_decode(const char *text, const char *field, char **out, err *e)
{
    size_t len = strlen(text);
    unsigned char *bytes = malloc(len / 4 * 3 + 4);
    if (!bytes)
        return err_set(e, ERR_NOMEM, "no memory for %s", field);
    int got = EVP_DecodeBlock(bytes, (const unsigned char *)text, (int)len);
    if (got <= 0) {
        free(bytes);
        return err_set(e, ERR_INVALID, "%s is not base64", field);
    }
    bytes[got] = '\0'; /* padding decodes to NULs, which also end the text */
    *out = (char *)bytes;
    return 0;
}

/* Takes a PEM: the field NAME-data holds it in base64, the field NAME holds a file's path. */
static int take_pem(const json_t *from, const char *name, const char *folder, char **file,
                    char **pem, err *e)
{
    char key[64], path[FS_PATH_BYTES];
    snprintf(key, sizeof key, "%s-data", name);
    const char *data = text_in(from, key), *given = text_in(from, name);
    if (data)
        return kube_config_decode(data, key, pem, e);
    if (!given)
        return 0;
    if (fs_path(path, e, given[0] == '/' ? "%.0s%s" : "%s/%s", folder ? folder : ".", given))
        return -1;
    return copy(file, path, e);
}

/* `run_until_ms`: the deadline of the program of `exec`; 0: `exec` is refused. */
static int take_user(const json_t *user, const char *folder, int64_t run_until_ms, kube_config *c,
                     err *e)
{
    static const char *const refused[] = {"exec", "auth-provider", "username", "as"};
    const json_t *exec = json_object_get(user, "exec");
    for (size_t i = exec && run_until_ms ? 1 : 0; i < sizeof refused / sizeof *refused; i++)
        if (json_object_get(user, refused[i]))
            return err_set(
                e, ERR_UNSUPPORTED,
                "the kubeconfig's user signs in by \"%s\", which KubeML does not do; use a token "
                "(kubectl create token) or a client certificate",
                refused[i]);
    if (take_pem(user, "client-certificate", folder, &c->cert_file, &c->cert_pem, e) ||
        take_pem(user, "client-key", folder, &c->key_file, &c->key_pem, e))
        return -1;
    char path[FS_PATH_BYTES];
    const char *token = text_in(user, "token"), *file = text_in(user, "tokenFile");
    if (file) {
        if (fs_path(path, e, file[0] == '/' ? "%.0s%s" : "%s/%s", folder ? folder : ".", file))
            return -1;
        if (copy(&c->token_file, path, e))
            return -1;
    } else if (token && copy(&c->token, token, e)) {
        return -1;
    }
    return exec ? kube_exec_run(exec, folder, run_until_ms, c, e) : 0;
}

static int take_cluster(const json_t *cluster, const char *folder, kube_config *c, err *e)
{
    const char *server = text_in(cluster, "server"),
               *insecure = text_in(cluster, "insecure-skip-tls-verify");
    if (!server || (strncmp(server, "https://", 8) != 0 && strncmp(server, "http://", 7) != 0))
        return err_set(e, ERR_INVALID,
                       "the kubeconfig's cluster has no server that is an http(s) address");
    if (text_in(cluster, "tls-server-name") || text_in(cluster, "proxy-url"))
        return err_set(e, ERR_UNSUPPORTED,
                       "tls-server-name and proxy-url of a kubeconfig are not supported");
    if (copy(&c->server, server, e))
        return -1;
    for (size_t len = strlen(c->server); len && c->server[len - 1] == '/'; len--)
        c->server[len - 1] = '\0';
    c->insecure = insecure && strcmp(insecure, "true") == 0;
    return take_pem(cluster, "certificate-authority", folder, &c->ca_file, &c->ca_pem, e);
}

static int choose(const json_t *all, const char *context, int64_t run_until_ms, kube_config *c,
                  err *e)
{
    const char *name = context ? context : text_in(all, "current-context"), *folder = NULL;
    if (!name)
        return err_set(e, ERR_NOT_FOUND, "the kubeconfig has no current-context; name one");
    const json_t *chosen = named(all, "contexts", name, "context", NULL, e);
    if (!chosen)
        return -1;
    const char *cluster = text_in(chosen, "cluster"), *user = text_in(chosen, "user");
    const char *space = text_in(chosen, "namespace");
    snprintf(c->namespace_name, sizeof c->namespace_name, "%s", space ? space : "default");
    const json_t *part = named(all, "clusters", cluster ? cluster : "", "cluster", &folder, e);
    if (!part || take_cluster(part, folder, c, e))
        return -1;
    if (!user)
        return 0;
    part = named(all, "users", user, "user", &folder, e);
    return part ? take_user(part, folder, run_until_ms, c, e) : -1;
}

static int read_config(const char *paths, const char *context, int64_t run_until_ms,
                       kube_config *out, err *e)
{
    char usual[FS_PATH_BYTES];
    const char *given = getenv("KUBECONFIG"), *home = getenv("HOME");
    *out = (kube_config){0};
    if (!paths && given && *given)
        paths = given;
    if (!paths) {
        if (fs_path(usual, e, "%s/.kube/config", home ? home : "/root"))
            return -1;
        paths = usual;
    }
    cleanup_json json_t *all = json_pack("{s:[], s:[], s:[]}", "clusters", "users", "contexts");
    if (!all)
        return err_set(e, ERR_NOMEM, "no memory for the kubeconfig");
    if (read_all(paths, all, e) || choose(all, context, run_until_ms, out, e)) {
        kube_config_free(out);
        return -1;
    }
    return 0;
}

int kube_config_read(const char *paths, const char *context, kube_config *out, err *e)
{
    return read_config(paths, context, 0, out, e);
}

int kube_config_sign_in(const char *paths, const char *context, int64_t deadline_ms,
                        kube_config *out, err *e)
{
    return read_config(paths, context, deadline_ms, out, e);
}

int kube_config_find(const char *context, kube_config *out, err *e)
{
    const char *host = getenv("KUBERNETES_SERVICE_HOST");
    if (!context && host && *host)
        return kube_config_in_cluster(NULL, out, e);
    return kube_config_read(NULL, context, out, e);
}
