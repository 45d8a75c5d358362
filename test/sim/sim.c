/* sim.c: the simulated world: its clock, network, processes and faults. See sim.h. */
#include "sim.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STEPS_MAX   400000
#define WORLD_MS    (INT64_C(3600) * 1000)
#define FAULTS_MAX  10
#define TRY_MS      2100 /* of what is away, the longest between two */

/* ---- trace and chance ------------------------------------------------------------------------ */

uint64_t sim_mix(uint64_t a, uint64_t b)
{
    uint64_t h = (a ^ (b + 0x9E3779B97F4A7C15u + (a << 6) + (a >> 2))) * 0xFF51AFD7ED558CCDu;
    h ^= h >> 33;
    h *= 0xC4CEB9FE1A85EC53u;
    return h ^ h >> 29;
}

void sim_note(sim *s, const void *bytes, size_t len)
{
    const unsigned char *at = bytes;
    for (size_t i = 0; i < len; i++)
        s->hash = (s->hash ^ at[i]) * 0x100000001B3u; /* FNV-1a */
}

void sim_wrong(sim *s, const char *fmt, ...)
{
    va_list ap;
    if (s->wrong[0])
        return;
    size_t len = (size_t)snprintf(s->wrong, sizeof s->wrong, "at %lld ms: ", (long long)s->now);
    va_start(ap, fmt);
    vsnprintf(s->wrong + len, sizeof s->wrong - len, fmt, ap);
    va_end(ap);
    if (s->verbose)
        printf("VIOLATION %s\n", s->wrong);
}

void sim_trace(sim *s, const char *fmt, ...)
{
    va_list ap;
    if (!s->verbose)
        return;
    printf("%8lld ", (long long)s->now);
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    putchar('\n');
}

int64_t sim_between(sim *s, int64_t low, int64_t high)
{
    return low + (int64_t)rng_below(&s->rng, (uint64_t)(high - low) + 1);
}

bool sim_chance(sim *s, double p)
{
    return p > 0 && (double)rng_uniform(&s->rng) < p;
}

bool sim_fault(sim *s, double p)
{
    if (s->faults_left <= 0 || s->now >= s->calm_ms || !sim_chance(s, p))
        return false;
    s->faults_left--;
    s->injected++;
    sim_trace(s, "a fault, here");
    return true;
}

bool sim_frailty(sim *s, double p)
{
    if (!s->frail || s->now >= s->calm_ms || !sim_chance(s, p))
        return false;
    s->injected++;
    return true;
}

/* ---- the clock: a heap of what is to happen, by time, then by order -------------------------- */

static bool earlier(const message *a, const message *b)
{
    return a->at != b->at ? a->at < b->at : a->seq < b->seq;
}

static void heap_push(sim *s, message *m)
{
    if (s->heap_count == s->heap_room) {
        s->heap_room = s->heap_room ? 2 * s->heap_room : 256;
        s->heap = realloc(s->heap, (size_t)s->heap_room * sizeof(*s->heap));
        if (!s->heap)
            abort();
    }
    int at = s->heap_count++;
    for (; at > 0 && earlier(m, s->heap[(at - 1) / 2]); at = (at - 1) / 2)
        s->heap[at] = s->heap[(at - 1) / 2];
    s->heap[at] = m;
}

static message *heap_pop(sim *s)
{
    message *top = s->heap[0], *last = s->heap[--s->heap_count];
    int at = 0;
    for (;;) {
        int child = 2 * at + 1;
        if (child >= s->heap_count)
            break;
        if (child + 1 < s->heap_count && earlier(s->heap[child + 1], s->heap[child]))
            child++;
        if (!earlier(s->heap[child], last))
            break;
        s->heap[at] = s->heap[child];
        at = child;
    }
    s->heap[at] = last;
    return top;
}

message *sim_after(sim *s, int64_t ms, int to, void (*deliver)(sim *, message *))
{
    message *m = s->free_list;
    if (m)
        s->free_list = m->next_free;
    else if (!(m = malloc(sizeof *m)))
        abort();
    memset(m, 0, sizeof *m);
    m->at = s->now + ms;
    m->seq = s->next_seq++;
    m->to = to;
    m->life = -1;
    m->conn = m->from = -1;
    m->deliver = deliver;
    heap_push(s, m);
    return m;
}

