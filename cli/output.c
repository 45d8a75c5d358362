/* output.c: tables, JSON and YAML. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <yaml.h>

#include "cli.h"
#include "common/base/clock.h"
#include "common/base/decimal.h"

enum { COLUMNS_MAX = 16, CELL_BYTES = 96, SHORT_ARRAY_BYTES = 80 };

const json_t *output_at(const json_t *value, const char *path)
{
    char key[64];
    while (value && *path) {
        size_t len = strcspn(path, ".");
        snprintf(key, sizeof key, "%.*s", (int)len, path);
        value = json_object_get(value, key);
        path += len + (path[len] == '.');
    }
    return value;
}

/* ---- text from user code --------------------------------------------------------------------- */

/* The length of a control character, which a terminal may obey: 1, or 2 bytes for U+0080 to U+009F;
 * 0: another character. */
static size_t control_bytes(const unsigned char *c, size_t len)
{
    if (*c < 0x20 || *c == 0x7f)
        return 1;
    return len > 1 && c[0] == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0 ? 2 : 0;
}

static void put_escaped(FILE *to, const unsigned char *c, size_t bytes)
{
    if (*c == '\n')
        fputs("\\n", to);
    else if (bytes == 1)
        fprintf(to, "\\x%02x", *c);
    else
        fprintf(to, "\\u%04x", c[1]);
}

void output_said(FILE *to, const char *text, bool lines)
{
    const unsigned char *c = (const unsigned char *)text;
    for (size_t left = strlen(text), bytes; left; c += bytes, left -= bytes) {
        bytes = control_bytes(c, left);
        if (bytes && !(lines && *c == '\n')) {
            put_escaped(to, c, bytes);
        } else {
            putc(*c, to);
            bytes = 1;
        }
    }
}

void output_line(const char *title, const char *text)
{
    printf("%-9s ", title);
    output_said(stdout, text, false);
    putchar('\n');
}

/* The length of a colour's escape sequence, which ends with `m`; 0: no colour; -1: more bytes are
 * needed to decide. */
static int colour_bytes(const char *at, size_t len)
{
    size_t i = 2;
    if (*at != '\033' || (len > 1 && at[1] != '['))
        return 0;
    while (i < len && i < OUTPUT_KEPT_BYTES && strchr("0123456789;:", at[i]) && at[i])
        i++;
    if (i >= len)
        return -1;
    return i < OUTPUT_KEPT_BYTES && at[i] == 'm' ? (int)i + 1 : 0;
}

size_t output_log(FILE *to, const char *bytes, size_t len, bool over)
{
    size_t i = 0;
    while (i < len) {
        const unsigned char *c = (const unsigned char *)bytes + i;
        int colour = colour_bytes(bytes + i, len - i);
        size_t control = control_bytes(c, len - i);
        if (!over && (colour < 0 || (*c == 0xc2 && i + 1 == len)))
            break;
        if (colour > 0) {
            fwrite(c, 1, (size_t)colour, to);
            i += (size_t)colour;
        } else if (control && *c != '\n' && *c != '\t') {
            put_escaped(to, c, control);
            i += control;
        } else {
            putc(*c, to);
            i++;
        }
    }
    return i;
}

void output_age(const json_t *rfc3339, char *out, size_t size)
{
    struct tm utc = {0};
    const char *text = json_string_value(rfc3339);
    if (!text || !strptime(text, "%Y-%m-%dT%H:%M:%S", &utc)) {
        snprintf(out, size, "-");
        return;
    }
    long seconds = (long)(clock_wall_ms() / 1000 - timegm(&utc));
    if (seconds < 120)
        snprintf(out, size, "%lds", seconds < 0 ? 0 : seconds);
    else if (seconds < 2 * 3600)
        snprintf(out, size, "%ldm", seconds / 60);
    else if (seconds < 48 * 3600)
        snprintf(out, size, "%ldh", seconds / 3600);
    else
        snprintf(out, size, "%ldd", seconds / 86400);
}

