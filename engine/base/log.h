/* One line per event on stderr, as logfmt or as JSON.  Any thread may call it; each line is one write(2).
 *
 *     time=2026-01-31T12:00:00.000Z level=info msg=listening address=127.0.0.1 port=8080
 *     {"time":"2026-01-31T12:00:00.000Z","level":"info","msg":"listening","address":"127.0.0.1","port":"8080"}
 *
 * Logged values cannot forge a line or a field: they are quoted and escaped like JSON strings (control bytes as \u00XX,
 * invalid UTF-8 as U+FFFD), and fields are determined by the format, which is a constant of the program. */
#ifndef TANDEM_BASE_LOG_H
#define TANDEM_BASE_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };
enum log_format { LOG_LOGFMT, LOG_JSON };

/* May change at any time, from any thread. */
void log_set_level(enum log_level level);
int log_parse_level(const char *name); /* "debug".."error" -> level, -1 otherwise */
void log_set_format(enum log_format);
enum log_format log_get_format(void);
bool log_wants(enum log_level);

/* `fmt` is the message and its fields: log_write(LOG_INFO, "listening address=%s port=%d", ...).  A field begins where
 * the format has a space, a name of lower-case letters, digits and '_', and '='; its value may be quoted.  At most
 * LOG_FIELDS fields; text longer than 1023 bytes is truncated and has no fields, only a message. */
enum { LOG_FIELDS = 16 };
__attribute__((format(printf, 2, 3))) void log_write(enum log_level level, const char *fmt, ...);

#define log_debug(...) log_write(LOG_DEBUG, __VA_ARGS__)
#define log_info(...) log_write(LOG_INFO, __VA_ARGS__)
#define log_warn(...) log_write(LOG_WARN, __VA_ARGS__)
#define log_error(...) log_write(LOG_ERROR, __VA_ARGS__)

/* ---- a line with typed fields ------------------------------------------------------------------------------------ */

/* Lives on the caller's stack.  Fields that do not fit are omitted; strings are first truncated to LOG_VALUE bytes. */
enum { LOG_LINE = 8192, LOG_VALUE = 1024 };
struct log_line {
    enum log_format format;
    size_t n;
    char text[LOG_LINE];
};

void log_begin(struct log_line *, enum log_level, const char *msg);
void log_text(struct log_line *, const char *name, const char *value); /* NULL: the field is omitted */
void log_bytes(struct log_line *, const char *name, const char *value, size_t n);
void log_number(struct log_line *, const char *name, long long value);
void log_decimal(struct log_line *, const char *name, double value); /* 3 decimals; not finite: omitted */
void log_end(struct log_line *);                                     /* writes the line */

#endif
