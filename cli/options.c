/* options.c: parsing and help pages, from the options' tables. */
#include <assert.h>
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

enum { LONG_FIRST = 256 }; /* getopt_long's values of long options; letters are below */
enum { HELP_FROM = 32 };   /* the column of an option's help */

const char *cli_placeholder(const cli_option *o)
{
    if (o->kind == OPTION_FORMAT)
        return "FORMAT";
    return o->value ? o->value : o->kind == OPTION_TEXT ? "TEXT" : "N";
}

static void print_option(const cli_option *o)
{
    char left[64];
    int used = o->letter ? snprintf(left, sizeof left, "  -%c, --%s", o->letter, o->name)
                         : snprintf(left, sizeof left, "      --%s", o->name);
    if (o->kind != OPTION_FLAG)
        snprintf(left + used, sizeof left - (size_t)used, " %s", cli_placeholder(o));
    /* Puts the help below a long option, beside a short option. */
    bool beside = strlen(left) <= HELP_FROM;
    printf("%s%s%*s %s%s\n", left, beside ? "" : "\n",
           beside ? HELP_FROM - (int)strlen(left) : HELP_FROM, "", o->help,
           o->required ? " (required)" : "");
}

static void print_help(const cli *c, const cli_option *options)
{
    const cli_verb *v = c->verb;
    printf("kubeml %s - %s\n\nusage: kubeml %s [options]%s%s\n", v->name, v->summary, v->name,
           v->arguments[0] ? " " : "", v->arguments);
    if (v->details)
        printf("\n%s\n", v->details);
    printf("\noptions:\n");
    for (const cli_option *o = options; o->name; o++)
        print_option(o);
    printf("%-*s %s\n", HELP_FROM, "  -h, --help", "this page");
}

int cli_usage(const cli *c, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    fprintf(stderr, "kubeml %s: ", c->verb->name);
    vfprintf(stderr, fmt, args);
    fprintf(stderr, "\nSee kubeml %s --help.\n", c->verb->name);
    va_end(args);
    return CLI_USAGE;
}

static bool is_one_of(const char *word, const char *words)
{
    size_t len = strlen(word), n;
    for (; *words; words += n + strspn(words + n, " ")) {
        n = strcspn(words, " ");
        if (n == len && memcmp(words, word, n) == 0)
            return true;
    }
    return false;
}

/* Stores an option's value: 0, or CLI_USAGE + 1 with an error printed. */
static int store_value(const cli *c, const cli_option *o, const char *text)
{
    char *end = NULL;
    errno = 0;
    if ((o->kind == OPTION_TEXT || o->kind == OPTION_FORMAT) && !*text)
        return cli_usage(c, "--%s must not be empty", o->name) + 1;
    if (o->kind == OPTION_FORMAT && !is_one_of(text, o->value))
        return cli_usage(c, "no output format \"%s\"; there are: %s", text, o->value) + 1;
    if (o->kind == OPTION_FLAG) {
        *(bool *)o->into = true;
    } else if (o->kind == OPTION_TEXT && o->repeats) {
        cli_list *list = o->into;
        if (list->count == CLI_LIST_MAX)
            return cli_usage(c, "more than %d times --%s", CLI_LIST_MAX, o->name) + 1;
        list->item[list->count++] = text;
    } else if (o->kind == OPTION_TEXT || o->kind == OPTION_FORMAT) {
        *(const char **)o->into = text;
    } else if (o->kind == OPTION_INT) {
        long value = strtol(text, &end, 10);
        if (end == text || *end || errno)
            return cli_usage(c, "--%s wants a whole number, not \"%s\"", o->name, text) + 1;
        *(long *)o->into = value;
    } else {
        double value = strtod(text, &end);
        if (end == text || *end || errno || !isfinite(value))
            return cli_usage(c, "--%s wants a number, not \"%s\"", o->name, text) + 1;
        *(double *)o->into = value;
    }
    if (o->seen)
        *o->seen = true;
    return 0;
}

