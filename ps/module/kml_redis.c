/* kml_redis.c: the Redis module's glue: commands KUBEML.*, the key type "kubemljob", threads.
 *
 * kml_logic.h carries the commands out. This file has what only Redis can give: keys, arguments
 * that are retained beyond their command, and replies. A long merge runs on a thread of its own
 * while its client waits, so that Redis answers other clients. Blocks come from Redis's TryAlloc,
 * where it has one (they then count as used memory), else from malloc; never from its Alloc, which
 * ends Redis when memory is gone.
 *
 * Load with: loadmodule kubeml-redis.so [segment-dir PATH] [threads N] */
#include <ctype.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kml_logic.h"
#include "redismodule_api.h"

enum { MODULE_VERSION = 2, ARGUMENTS_MAX = 16 + 3 * LOGIC_FUNCTIONS_MAX, ERROR_BYTES = 320 };

static RedisModuleType *job_type;
static char segment_dir[256];

/* ---- what the logic asks of its host --------------------------------------------------------- */

static void *host_alloc(size_t bytes)
{
    return RedisModule_TryAlloc ? RedisModule_TryAlloc(bytes) : malloc(bytes);
}

static void host_free(void *p)
{
    if (RedisModule_TryAlloc)
        RedisModule_Free(p);
    else
        free(p);
}

static void host_retain(void *owner)
{
    RedisModule_RetainString(NULL, owner);
}

static void host_release(void *owner)
{
    RedisModule_FreeString(NULL, owner);
}

static const char *host_text(void *owner)
{
    return RedisModule_StringPtrLen(owner, NULL);
}

static logic_host host = {.alloc = host_alloc,
                          .free = host_free,
                          .retain = host_retain,
                          .release = host_release,
                          .text = host_text};

/* ---- replies -------------------------------------------------------------------------------- */

static void reply_array(void *user, size_t n)
{
    RedisModule_ReplyWithArray(user, (long)n);
}

static void reply_integer(void *user, int64_t n)
{
    RedisModule_ReplyWithLongLong(user, n);
}

static void reply_bytes(void *user, const void *bytes, size_t len)
{
    RedisModule_ReplyWithStringBuffer(user, bytes, len);
}

/* "KML-STALE function 3: ...": the error's name in capitals, then its message on one line. */
static int reply_error(RedisModuleCtx *ctx, const err *e)
{
    char line[ERROR_BYTES];
    int n = snprintf(line, sizeof line, "KML-%s ", err_name(e->code));
    for (char *c = line; *c; c++)
        *c = (char)toupper((unsigned char)*c);
    snprintf(line + n, sizeof line - (size_t)n, "%s", e->message);
    for (char *c = line; *c; c++)
        if ((unsigned char)*c < ' ')
            *c = '?';
    return RedisModule_ReplyWithError(ctx, line);
}

static int reply_ok(RedisModuleCtx *ctx)
{
    return RedisModule_ReplyWithSimpleString(ctx, "OK");
}

/* ---- arguments and keys --------------------------------------------------------------------- */

/* Reads the arguments after the key's name. Returns their number, or -1. */
static int arguments(RedisModuleString **argv, int argc, logic_arg out[ARGUMENTS_MAX], err *e)
{
    if (argc < 2 || argc - 2 > ARGUMENTS_MAX)
        return err_set(e, ERR_INVALID, "wrong number of arguments");
    for (int i = 2; i < argc; i++) {
        out[i - 2].bytes = RedisModule_StringPtrLen(argv[i], &out[i - 2].len);
        out[i - 2].owner = argv[i];
    }
    return argc - 2;
}

static logic_job *find_job(RedisModuleCtx *ctx, RedisModuleString *name, int mode, err *e)
{
    RedisModuleKey *key = RedisModule_OpenKey(ctx, name, mode);
    logic_job *j = NULL;
    if (!key || RedisModule_KeyType(key) == REDISMODULE_KEYTYPE_EMPTY)
        err_set(e, ERR_NOT_FOUND, "there is no such job");
    else if (RedisModule_ModuleTypeGetType(key) != job_type)
        err_set(e, ERR_CONFLICT, "the key holds something else than a job");
    else
        j = RedisModule_ModuleTypeGetValue(key);
    if (key)
        RedisModule_CloseKey(key);
    return j;
}

/* ---- commands ------------------------------------------------------------------------------- */

