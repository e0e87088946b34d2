/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preloaded into the tool: kills the process just before its KILLER_AT-th change of a file or
 * directory, as a power cut or an impatient user may. With KILLER_RENAMES only renames count. With
 * KILLER_NO_LINKS the file system has no hard links.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static void count(void) {
    static atomic_int changes;
    const char *at = getenv("KILLER_AT");
    if (at != NULL && atomic_fetch_add(&changes, 1) + 1 == atoi(at)) {
        kill(getpid(), SIGKILL);
    }
}

static void change(void) {
    if (getenv("KILLER_RENAMES") == NULL) {
        count();
    }
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int open64(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;
    va_end(more);
    if (flags & (O_CREAT | O_TRUNC)) {
        change();
    }
    return REAL(open64)(path, flags, mode);
}

ssize_t write(int fd, const void *bytes, size_t count) {
    if (fd > 2) {
        change();
    }
    return REAL(write)(fd, bytes, count);
}

ssize_t copy_file_range(int in, off_t *in_at, int out, off_t *out_at, size_t count, unsigned flags) {
    change();
    return REAL(copy_file_range)(in, in_at, out, out_at, count, flags);
}

int linkat(int from_dir, const char *from, int to_dir, const char *to, int flags) {
    change();
    if (getenv("KILLER_NO_LINKS") != NULL) {
        errno = EPERM;
        return -1;
    }
    return REAL(linkat)(from_dir, from, to_dir, to, flags);
}

int symlink(const char *to, const char *path) {
    change();
    return REAL(symlink)(to, path);
}

int rename(const char *from, const char *to) {
    count();
    return REAL(rename)(from, to);
}

int unlink(const char *path) {
    change();
    return REAL(unlink)(path);
}

int unlinkat(int dir, const char *path, int flags) {
    change();
    return REAL(unlinkat)(dir, path, flags);
}

int rmdir(const char *path) {
    change();
    return REAL(rmdir)(path);
}

int mkdir(const char *path, mode_t mode) {
    change();
    return REAL(mkdir)(path, mode);
}
