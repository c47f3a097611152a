/* The report of the end: on SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT (a failed CHECK, no memory, the service
 * manager's watchdog) one text goes to stderr and into a file, and then the signal takes its course, so that exit
 * status and core dump are what they would be without us.
 *
 * The text has what a stranger needs: version and build id, the signal and where, the stack of the thread that it
 * met, as offsets into the files it runs (scripts/symbolise turns these into names), the requests of the newest step and
 * the last steps (base/flight.h), and the configuration, prepared beforehand without secrets.  Registers, the other
 * threads and all else are the core dump's.
 *
 * SIGUSR2, from anybody, has each thread write its own stack to stderr, and the process goes on: of one that hangs there
 * is no core dump.
 *
 * The handlers allocate nothing and take no lock but the unwinder's, which is loaded beforehand.  Sanitizers have
 * reports of their own: in their builds everything here does nothing. */
#ifndef TANDEM_BASE_CRASH_H
#define TANDEM_BASE_CRASH_H

/* The exit status (EX_IOERR of sysexits.h) where SIGBUS says that a mapped file (base/mapped.h) became shorter or
 * cannot be read: a line on stderr names it, and there is no report. */
enum { CRASH_EXIT_FILE = 74 };

/* Installs the handlers.  Reports go into DIR/crashes, made when the first one is written; NULL: to stderr only.  Main
 * thread, once, before there are others; the strings are copied. */
void crash_open(const char *dir, const char *version);
/* The configuration's text, a line each; what was given before is replaced.  Main thread. */
void crash_config(const char *text);
/* The files the process has mapped, as they are now; again after something was loaded.  Main thread. */
void crash_modules(void);
/* A stack for the handlers, so that running out of the thread's own is reported, too.  By the thread itself, as often
 * as it likes: a thread of libuv's pool, whose beginning is not ours, with its work.  crash_open does it for its
 * caller. Freed by crash_thread_end. */
void crash_thread_begin(void);
void crash_thread_end(void);

/* Stacks of all threads to stderr under the heading `why`, as SIGUSR2 does.  Any thread; does not wait for them.
 */
void crash_stacks(const char *why);

#endif