typedef int (*change_function)(logic_job *, int, const logic_arg *, err *);
typedef int (*query_function)(logic_job *, int, const logic_arg *, const logic_reply *, err *);

static int change(RedisModuleCtx *ctx, RedisModuleString **argv, int argc, change_function call)
{
    err e = ERR_INIT;
    logic_arg arg[ARGUMENTS_MAX];
    int n = arguments(argv, argc, arg, &e);
    logic_job *j = n < 0 ? NULL : find_job(ctx, argv[1], REDISMODULE_READ | REDISMODULE_WRITE, &e);
    if (!j || call(j, n, arg, &e))
        return reply_error(ctx, &e);
    return reply_ok(ctx);
}

static int query(RedisModuleCtx *ctx, RedisModuleString **argv, int argc, query_function call)
{
    err e = ERR_INIT;
    logic_arg arg[ARGUMENTS_MAX];
    const logic_reply r = {reply_array, reply_integer, reply_bytes, ctx};
    int n = arguments(argv, argc, arg, &e);
    logic_job *j = n < 0 ? NULL : find_job(ctx, argv[1], REDISMODULE_READ, &e);
    if (!j || call(j, n, arg, &r, &e))
        return reply_error(ctx, &e);
    return REDISMODULE_OK;
}

static int command_write(RedisModuleCtx *ctx, RedisModuleString **argv, int argc)
{
    return change(ctx, argv, argc, logic_write);
}

static int command_publish(RedisModuleCtx *ctx, RedisModuleString **argv, int argc)
{
    return change(ctx, argv, argc, logic_publish);
}

static int command_status(RedisModuleCtx *ctx, RedisModuleString **argv, int argc)
{
    return query(ctx, argv, argc, logic_status);
}

static int command_layout(RedisModuleCtx *ctx, RedisModuleString **argv, int argc)
{
    return query(ctx, argv, argc, logic_layout);
}

static int command_ledger(RedisModuleCtx *ctx, RedisModuleString **argv, int argc)
{
    return query(ctx, argv, argc, logic_ledger);
}

static int command_read(RedisModuleCtx *ctx, RedisModuleString **argv, int argc)
{
    return query(ctx, argv, argc, logic_read);
}

static int command_version(RedisModuleCtx *ctx, RedisModuleString **argv, int argc)
{
    (void)argv;
    (void)argc;
    return RedisModule_ReplyWithLongLong(ctx, MODULE_VERSION);
}

static int command_create(RedisModuleCtx *ctx, RedisModuleString **argv, int argc)
{
    err e = ERR_INIT;
    logic_arg arg[ARGUMENTS_MAX];
    int n = arguments(argv, argc, arg, &e);
    if (n < 0)
        return reply_error(ctx, &e);
    RedisModuleKey *key = RedisModule_OpenKey(ctx, argv[1], REDISMODULE_READ | REDISMODULE_WRITE);
    logic_job *j = NULL;
    if (RedisModule_KeyType(key) != REDISMODULE_KEYTYPE_EMPTY &&
        RedisModule_ModuleTypeGetType(key) != job_type)
        err_set(&e, ERR_CONFLICT, "the key holds something else than a job");
    else if (logic_create(&host, n, arg, &j, &e) == 0)
        RedisModule_ModuleTypeSetValue(key, job_type, j); /* frees the old value */
    RedisModule_CloseKey(key);
    return j ? reply_ok(ctx) : reply_error(ctx, &e);
}

/* ---- MERGE ---------------------------------------------------------------------------------- */

/* A merge and its outcome, until the client has its reply. A long merge has a thread of its own. */
typedef struct background {
    RedisModuleBlockedClient *client;
    logic_merge *merge;
    int status;
    err e;
    int64_t value[4];
    size_t values;
} background;

static void collect_array(void *user, size_t n)
{
    (void)user;
    (void)n;
}

static void collect_integer(void *user, int64_t n)
{
    background *b = user;
    if (b->values < sizeof b->value / sizeof b->value[0])
        b->value[b->values++] = n;
}

static int answer_merge(RedisModuleCtx *ctx, const background *b)
{
    if (b->status != 0)
        return reply_error(ctx, &b->e);
    RedisModule_ReplyWithArray(ctx, (long)b->values);
    for (size_t i = 0; i < b->values; i++)
        RedisModule_ReplyWithLongLong(ctx, b->value[i]);
    return REDISMODULE_OK;
}

