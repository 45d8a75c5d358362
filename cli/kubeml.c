/* kubeml.c: the command line's entry: finds the verb and runs it. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

static bool starts_with_word(const char *name, const char *word)
{
    size_t len = strlen(word);
    return strncmp(name, word, len) == 0 && (name[len] == ' ' || name[len] == '\0');
}

static void print_overview(FILE *to)
{
    fprintf(
        to,
        "kubeml trains deep networks with serverless functions: Local SGD on shared GPUs or "
        "cores.\n\nusage: kubeml [--context NAME] COMMAND [options]; kubeml COMMAND --help says more\n\n");
    for (const cli_verb *v = cli_verbs; v->name; v++)
        fprintf(to, "  %-18s %s\n", v->name, v->summary);
    fprintf(
        to,
        "\nfor a platform on Kubernetes, before the command; any of them wins over KUBEML_URL:\n"
        "  --context NAME     of the kubeconfig (its current one)\n"
        "  --namespace NAME   where the platform is (the context's)\n"
        "  --kubeconfig FILE  (KUBECONFIG, or ~/.kube/config)\n"
        "  --service NAME     the platform's Service (the one there is)\n"
        "\nenvironment:\n"
        "  KUBEML_URL         the platform's API (http://127.0.0.1:10100)\n"
        "  KUBEML_TOKEN       its bearer token (on Kubernetes: read from its Secret)\n"
        "  KUBEML_HOME        where the local platform keeps its files (~/.kubeml)\n"
        "  KUBEML_LOG         of `kubeml up` and `kubeml run`: debug, info, warn or error\n"
        "\nexit status: 0 done, 1 failed, 2 wrong usage\n");
}

static bool is_group(const char *noun)
{
    for (const cli_verb *v = cli_verbs; v->name; v++)
        if (starts_with_word(v->name, noun))
            return true;
    return false;
}

/* `kubeml dataset` alone lists that noun's verbs. */
static void print_group(FILE *to, const char *noun)
{
    int found = 0;
    for (const cli_verb *v = cli_verbs; v->name; v++)
        if (starts_with_word(v->name, noun))
            fprintf(to, found++ ? "       kubeml %-18s %s\n" : "usage: kubeml %-18s %s\n", v->name,
                    v->summary);
}

static bool is_help(const char *word)
{
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

/* `kubeml help train` is `kubeml train --help`. */
static void help_last(int argc, char **argv)
{
    static char help[] = "--help";
    memmove(argv + 1, argv + 2, (size_t)(argc - 2) * sizeof *argv);
    argv[argc - 1] = help;
}

/* Replaces `fn`, the first KubeML's short name, by `function`. */
static void name_whole(char **word)
{
    static char function[] = "function";
    if (strcmp(*word, "fn") == 0)
        *word = function;
}

static const cli_verb *find_verb(int argc, char **argv, int *words)
{
    for (const cli_verb *v = cli_verbs; v->name; v++) {
        const char *space = strchr(v->name, ' ');
        if (!space && strcmp(v->name, argv[1]) == 0) {
            *words = 1;
            return v;
        }
        if (space && argc > 2 && starts_with_word(v->name, argv[1]) &&
            strcmp(space + 1, argv[2]) == 0) {
            *words = 2;
            return v;
        }
    }
    return NULL;
}

static bool is_local(const cli_verb *v)
{
    static const char *const local[] = {"up", "down", "run"};
    for (size_t i = 0; i < sizeof local / sizeof *local; i++)
        if (strcmp(v->name, local[i]) == 0)
            return true;
    return false;
}

/* Turns a success into a failure if standard output could not be written (a full disk, a closed
 * pipe). Prints nothing about a closed pipe, because its reader knows. */
static int ended(int status)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout))
        return status;
    if (errno != EPIPE)
        fprintf(stderr, "kubeml: standard output: %s\n",
                errno ? strerror(errno) : "not all of it could be written");
    return CLI_FAILED;
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    const char *url = getenv("KUBEML_URL");
    static cluster_access cluster;
    static char version[] = "version";
    cli c = {.url = url && *url ? url : "http://127.0.0.1:10100", .token = getenv("KUBEML_TOKEN"),
             .cluster = &cluster};
    if (argc > 1 && strcmp(argv[1], "__options") == 0) {
        c.describe = true; /* for the shell completion: prints the options of the given verb */
        argv++;
        argc--;
    } else if (argc > 2 && strcmp(argv[1], "__names") == 0) {
        c.describe = true; /* prints the words that may follow argv[2], the line's last word */
        c.before = argv[2];
        argv += 2;
        argc -= 2;
    }
    if (argc > 2 && strcmp(argv[1], "__docs") == 0)
        return ended(docs_print(argv[2]));
    int options = cluster_options(&cluster, argc - 1, argv + 1);
    if (options < 0)
        return CLI_USAGE;
    argv += options;
    argc -= options;
    if (cluster.wanted)
        c.url = cluster.context ? cluster.context : "the kubeconfig's cluster";
    if (argc < 2 && c.before)
        return CLI_OK;
    if (argc < 2 && c.describe) {
        cluster_describe();
        puts("--help\n--version");
        return ended(CLI_OK);
    }
    if (argc < 2) {
        print_overview(stderr);
        return CLI_USAGE;
    }
    if (strcmp(argv[1], "help") == 0)
        help_last(argc, argv);
    if (is_help(argv[1])) {
        print_overview(stdout);
        return ended(CLI_OK);
    }
    if (strcmp(argv[1], "--version") == 0)
        argv[1] = version;
    name_whole(&argv[1]);
    int words = 0;
    c.verb = find_verb(argc, argv, &words);
    if (c.verb && cluster.wanted && is_local(c.verb)) {
        fprintf(stderr, "kubeml: %s is about this machine, not about a cluster\n", c.verb->name);
        return CLI_USAGE;
    }
    if (c.verb) {
        int status = c.verb->run(&c, argc - words, argv + words);
        return ended(status);
    }
    if (is_group(argv[1])) {
        if (argc > 2 && is_help(argv[2])) {
            print_group(stdout, argv[1]);
            return ended(CLI_OK);
        }
        if (argc > 2 && argv[2][0] != '-')
            fprintf(stderr, "kubeml: %s has no command \"%s\"\n", argv[1], argv[2]);
        print_group(stderr, argv[1]);
        return CLI_USAGE;
    }
    fprintf(stderr,
            argv[1][0] == '-' ? "kubeml: no option %s; kubeml --help lists them\n"
                              : "kubeml: no command \"%s\"; kubeml --help lists them\n",
            argv[1]);
    return CLI_USAGE;
}
