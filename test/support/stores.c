/* stores.c: see stores.h. */
#include "stores.h"

#include <sys/wait.h>
#include <unistd.h>

#ifndef MONGO_DRIVER
#define MONGO_DRIVER 0 /* this build has no driver of MongoDB */
#endif

static test_store_kind now;
static char option_text[100];
static const char *server_kind = "users";

test_store_kind test_store_now(void)
{
    return now;
}

void test_store_mongo_option(const char *option)
{
    size_t len = strlen(option_text);
    snprintf(option_text + len, sizeof option_text - len, "&%s", option);
}

void test_store_mongo_server(const char *kind)
{
    server_kind = kind;
}

/* What test/mongo/uri.sh prints, without its newline; found from the program's place in a build. */
static const char *server_uri(void)
{
    static char line[400];
    if (*line)
        return line;
    const char *root = getenv("KUBEML_ROOT");
    char command[600];
    snprintf(command, sizeof command, "%s/test/mongo/uri.sh %s", root ? root : ".", server_kind);
    FILE *f = popen(command, "r");
    if (!f || !fgets(line, sizeof line, f))
        snprintf(line, sizeof line, "test/mongo/uri.sh said nothing");
    line[strcspn(line, "\n")] = '\0';
    int status = f ? pclose(f) : -1;
    if (!WIFEXITED(status) || WEXITSTATUS(status) == 77)
        test_skip(line);
    if (WEXITSTATUS(status) != 0)
        test_fail(__FILE__, __LINE__, "%s: %s", command, line);
    return line;
}

/* The server's URI with our database between its hosts and its options. */
const char *test_mongo_uri(const char *db)
{
    static char uri[700];
    if (!MONGO_DRIVER)
        test_skip("this build has no MongoDB: libmongoc's headers are not installed");
    const char *server = server_uri(), *hosts = strstr(server, "://");
    if (!hosts)
        test_fail(__FILE__, __LINE__, "MONGODB_URI is no URI");
    const char *end = hosts + 3 + strcspn(hosts + 3, "/?"), *query = strchr(end, '?');
    snprintf(uri, sizeof uri, "%.*s/%s?%s%s", (int)(end - server), server, db,
             query ? query + 1 : "kubeml.patience_ms=10000", option_text);
    return uri;
}

static char database[40];
static pid_t maker;

/* Drops the case's database and those of its datasets, in the process that chose the name. */
static void drop_databases(void)
{
    err e = ERR_INIT;
    if (maker != getpid())
        return;
    store *s = store_open(test_mongo_uri(database), &e);
    if (!s)
        return;
    if (store_drop(s, &e) != 0)
        printf("%s\n", e.message);
    store_close(s);
}

/* The database's name is chosen here, and the case left out where there is no server, before it
 * forks. */
void test_store_use(test_store_kind kind)
{
    now = kind;
    if (kind != ON_MONGO)
        return;
    const char *tmp = strrchr(test_tmp(), '/');
    snprintf(database, sizeof database, "test_%.20s_%d", tmp ? tmp + 1 : "", (int)getpid());
    for (char *p = database; *p; p++)
        if (*p == '-' || *p == '.')
            *p = '_';
    test_mongo_uri(database);
    maker = getpid();
    test_at_end(drop_databases);
}

const char *test_store_locator(const char *options)
{
    static char locator[700];
    if (now == ON_MEMORY)
        return store_memory_locator();
    if (now == ON_LMDB) {
        snprintf(locator, sizeof locator, "lmdb:%s/store%s", test_tmp(), options);
        return locator;
    }
    return test_mongo_uri(database);
}

store *test_store(const char *options)
{
    err e = ERR_INIT;
    store *s = store_open(test_store_locator(options), &e);
    if (!s)
        test_fail(__FILE__, __LINE__, "%s", e.message);
    return s;
}