static void format_cell(const cli_column *column, const json_t *row, char *out)
{
    const json_t *value = output_at(row, column->path);
    if (column->format)
        column->format(value, out, CELL_BYTES);
    else if (json_is_string(value))
        snprintf(out, CELL_BYTES, "%s", json_string_value(value));
    else if (json_is_integer(value))
        snprintf(out, CELL_BYTES, "%lld", (long long)json_integer_value(value));
    else if (json_is_real(value))
        snprintf(out, CELL_BYTES, "%.4g", json_real_value(value));
    else if (json_is_boolean(value))
        snprintf(out, CELL_BYTES, "%s", json_is_true(value) ? "yes" : "no");
    else
        snprintf(out, CELL_BYTES, "-");
}

static void print_table(const json_t *rows, const cli_column *columns, bool wide)
{
    const cli_column *shown[COLUMNS_MAX];
    int width[COLUMNS_MAX];
    size_t count = 0;
    char cell[CELL_BYTES];
    for (const cli_column *column = columns; column->title && count < COLUMNS_MAX; column++)
        if (wide || !column->wide)
            shown[count++] = column;
    size_t i;
    json_t *row;
    for (size_t k = 0; k < count; k++) {
        width[k] = (int)strlen(shown[k]->title);
        json_array_foreach(rows, i, row)
        {
            format_cell(shown[k], row, cell);
            width[k] = (int)strlen(cell) > width[k] ? (int)strlen(cell) : width[k];
        }
    }
    for (size_t k = 0; k < count; k++)
        printf("%*s%s", shown[k]->right ? width[k] : k + 1 < count ? -width[k] : 0, shown[k]->title,
               k + 1 < count ? "  " : "\n");
    json_array_foreach(rows, i, row)
    {
        for (size_t k = 0; k < count; k++) {
            format_cell(shown[k], row, cell);
            printf("%*s%s", shown[k]->right ? width[k] : k + 1 < count ? -width[k] : 0, cell,
                   k + 1 < count ? "  " : "\n");
        }
    }
}

int output_rows(const json_t *rows, const cli_column *columns, const char *format,
                const char *empty)
{
    bool wide = strcmp(format, "wide") == 0;
    if (!wide && strcmp(format, "table") != 0)
        return output_value(rows, format);
    if (json_array_size(rows) == 0)
        fprintf(stderr, "%s\n", empty);
    else
        print_table(rows, columns, wide);
    return CLI_OK;
}

/* The shortest text that reads back as the same number, and as a real number. */
static const char *real_text(double number, char out[DECIMAL_BYTES])
{
    if (!strpbrk(decimal_text(number, out), ".eE"))
        strcat(out, ".0");
    return out;
}

/* ---- YAML ----------------------------------------------------------------------------------- */

static int emit(yaml_emitter_t *emitter, yaml_event_t *event)
{
    return yaml_emitter_emit(emitter, event);
}

static int emit_scalar(yaml_emitter_t *emitter, const char *text, bool quoted)
{
    yaml_event_t event;
    yaml_scalar_event_initialize(
        &event, NULL, NULL, (const yaml_char_t *)text, (int)strlen(text), 1, 1,
        quoted ? YAML_DOUBLE_QUOTED_SCALAR_STYLE : YAML_PLAIN_SCALAR_STYLE);
    return emit(emitter, &event);
}

/* Whether a plain scalar would not be read back as this string. In YAML 1.1, which most parsers
 * still read, a time such as 2026-11-21T20:56:38Z is no string, nor are 1:30, 1_000 and 0b1. */
static bool needs_quotes(const char *text)
{
    static const char *const words[] = {"",      "~",     "null", "true", "false", "yes",
                                        "no",    "y",     "n",    "on",   "off",   ".inf",
                                        "+.inf", "-.inf", ".nan", "=",    "<<"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcasecmp(text, words[i]) == 0)
            return true;
    char *end = NULL;
    strtod(text, &end);
    return *end == '\0' || (strchr("+-.0123456789", *text) &&
                            text[strspn(text, "0123456789+-._: \tbeoxtzBEOXTZ")] == '\0');
}

