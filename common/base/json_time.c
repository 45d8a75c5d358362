/* json_time.c: see json_time.h. */
#include "json_time.h"

#include "clock.h"

void json_set_time(json_t *object, const char *key, int64_t wall_ms)
{
    char text[25];
    if (wall_ms > 0)
        clock_rfc3339(wall_ms, text);
    json_object_set_new(object, key, wall_ms > 0 ? json_string(text) : json_null());
}
