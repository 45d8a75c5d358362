/* engine.c: see engine.h.
 *
 * The float block: [parameters P][buffers B][optimizer state, slot by slot, P each].
 * The counter block: [the graph's counters][optimizer.step, when training]. */
#include "engine.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "large_pages.h"

struct engine {
    graph *g;
    const backend *backend;
    backend_program *program;
    backend_config c;
    shape input;
    int outputs;

    size_t params, buffers,
        slots; /* floats of a parameter block, of the buffers; optimizer slots */
    size_t counter_count;
    float *floats, *own_floats; /* where the state lies now; the engine's own memory for it */
    int64_t *counters, *own_counters;
    float *grads;
    bool grads_lent; /* engine_grads gave them away: the backend must read them again */
    bool blank;      /* nobody has given it weights yet */

    engine_var *layout;
    size_t layout_count;
    char *names; /* of the optimizer's state; GRAPH_NAME_BYTES + 32 each */
    char *layout_text;

    const void **rows; /* one batch's pointers, labels and sample numbers */
    int32_t *labels;
    uint64_t *samples;
    /* of the share that the backend keeps; 0 rows: none */
    uint32_t share_rows, share_rows_each;
    backend_reader share_reader; /* the caller's */
};

enum { STATE_NAME_BYTES = GRAPH_NAME_BYTES + 32 };

/* ---- compile --------------------------------------------------------------------------------- */

static int check_config(const engine_config *c, err *e)
{
    if (c->batch < 1 || c->batch > ENGINE_BATCH_MAX)
        return err_set(e, ERR_INVALID, "batch size %d is not between 1 and %d", c->batch,
                       ENGINE_BATCH_MAX);
    if (c->threads < 0 || c->threads > ENGINE_THREADS_MAX)
        return err_set(e, ERR_INVALID, "%d threads: between 1 and %d are possible", c->threads,
                       ENGINE_THREADS_MAX);
    if (c->outputs < 0 || c->outputs > ENGINE_OUTPUTS_MAX)
        return err_set(e, ERR_INVALID, "%d outputs: at most %d are possible", c->outputs,
                       ENGINE_OUTPUTS_MAX);
    return c->inference ? 0 : optim_check(&c->optim, e);
}

static int build_graph(engine *m, const engine_config *c, err *e)
{
    m->g = graph_new(c->input);
    if (!m->g)
        return err_set(e, ERR_NOMEM, "no memory for the model's graph");
    int out = c->build(m->g, 0, c->outputs, c->user);
    if (graph_finish(m->g, out, c->outputs, e))
        return -1;
    m->input = c->input;
    m->outputs = graph_shape(m->g, out).c;
    m->params = m->g->floats[VAR_PARAM];
    m->buffers = m->g->floats[VAR_BUFFER];
    m->slots = c->inference ? 0 : (size_t)optim_slots(&c->optim);
    m->counter_count = m->g->floats[VAR_COUNTER] + (c->inference ? 0 : 1);
    return 0;
}

static void *take(size_t count, size_t size)
{
    return calloc(count ? count : 1, size);
}

static size_t floats_bytes(size_t count)
{
    return (count * sizeof(float) + 127) / 64 * 64;
}

/* 64-byte aligned and zero. What nobody writes to takes no memory: where a backend has a device
 * that is the gradients, and the optimizer's state until someone asks for it. */
static float *take_floats(size_t count)
{
    return large_pages_map(floats_bytes(count));
}

static void give_floats(float *floats, size_t count)
{
    large_pages_unmap(floats, floats_bytes(count));
}

static int allocate(engine *m, err *e)
{
    size_t batch = (size_t)m->c.batch, state = engine_state_floats(m);
    m->floats = m->own_floats = take_floats(state);
    m->counters = m->own_counters = take(m->counter_count, sizeof *m->counters);
    m->grads = take_floats(m->c.inference ? 0 : m->params);
    m->rows = take(batch, sizeof *m->rows);
    m->labels = take(batch, sizeof *m->labels);
    m->samples = take(batch, sizeof *m->samples);
    m->layout_count = (size_t)m->g->var_count * (1 + m->slots) + 1;
    m->layout = take(m->layout_count, sizeof *m->layout);
    m->names = take((size_t)m->g->var_count * m->slots, STATE_NAME_BYTES);
    if (!m->floats || !m->counters || !m->grads || !m->rows || !m->labels || !m->samples ||
        !m->layout || !m->names)
        return err_set(e, ERR_NOMEM, "no memory: the model's state needs %zu MiB",
                       (state + m->params) * sizeof(float) >> 20);
    return 0;
}

