/* kml_save.c: a job as a payload and back, and what it takes of memory. See kml_logic.h. */
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "kml_internal.h"

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
    for (size_t i = 0; j->present && i < logic_chunks(j->shape); i++) {
        size_t len;
        const char *at = logic_chunk_at(j->shape, logic_reference(j, j->version), i, &len);
        to->put_bytes(to->user, at, len);
    }
}

static int load_text(const logic_source *from, size_t max, char **out, size_t *len, err *e)
{
    char *bytes;
    if (from->get_bytes(from->user, &bytes, len))
        return err_set(e, ERR_CORRUPT, "the payload ends early");
    *out = *len <= max ? logic_copy_text(bytes, *len) : NULL;
    bool fits = *len <= max;
    from->drop(bytes);
    if (!fits)
        return err_set(e, ERR_LIMIT, "a text of %zu bytes in the payload", *len);
    return *out ? 0 : err_set(e, ERR_NOMEM, "no memory for a text of the payload");
}

static int load_chunks(logic_job *j, const logic_source *from, err *e)
{
    if (logic_reserve_own(j, j->version, e))
        return -1;
    for (size_t i = 0; i < logic_chunks(j->shape); i++) {
        size_t want, len;
        char *bytes, *to = logic_chunk_at(j->shape, logic_reference(j, j->version), i, &want);
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
    if (block_checksum(j->shape, logic_reference(j, j->version), 1, &checksum, e))
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
    logic_job *j = logic_job_new(host, shape);
    if (!j)
        return err_set(e, ERR_NOMEM, "no memory for a job");
    if (load_in(j, number + 3, from, e)) {
        logic_job_drop(j);
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
        if (j->pub[f].owner) /* about: the last chunk of each kind is shorter */
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
