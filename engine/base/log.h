/* One line per event on stderr, as logfmt: time level message key=value...  Any thread may call it: one write(2) a
 * line. Control bytes are escaped, so no text, however hostile, can forge a line. */
#ifndef TANDEM_BASE_LOG_H
#define TANDEM_BASE_LOG_H

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };

void log_set_level(enum log_level level);
int log_parse_level(const char *name); /* "debug".."error" -> level, -1 otherwise */

/* `fmt` is the message and its fields: log_write(LOG_INFO, "listening address=%s port=%d", ...).
 * Control bytes in the result are written as \xNN, so a hostile string cannot forge a line. */
__attribute__((format(printf, 2, 3))) void log_write(enum log_level level, const char *fmt, ...);

#define log_debug(...) log_write(LOG_DEBUG, __VA_ARGS__)
#define log_info(...) log_write(LOG_INFO, __VA_ARGS__)
#define log_warn(...) log_write(LOG_WARN, __VA_ARGS__)
#define log_error(...) log_write(LOG_ERROR, __VA_ARGS__)

#endif
