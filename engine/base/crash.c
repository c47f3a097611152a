#include "engine/base/crash.h"

#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/flight.h"
#include "engine/base/mapped.h"

#include <elf.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/ucontext.h>
#include <time.h>
#include <unistd.h>

enum { MODULES = 64, FRAMES = 64, CONFIG_BYTES = 16384, ALT_STACK = 64 * 1024, HANDLER_SECONDS = 10 };

struct module {
    uintptr_t bias, low, high; /* an address in [low, high) has the offset (address - bias) in the file */
    char path[256], build_id[48];
};

static struct {
    bool installed;
    char dir[1024], version[64];
    char config[CONFIG_BYTES];
    struct module modules[MODULES];
    int n_modules;
    uint64_t started;
    _Atomic int dying;   /* the thread that writes the crash report */
    volatile int signal; /* the fatal signal */
} crash;

/* ---- writing, with what a signal handler may use --------------------------------------------------------------- */

struct crash_out {
    int fd[2]; /* -1: none */
    size_t n;
    char text[4096]; /* holds a stack of usual depth, so that it is one write and the output of threads is not
                        interleaved */
};

static void out_flush(struct crash_out *o)
{
    for (int i = 0; i < 2; i++) {
        const char *p = o->text;
        size_t left = o->n;
        while (o->fd[i] >= 0 && left) {
            ssize_t done = write(o->fd[i], p, left);
            if (done < 0 && errno == EINTR) continue;
            if (done <= 0) break;
            p += done, left -= (size_t)done;
        }
    }
    o->n = 0;
}

static void put(struct crash_out *o, const char *s)
{
    for (; *s; s++) {
        if (o->n >= sizeof o->text) out_flush(o);
        o->text[o->n++] = *s;
    }
}

/* at least `width` digits */
static void put_number(struct crash_out *o, uint64_t v, unsigned base, int width)
{
    char digits[24], *p = digits + sizeof digits;
    *--p = 0;
    do {
        *--p = "0123456789abcdef"[v % base];
        v /= base;
        width--;
    } while (v || width > 0);
    put(o, p);
}

static void put_int(struct crash_out *o, int64_t v)
{
    if (v < 0) put(o, "-");
    put_number(o, v < 0 ? (uint64_t)-v : (uint64_t)v, 10, 1);
}

static void put_hex(struct crash_out *o, uint64_t v)
{
    put(o, "0x");
    put_number(o, v, 16, 1);
}

static void put_field(struct crash_out *o, const char *name, int64_t v)
{
    put(o, name);
    put_int(o, v);
}

/* nanoseconds as "1.234" */
static void put_ns(struct crash_out *o, uint64_t ns, uint64_t unit)
{
    put_number(o, ns / unit, 10, 1);
    put(o, ".");
    put_number(o, ns % unit / (unit / 1000), 10, 3);
}

/* "20261121T210405Z"; gmtime may take a lock.  The days of the civil calendar are Howard Hinnant's civil_from_days. */
static void time_text(char out[static 17], time_t t)
{
    int64_t days = t / 86400 + 719468, rest = t % 86400;
    int64_t era = days / 146097, doe = days - era * 146097;
    int64_t yoe = (doe - doe / 1460 + doe / 36524 - doe / 146096) / 365;
    int64_t doy = doe - (365 * yoe + yoe / 4 - yoe / 100), mp = (5 * doy + 2) / 153;
    int64_t day = doy - (153 * mp + 2) / 5 + 1, month = mp < 10 ? mp + 3 : mp - 9;
    int64_t year = yoe + era * 400 + (month <= 2);
    int64_t parts[] = {year, month, day, rest / 3600, rest / 60 % 60, rest % 60};
    char *p = out;
    for (int i = 0; i < 6; i++) {
        int width = i ? 2 : 4;
        for (int k = width - 1; k >= 0; k--, parts[i] /= 10) p[k] = (char)('0' + parts[i] % 10);
        p += width;
        if (i == 2) *p++ = 'T';
    }
    *p++ = 'Z';
    *p = 0;
}

static void put_build_id(struct crash_out *o, const struct module *m)
{
    put(o, *m->build_id ? m->build_id : "none");
}

