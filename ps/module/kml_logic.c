/* kml_logic.c: see kml_logic.h.
 *
 * The reference is double-buffered by the version's parity, in the job's segment or in two blocks
 * of the job's own. A merge writes the other one and becomes visible by logic_merge_end alone,
 * which changes version, open round, checksum and ledger together and cannot fail half-way: the
 * ledger's room is made in begin. Chunks that came through WRITE are not copied: the argument is
 * kept. */
#include "kml_logic.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "merge.h"
#include "shm.h"

enum { LONG_MERGE_BYTES = 8 << 20 }; /* read by the merge; about 2 ms */

/* What one function has brought for the open round. */
typedef struct publication {
    bool published;
    int incarnation; /* -1: nothing yet */
    int slot;        /* -1: in chunks */
    uint64_t samples, checksum;
    const void **chunk; /* (chunks) NULL: nothing staged */
    void **owner;
    size_t chunks_here;
} publication;

struct logic_job {
    const logic_host *host;
    atomic_int holders;
    atomic_bool dead; /* no longer the value of a key */
    bool merging;
    block_shape shape;
    uint64_t layout_digest;
    char *layout;
    size_t layout_len;
    int64_t version, epoch, round;
    bool present;
    uint64_t checksum;
    char *ledger; /* elements joined by ",", without the brackets */
    size_t ledger_len, ledger_cap;
    shm *segment;
    void *own[2]; /* without a segment: references by parity */
    publication pub[LOGIC_FUNCTIONS_MAX];
};

/* ---- arguments ------------------------------------------------------------------------------ */

static int arg_count(int argc, int want, const char *command, err *e)
{
    if (argc == want)
        return 0;
    return err_set(e, ERR_INVALID, "%s takes %d arguments after the key, not %d", command, want,
                   argc);
}

static int arg_i64(const logic_arg *a, const char *name, int64_t *out, err *e)
{
    bool minus = a->len > 0 && a->bytes[0] == '-';
    uint64_t n = 0;
    if (a->len == (size_t)minus || a->len > 20)
        return err_set(e, ERR_INVALID, "%s is not an integer", name);
    for (size_t i = minus; i < a->len; i++) {
        unsigned digit = (unsigned)(unsigned char)a->bytes[i] - '0';
        if (digit > 9 || __builtin_mul_overflow(n, UINT64_C(10), &n) ||
            __builtin_add_overflow(n, digit, &n) || n > (uint64_t)INT64_MAX)
            return err_set(e, ERR_INVALID, "%s is not an integer", name);
    }
    *out = minus ? -(int64_t)n : (int64_t)n;
    return 0;
}

static int arg_range(const logic_arg *a, const char *name, int64_t low, int64_t high, int64_t *out,
                     err *e)
{
    if (arg_i64(a, name, out, e))
        return -1;
    if (*out < low || *out > high)
        return err_set(e, ERR_INVALID, "%s is %lld, outside %lld to %lld", name, (long long)*out,
                       (long long)low, (long long)high);
    return 0;
}

static int arg_int(const logic_arg *a, const char *name, int low, int high, int *out, err *e)
{
    int64_t n;
    if (arg_range(a, name, low, high, &n, e))
        return -1;
    *out = (int)n;
    return 0;
}

/* Hashes are 16 hex digits. */
static int arg_hash(const logic_arg *a, const char *name, uint64_t *out, err *e)
{
    uint64_t n = 0;
    for (size_t i = 0; i < a->len && a->len == 16; i++) {
        char c = a->bytes[i];
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (digit < 0)
            return err_set(e, ERR_INVALID, "%s is not 16 hex digits", name);
        n = n << 4 | (uint64_t)digit;
    }
    *out = n;
    return a->len == 16 ? 0 : err_set(e, ERR_INVALID, "%s is not 16 hex digits", name);
}

static char *copy_text(const char *bytes, size_t len)
{
    char *text = malloc(len + 1);
    if (text) {
        memcpy(text, bytes, len);
        text[len] = '\0';
    }
    return text;
}

/* ---- geometry ------------------------------------------------------------------------------- */