/* Adds a point to the number, because YAML 1.1 takes 1e-05 for a string. */
static const char *yaml_real_text(double number, char out[DECIMAL_BYTES])
{
    const char *e = strchr(real_text(number, out), 'e');
    if (!e || strchr(out, '.'))
        return out;
    char exponent[DECIMAL_BYTES];
    size_t digits = (size_t)(e - out);
    snprintf(exponent, sizeof exponent, "%s", e);
    snprintf(out + digits, DECIMAL_BYTES - digits, ".0%s", exponent);
    return out;
}

static int emit_value(yaml_emitter_t *emitter, const json_t *value)
{
    yaml_event_t event;
    char text[DECIMAL_BYTES];
    if (json_is_object(value)) {
        const char *key;
        json_t *member;
        yaml_mapping_start_event_initialize(&event, NULL, NULL, 1, YAML_BLOCK_MAPPING_STYLE);
        if (!emit(emitter, &event))
            return 0;
        json_object_foreach((json_t *)value, key, member)
        {
            if (!emit_scalar(emitter, key, needs_quotes(key)) || !emit_value(emitter, member))
                return 0;
        }
        yaml_mapping_end_event_initialize(&event);
        return emit(emitter, &event);
    }
    if (json_is_array(value)) {
        size_t i;
        json_t *item;
        yaml_sequence_start_event_initialize(&event, NULL, NULL, 1, YAML_BLOCK_SEQUENCE_STYLE);
        if (!emit(emitter, &event))
            return 0;
        json_array_foreach(value, i, item)
        {
            if (!emit_value(emitter, item))
                return 0;
        }
        yaml_sequence_end_event_initialize(&event);
        return emit(emitter, &event);
    }
    if (json_is_string(value))
        return emit_scalar(emitter, json_string_value(value),
                           needs_quotes(json_string_value(value)));
    if (json_is_integer(value))
        snprintf(text, sizeof text, "%lld", (long long)json_integer_value(value));
    else if (json_is_real(value))
        yaml_real_text(json_real_value(value), text);
    else
        snprintf(text, sizeof text, "%s",
                 json_is_true(value) ? "true" : json_is_false(value) ? "false" : "null");
    return emit_scalar(emitter, text, false);
}

static void print_yaml(const json_t *value)
{
    yaml_emitter_t emitter;
    yaml_event_t event;
    yaml_emitter_initialize(&emitter);
    yaml_emitter_set_output_file(&emitter, stdout);
    yaml_emitter_set_unicode(&emitter, 1);
    yaml_stream_start_event_initialize(&event, YAML_UTF8_ENCODING);
    emit(&emitter, &event);
    yaml_document_start_event_initialize(&event, NULL, NULL, NULL, 1);
    emit(&emitter, &event);
    emit_value(&emitter, value);
    yaml_document_end_event_initialize(&event, 1);
    emit(&emitter, &event);
    yaml_stream_end_event_initialize(&event);
    emit(&emitter, &event);
    yaml_emitter_delete(&emitter);
}

/* ---- JSON ----------------------------------------------------------------------------------- */

/* Whether an array goes on one line: it has scalars only, or is short and without objects. */
static bool is_flat(const json_t *array)
{
    bool scalars = true;
    size_t i, k;
    json_t *item, *inner;
    json_array_foreach(array, i, item)
    {
        scalars = scalars && !json_is_array(item);
        if (json_is_object(item))
            return false;
        json_array_foreach(item, k, inner)
        {
            if (!json_is_number(inner))
                return false;
        }
    }
    return scalars || json_dumpb(array, NULL, 0, JSON_COMPACT) <= SHORT_ARRAY_BYTES;
}