/* ---- the network ----------------------------------------------------------------------------- */

int sim_connect(sim *s, int from, int to)
{
    if (s->conns == SIM_CONNS_MAX) {
        sim_wrong(s, "more connections than there can be");
        return 0;
    }
    s->conn[s->conns] = (sim_conn){.end = {from, to}, .open = true, .last_at = {0, 0}};
    return s->conns++;
}

/* In order, like TCP; mostly soon, sometimes after seconds. */
message *sim_send(sim *s, int c, int to, void (*deliver)(sim *, message *))
{
    sim_conn *n = &s->conn[c];
    int end = n->end[1] == to;
    int64_t wait = sim_chance(s, s->lag) ? sim_between(s, 100, 3000) : sim_between(s, 0, 5);
    int64_t at = s->now + wait < n->last_at[end] ? n->last_at[end] : s->now + wait;
    n->last_at[end] = at;
    message *m = sim_after(s, at - s->now, to, deliver);
    m->conn = c;
    return m;
}

static void closed(sim *s, message *m)
{
    const sim_conn *n = &s->conn[m->number];
    if (m->to == SIM_CONTROLLER)
        controller_conn_closed(s, m->number);
    else if (s->process[m->to].is_ps)
        ps_conn_closed(s, m->to, m->number, n->end[0] == m->to ? n->end[1] : n->end[0]);
    else if (s->process[m->to].conn == m->number)
        function_conn_closed(s, m->to);
}

void sim_break(sim *s, int c)
{
    if (!s->conn[c].open)
        return;
    s->conn[c].open = false;
    for (int end = 0; end < 2; end++) {
        message *m = sim_after(s, sim_between(s, 0, 20), s->conn[c].end[end], closed);
        m->life = s->conn[c].end[end] == SIM_CONTROLLER ? s->life : -1;
        m->number = c;
    }
}

static void break_later(sim *s, message *m)
{
    sim_break(s, m->number);
}

/* ---- processes ------------------------------------------------------------------------------- */

int sim_start_process(sim *s, bool is_ps, int who, int function, int incarnation)
{
    if (s->processes == SIM_PROCESSES_MAX) {
        sim_wrong(s, "more processes than there can be");
        return s->processes - 1;
    }
    int p = s->processes++;
    process *own = &s->process[p];
    *own = (process){.is_ps = is_ps,
                     .alive = true,
                     .job = who,
                     .function = function,
                     .incarnation = incarnation,
                     .gpu = -1,
                     .slow = 1,
                     .ps_process = -1,
                     .conn = -1};
    snprintf(own->name, sizeof own->name, "%s-%s-%d-%d-%d", is_ps ? "ps" : "function",
             s->job[who].id, function, incarnation, p);
    return p;
}

process *sim_process(sim *s, const char *name)
{
    for (int p = 0; p < s->processes; p++)
        if (strcmp(s->process[p].name, name) == 0)
            return &s->process[p];
    return NULL;
}

void sim_kill(sim *s, int p, const char *reason)
{
    process *own = &s->process[p];
    if (!own->alive)
        return;
    sim_trace(s, "%s ends: %s", own->name, reason);
    own->alive = false;
    own->ended = reason;
    for (int c = 0; c < s->conns; c++) {
        const sim_conn *n = &s->conn[c];
        if (!n->open || (n->end[0] != p && n->end[1] != p))
            continue;
        /* What it has sent arrives, or is lost with it. */
        int other = n->end[0] == p;
        if (sim_chance(s, 0.5)) {
            sim_break(s, c);
        } else {
            message *m =
                sim_after(s, n->last_at[other] > s->now ? n->last_at[other] - s->now + 1 : 1,
                          SIM_CONTROLLER, break_later);
            m->number = c;
        }
    }
    controller_pod_ended(s, p, reason);
}

/* ---- faults ---------------------------------------------------------------------------------- */

static int random_process(sim *s, bool is_ps)
{
    int found = -1, seen = 0;
    for (int p = 0; p < s->processes; p++)
        if (s->process[p].alive && s->process[p].is_ps == is_ps && sim_between(s, 0, seen++) == 0)
            found = p;
    return found;
}

