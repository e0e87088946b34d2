/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preloaded into the tool: kills the process just before its KILLER_AT-th rename, as a power cut or
 * an impatient user may.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int rename(const char *from, const char *to) {
    static atomic_int renames;
    const char *at = getenv("KILLER_AT");
    if (at != NULL && atomic_fetch_add(&renames, 1) + 1 == atoi(at)) {
        kill(getpid(), SIGKILL);
    }
    return ((__typeof__(&rename))dlsym(RTLD_NEXT, "rename"))(from, to);
}
