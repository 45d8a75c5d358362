/* log.h: one line a message on stderr: time, level, component, message with key=value.
 *
 * The context (job, epoch, round) belongs to the calling thread and stands in each of its lines
 * until it is changed. Newlines and control bytes in a message are escaped, so that one call is one
 * line and a name from outside cannot forge a second line. Never log a secret or weights. */
#ifndef KUBEML_LOG_H
#define KUBEML_LOG_H

typedef enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR } log_level;

void log_open(const char *component); /* level from KUBEML_LOG (debug|info|warn|error) */
void log_set_level(log_level level);
/* Sets the thread's context. Takes epoch and round as the code counts them, from 0; a line shows
 * them counted from 1, like the CLI's tables. job NULL: no context; -1: not shown. */
void log_context(const char *job, int epoch, int round);
void log_write(log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define log_debug(...) log_write(LOG_DEBUG, __VA_ARGS__)
#define log_info(...)  log_write(LOG_INFO, __VA_ARGS__)
#define log_warn(...)  log_write(LOG_WARN, __VA_ARGS__)
#define log_error(...) log_write(LOG_ERROR, __VA_ARGS__)

#endif
