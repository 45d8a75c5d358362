/* cluster.c: finds the platform of a cluster through the kubeconfig.
 *
 * Requests go to the API server's proxy for the platform's Service, with the user's own
 * credentials. These need only `get` and `create` on services/proxy; no port is opened or
 * forwarded. The Service is found by its labels, and the platform's token is read from the Secret
 * that the Service names. Where the user may not read the Service, the chart's usual name is used;
 * where the user may not read the Secret, KUBEML_TOKEN must be set. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/json_read.h"

static const char selector[] =
    "app.kubernetes.io%2Fname%3Dkubeml%2Capp.kubernetes.io%2Fcomponent%3Dcontroller";
static const char secret_key[] = "kubeml.dev/token-secret"; /* annotation of the Service */
/* SIGN_IN_MS: a program that signs in may wait for a person and a browser. EARLY_MS: credentials
 * are renewed so long before they expire, because a watch may last longer than some tokens. */
enum { REPLY_MS = 30000, SIGN_IN_MS = 120000, EARLY_MS = 10000 };

/* ---- options --------------------------------------------------------------------------------- */

static const char *const option_names[] = {"--context", "--namespace", "--kubeconfig", "--service"};
enum { OPTIONS = sizeof option_names / sizeof *option_names };

/* The index of the option in a word, which may have "=value"; OPTIONS: the word is another. */
static size_t find_option(const char *word)
{
    size_t i = 0;
    for (size_t len; i < OPTIONS; i++) {
        len = strlen(option_names[i]);
        if (strncmp(word, option_names[i], len) == 0 && (!word[len] || word[len] == '='))
            break;
    }
    return i;
}

bool cluster_is_option(const char *word)
{
    return find_option(word) < OPTIONS;
}

void cluster_describe(void)
{
    for (size_t i = 0; i < OPTIONS; i++)
        printf("%s=\n", option_names[i]);
}

int cluster_options(cluster_access *a, int argc, char **argv)
{
    const char **const into[OPTIONS] = {&a->context, &a->namespace_name, &a->kubeconfig,
                                        &a->service};
    int used = 0;
    while (used < argc) {
        size_t i = find_option(argv[used]);
        if (i == OPTIONS)
            return used;
        const char *behind = strchr(argv[used], '=');
        const char *value = behind ? behind + 1 : used + 1 < argc ? argv[used + 1] : "";
        if (!*value) {
            fprintf(stderr, "kubeml: %s wants a value\n", option_names[i]);
            return -1;
        }
        used += behind ? 1 : 2;
        *into[i] = value;
        a->wanted = true;
    }
    return used;
}

/* ---- the Service ----------------------------------------------------------------------------- */

static int get(const kube_config *k, const char *path, json_t **out, err *e)
{
    char url[2048];
    http_reply reply;
    snprintf(url, sizeof url, "%s%s", k->server, path);
    http_call call = {.method = "GET", .url = url, .kube = k, .total_ms = REPLY_MS};
    int status = http_call_run(&call, &reply, e);
    if (status == 0) {
        *out = http_reply_json(&reply, e);
        status = *out ? 0 : -1;
    }
    http_reply_free(&reply);
    return status;
}

static const char *name_of(const json_t *object)
{
    const char *name =
        json_string_value(json_object_get(json_object_get(object, "metadata"), "name"));
    return name ? name : "";
}

