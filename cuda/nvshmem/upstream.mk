# NVSHMEM's public perftests and examples, from a source tree of NVSHMEM 3.x, for one NVSHMEM and one CUDA toolkit:
#   make -f upstream.mk perftests PERFTEST=tree/perftest NVSHMEM=prefix CUDA=toolkit OUT=directory -j
#   make -f upstream.mk examples EXAMPLES=tree/examples NVSHMEM=prefix CUDA=toolkit OUT=directory -j
# and the all-to-all of a mixture of experts from a source tree of pplx-kernels, its test and its bench:
#   make -f upstream.mk pplx PPLX=tree/csrc NVSHMEM=prefix CUDA=toolkit OUT=directory -j
# They build against an NVSHMEM of another release than their own; what does not is left out with '-k'.
# Needs make, nvcc and a C++ compiler. Upstream's own build wants CMake packages that wheels lack.

PERFTEST ?= perftest
EXAMPLES ?= examples
PPLX ?= csrc
NVSHMEM ?= /usr/local/nvshmem
CUDA ?= $(patsubst %/bin/nvcc,%,$(shell command -v nvcc || echo /usr/local/cuda/bin/nvcc))
OUT ?= build
ARCHS ?= 80 90 100

# shmem_st_bw is left out: it stores to peers' memory itself, which takes P2P.
DEVICE_TESTS := shmem_put_bw shmem_get_bw shmem_put_latency shmem_get_latency shmem_p_latency shmem_p_bw \
	shmem_g_latency shmem_g_bw shmem_put_signal_ping_pong_latency shmem_put_ping_pong_latency \
	shmem_p_ping_pong_latency shmem_signal_ping_pong_latency shmem_put_atomic_ping_pong_latency \
	shmem_atomic_ping_pong_latency shmem_atomic_latency shmem_atomic_bw barrier_latency sync_latency \
	alltoall_latency bcast_latency fcollect_latency reducescatter_latency reduction_latency
HOST_TESTS := bw latency barrier_on_stream barrier_all_on_stream sync_on_stream sync_all_on_stream \
	alltoall_on_stream broadcast_on_stream fcollect_on_stream reducescatter_on_stream reduction_on_stream

# Those that are started by MPI or SHMEM are left out, gemm_allreduce, which is for another GPU and wants
# CUTLASS, and put-block, which looks at its data while its peer may still be putting it.
EXAMPLE_TESTS := collective-launch dev-guide-ring moe_shuffle on-stream ring-bcast ring-reduce thread-group \
	user-buffer

NVCC := $(CUDA)/bin/nvcc
FLAGS := -O2 -std=c++17 -rdc=true $(foreach arch,$(ARCHS),-gencode arch=compute_$(arch),code=sm_$(arch)) \
	-I$(PERFTEST)/common -I$(NVSHMEM)/include -I$(CUDA)/include/cccl
HERE := $(dir $(abspath $(lastword $(MAKEFILE_LIST))))
# Parts for launching by MPI stay unresolved: nothing here calls them.
LINK := -L$(NVSHMEM)/lib -L$(CUDA)/lib -L$(CUDA)/lib64/stubs -l:libnvshmem_host.so.3 -lnvshmem_device -lcuda \
	-Xlinker --unresolved-symbols=ignore-all -Xlinker -rpath,$(NVSHMEM)/lib

.PHONY: perftests
perftests: $(addprefix $(OUT)/,$(DEVICE_TESTS) $(HOST_TESTS))

$(OUT)/utils.o: $(PERFTEST)/common/utils.cu | $(OUT)
	$(NVCC) $(FLAGS) -dc $< -o $@

# Their sources are in two directories each.
vpath %.cu $(PERFTEST)/device/pt-to-pt $(PERFTEST)/device/coll
vpath %.cpp $(PERFTEST)/host/pt-to-pt $(PERFTEST)/host/coll

$(addprefix $(OUT)/,$(DEVICE_TESTS)): $(OUT)/%: %.cu $(OUT)/utils.o
	$(NVCC) $(FLAGS) $< $(OUT)/utils.o -o $@ $(LINK)

$(addprefix $(OUT)/,$(addsuffix .o,$(HOST_TESTS))): $(OUT)/%.o: %.cpp | $(OUT)
	$(NVCC) $(FLAGS) -x cu -dc $< -o $@

$(addprefix $(OUT)/,$(HOST_TESTS)): %: %.o $(OUT)/utils.o
	$(NVCC) $(FLAGS) $^ -o $@ $(LINK)

.PHONY: examples
examples: $(addprefix $(OUT)/,$(EXAMPLE_TESTS))

$(addprefix $(OUT)/,$(EXAMPLE_TESTS)): $(OUT)/%: $(EXAMPLES)/%.cu $(HERE)fewer-gpus.h | $(OUT)
	$(NVCC) $(FLAGS) -include $(HERE)fewer-gpus.h $< -o $@ $(LINK)

# Their processes come together by a unique id where they would by MPI.
PPLX_PARTS := core/kernels.cu core/distributed.cpp all_to_all/all_to_all.cpp all_to_all/internode.cpp \
	all_to_all/internode_combine.cu all_to_all/internode_dispatch.cu all_to_all/intranode.cpp \
	all_to_all/intranode_combine.cu all_to_all/intranode_dispatch.cu
PPLX_PROGRAMS := test_all_to_all bench_all_to_all
PPLX_FLAGS := $(FLAGS) --expt-relaxed-constexpr -w -I$(PPLX) -I$(HERE)mpi -isystem $(CUDA)/include
PPLX_OBJECTS := $(PPLX_PARTS:%=$(OUT)/pplx/%.o)

.PHONY: pplx
pplx: $(PPLX_PROGRAMS:%=$(OUT)/pplx_%)

$(OUT)/pplx/%.o: $(PPLX)/% $(HERE)mpi/mpi.h
	@mkdir -p $(dir $@)
	$(NVCC) $(PPLX_FLAGS) -include $(HERE)fewer-gpus.h -x cu -dc $< -o $@

$(PPLX_PROGRAMS:%=$(OUT)/pplx_%): $(OUT)/pplx_%: $(OUT)/pplx/all_to_all/%.cpp.o $(PPLX_OBJECTS)
	$(NVCC) $(FLAGS) $^ -o $@ $(LINK)

$(OUT):
	mkdir -p $@
