/* frame_out.c: see frame_out.h. */
#include "frame_out.h"

#include <assert.h>
#include <math.h>

#include "ps/storage/storage_worker.h"

json_t *frame_out_plain(const char *type)
{
    return json_pack("{s:s}", "type", type);
}

json_t *frame_out_refused(err_code code, const char *reason, const char *message)
{
    return json_pack("{s:s,s:s,s:s*,s:s}", "type", "refused", "code", err_name(code), "reason",
                     reason, "message", message);
}

/* ---- to controllers -------------------------------------------------------------------------- */

json_t *frame_out_access(const char *address, json_t *to_model)
{
    return json_pack("{s:s,s:s,s:o}", "type", "access", "address", address, "model", to_model);
}

json_t *frame_out_of(const round_action *a)
{
    switch (a->type) {
    case ROUND_NEED:
        return json_pack("{s:s,s:i,s:i,s:s}", "type", "need", "function", a->function,
                         "incarnation", a->incarnation, "reason", a->reason);
    case ROUND_RELEASE:
        return json_pack("{s:s,s:i,s:i,s:s*}", "type", "release", "function", a->function,
                         "incarnation", a->incarnation, "message",
                         a->message[0] ? a->message : NULL);
    case ROUND_PHASE:
        return json_pack("{s:s,s:s,s:i,s:i}", "type", "phase", "phase", a->phase, "epoch", a->epoch,
                         "round", a->round);
    default:
        assert(a->type == ROUND_ASK);
        return json_pack("{s:s,s:i,s:i,s:f}", "type", "ask", "epoch", a->epoch, "parallelism",
                         a->parallelism, "seconds", a->seconds);
    }
}

json_t *frame_out_condition(const char *name, bool status, const char *reason, const char *message)
{
    return json_pack("{s:s,s:s,s:s,s:s,s:s}", "type", "condition", "name", name, "status",
                     status ? "True" : "False", "reason", reason, "message", message);
}

json_t *frame_out_epoch(const epoch_result *r)
{
    json_t *m =
        json_pack("{s:s,s:i,s:f,s:i,s:f,s:I,s:I}", "type", "epoch", "epoch", r->epoch, "train_loss",
                  r->train_loss, "parallelism", r->parallelism, "seconds", r->seconds, "version",
                  (json_int_t)r->version, "samples", (json_int_t)r->samples);
    if (r->validated) {
        json_object_set_new(m, "validation_loss", json_real(r->validation_loss));
        if (!isnan(r->accuracy))
            json_object_set_new(m, "accuracy", json_real(r->accuracy));
    }
    json_object_set_new(m, "stages",
                        json_pack("{s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f}", "fetch", r->fetch_s, "load",
                                  r->load_s, "convert", r->convert_s, "train", r->train_s,
                                  "publish", r->publish_s, "merge", r->merge_s, "validate",
                                  r->validate_s, "checkpoint", r->checkpoint_s));
    return m;
}

json_t *frame_out_averaging(reduce_path path, const char *text)
{
    return json_pack("{s:s,s:s,s:s}", "type", "averaging", "path", reduce_path_name(path), "text",
                     text);
}

json_t *frame_out_finished(const char *state, const char *reason, const char *message, int epochs,
                           const char *sha256)
{
    return json_pack("{s:s,s:s,s:s,s:s,s:i,s:s}", "type", "finished", "state", state, "reason",
                     reason, "message", message, "epochs", epochs, "sha256", sha256);
}

/* ---- to functions ---------------------------------------------------------------------------- */

json_t *frame_out_init(uint64_t seed, int slot)
{
    return json_pack("{s:s,s:I,s:i,s:i,s:i}", "type", "init", "seed", (json_int_t)seed, "epoch",
                     STORAGE_WORKER_INIT_EPOCH, "round", 0, "slot", slot);
}

static json_t *train_of(const round_action *a, const frame_task *t)
{
    return json_pack("{s:s,s:i,s:i,s:I,s:i,s:i,s:I,s:I,s:f,s:i,s:O*}", "type", "train", "epoch",
                     a->epoch, "round", a->round, "version", (json_int_t)a->version, "parallelism",
                     a->parallelism, "function", a->function, "batch_begin",
                     (json_int_t)a->batch_begin, "batch_count", (json_int_t)a->batch_count, "lr",
                     t->lr, "slot", a->slot, "validation_losses", t->losses);
}

static json_t *validate_of(const round_action *a)
{
    return json_pack("{s:s,s:i,s:I,s:i,s:i}", "type", "validate", "epoch", a->epoch, "version",
                     (json_int_t)a->version, "parallelism", a->parallelism, "function",
                     a->function);
}

json_t *frame_out_task(const round_action *a, const frame_task *t)
{
    json_t *frame = a->type == ROUND_TRAIN ? train_of(a, t) : validate_of(a);
    if (t->on_gpu.keep)
        json_object_set_new(frame, "keep", json_true());
    if (t->on_gpu.mean)
        json_object_set(frame, "mean", t->on_gpu.mean);
    return frame;
}

static json_t *shared_train(const round_action *a, const frame_task *t)
{
    return json_pack("{s:s,s:i,s:i,s:I,s:i,s:f,s:i,s:O*,s:[]}", "type", "train", "epoch", a->epoch,
                     "round", a->round, "version", (json_int_t)a->version, "parallelism",
                     a->parallelism, "lr", t->lr, "slot", a->slot, "validation_losses", t->losses,
                     "shares");
}

static json_t *shared_validate(const round_action *a)
{
    return json_pack("{s:s,s:i,s:I,s:i,s:[]}", "type", "validate", "epoch", a->epoch, "version",
                     (json_int_t)a->version, "parallelism", a->parallelism, "functions");
}

json_t *frame_out_shared_task(json_t *so_far, const round_action *a, const frame_task *t)
{
    bool trains = a->type == ROUND_TRAIN;
    json_t *frame = so_far ? so_far : trains ? shared_train(a, t) : shared_validate(a);
    if (trains)
        json_array_append_new(json_object_get(frame, "shares"),
                              json_pack("[i,I,I]", a->function, (json_int_t)a->batch_begin,
                                        (json_int_t)a->batch_count));
    else
        json_array_append_new(json_object_get(frame, "functions"), json_integer(a->function));
    return frame;
}