static void store_is_up(sim *s, message *m)
{
    if (m->number != s->store_ends)
        return; /* it went once more, for longer */
    s->store_up = true;
    s->store_back_ms = s->now;
    controller_store_back(s);
}

/* That it was there between two tries is seen by nobody. */
static void store_goes(sim *s, int64_t ms)
{
    if (s->store_up && s->now > s->store_back_ms + TRY_MS)
        s->store_down_ms = s->now;
    s->store_up = false;
    sim_after(s, ms, SIM_CONTROLLER, store_is_up)->number = ++s->store_ends;
}

/* Now and then something is away for about as long as it is waited for. */
static int64_t away_ms(sim *s, int64_t low, int64_t high)
{
    return sim_chance(s, s->strict ? 0.2 : 0) ? sim_between(s, 55000, 150000)
                                              : sim_between(s, low, high);
}

/* SIGSTOP and, later, SIGCONT. */
static void stop_for(sim *s, int p, int64_t ms)
{
    if (p >= 0 && s->process[p].stopped_until < s->now + ms)
        s->process[p].stopped_until = s->now + ms;
}

/* Code that crashes before it is ready ends its job at once, whatever the bounds. */
static const char *end_of(sim *s)
{
    double p = (double)rng_uniform(&s->rng);
    return p < 0.15 ? "Evicted" : s->strict && p < 0.6 ? "Crashed" : "Killed";
}

static void fault(sim *s, message *m)
{
    int f = random_process(s, false), p = random_process(s, true), c;
    (void)m;
    s->injected++;
    switch (s->frail && sim_chance(s, 0.3) ? 3 : sim_between(s, 0, 11)) {
    case 0:
    case 1:
        if (f >= 0)
            sim_kill(s, f, end_of(s));
        break;
    case 2:
        if (p >= 0)
            sim_kill(s, p, "Killed");
        break;
    case 3:
        if (p >= 0)
            ps_redis_down(s, p, sim_chance(s, 0.7), away_ms(s, 100, 5000));
        break;
    case 4: controller_die(s, sim_between(s, 50, 20000)); break;
    case 5:
        stop_for(s, f, sim_between(s, 500, 12000));
        break;
    case 6:
        stop_for(s, p, sim_between(s, 500, 12000));
        break;
    case 7:
        c = s->conns ? (int)sim_between(s, 0, s->conns - 1) : -1;
        if (c >= 0)
            sim_break(s, c);
        break;
    case 8: store_goes(s, away_ms(s, 100, 20000)); break;
    case 9:
        if (f >= 0)
            s->process[f].slow = (int)sim_between(s, 5, 30);
        break;
    case 10: s->lost_replies++; break;
    default: s->flips++; break;
    }
}

static void change_slots(sim *s, message *m)
{
    controller_slots(s, m->number);
}

/* Nodes go, and come back. */
static void plan_slots(sim *s)
{
    int64_t at = 0;
    if (!sim_chance(s, 0.15))
        return;
    for (int64_t n = sim_between(s, 1, 3); n > 0; n--) {
        at += sim_between(s, 100, 8000);
        sim_after(s, at, SIM_CONTROLLER, change_slots)->number =
            (int)sim_between(s, 1, s->slots_most);
    }
    at += sim_between(s, 100, 8000);
    sim_after(s, at, SIM_CONTROLLER, change_slots)->number = s->slots_most;
}

static void plan_faults(sim *s)
{
    int timed = (int)sim_between(s, 0, FAULTS_MAX);
    s->calm_ms = sim_between(s, 1000, 20000);
    s->faults_left = (int)sim_between(s, 0, 5);
    s->duplicate = sim_chance(s, 0.5) ? 0.2 : 0;
    s->lag = sim_chance(s, 0.5) ? 0.03 : 0;
    for (int i = 0; i < timed; i++)
        sim_after(s, sim_between(s, 0, s->calm_ms), SIM_CONTROLLER, fault);
    for (int i = 0; i < s->jobs; i++)
        s->job[i].nan = sim_chance(s, 0.03);
}

/* ---- the world ------------------------------------------------------------------------------- */