/* ---- stacks ---------------------------------------------------------------------------------------------------- */

static const struct module *module_of(uintptr_t address)
{
    for (int i = 0; i < crash.n_modules; i++)
        if (address >= crash.modules[i].low && address < crash.modules[i].high) return &crash.modules[i];
    return NULL;
}

/* "  3 0x55d0c1 tandem+0x1c1": the file's name and the offset in it, which is the same in every process */
static void put_frame(struct crash_out *o, int i, uintptr_t address)
{
    const struct module *m = module_of(address);
    put(o, "  ");
    put_int(o, i);
    put(o, " ");
    put_hex(o, address);
    if (m) {
        const char *slash = strrchr(m->path, '/');
        put(o, " ");
        put(o, slash ? slash + 1 : m->path);
        put(o, "+");
        put_hex(o, address - m->bias);
    }
    put(o, "\n");
}

/* The address where the thread was interrupted.  After a call through a bad pointer it is not in code, and the
 * unwinder, which reads the bytes there, would fault.  Then *u is changed as if the call had just returned, if its
 * return address is in code; else *lost is set. */
static uintptr_t pc_of(ucontext_t *u, bool *lost)
{
    *lost = false;
#if defined(__x86_64__)
    greg_t *r = u->uc_mcontext.gregs;
    uintptr_t pc = (uintptr_t)r[REG_RIP], sp = (uintptr_t)r[REG_RSP];
    if (module_of(pc)) return pc;
    uintptr_t caller = sp % sizeof sp ? 0 : *(uintptr_t *)sp;
    *lost = !module_of(caller);
    if (*lost) return pc;
    r[REG_RIP] = (greg_t)caller;
    r[REG_RSP] += (greg_t)sizeof caller;
    return pc;
#elif defined(__aarch64__)
    uintptr_t pc = u->uc_mcontext.pc, caller = u->uc_mcontext.regs[30];
    if (module_of(pc)) return pc;
    *lost = !module_of(caller);
    if (!*lost) u->uc_mcontext.pc = caller;
    return pc;
#else
    return 0;
#endif
}

static uintptr_t unwind_from(const ucontext_t *u)
{
#if defined(__x86_64__)
    return (uintptr_t)u->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
    return u->uc_mcontext.pc;
#else
    return 0;
#endif
}

static void put_stack(struct crash_out *o, ucontext_t *u)
{
    void *frame[FRAMES];
    const mcontext_t saved = u->uc_mcontext;
    bool lost;
    int shown = 0;
    uintptr_t pc = pc_of(u, &lost), from = unwind_from(u);
    if (lost || pc != from) put_frame(o, shown++, pc);
    if (!lost) {
        int n = backtrace(frame, FRAMES), first = 0;
        while (first < n && (uintptr_t)frame[first] != from) first++; /* before it: this handler */
        if (first == n) first = 0;
        for (int i = first; i < n; i++) put_frame(o, shown++, (uintptr_t)frame[i]);
    }
    u->uc_mcontext = saved;
}

/* the calling thread's */
static void put_thread(struct crash_out *o, pid_t tid)
{
    char name[16] = "?"; /* TASK_COMM_LEN */
    prctl(PR_GET_NAME, name);
    put_int(o, tid);
    put(o, " ");
    put(o, name);
}

static pid_t own_tid(void)
{
    return (pid_t)syscall(SYS_gettid);
}

/* the number in a directory's name, 0 when it is none */
static pid_t number_of(const char *s)
{
    pid_t v = 0;
    for (; *s >= '0' && *s <= '9'; s++) v = v * 10 + (*s - '0');
    return *s ? 0 : v;
}

/* Sends SIGUSR2 to each of the other threads, whose handler writes the thread's stack.  getdents64(2) is used since
 * readdir allocates. */
