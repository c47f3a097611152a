/* How the daemon has its memory: jemalloc's settings, and the allocators of libraries. */
#ifndef TANDEM_SERVER_CLI_SERVE_MEMORY_H
#define TANDEM_SERVER_CLI_SERVE_MEMORY_H

/* Libraries that would end the process, or blame the request, when memory is short get it as the daemon does: never
 * refused.  Once, before there are other threads. */
void serve_memory_open(void);

#endif
