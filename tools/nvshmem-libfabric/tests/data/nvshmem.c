/* A stand-in for NVSHMEM's host library: the constant with its release, and the way that it loads a
 * transport. With PROGRAM, a program that is linked to it and says which file was loaded; with
 * TRANSPORT, a transport of somebody's. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

const char *nvshmem_stand_in(void);

#if defined(TRANSPORT)
int nvshmemt_init(void) { return 1; }
#elif defined(PROGRAM)
int main(int argc, char **argv) {
    printf("loaded %s\n", nvshmem_stand_in());
    printf("transport %s, CUDA's own %s\n", getenv("NVSHMEM_REMOTE_TRANSPORT"),
           getenv("CUDA_DEVICE_MAX_CONNECTIONS") || getenv("CUDA_MODULE_LOADING") ? "set" : "as it was");
    return argc > 1 ? atoi(argv[1]) : 0;
}
#else
static const char text[] = "NVSHMEM v" RELEASE;

const char *nvshmem_stand_in(void) {
    Dl_info found;
    const char *named = getenv("NVSHMEM_REMOTE_TRANSPORT");
    /* By any other name NVSHMEM loads nothing. */
    static const char *const known[] = {"ibrc", "ucx", "ibdevx", "libfabric"};
    void *transport = NULL;
    for (int at = 0; at < 4; at++) {
        char file[256];
        if (strcasecmp(named ? named : "libfabric", known[at]) != 0)
            continue;
        snprintf(file, sizeof file, "nvshmem_transport_%s.so." NUMBER, known[at]);
        transport = dlopen(file, RTLD_NOW);
    }
    if (transport == NULL || !dladdr(dlsym(transport, "nvshmemt_init"), &found))
        return text[0] == 'N' ? "nothing" : text;
    return found.dli_fname;
}
#endif
