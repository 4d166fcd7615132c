/* Faults of the machine under one process, by LD_PRELOAD: see preload.py.
 *
 * PYLOGD_TEST_CONTROL   a file of two int64 that is mapped: how many ns the wall clock is ahead, and whether the disk
 *                       fails (1), hangs (2) or is slow (3), or all disks hang (4), or whether the first thread stands
 *                       still (5) instead of waiting for events (epoll_wait). Both may change while the process runs.
 * PYLOGD_TEST_FAILING   the directory below which writes and syncs fail with EIO while the second number is 1, do not
 *                       return while it is 2, and take 0.3 s while it is 3.
 * PYLOGD_TEST_DISKS     directories, with a colon between them, below which writes and syncs do not return while the
 *                       second number is 4.
 * PYLOGD_TEST_SYNCED    a file that gets a line "s <inode> <size>" for each sync that succeeded, and a line
 *                       "t <inode> <size>" for each file that was cut. Of a volume that was synced (syncfs) it gets
 *                       the files below the directory of the descriptor's file.
 *
 * The monotonic clocks are left alone, as they are by a real step of the wall clock.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define NS 1000000000LL
#define HANGS 2
#define SLOW 3
#define ALL_HANG 4
#define STANDS 5
#define SLOW_NS 300000000
#define REAL(result, name, ...) ((result(*)(__VA_ARGS__))real(#name))

static const int64_t *control;
static const char *failing, *disks;
static int synced = -1;

static void *real(const char *name) { return dlsym(RTLD_NEXT, name); }

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("PYLOGD_TEST_CONTROL");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        void *found = mmap(NULL, 2 * sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
        if (found != MAP_FAILED) control = found;
        close(fd);
    }
    failing = getenv("PYLOGD_TEST_FAILING");
    disks = getenv("PYLOGD_TEST_DISKS");
    path = getenv("PYLOGD_TEST_SYNCED");
    if (path) synced = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
}

/* -- the wall clock */

static int64_t ahead(void) { return control ? __atomic_load_n(&control[0], __ATOMIC_RELAXED) : 0; }

static void shift(struct timespec *when, int64_t ns) {
    int64_t nsec = (int64_t)when->tv_nsec + ns % NS;
    when->tv_sec += ns / NS;
    if (nsec < 0) { nsec += NS; when->tv_sec--; }
    if (nsec >= NS) { nsec -= NS; when->tv_sec++; }
    when->tv_nsec = nsec;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*function)(clockid_t, struct timespec *);
    if (!function) function = REAL(int, clock_gettime, clockid_t, struct timespec *);
    int result = function(clock, now);
    if (!result && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) shift(now, ahead());
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec found;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &found)) return -1;
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *where) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (where) *where = found.tv_sec;
    return found.tv_sec;
}

/* The deadline was worked out by the stepped clock; the kernel counts by its own. */
int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until) {
    struct timespec there = *until;
    shift(&there, -ahead());
    return REAL(int, sem_timedwait, sem_t *, const struct timespec *)(semaphore, &there);
}

/* -- the disk */

static int64_t state(void) { return __atomic_load_n(&control[1], __ATOMIC_RELAXED); }

static int is_below(const char *path, const char *folder, size_t length) {
    return !strncmp(path, folder, length) && path[length] == '/';
}

static int is_on_a_disk(const char *path) {
    const char *folder = disks;
    while (folder && *folder) {
        size_t length = strcspn(folder, ":");
        if (is_below(path, folder, length)) return 1;
        folder += length + (folder[length] == ':');
    }
    return 0;
}

static void wait_while(int64_t hanging) {
    while (state() == hanging) {
        struct timespec pause = {0, 5000000};
        nanosleep(&pause, NULL);
    }
}

static int fails(int fd) {
    char link[64], path[PATH_MAX];
    if (!control || !state() || !(failing || disks)) return 0;
    int saved = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    errno = saved;
    if (length < 0) return 0;
    path[length] = 0;
    if (state() == ALL_HANG) {
        if (is_on_a_disk(path)) wait_while(ALL_HANG);
        errno = saved;
        return 0;
    }
    if (!failing || !is_below(path, failing, strlen(failing))) return 0;
    wait_while(HANGS);
    if (state() == SLOW) {
        struct timespec pause = {0, SLOW_NS};
        nanosleep(&pause, NULL);
    }
    errno = saved;
    if (!state() || state() == SLOW) return 0;
    errno = EIO;
    return 1;
}