static size_t float_chunks(block_shape s)
{
    return (s.floats * sizeof(float) + LOGIC_CHUNK_BYTES - 1) / LOGIC_CHUNK_BYTES;
}

static size_t all_chunks(block_shape s)
{
    return float_chunks(s) +
           (s.counters * sizeof(int64_t) + LOGIC_CHUNK_BYTES - 1) / LOGIC_CHUNK_BYTES;
}

/* How long chunk `i` is, and where it begins within its kind of numbers. */
static size_t chunk_len(block_shape s, size_t i, size_t *at)
{
    bool counters = i >= float_chunks(s);
    *at = (counters ? i - float_chunks(s) : i) * LOGIC_CHUNK_BYTES;
    size_t end = counters ? s.counters * sizeof(int64_t) : s.floats * sizeof(float);
    return end - *at < LOGIC_CHUNK_BYTES ? end - *at : LOGIC_CHUNK_BYTES;
}

static char *chunk_at(block_shape s, block b, size_t i, size_t *len)
{
    size_t at;
    *len = chunk_len(s, i, &at);
    return (i >= float_chunks(s) ? (char *)b.counters : (char *)b.floats) + at;
}

static block reference(const logic_job *j, int64_t version)
{
    if (j->segment)
        return shm_reference(j->segment, version);
    return block_at((void *)(((uintptr_t)j->own[version & 1] + BLOCK_ALIGN - 1) &
                             ~(uintptr_t)(BLOCK_ALIGN - 1)),
                    j->shape);
}

static int reserve_own(logic_job *j, int64_t version, err *e)
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
    for (size_t i = 0; p->chunk && i < all_chunks(j->shape); i++)
        if (p->owner[i])
            j->host->release(p->owner[i]);
    free(p->chunk);
    free(p->owner);
    *p = (publication){.incarnation = -1, .slot = -1};
}

/* What was published counts for nothing; a lower incarnation stays refused. */
static void publication_forget(logic_job *j, publication *p)
{
    int incarnation = p->incarnation;
    publication_reset(j, p);
    p->incarnation = incarnation;
}

static void publications_reset(logic_job *j)
{
    for (int f = 0; f < LOGIC_FUNCTIONS_MAX; f++)
        publication_reset(j, &j->pub[f]);
}

static logic_job *job_new(const logic_host *host, block_shape shape)
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

static void job_drop(logic_job *j)
{
    if (atomic_fetch_sub(&j->holders, 1) != 1)
        return;
    publications_reset(j);
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
    job_drop(j);
}

/* `text` is a JSON array; its inside is kept. */
static int set_ledger(logic_job *j, const char *text, size_t len, err *e)
{
    if (len < 2 || text[0] != '[' || text[len - 1] != ']')
        return err_set(e, ERR_INVALID, "the ledger is not a JSON array");
    if (len > LOGIC_LEDGER_BYTES_MAX)
        return err_set(e, ERR_LIMIT, "a ledger of %zu bytes, at most %d are allowed", len,
                       LOGIC_LEDGER_BYTES_MAX);
    j->ledger = copy_text(text + 1, len - 2);
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
    j->layout = copy_text(text, len);
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

static void show_state(const logic_job *j)
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
                   set_ledger(j, argv[10].bytes, argv[10].len, e) || reserve_own(j, 0, e) ||
                   reserve_own(j, 1, e)
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
    logic_job *j = job_new(host, (block_shape){(uint64_t)floats, (uint64_t)counters});
    if (!j)
        return err_set(e, ERR_NOMEM, "no memory for a job");
    if (create_in(j, argv, e)) {
        job_drop(j);
        return -1;
    }
    show_state(j);
    *out = j;
    return 0;
}

/* ---- publishing ----------------------------------------------------------------------------- */

static int check_round(const logic_job *j, int64_t epoch, int64_t round, err *e)
{
    if (epoch == j->epoch && round == j->round)
        return 0;
    bool old = epoch < j->epoch || (epoch == j->epoch && round < j->round);
    if (!old && !j->present) /* being put back: who publishes had it before this store was made */
        return err_set(e, ERR_NOT_FOUND, "the reference is not here yet");
    return err_set(e, old ? ERR_STALE : ERR_CONFLICT,
                   "epoch %lld, round %lld is %s: open is epoch %lld, round %lld", (long long)epoch,
                   (long long)round, old ? "over" : "not open yet", (long long)j->epoch,
                   (long long)j->round);
}