/* ---- layout ---------------------------------------------------------------------------------- */

static engine_var *add_var(engine *m, const graph_var *v, const char *name, size_t offset)
{
    engine_var *to = &m->layout[m->layout_count++];
    *to = (engine_var){.name = name, .kind = v->kind, .rank = v->rank, .count = v->count};
    memcpy(to->dims, v->dims, sizeof to->dims);
    to->offset = offset + v->offset;
    return to;
}

static void add_kind(engine *m, graph_kind kind, size_t offset)
{
    for (int i = 0; i < m->g->var_count; i++)
        if (m->g->vars[i].kind == kind)
            add_var(m, &m->g->vars[i], m->g->vars[i].name, offset);
}

static void add_slots(engine *m)
{
    char *name = m->names;
    for (size_t slot = 0; slot < m->slots; slot++)
        for (int i = 0; i < m->g->var_count; i++) {
            const graph_var *v = &m->g->vars[i];
            if (v->kind != VAR_PARAM)
                continue;
            snprintf(name, STATE_NAME_BYTES, "optimizer.%s.%.95s",
                     optim_slot_name(&m->c.optim, (int)slot), v->name);
            add_var(m, v, name, m->params + m->buffers + slot * m->params)->kind = VAR_STATE;
            name += STATE_NAME_BYTES;
        }
}

static const char *const kind_names[VAR_KIND_COUNT] = {[VAR_PARAM] = "param",
                                                       [VAR_BUFFER] = "buffer",
                                                       [VAR_COUNTER] = "counter",
                                                       [VAR_STATE] = "state"};

static int write_layout_text(engine *m, err *e)
{
    size_t room = m->layout_count * (STATE_NAME_BYTES + 64) + 1, at = 0;
    m->layout_text = malloc(room);
    if (!m->layout_text)
        return err_set(e, ERR_NOMEM, "no memory for the model's layout");
    m->layout_text[0] = '\0';
    for (size_t i = 0; i < m->layout_count; i++) {
        const engine_var *v = &m->layout[i];
        at +=
            (size_t)snprintf(m->layout_text + at, room - at, "%s %s", v->name, kind_names[v->kind]);
        for (int j = 0; j < v->rank; j++)
            at += (size_t)snprintf(m->layout_text + at, room - at, " %d", v->dims[j]);
        at += (size_t)snprintf(m->layout_text + at, room - at, "\n");
        assert(at < room);
    }
    return 0;
}

static int make_layout(engine *m, err *e)
{
    m->layout_count = 0;
    add_kind(m, VAR_PARAM, 0);
    add_kind(m, VAR_BUFFER, m->params);
    add_slots(m);
    add_kind(m, VAR_COUNTER, 0);
    if (!m->c.inference) {
        graph_var step = {.kind = VAR_COUNTER, .count = 1, .offset = m->g->floats[VAR_COUNTER]};
        add_var(m, &step, "optimizer.step", 0);
    }
    return write_layout_text(m, e);
}

/* ---- life ------------------------------------------------------------------------------------ */

/* No update has been made since the optimizer's state was zeroed: it is zero, here and where the
 * backend has it. Of all the engine has been told: who imports state imports its steps. */
static bool has_zero_state(const engine *m)
{
    return m->c.inference || m->counters[m->counter_count - 1] == 0;
}

static int load(engine *m, const float *given, err *e)
{
    backend_state s = {.params = m->floats,
                       .grads = m->c.inference ? NULL : m->grads,
                       .grads_changed = m->grads_lent,
                       .blank = m->blank,
                       .state_zero = has_zero_state(m),
                       .buffers = m->floats + m->params,
                       .state = m->slots ? m->floats + m->params + m->buffers : NULL,
                       .counters = m->counters,
                       .given = given};
    return m->backend->load(m->program, &s, e);
}

