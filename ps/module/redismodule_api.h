/* redismodule_api.h: the part of the Redis module API that the module uses, declared after Redis's
 * documentation of the API
 * (https://redis.io/docs/latest/develop/reference/modules/modules-api-ref/).
 *
 * Redis hands a module no symbols to link with: the first word of the context given to OnLoad is
 * the function GetApi, which fills in the rest by name (redismodule_api_load). */
#ifndef KUBEML_REDISMODULE_API_H
#define KUBEML_REDISMODULE_API_H

#include <stddef.h>
#include <stdint.h>

enum {
    REDISMODULE_OK = 0,
    REDISMODULE_ERR = 1,
    REDISMODULE_APIVER_1 = 1,
    REDISMODULE_READ = 1 << 0,
    REDISMODULE_WRITE = 1 << 1,
    REDISMODULE_KEYTYPE_EMPTY = 0,
    REDISMODULE_CTX_FLAGS_LUA = 1 << 0,
    REDISMODULE_CTX_FLAGS_MULTI = 1 << 1,
    REDISMODULE_CTX_FLAGS_DENY_BLOCKING = 1 << 21,
    REDISMODULE_OPTIONS_HANDLE_IO_ERRORS = 1 << 0,
    REDISMODULE_TYPE_METHODS_1 = 1,
};

typedef struct RedisModuleCtx RedisModuleCtx;
typedef struct RedisModuleString RedisModuleString;
typedef struct RedisModuleKey RedisModuleKey;
typedef struct RedisModuleIO RedisModuleIO;
typedef struct RedisModuleType RedisModuleType;
typedef struct RedisModuleDigest RedisModuleDigest;
typedef struct RedisModuleBlockedClient RedisModuleBlockedClient;
typedef int (*RedisModuleCmdFunc)(RedisModuleCtx *ctx, RedisModuleString **argv, int argc);

/* Version 1 of the structure: Redis does not read the fields of later versions. */
typedef struct RedisModuleTypeMethods {
    uint64_t version;
    void *(*rdb_load)(RedisModuleIO *io, int encver);
    void (*rdb_save)(RedisModuleIO *io, void *value);
    void (*aof_rewrite)(RedisModuleIO *io, RedisModuleString *key, void *value);
    size_t (*mem_usage)(const void *value);
    void (*digest)(RedisModuleDigest *digest, void *value);
    void (*free)(void *value);
} RedisModuleTypeMethods;

/* name, result, arguments */
#define REDISMODULE_API(X)                                                                         \
    X(SetModuleAttribs, void, (RedisModuleCtx *, const char *, int, int))                          \
    X(IsModuleNameBusy, int, (const char *))                                                       \
    X(SetModuleOptions, void, (RedisModuleCtx *, int))                                             \
    X(CreateCommand, int,                                                                          \
      (RedisModuleCtx *, const char *, RedisModuleCmdFunc, const char *, int, int, int))           \
    X(CreateDataType, RedisModuleType *,                                                           \
      (RedisModuleCtx *, const char *, int, RedisModuleTypeMethods *))                             \
    X(Log, void, (RedisModuleCtx *, const char *, const char *, ...))                              \
    X(LogIOError, void, (RedisModuleIO *, const char *, const char *, ...))                        \
    X(StringPtrLen, const char *, (const RedisModuleString *, size_t *))                           \
    X(RetainString, void, (RedisModuleCtx *, RedisModuleString *))                                 \
    X(FreeString, void, (RedisModuleCtx *, RedisModuleString *))                                   \
    X(Free, void, (void *))                                                                        \
    X(OpenKey, RedisModuleKey *, (RedisModuleCtx *, RedisModuleString *, int))                     \
    X(CloseKey, void, (RedisModuleKey *))                                                          \
    X(KeyType, int, (RedisModuleKey *))                                                            \
    X(ModuleTypeGetType, RedisModuleType *, (RedisModuleKey *))                                    \
    X(ModuleTypeGetValue, void *, (RedisModuleKey *))                                              \
    X(ModuleTypeSetValue, int, (RedisModuleKey *, RedisModuleType *, void *))                      \
    X(ReplyWithError, int, (RedisModuleCtx *, const char *))                                       \
    X(ReplyWithSimpleString, int, (RedisModuleCtx *, const char *))                                \
    X(ReplyWithArray, int, (RedisModuleCtx *, long))                                               \
    X(ReplyWithLongLong, int, (RedisModuleCtx *, long long))                                       \
    X(ReplyWithStringBuffer, int, (RedisModuleCtx *, const char *, size_t))                        \
    X(GetContextFlags, int, (RedisModuleCtx *))                                                    \
    X(BlockClient, RedisModuleBlockedClient *,                                                     \
      (RedisModuleCtx *, RedisModuleCmdFunc, RedisModuleCmdFunc,                                   \
       void (*)(RedisModuleCtx *, void *), long long))                                             \
    X(AbortBlock, int, (RedisModuleBlockedClient *))                                               \
    X(UnblockClient, int, (RedisModuleBlockedClient *, void *))                                    \
    X(GetBlockedClientPrivateData, void *, (RedisModuleCtx *))                                     \
    X(GetThreadSafeContext, RedisModuleCtx *, (RedisModuleBlockedClient *))                        \
    X(FreeThreadSafeContext, void, (RedisModuleCtx *))                                             \
    X(ThreadSafeContextLock, void, (RedisModuleCtx *))                                             \
    X(ThreadSafeContextUnlock, void, (RedisModuleCtx *))                                           \
    X(SaveUnsigned, void, (RedisModuleIO *, uint64_t))                                             \
    X(LoadUnsigned, uint64_t, (RedisModuleIO *))                                                   \
    X(SaveStringBuffer, void, (RedisModuleIO *, const char *, size_t))                             \
    X(LoadStringBuffer, char *, (RedisModuleIO *, size_t *))                                       \
    X(IsIOError, int, (RedisModuleIO *))                                                           \
    X(DigestAddStringBuffer, void, (RedisModuleDigest *, const char *, size_t))                    \
    X(DigestEndSequence, void, (RedisModuleDigest *))

/* Since 7.0 (patch releases); NULL where Redis has none. */
#define REDISMODULE_API_OPTIONAL(X) X(TryAlloc, void *, (size_t))

#define X(name, result, arguments) extern result(*RedisModule_##name) arguments;
REDISMODULE_API(X)
REDISMODULE_API_OPTIONAL(X)
#undef X

/* Fills in the pointers. Returns the name of the first function that this Redis lacks, or NULL. */
const char *redismodule_api_load(RedisModuleCtx *ctx);

#endif
