/* kml_arguments.c: numbers from arguments. See kml_internal.h. */
#include "kml_internal.h"

int arg_count(int argc, int want, const char *command, err *e)
{
    if (argc == want)
        return 0;
    return err_set(e, ERR_INVALID, "%s takes %d arguments after the key, not %d", command, want,
                   argc);
}

int arg_i64(const logic_arg *a, const char *name, int64_t *out, err *e)
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

int arg_range(const logic_arg *a, const char *name, int64_t low, int64_t high, int64_t *out, err *e)
{
    if (arg_i64(a, name, out, e))
        return -1;
    if (*out < low || *out > high)
        return err_set(e, ERR_INVALID, "%s is %lld, outside %lld to %lld", name, (long long)*out,
                       (long long)low, (long long)high);
    return 0;
}

int arg_int(const logic_arg *a, const char *name, int low, int high, int *out, err *e)
{
    int64_t n;
    if (arg_range(a, name, low, high, &n, e))
        return -1;
    *out = (int)n;
    return 0;
}

/* Hashes are 16 hex digits. */
int arg_hash(const logic_arg *a, const char *name, uint64_t *out, err *e)
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