/* The host's blocks hold its weights. */
static int load_weights(engine *m, err *e)
{
    m->blank = false;
    return load(m, NULL, e);
}

static int store(engine *m, bool grads, err *e)
{
    return m->backend->store ? m->backend->store(m->program, grads, e) : 0;
}

/* Zeros are not written over: there is no need to touch all of that memory. */
static void zero_optimizer(engine *m)
{
    if (has_zero_state(m))
        return;
    memset(m->floats + engine_weights_floats(m), 0, m->slots * m->params * sizeof *m->floats);
    m->counters[m->counter_count - 1] = 0;
}

static int compile(engine *m, const engine_config *c, err *e)
{
    m->c = (backend_config){.batch = c->batch,
                            .threads = c->threads ? c->threads : 1,
                            .inference = c->inference,
                            .precision = c->precision,
                            .loss = c->loss,
                            .optim = c->optim,
                            .seed = c->seed,
                            .device = c->device,
                            .device_memory = c->device_memory};
    m->backend = backend_find(c->backend, e);
    if (!m->backend || build_graph(m, c, e) || allocate(m, e) || make_layout(m, e) ||
        m->backend->prepare(m->g, &m->c, &m->program, e))
        return -1;
    m->blank = true;
    return c->blank ? load(m, NULL, e) : engine_draw(m, e);
}

int engine_compile(const engine_config *c, engine **out, err *e)
{
    if (check_config(c, e))
        return -1;
    engine *m = calloc(1, sizeof *m);
    if (!m)
        return err_set(e, ERR_NOMEM, "no memory for a model");
    if (compile(m, c, e)) {
        engine_free(m);
        return -1;
    }
    *out = m;
    return 0;
}

int engine_draw(engine *m, err *e)
{
    zero_optimizer(m);
    graph_init_vars(m->g, m->c.seed, m->c.threads, m->floats, m->floats + m->params, m->counters);
    return load_weights(m, e);
}

void engine_free(engine *m)
{
    if (!m)
        return;
    if (m->program)
        m->backend->release(m->program);
    graph_free(m->g);
    give_floats(m->own_floats, engine_state_floats(m));
    free(m->own_counters);
    give_floats(m->grads, m->c.inference ? 0 : m->params);
    free(m->layout);
    free(m->names);
    free(m->layout_text);
    free(m->rows);
    free(m->labels);
    free(m->samples);
    free(m);
}

/* ---- state ----------------------------------------------------------------------------------- */

const engine_var *engine_layout(const engine *m, size_t *count)
{
    *count = m->layout_count;
    return m->layout;
}

const char *engine_layout_text(const engine *m)
{
    return m->layout_text;
}

size_t engine_weights_floats(const engine *m)
{
    return m->params + m->buffers;
}

size_t engine_state_floats(const engine *m)
{
    return m->params + m->buffers + m->slots * m->params;
}

size_t engine_counter_count(const engine *m)
{
    return m->counter_count;
}

float *engine_floats(engine *m, err *e)
{
    return store(m, false, e) ? NULL : m->floats;
}

int64_t *engine_counters(engine *m, err *e)
{
    return store(m, false, e) ? NULL : m->counters;
}

int engine_state_changed(engine *m, err *e)
{
    return load_weights(m, e);
}

int engine_export(engine *m, float *floats, int64_t *counters, err *e)
{
    if (store(m, false, e))
        return -1;
    memcpy(floats, m->floats, engine_state_floats(m) * sizeof *floats);
    memcpy(counters, m->counters, m->counter_count * sizeof *counters);
    return 0;
}

/* That many floats of them count from now on. A device reads them where they lie: the host's block
 * takes them, and with them memory, when someone asks for it. Not while gradients are out, whose
 * way back goes through the host's blocks. */
static int take_floats_of(engine *m, const float *floats, size_t count, err *e)
{
    if (m->backend->store && !m->grads_lent && floats != m->floats) {
        m->blank = false;
        return load(m, floats, e);
    }
    memcpy(m->floats, floats, count * sizeof *floats);
    return load_weights(m, e);
}

