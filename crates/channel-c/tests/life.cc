/* SPDX-License-Identifier: Apache-2.0 */
/* What a process may do with a channel in its life, one thing for each argument: docs/reliability.md defines them. */
#include <nvshmem_libfabric.h>

#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

extern char **environ;

namespace {

void check(bool right, const char *what) {
    if (!right) {
        fprintf(stderr, "%s: %s\n", what, nlf_strerror());
        _exit(1);
    }
}

int alone(const void *mine, void *all, size_t bytes, void *) {
    memcpy(all, mine, bytes);
    return 0;
}

nlf_channel *channel = nullptr;
uint64_t *heap = nullptr;

void begin() {
    nlf_options options = {};
    options.size = sizeof options;
    options.rings = 1;
    options.slots = 64;
    check(nlf_init_allgather(&channel, 0, 1, alone, nullptr, &options) == 0, "nlf_init_allgather");
    heap = static_cast<uint64_t *>(nlf_alloc(channel, 4096));
    check(heap != nullptr && heap[0] == 0, "nlf_alloc");
}

/* Puts the heap's first word into its second one, and a value into the third one behind it, by way of the rails. */
void use(uint64_t value) {
    const nlf_context *context = nlf_get_context(channel);
    const nlf_ring *ring = &context->rings[0];
    heap[0] = value;
    heap[1] = heap[2] = 0;
    uint64_t number = __atomic_fetch_add(&ring->producers->head, 1, __ATOMIC_ACQ_REL);
    uint64_t lap = (~number >> context->slots_log2 & 1) ? NLF_LAP : 0;
    nlf_slot *slot = &ring->slots[number & ((UINT64_C(1) << context->slots_log2) - 1)];
    __atomic_store_n(&slot->q[0], UINT64_C(8) | UINT64_C(1) << NLF_VALUE_SHIFT, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->q[2], UINT64_C(16), __ATOMIC_RELAXED);
    __atomic_store_n(&slot->q[1], (static_cast<uint64_t>(NLF_OP_PUT_SIGNAL) << NLF_OP_SHIFT | 8) | lap, __ATOMIC_RELEASE);
    __atomic_store_n(&slot->q[3], lap, __ATOMIC_RELEASE);
    while (__atomic_load_n(&ring->published->done, __ATOMIC_ACQUIRE) <= number) {
        check(nlf_check(channel) == 0, "nlf_check");
    }
    check(heap[1] == value && heap[2] == 1, "what has come");
}

void end() { check(nlf_finalize(channel) == 0, "nlf_finalize"); }

/* Sockets of the internet that this process has. */
int sockets() {
    int found = 0;
    DIR *files = opendir("/proc/self/fd");
    while (const dirent *file = readdir(files)) {
        sockaddr_storage name;
        socklen_t len = sizeof name;
        int fd = atoi(file->d_name);
        if (file->d_name[0] != '.' && getsockname(fd, reinterpret_cast<sockaddr *>(&name), &len) == 0) {
            found += name.ss_family == AF_INET || name.ss_family == AF_INET6;
        }
    }
    closedir(files);
    return found;
}

bool says(const char *part) { return strstr(nlf_strerror(), part) != nullptr; }

/* Whether a child has ended with 0. */
bool ended_well(pid_t child) {
    int status = -1;
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

void at_exit() {
    end();
    /* An error's text is there also now that variables of the thread are gone. */
    check(nlf_finalize(nullptr) == -1 && says("NULL"), "an error in an exit handler");
    check(nlf_finalize(channel) == -1 && says("finalized"), "finalized twice in an exit handler");
}

struct Owner {
    bool owns = false;
    ~Owner() {
        if (owns) {
            end();
        }
    }
};
Owner static_owner;

volatile sig_atomic_t taken = 0;
void take(int) { taken = 1; }

int run(const std::string &mode, char **argv) {
    if (mode == "at-exit") {
        atexit(at_exit);
        begin();
        use(7);
    } else if (mode == "at-exit-late") {
        begin();
        use(7);
        atexit(at_exit);
    } else if (mode == "static") {
        begin();
        use(7);
        static_owner.owns = true;
    } else if (mode == "exit") {
        begin();
        use(7);
    } else if (mode == "exception") {
        try {
            Owner owner;
            begin();
            owner.owns = true;
            use(7);
            throw std::runtime_error("on purpose");
        } catch (const std::runtime_error &) {
        }
        begin();
        use(8);
        end();
    } else if (mode == "twice") {
        begin();
        end();
        check(nlf_finalize(channel) == -1 && says("finalized"), "finalized twice");
        check(nlf_barrier(channel) == -1 && nlf_get_context(channel) == nullptr, "used when it is no more");
        check(nlf_alloc(channel, 8) == nullptr && nlf_check(channel) == -1, "used when it is no more");
        for (uint64_t round = 0; round < 3; round++) {
            begin();
            use(round);
            end();
        }
    } else if (mode == "fork") {
        begin();
        use(7);
        check(sockets() > 0, "the rails have sockets");
        for (int exits = 0; exits < 2; exits++) {
            pid_t child = fork();
            if (child == 0) {
                check(nlf_barrier(channel) == -1 && says("child of fork"), "a barrier in the child");
                check(nlf_alloc(channel, 8) == nullptr && nlf_release(channel, heap) == -1, "memory in the child");
                check(nlf_finalize(channel) == -1 && says("child of fork"), "finalize in the child");
                nlf_channel *another = nullptr;
                check(nlf_init_allgather(&another, 0, 1, alone, nullptr, nullptr) == -1 && says("child of fork"),
                      "another channel in the child");
                if (sockets() != 0) {
                    fprintf(stderr, "the child has %d sockets of its parent's rails\n", sockets());
                    _exit(1);
                }
                if (exits) {
                    exit(0);
                }
                _exit(0);
            }
            use(8);
            check(ended_well(child), "the child");
            use(9);
        }
        end();
        /* What is forked when there is no channel may have one of its own. */
        pid_t child = fork();
        if (child == 0) {
            begin();
            use(1);
            end();
            _exit(0);
        }
        check(ended_well(child), "a child with a channel of its own");
    } else if (mode == "exec") {
        begin();
        use(7);
        /* The sockets are marked soon after they are made. */
        for (bool inherited = true; inherited;) {
            char count[] = "count-sockets";
            char *arguments[] = {argv[0], count, nullptr};
            pid_t child = 0;
            check(posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, arguments, environ) == 0, "posix_spawn");
            inherited = !ended_well(child);
            usleep(10000);
        }
        use(8);
        end();
    } else if (mode == "count-sockets") {
        return sockets() == 0 ? 0 : 2;
    } else if (mode == "signals") {
        signal(SIGUSR1, take);
        begin();
        use(7);
        sigset_t only, pending;
        sigemptyset(&only);
        sigaddset(&only, SIGUSR1);
        check(pthread_sigmask(SIG_BLOCK, &only, nullptr) == 0 && kill(getpid(), SIGUSR1) == 0, "a signal");
        use(8);
        check(sigpending(&pending) == 0 && sigismember(&pending, SIGUSR1) == 1 && !taken, "a thread took the signal");
        end();
    } else {
        return 4;
    }
    return 0;
}

} // namespace

int main(int argc, char **argv) { return argc == 2 ? run(argv[1], argv) : 5; }
