/* Records how traced processes ended. Their parents, launchers and shells, load the gate, too, and wait for them.
   Writes a line per process that ended badly to `ends.jsonl` in the trace's folder. Included once, by gate.h. The
   functions may run in signal handlers: they allocate nothing and take no lock. */
#include <signal.h>
#include <sys/resource.h>

static struct {
    pid_t (*waitpid)(pid_t, int*, int);
    pid_t (*wait4)(pid_t, int*, int, struct rusage*);
    int (*waitid)(idtype_t, id_t, siginfo_t*, int);
    char folder[3072], host[64];
} dg_ends;

__attribute__((constructor)) static void dg_find_waits(void) {
    const char* folder = getenv("DOVETAIL_TRACE_DIR");
    *(void**)&dg_ends.waitpid = dlsym(RTLD_NEXT, "waitpid");
    *(void**)&dg_ends.wait4 = dlsym(RTLD_NEXT, "wait4");
    *(void**)&dg_ends.waitid = dlsym(RTLD_NEXT, "waitid");
    gethostname(dg_ends.host, sizeof dg_ends.host - 1);
    if (folder && strlen(folder) < sizeof dg_ends.folder) strcpy(dg_ends.folder, folder);
}

/* Records the end of a child, if it is traced: if its file exists. */
static void dg_note(pid_t child, const char* how, int number) {
    const int before = errno;
    char path[4096], line[256];
    struct timespec now;
    snprintf(path, sizeof path, "%s/%s-%d.dvt", dg_ends.folder, dg_ends.host, (int)child);
    if (*dg_ends.folder && access(path, F_OK) == 0) {
        clock_gettime(CLOCK_REALTIME, &now);
        const int length =
            snprintf(line, sizeof line, "{\"pid\": %d, \"%s\": %d, \"host\": \"%s\", \"real_ns\": %lld}\n", (int)child,
                     how, number, dg_ends.host, (long long)now.tv_sec * 1000000000 + now.tv_nsec);
        snprintf(path, sizeof path, "%s/ends.jsonl", dg_ends.folder);
        const int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
        const ssize_t done = file >= 0 ? write(file, line, (size_t)length) : 0;
        (void)done;
        if (file >= 0) close(file);
    }
    errno = before;
}

static void dg_note_status(pid_t child, int status) {
    if (child <= 0) return;
    if (WIFSIGNALED(status)) dg_note(child, "signal", WTERMSIG(status));
    if (WIFEXITED(status) && WEXITSTATUS(status)) dg_note(child, "exit", WEXITSTATUS(status));
}

DG_PUBLIC pid_t waitpid(pid_t who, int* status, int options) {
    int own = 0;
    if (!dg_ends.waitpid) dg_find_waits();
    const pid_t child = dg_ends.waitpid(who, status ? status : &own, options);
    dg_note_status(child, child > 0 ? *(status ? status : &own) : 0);
    return child;
}

DG_PUBLIC pid_t wait4(pid_t who, int* status, int options, struct rusage* used) {
    int own = 0;
    if (!dg_ends.wait4) dg_find_waits();
    const pid_t child = dg_ends.wait4(who, status ? status : &own, options, used);
    dg_note_status(child, child > 0 ? *(status ? status : &own) : 0);
    return child;
}

DG_PUBLIC pid_t wait3(int* status, int options, struct rusage* used) { return wait4(-1, status, options, used); }

DG_PUBLIC pid_t wait(int* status) { return wait4(-1, status, 0, NULL); }

DG_PUBLIC int waitid(idtype_t kind, id_t who, siginfo_t* info, int options) {
    if (!dg_ends.waitid) dg_find_waits();
    const int code = dg_ends.waitid(kind, who, info, options);
    if (code || !info || !info->si_pid || (options & WNOWAIT)) return code;
    if (info->si_code == CLD_KILLED || info->si_code == CLD_DUMPED) dg_note(info->si_pid, "signal", info->si_status);
    if (info->si_code == CLD_EXITED && info->si_status) dg_note(info->si_pid, "exit", info->si_status);
    return code;
}
