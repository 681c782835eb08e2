/* A machine that fails, for one command and all its processes: LD_PRELOAD=faulty_machine.so.

   FAULTY_FOLDER  files below it are read with faults, FAULTY_SHARE of 10,000 reads each; each leaves a byte in FAULTY_LOG
   FAULTY_HANG    such a read takes so many seconds, in place of failing (EIO)
   FAULTY_CLOCK   the time of day jumps every second, by up to so many seconds to either side */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int fails(int file) {
    const char *folder = getenv("FAULTY_FOLDER"), *share = getenv("FAULTY_SHARE"), *log = getenv("FAULTY_LOG");
    char link[64], path[4096];
    unsigned int drawn = 0;
    if (!folder || !share) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    if (strncmp(path, folder, strlen(folder))) return 0;
    if (getrandom(&drawn, sizeof drawn, 0) < 0 || drawn % 10000 >= (unsigned)atoi(share)) return 0;
    int note = log ? open(log, O_WRONLY | O_APPEND | O_CREAT, 0644) : -1;
    if (note >= 0) {
        if (write(note, ".", 1) < 0) return 0;
        close(note);
    }
    const char *hang = getenv("FAULTY_HANG");
    if (hang) {
        struct timespec left = {atoi(hang), 0};
        while (nanosleep(&left, &left) && errno == EINTR) {}
        return 0;
    }
    errno = EIO;
    return 1;
}

ssize_t read(int file, void *to, size_t size) { return fails(file) ? -1 : REAL(read)(file, to, size); }
ssize_t pread(int file, void *to, size_t size, off_t at) { return fails(file) ? -1 : REAL(pread)(file, to, size, at); }
ssize_t pread64(int file, void *to, size_t size, off64_t at) {
    return fails(file) ? -1 : REAL(pread64)(file, to, size, at);
}
ssize_t readv(int file, const struct iovec *to, int count) { return fails(file) ? -1 : REAL(readv)(file, to, count); }

static long jump(long second) {
    const char *most = getenv("FAULTY_CLOCK");
    if (!most) return 0;
    unsigned long mixed = (unsigned long)second * 2654435761u ^ (unsigned long)getpid() * 40503u;
    mixed = (mixed ^ (mixed >> 13)) * 0x9E3779B97F4A7C15u;
    return (long)((mixed >> 20) % (2 * (unsigned long)atol(most) + 1)) - atol(most);
}

int clock_gettime(clockid_t which, struct timespec *found) {
    int result = REAL(clock_gettime)(which, found);
    if (!result && which == CLOCK_REALTIME) found->tv_sec += jump(found->tv_sec);
    return result;
}
time_t time(time_t *found) {
    time_t now = REAL(time)(NULL);
    now += jump(now);
    if (found) *found = now;
    return now;
}
int gettimeofday(struct timeval *restrict found, void *restrict zone) {
    int result = REAL(gettimeofday)(found, zone);
    if (!result) found->tv_sec += jump(found->tv_sec);
    return result;
}
