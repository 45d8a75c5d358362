/* test_kube_exec.c: users of a kubeconfig who sign in by a program. The programs are shell scripts
 * of the test's folder. */
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/fs.h"
#include "common/base/json_read.h"
#include "common/kube/kube_config.h"
#include "test.h"

#define V1BETA1 "client.authentication.k8s.io/v1beta1"
#define SAYS(status)                                                                               \
    "echo '{\"kind\": \"ExecCredential\", \"apiVersion\": \"" V1BETA1 "\", \"status\": " status    \
    "}'\n"
enum { PLENTY_MS = 15000 };

static const char *in_tmp(const char *name)
{
    static char path[2][700];
    static int next;
    next = !next;
    snprintf(path[next], sizeof path[next], "%s/%s", test_tmp(), name);
    return path[next];
}

static void write_program(const char *name, const char *text)
{
    char script[2000];
    err e = ERR_INIT;
    int len = snprintf(script, sizeof script, "#!/bin/sh\n%s", text);
    CHECK_OK(fs_write_file(in_tmp(name), script, (size_t)len, 0700, &e), e);
}

/* `exec`: after the apiVersion, ", command: ..." */
static const char *write_config(const char *beside, const char *exec)
{
    char text[3000];
    err e = ERR_INIT;
    const char *path = in_tmp("kubeconfig");
    int len = snprintf(text, sizeof text,
                       "current-context: one\nclusters:\n- name: c\n  cluster: {server: "
                       "'https://10.0.0.1:6443', certificate-authority-data: SGVsbG8=}\n"
                       "contexts:\n- {name: one, context: {cluster: c, user: u}}\n"
                       "users:\n- name: u\n  user: {%sexec: {apiVersion: " V1BETA1 "%s}}\n",
                       beside, exec);
    CHECK_OK(fs_write_file(path, text, (size_t)len, 0600, &e), e);
    return path;
}

static int sign_in(const char *exec, int64_t timeout_ms, kube_config *c, err *e)
{
    return kube_config_sign_in(write_config("", exec), NULL, clock_deadline_ms(timeout_ms), c, e);
}

TEST(a_program_gives_a_token)
{
    kube_config c;
    err e = ERR_INIT;
    write_program("plugin", SAYS("{\"token\": \"abc\", "
                                 "\"expirationTimestamp\": \"2026-01-02T03:04:05Z\"}"));
    CHECK_OK(sign_in(", command: ./plugin, args: null, env: null", PLENTY_MS, &c, &e), e);
    CHECK_STR(c.token, "abc");
    CHECK_INT(c.expires_ms, 1767323045000);
    kube_config_free(&c);
    /* Only who says that it may be run has it run. */
    CHECK_ERR(kube_config_read(in_tmp("kubeconfig"), NULL, &c, &e), e, ERR_UNSUPPORTED, "\"exec\"");
    /* Its token is before one that stands there. */
    const char *path = write_config("token: old, ", ", command: ./plugin");
    CHECK_OK(kube_config_sign_in(path, NULL, clock_deadline_ms(PLENTY_MS), &c, &e), e);
    CHECK_STR(c.token, "abc");
    kube_config_free(&c);
}

TEST(a_program_gives_a_certificate)
{
    kube_config c;
    err e = ERR_INIT;
    write_program("plugin", SAYS("{\"clientCertificateData\": \"pem\", \"clientKeyData\": "
                                 "\"key\"}"));
    setenv("PATH", test_tmp(), 1);
    CHECK_OK(sign_in(", command: plugin", PLENTY_MS, &c, &e), e);
    CHECK_STR(c.cert_pem, "pem");
    CHECK_STR(c.key_pem, "key");
    CHECK(!c.token && !c.expires_ms);
    kube_config_free(&c);
    write_program("plugin", SAYS("{\"clientCertificateData\": \"pem\"}"));
    CHECK_ERR(sign_in(", command: plugin", PLENTY_MS, &c, &e), e, ERR_INVALID, "with its key");
}

