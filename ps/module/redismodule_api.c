/* redismodule_api.c: see redismodule_api.h. */
#include "redismodule_api.h"

#define X(name, result, arguments) result(*RedisModule_##name) arguments;
REDISMODULE_API(X)
REDISMODULE_API_OPTIONAL(X)
#undef X

typedef int (*get_api)(const char *name, void *pointer);

const char *redismodule_api_load(RedisModuleCtx *ctx)
{
    get_api get = *(get_api *)(void *)ctx;
#define X(name, result, arguments)                                                                 \
    if (get("RedisModule_" #name, (void *)&RedisModule_##name) != REDISMODULE_OK)                  \
        return #name;
    REDISMODULE_API(X)
#undef X
#define X(name, result, arguments) get("RedisModule_" #name, (void *)&RedisModule_##name);
    REDISMODULE_API_OPTIONAL(X)
#undef X
    return NULL;
}
