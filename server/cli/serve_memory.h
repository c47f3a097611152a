/* Memory settings of the daemon: jemalloc's options, and the allocators of libraries. */
#ifndef TANDEM_SERVER_CLI_SERVE_MEMORY_H
#define TANDEM_SERVER_CLI_SERVE_MEMORY_H

/* Gives libraries that would abort, or report an invalid request, when memory is short the daemon's own allocator,
 * which never returns NULL.  Once, before other threads start. */
void serve_memory_open(void);

#endif
