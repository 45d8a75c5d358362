/* kml_logic.c: see kml_logic.h.
 *
 * The reference is double-buffered by the version's parity, in the job's segment or in two blocks
 * of the job's own. A merge writes the other buffer and becomes visible by logic_merge_end alone,
 * which changes version, open round, checksum and ledger together. It cannot fail half-way: begin
 * makes room in the ledger. Chunks that came through WRITE are not copied: the argument is
 * retained. */
#include "kml_internal.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

char *logic_copy_text(const char *bytes, size_t len)
{
    char *text = malloc(len + 1);
    if (text) {
        memcpy(text, bytes, len);
        text[len] = '\0';
    }
    return text;
}

/* ---- geometry ------------------------------------------------------------------------------- */

size_t logic_float_chunks(block_shape s)
{
    return (s.floats * sizeof(float) + LOGIC_CHUNK_BYTES - 1) / LOGIC_CHUNK_BYTES;
}

size_t logic_chunks(block_shape s)
{
    return logic_float_chunks(s) +
           (s.counters * sizeof(int64_t) + LOGIC_CHUNK_BYTES - 1) / LOGIC_CHUNK_BYTES;
}

/* How long chunk `i` is, and where it begins within its kind of numbers. */
static size_t chunk_len(block_shape s, size_t i, size_t *at)
{
    bool counters = i >= logic_float_chunks(s);
    *at = (counters ? i - logic_float_chunks(s) : i) * LOGIC_CHUNK_BYTES;
    size_t end = counters ? s.counters * sizeof(int64_t) : s.floats * sizeof(float);
    return end - *at < LOGIC_CHUNK_BYTES ? end - *at : LOGIC_CHUNK_BYTES;
}

char *logic_chunk_at(block_shape s, block b, size_t i, size_t *len)
{
    size_t at;
    *len = chunk_len(s, i, &at);
    return (i >= logic_float_chunks(s) ? (char *)b.counters : (char *)b.floats) + at;
}

block logic_reference(const logic_job *j, int64_t version)
{
    if (j->segment)
        return shm_reference(j->segment, version);
    return block_at((void *)(((uintptr_t)j->own[version & 1] + BLOCK_ALIGN - 1) &
                             ~(uintptr_t)(BLOCK_ALIGN - 1)),
                    j->shape);
}

int logic_reserve_own(logic_job *j, int64_t version, err *e)
{
    if (j->segment || j->own[version & 1])
        return 0;
    size_t bytes = block_bytes(j->shape) + BLOCK_ALIGN;
    j->own[version & 1] = j->host->alloc(bytes);
    if (!j->own[version & 1])
        return err_set(e, ERR_NOMEM, "no memory for a reference of %zu bytes", bytes);
    return 0;
}

/* ---- life ----------------------------------------------------------------------------------- */

static void publication_reset(logic_job *j, publication *p)
{
    for (size_t i = 0; p->owner && i < logic_chunks(j->shape); i++)
        if (p->owner[i])
            j->host->release(p->owner[i]);
    free(p->chunk);
    free(p->owner);
    *p = (publication){.incarnation = -1, .slot = -1};
}

void logic_publication_forget(logic_job *j, publication *p)
{
    int incarnation = p->incarnation;
    publication_reset(j, p);
    p->incarnation = incarnation;
}

void logic_publications_reset(logic_job *j)
{
    for (int f = 0; f < LOGIC_FUNCTIONS_MAX; f++)
        publication_reset(j, &j->pub[f]);
}

logic_job *logic_job_new(const logic_host *host, block_shape shape)
{
    logic_job *j = calloc(1, sizeof *j);
    if (!j)
        return NULL;
    j->host = host;
    j->shape = shape;
    atomic_store(&j->holders, 1);
    for (int f = 0; f < LOGIC_FUNCTIONS_MAX; f++)
        j->pub[f] = (publication){.incarnation = -1, .slot = -1};
    return j;
}

void logic_job_drop(logic_job *j)
{
    if (atomic_fetch_sub(&j->holders, 1) != 1)
        return;
    logic_publications_reset(j);
    for (int i = 0; i < 2; i++)
        if (j->own[i])
            j->host->free(j->own[i]);
    shm_close(j->segment);
    free(j->layout);
    free(j->ledger);
    free(j);
}

void logic_free(logic_job *j)
{
    atomic_store(&j->dead, true);
    logic_job_drop(j);
}