static int background_reply(RedisModuleCtx *ctx, RedisModuleString **argv, int argc)
{
    (void)argv;
    (void)argc;
    return answer_merge(ctx, RedisModule_GetBlockedClientPrivateData(ctx));
}

static void background_free(RedisModuleCtx *ctx, void *data)
{
    (void)ctx;
    free(data);
}

static void finish(background *b)
{
    const logic_reply collect = {collect_array, collect_integer, NULL, b};
    b->status = logic_merge_end(b->merge, &collect, &b->e);
}

/* Commits under Redis's lock, whether the client is still there or not. */
static void *background_run(void *arg)
{
    background *b = arg;
    logic_merge_run(b->merge);
    RedisModuleCtx *ctx = RedisModule_GetThreadSafeContext(b->client);
    RedisModule_ThreadSafeContextLock(ctx);
    finish(b);
    RedisModule_ThreadSafeContextUnlock(ctx);
    RedisModule_FreeThreadSafeContext(ctx);
    RedisModule_UnblockClient(b->client, b);
    return NULL;
}

static int start_thread(background *b)
{
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&thread, NULL, background_run, b);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc == 0)
        pthread_detach(thread);
    return rc;
}

static int merge_here(RedisModuleCtx *ctx, background *b)
{
    logic_merge_run(b->merge);
    finish(b);
    int rc = answer_merge(ctx, b);
    free(b);
    return rc;
}

static int refuse_inside_transaction(RedisModuleCtx *ctx, err *e)
{
    int inside = REDISMODULE_CTX_FLAGS_MULTI | REDISMODULE_CTX_FLAGS_LUA |
                 REDISMODULE_CTX_FLAGS_DENY_BLOCKING;
    if (RedisModule_GetContextFlags(ctx) & inside)
        return err_set(e, ERR_UNSUPPORTED,
                       "KUBEML.MERGE waits for its merge, which is not "
                       "possible inside MULTI or a script");
    return 0;
}

static int command_merge(RedisModuleCtx *ctx, RedisModuleString **argv, int argc)
{
    err e = ERR_INIT;
    logic_arg arg[ARGUMENTS_MAX];
    int n = arguments(argv, argc, arg, &e);
    logic_job *j = NULL;
    if (n >= 0 && refuse_inside_transaction(ctx, &e) == 0)
        j = find_job(ctx, argv[1], REDISMODULE_READ | REDISMODULE_WRITE, &e);
    if (!j)
        return reply_error(ctx, &e);
    background *b = calloc(1, sizeof *b);
    if (!b)
        err_set(&e, ERR_NOMEM, "no memory for a merge");
    if (!b || logic_merge_begin(j, n, arg, &b->merge, &e)) {
        free(b);
        return reply_error(ctx, &e);
    }
    if (!logic_merge_is_long(b->merge))
        return merge_here(ctx, b);
    b->client = RedisModule_BlockClient(ctx, background_reply, NULL, background_free, 0);
    if (start_thread(b) == 0)
        return REDISMODULE_OK;
    RedisModule_AbortBlock(b->client);
    return merge_here(ctx, b);
}

/* ---- the key type --------------------------------------------------------------------------- */

static void sink_u64(void *user, uint64_t n)
{
    RedisModule_SaveUnsigned(user, n);
}

static void sink_bytes(void *user, const void *bytes, size_t len)
{
    RedisModule_SaveStringBuffer(user, bytes, len);
}

static int source_u64(void *user, uint64_t *out)
{
    *out = RedisModule_LoadUnsigned(user);
    return RedisModule_IsIOError(user) ? -1 : 0;
}

static int source_bytes(void *user, char **out, size_t *len)
{
    *out = RedisModule_LoadStringBuffer(user, len);
    return RedisModule_IsIOError(user) || !*out ? -1 : 0;
}

static void source_drop(char *bytes)
{
    RedisModule_Free(bytes);
}

static void *type_load(RedisModuleIO *io, int encoding)
{
    const logic_source from = {source_u64, source_bytes, source_drop, io};
    logic_job *j = NULL;
    err e = ERR_INIT;
    if (encoding != LOGIC_ENCODING || logic_load(&host, &from, &j, &e)) {
        RedisModule_LogIOError(io, "warning", "a job's payload is refused: %s",
                               e.code ? e.message : "unknown encoding");
        return NULL;
    }
    return j;
}

static void type_save(RedisModuleIO *io, void *value)
{
    const logic_sink to = {sink_u64, sink_bytes, io};
    logic_save(value, &to);
}