/* A static job must fit at all, the functions of a shared process on one GPU. */
static void choose_gpu(sim *s, request *r)
{
    uint64_t bytes = sim_chance(s, 0.2) ? 0 : (uint64_t)sim_between(s, 50, SIM_GPU_BYTES);
    int most = (r->process == PROCESS_SHARED ? 1 : s->gpus) *
               (int)(bytes ? SIM_GPU_BYTES / bytes : GPU_UNCAPPED_PARTS);
    r->gpu.memory_bytes = bytes;
    r->device = sim_chance(s, 0.2) ? DEVICE_CPU : sim_chance(s, 0.5) ? DEVICE_CUDA : DEVICE_AUTO;
    if (r->default_parallelism > most)
        r->default_parallelism = most;
}

/* As a request may ask for it: ranks are processes of their own, whose number does not change, and
 * not on CPUs. */
static void choose_merge(const sim *s, int i, request *r)
{
    if (r->static_parallelism && r->process == PROCESS_OWN && r->device != DEVICE_CPU &&
        sim_mix(s->seed, (uint64_t)(SIM_JOBS_MAX + i)) % 2 == 0)
        r->merge = MERGE_NCCL;
}

/* The first of two jobs may be one that cannot run: there is no GPU, or none of that size. It holds
 * the other one up neither before nor behind it in the queue. */
static void choose_hopeless(const sim *s, int i, sim_job *j)
{
    if (i > 0 || s->jobs == 1 || sim_mix(s->seed, 2 * SIM_JOBS_MAX + 1) % 4)
        return;
    j->hopeless = true;
    j->request.device = DEVICE_CUDA;
    j->request.gpu.memory_bytes = SIM_GPU_BYTES + 1;
}

/* Nobody knows of a GPU when the jobs begin, and each needs all there are. */
static void choose_blind(const sim *s, request *r)
{
    if (!s->blind || s->gpus > s->slots)
        return;
    r->static_parallelism = true;
    r->default_parallelism = s->gpus;
    r->process = PROCESS_OWN;
    r->device = DEVICE_CUDA;
    r->gpu.memory_bytes = SIM_GPU_BYTES / 2 + 1;
}

static void make_job(sim *s, int i)
{
    static const int ks[] = {-1, -1, 1, 2, 3, 5};
    sim_job *j = &s->job[i];
    snprintf(j->id, sizeof j->id, "job%d", i);
    j->generation_process = j->writer = j->unfenced = -1;
    j->samples = (uint64_t)sim_between(s, 1, SIM_SAMPLES_MAX);
    j->chunk_samples = (uint32_t)sim_between(s, 1, 40);
    j->test_samples = sim_chance(s, 0.8) ? (uint64_t)sim_between(s, 1, 60) : 0;
    j->request = (request){.function_name = "f",
                           .dataset = "d",
                           .epochs = (int)sim_between(s, 1, SIM_EPOCHS_MAX),
                           .batch_size = (int)sim_between(s, 2, 30),
                           .lr = 0.1,
                           .default_parallelism = (int)sim_between(s, 1, SIM_FUNCTIONS_MAX),
                           .static_parallelism = sim_chance(s, 0.6),
                           .k = ks[sim_between(s, 0, 5)],
                           .validate_every = (int)sim_between(s, 0, 2),
                           .goal_accuracy = sim_chance(s, 0.3) ? 60 : 100,
                           .priority = (int)sim_between(s, -1, 1),
                           .seed = (uint64_t)sim_between(s, 0, 1000),
                           .on_loss = sim_chance(s, 0.3) ? ON_LOSS_CONTINUE : ON_LOSS_RECOMPUTE};
    if (sim_chance(s, 0.2))
        strcpy(j->request.init, "another");
    if (sim_chance(s, 0.1))
        j->request.active_deadline_seconds = (int)sim_between(s, 2, 30);
    if (s->strict && sim_chance(s, 0.3))
        j->request.backoff_limit = (int)sim_between(s, 1, 2);
    if (j->request.default_parallelism > s->slots)
        j->request.default_parallelism = s->slots;
    if (j->request.static_parallelism && sim_mix(s->seed, (uint64_t)i) % 3 == 0)
        j->request.process = PROCESS_SHARED;
    if (s->gpus)
        choose_gpu(s, &j->request);
    choose_blind(s, &j->request);
    choose_hopeless(s, i, j);
    choose_merge(s, i, &j->request);
    bounds_choose(s, &j->limits);
}