/* `text` is a JSON array; its inside is kept. */
static int set_ledger(logic_job *j, const char *text, size_t len, err *e)
{
    if (len < 2 || text[0] != '[' || text[len - 1] != ']')
        return err_set(e, ERR_INVALID, "the ledger is not a JSON array");
    if (len > LOGIC_LEDGER_BYTES_MAX)
        return err_set(e, ERR_LIMIT, "a ledger of %zu bytes, at most %d are allowed", len,
                       LOGIC_LEDGER_BYTES_MAX);
    j->ledger = logic_copy_text(text + 1, len - 2);
    if (!j->ledger)
        return err_set(e, ERR_NOMEM, "no memory for the ledger");
    j->ledger_len = len - 2;
    j->ledger_cap = len - 1;
    return 0;
}

static int set_layout(logic_job *j, const char *text, size_t len, err *e)
{
    if (len > LOGIC_LAYOUT_BYTES_MAX)
        return err_set(e, ERR_LIMIT, "a layout of %zu bytes, at most %d are allowed", len,
                       LOGIC_LAYOUT_BYTES_MAX);
    j->layout = logic_copy_text(text, len);
    j->layout_len = len;
    return j->layout ? 0 : err_set(e, ERR_NOMEM, "no memory for the layout");
}

static int open_segment(logic_job *j, const logic_arg *name, err *e)
{
    char text[SHM_NAME_BYTES];
    if (name->len == 0)
        return 0;
    if (name->len >= sizeof text || memchr(name->bytes, '\0', name->len))
        return err_set(e, ERR_INVALID, "not a segment's name");
    memcpy(text, name->bytes, name->len);
    text[name->len] = '\0';
    if (shm_open_segment(j->host->segment_dir, text, true, &j->segment, e))
        return -1;
    block_shape s = shm_shape(j->segment);
    if (s.floats != j->shape.floats || s.counters != j->shape.counters ||
        shm_layout_digest(j->segment) != j->layout_digest)
        return err_set(e, ERR_CONFLICT, "the segment is of another layout");
    return 0;
}

void logic_show_state(const logic_job *j)
{
    if (j->segment)
        shm_state_set(j->segment,
                      (shm_state){j->present ? j->version : -1, j->epoch, j->round, j->checksum});
}

static int create_in(logic_job *j, const logic_arg *argv, err *e)
{
    int present;
    if (arg_hash(&argv[3], "layout_digest", &j->layout_digest, e) ||
        arg_range(&argv[4], "version", -1, INT64_MAX - 1, &j->version, e) ||
        arg_i64(&argv[5], "epoch", &j->epoch, e) || arg_i64(&argv[6], "round", &j->round, e) ||
        arg_hash(&argv[7], "checksum", &j->checksum, e) ||
        arg_int(&argv[8], "present", 0, 1, &present, e) || open_segment(j, &argv[9], e))
        return -1;
    if (present && (!j->segment || j->version < 0))
        return err_set(e, ERR_INVALID, "a reference is present only in a segment");
    j->present = present;
    /* Both references now: a full Redis refuses the job, not one of its merges. */
    return set_layout(j, argv[0].bytes, argv[0].len, e) ||
                   set_ledger(j, argv[10].bytes, argv[10].len, e) || logic_reserve_own(j, 0, e) ||
                   logic_reserve_own(j, 1, e)
               ? -1
               : 0;
}

int logic_create(const logic_host *host, int argc, const logic_arg *argv, logic_job **out, err *e)
{
    int64_t floats, counters;
    if (arg_count(argc, 11, "CREATE", e) ||
        arg_range(&argv[1], "floats", 1, (int64_t)BLOCK_FLOATS_MAX, &floats, e) ||
        arg_range(&argv[2], "counters", 0, (int64_t)BLOCK_COUNTERS_MAX, &counters, e))
        return -1;
    logic_job *j = logic_job_new(host, (block_shape){(uint64_t)floats, (uint64_t)counters});
    if (!j)
        return err_set(e, ERR_NOMEM, "no memory for a job");
    if (create_in(j, argv, e)) {
        logic_job_drop(j);
        return -1;
    }
    logic_show_state(j);
    *out = j;
    return 0;
}

/* ---- publishing ----------------------------------------------------------------------------- */

int logic_check_round(const logic_job *j, int64_t epoch, int64_t round, err *e)
{
    if (epoch == j->epoch && round == j->round)
        return 0;
    bool old = epoch < j->epoch || (epoch == j->epoch && round < j->round);
    if (!old && !j->present) /* being restored: the publisher had it from an earlier model store */
        return err_set(e, ERR_NOT_FOUND, "the reference is not here yet");
    return err_set(e, old ? ERR_STALE : ERR_CONFLICT,
                   "epoch %lld, round %lld is %s: open is epoch %lld, round %lld", (long long)epoch,
                   (long long)round, old ? "over" : "not open yet", (long long)j->epoch,
                   (long long)j->round);
}

int logic_check_version(const logic_job *j, int64_t version, err *e)
{
    if (version == j->version)
        return 0;
    return err_set(e, version < j->version ? ERR_STALE : ERR_CONFLICT,
                   "version %lld is not the present one, %lld", (long long)version,
                   (long long)j->version);
}

