/* cmd_logs.c: kubeml logs, kubeml completion, kubeml version. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "common/base/version.h"

int cmd_logs(cli *c, int argc, char **argv)
{
    const char *id = NULL;
    bool follow = false;
    const cli_option more[] = {{"follow", 'f', OPTION_FLAG, NULL, "continue until the job ends",
                                &follow, NULL, false, false},
                               {.name = NULL}};
    OBJECT_NAME(c, argc, argv, &object_job, more, &id);
    if (follow)
        return follow_log(c, id);
    return cli_print(c, cli_path(object_job.path, id, "/logs"), "text/plain", true, 0);
}

/* Verbs come from the table of verbs; a verb's options and their values come from calls of the
 * program. bash takes "=" for a word of its own. Without a reply bash completes file names. */
static const char completion_tail[] =
    "_kubeml() {\n"
    "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} verb words= option\n"
    "    local given=(\"${COMP_WORDS[@]:1:COMP_CWORD-1}\") platform=()\n"
    "    [[ $word == = ]] && word=\n"
    "    [[ $before == = ]] && before=${COMP_WORDS[COMP_CWORD-2]}\n"
    "    [[ ${given[0]} == help ]] && given=(\"${given[@]:1}\")\n"
    "    while [[ ${given[0]} == --* ]]; do # of which platform, before the command\n"
    "        option=${given[0]}\n"
    "        [[ ${given[1]} == = ]] && given=(\"${given[@]:1}\")\n"
    "        platform+=(\"$option\" \"${given[1]}\")\n"
    "        given=(\"${given[@]:2}\")\n"
    "    done\n"
    "    [[ ${given[0]} == fn ]] && given[0]=function\n"
    "    local line=${given[*]}\n"
    "    if [[ $word == -* ]]; then\n"
    "        words=$(kubeml __options $line 2>/dev/null)\n"
    "    elif [[ $before == --context ]]; then\n"
    "        words=$(kubectl config get-contexts -o name 2>/dev/null)\n"
    "    else\n"
    "        for verb in \"${_kubeml_verbs[@]}\"; do\n"
    "            [[ -z $line && $before != -* ]] && words+=\" ${verb%% *}\"\n"
    "            [[ -n $line && $verb == \"$line \"* ]] && words+=\" ${verb##* }\"\n"
    "        done\n"
    "        [[ -n $line && -z $words ]] &&\n"
    "            words=$(kubeml __names \"$before\" \"${platform[@]}\" $line 2>/dev/null)\n"
    "    fi\n"
    "    COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
    "    [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace\n"
    "}\n"
    "complete -o default -F _kubeml kubeml\n";

int cmd_completion(cli *c, int argc, char **argv)
{
    const char *shell = "bash";
    CLI_PARSE(c, argc, argv, NULL, 0, 1, &shell);
    if (strcmp(shell, "bash") != 0)
        return cli_usage(c, "only bash, not \"%s\"", shell);
    printf("_kubeml_verbs=(");
    for (const cli_verb *v = cli_verbs; v->name; v++)
        printf(" '%s'", v->name);
    printf(" )\n%s", completion_tail);
    return CLI_OK;
}

int cmd_version(cli *c, int argc, char **argv)
{
    CLI_PARSE(c, argc, argv, NULL, 0, 0, NULL);
    printf("kubeml %s\n", KUBEML_VERSION);
    json_t *about = NULL;
    err e = ERR_INIT;
    if (cli_call(c, "GET", "/version", NULL, &about, &e) == 0)
        printf("platform %s at %s\n", json_string_value(json_object_get(about, "version")) ?: "?",
               c->url);
    else
        printf("no platform at %s%s%s\n", c->url, e.os_errno == ECONNREFUSED ? "" : ": ",
               e.os_errno == ECONNREFUSED ? "" : e.message);
    json_decref(about);
    return CLI_OK;
}
