# NVSHMEM transport for libfabric. 'make help' lists the targets.

PREFIX ?= /usr/local
# A makefile splits what it is given at spaces: a rule for such a path would work on parts of it.
ifneq ($(words $(CURDIR)),1)
$(error the path of this checkout has a space, '$(CURDIR)': move it where the path has none)
endif
ifneq ($(words $(or $(CARGO_TARGET_DIR),target)),1)
$(error CARGO_TARGET_DIR has a space, '$(CARGO_TARGET_DIR)': name a directory whose path has none)
endif
# Where cargo builds, made absolute for the programs that run elsewhere.
TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))
# With CARGO_BUILD_TARGET=aarch64-unknown-linux-gnu, below that; CROSS_COMPILE=aarch64-linux-gnu- names binutils.
BUILT := $(TARGET)$(addprefix /,$(CARGO_BUILD_TARGET))
# What demo and benches load: never what is installed on the machine.
STAGE := $(BUILT)/install
PLUGINS := $(STAGE)/lib
# A directory for LD_LIBRARY_PATH: a CUDA driver and a GDRCopy for machines without a GPU.
FAKE_CUDA := $(TARGET)/fake-cuda
CARGO := scripts/cargo

.DEFAULT_GOAL := build
.PHONY: help deps build-deps build stage install uninstall package demo edit quick test test-full check fresh \
	mutants fuzz sanitize reliability bench fake-cuda labs gpu-kit gpu gpu-tests clean

help: ## List the targets
	@sed -nE 's/^([a-z0-9-]+):.*## (.*)/\1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ target = $$1; sub(/^[^|]*\|/, ""); printf "%-12s %s\n", target, $$0 }'

deps: ## Install what building and testing need and this machine lacks
	@scripts/deps.sh test

build-deps: ## Install what building and 'make demo' need, which is less
	@scripts/deps.sh build

build: ## Build the plugins for NVSHMEM and NCCL, the device channel's library and the tool, optimised
	$(CARGO) build --locked --release --lib
	NVSHMEM_LIBFABRIC_COMMIT=$(if $(wildcard .git),$(shell git rev-parse --short=12 HEAD 2>/dev/null)) \
		$(CARGO) build --locked --release -p nvshmem-libfabric-channel -p nccl-rma-nvshmem-libfabric -p nvshmem-libfabric

# What is installed, in target/install.
stage: build
	scripts/empty-dir.sh "$(STAGE)/include"
	scripts/install.sh plugin "$(BUILT)/release/libnvshmem_transport_libfabric.so" "$(PLUGINS)"
	scripts/install.sh nccl "$(BUILT)/release/libnccl_rma_nvshmem_libfabric.so" "$(PLUGINS)"
	scripts/install.sh channel "$(BUILT)/release/libnvshmem_libfabric_channel.so" "$(STAGE)"
	install -D -m 755 --strip --strip-program="$(CROSS_COMPILE)strip" "$(BUILT)/release/nvshmem-libfabric" "$(STAGE)/bin/nvshmem-libfabric"

# The same where a source is newer, and not else: between the plugin alone and the tool, cargo
# builds the plugin's crate anew each time.
$(STAGE)/bin/nvshmem-libfabric: Cargo.toml Cargo.lock build.rs $(shell find src crates tools/nvshmem-libfabric tools/simulator -name '*.rs' -o -name '*.toml' -o -name '*.json')
	$(MAKE) --no-print-directory stage

install: stage ## Install in PREFIX (/usr/local): the tool, its manual and completions, plugins, and the device channel for C, pkg-config and CMake
	"$(STAGE)/bin/nvshmem-libfabric" install --prefix "$(PREFIX)"

uninstall: ## Remove from PREFIX what 'make install', or the tool's own 'install --prefix', has put there
	@test -x "$(PREFIX)/bin/nvshmem-libfabric" || { echo "$(PREFIX) has no nvshmem-libfabric: name another PREFIX" >&2; exit 1; }
	"$(PREFIX)/bin/nvshmem-libfabric" uninstall --prefix "$(PREFIX)"

# Kinds of package, of 'wheel' and 'deb'; all of them without one.
PACKAGES ?=
package: ## Make packages in target/package: a wheel for pip, a .deb, release notes, SHA256SUMS (PACKAGES="wheel deb")
	@scripts/deps.sh package
	scripts/empty-dir.sh "$(BUILT)/package-prefix"
	$(MAKE) --no-print-directory install PREFIX="$(BUILT)/package-prefix"
	scripts/package.sh "$(BUILT)/package-prefix" "$(BUILT)/package" $(PACKAGES)

demo: build-deps $(STAGE)/bin/nvshmem-libfabric ## Two PEs, two rails on loopback TCP: bandwidth, latency, message rate
	"$(STAGE)/bin/nvshmem-libfabric" perf --provider tcp --devices 127.0.0.1,127.0.0.2

edit: ## While changing the engine: its unit tests and its protocol on the fake, with few seeds
	CARGO_PROFILE_CHECKED_INCREMENTAL=true NVSHMEM_TEST_SEEDS=$(or $(NVSHMEM_TEST_SEEDS),10) \
		$(CARGO) test --locked --profile checked -p engine --lib --test engine

