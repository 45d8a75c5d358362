/* json_time.h: a moment as a field of a JSON object. */
#ifndef KUBEML_JSON_TIME_H
#define KUBEML_JSON_TIME_H

#include <jansson.h>
#include <stdint.h>

/* Sets the field to the RFC 3339 text of a wall clock's time; 0 or less becomes null. */
void json_set_time(json_t *object, const char *key, int64_t wall_ms);

#endif
