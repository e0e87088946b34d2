/* What a process may do with the plugin in its life, one thing for each second argument: docs/reliability.md defines
 * them. The first argument is the plugin's file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <dlfcn.h>

#include "nvshmem_transport_abi.h"

static void check(int right, const char *what) {
    if (!right) {
        fprintf(stderr, "%s\n", what);
        _exit(1);
    }
}

static int allgather(const void *mine, void *all, int bytes, nvt_bootstrap_handle *handle) {
    (void)handle;
    memcpy(all, mine, (size_t)bytes);
    return 0;
}

static void *library;
static nvt_transport_7 *view;
static nvt_transport *transport;
static uint64_t memory[512];
static nvt_mem_handle handle;
static nvt_bootstrap_handle bootstrap = {.version = 30000, .pg_size = 1, .npes_node = 1, .allgather = allgather};

static int start(const char *file) {
    nvt_init_fn init;
    library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    check(library != NULL, "dlopen");
    *(void **)&init = dlsym(library, "nvshmemt_init");
    int status = init(&transport, NULL, 70000);
    view = (nvt_transport_7 *)transport;
    return status;
}

static void begin(const char *file) {
    check(start(file) == NVT_STATUS_SUCCESS, "nvshmemt_init");
    view->boot_handle = &bootstrap;
    view->n_pes = 1;
    check(view->host_ops.connect_endpoints(transport, NULL, 0, NULL, 0) == NVT_STATUS_SUCCESS, "connect_endpoints");
    check(view->host_ops.get_mem_handle(&handle, memory, sizeof memory, transport, false) == NVT_STATUS_SUCCESS,
          "get_mem_handle");
}

/* By the proxy's lane, which this thread turns, or by that of user threads. */
static int put(int qp) {
    nvt_rma_verb verb = {.desc = NVT_OP_PUT, .is_nbi = 1};
    nvt_rma_memdesc remote = {.ptr = &memory[1], .handle = &handle};
    nvt_rma_memdesc local = {.ptr = &memory[0], .handle = &handle};
    nvt_rma_bytesdesc bytes = {.nelems = 8, .elembytes = 1, .srcstride = 1, .deststride = 1};
    int status = view->host_ops.rma(transport, 0, verb, &remote, &local, bytes, qp);
    return status != NVT_STATUS_SUCCESS ? status : view->host_ops.quiet(transport, 0, qp);
}

static void use(uint64_t value) {
    memory[0] = value;
    check(put(NVT_QP_DEFAULT) == NVT_STATUS_SUCCESS && memory[1] == value, "a put");
}

static void end(void) {
    check(view->host_ops.release_mem_handle(&handle, transport) == NVT_STATUS_SUCCESS, "release_mem_handle");
    check(view->host_ops.finalize(transport) == NVT_STATUS_SUCCESS, "finalize");
}

static void at_exit(void) {
    nvt_transport_7 *had = view;
    nvt_finalize_fn finalize = had->host_ops.finalize;
    end();
    check(finalize(transport) == NVT_STATUS_INVALID_VALUE, "finalized twice in an exit handler");
}

