/* modelstore_table.h: the implementations behind modelstore.h, for modelstore.c, and for a program
 * that adds another implementation. */
#ifndef KUBEML_MODELSTORE_TABLE_H
#define KUBEML_MODELSTORE_TABLE_H

#include "modelstore.h"

extern const modelstore_ops modelstore_database; /* Redis with kubeml-redis, which merges */
extern const modelstore_ops modelstore_server;   /* plain Redis; the owner merges */

/* Adds an implementation, found by its name after the others: tests have one in memory. Call it
 * before the first model store is opened. */
void modelstore_add(const modelstore_ops *ops);

#endif
