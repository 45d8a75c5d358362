/* cuda_autotune.c: the measured winners; see cuda_program.h.
 *
 * The winners are kept in memory and, where a cache file is known, in a text file ("key<TAB>winner"
 * a line) that later processes read. The sandbox lets a function write no such file. A function is
 * given what others have measured (cuda_autotune_load), and reports what it has measured itself
 * (cuda_autotune_dump). */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "cuda_kernels_version.h" /* made by the build (scripts/cuda.mk) */
#include "cuda_program.h"

enum {
    CACHE_MAX = 16384, /* entries */
    LINE_BYTES = KEY_BYTES + WINNER_BYTES + 2,
};

/* ---- the cache ------------------------------------------------------------------------------- */

typedef struct entry {
    char key[KEY_BYTES], winner[WINNER_BYTES];
    bool measured; /* by this process */
} entry;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static entry *entries;   /* under the lock, like the next three; lives as long as the process */
static uint32_t *hashes; /* of the entries' keys, so that few keys are compared */
static int entry_count, entry_room;
static bool read_once;

/* KUBEML_CUDA_CACHE (empty: none), else ~/.cache/kubeml-cuda-algorithms; false: none. */
static bool cache_path(char *path, size_t room)
{
    const char *named = getenv("KUBEML_CUDA_CACHE"), *home = getenv("HOME");
    int length = -1;
    if (named)
        length = snprintf(path, room, "%s", named);
    else if (home && *home)
        length = snprintf(path, room, "%s/.cache/kubeml-cuda-algorithms", home);
    return length > 0 && (size_t)length < room;
}

static uint32_t hash(const char *key) /* FNV-1a */
{
    uint32_t h = 2166136261u;
    for (; *key; key++)
        h = (h ^ (unsigned char)*key) * 16777619u;
    return h;
}

static entry *find(const char *key)
{
    uint32_t wanted = hash(key);
    for (int i = 0; i < entry_count; i++)
        if (hashes[i] == wanted && strcmp(entries[i].key, key) == 0)
            return &entries[i];
    return NULL;
}

static bool grow(void)
{
    int room = entry_room ? 2 * entry_room : 64;
    if (room > CACHE_MAX)
        return false;
    entry *more = realloc(entries, (size_t)room * sizeof *more);
    entries = more ? more : entries;
    uint32_t *more_hashes = realloc(hashes, (size_t)room * sizeof *more_hashes);
    hashes = more_hashes ? more_hashes : hashes;
    if (!more || !more_hashes)
        return false;
    entry_room = room;
    return true;
}

/* A full cache keeps what it has, and takes nothing new. */
static void remember(const char *key, const char *winner, bool measured)
{
    entry *at = find(key);
    if (!at) {
        if (entry_count == entry_room && !grow())
            return;
        at = &entries[entry_count++];
        snprintf(at->key, sizeof at->key, "%s", key);
        hashes[at - entries] = hash(at->key);
    }
    snprintf(at->winner, sizeof at->winner, "%s", winner);
    at->measured = measured;
}

/* Skips lines of another form: the file is a cache, not a source of truth. */
static void read_lines(FILE *f)
{
    char line[LINE_BYTES];
    while (fgets(line, sizeof line, f)) {
        char *tab = strchr(line, '\t'), *end = strchr(line, '\n');
        if (!tab || !end || end < tab || end - tab > WINNER_BYTES || tab - line >= KEY_BYTES)
            continue;
        *tab = *end = '\0';
        remember(line, tab + 1, false);
    }
}

static void read_file(void)
{
    char path[512];
    cleanup_fclose FILE *f = cache_path(path, sizeof path) ? fopen(path, "re") : NULL;
    if (f)
        read_lines(f);
}

/* Ignores errors: without a written cache the next process measures again, and nothing else is
 * lost. */
