/* docs.c: the tables of job options and of commands as JSON, for scripts/write-docs and the tests
 * of the pages: `kubeml __docs job-options`, `kubeml __docs commands`. */
#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "common/base/json_read.h"
#include "common/contract/job_options.h"

/* ---- job options ----------------------------------------------------------------------------- */

static const char *kind_text(const job_option *o)
{
    switch (o->kind) {
    case VALUE_INT:
    case VALUE_SEED: return "integer";
    case VALUE_REAL: return "number";
    case VALUE_BOOL: return "boolean";
    case VALUE_WORD: return "word";
    case VALUE_OBJECT: return "object";
    case VALUE_MEMORY: return "memory";
    default: return "text";
    }
}

static json_t *number_json(const job_option *o, double x)
{
    return o->kind == VALUE_REAL ? json_real(x) : json_integer((json_int_t)x);
}

/* Adds range and default, if the option has a range. A default outside the range means: none. */
static void put_range(json_t *row, const job_option *o)
{
    bool real = o->kind == VALUE_REAL;
    bool within = o->default_value <= o->high &&
                  (real ? o->default_value > o->low : o->default_value >= o->low);
    if (!real && o->kind != VALUE_INT && o->kind != VALUE_SEED)
        return;
    json_object_set_new(row, real ? "above" : "minimum", number_json(o, o->low));
    json_object_set_new(row, "maximum", number_json(o, o->high));
    if (within)
        json_object_set_new(row, "default", number_json(o, o->default_value));
}

static void put_words(json_t *row, const job_option *o)
{
    json_t *words = json_array();
    for (size_t i = 0; o->words[i]; i++)
        json_array_append_new(words, json_string(o->words[i]));
    json_object_set_new(row, "words", words);
    json_object_set_new(row, "default", json_string(o->words[0]));
}

static void put_flags(json_t *row, const job_option *o)
{
    json_t *flags = json_array();
    if (o->letter)
        json_array_append_new(flags, json_sprintf("-%c", o->letter));
    if (o->flag)
        json_array_append_new(flags, json_sprintf("--%s", o->flag));
    json_object_set_new(row, "flags", flags);
    if (o->shortcut.flag)
        json_object_set_new(row, "shortcut",
                            json_pack("{s:o, s:i}", "flag", json_sprintf("--%s", o->shortcut.flag),
                                      "value", o->shortcut.value));
}

static size_t length_max(const job_option *o)
{
    return o->kind == VALUE_NAME || o->kind == VALUE_PATH ? REQUEST_NAME_BYTES - 1
           : o->kind == VALUE_TENSORS                     ? REQUEST_TENSORS_BYTES - 1
                                                          : 0;
}

static json_t *row_json(const job_option *o)
{
    const job_option *parent = job_option_parent(o->in);
    json_t *row = json_pack("{s:s, s:s?, s:s?, s:s?, s:s, s:b, s:s?, s:s?, s:s?}", "name", o->name,
                            "in", parent ? parent->name : NULL, "alias", o->alias, "spec", o->spec,
                            "kind", kind_text(o), "required", (int)o->required, "unbuilt",
                            o->unbuilt, "about", o->about, "weights", o->weights);
    put_range(row, o);
    put_flags(row, o);
    if (o->kind == VALUE_WORD)
        put_words(row, o);
    if (o->kind == VALUE_BOOL)
        json_object_set_new(row, "default", json_false());
    if (length_max(o))
        json_object_set_new(row, "length", json_integer((json_int_t)length_max(o)));
    return row;
}

/* The rows in the order of the help, by group. Rows without a flag are in the first group. */
static json_t *job_options_json(void)
{
    json_t *rows = json_array();
    for (int group = 0; group < OPTION_GROUPS; group++)
        for (const job_option *o = job_options; o->name; o++)
            if ((int)o->group == group)
                json_array_append_new(rows, row_json(o));
    return rows;
}

/* ---- commands -------------------------------------------------------------------------------- */

void docs_add_options(json_t *out, const cli_option *options)
{
    for (const cli_option *o = options; o->name; o++) {
        const char letter[] = {o->letter, '\0'};
        json_array_append_new(out, json_pack("{s:s, s:s*, s:s*, s:s, s:b, s:b}", "name", o->name,
                                             "letter", o->letter ? letter : NULL, "value",
                                             o->kind == OPTION_FLAG ? NULL : cli_placeholder(o),
                                             "help", o->help, "required", (int)o->required,
                                             "repeats", (int)o->repeats));
    }
}

/* A command's function passes its options to cli_parse, which ends there. */
static json_t *command_json(const cli_verb *v)
{
    json_t *options = json_array();
    cli c = {.verb = v, .documents = options};
    char name[32];
    snprintf(name, sizeof name, "%s", v->name);
    v->run(&c, 1, (char *[]){name, NULL});
    return json_pack("{s:s, s:s, s:s, s:s*, s:o}", "name", v->name, "arguments", v->arguments,
                     "summary", v->summary, "details", v->details, "options", options);
}

static json_t *commands_json(void)
{
    json_t *rows = json_array();
    for (const cli_verb *v = cli_verbs; v->name; v++)
        json_array_append_new(rows, command_json(v));
    return rows;
}

/* ---- all ------------------------------------------------------------------------------------- */

int docs_print(const char *table)
{
    cleanup_json json_t *rows = strcmp(table, "job-options") == 0 ? job_options_json()
                                : strcmp(table, "commands") == 0  ? commands_json()
                                                                  : NULL;
    if (!rows) {
        fprintf(stderr, "kubeml: __docs has no table \"%s\"\n", table);
        return CLI_USAGE;
    }
    json_dumpf(rows, stdout, JSON_INDENT(1));
    putchar('\n');
    return CLI_OK;
}
