// Options of the programs: unsigned numbers by name, with bounds, and a usage that lists them.
//
// Every option is '--name N' or '--name=N'; N may end in K, M or G (powers of 1024). Plain C++, so
// that it can be tested where there is no CUDA.
#pragma once

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace prog {

struct Option {
    const char *name;  // without the dashes
    const char *what;
    uint64_t *value;  // holds the default
    uint64_t lowest;
    uint64_t highest;
};

// Reads "4096", "4K", "1M". False where that is no number, or does not fit.
inline bool parse_number(const char *text, uint64_t &value) {
    if (text[0] < '0' || text[0] > '9') {
        return false;
    }
    errno = 0;
    char *end = nullptr;
    const uint64_t digits = std::strtoull(text, &end, 10);
    int shift = 0;
    switch (*end) {
        case 'K': shift = 10; break;
        case 'M': shift = 20; break;
        case 'G': shift = 30; break;
    }
    end += shift > 0;
    if (errno != 0 || *end != '\0' || (digits << shift) >> shift != digits) {
        return false;
    }
    value = digits << shift;
    return true;
}

inline void print_usage(FILE *to, const char *program, const char *summary,
                        const std::vector<Option> &options) {
    std::fprintf(to, "usage: %s [--option N]...\n%s\n", program, summary);
    for (const Option &option : options) {
        std::fprintf(to, "  --%-12s %s, %llu to %llu [%llu]\n", option.name, option.what,
                     (unsigned long long)option.lowest, (unsigned long long)option.highest,
                     (unsigned long long)*option.value);
    }
}

enum class Parsed { run, help, bad };

// Sets the options from the command line. The first that is wrong is told on stderr.
inline Parsed parse(int argc, char **argv, const std::vector<Option> &options) {
    for (int i = 1; i < argc; i++) {
        const char *argument = argv[i];
        if (std::strcmp(argument, "--help") == 0 || std::strcmp(argument, "-h") == 0) {
            return Parsed::help;
        }
        const Option *found = nullptr;
        const char *text = nullptr;
        for (const Option &option : options) {
            const size_t length = std::strlen(option.name);
            if (std::strncmp(argument, "--", 2) != 0 ||
                std::strncmp(argument + 2, option.name, length) != 0) {
                continue;
            }
            if (argument[2 + length] == '=') {
                found = &option;
                text = argument + 2 + length + 1;
            } else if (argument[2 + length] == '\0') {
                found = &option;
                text = i + 1 < argc ? argv[++i] : "";
            }
        }
        if (found == nullptr) {
            std::fprintf(stderr, "no such option: %s\n", argument);
            return Parsed::bad;
        }
        uint64_t value = 0;
        if (!parse_number(text, value) || value < found->lowest || value > found->highest) {
            std::fprintf(stderr, "--%s takes a number from %llu to %llu, not '%s'\n", found->name,
                         (unsigned long long)found->lowest, (unsigned long long)found->highest,
                         text);
            return Parsed::bad;
        }
        *found->value = value;
    }
    return Parsed::run;
}

// As a program's first step: sets the options, or prints the usage and ends.
inline void parse_or_exit(int argc, char **argv, const char *program, const char *summary,
                          const std::vector<Option> &options) {
    // The usage shows the defaults, whatever was set before the error.
    std::vector<uint64_t> defaults;
    for (const Option &option : options) {
        defaults.push_back(*option.value);
    }
    const Parsed parsed = parse(argc, argv, options);
    if (parsed == Parsed::run) {
        return;
    }
    for (size_t i = 0; i < options.size(); i++) {
        *options[i].value = defaults[i];
    }
    print_usage(parsed == Parsed::help ? stdout : stderr, program, summary, options);
    std::exit(parsed == Parsed::help ? 0 : 2);
}

// The sizes from lowest to highest, each eight times the one before it; highest is always there.
inline std::vector<uint64_t> sizes_between(uint64_t lowest, uint64_t highest) {
    std::vector<uint64_t> sizes;
    for (uint64_t size = lowest; size < highest; size *= 8) {
        sizes.push_back(size);
        if (size == 0 || size > highest / 8) {
            break;
        }
    }
    sizes.push_back(highest);
    return sizes;
}

}  // namespace prog
