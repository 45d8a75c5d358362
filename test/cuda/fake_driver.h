/* fake_driver.h: what tests set and see of the fake device. */
#ifndef KUBEML_FAKE_DRIVER_H
#define KUBEML_FAKE_DRIVER_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif
#include "kernels/cuda/driver.h"

void fake_memory(size_t bytes); /* of the device; 8 GiB */
size_t fake_memory_used(void);
/* Which way seems the fastest: 0 "direct", 1 "reversed", -1 our own kernel, 2 now this now that. */
void fake_favourite(int offer);
long fake_measurements(void);
long fake_listings(void); /* how often it was asked for all ways of a task */
long fake_captures(void); /* graphs begun */
long fake_branches(void); /* of graphs that were captured; each runs as late as it may */
/* That way fails when it is run, and the next wait tells of it too, as CUDA's errors do; -1: none.
 */
enum { FAKE_EVERY = 2 };
void fake_break(int offer);
/* That way works, but spoils a graph that it is captured in, as one does that allocates or waits; -1:
 * none. */
void fake_break_capture(int offer);
/* As a GPU whose clocks are low until it has worked for so long: what is timed takes 20 times as
 * long. */
void fake_asleep(int us);
/* How many of the libraries' ways this process has run for the first time while a graph was
 * captured: they load and allocate then, which a capture does not bear. 0 from the call on. */
long fake_first_runs_captured(void);
/* Ways that a device has run for the first time, of each task; and how long each of the libraries'
 * ways takes to start (0). */
long fake_first_runs(void);
void fake_slow_start(int ms);
/* Whether graphs seem the faster the fewer launches they have (the default), or the more. */
void fake_favour_few_launches(bool few);
long fake_launches(void); /* of the graph that was replayed last */
long fake_replays(void);
long fake_copies_in(void); /* from the host's memory */
long fake_bytes_in(void);  /* by those */
long fake_bytes_out(void); /* to the host's memory */
long fake_opens(void); /* devices made */
void fake_gpus(int count); /* 1 */
void fake_away(bool away); /* it does not answer who looks for it */
long fake_sums(void);  /* over several devices */
/* Memory is not shared between processes from now on: what is open stays so. */
void fake_refuse_sharing(bool refuse);
int fake_opened(void); /* handles that are open */
/* Calls `what` once, in the copy, replay or wait (also for an event) after that many of them: what
 * happens in the middle of something. */
void fake_interrupt(int calls, void (*what)(void *user), void *user);
/* Calls `what` in the n-th allocation from now on, when it has its memory. */
void fake_at_alloc(int n, void (*what)(void));
/* The device fails for good after that many copies, replays and waits; -1: never. */
void fake_fail_after(int calls);

#ifdef __cplusplus
}
#endif
#endif
