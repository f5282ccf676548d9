# The development commands. CMake does the work (CMakePresets.json).
#
# Everything here works without root as long as the tools are installed; scripts/setup.sh installs
# what a command needs and nothing more where it may, and otherwise says what is missing.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

JOBS ?= $(shell nproc 2>/dev/null || echo 2)
TEST_JOBS ?= 2
PREFIX ?= /usr/local
DESTDIR ?=
BENCH_ARGS ?=
# auto: the first GPU that there are kernels for, else the CPU.
DEVICE ?= auto
TEST_ARGS ?=
PYTEST_ARGS ?=
RUST ?= 1
# 1: a build without GPU kernels is intended, although this machine may have a GPU.
CPU_ONLY ?= 0
# Under sanitizers everything is several times slower, so tests labeled slow stay out. CI takes a
# sample: SANITIZE_ARGS="-LE slow -I 1,,3" runs every third test.
SANITIZE_ARGS ?= -LE slow
GCC_ARGS ?= -LE slow
FUZZ_SECONDS ?= 60
FUZZ_RUNS ?= -1

ifeq ($(CPU_ONLY),1)
  export ROCFLASH_CPU_ONLY = 1
  NO_KERNELS = -DROCFLASH_GPU_ARCHS=none
else ifneq ($(CPU_ONLY),0)
  $(error CPU_ONLY: $(CPU_ONLY); must be 0 or 1)
endif

# A compiler named on the command line or in the environment wins; otherwise setup.sh knows
# whether clang 22 is installed or GCC is used instead.
ifneq ($(origin CXX),default)
  COMPILERS = -DCMAKE_CXX_COMPILER=$(CXX) $(if $(filter-out default,$(origin CC)),-DCMAKE_C_COMPILER=$(CC))
else
  COMPILERS = $$(scripts/setup.sh --cmake-compilers)
endif
# Evaluated when a recipe runs, after setup may have installed ninja.
GENERATOR = $$(command -v ninja >/dev/null && echo "-G Ninja" || echo "-G 'Unix Makefiles'")

.PHONY: help setup setup-verify setup-test build library library-here verify verify-hip verify-cuda test kernels report wheels docs docs-serve dist \
  bench bench-options fuzz sanitize sanitize-address sanitize-thread gcc simulator packaging format format-check spelling static \
  mypy tidy lint hooks install clean

help:
	@echo "rocflash: exact attention. Usage: make TARGET [VARIABLE=value]"
	@echo
	@echo "  verify    build library and command, check the best device against the reference, and time it   DEVICE=$(DEVICE) CPU_ONLY=$(CPU_ONLY)"
	@echo "  verify-hip   all checks on an AMD GPU; skipped without one"
	@echo "  verify-cuda  all checks on an NVIDIA GPU; skipped without one"
	@echo "  test      build and run all tests                           TEST_JOBS=$(TEST_JOBS) TEST_ARGS= PYTEST_ARGS= RUST=$(RUST)"
	@echo "  kernels   build, print registers, memory and occupancy of every GPU kernel (as build/kernels/report.txt and .json)"
	@echo "  docs      build the site of these documents into build/site, strictly; docs-serve shows it at localhost:8000"
	@echo "  wheels    build and check the Python wheels, into dist/, with bills of materials and checksums"
	@echo "  dist      wheels, Debian packages and a stamped wheel, from two builds that must agree bit by bit, tried out"
	@echo "  bench     build, print speed and errors on the CPU next to torch's attention, with goals; JSON and plot   BENCH_ARGS="
	@echo "  bench-options  the same for short sequences, options, windows, varlen, AVX2   BENCH_ARGS="
	@echo "  sanitize  run the tests under the address, undefined-behavior and thread sanitizers (or sanitize-address, sanitize-thread)"
	@echo "  gcc       build the library, the command and their tests with GCC, and run them"
	@echo "  simulator, packaging  the tests of the simulator, and those of wheels, packages and workflows"
	@echo "  fuzz      fuzz the C ABI                                    FUZZ_SECONDS=$(FUZZ_SECONDS) FUZZ_RUNS=$(FUZZ_RUNS) (-1: no limit)"
	@echo "  format    rewrite C, C++ and Python with clang-format and ruff; format-check only looks"
	@echo "  spelling  check the vocabulary (docs/reference/glossary.md) and the spelling of code, comments and documents"
	@echo "  lint      all static checks: spelling, static (ShellCheck, actionlint, ruff), mypy, tidy (clang-tidy; slow)"
	@echo "  hooks     install the Git hooks of .pre-commit-config.yaml"
	@echo "  install   install library, headers, command and docs        PREFIX=$(PREFIX) DESTDIR=$(DESTDIR)"
	@echo "  setup     install what is missing for all of these (apt, as root or through sudo), or say what it is"
	@echo "  library   configure and compile the library and the command into build/, with kernels for all GPUs   JOBS=$(JOBS) CC= CXX="
	@echo "  build     the same, with the tests, the simulator and the examples"
	@echo "  clean     remove build directories"