static int check_version(const logic_job *j, int64_t version, err *e)
{
    if (version == j->version)
        return 0;
    return err_set(e, version < j->version ? ERR_STALE : ERR_CONFLICT,
                   "version %lld is not the present one, %lld", (long long)version,
                   (long long)j->version);
}

static int check_not_merging(const logic_job *j, err_code busy, err *e)
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
    if (p->chunk)
        return 0;
    p->chunk = calloc(all_chunks(j->shape), sizeof *p->chunk);
    p->owner = calloc(all_chunks(j->shape), sizeof *p->owner);
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
    p->chunk[i] = bytes->bytes;
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
        arg_range(&argv[5], "chunk", 0, (int64_t)all_chunks(j->shape) - 1, &chunk, e) ||
        check_round(j, epoch, round, e) || check_not_merging(j, ERR_CONFLICT, e) ||
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

static int check_chunks(const logic_job *j, const publish_args *a, const publication *p, err *e)
{
    if (a->slot < 0 && p->chunks_here != all_chunks(j->shape))
        return err_set(e, ERR_CONFLICT, "%zu of %zu chunks were written", p->chunks_here,
                       all_chunks(j->shape));
    return 0;
}

/* Who has the slot now has written over what another function published from it: kubeml-ps gave it
 * to somebody else once that one was dead, and may not have heard that it had published. */
static void take_slot(logic_job *j, const publish_args *a)
{
    for (int f = 0; a->slot >= 0 && f < LOGIC_FUNCTIONS_MAX; f++) {
        publication *p = &j->pub[f];
        if (f != a->function && p->published && p->slot == a->slot)
            publication_forget(j, p);
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
    if (check_not_merging(j, ERR_CONFLICT, e) || entry_for(j, a->function, a->incarnation, &p, e) ||
        check_chunks(j, a, p, e))
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
    if (publish_parse(j, argc, argv, &a, e) || check_round(j, a.epoch, a.round, e) ||
        check_version(j, a.version, e))
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
        arg_range(&argv[1], "chunk", 0, (int64_t)all_chunks(j->shape) - 1, &chunk, e))
        return -1;
    if (!j->present)
        return err_set(e, ERR_NOT_FOUND, "there is no reference yet");
    if (check_version(j, version, e))
        return -1;
    size_t len;
    const char *at = chunk_at(j->shape, reference(j, version), (size_t)chunk, &len);
    r->bytes(r->user, at, len);
    return 0;
}

/* ---- merging -------------------------------------------------------------------------------- */

struct logic_merge {
    logic_job *job;
    const merge_rule *rule;
    int64_t next_epoch, next_round;
    char *ledger; /* the element to append */
    size_t ledger_len;
    int count;
    merge_input *in;        /* (count) */
    const void *(*flat)[2]; /* (count) chunks of inputs that lie in a slot */
    int status;
    merge_result result;
    err e;
};

static int merge_input_set(logic_merge *m, merge_input *in, const void *flat[2], err *e)
{
    logic_job *j = m->job;
    publication *p = &j->pub[in->function];
    if (!p->published || p->incarnation != in->incarnation)
        return err_set(e, ERR_CONFLICT, "function %d (incarnation %d) has not published",
                       in->function, in->incarnation);
    if (p->samples != in->samples)
        return err_set(e, ERR_CONFLICT, "function %d published %llu samples, not %llu",
                       in->function, (unsigned long long)p->samples,
                       (unsigned long long)in->samples);
    in->checksum = p->checksum;
    if (p->slot < 0) {
        in->chunk_bytes = LOGIC_CHUNK_BYTES;
        in->float_chunks = p->chunk;
        in->counter_chunks = p->chunk + float_chunks(j->shape);
        return 0;
    }
    block b;
    if (shm_slot(j->segment, p->slot, false, &b, e))
        return -1;
    merge_input_contiguous(in, &b, flat);
    return 0;
}

