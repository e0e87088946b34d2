// communicators: many communicators in one process, each with GIN and puts with signal by the host.
//
// Ranks make one, then more until they have ten, and as many as asked for, and use each: a kernel's
// put and the host's arrive. MEASURE lines tell what all of them take in a rank: seconds until
// their first operations are over, threads, descriptors, and memory. With --alone 1 they are made
// alone, as NCCL makes them: what is more without is for GIN and the host's puts.
#include <dirent.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <memory>

#include "job.h"

using namespace prog;

namespace {

constexpr size_t kBytes = 4096;

__global__ void put_to_next(ncclDevComm comm, ncclWindow_t source, ncclWindow_t data) {
    ncclGin gin{comm, 0};
    const ncclCoopCta block;
    gin.put(ncclTeamWorld(comm), (comm.rank + 1) % comm.nRanks, data, 0, source, 0, kBytes,
            ncclGin_StrongSignalInc{0}, ncclGin_None{}, block);
    gin.waitSignal(block, 0, 1);
    gin.flush(block);
}

// A further communicator of the same ranks, in use.
class Member {
  public:
    Member(Job &whole, uint64_t number, bool alone) : whole_(whole), job_(whole) {
        if (!alone) {
            device_ = std::make_unique<Device>(job_, 1, 1, 0);
            source_ = std::make_unique<Window>(job_, kBytes);
            data_ = std::make_unique<Window>(job_, kBytes);
            put(number);
        }
    }
    Member(const Member &) = delete;
    Member &operator=(const Member &) = delete;
    ~Member() {
        data_.reset();
        source_.reset();
        device_.reset();
        job_.leave();
    }

  private:
    void put(uint64_t number) {
        source_->write(pattern_bytes(seed_of(job_.rank(), number), kBytes));
        job_.barrier();
        put_to_next<<<1, 32, 0, job_.stream()>>>(device_->get(), source_->window(),
                                                 data_->window());
        job_.require(cudaGetLastError(), "kernel launch");
        expect(number, "by a kernel");
        data_->fill(kUntouched);
        job_.barrier();
        ncclWaitSignalDesc_t from_previous{1, job_.previous(), 0, 0};
        job_.require(ncclPutSignal(source_->get(), kBytes, ncclUint8, job_.next(), data_->window(),
                                   0, 0, 0, 0, job_.comm(), job_.stream()),
                     "ncclPutSignal");
        job_.require(ncclWaitSignal(1, &from_previous, job_.comm(), job_.stream()),
                     "ncclWaitSignal");
        expect(number, "by the host");
    }

    void expect(uint64_t number, const char *how) {
        job_.synchronize();
        whole_.check("communicator " + std::to_string(number) + ", " + how, data_->read(),
                     pattern_bytes(seed_of(job_.previous(), number), kBytes));
    }

    Job &whole_;
    Job job_;
    std::unique_ptr<Device> device_;
    std::unique_ptr<Window> source_, data_;
};

// A number of this process in /proc/self/status: kilobytes, or a count.
long status(const char *field) {
    std::ifstream lines("/proc/self/status");
    for (std::string line; std::getline(lines, line);) {
        if (line.compare(0, std::strlen(field), field) == 0) {
            return std::stol(line.substr(std::strlen(field) + 1));
        }
    }
    return -1;
}

long descriptors() {
    DIR *const open = opendir("/proc/self/fd");
    long count = -3;  // itself, and the two names of directories
    while (open != nullptr && readdir(open) != nullptr) {
        count++;
    }
    closedir(open);
    return count;
}

size_t free_on_device(Job &job) {
    size_t free = 0, total = 0;
    job.require(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return free;
}

}  // namespace

int main(int argc, char **argv) {
    uint64_t most = 10, alone = 0, starts = 1;
    parse_or_exit(argc, argv, "communicators", "Many communicators with GIN in one process.",
                  {{"most", "communicators", &most, 1, 1 << 10},
                   {"starts", "times that they are made", &starts, 1, 1 << 10},
                   {"alone", "1 for communicators alone", &alone, 0, 1}});
    Job job("communicators");
    for (uint64_t start = 0; start < starts; start++) {
        std::vector<std::unique_ptr<Member>> members;
        const size_t free = free_on_device(job);
        const long threads = status("Threads:"), files = descriptors(), kib = status("VmRSS:");
        const auto began = std::chrono::steady_clock::now();
        for (const uint64_t count : {uint64_t(1), uint64_t(10), most}) {
            if (count > most || count <= members.size()) {
                continue;
            }
            while (members.size() < count) {
                members.push_back(std::make_unique<Member>(job, members.size(), alone == 1));
            }
            const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
            job.barrier();
            const auto say = [&](const char *what, double value, const char *unit) {
                if (job.rank() == 0) {
                    std::printf("MEASURE gpu_nccl_%llu_communicators_%s %.2f %s\n",
                                (unsigned long long)count, what, value, unit);
                }
            };
            say("seconds", took.count(), "s");
            say("threads", double(status("Threads:") - threads), "threads");
            say("descriptors", double(descriptors() - files), "descriptors");
            say("host", double(status("VmRSS:") - kib) / 1024, "MiB");
            say("device", (double(free) - double(free_on_device(job))) / (1 << 20), "MiB");
        }
    }
    return job.finish();
}