ssize_t write(int fd, const void *data, size_t count) {
    static ssize_t (*function)(int, const void *, size_t);
    if (!function) function = REAL(ssize_t, write, int, const void *, size_t);
    return fails(fd) ? -1 : function(fd, data, count);
}

#define WRITE_AT(name) \
    ssize_t name(int fd, const void *data, size_t count, off_t at) { \
        static ssize_t (*function)(int, const void *, size_t, off_t); \
        if (!function) function = REAL(ssize_t, name, int, const void *, size_t, off_t); \
        return fails(fd) ? -1 : function(fd, data, count, at); \
    }
#define WRITEV(name, ...) \
    ssize_t name(int fd, const struct iovec *data, int count, off_t at) { \
        static ssize_t (*function)(int, const struct iovec *, int, off_t); \
        if (!function) function = REAL(ssize_t, name, int, const struct iovec *, int, off_t); \
        return fails(fd) ? -1 : function(fd, data, count, at); \
    }
#define WRITEV2(name) \
    ssize_t name(int fd, const struct iovec *data, int count, off_t at, int flags) { \
        static ssize_t (*function)(int, const struct iovec *, int, off_t, int); \
        if (!function) function = REAL(ssize_t, name, int, const struct iovec *, int, off_t, int); \
        return fails(fd) ? -1 : function(fd, data, count, at, flags); \
    }
static void tell(char what, const struct stat *file, intmax_t size) {
    char line[64];
    int length = snprintf(line, sizeof line, "%c %ju %jd\n", what, (uintmax_t)file->st_ino, size);
    if (S_ISREG(file->st_mode) && write(synced, line, length) != length) abort();
}

#define SYNC(name) \
    int name(int fd) { \
        struct stat before; /* what is written while the sync runs need not be covered by it */ \
        int known = synced >= 0 && !fstat(fd, &before); \
        int result = fails(fd) ? -1 : REAL(int, name, int)(fd); \
        if (!result && known) tell('s', &before, before.st_size); \
        return result; \
    }
#define CUT(name) \
    int name(int fd, off_t size) { \
        struct stat file; \
        int result = fails(fd) ? -1 : REAL(int, name, int, off_t)(fd, size); \
        if (!result && synced >= 0 && !fstat(fd, &file)) tell('t', &file, size); \
        return result; \
    }

/* The first thread is the one whose id is that of the process. The others go on, and take the interpreter's lock. */
int epoll_wait(int fd, struct epoll_event *events, int most, int timeout) {
    static int (*function)(int, struct epoll_event *, int, int);
    if (!function) function = REAL(int, epoll_wait, int, struct epoll_event *, int, int);
    if (control && state() == STANDS && syscall(SYS_gettid) == getpid()) wait_while(STANDS);
    return function(fd, events, most, timeout);
}

/* Like fsync, this covers what was written before the call: the sizes of that moment are noted after it. */
#define MOST_FILES 100000
#define MOST_OPEN 16
static __thread struct stat *found;
static __thread size_t found_count;

static int keep(const char *path, const struct stat *file, int kind, struct FTW *at) {
    (void)path, (void)at;
    if (kind == FTW_F && found_count < MOST_FILES) found[found_count++] = *file;
    return 0;
}

int syncfs(int fd) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = synced >= 0 ? readlink(link, path, sizeof path - 1) : -1;
    found_count = 0;
    if (length > 0) {
        path[length] = 0;
        *strrchr(path, '/') = 0;
        found = malloc(MOST_FILES * sizeof *found);
        if (!found) abort();
        nftw(path, keep, MOST_OPEN, FTW_PHYS);
    }
    int result = fails(fd) ? -1 : REAL(int, syncfs, int)(fd);
    int saved = errno;
    for (size_t at = 0; !result && at < found_count; at++) tell('s', &found[at], found[at].st_size);
    if (length > 0) free(found);
    errno = saved;
    return result;
}

WRITE_AT(pwrite)
WRITE_AT(pwrite64)
WRITEV(pwritev)
WRITEV(pwritev64)
WRITEV2(pwritev2)
WRITEV2(pwritev64v2)
SYNC(fsync)
SYNC(fdatasync)
CUT(ftruncate)
CUT(ftruncate64)
