# NVSHMEM transport for libfabric. 'make help' lists the targets.

PREFIX ?= /usr/local
# Where cargo builds, made absolute for the programs that run elsewhere.
TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))
# What tests, demo and benches load: never what is installed on the machine.
STAGE := $(TARGET)/install
PLUGINS := $(STAGE)/lib
CARGO := scripts/cargo

.DEFAULT_GOAL := build

.PHONY: help
help: ## List the targets
	@sed -nE 's/^([a-z0-9-]+):.*## (.*)/\1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-16s %s\n", $$1, $$2 }'

.PHONY: deps
deps: ## Install what building and testing need and this machine lacks
	@scripts/deps.sh test

.PHONY: build-deps
build-deps: ## Install what building and 'make demo' need, which is less
	@scripts/deps.sh build

.PHONY: build
build: ## Build the plugins for NVSHMEM and NCCL and the device channel's library, optimised
	$(CARGO) build --locked --release --lib
	$(CARGO) build --locked --release -p nvshmem-libfabric-channel -p nccl-rma-nvshmem-libfabric

.PHONY: tool
tool: ## Build target/release/nvshmem-libfabric, the tool for users, and the recorder that it puts in front of a transport
	$(CARGO) build --locked --release -p nvshmem-libfabric -p nvshmem-recorder

.PHONY: stage
stage: build tool
	rm -rf $(STAGE)/include
	scripts/install.sh $(TARGET)/release/libnvshmem_transport_libfabric.so $(PLUGINS)
	scripts/install.sh $(TARGET)/release/libnvshmem_transport_recorder.so $(PLUGINS) recorder
	scripts/install-nccl.sh $(TARGET)/release/libnccl_rma_nvshmem_libfabric.so $(PLUGINS)
	scripts/install-channel.sh $(TARGET)/release/libnvshmem_libfabric_channel.so $(STAGE)
	install -D -m 755 --strip $(TARGET)/release/nvshmem-libfabric $(STAGE)/bin/nvshmem-libfabric

# The same where a source is newer, and not else: between the plugin alone and the tool, cargo
# builds the plugin's crate anew each time.
$(STAGE)/bin/nvshmem-libfabric: Cargo.toml Cargo.lock build.rs $(shell find src crates tools -name '*.rs' -o -name '*.toml')
	$(MAKE) --no-print-directory stage

.PHONY: install
install: stage ## Install in PREFIX (/usr/local): the tool, its manual and completions, plugins, recorder, and the device channel for C, pkg-config and CMake
	$(STAGE)/bin/nvshmem-libfabric install --prefix "$(PREFIX)"

.PHONY: uninstall
uninstall: ## Remove from PREFIX what 'make install', or the tool's own 'install --prefix', has put there
	@test -x "$(PREFIX)/bin/nvshmem-libfabric" || { echo "$(PREFIX) has no nvshmem-libfabric: name another PREFIX" >&2; exit 1; }
	"$(PREFIX)/bin/nvshmem-libfabric" uninstall --prefix "$(PREFIX)"

# Kinds of package, of 'wheel' and 'deb'; all of them without one.
PACKAGES ?=
.PHONY: package
package: ## Make packages in target/package: a wheel for pip, a .deb, release notes, SHA256SUMS (PACKAGES="wheel deb")
	@scripts/deps.sh package
	rm -rf $(TARGET)/package-prefix
	$(MAKE) --no-print-directory install PREFIX=$(TARGET)/package-prefix
	scripts/package.sh $(TARGET)/package-prefix $(TARGET)/package $(PACKAGES)

.PHONY: plugins
plugins: build
	@scripts/install.sh $(TARGET)/release/libnvshmem_transport_libfabric.so $(PLUGINS)
	@scripts/install-nccl.sh $(TARGET)/release/libnccl_rma_nvshmem_libfabric.so $(PLUGINS)

# A directory for LD_LIBRARY_PATH: a CUDA driver and a GDRCopy for machines without a GPU.
FAKE_CUDA := $(TARGET)/fake-cuda

.PHONY: fake-cuda
fake-cuda:
	$(CARGO) build --locked --release -p fake-cuda -p fake-gdrcopy
	@mkdir -p $(FAKE_CUDA)
	@ln -sf ../release/libfake_cuda.so $(FAKE_CUDA)/libcuda.so.1
	@ln -sf ../release/libfake_cuda.so $(FAKE_CUDA)/libcudart.so
	@ln -sf ../release/libfake_gdrcopy.so $(FAKE_CUDA)/libgdrapi.so.2
	@echo "LD_LIBRARY_PATH=$(FAKE_CUDA) gives a program devices without a GPU"

