/* cifar.c: see cifar.h. */
#include "cifar.h"

#include <assert.h>

static const struct {
    const char *name;
    uint64_t record, labels;
    uint8_t classes[2]; /* (labels) */
} forms[] = {{"CIFAR-10", CIFAR_RECORD_BYTES, 1, {10}},
             {"CIFAR-100", CIFAR_100_RECORD_BYTES, 2, {20, 100}}};
enum { FORMS = sizeof forms / sizeof *forms };

bool cifar_may_be(const uint8_t *bytes, size_t len)
{
    return len >= 2 && (bytes[0] < forms[0].classes[0] ||
                        (bytes[0] < forms[1].classes[0] && bytes[1] < forms[1].classes[1]));
}

/* The place in `bytes` of the first label that is out of range; len: all labels are in range. */
static uint64_t find_wrong(int form, const uint8_t *bytes, size_t len, uint64_t offset)
{
    const uint64_t record = forms[form].record;
    uint64_t first = len;
    for (uint64_t k = 0; k < forms[form].labels; k++)
        for (uint64_t at = (record - offset % record + k) % record; at < first; at += record)
            if (bytes[at] >= forms[form].classes[k])
                first = at;
    return first;
}

int cifar_check(unsigned *kinds, const uint8_t *bytes, size_t len, uint64_t offset, err *e)
{
    assert(*kinds);
    uint64_t last = 0; /* the format whose first bad label is last is taken as the intended one */
    int meant = 0;
    for (int form = 0; form < FORMS; form++) {
        if (!(*kinds & 1u << form))
            continue;
        uint64_t wrong = find_wrong(form, bytes, len, offset);
        if (wrong == len)
            continue;
        *kinds &= ~(1u << form);
        if (wrong >= last) {
            last = wrong;
            meant = form;
        }
    }
    if (*kinds)
        return 0;
    return err_set(e, ERR_CORRUPT,
                   "neither npy, npz, IDX nor CIFAR binary (as %s its record %llu would have label "
                   "%d)",
                   forms[meant].name, (unsigned long long)((offset + last) / forms[meant].record),
                   bytes[last]);
}

int cifar_check_length(unsigned *kinds, uint64_t bytes, err *e)
{
    int meant = *kinds & CIFAR_10 ? 0 : 1;
    for (int form = 0; form < FORMS; form++)
        if (bytes == 0 || bytes % forms[form].record != 0)
            *kinds &= ~(1u << form);
    if (*kinds)
        return 0;
    return err_set(
        e, ERR_CORRUPT,
        "neither npy, npz, IDX nor CIFAR binary (as %s it would be cut: %llu bytes are no "
        "multiple of %llu)",
        forms[meant].name, (unsigned long long)bytes, (unsigned long long)forms[meant].record);
}
