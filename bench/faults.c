/* A machine whose clock jumps and whose disk refuses to write, for the processes that preload this:
   `bench/faults.py` says by how much and with which error, in a file that they map.

   Only CLOCK_REALTIME jumps, as on a machine whose clock is set. Only regular files below
   FAULTS_DISK are refused. Without FAULTS_SHARED (a sandbox that has closed its environment)
   everything is passed on. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct shared {
    long long offset_ns;
    long long error;
};

static const volatile struct shared *shared;
static const char *disk;

__attribute__((constructor)) static void map(void) {
    const char *path = getenv("FAULTS_SHARED");
    disk = getenv("FAULTS_DISK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *found = mmap(NULL, sizeof(struct shared), PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (found != MAP_FAILED)
        shared = found;
}

static void *own(const char *name) { return dlsym(RTLD_NEXT, name); }

#define OWN(result, name, ...)                                                                     \
    static result (*name##_own)(__VA_ARGS__);                                                      \
    if (!name##_own)                                                                               \
        name##_own = (result(*)(__VA_ARGS__))own(#name);

/* ---------------------------------------------------------------------------------- the clock */

static void moved(struct timespec *at) {
    if (!shared || !shared->offset_ns)
        return;
    long long ns = at->tv_sec * 1000000000LL + at->tv_nsec + shared->offset_ns;
    at->tv_sec = ns / 1000000000LL;
    at->tv_nsec = ns % 1000000000LL;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    OWN(int, clock_gettime, clockid_t, struct timespec *)
    int code = clock_gettime_own(clock, at);
    if (!code && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        moved(at);
    return code;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now))
        return -1;
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now = {0, 0};
    clock_gettime(CLOCK_REALTIME, &now);
    if (at)
        *at = now.tv_sec;
    return now.tv_sec;
}

/* ----------------------------------------------------------------------------------- the disk */

static int refused(int fd) {
    char link[64], path[4096];
    struct stat found;
    if (!shared || !shared->error || !disk || fstat(fd, &found) || !S_ISREG(found.st_mode))
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0 || (size_t)length < strlen(disk) || strncmp(path, disk, strlen(disk)))
        return 0;
    errno = (int)shared->error;
    return 1;
}

ssize_t write(int fd, const void *from, size_t count) {
    OWN(ssize_t, write, int, const void *, size_t)
    return refused(fd) ? -1 : write_own(fd, from, count);
}

ssize_t pwrite(int fd, const void *from, size_t count, off_t at) {
    OWN(ssize_t, pwrite, int, const void *, size_t, off_t)
    return refused(fd) ? -1 : pwrite_own(fd, from, count, at);
}

ssize_t pwrite64(int fd, const void *from, size_t count, off64_t at) {
    OWN(ssize_t, pwrite64, int, const void *, size_t, off64_t)
    return refused(fd) ? -1 : pwrite64_own(fd, from, count, at);
}

ssize_t writev(int fd, const struct iovec *from, int count) {
    OWN(ssize_t, writev, int, const struct iovec *, int)
    return refused(fd) ? -1 : writev_own(fd, from, count);
}