.PHONY: fresh
fresh: ## README's first commands in minimal trees of Debian 12 and 13, made for it; needs root (TREES="bookworm trixie")
	scripts/fresh.sh $(TREES)

.PHONY: check
check: ## Check formatting and lints
	scripts/check.sh

.PHONY: deny
deny: ## Check licences and origins of the crates that are built, with cargo-deny
	scripts/deny.sh --install

.PHONY: bindings
bindings: ## Make the checked-in bindings anew from the C headers; needs libclang
	scripts/bindings.sh

.PHONY: cuda-compiler
cuda-compiler: deps
	@echo "kernels by: $$(scripts/cuda-compiler.sh)"

.PHONY: nvshmem-programs
nvshmem-programs: deps ## Compile the NVSHMEM programs against the releases that the plugin is for
	scripts/nvshmem-programs.sh $(TARGET)/nvshmem

.PHONY: edit
edit: ## While changing the engine: its unit tests and its protocol on the fake, with few seeds
	CARGO_PROFILE_CHECKED_INCREMENTAL=true NVSHMEM_TEST_SEEDS=$(or $(NVSHMEM_TEST_SEEDS),10) \
		$(CARGO) test --locked --profile checked -p engine --lib --test engine

.PHONY: quick
quick: ## Tests to run while working: a minute, once built
	scripts/test.sh quick

.PHONY: test
test: deps ## Lints and tests of everything, some 22 minutes with their builds
	scripts/test.sh test

.PHONY: test-full
test-full: deps ## The same at full length: every combination, every NVSHMEM, more seeds
	scripts/test.sh full

.PHONY: injected
injected: ## Break the code on purpose, bug after bug: the tests named for each have to notice (BUG=word)
	NVSHMEM_TEST_LIBFABRIC2=$${NVSHMEM_TEST_LIBFABRIC2-$$(scripts/libfabric2.sh)} \
		NVSHMEM_TEST_LIBFABRIC_CUDA=$${NVSHMEM_TEST_LIBFABRIC_CUDA-$$(scripts/libfabric-cuda.sh)} scripts/injected.sh $(BUG)

# What is mutated, and how many mutants are drawn; all of them without a number.
PART ?= engine
.PHONY: mutants
mutants: ## Count which small changes of a part the tests notice (PART=engine|abi|job|channel|cuda|ofi COUNT=number SEED=1 MODULE=name OPTIONS="of cargo-mutants")
	scripts/mutants.sh $(PART) '$(COUNT)' '$(SEED)' $(OPTIONS)

.PHONY: fuzz
fuzz: ## Arbitrary bytes for what reads bytes of others, by libFuzzer (COUNT=executions of each ONLY="targets")
	scripts/fuzz.sh $(or $(COUNT),1000000) $(ONLY)

.PHONY: sanitize
sanitize: ## Tests with every read and write of memory checked by AddressSanitizer (ONLY=part of a name of the plugin's)
	scripts/sanitize.sh $(ONLY)

.PHONY: sanitize-threads
sanitize-threads: ## The same by ThreadSanitizer: races between threads. Needs clang and the sources of Rust's library
	scripts/sanitize-threads.sh $(ONLY)

.PHONY: reliability
reliability: deps ## Faults of processes, networks and the fake: what is promised, and what is seen (SCHEDULES=100000)
	scripts/reliability.sh $(or $(SCHEDULES),100000)

MINUTES ?= 30
.PHONY: soak
soak: deps ## Jobs under faults that go on for MINUTES (30), every byte and what processes hold looked at
	scripts/soak.sh $(MINUTES)

.PHONY: cycles
cycles: deps ## Jobs that begin and end a thousand times (COUNT) in one process: what it has stays what it is
	NVSHMEM_TEST_LIBFABRIC2=$${NVSHMEM_TEST_LIBFABRIC2-$$(scripts/libfabric2.sh)} NVSHMEM_TEST_CYCLES=$(or $(COUNT),1000) \
		$(CARGO) test --locked --profile checked --workspace --test channel --test nccl -- cycles --nocapture

.PHONY: nccl-programs
nccl-programs: deps ## Compile the programs for NCCL's RMA and GIN against two releases of NCCL
	scripts/nccl-programs.sh $(TARGET)/nccl

.PHONY: gpu-tests
gpu-tests: deps plugins ## Collect in target/gpu-tests the tests on device memory, for a machine with a GPU
	scripts/gpu-tests.sh $(PLUGINS) $(TARGET)/gpu-tests