int engine_import(engine *m, const float *floats, const int64_t *counters, err *e)
{
    if (m->c.inference || counters[m->counter_count - 1] == 0)
        return engine_import_weights(m, floats, counters, e); /* which is all there is */
    memcpy(m->counters, counters, m->counter_count * sizeof *counters);
    return take_floats_of(m, floats, engine_state_floats(m), e);
}

int engine_import_weights(engine *m, const float *floats, const int64_t *counters, err *e)
{
    if (m->g->floats[VAR_COUNTER])
        memcpy(m->counters, counters, m->g->floats[VAR_COUNTER] * sizeof *counters);
    zero_optimizer(m);
    return take_floats_of(m, floats, engine_weights_floats(m), e);
}

int engine_reset_optimizer(engine *m, err *e)
{
    if (has_zero_state(m))
        return 0;
    if (store(m, false, e))
        return -1;
    zero_optimizer(m);
    return load(m, NULL, e);
}

int engine_place(engine *m, float *floats, int64_t *counters, err *e)
{
    assert(!floats == !counters && (uintptr_t)floats % 64 == 0);
    if (store(m, false, e))
        return -1;
    float *to = floats ? floats : m->own_floats;
    int64_t *to_counters = counters ? counters : m->own_counters;
    if (to != m->floats)
        memmove(to, m->floats, engine_state_floats(m) * sizeof *to);
    if (to_counters != m->counters)
        memmove(to_counters, m->counters, m->counter_count * sizeof *to_counters);
    m->floats = to;
    m->counters = to_counters;
    return load(m, NULL, e);
}

/* ---- work ------------------------------------------------------------------------------------ */

static int check_label(const engine *m, int64_t label, int i, err *e)
{
    if (label >= 0 && label < m->outputs)
        return 0;
    return err_set(e, ERR_INVALID,
                   "label %lld (sample %d of the batch) is outside the model's %d outputs",
                   (long long)label, i, m->outputs);
}

static int no_targets(err *e)
{
    return err_set(e, ERR_INVALID, "the batch has no targets, which MSE needs");
}

static int no_labels(err *e)
{
    return err_set(e, ERR_INVALID, "the batch has no labels, which cross-entropy needs");
}

static int read_labels(engine *m, const engine_batch *b, backend_batch *to, err *e)
{
    if (m->c.loss == LOSS_MSE) {
        if (!b->targets)
            return no_targets(e);
        to->targets = b->targets;
        return 0;
    }
    if (!b->labels && !b->labels64)
        return no_labels(e);
    for (int i = 0; i < b->n; i++) {
        int64_t label = b->labels64 ? b->labels64[i] : b->labels[i];
        if (check_label(m, label, i, e))
            return -1;
        m->labels[i] = (int32_t)label;
    }
    to->labels = m->labels;
    return 0;
}

static void read_rows(engine *m, const engine_batch *b)
{
    size_t sample = shape_count(m->input) * (b->type == INPUT_FLOAT ? sizeof(float) : 1);
    for (int i = 0; i < b->n; i++) {
        m->rows[i] = b->rows ? b->rows[i] : (const char *)b->x + (size_t)i * sample;
        m->samples[i] = b->sample ? b->sample[i] : (uint64_t)i;
    }
}

static int read_batch(engine *m, const engine_batch *b, bool with_labels, backend_batch *to, err *e)
{
    assert(!m->blank);
    if (b->n < 1 || b->n > m->c.batch)
        return err_set(e, ERR_INVALID, "a batch of %d samples: between 1 and %d are possible", b->n,
                       m->c.batch);
    if (!b->x && !b->rows)
        return err_set(e, ERR_INVALID, "the batch has no samples");
    *to = (backend_batch){.n = b->n,
                          .type = b->type,
                          .x = m->rows,
                          .scale = b->scale,
                          .shift = b->shift,
                          .sample = m->samples,
                          .epoch = b->epoch};
    read_rows(m, b);
    return with_labels ? read_labels(m, b, to, e) : 0;
}