int main(int argc, char **argv) {
    check(argc == 3, "arguments");
    const char *file = argv[1], *mode = argv[2];
    if (strcmp(mode, "at-exit") == 0) {
        atexit(at_exit);
        begin(file);
        use(7);
    } else if (strcmp(mode, "exit") == 0) {
        begin(file);
        use(7);
    } else if (strcmp(mode, "twice") == 0) {
        for (uint64_t round = 0; round < 3; round++) {
            begin(file);
            use(round);
            nvt_finalize_fn finalize = view->host_ops.finalize;
            end();
            check(finalize(transport) == NVT_STATUS_INVALID_VALUE, "finalized twice");
            /* The library stays: it has variables of threads. */
            dlclose(library);
        }
    } else if (strcmp(mode, "unload-in-use") == 0) {
        begin(file);
        use(7);
        dlclose(library);
        usleep(20000);
        use(8);
        end();
    } else if (strcmp(mode, "null") == 0) {
        begin(file);
        nvt_rma_verb verb = {.desc = NVT_OP_PUT, .is_nbi = 1};
        nvt_rma_memdesc side = {.ptr = memory, .handle = &handle};
        nvt_rma_bytesdesc bytes = {.nelems = 8, .elembytes = 1, .srcstride = 1, .deststride = 1};
        nvt_amo_verb_6 set = {.desc = NVT_AMO_SIGNAL_SET};
        nvt_amo_memdesc word = {.remote_memdesc = {.ptr = memory, .handle = &handle}};
        nvt_amo_bytesdesc eight = {.elembytes = 8};
        nvt_memdesc_vector sides = {.begin = &side, .end = &side + 1, .cap = &side + 1};
        nvt_bytesdesc_vector lengths = {.begin = &bytes, .end = &bytes + 1, .cap = &bytes + 1};
        const nvt_host_ops_7 *ops = &view->host_ops;
        /* Structures are the host's, and there; a handle may be missing. */
        nvt_rma_memdesc bare = {.ptr = memory};
        nvt_amo_memdesc lost = {.remote_memdesc = bare};
        nvt_memdesc_vector nowhere = {.begin = &bare, .end = &bare + 1, .cap = &bare + 1};
        for (int n = 0; n < 16; n++) {
            static const int descs[] = {NVT_OP_PUT, NVT_OP_GET, NVT_OP_P, NVT_OP_G};
            int desc = descs[n / 4], p = desc == NVT_OP_P, qp = n % 2;
            nvt_rma_verb of = {.desc = desc, .is_nbi = n / 2 % 2};
            nvt_rma_bytesdesc len = {p ? 1 : 8, p ? 8 : 1, 0, 1, 1};
            nvt_op_attrs_7 plain = {0};
            int status = ops->rma(transport, 0, of, &bare, &side, len, qp);
            check(status == NVT_STATUS_INVALID_VALUE, "rma without a handle");
            if (ops->rma_with_hints != NULL) {
                status = ops->rma_with_hints(transport, 0, of, &bare, &side, len, qp, &plain);
            }
            check(status == NVT_STATUS_INVALID_VALUE, "rma_with_hints without a handle");
        }
        for (int n = 0; n < 2; n++) {
            int status = ops->put_signal(transport, 0, verb, n ? &sides : &nowhere, &sides, &lengths, set,
                                         n ? &lost : &word, eight, 1);
            check(status == NVT_STATUS_INVALID_VALUE, "put_signal without a handle");
        }
        nvt_amo_verb_6 fetch = {.desc = NVT_AMO_FETCH_ADD};
        check(ops->amo(transport, 0, NULL, set, &lost, eight, 1) == NVT_STATUS_INVALID_VALUE, "amo without a handle");
        check(ops->amo(transport, 0, NULL, fetch, &lost, eight, 1) == NVT_STATUS_INVALID_VALUE, "fetch without a handle");
        nvt_mem_handle other;
        check(ops->get_mem_handle(NULL, memory, 8, transport, true) == NVT_STATUS_INVALID_VALUE, "no place for a handle");
        check(ops->get_mem_handle(&other, NULL, 8, transport, true) == NVT_STATUS_INVALID_VALUE, "no memory");
        check(ops->release_mem_handle(NULL, transport) == NVT_STATUS_INVALID_VALUE, "no handle");
        check(ops->can_reach_peer(NULL, NULL, transport) == NVT_STATUS_INVALID_VALUE, "no PE");
        use(9);
        end();
    } else if (strcmp(mode, "fork") == 0) {
        begin(file);
        use(7);
        pid_t child = fork();
        if (child == 0) {
            check(put(NVT_QP_HOST) == NVT_STATUS_INTERNAL, "a put in the child");
            nvt_mem_handle another;
            check(view->host_ops.get_mem_handle(&another, memory, 8, transport, true) == NVT_STATUS_INTERNAL,
                  "get_mem_handle in the child");
            check(view->host_ops.progress(transport) == NVT_STATUS_INTERNAL, "progress in the child");
            check(view->host_ops.finalize(transport) == NVT_STATUS_INTERNAL, "finalize in the child");
            check(start(file) == NVT_STATUS_INTERNAL, "another transport in the child");
            exit(0);
        }
        use(8);
        int status = -1;
        check(waitpid(child, &status, 0) == child && status == 0, "the child");
        use(9);
        end();
    } else {
        return 3;
    }
    return 0;
}