static int merge_parse_parts(logic_merge *m, const logic_arg *argv, err *e)
{
    m->in = calloc((size_t)m->count, sizeof *m->in);
    m->flat = calloc((size_t)m->count, sizeof *m->flat);
    if (!m->in || !m->flat)
        return err_set(e, ERR_NOMEM, "no memory for a round's list");
    for (int i = 0; i < m->count; i++) {
        int64_t samples;
        merge_input *in = &m->in[i];
        if (arg_int(&argv[3 * i], "function", 0, LOGIC_FUNCTIONS_MAX - 1, &in->function, e) ||
            arg_int(&argv[3 * i + 1], "incarnation", 0, INT_MAX, &in->incarnation, e) ||
            arg_range(&argv[3 * i + 2], "samples", 0, INT64_MAX, &samples, e))
            return -1;
        if (i > 0 && in->function <= m->in[i - 1].function)
            return err_set(e, ERR_INVALID, "the round's functions are not in ascending order");
        in->samples = (uint64_t)samples;
        if (merge_input_set(m, in, m->flat[i], e))
            return -1;
    }
    return 0;
}

/* Makes room now, so that the commit cannot fail. */
static int reserve_ledger(logic_job *j, size_t more, err *e)
{
    size_t need = j->ledger_len + more + 2;
    if (need > LOGIC_LEDGER_BYTES_MAX)
        return err_set(e, ERR_LIMIT, "the ledger would be over %d bytes", LOGIC_LEDGER_BYTES_MAX);
    if (need <= j->ledger_cap)
        return 0;
    char *bigger = realloc(j->ledger, need * 2);
    if (!bigger)
        return err_set(e, ERR_NOMEM, "no memory for the ledger");
    j->ledger = bigger;
    j->ledger_cap = need * 2;
    return 0;
}

static int merge_parse_rule(logic_merge *m, const logic_arg *rule, const logic_arg *ledger, err *e)
{
    char name[32];
    size_t len = rule->len < sizeof name - 1 ? rule->len : sizeof name - 1;
    memcpy(name, rule->bytes, len);
    name[len] = '\0';
    if (merge_rule_find(name, &m->rule, e) || reserve_ledger(m->job, ledger->len, e))
        return -1;
    m->ledger = copy_text(ledger->bytes, ledger->len);
    m->ledger_len = ledger->len;
    return m->ledger ? 0 : err_set(e, ERR_NOMEM, "no memory for the ledger");
}

static int merge_prepare(logic_merge *m, int argc, const logic_arg *argv, err *e)
{
    logic_job *j = m->job;
    int64_t epoch, round, version;
    if (argc < 8)
        return err_set(e, ERR_INVALID, "MERGE takes at least 8 arguments after the key");
    if (arg_i64(&argv[0], "epoch", &epoch, e) || arg_i64(&argv[1], "round", &round, e) ||
        arg_i64(&argv[2], "version", &version, e) ||
        arg_i64(&argv[3], "next_epoch", &m->next_epoch, e) ||
        arg_i64(&argv[4], "next_round", &m->next_round, e) ||
        arg_int(&argv[7], "count", 1, LOGIC_FUNCTIONS_MAX, &m->count, e) ||
        arg_count(argc, 8 + 3 * m->count, "MERGE", e) || check_round(j, epoch, round, e) ||
        check_version(j, version, e) || check_not_merging(j, ERR_UNAVAILABLE, e))
        return -1;
    if (m->next_epoch < epoch || (m->next_epoch == epoch && m->next_round <= round))
        return err_set(e, ERR_INVALID, "the next round is not after the one that is merged");
    if (j->segment && !shm_whole(j->segment))
        return err_set(e, ERR_CORRUPT, "the segment was cut short");
    return merge_parse_rule(m, &argv[5], &argv[6], e) || merge_parse_parts(m, argv + 8, e) ||
                   reserve_own(j, version + 1, e)
               ? -1
               : 0;
}