static void fill_result(const engine_batch *b, const backend_result *from, engine_result *r)
{
    *r = (engine_result){.loss = from->loss_sum / b->n,
                         .loss_sum = from->loss_sum,
                         .correct = from->correct,
                         .n = b->n,
                         .convert_s = from->convert_s};
}

static int check_training(const engine *m, err *e)
{
    return m->c.inference ? err_set(e, ERR_UNSUPPORTED, "the model was compiled for inference") : 0;
}

static backend_update next_update(const engine *m, double lr)
{
    return (backend_update){.lr = lr, .step = m->counters[m->counter_count - 1] + 1};
}

int engine_train(engine *m, const engine_batch *b, double lr, engine_result *r, err *e)
{
    if (!m->backend->step)
        return engine_gradients(m, b, r, e) || engine_update(m, lr, e) ? -1 : 0;
    backend_batch batch;
    backend_result result;
    if (check_training(m, e) || read_batch(m, b, true, &batch, e) ||
        m->backend->step(m->program, &batch, next_update(m, lr), &result, e))
        return -1;
    m->counters[m->counter_count - 1]++;
    fill_result(b, &result, r);
    return 0;
}

bool engine_keeps_share(const engine *m)
{
    return m->backend->share && !m->c.inference;
}

/* The backend's reader: what the caller's gives, with the labels checked. */
static int read_share(void *from, uint32_t first, backend_rows *out, err *e)
{
    engine *m = from;
    uint32_t left = m->share_rows - first;
    uint32_t rows = left < m->share_rows_each ? left : m->share_rows_each;
    if (m->share_reader.read(m->share_reader.from, first, out, e))
        return -1;
    if (m->c.loss == LOSS_MSE)
        return out->targets ? 0 : no_targets(e);
    if (!out->labels)
        return no_labels(e);
    for (uint32_t i = 0; i < rows; i++)
        if (check_label(m, out->labels[i], (int)i, e))
            return -1;
    return 0;
}

int engine_share(engine *m, const backend_share *s, err *e)
{
    if (check_training(m, e))
        return -1;
    if (!m->backend->share)
        return err_set(e, ERR_UNSUPPORTED, "the %s backend keeps no share", m->backend->name);
    backend_share checked = s ? *s : (backend_share){0};
    checked.reader = (backend_reader){read_share, m};
    m->share_rows = 0;
    if (m->backend->share(m->program, checked.rows ? &checked : NULL, e))
        return -1;
    m->share_rows = checked.rows;
    m->share_rows_each = checked.rows_each;
    m->share_reader = s ? s->reader : (backend_reader){0};
    return 0;
}

static int check_rows(const engine *m, const uint32_t *order, uint32_t rows, err *e)
{
    for (uint32_t i = 0; i < rows; i++)
        if (order[i] >= m->share_rows)
            return err_set(e, ERR_INVALID, "row %u of a share of %u", order[i], m->share_rows);
    return 0;
}

int engine_bring(engine *m, const uint32_t *order, uint32_t rows, err *e)
{
    if (check_rows(m, order, rows, e))
        return -1;
    return rows ? m->backend->bring(m->program, order, rows, e) : 0;
}

int engine_train_share(engine *m, const backend_steps *s, engine_result *r, err *e)
{
    backend_steps steps = *s;
    backend_result result;
    assert(!m->blank);
    if (s->batch < 1 || s->batch > m->c.batch || s->rows < 1)
        return err_set(e, ERR_INVALID, "batches of %d from %u rows: between 1 and %d are possible",
                       s->batch, s->rows, m->c.batch);
    if (check_rows(m, s->order, s->rows, e))
        return -1;
    steps.first_step = m->counters[m->counter_count - 1] + 1;
    if (m->backend->steps(m->program, &steps, &result, e))
        return -1;
    m->counters[m->counter_count - 1] += (s->rows - 1) / (uint32_t)s->batch + 1;
    *r = (engine_result){.loss = result.loss_sum / s->rows,
                         .loss_sum = result.loss_sum,
                         .correct = result.correct,
                         .n = (int)s->rows};
    return 0;
}

bool engine_averages(engine *const *models, int n)
{
    for (int i = 0; i < n; i++)
        if (!models[i]->backend->average || models[i]->backend != models[0]->backend ||
            strcmp(models[i]->layout_text, models[0]->layout_text) != 0)
            return false;
    return n <= ENGINE_AVERAGE_MAX;
}