/* A job of all slots is tried again where smaller ones come and go, until its time is over. */
static void choose_doomed(sim *s)
{
    if (s->jobs < 3 || s->gpus || sim_mix(s->seed, 2 * SIM_JOBS_MAX + 5) % 3)
        return;
    for (int i = 0; i < s->jobs; i++) {
        s->job[i].nan = true;
        s->job[i].request.backoff_limit = 2;
        s->job[i].request.static_parallelism = true;
        s->job[i].request.default_parallelism = i == 0 ? s->slots : 1;
    }
    s->job[0].request.active_deadline_seconds =
        12 + (int)(sim_mix(s->seed, 2 * SIM_JOBS_MAX + 6) % 20);
}

static void make_world(sim *s)
{
    s->process = calloc(SIM_PROCESSES_MAX, sizeof *s->process);
    s->conn = calloc(SIM_CONNS_MAX, sizeof *s->conn);
    if (!s->process || !s->conn)
        abort();
    s->strict = sim_chance(s, 0.2);
    s->frail = s->strict && sim_mix(s->seed, 2 * SIM_JOBS_MAX + 4) % 2;
    s->narrow = sim_mix(s->seed, 2 * SIM_JOBS_MAX + 2) % 8 == 0;
    s->store_up = true;
    s->store_back_ms = -TRY_MS;
    s->slots = s->slots_most = (int)sim_between(s, 2, SIM_FUNCTIONS_MAX);
    s->gpus = sim_chance(s, 0.5) ? (int)sim_between(s, 1, SIM_GPUS_MAX) : 0;
    s->gpus_elsewhere = s->gpus && sim_mix(s->seed, 2 * SIM_JOBS_MAX) % 2;
    s->blind = s->gpus_elsewhere && sim_mix(s->seed, 2 * SIM_JOBS_MAX + 3) % 2;
    job_limits_default(&s->limits);
    s->limits.ps_restarts_max = s->strict ? (int)sim_between(s, 1, 5) : 900;
    s->limits.pod_tries_max = s->strict ? (int)sim_between(s, 2, 8) : 900;
    s->jobs = sim_chance(s, s->blind ? 0.7 : 0.3) ? 2 : 1;
    if (s->jobs == 2 && sim_chance(s, 0.3))
        s->jobs = (int)sim_between(s, 3, SIM_JOBS_MAX);
    for (int i = 0; i < s->jobs; i++)
        make_job(s, i);
    plan_faults(s);
    choose_doomed(s);
    plan_slots(s);
    controller_begin(s);
    user_begin(s);
}

static bool over(const sim *s)
{
    for (int i = 0; i < s->jobs; i++)
        if (!s->job[i].done)
            return false;
    for (int p = 0; p < s->processes; p++)
        if (s->process[p].alive)
            return false;
    return s->machine != NULL;
}

/* What must be true of a job when all is over. */
static void check_end(sim *s, int i)
{
    const sim_job *j = &s->job[i];
    if (j->state == JOB_FAILED && strcmp(j->reason, j->fair) != 0)
        sim_wrong(s, "job %s failed: %s: %s", j->id, j->reason, j->end.message);
    if (j->state == JOB_SUSPENDED)
        sim_wrong(s, "job %s is left suspended", j->id);
    if (j->state == JOB_CANCELLED && !j->cancelled && !j->lost_record)
        sim_wrong(s, "job %s was cancelled by nobody", j->id);
    if (j->state != JOB_SUCCEEDED)
        return;
    for (int e = 0; e < j->committed; e++) {
        const round_epoch *r = &j->epoch[e].record;
        bool reached = r->validated && j->request.goal_accuracy < 100 &&
                       r->accuracy >= j->request.goal_accuracy;
        if (reached != (e + 1 == j->committed) && (reached || j->committed < j->request.epochs))
            sim_wrong(s, "job %s: %d epochs for a goal of %.0f %%", j->id, j->committed,
                      j->request.goal_accuracy);
        if (r->parallelism != j->epoch[0].record.parallelism && j->request.static_parallelism)
            sim_wrong(s, "job %s: parallelism %d in a static job", j->id, r->parallelism);
    }
    if (j->committed == 0)
        sim_wrong(s, "job %s succeeded without an epoch", j->id);
    else if (j->request.on_loss == ON_LOSS_RECOMPUTE &&
             j->epoch[j->committed - 1].value != store_reference(s, i))
        sim_wrong(s, "job %s: other weights than without faults", j->id);
}

