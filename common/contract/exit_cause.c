/* exit_cause.c: see exit_cause.h. */
#include "exit_cause.h"

#include <signal.h>
#include <string.h>

enum { STATUS_NOT_RUN = 126 };

static const char crashed[] = "Crashed";

static bool is_fault(int signal)
{
    static const int faults[] = {SIGSEGV, SIGBUS,  SIGFPE, SIGILL,
                                 SIGABRT, SIGTRAP, SIGSYS, SIGXFSZ};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        if (faults[i] == signal)
            return true;
    return false;
}

const char *exit_cause_reason(int status, int signal, bool runs_user_code)
{
    if (signal)
        return is_fault(signal) ? crashed : "Killed";
    bool own = status <= 0 || status == EXIT_CAUSE_GAVE_UP || status >= STATUS_NOT_RUN;
    return runs_user_code && !own ? crashed : "Exited";
}

bool exit_cause_is_crash(const char *reason)
{
    return reason && strcmp(reason, crashed) == 0;
}

bool exit_cause_is_disruption(const char *reason)
{
    static const char *const known[] = {"Deleted",
                                        "NodeLost",
                                        "Evicted",
                                        "EvictionByEvictionAPI",
                                        "PreemptionByScheduler",
                                        "DeletionByTaintManager",
                                        "DeletionByPodGC",
                                        "TerminationByKubelet",
                                        EXIT_CAUSE_CONTROLLER_RESTARTED};
    for (size_t i = 0; reason && i < sizeof known / sizeof *known; i++)
        if (strcmp(reason, known[i]) == 0)
            return true;
    return false;
}