static void ask_others(void)
{
    struct record {
        uint64_t inode;
        int64_t offset;
        unsigned short bytes;
        unsigned char type;
        char name[];
    };
    _Alignas(8) char block[2048];
    pid_t self = own_tid();
    int fd = open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    long n = 0;
    while (fd >= 0 && (n = syscall(SYS_getdents64, fd, block, sizeof block)) > 0) {
        for (long at = 0; at < n;) {
            const struct record *r = (const struct record *)(block + at);
            pid_t tid = number_of(r->name);
            if (tid && tid != self) syscall(SYS_tgkill, getpid(), tid, SIGUSR2);
            at += r->bytes;
        }
    }
    if (fd >= 0) close(fd);
}

static void put_modules(struct crash_out *o)
{
    put(o, "---- files: where, build id, path\n");
    for (int i = 0; i < crash.n_modules; i++) {
        const struct module *m = &crash.modules[i];
        put_hex(o, m->low);
        put(o, " ");
        put_build_id(o, m);
        put(o, " ");
        put(o, m->path);
        put(o, "\n");
    }
}

/* ---- SIGUSR2 --------------------------------------------------------------------------------------------------- */

static void put_heading(const char *why)
{
    struct crash_out o = {.fd = {STDERR_FILENO, -1}};
    put(&o, "==== tandem stacks: ");
    put(&o, why);
    put(&o, "\n");
    put_modules(&o);
    out_flush(&o);
}

static void on_dump(int signum, siginfo_t *info, void *context)
{
    struct crash_out o = {.fd = {STDERR_FILENO, -1}};
    int saved = errno;
    bool asked = info->si_code == SI_TKILL && info->si_pid == getpid(); /* by ask_others */
    (void)signum;
    if (!asked) put_heading("asked for by SIGUSR2");
    put(&o, "---- thread ");
    put_thread(&o, own_tid());
    put(&o, "\n");
    put_stack(&o, context);
    out_flush(&o);
    if (!asked) ask_others();
    errno = saved;
}

void crash_stacks(const char *why)
{
    if (!crash.installed) return;
    put_heading(why);
    ask_others();
}

/* ---- the end --------------------------------------------------------------------------------------------------- */

static const char *signal_name(int signum)
{
    switch (signum) {
    case SIGSEGV: return "SIGSEGV";
    case SIGBUS: return "SIGBUS";
    case SIGFPE: return "SIGFPE";
    case SIGILL: return "SIGILL";
    case SIGABRT: return "SIGABRT";
    }
    return "?";
}

static void put_signal(struct crash_out *o, int signum, const siginfo_t *info)
{
    put(o, "signal     ");
    put(o, signal_name(signum));
    put_field(o, " code ", info->si_code);
    if (info->si_code > 0) {
        put(o, " at address ");
        put_hex(o, (uintptr_t)info->si_addr);
    } else {
        put_field(o, " sent by process ", info->si_pid);
    }
    put(o, "\n");
    if (*check_message()) {
        put(o, "message    ");
        put(o, check_message());
        put(o, "\n");
    }
}

static void put_engine(struct crash_out *o)
{
    uint64_t now = clock_now();
    struct flight_step s;
    struct flight_request r;
    int counts[3];
    flight_counts_read(counts);
    put_field(o, "---- requests: waiting ", counts[0]);
    put_field(o, ", running ", counts[1]);
    put_field(o, ", paused ", counts[2]);
    put(o, "; those of the newest step:\n");
    for (int i = 0; flight_request_at(i, &r); i++) {
        put(o, "request ");
        put_number(o, r.id, 10, 1);
        put_field(o, " position ", r.start);
        put_field(o, " tokens ", r.tokens);
        put(o, "\n");
    }
    put(o, "---- last steps, newest first; times in ms\n");
    for (int i = 0; flight_step(i, &s); i++) {
        put(o, "step ");
        put_number(o, s.number, 10, 1);
        put(o, " began ");
        put_ns(o, now > s.started ? now - s.started : 0, 1000000);
        put(o, s.ended ? " ago, took " : " ago, is running");
        if (s.ended) put_ns(o, s.ended > s.started ? s.ended - s.started : 0, 1000000);
        put_field(o, ": requests ", s.requests);
        put_field(o, " tokens ", s.tokens);
        put_field(o, " rows ", s.rows);
        put_field(o, " preempted ", s.preempted);
        put(o, "\n");
    }
}