static void merge_free(logic_merge *m)
{
    free(m->ledger);
    free(m->in);
    free(m->flat);
    job_drop(m->job);
    free(m);
}

int logic_merge_begin(logic_job *j, int argc, const logic_arg *argv, logic_merge **out, err *e)
{
    logic_merge *m = calloc(1, sizeof *m);
    if (!m)
        return err_set(e, ERR_NOMEM, "no memory for a merge");
    m->job = j;
    atomic_fetch_add(&j->holders, 1);
    if (merge_prepare(m, argc, argv, e)) {
        merge_free(m);
        return -1;
    }
    j->merging = true;
    *out = m;
    return 0;
}

bool logic_merge_is_long(const logic_merge *m)
{
    return block_bytes(m->job->shape) * (size_t)m->count > LONG_MERGE_BYTES;
}

void logic_merge_run(logic_merge *m)
{
    logic_job *j = m->job;
    int pays = merge_threads(j->shape, m->count);
    int threads = j->host->threads > 0 && j->host->threads < pays ? j->host->threads : pays;
    block to = reference(j, j->version + 1);
    m->status = merge_run(m->rule, j->shape, m->in, m->count, to, threads, &m->result, &m->e);
}

static void append_ledger(logic_job *j, const char *element, size_t len)
{
    if (len == 0)
        return;
    if (j->ledger_len > 0)
        j->ledger[j->ledger_len++] = ',';
    memcpy(j->ledger + j->ledger_len, element, len);
    j->ledger_len += len;
}

static void commit(logic_merge *m)
{
    logic_job *j = m->job;
    append_ledger(j, m->ledger, m->ledger_len);
    j->version++;
    j->present = true;
    j->checksum = m->result.checksum;
    j->epoch = m->next_epoch;
    j->round = m->next_round;
    publications_reset(j);
    show_state(j);
}

/* The publication is forgotten, so that the function (or its replacement) can publish again. */
static int refused(logic_merge *m, err *e)
{
    if (e)
        *e = m->e;
    if (m->result.bad < 0)
        return -1;
    int function = m->in[m->result.bad].function;
    publication_forget(m->job, &m->job->pub[function]);
    if (e) /* "@3 ...": for the client, which needs the number */
        snprintf(e->message, sizeof e->message, "@%d %.240s", function, m->e.message);
    return -1;
}

int logic_merge_end(logic_merge *m, const logic_reply *r, err *e)
{
    logic_job *j = m->job;
    int rc = 0;
    j->merging = false;
    if (atomic_load(&j->dead))
        rc = err_set(e, ERR_NOT_FOUND, "the job was removed while its round was merged");
    else if (m->status != 0)
        rc = refused(m, e);
    else
        commit(m);
    if (rc == 0 && r) {
        r->array(r->user, 4);
        r->integer(r->user, j->version);
        r->integer(r->user, j->epoch);
        r->integer(r->user, j->round);
        r->integer(r->user, (int64_t)j->checksum);
    }
    merge_free(m);
    return rc;
}

/* ---- saving and loading --------------------------------------------------------------------- */

void logic_save(logic_job *j, const logic_sink *to)
{
    const uint64_t number[] = {
        LOGIC_ENCODING,     j->shape.floats,      j->shape.counters,
        j->layout_digest,   (uint64_t)j->version, (uint64_t)j->epoch,
        (uint64_t)j->round, j->present,           j->checksum,
    };
    for (size_t i = 0; i < sizeof number / sizeof number[0]; i++)
        to->put_u64(to->user, number[i]);
    to->put_bytes(to->user, j->layout, j->layout_len);
    to->put_bytes(to->user, j->ledger, j->ledger_len);
    for (size_t i = 0; j->present && i < all_chunks(j->shape); i++) {
        size_t len;
        const char *at = chunk_at(j->shape, reference(j, j->version), i, &len);
        to->put_bytes(to->user, at, len);
    }
}

