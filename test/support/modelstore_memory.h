/* modelstore_memory.h: a model store in this process's memory, for tests. Programs know none. */
#ifndef KUBEML_TEST_MODELSTORE_MEMORY_H
#define KUBEML_TEST_MODELSTORE_MEMORY_H

/* Makes modelstore_open know the kind "memory". */
void modelstore_memory_add(void);

#endif