/* kubeml-ps keeps the checkpoints; a job's Redis has no append-only file. */
static void type_aof(RedisModuleIO *io, RedisModuleString *key, void *value)
{
    (void)key;
    (void)value;
    RedisModule_LogIOError(io, "warning", "jobs are not written to append-only files");
}

static size_t type_memory(const void *value)
{
    return logic_memory(value);
}

static void type_digest(RedisModuleDigest *digest, void *value)
{
    uint64_t fingerprint = logic_fingerprint(value);
    RedisModule_DigestAddStringBuffer(digest, (const char *)&fingerprint, sizeof fingerprint);
    RedisModule_DigestEndSequence(digest);
}

static void type_free(void *value)
{
    logic_free(value);
}

/* ---- loading the module --------------------------------------------------------------------- */

static const struct {
    const char *name;
    RedisModuleCmdFunc call;
    const char *flags;
    int key;
} commands[] = {
    {"kubeml.version", command_version, "readonly fast", 0},
    {"kubeml.create", command_create, "write deny-oom", 1},
    {"kubeml.write", command_write, "write deny-oom", 1},
    {"kubeml.publish", command_publish, "write fast", 1},
    {"kubeml.merge", command_merge, "write", 1},
    {"kubeml.status", command_status, "readonly fast", 1},
    {"kubeml.read", command_read, "readonly", 1},
    {"kubeml.layout", command_layout, "readonly", 1},
    {"kubeml.ledger", command_ledger, "readonly", 1},
};

static int parse_options(RedisModuleCtx *ctx, RedisModuleString **argv, int argc)
{
    for (int i = 0; i < argc; i += 2) {
        const char *name = RedisModule_StringPtrLen(argv[i], NULL);
        const char *value = i + 1 < argc ? RedisModule_StringPtrLen(argv[i + 1], NULL) : "";
        char *end = NULL;
        long threads = strtol(value, &end, 10);
        if (strcmp(name, "segment-dir") == 0 && value[0] == '/' &&
            strlen(value) < sizeof segment_dir) {
            snprintf(segment_dir, sizeof segment_dir, "%s", value);
            host.segment_dir = segment_dir;
        } else if (strcmp(name, "threads") == 0 && *value && !*end && threads >= 0 &&
                   threads <= 64) {
            host.threads = (int)threads;
        } else {
            RedisModule_Log(ctx, "warning", "option \"%s\" \"%s\" is wrong", name, value);
            return REDISMODULE_ERR;
        }
    }
    return REDISMODULE_OK;
}

static int register_all(RedisModuleCtx *ctx)
{
    RedisModuleTypeMethods methods = {
        .version = REDISMODULE_TYPE_METHODS_1,
        .rdb_load = type_load,
        .rdb_save = type_save,
        .aof_rewrite = type_aof,
        .mem_usage = type_memory,
        .digest = type_digest,
        .free = type_free,
    };
    RedisModule_SetModuleOptions(ctx, REDISMODULE_OPTIONS_HANDLE_IO_ERRORS);
    job_type = RedisModule_CreateDataType(ctx, "kubemljob", LOGIC_ENCODING, &methods);
    if (!job_type)
        return REDISMODULE_ERR;
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        if (RedisModule_CreateCommand(ctx, commands[i].name, commands[i].call, commands[i].flags,
                                      commands[i].key, commands[i].key,
                                      commands[i].key) != REDISMODULE_OK)
            return REDISMODULE_ERR;
    return REDISMODULE_OK;
}

__attribute__((visibility("default"))) int RedisModule_OnLoad(RedisModuleCtx *ctx,
                                                              RedisModuleString **argv, int argc);

int RedisModule_OnLoad(RedisModuleCtx *ctx, RedisModuleString **argv, int argc)
{
    const char *missing = redismodule_api_load(ctx);
    if (missing) {
        fprintf(stderr, "kubeml-redis: this Redis lacks RedisModule_%s\n", missing);
        return REDISMODULE_ERR;
    }
    if (RedisModule_IsModuleNameBusy("kubeml"))
        return REDISMODULE_ERR;
    RedisModule_SetModuleAttribs(ctx, "kubeml", MODULE_VERSION, REDISMODULE_APIVER_1);
    if (parse_options(ctx, argv, argc) != REDISMODULE_OK)
        return REDISMODULE_ERR;
    return register_all(ctx);
}