static void deliver(sim *s, message *m)
{
    if (m->to != SIM_CONTROLLER && s->process[m->to].stopped_until > s->now &&
        s->process[m->to].alive) {
        m->at = s->process[m->to].stopped_until;
        heap_push(s, m);
        return;
    }
    bool dead = m->to != SIM_CONTROLLER ? !s->process[m->to].alive
                                        : m->life >= 0 && (m->life != s->life || !s->machine);
    bool cut = m->conn >= 0 && !s->conn[m->conn].open;
    if (!dead && !cut) {
        s->hash = sim_mix(s->hash, sim_mix((uint64_t)m->at, m->seq));
        m->deliver(s, m);
    }
    m->next_free = s->free_list;
    s->free_list = m;
}

static void end_world(sim *s)
{
    for (int p = 0; p < s->processes; p++)
        ps_free(s->process[p].ps);
    for (int i = 0; i < s->redises; i++)
        free(s->all_redis[i]);
    for (int i = 0; i < s->jobs; i++) {
        json_decref(s->job[i].record);
        json_decref(s->job[i].unsaved);
    }
    for (int i = 0; i < s->heap_count; i++)
        free(s->heap[i]);
    while (s->free_list) {
        message *m = s->free_list;
        s->free_list = m->next_free;
        free(m);
    }
    jobs_close(s->machine);
    free(s->heap);
    free(s->process);
    free(s->conn);
}

static char last_words[96];

/* An assertion of the logic, and whoever ends us because we hang, knows nothing of seeds. */
static void tell_seed(int number)
{
    ssize_t wrote = write(STDOUT_FILENO, last_words, strlen(last_words));
    (void)wrote;
    raise(number); /* the default action stands again (SA_RESETHAND) */
}

int sim_run(uint64_t seed, bool verbose, char wrong[512], uint64_t *hash)
{
    snprintf(last_words, sizeof last_words, "seed %llu: aborted\nreplay: simulate --seed %llu -v\n",
             (unsigned long long)seed, (unsigned long long)seed);
    sigaction(SIGABRT, &(struct sigaction){.sa_handler = tell_seed, .sa_flags = (int)SA_RESETHAND},
              NULL);
    sim *s = calloc(1, sizeof *s);
    if (!s)
        abort();
    s->seed = seed;
    s->verbose = verbose;
    rng_init(&s->rng, seed, RNG_SIMULATOR, 0, 0);
    make_world(s);
    while (!s->wrong[0] && !over(s)) {
        if (s->heap_count == 0 || s->steps++ > STEPS_MAX || s->now > WORLD_MS) {
            sim_wrong(s, "it does not end: %d things left to happen, job0 is %s in phase %s",
                      s->heap_count,
                      s->machine && jobs_count(s->machine) > 0
                          ? job_state_name(jobs_at(s->machine, 0)->state)
                          : "-",
                      s->machine && jobs_count(s->machine) > 0 ? jobs_at(s->machine, 0)->phase
                                                               : "-");
            break;
        }
        message *m = heap_pop(s);
        s->now = m->at > s->now ? m->at : s->now;
        deliver(s, m);
        user_cancels_hopeless(s);
    }
    for (int i = 0; i < s->jobs && !s->wrong[0]; i++)
        check_end(s, i);
    sim_trace(s, "over: %d processes were started, %llu steps", s->processes,
              (unsigned long long)s->steps);
    snprintf(wrong, 512, "%s", s->wrong);
    *hash = s->hash;
    end_world(s);
    int result = s->wrong[0] ? -1 : 0;
    free(s);
    return result;
}