static void write_file(void)
{
    char path[512], temporary[560];
    if (!cache_path(path, sizeof path))
        return;
    char *slash = strrchr(path, '/');
    if (slash && slash != path) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    snprintf(temporary, sizeof temporary, "%s.%ld", path, (long)getpid());
    FILE *f = fopen(temporary, "we");
    if (!f)
        return;
    for (int i = 0; i < entry_count; i++)
        fprintf(f, "%s\t%s\n", entries[i].key, entries[i].winner);
    if (fclose(f) || rename(temporary, path))
        unlink(temporary);
}

void cuda_algorithms_read(void)
{
    pthread_mutex_lock(&lock);
    if (!read_once)
        read_file();
    read_once = true;
    pthread_mutex_unlock(&lock);
}

/* The lines replace entries of a file of this machine: all functions of a job get the lines, and
 * are to compute alike. */
void cuda_autotune_load(const char *lines)
{
    cuda_algorithms_read();
    cleanup_fclose FILE *f = *lines ? fmemopen((void *)(uintptr_t)lines, strlen(lines), "r") : NULL;
    pthread_mutex_lock(&lock);
    if (f)
        read_lines(f);
    pthread_mutex_unlock(&lock);
}

char *cuda_autotune_dump(void)
{
    char *text = NULL;
    size_t used = 0;
    pthread_mutex_lock(&lock);
    char *grown = malloc((size_t)entry_count * LINE_BYTES + 1);
    for (int i = 0; grown && i < entry_count; i++)
        if (entries[i].measured)
            used += (size_t)snprintf(grown + used, LINE_BYTES + 1, "%s\t%s\n", entries[i].key,
                                     entries[i].winner);
    pthread_mutex_unlock(&lock);
    if (used)
        text = grown;
    else
        free(grown);
    return text;
}

bool cuda_autotune_find(const char *key, char winner[WINNER_BYTES])
{
    cuda_algorithms_read();
    pthread_mutex_lock(&lock);
    const entry *at = find(key);
    if (at)
        memcpy(winner, at->winner, WINNER_BYTES);
    pthread_mutex_unlock(&lock);
    return at;
}

bool cuda_algorithm_at(int at, char key[KEY_BYTES], char winner[WINNER_BYTES])
{
    cuda_algorithms_read();
    pthread_mutex_lock(&lock);
    bool there = at < entry_count;
    if (there) {
        const entry *e = &entries[entry_count - 1 - at];
        memcpy(key, e->key, KEY_BYTES);
        memcpy(winner, e->winner, WINNER_BYTES);
    }
    pthread_mutex_unlock(&lock);
    return there;
}

void cuda_algorithm_learn(const char *key, const char *winner)
{
    pthread_mutex_lock(&lock);
    remember(key, winner, true);
    pthread_mutex_unlock(&lock);
}

void cuda_algorithms_keep(void)
{
    pthread_mutex_lock(&lock);
    write_file();
    pthread_mutex_unlock(&lock);
}

/* For tests: a new process begins with nothing in memory. */
void cuda_algorithms_forget(void);
void cuda_algorithms_forget(void)
{
    pthread_mutex_lock(&lock);
    entry_count = 0;
    read_once = false;
    pthread_mutex_unlock(&lock);
}

/* ---- keys ------------------------------------------------------------------------------------ */

const char *const cuda_pass_names[CONV_PASSES] = {"forward", "data", "weights"};
const char *const cuda_precision_names[] = {"fp32", "tf32", "bf16"};

int cuda_shape_text(const conv_shape *s, char *text, size_t room)
{
    return snprintf(text, room,
                    "n%d c%d h%d w%d k%d r%d s%d p%d q%d stride%dx%d pad%dx%d dil%dx%d g%d", s->n,
                    s->c, s->h, s->w, s->k, s->r, s->s, s->p, s->q, s->stride_h, s->stride_w,
                    s->pad_h, s->pad_w, s->dil_h, s->dil_w, s->groups);
}

