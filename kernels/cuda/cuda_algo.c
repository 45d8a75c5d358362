/* cuda_algo.c: chooses how each convolution and linear layer is computed; see cuda_program.h.
 *
 * Every pass of every layer is timed once for each machine type and shape, and again when the
 * libraries or our kernels have changed. The candidates are the libraries' ways and our own kernel,
 * on the tensors that the plan has laid out. cuda_autotune.c keeps the winners, so that a warm
 * function measures nothing and the same job computes the same way again.
 *
 * A memory cap or a full device may leave out ways for their workspace. The fastest of the rest is
 * then kept under a key of its own, with that limit. Programs that have the room do not use that
 * entry. */
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

/* Whether the device was not woken within the last second. If so, notes the device as awake from
 * now on. */
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

/* Whether the way runs. It runs outside of a capture, which fails on what a library does when it
 * runs something for the first time. After a failure the second wait clears the error that CUDA
 * keeps and that the next call would report. */
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

/* TIMED_RUNS runs of the way as one graph. NULL: the way cannot be captured. */
static device_graph *capture_runs(program *p, const way *w)
{
    device_graph *runs = NULL;
    if (cuda_capture(p, enqueue_runs, w, &runs, NULL))
        p->d->wait(p->dev, NULL); /* clears the failure */
    return runs;
}

/* Returned in place of a time. FAILED may be temporary: a full GPU, a lost device. */
enum { NOT_IN_A_GRAPH = -1, FAILED = -2 };

/* Microseconds of a run, in the fastest round. The runs are timed in a graph, as in a step: outside
 * of a graph the host takes longer to start a library's way than a small kernel runs. */
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
    const struct task *twin; /* the first task like this one, which chooses for both; or NULL */
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

/* Whether this program's limit leaves out a way that another program may have room for. */
static bool is_limited(const program *p, const task *t)
{
    for (int i = 0; i < t->offer_count; i++)
        if (t->offers[i].workspace > p->workspace_limit && t->offers[i].workspace <= WORKSPACE_MAX)
            return true;
    return false;
}

/* The key of what is measured under a limit: "KEY workspace BYTES". */
static void add_limit(const program *p, char key[KEY_BYTES])
{
    size_t used = strlen(key);
    snprintf(key + used, KEY_BYTES - used, " workspace %zu", p->workspace_limit);
}

/* The winner's place in the offers; -1: our own kernel; -2: the winner cannot be used here. */
static int find_offer(const task *t, const char *winner)
{
    if (strcmp(winner, WINNER_OWN) == 0)
        return -1;
    for (int i = 0; i < t->offer_count; i++)
        if (strcmp(t->offers[i].name, winner) == 0)
            return i;
    return -2;
}

/* The fastest offer, or -1: our own kernel, which always works. *known: whether to keep the result.
 * It is not kept where our own kernel failed, or each of the others: the device was at fault. */
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

/* ---- all tasks ------------------------------------------------------------------------------- */

static bool has_pass(const program *p, const layer *l, conv_pass pass)
{
    if ((l->node->op != OP_CONV2D && l->node->op != OP_LINEAR) || l->pooled)
        return false; /* a fused layer has one way */
    if (l >= p->layers + p->head)
        return false;
    if (pass == CONV_FORWARD)
        return true;
    return !p->c.inference && (pass == CONV_WEIGHTS || p->tensors[l->node->in[0]].dy);
}

/* Whether the data pass adds: a later layer reads the tensor too, and its backward comes first. */
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

/* The largest workspace of any offer within the limit. */
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

/* The limit is half of what the cap leaves. Where several programs share the cap, the limit is at
 * most half of what this program's part leaves: the other models need their parts, and all programs
 * are to choose alike, whichever comes first. Limits are powers of two, so that processes with
 * nearly the same room have the same limit. */
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

/* Takes the workspace, or less where the device has less room: then there are fewer ways, and no
 * failure. */
static void take_room(program *p, const task *tasks, int count)
{
    size_t want;
    err ignored = ERR_INIT;
    while ((want = most_wanted(p, tasks, count)) && take_workspace(p, want, &ignored))
        p->workspace_limit /= 2;
}

/* Whether a known way can be used here: it is offered, has room, and runs. */
static bool usable(program *p, const task *t, int at)
{
    return at == -1 || (at >= 0 && t->offers[at].workspace <= p->workspace_limit &&
                        works(p, &(way){t->l, t->pass, t->offers[at].id, t->add}));
}

/* The known way under that key; -2: there is none that can be used here. */
static int recall(program *p, const task *t, const char *key)
{
    char winner[WINNER_BYTES];
    int at = cuda_autotune_find(key, winner) ? find_offer(t, winner) : -2;
    return usable(p, t, at) ? at : -2;
}

/* Chooses the task's way; true when a new winner was measured. A limited task also takes the winner
 * of all ways, where that has room: the fastest of all ways is the fastest of fewer ways too. */
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

/* Lists all ways, which takes the libraries a while, and measures what is not known. */
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

/* ---- when all ways are known ----------------------------------------------------------------- */

/* Makes the way that `decide` would recall the task's only offer. An entry with this limit exists
 * only where the limit leaves a way out. It comes before the entry of all ways. */
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

/* Like `works`, for all tasks at once. Does not find out which one failed. */
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

/* Asks the libraries for the known ways alone, and waits once for their first runs. False where a
 * way is unknown, is not offered or has no room: then all tasks are decided one by one. */
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

/* Takes the workspace that the choices need. Gradients of weights on a branch have a workspace of
 * their own. Where there is no room for both, there is no branch. */
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
    return p->d->zero(p->dev, p->memory, p->memory_bytes, e); /* clears what the timing left */
}
