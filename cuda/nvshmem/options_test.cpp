// Test of what needs no CUDA: the options, and the comparison that every program relies on.
#include "options.h"
#include "pattern.h"

using namespace prog;

namespace {

int failures = 0;

void expect(bool holds, const char *what) {
    if (!holds) {
        std::printf("FAILED: %s\n", what);
        failures++;
    }
}

bool number_is(const char *text, uint64_t value) {
    uint64_t parsed = 0;
    return parse_number(text, parsed) && parsed == value;
}

bool is_no_number(const char *text) {
    uint64_t parsed = 0;
    return !parse_number(text, parsed);
}

Parsed parsed(std::vector<const char *> arguments, uint64_t &value) {
    arguments.insert(arguments.begin(), "program");
    arguments.push_back(nullptr);
    return parse(int(arguments.size()) - 1, const_cast<char **>(arguments.data()),
                 {{"min", "", &value, 1, 100}, {"minimum", "", &value, 1, 1000}});
}

void test_numbers() {
    expect(number_is("0", 0) && number_is("17", 17), "plain numbers");
    expect(number_is("4K", 4096) && number_is("3M", 3 << 20) && number_is("2G", uint64_t(2) << 30),
           "suffixes");
    expect(number_is("18446744073709551615", UINT64_MAX), "the largest number");
    for (const char *text : {"", "K", "-1", "+1", " 1", "1x", "1KK", "18446744073709551616",
                             "18446744073709551615K"}) {
        expect(is_no_number(text), text);
    }
}

void test_options() {
    uint64_t value = 0;
    expect(parsed({}, value) == Parsed::run && value == 0, "nothing is set without options");
    expect(parsed({"--min", "5"}, value) == Parsed::run && value == 5, "--min 5");
    expect(parsed({"--min=7"}, value) == Parsed::run && value == 7, "--min=7");
    expect(parsed({"--minimum=700"}, value) == Parsed::run && value == 700,
           "an option whose name begins with another's");
    expect(parsed({"--help"}, value) == Parsed::help, "--help");
    for (const std::vector<const char *> &bad :
         std::vector<std::vector<const char *>>{{"--min"},
                                                {"--min", "0"},
                                                {"--min", "101"},
                                                {"--min=x"},
                                                {"--max", "1"},
                                                {"5"},
                                                {"-min", "5"},
                                                {"--mini", "5"}}) {
        expect(parsed(bad, value) == Parsed::bad, bad[0]);
    }
}

void test_sizes() {
    expect(sizes_between(4, 1000) == std::vector<uint64_t>{4, 32, 256, 1000}, "sizes 4 to 1000");
    expect(sizes_between(8, 8) == std::vector<uint64_t>{8}, "one size");
    expect(sizes_between(9, 8) == std::vector<uint64_t>{8}, "the largest wins");
    expect(sizes_between(1, uint64_t(1) << 63).back() == uint64_t(1) << 63, "no overflow");
}

void test_difference() {
    const std::vector<uint8_t> good = pattern_bytes(seed_of(1, 2), 1000);
    expect(difference(good, good).empty(), "equal bytes do not differ");
    std::vector<uint8_t> bad = good;
    bad[900] ^= 1;
    bad[17] ^= 1;
    const std::string told = difference(bad, good);
    expect(told.find("offset 17:") == 0, "the first offset");
    expect(told.find("2 of 1000 bytes") != std::string::npos, "how many");
    expect(!difference({}, good).empty(), "too few bytes");
    // What the pattern is for: neighbours, other PEs and other rounds look different.
    size_t same = 0;
    for (const uint64_t seed : {seed_of(1, 3), seed_of(2, 2), seed_of(0, 2), seed_of(1, 2) + 1}) {
        const std::vector<uint8_t> other = pattern_bytes(seed, 1000);
        for (size_t i = 0; i < good.size(); i++) {
            same += good[i] == other[i];
        }
    }
    expect(same < 4000 / 100, "patterns differ");
}

}  // namespace

int main() {
    // Where the options complain of what is wrong, as they are made to here.
    if (std::freopen("/dev/null", "w", stderr) == nullptr) {
        return 1;
    }
    test_numbers();
    test_options();
    test_sizes();
    test_difference();
    return failures == 0 ? 0 : 1;
}
