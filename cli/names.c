/* names.c: prints the words that may stand at a place of the command line, a word a line, for the
 * shell completion: an option's words, and names and IDs from the platform.
 *
 * The user waits at a prompt: printing takes NAMES_S at most, and errors are not printed. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "common/contract/job_options.h"

enum { NAMES_S = 2, CONNECT_MS = 500 };

/* Options with known values, besides the options of the table of job_options.h. */
static const struct {
    const char *option, *words; /* words NULL: the values are the rows of the list at `path` */
    const char *path;
} sources[] = {
    {"layout", "auto chw hwc", NULL},
    {"stem", "auto cifar imagenet", NULL},
    {"gpus", "auto all none", NULL},
    {"gpu-policy", "best-fit spread pack", NULL},
    {"function", NULL, "/function"},
    {"dataset", NULL, "/dataset"},
    {"model", NULL, "/zoo"},
    {"init", NULL, "/tasks?state=all"},
    {"network", NULL, "/tasks?state=all"},
    {"id", NULL, "/tasks?state=all"},
};

static void print_words(const char *words)
{
    for (size_t n; *words; words += n + strspn(words + n, " ")) {
        n = strcspn(words, " ");
        printf("%.*s\n", (int)n, words);
    }
}

/* Whether a word is safe: bash expands the words that it gets, so only plain characters pass. */
static bool is_plain(const char *name)
{
    for (; name && *name; name++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-", *name))
            return false;
    return name;
}

/* Prints the names or IDs on the first page of a list. */
static void print_list(const cli *c, const char *path)
{
    http_call call = {.method = "GET", .connect_ms = CONNECT_MS, .total_ms = NAMES_S * 1000};
    http_reply reply;
    json_t *rows = NULL, *row;
    size_t i;
    if (cli_call_once(c, &call, path, &reply, NULL) == 0)
        rows = http_reply_json(&reply, NULL);
    http_reply_free(&reply);
    json_array_foreach (rows, i, row) {
        const json_t *name = json_object_get(row, "name");
        const char *text = json_string_value(name ? name : json_object_get(row, "id"));
        if (is_plain(text))
            puts(text);
    }
    json_decref(rows);
}

/* The list of the verb's objects; NULL: the verb has no list, or creates a new object. */
static const char *list_of_verb(const cli_verb *v)
{
    const char *space = strchr(v->name, ' ');
    if (space && strcmp(space, " create") == 0)
        return NULL;
    return strncmp(v->name, "dataset ", 8) == 0    ? "/dataset"
           : strncmp(v->name, "function ", 9) == 0 ? "/function"
                                                   : NULL;
}

static void print_values(const cli *c, const cli_option *o)
{
    const char *path = strcmp(o->name, "name") == 0 ? list_of_verb(c->verb) : NULL;
    const job_option *of_job = job_option_of_flag(o->name);
    if (o->kind == OPTION_FORMAT)
        print_words(o->value);
    for (size_t i = 0; of_job && of_job->words[i]; i++)
        puts(of_job->words[i]);
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
        if (strcmp(sources[i].option, o->name) != 0)
            continue;
        path = sources[i].path;
        if (sources[i].words)
            print_words(sources[i].words);
    }
    if (path)
        print_list(c, path);
}

static void print_arguments(const cli *c)
{
    const char *what = c->verb->arguments, *path = list_of_verb(c->verb);
    if (strcmp(what, "NAME") == 0 && path)
        print_list(c, path);
    if (strncmp(what, "ID", 2) == 0)
        print_list(c, "/tasks?state=all");
    if (strstr(what, "FUNCTION"))
        print_list(c, "/function");
    if (strcmp(what, "[bash]") == 0)
        puts("bash");
}

/* The option that `word` names, if it wants a value; else NULL. */
static const cli_option *asking(const cli_option *options, const char *word)
{
    for (const cli_option *o = options; o->name; o++) {
        bool letter = o->letter && word[0] == '-' && word[1] == o->letter && !word[2];
        bool name = strncmp(word, "--", 2) == 0 && strcmp(word + 2, o->name) == 0;
        if ((letter || name) && o->kind != OPTION_FLAG)
            return o;
    }
    return NULL;
}

/* Counts the positional arguments. bash splits --name=x into three words. */
static int count_arguments(const cli_option *options, int argc, char **argv)
{
    int count = 0;
    for (int i = 1; i < argc; i++) {
        bool apart = asking(options, argv[i]);
        if (apart && i + 1 < argc && strcmp(argv[i + 1], "=") == 0)
            i++;
        i += apart;
        count += !apart && argv[i][0] != '-';
    }
    return count;
}

static void give_up(int number)
{
    (void)number;
    _exit(CLI_OK);
}

void names_print(const cli *c, const cli_option *options, int argc, char **argv, int max)
{
    const cli_option *o = asking(options, c->before);
    signal(SIGALRM, give_up);
    alarm(NAMES_S);
    if (o)
        print_values(c, o);
    else if (count_arguments(options, argc, argv) < max)
        print_arguments(c);
}