.PHONY: gpu-kit
gpu-kit: deps plugins cuda-compiler ## Collect in target/gpu-kit what 'make gpu' is on a machine without Rust
	scripts/gpu-kit.sh $(PLUGINS) $(TARGET)/gpu-kit

.PHONY: gpu
gpu: gpu-kit ## On a machine with a GPU, nvcc and an NVSHMEM: its programs through our transport
	$(TARGET)/gpu-kit/run.sh $(GPU_ARGS)

.PHONY: gpu-experts
gpu-experts: gpu-kit ## On a machine with a GPU: a mixture of experts on NVSHMEM's device API and on our channel, compared
	$(TARGET)/gpu-kit/run.sh experts

.PHONY: gpu-peers
gpu-peers: gpu-kit ## On a machine with two GPUs: this transport and NCCL of PyTorch by turns, as MEASURE lines
	$(TARGET)/gpu-kit/run.sh peers

.PHONY: gpu-nccl
gpu-nccl: gpu-kit ## On a machine with a GPU, nvcc and an NCCL from 2.30.7 on: its RMA and GIN through our plugin
	$(TARGET)/gpu-kit/run.sh nccl $(GPU_ARGS)

.PHONY: gpu-clients
gpu-clients: gpu-kit ## On a machine with a GPU: PyTorch, nvshmem4py, tests of others, and Triton and Numba on the channel
	$(TARGET)/gpu-kit/run.sh clients $(GPU_ARGS)

.PHONY: channel-check
channel-check: deps cuda-compiler ## Build target/release/nvshmem-channel-check: the device channel on a GPU, checked and measured
	$(CARGO) build --locked --release -p channel-check

.PHONY: device-bitcode
device-bitcode: ## Build target/libnvshmem_libfabric_device.bc and .ptx: the device API for Triton and Numba, checked; needs clang
	scripts/device-bitcode.sh $(TARGET)/libnvshmem_libfabric_device

.PHONY: demo
demo: build-deps $(STAGE)/bin/nvshmem-libfabric ## Two PEs, two rails on loopback TCP: bandwidth, latency, message rate
	$(STAGE)/bin/nvshmem-libfabric perf --provider tcp --devices 127.0.0.1,127.0.0.2

# What 'make bench' measures, of puts, signal, staged, channel, connect, instructions and nccl.
BENCH ?= puts instructions

.PHONY: bench
bench: deps plugins fake-cuda ## The plugin beside raw libfabric, and in instructions, as MEASURE lines (BENCH="puts signal staged channel connect instructions nccl")
	libfabric2=$$(scripts/libfabric2.sh) && \
	$(CARGO) run --locked --release -p nvshmem-bench -- $(BENCH) \
		--plugin-dir $(PLUGINS) --libfabric2 $$libfabric2 --cuda-driver $(FAKE_CUDA)

# One of them: 'make bench-signal', 'make bench-instructions', 'make bench-nccl'.
bench-%:
	@$(MAKE) --no-print-directory bench BENCH=$*

.PHONY: rail-lab
rail-lab: deps plugins ## Several hosts with several rails on this machine, as MEASURE lines; needs root
	libfabric2=$$(scripts/libfabric2.sh) && \
	$(CARGO) run --locked --release -p rail-lab -- \
		--plugin-dir $(PLUGINS) --libfabric $$libfabric2

.PHONY: efa-lab
efa-lab: deps ## The plugin over libfabric's efa provider, on EFA NICs that are not there, as a table; VERSIONS=all: over more libfabrics
	VERSIONS='$(VERSIONS)' NVSHMEM_TEST_LIBFABRIC2=$${NVSHMEM_TEST_LIBFABRIC2-$$(scripts/libfabric2.sh)} scripts/efa-lab.sh

.PHONY: cxi-lab
cxi-lab: deps ## The plugin on a persona of cxi, which keeps cxi's rules over tcp, as a table
	NVSHMEM_TEST_LIBFABRIC2=$${NVSHMEM_TEST_LIBFABRIC2-$$(scripts/libfabric2.sh)} scripts/cxi-lab.sh

.PHONY: rdma-lab
rdma-lab: ## The plugin over kernel verbs, on soft RoCE in one guest and in two, as a table; installs QEMU
	NVSHMEM_TEST_LIBFABRIC2=$${NVSHMEM_TEST_LIBFABRIC2-$$(scripts/libfabric2.sh)} scripts/rdma-lab.sh

.PHONY: libfabric2
libfabric2: ## Fetch a libfabric 2.x to test against and print its path
	@scripts/libfabric2.sh

.PHONY: clean
clean: ## Remove what was built and fetched
	$(CARGO) clean
	rm -rf .deps