/* Its weights are a mean now, which the backend has. */
static void take_mean(engine *m, int64_t step)
{
    m->blank = false;
    if (!m->c.inference)
        m->counters[m->counter_count - 1] = step;
}

int engine_average(engine *const *models, const double *weight, int n, bool across, err *e)
{
    backend_program *programs[ENGINE_AVERAGE_MAX] = {NULL};
    int64_t steps = 0;
    if (!engine_averages(models, n))
        return err_set(e, ERR_UNSUPPORTED, "these %d models cannot be averaged where they are", n);
    for (int i = 0; i < n; i++) {
        int64_t own =
            models[i]->c.inference ? 0 : models[i]->counters[models[i]->counter_count - 1];
        programs[i] = models[i]->program;
        steps = own > steps && weight[i] > 0 ? own : steps;
    }
    if (models[0]->backend->average(programs, weight, n, across, e))
        return -1;
    for (int i = 0; i < n; i++)
        take_mean(models[i], steps);
    return 0;
}

static const backend_peers *peers_of(const engine *m, err *e)
{
    if (!m->backend->peers)
        err_set(e, ERR_UNSUPPORTED, "the %s backend shares no memory between processes",
                m->backend->name);
    return m->backend->peers;
}

int engine_lend(engine *m, backend_loan *out, err *e)
{
    const backend_peers *peers = peers_of(m, e);
    return peers ? peers->lend(m->program, out, e) : -1;
}

int engine_lead(engine *m, const backend_loan *of, int n, backend_loan *mean, err *e)
{
    const backend_peers *peers = peers_of(m, e);
    return peers ? peers->lead(m->program, of, n, mean, e) : -1;
}

int engine_sealed(engine *m, engine_seal *out, err *e)
{
    const backend_peers *peers = peers_of(m, e);
    out->step = m->c.inference ? 0 : m->counters[m->counter_count - 1];
    return peers ? peers->sum(m->program, &out->sum, e) : -1;
}

int engine_average_lent(engine *m, const engine_peer *of, int n, engine_seal *mean, int *bad,
                        err *e)
{
    const backend_peers *peers = peers_of(m, e);
    backend_lent lent[ENGINE_AVERAGE_MAX];
    *bad = -1;
    if (!peers)
        return -1;
    if (n > ENGINE_AVERAGE_MAX)
        return err_set(e, ERR_UNSUPPORTED, "%d models: at most %d are averaged where they are", n,
                       ENGINE_AVERAGE_MAX);
    mean->step = 0;
    for (int i = 0; i < n; i++) {
        lent[i] =
            (backend_lent){.where = of[i].where, .sum = of[i].seal.sum, .weight = of[i].weight};
        if (of[i].weight > 0 && of[i].seal.step > mean->step)
            mean->step = of[i].seal.step;
    }
    return peers->average(m->program, lent, n, &mean->sum, bad, e);
}

int engine_adopt(engine *m, const backend_loan *mean, const engine_seal *seal, err *e)
{
    const backend_peers *peers = peers_of(m, e);
    if (!peers || peers->adopt(m->program, mean, seal->sum, e))
        return -1;
    take_mean(m, seal->step);
    return 0;
}

static const backend_comm *comm_of(const engine *m, err *e)
{
    if (!m->backend->comm)
        err_set(e, ERR_UNSUPPORTED, "the %s backend has no communicators", m->backend->name);
    return m->backend->comm;
}

int engine_comm_device(engine *m, unsigned char device[BACKEND_DEVICE_BYTES], err *e)
{
    const backend_comm *comm = comm_of(m, e);
    return comm ? comm->device(m->program, device, e) : -1;
}

int engine_comm_id(engine *m, unsigned char id[BACKEND_COMM_ID_BYTES], err *e)
{
    const backend_comm *comm = comm_of(m, e);
    return comm ? comm->id(m->program, id, e) : -1;
}