# $(call configure,preset,directory,options): once per directory; CMake itself notices later
# changes.
define configure
	@if [[ ! -e $(2)/build.ninja && ! -e $(2)/Makefile ]]; then \
	  echo "== configure $(2)"; \
	  eval cmake --preset $(1) -B $(2) $(GENERATOR) $(3) --log-level=WARNING; \
	fi
endef
# $(call compile,directory,targets): the build tool counts its steps.
define compile
	@echo "== build $(1)$(if $(2),: $(2))"
	@cmake --build $(1) --parallel $(JOBS) $(if $(2),--target $(2))
endef

# A stamp per level spares the search, and on machines without clang 22 a look into the package
# lists. More includes less.
setup: build/.setup-all
setup-test: build/.setup-test
setup-verify: build/.setup-verify
build/.setup-%: scripts/setup.sh
	@if [[ build/.setup-all -nt $< || ($* != all && build/.setup-test -nt $<) ]]; then :; else \
	  echo "== tools and libraries for level $*"; \
	  scripts/setup.sh $*; \
	fi
	@mkdir -p build && if [[ $(CPU_ONLY) == 0 ]]; then touch $@; fi

# A first result needs the library and the command, so that is what is configured; what the tests
# need may not even be installed. `make build` adds the rest to the same directory and compiles
# nothing again.
PARTS = ROCFLASH_BUILD_TESTS ROCFLASH_BUILD_SIM ROCFLASH_BUILD_EXAMPLES
# It needs no kernels of GPUs that this machine does not have: `make verify` configures native, and
# everything else adds the rest (three quarters of the work) before it compiles. CMake refuses to
# install or package a native build.
NATIVE = grep -qs '^ROCFLASH_GPU_ARCHS:[A-Z]*=native$$' build/CMakeCache.txt
# CPU_ONLY=1 holds for one command: the next one without it adds the kernels.
define no_longer_cpu_only
	@if [[ $(CPU_ONLY) == 0 && -e build/.cpu-only ]]; then \
	  echo "== configure build: with GPU kernels, no longer CPU_ONLY=1"; \
	  cmake -DROCFLASH_GPU_ARCHS=$(1) --log-level=WARNING build >/dev/null; \
	  rm build/.cpu-only; \
	fi
endef
# $(call mark_cpu_only): before the build is configured.
define mark_cpu_only
	@if [[ $(CPU_ONLY) == 1 && ! -e build/build.ninja && ! -e build/Makefile ]]; then mkdir -p build && touch build/.cpu-only; fi
endef
define library_only
	$(call mark_cpu_only)
	@if [[ ! -e build/build.ninja && ! -e build/Makefile ]]; then touch build/.library-only; fi
	$(call configure,release,build,$(COMPILERS) $(PARTS:%=-D%=OFF) $(1))
endef
define all_kernels
	$(call no_longer_cpu_only,all)
	@if $(NATIVE); then \
	  echo "== configure build: kernels of all GPUs, no longer only of those in this machine"; \
	  cmake -UROCFLASH_GPU_ARCHS --log-level=WARNING build >/dev/null; \
	fi
endef

library: setup-verify
	$(call all_kernels)
	$(call library_only,$(NO_KERNELS))
	$(call compile,build,rocflash rocflash_cli)

# The GPUs are looked for every time: one that has come since gets its kernels.
library-here: setup-verify
	$(call no_longer_cpu_only,native)
	$(call library_only,$(or $(NO_KERNELS),-DROCFLASH_GPU_ARCHS=native))
	@if $(NATIVE); then \
	  cmake --log-level=NOTICE build >/dev/null; \
	  echo "   (make library compiles the kernels of all GPUs; what is installed or packaged has them)"; \
	fi
	$(call compile,build,rocflash rocflash_cli)

build: setup-test
	$(call all_kernels)
	@if [[ -e build/.library-only ]]; then \
	  echo "== configure build: the tests, the simulator and the examples too"; \
	  cmake $(PARTS:%=-U%) --log-level=WARNING build >/dev/null; \
	  rm build/.library-only; \
	fi
	$(call mark_cpu_only)
	$(call configure,release,build,$(COMPILERS) $(NO_KERNELS))
	$(call compile,build)

verify:
	@echo "== 1 of 3: build the library with its kernels and the command; once, about 2 minutes on 2 cores"
	@$(MAKE) library-here
	@echo "== 2 of 3: check every feature against the double-precision reference; about 10 s on 2 cores"
	@build/bin/rocflash verify --quick --device $(DEVICE)
	@echo "== 3 of 3: time it, on the CPU next to naive attention, which materializes the scores; about 10 s"
	@build/bin/rocflash bench --device $(DEVICE)

verify-hip: build
	@scripts/verify_hip.sh

verify-cuda: build
	@scripts/verify_cuda.sh

test: build
	@echo "== tests 1 of 4: the library, the command, the kernels on the simulator"
	@ctest --test-dir build --parallel $(TEST_JOBS) --output-on-failure --no-tests=error $(TEST_ARGS)
	@echo "== tests 2 of 4: Python (its virtual environment is made once)"
	@scripts/python_tests.sh $(PYTEST_ARGS)
	@echo "== tests 3 of 4: packaging"
	@scripts/packaging_tests.sh