static void describe(const cli_option *options)
{
    for (const cli_option *o = options; o->name; o++)
        printf("--%s%s\n", o->name, o->kind == OPTION_FLAG ? "" : "=");
    printf("--help\n");
}

static int check_required(const cli *c, const cli_option *options, const bool *given)
{
    for (size_t i = 0; options[i].name; i++)
        if (options[i].required && !given[i])
            return cli_usage(c, "--%s %s is missing", options[i].name,
                             cli_placeholder(&options[i])) +
                   1;
    return 0;
}

/* Prints what getopt_long refused: in a word of several letters, the wrong letter. */
static int refuse(const cli *c, const cli_option *options, int got, char **argv)
{
    const char *wants = got == ':' ? "wants a" : "takes no";
    if (optopt >= LONG_FIRST)
        return cli_usage(c, "--%s %s value", options[optopt - LONG_FIRST].name, wants);
    if (got == ':')
        return cli_usage(c, "-%c %s value", optopt, wants);
    if (optopt == 'h') /* --help=VALUE: the letter -h itself is never refused */
        return cli_usage(c, "--help %s value", wants);
    if (optopt > ' ' && optopt < 127)
        return cli_usage(c, "no option -%c", optopt);
    /* A long option, or the first byte of a non-ASCII letter, after which bytes of its word are
     * still to come. */
    const char *next = argv[optind];
    bool to_come = optopt && next && next[0] == '-' && strchr(next, optopt);
    const char *word = to_come ? next : argv[optind - 1];
    if (cluster_is_option(word))
        return cli_usage(c, "%s goes before the command: kubeml %.*s NAME %s", word,
                         (int)strcspn(word, "="), word, c->verb->name);
    return cli_usage(c, "no option %s", word);
}

int cli_parse(cli *c, int argc, char **argv, const cli_option *options, int min, int max,
              const char **arguments)
{
    static const cli_option none[] = {{.name = NULL}};
    options = options ? options : none;
    if (c->documents) {
        docs_add_options(c->documents, options);
        return CLI_OK + 1;
    }
    if (c->describe) {
        if (c->before)
            names_print(c, options, argc, argv, max);
        else
            describe(options);
        return CLI_OK + 1;
    }
    struct option longs[CLI_OPTIONS_MAX + 2] = {{0}};
    char shorts[CLI_OPTIONS_MAX * 2 + 4] = ":h";
    bool given[CLI_OPTIONS_MAX] = {false};
    size_t count = 0;
    for (; options[count].name; count++) {
        const cli_option *o = &options[count];
        assert(count < CLI_OPTIONS_MAX);
        longs[count] =
            (struct option){o->name, o->kind != OPTION_FLAG, NULL, LONG_FIRST + (int)count};
        if (o->letter)
            snprintf(shorts + strlen(shorts), 3, "%c%s", o->letter,
                     o->kind == OPTION_FLAG ? "" : ":");
    }
    longs[count] = (struct option){"help", 0, NULL, 'h'};
    opterr = 0;
    optind = 0;
    for (int got; (got = getopt_long(argc, argv, shorts, longs, NULL)) != -1;) {
        if (got == 'h') {
            print_help(c, options);
            return CLI_OK + 1;
        }
        if (got == ':' || got == '?')
            return refuse(c, options, got, argv) + 1;
        size_t i = got >= LONG_FIRST ? (size_t)(got - LONG_FIRST) : 0;
        while (got < LONG_FIRST && options[i].letter != got)
            i++;
        given[i] = true;
        int stop = store_value(c, &options[i], optarg);
        if (stop)
            return stop;
    }
    int left = argc - optind;
    if (left < min)
        return cli_usage(c, "%s is missing", c->verb->arguments) + 1;
    if (left > max)
        return cli_usage(c, "\"%s\" is too much", argv[optind + max]) + 1;
    for (int i = 0; i < left; i++) {
        if (!*argv[optind + i])
            return cli_usage(c, "%s must not be empty", c->verb->arguments) + 1;
        arguments[i] = argv[optind + i];
    }
    return check_required(c, options, given);
}