int engine_comm_join(engine *m, const unsigned char id[BACKEND_COMM_ID_BYTES], int rank, int ranks,
                     const backend_patience *patience, err *e)
{
    const backend_comm *comm = comm_of(m, e);
    return comm ? comm->join(m->program, id, rank, ranks, patience, e) : -1;
}

int engine_comm_mean(engine *m, double weight, const backend_patience *patience, uint64_t *sum,
                     bool *own, err *e)
{
    const backend_comm *comm = comm_of(m, e);
    return comm ? comm->mean(m->program, weight, patience, sum, own, e) : -1;
}

int engine_comm_take(engine *m, const engine_seal *seal, err *e)
{
    const backend_comm *comm = comm_of(m, e);
    if (!comm || comm->take(m->program, seal->sum, e))
        return -1;
    take_mean(m, seal->step);
    return 0;
}

void engine_comm_leave(engine *m)
{
    if (m->backend->comm)
        m->backend->comm->leave(m->program);
}

/* Whoever had the block may have written into its gaps, which backends neither write nor leave out:
 * what lies there would be seen in norms, and would be a state that no checkpoint has. */
static void zero_gaps(engine *m)
{
    size_t at = 0;
    for (int i = 0; i < m->g->var_count; i++) {
        const graph_var *v = &m->g->vars[i];
        if (v->kind != VAR_PARAM)
            continue;
        memset(m->grads + at, 0, (v->offset - at) * sizeof *m->grads);
        at = v->offset + v->count;
    }
    memset(m->grads + at, 0, (m->params - at) * sizeof *m->grads);
}

int engine_gradients(engine *m, const engine_batch *b, engine_result *r, err *e)
{
    backend_batch batch;
    backend_result result;
    if (check_training(m, e) || read_batch(m, b, true, &batch, e) ||
        m->backend->gradients(m->program, &batch, &result, e))
        return -1;
    if (m->grads_lent)
        zero_gaps(m);
    m->grads_lent = false; /* what was lent counts no more: these are new */
    fill_result(b, &result, r);
    return 0;
}

float *engine_grads(engine *m, size_t *count, err *e)
{
    *count = m->params;
    if (check_training(m, e) || store(m, true, e))
        return NULL;
    zero_gaps(m);
    m->grads_lent = true;
    return m->grads;
}

int engine_update(engine *m, double lr, err *e)
{
    if (check_training(m, e))
        return -1;
    if (m->grads_lent) {
        zero_gaps(m);
        /* The other blocks may be older than the backend's: a mean may have been taken since. */
        if (store(m, false, e) || load(m, NULL, e))
            return -1;
    }
    m->grads_lent = false;
    if (m->backend->update(m->program, next_update(m, lr), e))
        return -1;
    m->counters[m->counter_count - 1]++;
    return 0;
}

int engine_eval(engine *m, const engine_batch *b, engine_result *r, err *e)
{
    backend_batch batch;
    backend_result result;
    if (read_batch(m, b, true, &batch, e) ||
        m->backend->forward(m->program, &batch, NULL, &result, e))
        return -1;
    fill_result(b, &result, r);
    return 0;
}

int engine_infer(engine *m, const engine_batch *b, float *logits, err *e)
{
    backend_batch batch;
    return read_batch(m, b, false, &batch, e) ||
                   m->backend->forward(m->program, &batch, logits, NULL, e)
               ? -1
               : 0;
}

/* ---- facts ----------------------------------------------------------------------------------- */

const graph *engine_graph(const engine *m)
{
    return m->g;
}

int engine_outputs(const engine *m)
{
    return m->outputs;
}

int engine_batch_max(const engine *m)
{
    return m->c.batch;
}

shape engine_input(const engine *m)
{
    return m->input;
}

size_t engine_param_count(const engine *m)
{
    return m->g->param_count;
}

size_t engine_memory(const engine *m)
{
    size_t floats = engine_state_floats(m) + (m->c.inference ? 0 : m->params);
    return floats * sizeof(float) + m->backend->memory(m->program);
}

const char *engine_backend(const engine *m)
{
    return m->backend->name;
}

int engine_device(const engine *m)
{
    return m->c.device;
}

const char *engine_choices(const engine *m)
{
    return m->backend->choices ? m->backend->choices(m->program) : "";
}
