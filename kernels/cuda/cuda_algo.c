/* cuda_algo.c: which way each convolution and linear layer is computed; see cuda_program.h.
 *
 * Every pass of every layer is timed once per machine type and shape, and again when the libraries
 * or our kernels are others: what the libraries offer and our own kernel, on the tensors that the
 * plan has laid out. The winners are kept (cuda_autotune.c), so that a warm function measures
 * nothing and the same job computes the same way again.
 *
 * Where a cap, or a full device, leaves out ways for the workspace that they want, what is measured
 * is the fastest of the rest: it stands under a key of its own, with that limit, and is nothing to
 * those who have the room. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/cleanup.h"
#include "cuda_memory.h"
#include "cuda_program.h"

enum {
    TIMED_RUNS = 5,
    TIMED_ROUNDS = 3,
    WAKE_US = 30000,
    WAKE_ROUNDS = 2000,
    AWAKE_MS = 1000,
};
#define WORKSPACE_MAX ((size_t)1 << 30) /* a power of two */

/* ---- one task -------------------------------------------------------------------------------- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* True, and noted as awake from now on, when the device was not woken within the last second. */
static bool sleeps(int ordinal)
{
    static int awake = -1;
    static int64_t since_ms;
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    int64_t now_ms = (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
    pthread_mutex_lock(&lock);
    bool slept = awake != ordinal || now_ms - since_ms > AWAKE_MS;
    if (slept) {
        awake = ordinal;
        since_ms = now_ms;
    }
    pthread_mutex_unlock(&lock);
    return slept;
}

/* Clears the program's memory for some milliseconds of the device's time. */
void cuda_wake(program *p)
{
    float us = 0;
    if (!sleeps(p->c.device))
        return;
    for (double all = 0, rounds = 0; all < WAKE_US && rounds < WAKE_ROUNDS; all += us, rounds++)
        if (p->d->mark(p->dev, 0, NULL) || p->d->zero(p->dev, p->memory, p->memory_bytes, NULL) ||
            p->d->mark(p->dev, 1, NULL) || p->d->elapsed(p->dev, &us, NULL))
            return;
}

/* One way of a layer's pass. */
typedef struct way {
    const layer *l;
    conv_pass pass;
    int choice;
    bool add;
} way;

static int run_way(program *p, const way *w, err *e)
{
    return cuda_conv_pass(p, w->l, w->pass, w->choice, w->add, e);
}

/* Outside of a capture, which does not bear what a library does when it runs something for the
 * first time. A failure that CUDA keeps would be taken for that of what runs next: the wait forgets
 * it. */
static bool works(program *p, const way *w)
{
    if (run_way(p, w, NULL) == 0 && p->d->wait(p->dev, NULL) == 0)
        return true;
    p->d->wait(p->dev, NULL);
    return false;
}

static int enqueue_runs(program *p, const void *of, err *e)
{
    for (int i = 0; i < TIMED_RUNS; i++)
        if (run_way(p, of, e))
            return -1;
    return 0;
}

/* TIMED_RUNS of it as one graph. NULL: a capture does not bear this way. */
static device_graph *capture_runs(program *p, const way *w)
{
    device_graph *runs = NULL;
    if (cuda_capture(p, enqueue_runs, w, &runs, NULL))
        p->d->wait(p->dev, NULL); /* which forgets the failure */
    return runs;
}

/* Instead of a time. What failed may do so at this moment alone: a full GPU, a device that is lost.
 */
enum { NOT_IN_A_GRAPH = -1, FAILED = -2 };

/* The fastest round's microseconds a run. Timed as it will run, in a graph: what the host takes to
 * start a library's way is more than a small kernel's time, and is nothing to a step. */
static float time_way(program *p, const way *w)
{
    float best = FAILED, us;
    if (!works(p, w))
        return FAILED;
    device_graph *runs = capture_runs(p, w);
    if (!runs)
        return NOT_IN_A_GRAPH;
    for (int round = 0; round < TIMED_ROUNDS; round++) {
        if (p->d->mark(p->dev, 0, NULL) || p->d->replay(p->dev, runs, NULL) ||
            p->d->mark(p->dev, 1, NULL) || p->d->elapsed(p->dev, &us, NULL)) {
            best = FAILED;
            break;
        }
        us /= TIMED_RUNS;
        best = best < 0 || us < best ? us : best;
    }
    p->d->release(p->dev, runs);
    return best;
}

typedef struct task {
    layer *l;
    conv_pass pass;
    bool add;
    conv_task what;
    const struct task *twin; /* the first one like it, which chooses for both; or NULL */
    conv_offer offers[CONV_OFFERS_MAX];
    int offer_count;
    const char *chosen; /* its name */
} task;

static const char *offer_name(const task *t, int at)
{
    return at < 0 ? WINNER_OWN : t->offers[at].name;
}

static void take_choice(task *t, int at)
{
    t->chosen = offer_name(t, at);
    t->l->choice[t->pass] = at < 0 ? CHOICE_OWN : t->offers[at].id;
    t->l->workspace[t->pass] = at < 0 ? 0 : t->offers[at].workspace;
}

static void take_twins_choice(task *t)
{
    t->chosen = t->twin->chosen;
    t->l->choice[t->pass] = t->twin->l->choice[t->pass];
    t->l->workspace[t->pass] = t->twin->l->workspace[t->pass];
}

/* Of the ways that have their place in memory somewhere: whether this program's limit leaves one
 * out. */
static bool is_limited(const program *p, const task *t)
{
    for (int i = 0; i < t->offer_count; i++)
        if (t->offers[i].workspace > p->workspace_limit && t->offers[i].workspace <= WORKSPACE_MAX)
            return true;
    return false;
}

/* What is measured under a limit: "KEY workspace BYTES". */
static void add_limit(const program *p, char key[KEY_BYTES])
{
    size_t used = strlen(key);
    snprintf(key + used, KEY_BYTES - used, " workspace %zu", p->workspace_limit);
}

/* -2: the winner is not among what can be done here. */
static int find_offer(const task *t, const char *winner)
{
    if (strcmp(winner, WINNER_OWN) == 0)
        return -1;
    for (int i = 0; i < t->offer_count; i++)
        if (strcmp(t->offers[i].name, winner) == 0)
            return i;
    return -2;
}

/* Our own kernel always works: it is the choice when nothing else does. *Known is whether that will
 * be so the next time: where it failed itself, or each of the others did, the device was at fault.
 */
static int measure(program *p, const task *t, bool *known)
{
    int best = -1;
    bool ran = false, failed = false;
    way w = {t->l, t->pass, CHOICE_OWN, t->add};
    float best_us = time_way(p, &w);
    bool sound = best_us >= 0;
    for (int i = 0; i < t->offer_count; i++) {
        if (t->offers[i].workspace > p->workspace_limit)
            continue;
        w.choice = t->offers[i].id;
        float us = time_way(p, &w);
        ran |= us >= 0;
        failed |= us == FAILED;
        if (us >= 0 && (best_us < 0 || us < best_us)) {
            best = i;
            best_us = us;
        }
    }
    *known = sound && (ran || !failed);
    return best;
}

/* ---- all of them ----------------------------------------------------------------------------- */

static bool has_pass(const program *p, const layer *l, conv_pass pass)
{
    if ((l->node->op != OP_CONV2D && l->node->op != OP_LINEAR) || l->pooled)
        return false; /* of a fused one there is one way */
    if (l >= p->layers + p->head)
        return false;
    if (pass == CONV_FORWARD)
        return true;
    return !p->c.inference && (pass == CONV_WEIGHTS || p->tensors[l->node->in[0]].dy);
}

/* The data pass adds when another reader's backward comes first: a later layer reads the tensor. */
static bool adds(const program *p, const layer *l, conv_pass pass)
{
    return pass == CONV_DATA && p->tensors[l->node->in[0]].last != (int)(l - p->layers);
}

static const task *find_twin(const task *tasks, const task *t)
{
    for (const task *at = tasks; at < t; at++)
        if (!at->twin && conv_task_same(&at->what, &t->what))
            return at;
    return NULL;
}

static int collect(const program *p, task *tasks)
{
    int count = 0;
    for (int i = 0; i < p->layer_count; i++)
        for (int pass = 0; pass < CONV_PASSES; pass++) {
            layer *l = &p->layers[i];
            if (!has_pass(p, l, (conv_pass)pass))
                continue;
            task *t = &tasks[count++];
            t->l = l, t->pass = (conv_pass)pass, t->add = adds(p, l, t->pass);
            t->what = cuda_conv_task(p, l, t->pass, t->add);
            t->twin = find_twin(tasks, t);
        }
    return count;
}

static int take_workspace(program *p, size_t bytes, err *e)
{
    if (p->workspace_bytes == bytes)
        return 0;
    cuda_memory_give(p->d, p->dev, p->workspace, p->workspace_bytes);
    p->workspace = NULL, p->workspace_bytes = 0;
    if (bytes == 0)
        return 0;
    if (cuda_memory_take(p->d, p->dev, bytes, "the convolutions' workspace", &p->workspace, e))
        return -1;
    p->workspace_bytes = bytes;
    return 0;
}

/* The most that any offer within the limit wants. */
static size_t most_wanted(const program *p, const task *tasks, int count)
{
    size_t want = 0;
    for (int i = 0; i < count; i++)
        for (int j = 0; j < tasks[i].offer_count; j++) {
            size_t bytes = tasks[i].offers[j].workspace;
            want = bytes <= p->workspace_limit && bytes > want ? bytes : want;
        }
    return want;
}

/* Half of what the cap leaves; where several programs share it, of this one's part, whoever comes
 * first: the others' models need theirs, and all are to choose alike. Limits are powers of two, so
 * that processes with nearly the same room have the same. */
static void set_limit(program *p)
{
    size_t left = cuda_memory_left() / 2;
    if (p->c.programs > 1 && p->c.device_memory) {
        size_t part = p->c.device_memory / (size_t)p->c.programs;
        size_t own = part > p->memory_bytes ? (part - p->memory_bytes) / 2 : 0;
        left = own < left ? own : left;
    }
    p->workspace_limit = WORKSPACE_MAX;
    while (p->workspace_limit > left)
        p->workspace_limit /= 2;
}

/* Or what the device has: less room means fewer ways, not failure. */
static void take_room(program *p, const task *tasks, int count)
{
    size_t want;
    err ignored = ERR_INIT;
    while ((want = most_wanted(p, tasks, count)) && take_workspace(p, want, &ignored))
        p->workspace_limit /= 2;
}

/* Whether a way that was found before is to be had here: it is there, has room, and runs. */
static bool usable(program *p, const task *t, int at)
{
    return at == -1 || (at >= 0 && t->offers[at].workspace <= p->workspace_limit &&
                        works(p, &(way){t->l, t->pass, t->offers[at].id, t->add}));
}

/* The way that is known under that key, if it can be had here; -2: none. */
static int recall(program *p, const task *t, const char *key)
{
    char winner[WINNER_BYTES];
    int at = cuda_autotune_find(key, winner) ? find_offer(t, winner) : -2;
    return usable(p, t, at) ? at : -2;
}

/* True when something was learned for that. The fastest of all ways is the fastest of fewer too,
 * where it is among them. */
static bool decide(program *p, const device_facts *f, task *t)
{
    char all[KEY_BYTES], key[KEY_BYTES];
    if (t->twin) {
        take_twins_choice(t);
        return false;
    }
    bool limited = is_limited(p, t);
    cuda_task_key(f, &t->what, all);
    memcpy(key, all, sizeof key);
    if (limited)
        add_limit(p, key);
    int best = recall(p, t, key);
    if (best == -2 && limited)
        best = recall(p, t, all);
    bool learned = false;
    if (best == -2) {
        cuda_wake(p);
        best = measure(p, t, &learned);
        if (learned)
            cuda_algorithm_learn(key, offer_name(t, best));
    }
    take_choice(t, best);
    return learned;
}

/* All ways are asked for, which takes the libraries a while, and what is not known is measured. */
static void decide_all(program *p, const device_facts *f, task *tasks, int count)
{
    bool learned = false;
    for (task *t = tasks; t < tasks + count; t++)
        if (!t->twin)
            t->offer_count = p->d->offers(p->dev, &t->what, t->offers, CONV_OFFERS_MAX);
    take_room(p, tasks, count);
    for (task *t = tasks; t < tasks + count; t++)
        learned |= decide(p, f, t);
    if (learned)
        cuda_algorithms_keep();
}

/* ---- when all of them are known -------------------------------------------------------------- */

/* The way that `decide` would recall, as the task's only offer. An entry with this limit is there
 * for those alone of which the limit leaves something out, and stands before that of all ways. */
static bool recall_alone(program *p, const device_facts *f, task *t)
{
    char all[KEY_BYTES], key[KEY_BYTES], winner[WINNER_BYTES];
    cuda_task_key(f, &t->what, all);
    memcpy(key, all, sizeof key);
    add_limit(p, key);
    if ((p->workspace_limit == WORKSPACE_MAX || !cuda_autotune_find(key, winner)) &&
        !cuda_autotune_find(all, winner))
        return false;
    if (strcmp(winner, WINNER_OWN) == 0) {
        take_choice(t, -1);
        return true;
    }
    if (p->d->offer(p->dev, &t->what, winner, &t->offers[0]) ||
        t->offers[0].workspace > p->workspace_limit)
        return false;
    t->offer_count = 1;
    take_choice(t, 0);
    return true;
}

/* As `works`, of all of them: which one failed is not told. */
static bool all_work(program *p, const task *tasks, int count)
{
    bool started = true;
    for (const task *t = tasks; started && t < tasks + count; t++)
        if (!t->twin && t->offer_count)
            started = cuda_conv_pass(p, t->l, t->pass, t->offers[0].id, t->add, NULL) == 0;
    if (p->d->wait(p->dev, NULL) == 0 && started)
        return true;
    p->d->wait(p->dev, NULL);
    return false;
}

/* A process whose ways are all known asks for those alone and waits once for their first runs.
 * False where one is unknown or not to be had, also for lack of room: then all are decided, one by
 * one. */
static bool recall_all(program *p, const device_facts *f, task *tasks, int count)
{
    err ignored = ERR_INIT;
    for (task *t = tasks; t < tasks + count; t++) {
        if (t->twin)
            take_twins_choice(t);
        else if (!recall_alone(p, f, t))
            return false;
    }
    return take_workspace(p, most_wanted(p, tasks, count), &ignored) == 0 &&
           all_work(p, tasks, count);
}

/* ---- the choice ------------------------------------------------------------------------------ */

static size_t needed_workspace(const task *tasks, int count, bool of_weights)
{
    size_t needed = 0;
    for (const task *t = tasks; t < tasks + count; t++)
        if ((t->pass == CONV_WEIGHTS) == of_weights && t->l->workspace[t->pass] > needed)
            needed = t->l->workspace[t->pass];
    return needed;
}

/* What the choices want. Gradients of weights that are computed beside others have their own; where
 * there is no room for both they are not. */
static int take_needed(program *p, const task *tasks, int count, err *e)
{
    size_t weights = needed_workspace(tasks, count, true),
           others = needed_workspace(tasks, count, false),
           most = weights > others ? weights : others;
    size_t aside = (others + 255) / 256 * 256;
    err ignored = ERR_INIT;
    aside = aside ? aside : 256;
    if (p->beside && weights == 0)
        return take_workspace(p, others, e);
    if (p->beside && take_workspace(p, aside + weights, &ignored) == 0) {
        p->workspace_aside = aside;
        return 0;
    }
    p->beside = false;
    return take_workspace(p, most, e);
}

static int write_choices(program *p, const task *tasks, int count, err *e)
{
    size_t room = (size_t)(count + p->fusing_count) * (GRAPH_NAME_BYTES + WINNER_BYTES + 16) + 1,
           at = 0;
    p->choices = malloc(room);
    if (!p->choices)
        return err_set(e, ERR_NOMEM, "no memory for the list of choices");
    p->choices[0] = '\0';
    for (int i = 0; i < count; i++) {
        const task *t = &tasks[i];
        at += (size_t)snprintf(p->choices + at, room - at, "%s %s %s\n", t->l->node->name,
                               cuda_pass_names[t->pass], t->chosen);
    }
    for (int i = 0; i < p->fusing_count; i++)
        at += (size_t)snprintf(
            p->choices + at, room - at, "%s %s %s\n", p->layers[p->fusings[i].layer].node->name,
            fusing_name(p->fusings[i].kind), p->apart >> i & 1 ? "apart" : "fused");
    return 0;
}

int cuda_choose(program *p, err *e)
{
    device_facts f;
    cleanup_free task *tasks = calloc((size_t)p->layer_count * CONV_PASSES + 1, sizeof *tasks);
    if (!tasks)
        return err_set(e, ERR_NOMEM, "no memory to choose algorithms");
    if (p->d->facts(p->dev, &f, e))
        return -1;
    int count = collect(p, tasks);
    set_limit(p);
    if (!recall_all(p, &f, tasks, count))
        decide_all(p, &f, tasks, count);
    if (take_needed(p, tasks, count, e) || write_choices(p, tasks, count, e))
        return -1;
    return p->d->zero(p->dev, p->memory, p->memory_bytes, e); /* what the timing left behind */
}
