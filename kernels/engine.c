/* engine.c: see engine.h. Compiles a graph to a model with its state, and moves the state in and
 * out.
 *
 * The float block: [parameters P][buffers B][optimizer state, slot by slot, P each]. The counter
 * block: [the graph's counters][optimizer.step, when training]. */
#include "engine_internal.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "large_pages.h"

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

/* 64-byte aligned and zero. Memory that is never written to takes no space: with a device backend
 * these are the gradients, and the optimizer's state until a caller wants it. */
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

/* True when no update was made since the optimizer's state was zeroed: the state is then zero, here
 * and in the backend. The step counter tells: who imports state imports its steps. */
static bool has_zero_state(const engine *m)
{
    return m->c.inference || *engine_steps(m) == 0;
}

int engine_load(engine *m, const float *given, err *e)
{
    backend_state s = {.params = m->floats,
                       .grads = m->c.inference ? NULL : m->grads,
                       .blank = m->blank,
                       .state_zero = has_zero_state(m),
                       .buffers = m->floats + m->params,
                       .state = m->slots ? m->floats + m->params + m->buffers : NULL,
                       .counters = m->counters,
                       .given = given};
    return m->backend->load(m->program, &s, e);
}

/* Gives the host's blocks, which now hold the model's weights, to the backend. */
static int load_weights(engine *m, err *e)
{
    m->blank = false;
    return engine_load(m, NULL, e);
}

int engine_store(engine *m, err *e)
{
    return m->backend->store ? m->backend->store(m->program, e) : 0;
}

/* Zeroes the optimizer's state, unless it is zero already: writing would touch all of its
 * memory. */
static void zero_optimizer(engine *m)
{
    if (has_zero_state(m))
        return;
    memset(m->floats + engine_weights_floats(m), 0, m->slots * m->params * sizeof *m->floats);
    *engine_steps(m) = 0;
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
                            .device_memory = c->device_memory,
                            .programs = c->programs};
    m->backend = backend_find(c->backend, e);
    if (!m->backend || build_graph(m, c, e) || allocate(m, e) || make_layout(m, e) ||
        m->backend->prepare(m->g, &m->c, &m->program, e))
        return -1;
    m->blank = true;
    return c->blank ? engine_load(m, NULL, e) : engine_draw(m, e);
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
    return engine_store(m, e) ? NULL : m->floats;
}

int64_t *engine_counters(engine *m, err *e)
{
    return engine_store(m, e) ? NULL : m->counters;
}

int engine_state_changed(engine *m, err *e)
{
    return load_weights(m, e);
}

int engine_export(engine *m, float *floats, int64_t *counters, err *e)
{
    if (engine_store(m, e))
        return -1;
    memcpy(floats, m->floats, engine_state_floats(m) * sizeof *floats);
    memcpy(counters, m->counters, m->counter_count * sizeof *counters);
    return 0;
}

/* Takes `count` floats as the model's state. A device reads them where they lie: the host's block
 * takes them, and with them memory, only when a caller wants the block. */
static int take_floats_of(engine *m, const float *floats, size_t count, err *e)
{
    if (m->backend->store && floats != m->floats) {
        m->blank = false;
        return engine_load(m, floats, e);
    }
    memcpy(m->floats, floats, count * sizeof *floats);
    return load_weights(m, e);
}

int engine_import(engine *m, const float *floats, const int64_t *counters, err *e)
{
    if (m->c.inference || counters[m->counter_count - 1] == 0)
        return engine_import_weights(m, floats, counters, e); /* there is no optimizer state */
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
    if (engine_store(m, e))
        return -1;
    zero_optimizer(m);
    return engine_load(m, NULL, e);
}

int engine_place(engine *m, float *floats, int64_t *counters, err *e)
{
    assert(!floats == !counters && (uintptr_t)floats % 64 == 0);
    if (engine_store(m, e))
        return -1;
    float *to = floats ? floats : m->own_floats;
    int64_t *to_counters = counters ? counters : m->own_counters;
    if (to != m->floats)
        memmove(to, m->floats, engine_state_floats(m) * sizeof *to);
    if (to_counters != m->counters)
        memmove(to_counters, m->counters, m->counter_count * sizeof *to_counters);
    m->floats = to;
    m->counters = to_counters;
    return engine_load(m, NULL, e);
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
