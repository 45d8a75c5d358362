/* engine_work.c: runs batches through a model: training (whole, in halves, over a share),
 * evaluation and inference; see engine.h. */
#include <assert.h>
#include <string.h>

#include "engine_internal.h"

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
    return (backend_update){.lr = lr, .step = *engine_steps(m) + 1};
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
    (*engine_steps(m))++;
    fill_result(b, &result, r);
    return 0;
}

bool engine_keeps_share(const engine *m)
{
    return m->backend->share && !m->c.inference;
}

/* The reader for the backend: calls the caller's reader and checks its labels. */
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
    steps.first_step = *engine_steps(m) + 1;
    if (m->backend->steps(m->program, &steps, &result, e))
        return -1;
    *engine_steps(m) += (s->rows - 1) / (uint32_t)s->batch + 1;
    *r = (engine_result){.loss = result.loss_sum / s->rows,
                         .loss_sum = result.loss_sum,
                         .correct = result.correct,
                         .n = (int)s->rows};
    return 0;
}

/* Zeroes the gaps between gradients: the caller of engine_grads may have written there, and
 * backends neither write gaps nor skip them. Values there would show in norms, and would become
 * state that no checkpoint has. */
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
    m->grads_lent = false; /* the block's contents are out of date: the backend has new ones */
    fill_result(b, &result, r);
    return 0;
}

float *engine_grads(engine *m, size_t *count, err *e)
{
    *count = m->params;
    /* After the first call the block is the caller's to change, and is not overwritten. */
    if (check_training(m, e) ||
        (!m->grads_lent && m->backend->grads && m->backend->grads(m->program, false, e)))
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
        if (m->backend->grads && m->backend->grads(m->program, true, e))
            return -1;
    }
    m->grads_lent = false;
    if (m->backend->update(m->program, next_update(m, lr), e))
        return -1;
    (*engine_steps(m))++;
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
