/* SPDX-License-Identifier: Apache-2.0 */
/* Loads the library, makes a channel, and has the library unloaded, with the channel still there
 * where a second argument says so. */
#include <nvshmem_libfabric.h>

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int alone(const void *mine, void *all, size_t bytes, void *user) {
    (void)user;
    memcpy(all, mine, bytes);
    return 0;
}

int main(int argc, char **argv) {
    for (int round = 0; round < 2; round++) {
        void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
        if (library == NULL) {
            fprintf(stderr, "%s\n", dlerror());
            return 1;
        }
        __typeof__(&nlf_init_allgather) init;
        __typeof__(&nlf_finalize) finalize;
        *(void **)&init = dlsym(library, "nlf_init_allgather");
        *(void **)&finalize = dlsym(library, "nlf_finalize");
        nlf_channel *channel = NULL;
        if (init(&channel, 0, 1, alone, NULL, NULL) != 0) {
            return 2;
        }
        if (argc == 2 && finalize(channel) != 0) {
            return 3;
        }
        dlclose(library);
        /* Its threads, if they are there, have the processor. */
        usleep(20000);
    }
    return 0;
}
