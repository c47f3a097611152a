/* The crash report: on SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT (a failed CHECK, out of memory, the service
 * manager's watchdog) a text is written to stderr and to a file.  Then the signal's default action runs, so that exit
 * status and core dump are the same as without a handler.
 *
 * The text has version and build id, the signal and its address, the stack of the thread that received it, as offsets
 * into its object files (scripts/symbolise turns these into names), the requests of the newest step and the last steps
 * (base/flight.h), and the configuration, prepared beforehand without secrets.  Registers and the other threads are in
 * the core dump only.
 *
 * SIGUSR2, from any sender, makes each thread write its stack to stderr, and the process continues.  This is for a
 * process that hangs, which leaves no core dump.
 *
 * The handlers allocate nothing and take no lock but the unwinder's, which is loaded beforehand.  Sanitizers write
 * their own reports: in their builds all functions here do nothing. */
#ifndef TANDEM_BASE_CRASH_H
#define TANDEM_BASE_CRASH_H

/* The exit status (EX_IOERR of sysexits.h) where SIGBUS was caused by a mapped file (base/mapped.h) that was truncated
 * or cannot be read: a line on stderr names it, and no report is written. */
enum { CRASH_EXIT_FILE = 74 };

/* Installs the handlers.  Reports go to DIR/crashes, created with the first one; NULL: to stderr only.  Main thread,
 * once, before other threads are started; the strings are copied. */
void crash_open(const char *dir, const char *version);
/* Sets the configuration's text, one line per setting; replaces the previous one.  Main thread. */
void crash_config(const char *text);
/* Records the object files mapped into the process; call again after loading another.  Main thread. */
void crash_modules(void);
/* Allocates a signal stack for the calling thread, so that a stack overflow is reported as well.  May be called
 * repeatedly: threads of libuv's pool, which libuv starts, call it with each work item.  crash_open calls it for its
 * caller.  Freed by crash_thread_end. */
void crash_thread_begin(void);
void crash_thread_end(void);

/* Stacks of all threads to stderr under the heading `why`, as SIGUSR2 does.  Any thread; does not wait for them.
 */
void crash_stacks(const char *why);

#endif
