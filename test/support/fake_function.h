/* fake_function.h: a function of a job without an engine: it trains by adding numbers.
 *
 * It speaks the protocol of docs/internals/protocol.md, keeps its model in the job's model store
 * and takes exactly the samples that shard_plan.h gives it. Each sample changes every weight, and
 * the result depends on their order: a sample trained twice, never or elsewhere gives another
 * SHA-256 in the end. */
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
    /* NULL: none. The function ends by SIGKILL:
     *   "load", "init", "fetch", "train", "publish", "published", "wait", "validate"
     *   "chunk"      at a chunk of a publication over a socket
     * It ends at once after a last frame, which kubeml-ps reads when it knows of the end:
     *   "begun"      has trained a batch
     *   "lastwords"  `failed`
     * It misbehaves:
     *   "nan"        publishes NaN
     *   "nanloss"    sends `failed`
     *   "unable"     sends `failed` before it is ready
     *   "shape"      has another layout
     *   "garbage"    sends a message of an unknown type
     *   "freeze"     SIGSTOP in training
     * With a device it also ends by SIGKILL:
     *   "lead"       when it is asked to be the root
     *   "sealed"     after it has reported its fingerprint
     *   "average", "averaged"  before and after it publishes the mean
     * or:
     *   "walled"     cannot give a handle of its model
     *   "refuse", "refuse_average"  refuses to be the root, or to average
     *   "freeze_average"  SIGSTOP there
     *   "spoiled"    the model behind its handle is another one */
    const char *fault;
    int fault_epoch, fault_round;
    /* Models lie in files of this folder, which stands for a GPU's memory. Every mean, and every
     * model that was taken from there, adds a byte to the files "averaged" and "adopted". NULL:
     * there is no GPU. */
    const char *device;
    /* Each function is on a GPU of its own instead. They average by a stand-in for NCCL, which uses
     * files, too. More faults:
     *   "identify", "connect", "reduce"  ends there; "connect", "reduce" half-way
     *   "freeze_connect", "freeze_reduce"  SIGSTOP there
     *   "error_connect", "error_reduce"  an error of NCCL, once
     *   "broken"     an error of NCCL, always
     *   "missing"    there is no NCCL
     *   "pair"       it is on function 0's GPU */
    bool nccl;
    bool needs_losses; /* ends if a task lacks them, or has them without need */
    pid_t ps; /* stopped before a last frame; the process that reports the end continues it */
} fake_function;

/* Runs until it is sent `stop` or kubeml-ps has ended. Returns the exit status. */
int fake_function_run(const fake_function *f);

#endif