/* DIR/crashes/TIME-PID.txt, mode 0600, since it shows sizes of prompts and paths */
static int open_file(struct crash_out *o, const char *when)
{
    if (!*crash.dir) return -1;
    struct crash_out path = {.fd = {-1, -1}}; /* only a buffer: nothing is written unless it overflows */
    mkdir(crash.dir, 0750);
    put(&path, crash.dir);
    put(&path, "/crashes");
    path.text[path.n] = 0;
    mkdir(path.text, 0700);
    put(&path, "/");
    put(&path, when);
    put(&path, "-");
    put_int(&path, getpid());
    put(&path, ".txt");
    path.text[path.n] = 0;
    int fd = open(path.text, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    put(o, fd >= 0 ? "tandem: this report is also in " : "tandem: no report could be written to ");
    put(o, path.text);
    put(o, "\n");
    out_flush(o);
    return fd;
}

static void write_report(int signum, const siginfo_t *info, ucontext_t *u)
{
    struct crash_out o = {.fd = {STDERR_FILENO, -1}};
    struct timespec t;
    char when[17];
    clock_gettime(CLOCK_REALTIME, &t);
    time_text(when, t.tv_sec);
    o.fd[1] = open_file(&o, when);
    put(&o, "==== tandem crash report\nversion    ");
    put(&o, crash.version);
    put(&o, ", build id ");
    if (crash.n_modules) put_build_id(&o, &crash.modules[0]);
    put(&o, "\ntime       ");
    put(&o, when);
    put(&o, ", after ");
    put_ns(&o, clock_now() - crash.started, 1000000000);
    put(&o, " s\n");
    put_signal(&o, signum, info);
    put(&o, "thread     ");
    put_thread(&o, own_tid());
    put_field(&o, " of process ", getpid());
    put(&o, "\n---- stack\n");
    out_flush(&o); /* written before the unwinder is called, which may crash */
    put_stack(&o, u);
    put_engine(&o);
    put(&o, "---- configuration\n");
    put(&o, crash.config);
    put_modules(&o);
    put(&o, "==== end of report; scripts/symbolise reads it\n");
    out_flush(&o);
    if (o.fd[1] >= 0) close(o.fd[1]);
}

static void set_default(int signum)
{
    struct sigaction a = {.sa_handler = SIG_DFL};
    sigaction(signum, &a, NULL);
}

/* The report did not finish in time: ends the process without it. */
static void on_late(int signum)
{
    (void)signum;
    set_default(crash.signal);
    sigset_t s;
    sigemptyset(&s);
    sigaddset(&s, crash.signal);
    sigprocmask(SIG_UNBLOCK, &s, NULL);
    raise(crash.signal);
}

/* Ends the process when part of a mapped file is gone, without a report, since it is not a fault of the program. */
static void end_for_file(const char *path)
{
    struct crash_out o = {.fd = {STDERR_FILENO, -1}};
    put(&o, "tandem: ");
    put(&o, path);
    put(&o,
        ": a part of the file that is in use cannot be read: it was made shorter, or its disk fails; ending, status ");
    put_int(&o, CRASH_EXIT_FILE);
    put(&o, "\n");
    out_flush(&o);
    _exit(CRASH_EXIT_FILE);
}

static void on_crash(int signum, siginfo_t *info, void *context)
{
    int nobody = 0, tid = (int)own_tid();
    const char *file = signum == SIGBUS && info->si_code > 0 ? mapped_find(info->si_addr) : NULL;
    if (file) end_for_file(file);
    if (!atomic_compare_exchange_strong(&crash.dying, &nobody, tid)) {
        while (nobody != tid) pause(); /* another thread is writing its report and will end the process */
        set_default(signum);           /* the report crashed */
        raise(signum);
        return;
    }
    crash.signal = signum;
    struct sigaction late = {.sa_handler = on_late};
    sigaction(SIGALRM, &late, NULL);
    alarm(HANDLER_SECONDS);
    write_report(signum, info, context);
    set_default(signum);
    raise(signum); /* pending until the handler returns, then the default action happens where the thread was */
}

/* ---- preparing ------------------------------------------------------------------------------------------------- */

/* the note of type NT_GNU_BUILD_ID (elf(5)) among the notes in [p, end), in hex */
static void find_build_id(const char *p, const char *end, char out[static 48])
{
    while (p + sizeof(ElfW(Nhdr)) <= end) {
        const ElfW(Nhdr) *h = (const ElfW(Nhdr) *)p;
        const char *name = p + sizeof *h, *desc = name + (h->n_namesz + 3u) / 4 * 4;
        if (desc > end || h->n_descsz > (size_t)(end - desc)) return;
        if (h->n_type == NT_GNU_BUILD_ID && h->n_namesz == 4 && memcmp(name, "GNU", 4) == 0) {
            for (unsigned i = 0; i < h->n_descsz && i < 20; i++)
                snprintf(out + 2 * i, 3, "%02x", (unsigned char)desc[i]);
            return;
        }
        p = desc + (h->n_descsz + 3u) / 4 * 4;
    }
}

static int add_module(struct dl_phdr_info *info, size_t size, void *arg)
{
    (void)size;
    (void)arg;
    if (crash.n_modules == MODULES) return 1;
    struct module m = {.bias = info->dlpi_addr, .low = UINTPTR_MAX};
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *h = &info->dlpi_phdr[i];
        uintptr_t at = info->dlpi_addr + h->p_vaddr;
        if (h->p_type == PT_LOAD && at < m.low) m.low = at;
        if (h->p_type == PT_LOAD && at + h->p_memsz > m.high) m.high = at + h->p_memsz;
        if (h->p_type == PT_NOTE && !*m.build_id)
            find_build_id((const char *)at, (const char *)at + h->p_memsz, m.build_id);
    }
    if (info->dlpi_name && *info->dlpi_name) {
        snprintf(m.path, sizeof m.path, "%s", info->dlpi_name);
    } else if (crash.n_modules == 0) { /* the program comes first, without a name */
        ssize_t n = readlink("/proc/self/exe", m.path, sizeof m.path - 1);
        m.path[n > 0 ? n : 0] = 0;
    } else {
        snprintf(m.path, sizeof m.path, "[vdso]");
    }
    crash.modules[crash.n_modules++] = m;
    return 0;
}

