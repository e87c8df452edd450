/* Adds the nanoseconds in the file $RIG_CLOCK to the wall clock of a process, into which this library is preloaded.

   libfaketime cannot be used: since Python 3.11 time.sleep() fails under it, because it misreads waits until a moment
   of the monotonic clock. Here that clock stays as it is. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define NANOSECONDS 1000000000LL

static const volatile int64_t *offset; /* the mapped file: a change is seen at once */

__attribute__((constructor)) static void map_offset(void) {
    const char *path = getenv("RIG_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *page = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (page != MAP_FAILED)
        offset = page;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = (int)syscall(SYS_clock_gettime, clock, now);
    if (result == 0 && offset && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t total = now->tv_sec * NANOSECONDS + now->tv_nsec + *offset;
        now->tv_sec = total / NANOSECONDS;
        now->tv_nsec = total % NANOSECONDS;
    }
    return result;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec moment;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &moment) != 0)
        return -1;
    now->tv_sec = moment.tv_sec;
    now->tv_usec = moment.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *seconds) {
    struct timespec moment;
    clock_gettime(CLOCK_REALTIME, &moment);
    if (seconds)
        *seconds = moment.tv_sec;
    return moment.tv_sec;
}