/* Arguments, environment (the kubeconfig's before ours), an empty stdin, our folder. */
TEST(a_program_is_told_what_the_kubeconfig_says)
{
    kube_config c;
    err e = ERR_INIT;
    cleanup_buf buf said;
    cleanup_json json_t *info = NULL;
    buf_init(&said, 4096);
    setenv("REGION", "ours", 1);
    setenv("OTHER", "kept", 1);
    write_program("plugin", "[ \"$*\" = 'get token --two words' ] || exit 3\n"
                            "[ \"$REGION $OTHER\" = 'theirs kept' ] || exit 4\n"
                            "[ -z \"$(cat)\" ] || exit 5\n"
                            "[ \"$(pwd)\" = / ] && exit 6\n"
                            "printf %s \"$KUBERNETES_EXEC_INFO\" >\"${0%/*}/info\"\n" SAYS(
                                "{\"token\": \"abc\"}"));
    CHECK(chdir("/usr") == 0);
    CHECK_OK(sign_in(", command: ./plugin, args: [get, token, --two words], "
                     "env: [{name: REGION, value: theirs}], provideClusterInfo: true",
                     PLENTY_MS, &c, &e),
             e);
    kube_config_free(&c);
    CHECK_OK(fs_read_file(in_tmp("info"), &said, &e), e);
    CHECK_OK(json_read(said.bytes, said.len, 8, &info, &e), e);
    json_t *spec = json_object_get(info, "spec"), *cluster = json_object_get(spec, "cluster");
    CHECK_STR(json_string_value(json_object_get(info, "apiVersion")), V1BETA1);
    CHECK(json_is_false(json_object_get(spec, "interactive")));
    CHECK_STR(json_string_value(json_object_get(cluster, "server")), "https://10.0.0.1:6443");
    CHECK_STR(json_string_value(json_object_get(cluster, "certificate-authority-data")),
              "SGVsbG8=");
}

TEST(a_program_that_fails_is_named_with_its_last_words)
{
    kube_config c;
    err e = ERR_INIT;
    write_program("plugin", "i=0; while [ $i -lt 3000 ]; do echo noise; i=$((i + 1)); done >&2\n"
                            "echo 'the session has expired' >&2; exit 9\n");
    CHECK_ERR(sign_in(", command: ./plugin", PLENTY_MS, &c, &e), e, ERR_FORBIDDEN,
              "the session has expired");
    CHECK_CONTAINS(e.message, "./plugin");
    CHECK_CONTAINS(e.message, "status 9");
    CHECK(!c.server);
    write_program("plugin", "kill -9 $$\n");
    CHECK_ERR(sign_in(", command: ./plugin", PLENTY_MS, &c, &e), e, ERR_FORBIDDEN, "signal 9");
}

TEST(a_program_that_gives_no_credential_is_named)
{
    static const char *const none[][2] = {
        {"echo hello\n", "printed no JSON"},
        {"", "printed no JSON"},
        {"echo '{}'\n", "no ExecCredential"},
        {"echo '{\"kind\": \"ExecCredential\", \"apiVersion\": \"other/v1\"}'\n",
         "no ExecCredential"},
        {SAYS("{}"), "neither a token"},
        {SAYS("{\"token\": 3}"), "neither a token"},
    };
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        kube_config c;
        err e = ERR_INIT;
        write_program("plugin", none[i][0]);
        CHECK_ERR(sign_in(", command: ./plugin", PLENTY_MS, &c, &e), e, ERR_INVALID, none[i][1]);
        CHECK_CONTAINS(e.message, "./plugin");
    }
}

TEST(a_program_that_hangs_or_floods_is_ended)
{
    kube_config c;
    err e = ERR_INIT;
    write_program("plugin", "echo waiting >&2; sleep 1000\n");
    CHECK_ERR(sign_in(", command: ./plugin", 300, &c, &e), e, ERR_TIMEOUT, "took too long");
    write_program("plugin", "while :; do echo noise; done\n");
    CHECK_ERR(sign_in(", command: ./plugin", PLENTY_MS, &c, &e), e, ERR_LIMIT, "more than");
}

TEST(a_program_that_is_missing_is_named_with_the_hint)
{
    kube_config c;
    err e = ERR_INIT;
    setenv("PATH", "/nowhere", 1);
    CHECK_ERR(sign_in(", command: gke-gcloud-auth-plugin, installHint: Install it by following the "
                      "manual",
                      PLENTY_MS, &c, &e),
              e, ERR_NOT_FOUND, "gke-gcloud-auth-plugin");
    CHECK_CONTAINS(e.message, "Install it by following the manual");
    CHECK_ERR(sign_in(", command: ./none", PLENTY_MS, &c, &e), e, ERR_NOT_FOUND, "is missing");
}

TEST(what_cannot_be_done_is_refused_before_anything_runs)
{
    static const char *const bad[] = {
        "", ", command: ./plugin, interactiveMode: Always", ", command: ./plugin, env: [{name: X}]",
        ", command: ./plugin, env: [{name: 'X=Y', value: z}]", ", command: ./plugin, args: [[x]]"};
    kube_config c;
    err e = ERR_INIT;
    write_program("plugin", "touch \"${0%/*}/ran\"\n");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_INT(sign_in(bad[i], PLENTY_MS, &c, &e), -1);
    const char *path = write_config("", "alpha1, command: ./plugin");
    CHECK_ERR(kube_config_sign_in(path, NULL, clock_deadline_ms(PLENTY_MS), &c, &e), e,
              ERR_UNSUPPORTED, "v1beta1alpha1");
    CHECK(!fs_exists(in_tmp("ran")));
    CHECK_INT(sign_in(", command: ./plugin", PLENTY_MS, &c, &e), -1); /* the control */
    CHECK(fs_exists(in_tmp("ran")));
}
