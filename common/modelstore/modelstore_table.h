/* modelstore_table.h: the implementations behind modelstore.h, for modelstore.c alone. */
#ifndef KUBEML_MODELSTORE_TABLE_H
#define KUBEML_MODELSTORE_TABLE_H

#include "modelstore.h"

extern const modelstore_ops modelstore_database; /* Redis with our module, which merges */
extern const modelstore_ops modelstore_server;   /* plain Redis; the owner merges */
extern const modelstore_ops modelstore_memory;   /* in this process, for tests and the simulator */

#endif