void crash_modules(void)
{
    if (!crash.installed) return;
    crash.n_modules = 0;
    dl_iterate_phdr(add_module, NULL);
}

void crash_config(const char *text)
{
    snprintf(crash.config, sizeof crash.config, "%s", text);
}

static _Thread_local bool has_stack;

void crash_thread_begin(void)
{
    if (!crash.installed || has_stack) return;
    void *p = mmap(NULL, ALT_STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return;
    stack_t s = {.ss_sp = p, .ss_size = ALT_STACK};
    sigaltstack(&s, NULL);
    has_stack = true;
}

void crash_thread_end(void)
{
    stack_t old, none = {.ss_flags = SS_DISABLE};
    if (!crash.installed || sigaltstack(&none, &old) || !old.ss_sp || (old.ss_flags & SS_DISABLE)) return;
    munmap(old.ss_sp, old.ss_size);
    has_stack = false;
}

void crash_open(const char *dir, const char *version)
{
#ifdef TANDEM_SANITIZED
    (void)dir;
    (void)version;
    (void)on_crash;
    (void)on_dump;
#else
    static const int ends[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    void *frame[4];
    backtrace(frame, 4); /* loads the unwinder now, since that allocates, which a handler must not */
    crash.installed = true;
    crash.started = clock_now();
    /* room for "/crashes/TIME-PID.txt" in the writer's 1024 bytes */
    if (dir && strlen(dir) < sizeof crash.dir - 64) memcpy(crash.dir, dir, strlen(dir) + 1);
    snprintf(crash.version, sizeof crash.version, "%s", version);
    crash_modules();
    crash_thread_begin();
    struct sigaction a = {.sa_sigaction = on_crash, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) sigaction(ends[i], &a, NULL);
    struct sigaction dump = {.sa_sigaction = on_dump, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
    sigaction(SIGUSR2, &dump, NULL);
#endif
}
