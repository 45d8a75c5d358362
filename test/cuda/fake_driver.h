/* fake_driver.h: what tests set and see of the fake device. */
#ifndef KUBEML_FAKE_DRIVER_H
#define KUBEML_FAKE_DRIVER_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif
#include "cuda/driver.h"

void fake_memory(size_t bytes); /* of the device; 8 GiB */
size_t fake_memory_used(void);
/* Which way seems the fastest: 0 "direct", 1 "reversed", -1 our own kernel, 2 now this now that. */
void fake_favourite(int offer);
long fake_measurements(void);
long fake_replays(void);
long fake_copies_in(void); /* from the host's memory */
long fake_opens(void); /* devices made */
void fake_gpus(int count); /* 1 */
long fake_sums(void);  /* over several devices */
/* Memory is not shared between processes from now on: what is open stays so. */
void fake_refuse_sharing(bool refuse);
int fake_opened(void); /* handles that are open */
/* Calls `what` once, in the copy, replay or wait after that many of them: what happens in the middle of something. */
void fake_interrupt(int calls, void (*what)(void *user), void *user);
/* The device fails for good after that many copies, replays and waits; -1: never. */
void fake_fail_after(int calls);

#ifdef __cplusplus
}
#endif
#endif