static int load_text(const logic_source *from, size_t max, char **out, size_t *len, err *e)
{
    char *bytes;
    if (from->get_bytes(from->user, &bytes, len))
        return err_set(e, ERR_CORRUPT, "the payload ends early");
    *out = *len <= max ? copy_text(bytes, *len) : NULL;
    bool fits = *len <= max;
    from->drop(bytes);
    if (!fits)
        return err_set(e, ERR_LIMIT, "a text of %zu bytes in the payload", *len);
    return *out ? 0 : err_set(e, ERR_NOMEM, "no memory for a text of the payload");
}

static int load_chunks(logic_job *j, const logic_source *from, err *e)
{
    if (reserve_own(j, j->version, e))
        return -1;
    for (size_t i = 0; i < all_chunks(j->shape); i++) {
        size_t want, len;
        char *bytes, *to = chunk_at(j->shape, reference(j, j->version), i, &want);
        if (from->get_bytes(from->user, &bytes, &len))
            return err_set(e, ERR_CORRUPT, "the payload ends early");
        if (len == want)
            memcpy(to, bytes, len);
        from->drop(bytes);
        if (len != want)
            return err_set(e, ERR_CORRUPT, "chunk %zu of the payload has %zu bytes, not %zu", i,
                           len, want);
    }
    uint64_t checksum;
    if (block_checksum(j->shape, reference(j, j->version), 1, &checksum, e))
        return -1;
    return checksum == j->checksum
               ? 0
               : err_set(e, ERR_CORRUPT, "the reference does not match its checksum");
}

static int load_in(logic_job *j, const uint64_t *number, const logic_source *from, err *e)
{
    j->layout_digest = number[0];
    j->version = (int64_t)number[1];
    j->epoch = (int64_t)number[2];
    j->round = (int64_t)number[3];
    j->present = number[4] == 1;
    j->checksum = number[5];
    if (number[4] > 1 || j->version < (j->present ? 0 : -1) || j->version == INT64_MAX)
        return err_set(e, ERR_CORRUPT, "version %lld in the payload", (long long)j->version);
    if (load_text(from, LOGIC_LAYOUT_BYTES_MAX, &j->layout, &j->layout_len, e) ||
        load_text(from, LOGIC_LEDGER_BYTES_MAX, &j->ledger, &j->ledger_len, e))
        return -1;
    j->ledger_cap = j->ledger_len + 1;
    return j->present ? load_chunks(j, from, e) : 0;
}

int logic_load(const logic_host *host, const logic_source *from, logic_job **out, err *e)
{
    uint64_t number[9];
    for (int i = 0; i < 9; i++)
        if (from->get_u64(from->user, &number[i]))
            return err_set(e, ERR_CORRUPT, "the payload ends early");
    if (number[0] != LOGIC_ENCODING)
        return err_set(e, ERR_UNSUPPORTED, "encoding %llu of the payload",
                       (unsigned long long)number[0]);
    block_shape shape = {number[1], number[2]};
    if (block_shape_check(shape, e))
        return -1;
    logic_job *j = job_new(host, shape);
    if (!j)
        return err_set(e, ERR_NOMEM, "no memory for a job");
    if (load_in(j, number + 3, from, e)) {
        job_drop(j);
        return -1;
    }
    *out = j;
    return 0;
}

size_t logic_memory(const logic_job *j)
{
    size_t bytes = sizeof *j + j->layout_len + j->ledger_cap;
    for (int i = 0; i < 2; i++)
        if (j->own[i])
            bytes += block_bytes(j->shape) + BLOCK_ALIGN;
    for (int f = 0; f < LOGIC_FUNCTIONS_MAX; f++)
        if (j->pub[f].chunk) /* about: the last chunk of each kind is shorter */
            bytes += j->pub[f].chunks_here * LOGIC_CHUNK_BYTES;
    return bytes;
}

uint64_t logic_fingerprint(const logic_job *j)
{
    uint64_t parts[] = {
        j->shape.floats,
        j->shape.counters,
        j->layout_digest,
        (uint64_t)j->version,
        (uint64_t)j->epoch,
        (uint64_t)j->round,
        j->present ? j->checksum : 0,
        XXH3_64bits(j->layout, j->layout_len),
        XXH3_64bits(j->ledger, j->ledger_len),
    };
    return XXH3_64bits(parts, sizeof parts);
}
