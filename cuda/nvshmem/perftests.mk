# NVSHMEM's public perftests, from a source tree of NVSHMEM 3.x, for one NVSHMEM and one CUDA toolkit:
#   make -f perftests.mk PERFTEST=tree/perftest NVSHMEM=prefix CUDA=toolkit OUT=directory -j
# They build against an NVSHMEM of another release than their own; what does not is left out with '-k'.
# Needs make, nvcc and a C++ compiler. Upstream's own build wants CMake packages that wheels lack.

PERFTEST ?= perftest
NVSHMEM ?= /usr/local/nvshmem
CUDA ?= $(patsubst %/bin/nvcc,%,$(shell command -v nvcc || echo /usr/local/cuda/bin/nvcc))
OUT ?= build
ARCHS ?= 80 90 100

POINTS := $(PERFTEST)/device/pt-to-pt
HOST_POINTS := $(PERFTEST)/host/pt-to-pt
DEVICE_TESTS := shmem_put_bw shmem_get_bw shmem_put_latency shmem_get_latency shmem_p_latency shmem_p_bw \
	shmem_g_latency shmem_put_signal_ping_pong_latency shmem_put_ping_pong_latency \
	shmem_signal_ping_pong_latency shmem_put_atomic_ping_pong_latency \
	shmem_atomic_ping_pong_latency shmem_atomic_latency shmem_atomic_bw
HOST_TESTS := bw latency

NVCC := $(CUDA)/bin/nvcc
FLAGS := -O2 -std=c++17 -rdc=true $(foreach arch,$(ARCHS),-gencode arch=compute_$(arch),code=sm_$(arch)) \
	-I$(PERFTEST)/common -I$(NVSHMEM)/include -I$(CUDA)/include/cccl
# Parts for launching by MPI stay unresolved: nothing here calls them.
LINK := -L$(NVSHMEM)/lib -L$(CUDA)/lib -L$(CUDA)/lib64/stubs -l:libnvshmem_host.so.3 -lnvshmem_device -lcuda \
	-Xlinker --unresolved-symbols=ignore-all -Xlinker -rpath,$(NVSHMEM)/lib

.PHONY: all
all: $(addprefix $(OUT)/,$(DEVICE_TESTS) $(HOST_TESTS))

$(OUT)/utils.o: $(PERFTEST)/common/utils.cu | $(OUT)
	$(NVCC) $(FLAGS) -dc $< -o $@

$(addprefix $(OUT)/,$(DEVICE_TESTS)): $(OUT)/%: $(POINTS)/%.cu $(OUT)/utils.o
	$(NVCC) $(FLAGS) $< $(OUT)/utils.o -o $@ $(LINK)

$(addprefix $(OUT)/,$(addsuffix .o,$(HOST_TESTS))): $(OUT)/%.o: $(HOST_POINTS)/%.cpp | $(OUT)
	$(NVCC) $(FLAGS) -x cu -dc $< -o $@

$(addprefix $(OUT)/,$(HOST_TESTS)): %: %.o $(OUT)/utils.o
	$(NVCC) $(FLAGS) $^ -o $@ $(LINK)

$(OUT):
	mkdir -p $@
