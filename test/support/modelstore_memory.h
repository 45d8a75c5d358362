/* modelstore_memory.h: a model store in this process's memory, for tests. Programs have none. */
#ifndef KUBEML_TEST_MODELSTORE_MEMORY_H
#define KUBEML_TEST_MODELSTORE_MEMORY_H

/* Adds the kind "memory" to modelstore_open. */
void modelstore_memory_add(void);

#endif
