# prorata: what a person types. `make help` lists it all.

BUILD := build
JOBS  ?= $(shell nproc)
CMAKE_STAMP := $(BUILD)/build.ninja

.DEFAULT_GOAL := help
.PHONY: help setup setup-ccache build package kubernetes kubernetes-configured e2e-kubernetes e2e-kubernetes-main everything demo test test-unit test-compatibility scenarios simulate bench placement gpu-check generate format lint layers check soak stress \
        asan-ubsan asan-ubsan-build tsan tsan-build fuzz hooks clean

help:
	@echo 'make demo        install what is missing, build, share one GPU between three programs'
	@echo 'make test        install what is missing, build, run all tests'
	@echo 'make test-unit   those of one source file each, in a minute: no processes, no engines'
	@echo 'make test-compatibility  NVIDIA libraries, PyTorch, JAX and more on the simulated GPU: fetches 7 GB (TIER=light: 1.4 GB)'
	@echo 'make scenarios   scenario files in many processes and on the virtual clock: do they agree?'
	@echo 'make build       programs in build/bin, client library in build/lib, simulated driver in build/sim'
	@echo 'make everything  the same with tests and benchmarks, for make gpu-check and those who change prorata'
	@echo 'make package     Debian packages of them, in build/packages: prorata, and prorata-kubernetes; and a Helm chart'
	@echo 'make kubernetes  prorata-kubernetes, which needs gRPC: installs it'
	@echo 'make e2e-kubernetes  a real Kubernetes, built from its Go modules (needs Go 1.26; 8 minutes the first time), and prorata in it'
	@echo 'make e2e-kubernetes-main  two pods by claims, two by resources, restarts: what .ci/run runs of it'
	@echo 'make simulate    scenarios and random worlds in one process, on a virtual clock'
	@echo 'make bench       what the client library adds to each driver call; what programs get of a GPU, with and without prorata'
	@echo 'make placement   ten placement policies on a public trace: writes docs/reports/placement.md, docs/reports/placement.svg'
	@echo 'make gpu-check   on a machine with an NVIDIA driver, from a build carried there'
	@echo 'make soak        kill at random for MINUTES=5 (SEED=n repeats one): processes, programs, agents'
	@echo 'make stress      64 threads in 8 processes of one share, every allocator: never above the limit'
	@echo 'make generate    write generated/ and docs/reference/ anew from spec/ and the API'"'"'s tables'
	@echo 'make check       format, clang-tidy, layers, words, generated code, links of the documents'
	@echo 'make asan-ubsan  the tests that can run under AddressSanitizer and UBSan; also: tsan, fuzz'
	@echo 'make hooks       have git check commit messages as you commit'
	@echo 'make format      lay out the C++ sources with clang-format 19'

# Installs distribution packages; does nothing, and needs no network, where all are there.
setup:
	@scripts/setup.sh build

$(CMAKE_STAMP): CMakeLists.txt CMakePresets.json
	cmake --preset release

# No more than what runs a program on a share: tests and benchmarks are the other half of the objects.
build: setup $(CMAKE_STAMP)
	@cmake --build --preset release --target programs -- -j$(JOBS)

# For who builds again, or builds a second clone on the same machine; before CMake looks for it.
setup-ccache: setup
	@scripts/setup.sh ccache

everything: setup-ccache $(CMAKE_STAMP)
	@scripts/setup.sh pytest $(BUILD)
	@$(MAKE) --no-print-directory kubernetes-configured
	@cmake --build --preset release -- -j$(JOBS)
	@git describe --always --dirty --abbrev=40 >$(BUILD)/commit 2>/dev/null || rm -f $(BUILD)/commit

# Once it was asked for, the build folder keeps it.
kubernetes-configured: $(CMAKE_STAMP)
	@scripts/setup.sh kubernetes
	@grep -q '^PRORATA_KUBERNETES:BOOL=ON' $(BUILD)/CMakeCache.txt || cmake --preset release -DPRORATA_KUBERNETES=ON

kubernetes: build kubernetes-configured
	@cmake --build --preset release --target prorata-kubernetes -- -j$(JOBS)

