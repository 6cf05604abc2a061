/* Moves the wall clock of one process: a library that is loaded before the C library.
 *
 * The file that POINTSMAN_TEST_CLOCK names holds the seconds by which the process is ahead, as a
 * number of eight bytes; it is mapped, so a change has effect at once. The monotonic clock is left
 * alone, as it is when a machine's time is set. No memory is allocated: allocators read clocks. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *ahead;

__attribute__((constructor)) static void map_clock(void) {
    const char *path = getenv("POINTSMAN_TEST_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *mapped = mmap(NULL, sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) ahead = mapped;
    close(file);
}

int clock_gettime(clockid_t id, struct timespec *time) {
    int failed = (int)syscall(SYS_clock_gettime, id, time);
    if (!failed && ahead && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
        time->tv_sec += *ahead;
    return failed;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    struct timespec now = {0, 0};
    (void)zone;
    int failed = clock_gettime(CLOCK_REALTIME, &now);
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *place) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    if (place) *place = now.tv_sec;
    return now.tv_sec;
}
