/* fuzz_module.c: the Redis module's commands and dump payloads, in a host without Redis.
 *
 * An input whose first byte is even is a list of commands: lines of words, of which "@" stands for
 * a whole chunk. Otherwise the rest is a payload for RESTORE: pieces of a length (u16) and bytes.
 */
#include "ps/module/kml_arguments.c"
#include "ps/module/kml_logic.c"
#include "ps/module/kml_merge.c"
#include "ps/module/kml_save.c"

#include "fuzz.h"

static void *fuzz_alloc(size_t bytes)
{
    return bytes > 1 << 24 ? NULL : malloc(bytes);
}

static int fuzz_held;

static void fuzz_retain(void *owner)
{
    (void)owner;
    fuzz_held++;
}

static void fuzz_release(void *owner)
{
    (void)owner;
    fuzz_held--;
}

/* 100 floats and 2 counters: chunks of 400 and 16 bytes of zeros. */
static const char chunk_of_zeros[400];

static const char *fuzz_text(void *owner)
{
    (void)owner;
    return chunk_of_zeros;
}

static const logic_host fuzz_host = {.alloc = fuzz_alloc,
                                     .free = free,
                                     .retain = fuzz_retain,
                                     .release = fuzz_release,
                                     .text = fuzz_text,
                                     .segment_dir = "/nowhere",
                                     .threads = 1};

static void fuzz_array(void *user, size_t n)
{
    (void)user;
    (void)n;
}

static void fuzz_integer(void *user, int64_t n)
{
    (void)user;
    (void)n;
}

static void fuzz_bytes(void *user, const void *bytes, size_t len)
{
    *(uint64_t *)user += XXH3_64bits(bytes, len);
}

static int split_line(char *line, logic_arg *arg, int max)
{
    int n = 0;
    for (char *word; (word = strsep(&line, " ")) && n < max;) {
        bool chunk = strcmp(word, "@") == 0, short_chunk = strcmp(word, "@@") == 0;
        arg[n++] = (logic_arg){chunk || short_chunk ? chunk_of_zeros : word,
                               chunk         ? 400
                               : short_chunk ? 16
                                             : strlen(word),
                               &fuzz_held};
    }
    return n;
}

static void run_command(logic_job *j, char *line)
{
    logic_arg arg[64];
    uint64_t sum = 0;
    err e = ERR_INIT;
    const logic_reply r = {fuzz_array, fuzz_integer, fuzz_bytes, &sum};
    logic_merge *m = NULL;
    char command = line[0];
    int n = split_line(line + (line[0] != '\0'), arg, 64);
    int rc = 0;
    switch (command) {
    case 'w':
        rc = logic_write(j, n, arg, &e);
        break;
    case 'p':
        rc = logic_publish(j, n, arg, &e);
        break;
    case 's':
        rc = logic_status(j, n, arg, &r, &e);
        break;
    case 'r':
        rc = logic_read(j, n, arg, &r, &e);
        break;
    case 'l':
        rc = logic_ledger(j, n, arg, &r, &e);
        break;
    case 'y':
        rc = logic_layout(j, n, arg, &r, &e);
        break;
    case 'm':
        rc = logic_merge_begin(j, n, arg, &m, &e);
        if (rc == 0) {
            logic_merge_run(m);
            rc = logic_merge_end(m, &r, &e);
        }
        break;
    default:
        break;
    }
    FUZZ_CHECK((rc == 0) == (e.code == ERR_NONE));
    FUZZ_CHECK(e.code != ERR_INTERNAL);
}

static void run_commands(char *text)
{
    static const char *const first[] = {"layout", "100", "2", "00000000000000aa",
                                        "-1",     "0",   "0", "0000000000000000",
                                        "0",      "",    "[]"};
    logic_arg arg[64];
    logic_job *j = NULL;
    err e = ERR_INIT;
    for (int i = 0; i < 11; i++)
        arg[i] = (logic_arg){first[i], strlen(first[i]), NULL};
    FUZZ_CHECK(logic_create(&fuzz_host, 11, arg, &j, &e) == 0);
    for (char *line; (line = strsep(&text, "\n"));) {
        if (line[0] == 'c') {
            logic_job *other = NULL;
            if (logic_create(&fuzz_host, split_line(line + 1, arg, 64), arg, &other, &e) == 0)
                logic_free(other);
        } else {
            run_command(j, line);
        }
    }
    logic_free(j);
    FUZZ_CHECK(fuzz_held == 0);
}

typedef struct tape {
    const uint8_t *at, *end;
} tape;

static int tape_bytes(void *user, char **out, size_t *len)
{
    tape *t = user;
    if (t->end - t->at < 2)
        return -1;
    size_t n = (size_t)t->at[0] | (size_t)t->at[1] << 8;
    if (n > (size_t)(t->end - t->at - 2))
        return -1;
    *out = malloc(n + 1);
    FUZZ_CHECK(*out);
    memcpy(*out, t->at + 2, n);
    *len = n;
    t->at += 2 + n;
    return 0;
}

static int tape_u64(void *user, uint64_t *out)
{
    tape *t = user;
    if (t->end - t->at < 8)
        return -1;
    memcpy(out, t->at, 8);
    t->at += 8;
    return 0;
}

static void tape_drop(char *bytes)
{
    free(bytes);
}

FUZZ(module)
{
    if (len == 0)
        return 0;
    if (bytes[0] & 1) {
        tape t = {bytes + 1, bytes + len};
        const logic_source source = {tape_u64, tape_bytes, tape_drop, &t};
        logic_job *j = NULL;
        err e = ERR_INIT;
        if (logic_load(&fuzz_host, &source, &j, &e) == 0)
            logic_free(j);
        else
            FUZZ_CHECK(e.code != ERR_NONE);
        return 0;
    }
    char *text = malloc(len);
    FUZZ_CHECK(text);
    memcpy(text, bytes + 1, len - 1);
    text[len - 1] = '\0';
    run_commands(text);
    free(text);
    return 0;
}
