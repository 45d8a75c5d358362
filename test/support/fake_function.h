/* fake_function.h: a function of a job without an engine: it trains by adding numbers.
 *
 * It speaks the protocol of docs/internals/protocol.md, keeps its model in the job's model store and takes
 * exactly the samples that shard_plan.h gives it: each sample changes every weight, and the result
 * depends on their order, so that a sample twice, never or elsewhere is another SHA-256 in the end.
 */
#ifndef KUBEML_FAKE_FUNCTION_H
#define KUBEML_FAKE_FUNCTION_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { FAKE_CHUNK_SAMPLES = 8, FAKE_TEST_SAMPLES = 40 };

typedef struct fake_function {
    const json_t *access; /* kubeml-ps's `access` message */
    const char *job, *secret;
    int function, incarnation;
    uint64_t seed, train_samples;
    int batch_size, floats;
    /* Where it ends by SIGKILL ("load", "init", "fetch", "train", "publish", "chunk" (of a
     * publication that goes over a socket), "published", "wait", "validate"), at once after its
     * last words, which kubeml-ps reads when it knows of the end ("begun": it has trained a batch,
     * "lastwords": `failed`), or misbehaves ("nan": publishes NaN; "nanloss": says `failed`,
     * "unable": before it is ready; "shape": another layout; "garbage": a message nobody
     * understands; "freeze": SIGSTOP in training). With a device it also ends at "lead" (asked to),
     * "sealed" (has said so), "average" and "averaged" (before and after the mean is published), or
     * is "walled" (cannot lend), refuses ("refuse" to lead, "refuse_average"), stops there
     * ("freeze_average"), or what it lent is something else ("spoiled"). NULL: not at all. */
    const char *fault;
    int fault_epoch, fault_round;
    /* Models lie in files of this folder, which are to each other what a GPU's memory is; every
     * mean and every model that was taken from there adds a byte to the files "averaged" and
     * "adopted". NULL: there is no GPU. */
    const char *device;
    /* Each function is on a GPU of its own instead, and they are averaged by what is to them NCCL:
     * files too. It also ends at "identify", "connect" (in the middle of it) and "reduce" (of the
     * sum), and stops there ("freeze_connect", "freeze_reduce"); meets errors of NCCL's: once
     * ("error_connect", "error_reduce"), always ("broken"), before all that ("missing"); or is on
     * function 0's GPU ("pair"). */
    bool nccl;
    bool needs_losses; /* without them, or with them where it does not, it ends */
    pid_t ps; /* what a function with last words stops; who reports its end lets it go on */
} fake_function;

/* Until it is told to stop or kubeml-ps goes. Returns the exit status. */
int fake_function_run(const fake_function *f);

#endif