static void print_scalar(const json_t *value)
{
    char text[DECIMAL_BYTES];
    if (json_is_real(value)) {
        fputs(real_text(json_real_value(value), text), stdout);
    } else {
        json_dumpf(value, stdout, JSON_ENCODE_ANY);
    }
}

/* Prints indented JSON, but an array of numbers on one line, and each number with as few digits as
 * read back as the same number. */
static void print_json(const json_t *value, int depth)
{
    const char *key;
    json_t *member;
    size_t i, n = 0;
    if (json_is_object(value) && json_object_size(value)) {
        json_object_foreach((json_t *)(uintptr_t)value, key, member)
        {
            json_t *name = json_string(key);
            printf("%s\n%*s", n++ ? "," : "{", 2 * depth + 2, "");
            print_scalar(name);
            fputs(": ", stdout);
            print_json(member, depth + 1);
            json_decref(name);
        }
        printf("\n%*s}", 2 * depth, "");
    } else if (json_is_array(value) && json_array_size(value)) {
        bool flat = is_flat(value);
        json_array_foreach(value, i, member)
        {
            if (flat)
                fputs(i ? ", " : "[", stdout);
            else
                printf("%s\n%*s", i ? "," : "[", 2 * depth + 2, "");
            print_json(member, depth + 1);
        }
        if (flat)
            putchar(']');
        else
            printf("\n%*s]", 2 * depth, "");
    } else {
        print_scalar(value);
    }
}

int output_value(const json_t *value, const char *format)
{
    if (strcmp(format, "yaml") == 0) {
        print_yaml(value);
    } else {
        print_json(value, 0);
        putchar('\n');
    }
    return CLI_OK;
}

/* ---- order ---------------------------------------------------------------------------------- */

static int compare_created(const void *a, const void *b)
{
    const char *left = json_string_value(json_object_get(*(json_t *const *)a, "created"));
    const char *right = json_string_value(json_object_get(*(json_t *const *)b, "created"));
    return strcmp(left ? left : "", right ? right : "");
}

void output_sort(json_t *rows)
{
    size_t count = json_array_size(rows), i;
    json_t **all = calloc(count + 1, sizeof(json_t *)), *row;
    if (!all)
        return;
    json_array_foreach(rows, i, row)
    {
        all[i] = json_incref(row);
    }
    qsort(all, count, sizeof(json_t *), compare_created);
    json_array_clear(rows);
    for (i = 0; i < count; i++)
        json_array_append_new(rows, all[i]);
    free(all);
}

static const struct {
    const char *title;
    int width, decimals;
} epoch_columns[EPOCH_VALUES] = {[EPOCH_TRAIN_LOSS] = {"train loss", 10, 4},
                                 [EPOCH_VALIDATION_LOSS] = {"val loss", 10, 4},
                                 [EPOCH_ACCURACY] = {"accuracy %", 10, 2},
                                 [EPOCH_SECONDS] = {"seconds", 9, 2},
                                 [EPOCH_PARALLELISM] = {"parallelism", 11, 0}};

void output_epochs_head(void)
{
    printf("epoch");
    for (size_t k = 0; k < EPOCH_VALUES; k++)
        printf(" %*s", epoch_columns[k].width, epoch_columns[k].title);
    putchar('\n');
}

void output_epoch(int number, json_t *const value[EPOCH_VALUES])
{
    printf("%5d", number);
    for (size_t k = 0; k < EPOCH_VALUES; k++) {
        int width = epoch_columns[k].width;
        double v = json_number_value(value[k]);
        if (!json_is_number(value[k]))
            printf(" %*s", width, "-");
        else if (snprintf(NULL, 0, "%.*f", epoch_columns[k].decimals, v) > width)
            printf(" %*.4g", width, v); /* a loss too large for its column */
        else
            printf(" %*.*f", width, epoch_columns[k].decimals, v);
    }
    putchar('\n');
}