/* Finds the platform's Service. *out: a new reference; NULL if the user may not list Services. */
static int find_service(const cluster_access *a, json_t **out, err *e)
{
    char path[300], names[160] = "";
    cleanup_json json_t *list = NULL;
    json_t *item;
    size_t i, found = 0;
    err why = ERR_INIT;
    *out = NULL;
    snprintf(path, sizeof path, "/api/v1/namespaces/%s/services?labelSelector=%s",
             a->config->namespace_name, selector);
    if (get(a->config, path, &list, &why)) {
        if (why.code == ERR_FORBIDDEN)
            return 0;
        return err_set(e, why.code == ERR_UNAUTHORIZED ? ERR_FORBIDDEN : why.code,
                       "the API server: %s", why.message);
    }
    json_array_foreach(json_object_get(list, "items"), i, item) {
        if (a->service && strcmp(name_of(item), a->service) != 0)
            continue;
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", name_of(item));
        if (found++ == 0)
            *out = json_incref(item);
    }
    if (found == 1)
        return 0;
    json_decref(*out);
    *out = NULL;
    if (found)
        return err_set(e, ERR_INVALID,
                       "namespace %s has several platforms, name one with --service: %s",
                       a->config->namespace_name, names);
    return err_set(e, ERR_NOT_FOUND,
                   "there is no %s in namespace %s; --namespace says where the platform is",
                   a->service ? a->service : "Service of KubeML", a->config->namespace_name);
}

/* ---- the token ------------------------------------------------------------------------------- */

static int find_token(cluster_access *a, const json_t *service, const char *name, err *e)
{
    char path[600], usual[300];
    cleanup_json json_t *secret = NULL;
    err why = ERR_INIT;
    const json_t *notes = json_object_get(json_object_get(service, "metadata"), "annotations");
    const char *given = json_string_value(json_object_get(notes, secret_key));
    snprintf(usual, sizeof usual, "%.250s-token", name);
    given = given ? given : usual;
    snprintf(path, sizeof path, "/api/v1/namespaces/%s/secrets/%.250s", a->config->namespace_name,
             given);
    if (get(a->config, path, &secret, &why))
        return err_set(e, ERR_UNAUTHORIZED,
                       "the platform's token cannot be read from Secret %.80s: %.120s", given,
                       why.message);
    const char *text = json_string_value(json_object_get(json_object_get(secret, "data"), "token"));
    if (!text)
        return err_set(e, ERR_UNAUTHORIZED, "Secret %.80s has no key \"token\"", given);
    return kube_config_decode(text, "the platform's token", &a->token, e);
}

static int sign_in(const cluster_access *a, kube_config *config, err *e)
{
    if (kube_config_sign_in(a->kubeconfig, a->context, clock_deadline_ms(SIGN_IN_MS), config, e))
        return -1;
    if (a->namespace_name)
        snprintf(config->namespace_name, sizeof config->namespace_name, "%s", a->namespace_name);
    return 0;
}

static int renew(cluster_access *a, err *e)
{
    kube_config fresh;
    if (!a->config->expires_ms || clock_wall_ms() < a->config->expires_ms - EARLY_MS)
        return 0;
    if (sign_in(a, &fresh, e))
        return -1;
    kube_config_free(a->config);
    *a->config = fresh;
    return 0;
}

int cluster_reach(cluster_access *a, bool has_token, err *e)
{
    static kube_config config;
    cleanup_json json_t *service = NULL;
    const char *url = getenv("KUBEML_URL");
    if (a->config)
        return renew(a, e);
    if (url && *url)
        fprintf(stderr, "kubeml: KUBEML_URL is left aside: the cluster was asked for\n");
    if (sign_in(a, &config, e))
        return -1;
    a->config = &config;
    if (find_service(a, &service, e)) {
        a->config = NULL;
        return -1;
    }
    const char *name = service ? name_of(service) : a->service ? a->service : "kubeml";
    const json_t *port =
        json_array_get(json_object_get(json_object_get(service, "spec"), "ports"), 0);
    const char *port_name = json_string_value(json_object_get(port, "name"));
    snprintf(a->base, sizeof a->base, "%s/api/v1/namespaces/%s/services/%.250s:%s/proxy",
             config.server, config.namespace_name, name, port_name ? port_name : "api");
    if (has_token || find_token(a, service, name, e) == 0)
        return 0;
    a->config = NULL;
    return -1;
}