int logic_check_not_merging(const logic_job *j, err_code busy, err *e)
{
    return j->merging ? err_set(e, busy, "the round is being merged") : 0;
}

/* The function's entry, emptied where a higher incarnation takes over. */
static int entry_for(logic_job *j, int function, int incarnation, publication **out, err *e)
{
    publication *p = &j->pub[function];
    if (incarnation < p->incarnation)
        return err_set(e, ERR_STALE, "function %d: incarnation %d is over, there is %d", function,
                       incarnation, p->incarnation);
    if (incarnation > p->incarnation) {
        publication_reset(j, p);
        p->incarnation = incarnation;
    }
    *out = p;
    return 0;
}

static int stage_begin(const logic_job *j, publication *p, err *e)
{
    if (p->owner)
        return 0;
    p->chunk = calloc(logic_chunks(j->shape), sizeof *p->chunk);
    p->owner = calloc(logic_chunks(j->shape), sizeof *p->owner);
    if (p->chunk && p->owner)
        return 0;
    free(p->chunk);
    free(p->owner);
    p->chunk = NULL;
    p->owner = NULL;
    return err_set(e, ERR_NOMEM, "no memory for a publication's chunks");
}

static int write_chunk(logic_job *j, publication *p, size_t i, const logic_arg *bytes, err *e)
{
    size_t at, want = chunk_len(j->shape, i, &at);
    if (bytes->len != want)
        return err_set(e, ERR_INVALID, "chunk %zu has %zu bytes, not %zu", i, bytes->len, want);
    if (p->published)
        return err_set(e, ERR_CONFLICT, "it has published already");
    if (stage_begin(j, p, e))
        return -1;
    j->host->retain(bytes->owner);
    if (p->owner[i])
        j->host->release(p->owner[i]);
    else
        p->chunks_here++;
    p->owner[i] = bytes->owner;
    return 0;
}

int logic_write(logic_job *j, int argc, const logic_arg *argv, err *e)
{
    int64_t epoch, round, chunk;
    int function, incarnation;
    publication *p = NULL;
    if (arg_count(argc, 6, "WRITE", e) || arg_i64(&argv[1], "epoch", &epoch, e) ||
        arg_i64(&argv[2], "round", &round, e) ||
        arg_int(&argv[3], "function", 0, LOGIC_FUNCTIONS_MAX - 1, &function, e) ||
        arg_int(&argv[4], "incarnation", 0, INT_MAX, &incarnation, e) ||
        arg_range(&argv[5], "chunk", 0, (int64_t)logic_chunks(j->shape) - 1, &chunk, e) ||
        logic_check_round(j, epoch, round, e) || logic_check_not_merging(j, ERR_CONFLICT, e) ||
        entry_for(j, function, incarnation, &p, e))
        return -1;
    if (write_chunk(j, p, (size_t)chunk, &argv[0], e))
        return err_wrap(e, "function %d", function);
    return 0;
}

typedef struct publish_args {
    int64_t epoch, round, version, samples;
    int function, incarnation, slot;
    uint64_t checksum, layout_digest;
} publish_args;

static int publish_parse(const logic_job *j, int argc, const logic_arg *argv, publish_args *a,
                         err *e)
{
    int slots = j->segment ? shm_slots(j->segment) : 0;
    return arg_count(argc, 9, "PUBLISH", e) || arg_i64(&argv[0], "epoch", &a->epoch, e) ||
                   arg_i64(&argv[1], "round", &a->round, e) ||
                   arg_i64(&argv[2], "version", &a->version, e) ||
                   arg_int(&argv[3], "function", 0, LOGIC_FUNCTIONS_MAX - 1, &a->function, e) ||
                   arg_int(&argv[4], "incarnation", 0, INT_MAX, &a->incarnation, e) ||
                   arg_range(&argv[5], "samples", 0, INT64_MAX, &a->samples, e) ||
                   arg_hash(&argv[6], "checksum", &a->checksum, e) ||
                   arg_hash(&argv[7], "layout_digest", &a->layout_digest, e) ||
                   arg_int(&argv[8], "slot", -1, slots - 1, &a->slot, e)
               ? -1
               : 0;
}

/* Chunks may be missing that were written before the model was restored: the function writes them
 * again. */
static int check_chunks(const logic_job *j, const publish_args *a, const publication *p, err *e)
{
    if (a->slot < 0 && p->chunks_here != logic_chunks(j->shape))
        return err_set(e, ERR_UNAVAILABLE, "%zu of %zu chunks are here", p->chunks_here,
                       logic_chunks(j->shape));
    return 0;
}

