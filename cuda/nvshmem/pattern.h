// What the programs send and look for: bytes that tell where they belong.
//
// The byte at an offset depends on the offset and on a seed, which names the sender and the round.
// Data of another round, of another PE or at another place does not match, except for one byte in
// 256. Plain C++ on the host; kernels have it too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#ifdef __CUDACC__
#define PROG_BOTH __host__ __device__
#else
#define PROG_BOTH
#endif

namespace prog {

// Spreads every bit of the input over the result: two rounds of Fibonacci hashing.
PROG_BOTH inline uint64_t mixed(uint64_t x) {
    constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;  // 2^64 over the golden ratio
    x = (x ^ x >> 32) * kGolden;
    x = (x ^ x >> 29) * kGolden;
    return x ^ x >> 32;
}

// The seed for data that a PE sends in a round.
PROG_BOTH inline uint64_t seed_of(int pe, uint64_t round) {
    return mixed((uint64_t(pe) + 1) << 40 ^ round);
}

PROG_BOTH inline uint8_t pattern(uint64_t seed, uint64_t offset) {
    return uint8_t(mixed(seed + offset));
}

// What buffers hold where nothing was to arrive.
constexpr uint8_t kUntouched = 0xa5;

inline std::vector<uint8_t> pattern_bytes(uint64_t seed, size_t bytes) {
    std::vector<uint8_t> result(bytes);
    for (size_t i = 0; i < bytes; i++) {
        result[i] = pattern(seed, i);
    }
    return result;
}

// Tells the first byte that is wrong, and how many are; nothing where all are right.
inline std::string difference(const std::vector<uint8_t> &got,
                              const std::vector<uint8_t> &expected) {
    size_t wrong = 0;
    size_t first = 0;
    for (size_t i = 0; i < expected.size(); i++) {
        if (i >= got.size() || got[i] != expected[i]) {
            first = wrong == 0 ? i : first;
            wrong++;
        }
    }
    if (wrong == 0 && got.size() == expected.size()) {
        return "";
    }
    if (got.size() != expected.size()) {
        return "got " + std::to_string(got.size()) + " bytes, expected " +
               std::to_string(expected.size());
    }
    return "offset " + std::to_string(first) + ": got " + std::to_string(got[first]) +
           ", expected " + std::to_string(expected[first]) + "; " + std::to_string(wrong) + " of " +
           std::to_string(expected.size()) + " bytes are wrong";
}

}  // namespace prog