package: kubernetes
	@cd $(BUILD) && rm -rf packages && cpack >/dev/null && ls packages/*.deb
	@scripts/helm_chart.py $(BUILD)/packages

e2e-kubernetes: everything
	@scripts/setup.sh kubernetes-tests
	@scripts/kubernetes_build.py $(BUILD)
	@scripts/run_tests.py --build $(BUILD) -- -v tests/kubernetes

# A few of them, for .ci/run: two minutes where Go's caches have the modules. Without Go they are skipped by name.
e2e-kubernetes-main: everything
	@scripts/setup.sh kubernetes-tests
	@scripts/kubernetes_build.py $(BUILD) containerd kubernetes || [ $$? = 3 ]
	@PRORATA_TEST_API_AWAY_S=5 scripts/run_tests.py --build $(BUILD) --label main-flows

# Not part of `make test`: what it fetches is big. Says how big before it does.
test-compatibility: everything
	@scripts/setup.sh cuda-venv $(BUILD)
	@scripts/setup.sh compatibility $(BUILD) $(or $(TIER),all)
	@tests/compatibility/run.py --build $(BUILD) --tier $(or $(TIER),all)
	@PRORATA_TEST_COMPATIBILITY=$(or $(TIER),all) scripts/run_tests.py --build $(BUILD) -- tests/containers/test_pytorch.py tests/kubernetes/test_pytorch.py

# In full length; `make test` runs shortened ones. Ends with 77 where the machine was too noisy.
scenarios: everything
	@tests/scenarios/run_processes.py --build $(BUILD) --tries 3 tests/scenarios/*.toml

demo: build
	@scripts/demo.py --build $(BUILD)

test: everything
	@scripts/setup.sh cuda-venv $(BUILD)
	@scripts/setup.sh nvidia-smi $(BUILD)
	@scripts/setup.sh containers
	@scripts/setup.sh kubernetes-tests
	@scripts/setup.sh userlands $(BUILD)
	@scripts/run_tests.py --build $(BUILD) --label all

test-unit: everything
	@scripts/run_tests.py --build $(BUILD) --label unit

# Its exit status says whether everything that the scenarios expect was met.
simulate: setup $(CMAKE_STAMP)
	@cmake --build --preset release --target simulation -- -j$(JOBS)
	@$(BUILD)/bin/simulation --random --runs 1000
	@$(BUILD)/bin/simulation --table $(sort $(wildcard tests/scenarios/*.toml tests/scenarios/unmet/*.toml))

bench: everything
	@scripts/setup.sh plots
	@scripts/bench.py --build $(BUILD)

# Ten runs of each policy; exit status 1 where a target is missed.
placement: setup $(CMAKE_STAMP)
	@cmake --build --preset release --target prorata -- -j$(JOBS)
	@bench/placement/compare.py --build $(BUILD)

# Builds nothing: run it where the GPU is, with the build folder carried there.
gpu-check:
	@scripts/gpu_check.py --build $(BUILD)

# Four times SECONDS_EACH: all allocators at once; the same with processes, and with agents, killed;
# and two shares that were promised more than there is.
stress: everything
	@PRORATA_STRESS_SECONDS=$(or $(SECONDS_EACH),60) $(if $(SEED),PRORATA_TEST_SEED=$(SEED)) \
		scripts/run_tests.py --build $(BUILD) -- -v -s tests/stress/test_stress.py tests/stress/test_overcommit.py

soak: everything
	@PRORATA_BUILD_DIR=$(BUILD) tests/soak/soak.py --minutes $(or $(MINUTES),5) $(if $(SEED),--seed $(SEED))

generate: $(CMAKE_STAMP)
	python3 codegen/generate.py
	@cmake --build --preset release --target api-reference -- -j$(JOBS)
	$(BUILD)/bin/api-reference docs/reference/control.md

format:
	@scripts/lint.py --format --fix

check:
	@scripts/setup.sh lint
	@scripts/setup.sh checkers $(BUILD)
	@scripts/lint.py --all $(if $(ALL),--each) --build $(BUILD)

layers:
	@scripts/lint.py --layers --build $(BUILD)

# Fresh, because CMake forgets the options of the preset when the compiler changes; but not each time, for then everything is
# compiled anew.
$(BUILD)/asan-ubsan/build.ninja $(BUILD)/tsan/build.ninja: CMakeLists.txt CMakePresets.json
	@scripts/setup.sh lint
	@scripts/setup.sh kubernetes
	cmake --fresh --preset $(notdir $(@D)) -DPRORATA_KUBERNETES=ON

# Compiles what asan-ubsan and tsan run, and runs none of it.
asan-ubsan-build tsan-build: %-build: setup-ccache $(BUILD)/%/build.ninja
	cmake --build --preset $* -- -j$(JOBS)

asan-ubsan tsan: %: %-build
	@scripts/setup.sh pytest $(BUILD)
	@scripts/run_tests.py --build $(BUILD)/$@ --label $@

fuzz: setup-ccache
	@scripts/setup.sh lint
	cmake --preset fuzz
	cmake --build --preset fuzz -- -j$(JOBS)
	@scripts/run_fuzzers.py --build $(BUILD)/fuzzers --seconds $(or $(SECONDS_EACH),10)

hooks:
	git config core.hooksPath scripts/hooks

clean:
	rm -rf $(BUILD)