void cuda_begin_key(const device_facts *f, char key[KEY_BYTES])
{
    snprintf(key, KEY_BYTES, "%s|%s own" CUDA_KERNELS_VERSION "|", f->name, f->libraries);
}

void cuda_task_key(const device_facts *f, const conv_task *t, char key[KEY_BYTES])
{
    char text[KEY_BYTES / 3];
    cuda_shape_text(&t->s, text, sizeof text);
    cuda_begin_key(f, key);
    size_t used = strlen(key);
    snprintf(key + used, KEY_BYTES - used, "%s %s %s%s%s%s", cuda_pass_names[t->pass],
             cuda_precision_names[t->precision], text, t->bias ? " bias" : "",
             t->relu ? " relu" : "", t->add ? " add" : "");
}

/* Reads what cuda_shape_text writes, in the same order. */
static bool read_shape(const char *text, char pass[8], char precision[8], conv_shape *s)
{
    return sscanf(text,
                  "%7s %7s n%9d c%9d h%9d w%9d k%9d r%9d s%9d p%9d q%9d stride%9dx%9d pad%9dx%9d "
                  "dil%9dx%9d g%9d",
                  pass, precision, &s->n, &s->c, &s->h, &s->w, &s->k, &s->r, &s->s, &s->p, &s->q,
                  &s->stride_h, &s->stride_w, &s->pad_h, &s->pad_w, &s->dil_h, &s->dil_w,
                  &s->groups) == 18;
}

static int find_name(const char *const *names, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    return -1;
}

/* Places of the output along one side; 0: there are none. */
static int64_t places(int in, int pad, int taps, int dilation, int stride)
{
    int64_t left = in + 2 * (int64_t)pad - dilation * ((int64_t)taps - 1) - 1;
    return left < 0 ? 0 : left / stride + 1;
}

/* Whether there can be such a layer. The key comes from outside, and nobody vouches for it. */
static bool is_layer(const conv_task *t)
{
    const conv_shape *s = &t->s;
    return s->n > 0 && s->c > 0 && s->h > 0 && s->w > 0 && s->k > 0 && s->r > 0 && s->s > 0 &&
           s->p > 0 && s->q > 0 && s->stride_h > 0 && s->stride_w > 0 && s->pad_h >= 0 &&
           s->pad_w >= 0 && s->dil_h > 0 && s->dil_w > 0 && s->groups > 0 &&
           s->c % s->groups == 0 && s->k % s->groups == 0 &&
           s->p == places(s->h, s->pad_h, s->r, s->dil_h, s->stride_h) &&
           s->q == places(s->w, s->pad_w, s->s, s->dil_w, s->stride_w) &&
           (t->pass == CONV_FORWARD || (!t->bias && !t->relu)) && (t->pass == CONV_DATA || !t->add);
}

bool cuda_task_of_key(const device_facts *f, const char *key, conv_task *out)
{
    char begin[KEY_BYTES], again[KEY_BYTES], pass[8], precision[8];
    conv_task t = {
        .bias = strstr(key, " bias"), .relu = strstr(key, " relu"), .add = strstr(key, " add")};
    cuda_begin_key(f, begin);
    if (strncmp(key, begin, strlen(begin)) != 0 ||
        !read_shape(key + strlen(begin), pass, precision, &t.s))
        return false;
    int at = find_name(cuda_pass_names, CONV_PASSES, pass);
    int computes = find_name(cuda_precision_names, 3, precision);
    if (at < 0 || computes < 0)
        return false;
    t.pass = (conv_pass)at;
    t.precision = (backend_precision)computes;
    t.t = t.precision == PRECISION_BF16 ? ELEMENT_BF16 : ELEMENT_F32;
    cuda_task_key(f, &t, again); /* the key may hold more than was read */
    *out = t;
    return strcmp(again, key) == 0 && is_layer(&t);
}
