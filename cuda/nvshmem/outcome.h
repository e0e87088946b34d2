// What becomes of a program on a PE: what went wrong there, and the line that says so in the end.
//
// A failed check is noted and the program goes on, because the other PEs count on it in what is to
// come; the line then says FAILED. What leaves no way to go on ends the process.
#pragma once

#include <cuda_runtime.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "pattern.h"

namespace prog {

// The last line of every PE, which scripts look for.
inline void print_result(const char *program, int pe, const std::string &result) {
    std::printf("RESULT %s pe %d %s\n", program, pe, result.c_str());
    std::fflush(stdout);
}

class Outcome {
  public:
    explicit Outcome(const char *program) : program_(program) {}
    Outcome(const Outcome &) = delete;
    Outcome &operator=(const Outcome &) = delete;

    const char *program() const { return program_; }
    int pe() const { return pe_; }
    int n_pes() const { return n_pes_; }
    int next() const { return (pe_ + 1) % n_pes_; }
    int previous() const { return (pe_ + n_pes_ - 1) % n_pes_; }

    // Notes that something is wrong; the first is what RESULT shows.
    void fail(const std::string &what) {
        std::fprintf(stderr, "%s pe %d: %s\n", program_, pe_, what.c_str());
        if (failure_.empty()) {
            failure_ = what;
        }
    }

    // Compares a buffer's bytes with what they should be.
    void check(const std::string &what, const std::vector<uint8_t> &got,
               const std::vector<uint8_t> &expected) {
        const std::string wrong = difference(got, expected);
        if (!wrong.empty()) {
            fail(what + ": " + wrong);
        }
    }

    // For errors that leave no way to go on: the other PEs are left to their launcher.
    [[noreturn]] void give_up(const std::string &what) const {
        print_result(program_, pe_, "FAILED: " + what);
        // No handlers: NVSHMEM's would wait for the other PEs.
        _exit(1);
    }

    void require(cudaError_t error, const char *what) const {
        if (error != cudaSuccess) {
            give_up(std::string(what) + ": " + cudaGetErrorString(error));
        }
    }

  protected:
    // Prints RESULT, and gives the exit status.
    int end() const {
        print_result(program_, pe_, failure_.empty() ? "ok" : "FAILED: " + failure_);
        return failure_.empty() ? 0 : 1;
    }

    const char *program_;
    int pe_ = 0;
    int n_pes_ = 0;

  private:
    std::string failure_;
};

}  // namespace prog