ifneq ($(RUST),0)
	@echo "== tests 4 of 4: Rust (crates are fetched and compiled once)"
	@scripts/rust_tests.sh
else
	@echo "== tests 4 of 4: Rust is left out (RUST=0)"
endif

# `report` is the former name, which `python -m rocflash.report` has, too.
kernels report: library
	@build/bin/rocflash kernels

# Needs no compiled library: API pages come from the header and from docstrings. Not --quiet: MkDocs
# counts only warnings that it prints, so a broken link would pass.
docs: export NO_MKDOCS_2_WARNING = 1
docs:
	@echo "== docs: the site into build/site (its virtual environment is made once)"
	@$$(scripts/python_env.sh docs) -m mkdocs build --strict
	@echo "   build/site/index.html"

docs-serve: export NO_MKDOCS_2_WARNING = 1
docs-serve:
	@$$(scripts/python_env.sh docs) -m mkdocs serve --watch include --watch python/rocflash

wheels: setup-test
	$(call all_kernels)
	$(call configure,release,build,$(COMPILERS))
	@echo "== wheels: rocflash, flash-attn, flash-attn-3 and flash-attn-4 into dist/"
	@JOBS=$(JOBS) scripts/wheels.sh

dist: build
	@JOBS=$(JOBS) scripts/dist.sh

# Both compare with torch, whose virtual environment is the one of the tests.
bench: build
	@echo "== bench: times, ratios and errors next to torch's attention, a few minutes (its virtual environment is made once)"
	@cmake --build build --target cpu_fma_peak >/dev/null
	@scripts/cpu_bench.sh cpu_vs_torch $(BENCH_ARGS)
	@scripts/cpu_bench.sh cpu_in_model

bench-options: build
	@echo "== bench: short sequences, options, windows, varlen, other instruction sets, a few minutes"
	@scripts/cpu_bench.sh cpu_features $(BENCH_ARGS)

sanitize: sanitize-address sanitize-thread

sanitize-address: setup
	$(call configure,asan,build-asan,$(NO_KERNELS))
	$(call compile,build-asan)
	@echo "== test under the address and undefined-behavior sanitizers"
	@ctest --test-dir build-asan --parallel $(TEST_JOBS) --output-on-failure --no-tests=error $(SANITIZE_ARGS)

sanitize-thread: setup
	$(call configure,tsan,build-tsan,$(NO_KERNELS))
	$(call compile,build-tsan)
	@echo "== test under the thread sanitizer"
	@ctest --test-dir build-tsan --parallel $(TEST_JOBS) --output-on-failure --no-tests=error $(SANITIZE_ARGS)

# The host code alone: GPU kernels and the simulator need clang.
gcc: setup-test
	$(call configure,gcc,build-gcc,-DROCFLASH_GPU_ARCHS=none -DROCFLASH_BUILD_SIM=OFF)
	$(call compile,build-gcc)
	@echo "== test the build of GCC"
	@ctest --test-dir build-gcc --parallel $(TEST_JOBS) --output-on-failure --no-tests=error $(GCC_ARGS)

simulator: build
	@echo "== test the simulator, and the GPU kernels on it"
	@ctest --test-dir build --parallel $(TEST_JOBS) --output-on-failure --no-tests=error -L 'sim|gpu'

packaging: build
	@echo "== test packaging"
	@scripts/packaging_tests.sh

# The corpus stays between runs, so each run starts where the last one ended.
fuzz: setup
	$(call configure,fuzz,build-fuzz)
	$(call compile,build-fuzz)
	@echo "== fuzz the C ABI: at most $(FUZZ_SECONDS) s, $(FUZZ_RUNS) calls (-1: no limit)"
	@mkdir -p build-fuzz/corpus
	@build-fuzz/bin/fuzz_c_api -max_total_time=$(FUZZ_SECONDS) -runs=$(FUZZ_RUNS) -print_final_stats=1 \
	  -artifact_prefix=build-fuzz/ build-fuzz/corpus

format:
	@echo "== format"
	@scripts/format.sh

format-check:
	@echo "== format: check"
	@scripts/format.sh --check

spelling:
	@echo "== spelling"
	@scripts/spelling.sh

static:
	@echo "== static checks"
	@scripts/lint.sh static

mypy:
	@echo "== types"
	@scripts/lint.sh mypy

# clang-tidy needs to know how files are compiled, not the compiled files.
tidy: setup
	$(call configure,release,build-lint,$(COMPILERS))
	@echo "== clang-tidy"
	@JOBS=$(JOBS) scripts/lint.sh tidy $(TIDY_FILES)

lint: spelling static mypy tidy

hooks:
	@"$$(dirname "$$(scripts/python_env.sh lint)")/pre-commit" install

install: library
	@echo "== install into $(DESTDIR)$(PREFIX)"
	@DESTDIR=$(DESTDIR) cmake --install build --prefix $(PREFIX)

clean:
	@echo "== clean: build directories"
	@rm -rf build build-*