/* Forgets what another function published from this slot, since its bytes were overwritten.
 * kubeml-ps gives the slot of a dead function to another one, and may not know that the dead
 * function had published. */
static void take_slot(logic_job *j, const publish_args *a)
{
    for (int f = 0; a->slot >= 0 && f < LOGIC_FUNCTIONS_MAX; f++) {
        publication *p = &j->pub[f];
        if (f != a->function && p->published && p->slot == a->slot)
            logic_publication_forget(j, p);
    }
}

static int publish_in(logic_job *j, const publish_args *a, err *e)
{
    publication *p = &j->pub[a->function];
    if (p->published && p->incarnation == a->incarnation) {
        if (p->checksum == a->checksum && p->samples == (uint64_t)a->samples)
            return 0;
        return err_set(e, ERR_CONFLICT, "it has published other bytes before");
    }
    if (logic_check_not_merging(j, ERR_CONFLICT, e) ||
        entry_for(j, a->function, a->incarnation, &p, e) || check_chunks(j, a, p, e))
        return -1;
    take_slot(j, a);
    p->published = true;
    p->samples = (uint64_t)a->samples;
    p->checksum = a->checksum;
    p->slot = a->slot;
    return 0;
}

int logic_publish(logic_job *j, int argc, const logic_arg *argv, err *e)
{
    publish_args a;
    if (publish_parse(j, argc, argv, &a, e) || logic_check_round(j, a.epoch, a.round, e) ||
        logic_check_version(j, a.version, e))
        return -1;
    if (a.layout_digest != j->layout_digest)
        return err_set(e, ERR_INVALID, "function %d: its model has another layout than the job's",
                       a.function);
    if (publish_in(j, &a, e))
        return err_wrap(e, "function %d", a.function);
    return 0;
}

/* ---- reading -------------------------------------------------------------------------------- */

int logic_status(logic_job *j, int argc, const logic_arg *argv, const logic_reply *r, err *e)
{
    (void)argv;
    if (arg_count(argc, 0, "STATUS", e))
        return -1;
    size_t count = 0;
    for (int f = 0; f < LOGIC_FUNCTIONS_MAX; f++)
        count += j->pub[f].published;
    const char *segment = j->segment ? shm_name(j->segment) : "";
    r->array(r->user, 10 + 4 * count);
    r->integer(r->user, j->version);
    r->integer(r->user, j->present);
    r->integer(r->user, j->epoch);
    r->integer(r->user, j->round);
    r->integer(r->user, (int64_t)j->checksum);
    r->integer(r->user, (int64_t)j->layout_digest);
    r->integer(r->user, (int64_t)j->shape.floats);
    r->integer(r->user, (int64_t)j->shape.counters);
    r->bytes(r->user, segment, strlen(segment));
    r->integer(r->user, (int64_t)count);
    for (int f = 0; f < LOGIC_FUNCTIONS_MAX; f++) {
        if (!j->pub[f].published)
            continue;
        r->integer(r->user, f);
        r->integer(r->user, j->pub[f].incarnation);
        r->integer(r->user, (int64_t)j->pub[f].samples);
        r->integer(r->user, (int64_t)j->pub[f].checksum);
    }
    return 0;
}

int logic_layout(logic_job *j, int argc, const logic_arg *argv, const logic_reply *r, err *e)
{
    (void)argv;
    if (arg_count(argc, 0, "LAYOUT", e))
        return -1;
    r->bytes(r->user, j->layout, j->layout_len);
    return 0;
}

int logic_ledger(logic_job *j, int argc, const logic_arg *argv, const logic_reply *r, err *e)
{
    (void)argv;
    if (arg_count(argc, 0, "LEDGER", e))
        return -1;
    char *text = malloc(j->ledger_len + 2);
    if (!text)
        return err_set(e, ERR_NOMEM, "no memory for the ledger");
    text[0] = '[';
    memcpy(text + 1, j->ledger, j->ledger_len);
    text[j->ledger_len + 1] = ']';
    r->bytes(r->user, text, j->ledger_len + 2);
    free(text);
    return 0;
}

int logic_read(logic_job *j, int argc, const logic_arg *argv, const logic_reply *r, err *e)
{
    int64_t version, chunk;
    if (arg_count(argc, 2, "READ", e) || arg_i64(&argv[0], "version", &version, e) ||
        arg_range(&argv[1], "chunk", 0, (int64_t)logic_chunks(j->shape) - 1, &chunk, e))
        return -1;
    if (!j->present)
        return err_set(e, ERR_NOT_FOUND, "there is no reference yet");
    if (logic_check_version(j, version, e))
        return -1;
    size_t len;
    const char *at = logic_chunk_at(j->shape, logic_reference(j, version), (size_t)chunk, &len);
    r->bytes(r->user, at, len);
    return 0;
}