quick: deps ## Unit tests, the engine on the fake, every layout on tcp and shm: less than a minute, once built
	scripts/test.sh quick

test: deps ## Lints and tests of everything: 8 minutes on two cores, 13 from nothing
	scripts/test.sh test

test-full: deps ## The nightly tier: every combination, more seeds, laboratories, sanitizers, bare trees; hours
	scripts/test.sh full

check: ## Check formatting, lints and budgets
	scripts/check.sh

fresh: ## README's first commands in minimal trees of Debian and Ubuntu, made for it; needs root (TREES="bookworm trixie")
	scripts/fresh.sh $(TREES)

PART ?= engine
mutants: ## Count which small changes of a part the tests notice (PART=engine|ofi|cuda|abi|job|channel|nccl COUNT=number SEED=1)
	scripts/mutants.sh $(PART) '$(COUNT)' '$(SEED)' $(OPTIONS)

fuzz: ## Arbitrary bytes for what reads bytes of others, by libFuzzer (COUNT=executions of each ONLY="targets")
	scripts/fuzz.sh $(or $(COUNT),1000000) $(ONLY)

sanitize: ## Tests under a sanitizer (KIND=address|threads ONLY=part of a name of the plugin's)
	scripts/sanitize.sh $(or $(KIND),address) $(ONLY)

reliability: deps ## Faults of processes, networks and the fake: what is promised, and what is seen (SCHEDULES=100000)
	scripts/reliability.sh $(or $(SCHEDULES),100000)

bench: deps stage fake-cuda ## Beside raw libfabric, and in instructions, as MEASURE lines (BENCH="puts signal staged channel connect instructions nccl")
	$(CARGO) run --locked --release -p nvshmem-bench -- $(or $(BENCH),puts signal staged channel connect instructions) \
		--plugin-dir "$(PLUGINS)" --libfabric2 "$$(scripts/libfabric2.sh)" --cuda-driver "$(FAKE_CUDA)"

# One of them: 'make bench-signal', 'make bench-instructions', 'make bench-nccl'.
bench-%:
	@$(MAKE) --no-print-directory bench BENCH=$*

fake-cuda: ## Build target/fake-cuda, a stand-in for CUDA's driver on machines without a GPU
	$(CARGO) build --locked --release -p fake-cuda
	@mkdir -p "$(FAKE_CUDA)"
	@ln -sf ../release/libfake_cuda.so "$(FAKE_CUDA)/libcuda.so.1"
	@ln -sf ../release/libfake_cuda.so "$(FAKE_CUDA)/libgdrapi.so.2"
	@echo "LD_LIBRARY_PATH=$(FAKE_CUDA) gives a program devices without a GPU"

labs: deps ## Build the laboratories and run them: NICs that are not here (LAB="efa cxi rdma" EXTENT=full VERSIONS=all INSTALL=1)
	EXTENT='$(EXTENT)' VERSIONS='$(VERSIONS)' INSTALL='$(INSTALL)' tools/labs/run.sh $(LAB)

gpu-kit: deps stage ## Collect in target/gpu-kit what 'make gpu' is on a machine without Rust
	tools/labs/gpu/kit.sh "$(PLUGINS)" "$(TARGET)/gpu-kit"

gpu: gpu-kit ## On a machine with a GPU, nvcc and an NVSHMEM: programs through our transport (GPU_ARGS="peers" "nccl" "clients")
	"$(TARGET)/gpu-kit/run.sh" $(GPU_ARGS)

gpu-tests: deps stage ## Collect in target/gpu-tests the tests on device memory, for a machine with a GPU
	tools/labs/gpu/kit.sh tests "$(PLUGINS)" "$(TARGET)/gpu-tests"

clean: ## Remove what was built and fetched
	$(CARGO) clean
	rm -rf ./.deps

# Targets that are gone say what to use.
gone = @echo "'make $@' is gone: $(1)" >&2; exit 2
.PHONY: injected soak cycles rail-lab efa-lab cxi-lab rdma-lab channel-check bench-bulk bench-efa \
	gpu-experts gpu-peers gpu-nccl gpu-clients sanitize-threads deny
injected: ; $(call gone,use 'make mutants')
soak: ; $(call gone,use 'make reliability')
cycles: ; $(call gone,'make test-full' has them)
rail-lab: ; $(call gone,tests/plugin has several rails)
efa-lab cxi-lab rdma-lab: ; $(call gone,use 'make labs LAB=$(firstword $(subst -, ,$@))')
bench-bulk: ; $(call gone,use 'make bench BENCH=puts')
bench-efa: ; $(call gone,use 'make bench BENCH=instructions')
gpu-experts channel-check: ; $(call gone,use 'make gpu')
gpu-peers gpu-nccl gpu-clients: ; $(call gone,use 'make gpu GPU_ARGS=$(@:gpu-%=%)')
sanitize-threads: ; $(call gone,use 'make sanitize KIND=threads')
deny: ; $(call gone,'scripts/check.sh full' has it)
