# tandem: build, check, demo, install, bundle. `make help` lists the targets.
#
# Everything is built out of tree in $(B). Sources are found by folder, header dependencies are automatic. The CUDA module is built where nvcc is
# found; without it the rest is complete and runs on the CPU backend.

PREFIX ?= /usr/local
DESTDIR ?=
VERSION := 0.1.0
CC ?= gcc
NVCC ?= $(firstword $(wildcard /usr/local/cuda/bin/nvcc) $(shell command -v nvcc 2>/dev/null))
SAN ?= 0
B := $(if $(filter 1,$(SAN)),build-san,build)
Q := $(if $(V),,@)

PKGS := libuv nanomsg libprotobuf-c libpcre2-8 libutf8proc jansson inih openblas libxxhash libedit
ifneq ($(MAKECMDGOALS),setup)
PKG_MISSING := $(shell for p in $(PKGS); do pkg-config --exists $$p 2>/dev/null || echo $$p; done; \
	echo '\#include <http_parser.h>' | $(CC) -E - >/dev/null 2>&1 || echo http-parser)
endif

CPPFLAGS += -I. -I$(B)/proto -D_GNU_SOURCE -DTD_VERSION='"$(VERSION)"' $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
WARN := -Wall -Wextra -Wshadow -Wpointer-arith -Wstrict-prototypes -Wmissing-prototypes -Wvla $(if $(WERROR),-Werror)
CFLAGS ?= -O2 -g
ALL_CFLAGS := -std=gnu11 -fPIC -pthread -fno-math-errno $(WARN) $(CFLAGS)
ifeq ($(SAN),1)
ALL_CFLAGS += -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
ALL_LDFLAGS := -fsanitize=address,undefined
endif
# RPATH, not RUNPATH: in a bundle it must also lead the libraries to what they need themselves (openblas to gfortran).
ALL_LDFLAGS += -pthread -Wl,-rpath,'$$ORIGIN/../lib' -Wl,--disable-new-dtags $(LDFLAGS)

lib = $(shell pkg-config --libs $(1) 2>/dev/null)
LIBS_PROTO := $(call lib,libprotobuf-c)
LIBS_ENGINE := $(call lib,nanomsg libpcre2-8 libutf8proc jansson libxxhash) $(LIBS_PROTO) -ldl -lm
LIBS_KERNELS := $(call lib,openblas) -ldl -lm
# http-parser brings no .pc file.
LIBS_DAEMON := $(call lib,libuv inih jansson) -lhttp_parser
LIBS_CLIENT := $(call lib,libedit jansson)

# ---- components: one static library per folder; mains apart -----------------------------------------------------------------------
src = $(filter-out $(1)/main.c,$(wildcard $(1)/*.c))
obj = $(patsubst %.c,$(B)/%.o,$(1))
SRC_PROTO := $(call src,proto)
OBJ_PROTO := $(call obj,$(SRC_PROTO)) $(B)/proto/tandem.pb-c.o $(B)/proto/worker.pb-c.o
OBJ_ENGINE := $(call obj,$(call src,engine))
OBJ_KERNELS := $(call obj,$(call src,kernels) $(call src,kernels/cpu))
OBJ_TARGET := $(call obj,$(call src,target_worker))
OBJ_DRAFTER := $(call obj,$(call src,drafter_worker))
OBJ_DAEMON := $(call obj,$(call src,daemon) $(call src,daemon/http))
SRC_LIBTANDEM := $(wildcard client/lib*.c)
OBJ_LIBTANDEM := $(call obj,$(SRC_LIBTANDEM))
OBJ_TESTLIB := $(call obj,$(wildcard tests/lib/*.c))
OBJ_CLIENT := $(call obj,$(filter-out $(SRC_LIBTANDEM),$(call src,client)))

A_PROTO := $(B)/libtdproto.a
A_ENGINE := $(B)/libtdengine.a
A_KERNELS := $(B)/libtdkernels.a
A_TARGET := $(B)/libtdtarget.a
A_DRAFTER := $(B)/libtddrafter.a
A_DAEMON := $(B)/libtddaemon.a
A_LIBTANDEM := $(B)/libtandem.a
SO_LIBTANDEM := $(B)/libtandem.so.0
A_CLIENT := $(B)/libtdclient.a
A_TESTLIB := $(B)/libtdtest.a

BINS := $(foreach p,tandemd:daemon tandem-target:target_worker tandem-drafter:drafter_worker tandem:client,\
	$(if $(wildcard $(word 2,$(subst :, ,$(p)))/main.c),$(B)/bin/$(word 1,$(subst :, ,$(p)))))
SRC_CUDA := $(wildcard kernels/cuda/*.cu)
CUDA_MODULE := $(if $(NVCC),$(if $(SRC_CUDA),$(B)/lib/tandem-cuda.so))
TESTS := $(patsubst tests/unit/%.c,$(B)/tests/%,$(wildcard tests/unit/test_*.c))
TOOLS := $(patsubst tests/tools/%.c,$(B)/tests/%,$(wildcard tests/tools/*.c))

.PHONY: all help setup deps-check check check-gpu demo install bundle deb clean tests pages
all: deps-check $(BINS) $(CUDA_MODULE) $(SO_LIBTANDEM) $(A_LIBTANDEM)
	$(Q)$(if $(CUDA_MODULE),:,echo "note: the CUDA module was left out ($(if $(NVCC),no sources,nvcc was not found)): the CPU backend is complete without it")

help:
	@echo "make            build into $(B)/"
	@echo "make demo       install what is missing, build, serve the tiny model, ask it a question"
	@echo "make check      all tests (SAN=1: under ASan and UBSan)"
	@echo "make check-gpu  the GPU suites (needs a GPU)"
	@echo "make install    DESTDIR=$(DESTDIR) PREFIX=$(PREFIX)"
	@echo "make pages      man pages, configuration reference and completion, from what the programs say of themselves"
	@echo "make bundle     relocatable binaries with their libraries, in bundle/"
	@echo "make deb        Debian packages, in $(B)/deb/"

deps-check:
	@if [ -n "$(strip $(PKG_MISSING))" ] || ! command -v protoc-c >/dev/null; then \
		echo "missing: $(strip $(PKG_MISSING)) $$(command -v protoc-c >/dev/null || echo protoc-c)"; \
		echo "run 'make setup' (as root, on Debian), or install the packages that tools/setup.sh lists"; exit 1; fi

setup:
	$(Q)sh tools/setup.sh

# ---- protobuf ------------------------------------------------------------------------------------------------------------------------
$(B)/proto/%.pb-c.c $(B)/proto/%.pb-c.h &: proto/%.proto
	@mkdir -p $(B)/proto
	$(Q)protoc-c --proto_path=proto --c_out=$(B)/proto $<
PB_H := $(B)/proto/tandem.pb-c.h $(B)/proto/worker.pb-c.h
$(B)/proto/%.pb-c.o: $(B)/proto/%.pb-c.c
	$(Q)$(CC) $(CPPFLAGS) $(filter-out -Wshadow -Wextra,$(ALL_CFLAGS)) -c $< -o $@

# ---- C -------------------------------------------------------------------------------------------------------------------------------
# The CPU backend is arithmetic in plain loops: let the compiler vectorise it (nobody looks at floating-point exception flags).
$(B)/kernels/cpu/%.o: ALL_CFLAGS += -O3 -fno-trapping-math
# Quantising is, too, and must find the same bytes on every processor.
$(B)/engine/quantise.o: ALL_CFLAGS += -O3 -fno-trapping-math -ffp-contract=off -Wno-psabi
$(B)/%.o: %.c | $(PB_H)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(ALL_CFLAGS) -MMD -MP -c $< -o $@

$(A_PROTO): $(OBJ_PROTO)
$(A_ENGINE): $(OBJ_ENGINE)
$(A_KERNELS): $(OBJ_KERNELS)
$(A_TARGET): $(OBJ_TARGET)
$(A_DRAFTER): $(OBJ_DRAFTER)
$(A_DAEMON): $(OBJ_DAEMON)
$(A_CLIENT): $(OBJ_CLIENT)
$(A_TESTLIB): $(OBJ_TESTLIB)
$(A_LIBTANDEM): $(OBJ_LIBTANDEM) $(OBJ_PROTO) $(B)/engine/error.o
$(B)/lib%.a:
	@rm -f $@
	$(Q)$(AR) rcs $@ $^
$(SO_LIBTANDEM): $(OBJ_LIBTANDEM) $(OBJ_PROTO) $(B)/engine/error.o
	$(Q)$(CC) -shared -Wl,-soname,libtandem.so.0 $(if $(wildcard client/libtandem.map),-Wl$(,)--version-script=client/libtandem.map) $(ALL_LDFLAGS) $^ $(LIBS_PROTO) -o $@
, := ,

# How to link stands in this file, so programs are linked again when it changes.
link = @mkdir -p $(@D); $(if $(V),set -x;) $(CC) $(ALL_LDFLAGS) $(filter %.o,$^) -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(1) -o $@
$(B)/bin/tandemd: $(B)/daemon/main.o $(A_DAEMON) $(A_ENGINE) $(A_PROTO) Makefile
	$(call link,$(LIBS_DAEMON) $(LIBS_ENGINE))
$(B)/bin/tandem-target: $(B)/target_worker/main.o $(A_TARGET) $(A_ENGINE) $(A_KERNELS) $(A_PROTO) Makefile
	$(call link,$(LIBS_ENGINE) $(LIBS_KERNELS))
$(B)/bin/tandem-drafter: $(B)/drafter_worker/main.o $(A_DRAFTER) $(A_ENGINE) $(A_KERNELS) $(A_PROTO) Makefile
	$(call link,$(LIBS_ENGINE) $(LIBS_KERNELS))
$(B)/bin/tandem: $(B)/client/main.o $(A_CLIENT) $(A_LIBTANDEM) $(A_ENGINE) $(A_PROTO) Makefile
	$(call link,$(LIBS_CLIENT) $(LIBS_ENGINE))

# ---- CUDA module ---------------------------------------------------------------------------------------------------------------------
CUDA_ARCHS ?= 80 86 90 # 8.9 runs the code of 8.6
# The stub stands in for the driver's libcuda.so.1 on a machine without one.
CUDA_LIB := $(abspath $(dir $(NVCC))../lib64)
# Products of warpgroups are in code for Hoppers alone (sm_90a); a module without it must not try them.
CUDA_SM90A := -DTD_CUDA_SM90A=$(if $(filter 90,$(CUDA_ARCHS)),1,0)
CUDA_GENCODE := $(foreach a,$(patsubst 90,90a,$(CUDA_ARCHS)),-gencode arch=compute_$(a),code=sm_$(a)) -gencode arch=compute_90,code=compute_90
OBJ_CUDA := $(patsubst %.cu,$(B)/%.cu.o,$(SRC_CUDA))
$(B)/%.cu.o: %.cu | $(PB_H)
	@mkdir -p $(@D)
	$(Q)$(NVCC) -std=c++17 -O3 -lineinfo -I. -D_GNU_SOURCE $(CUDA_SM90A) $(CUDA_GENCODE) -Xcompiler -fPIC,-Wall -MMD -MP -c $< -o $@
$(B)/lib/tandem-cuda.so: $(OBJ_CUDA) $(B)/engine/error.o
	@mkdir -p $(@D)
	$(Q)$(NVCC) -shared -cudart static $^ -L$(CUDA_LIB)/stubs -lcublas -lcublasLt -lcuda -Xlinker -rpath,$(CUDA_LIB) -Xcompiler -static-libstdc++,-static-libgcc -o $@

# ---- tests ---------------------------------------------------------------------------------------------------------------------------
# A unit test may use every component but the mains; symbols are resolved from the archives, so it links only what it touches.
TEST_ARCHIVES := $(A_TESTLIB) $(A_TARGET) $(A_DRAFTER) $(A_DAEMON) $(A_CLIENT) $(A_LIBTANDEM) $(A_ENGINE) $(A_KERNELS) $(A_PROTO)
$(B)/tests/%: $(B)/tests/unit/%.o $(TEST_ARCHIVES) Makefile
	$(call link,-lcmocka $(LIBS_DAEMON) $(LIBS_CLIENT) $(LIBS_ENGINE) $(LIBS_KERNELS))
$(B)/tests/%: $(B)/tests/tools/%.o $(TEST_ARCHIVES) Makefile
	$(call link,$(LIBS_DAEMON) $(LIBS_CLIENT) $(LIBS_ENGINE) $(LIBS_KERNELS))
# The GPU suite is one program; it opens the CUDA module at run time, so it builds anywhere.
OBJ_GPU := $(patsubst %.c,$(B)/%.o,$(wildcard tests/gpu/*.c))
$(B)/tests/ops_check: $(OBJ_GPU) $(A_KERNELS) $(A_ENGINE) Makefile
	$(call link,-Wl$(,)--as-needed $(LIBS_KERNELS) $(call lib,libxxhash))
$(B)/tests/%: tests/gpu/%.cu kernels/cuda/trial.cuh Makefile
	@mkdir -p $(@D)
	$(Q)$(NVCC) -std=c++17 -O2 -I. $(CUDA_GENCODE) -cudart static $< -L$(CUDA_LIB) -lcublasLt -Xlinker -rpath,$(CUDA_LIB) -Xcompiler -static-libstdc++,-static-libgcc -o $@
# The CUDA module's own source on an emulated GPU (tests/emulator): for tests where there is no GPU. It needs CUDA's headers, and x86-64 for its fibers.
EMU := $(if $(NVCC),$(if $(filter x86_64,$(shell uname -m)),$(B)/emulator))
EMU_SRC := $(patsubst kernels/cuda/%,$(EMU)/src/kernels/cuda/%,$(filter-out %/mma.cuh,$(wildcard kernels/cuda/*.cuh)))
EMU_OBJ := $(patsubst kernels/cuda/%.cu,$(EMU)/%.cu.o,$(SRC_CUDA)) $(patsubst tests/emulator/%.cpp,$(EMU)/%.o,$(wildcard tests/emulator/*.cpp))
EMU_CXX = $(CXX) -std=c++17 -O2 -g -fPIC -fno-strict-aliasing $(if $(filter 1,$(SAN)),-fsanitize=address) -include tests/emulator/emulator.h -I$(EMU)/src -Itests/emulator -I. \
	-isystem $(abspath $(dir $(NVCC))../include) -D_GNU_SOURCE -DTD_CUDA_SM90A=1 -MMD -MP -MF $@.d
ifneq ($(EMU),)
$(EMU)/src/kernels/cuda/%: kernels/cuda/% tests/emulator/translate.pl
	@mkdir -p $(@D)
	$(Q)perl tests/emulator/translate.pl $< >$@
$(EMU)/%.cu.o: $(EMU)/src/kernels/cuda/%.cu $(EMU_SRC)
	$(Q)$(EMU_CXX) -x c++ -c $< -o $@
$(EMU)/%.o: tests/emulator/%.cpp
	@mkdir -p $(@D)
	$(Q)$(EMU_CXX) -c $< -o $@
$(EMU)/tandem-cuda.so: $(EMU_OBJ) $(B)/engine/error.o
	$(Q)$(CXX) -shared $(if $(filter 1,$(SAN)),-fsanitize=address) $^ $(call lib,openblas) -o $@
$(EMU)/libcuda.so.1: tests/emulator/driver.c
	@mkdir -p $(@D)
	$(Q)$(CC) -shared -fPIC $< -o $@
emulator: $(EMU)/tandem-cuda.so $(EMU)/libcuda.so.1
-include $(wildcard $(EMU)/*.d)
else
emulator:
endif
.PHONY: emulator
tests: $(TESTS) $(TOOLS) $(B)/tests/ops_check $(if $(CUDA_MODULE),$(B)/tests/dense_times) emulator
check: all tests
	$(Q)B=$(B) NVCC='$(NVCC)' sh tests/run.sh
check-gpu: all tests
	$(Q)B=$(B) sh tests/gpu/run.sh

demo: setup
	$(Q)$(MAKE) --no-print-directory all
	$(Q)B=$(B) sh tools/demo.sh

# ---- install, bundle -----------------------------------------------------------------------------------------------------------------
# What people start goes to bin; workers and CUDA module, which only tandemd starts, to lib/tandem. Nothing is written outside DESTDIR.
D := $(DESTDIR)$(PREFIX)
MAN := $(wildcard man/*.[1-9])
ZSH := $(if $(filter /usr,$(PREFIX)),vendor-completions,site-functions)
install: all
	$(Q)install -d "$(D)"/bin "$(D)"/lib/tandem "$(D)"/lib/pkgconfig "$(D)"/include "$(D)"/share/tandem/models/tiny "$(D)"/share/doc/tandem/examples
	$(Q)install -m 755 $(B)/bin/tandemd $(B)/bin/tandem "$(D)"/bin/
	$(Q)install -m 755 $(B)/bin/tandem-target $(B)/bin/tandem-drafter "$(D)"/lib/tandem/
	$(Q)$(if $(CUDA_MODULE),install -m 755 $(CUDA_MODULE) "$(D)"/lib/tandem/)
	$(Q)install -m 644 $(SO_LIBTANDEM) $(A_LIBTANDEM) "$(D)"/lib/
	$(Q)ln -sf libtandem.so.0 "$(D)"/lib/libtandem.so
	$(Q)install -m 644 client/tandem.h "$(D)"/include/
	$(Q)sed 's|@VERSION@|$(VERSION)|' client/libtandem.pc.in >"$(D)"/lib/pkgconfig/libtandem.pc
	$(Q)cp -r models/tiny/. "$(D)"/share/tandem/models/tiny/
	$(Q)sed 's|@PREFIX@|$(PREFIX)|' docs/examples/tandem.ini >"$(D)"/share/tandem/tandem.ini
	$(Q)install -d "$(D)"/lib/systemd/system "$(D)"/lib/sysusers.d "$(D)"/lib/tmpfiles.d
	$(Q)sed 's|@PREFIX@|$(PREFIX)|' systemd/tandemd.service.in >"$(D)"/lib/systemd/system/tandemd.service
	$(Q)install -m 644 systemd/*.socket "$(D)"/lib/systemd/system/
	$(Q)install -m 644 systemd/tandem.sysusers "$(D)"/lib/sysusers.d/tandem.conf
	$(Q)install -m 644 systemd/tandem.tmpfiles "$(D)"/lib/tmpfiles.d/tandem.conf
	$(Q)install -m 644 README.md LICENSE CHANGELOG.md docs/*.md docs/examples/*.c "$(D)"/share/doc/tandem/
	$(Q)install -m 644 docs/examples/haproxy.cfg "$(D)"/share/doc/tandem/examples/
	$(Q)install -d $(foreach f,$(MAN),"$(D)"/share/man/man$(lastword $(subst ., ,$(f)))) "$(D)"/share/bash-completion/completions \
		"$(D)"/share/zsh/$(ZSH) "$(D)"/share/fish/vendor_completions.d
	$(Q)$(foreach f,$(MAN),install -m 644 $(f) "$(D)"/share/man/man$(lastword $(subst ., ,$(f)))/ &&) :
	$(Q)install -m 644 completion/tandem.bash "$(D)"/share/bash-completion/completions/tandem
	$(Q)install -m 644 completion/_tandem "$(D)"/share/zsh/$(ZSH)/
	$(Q)install -m 644 completion/tandem.fish "$(D)"/share/fish/vendor_completions.d/
	$(Q)ln -sf tandem "$(D)"/share/bash-completion/completions/tandemd
	$(Q)ln -sf tandem.fish "$(D)"/share/fish/vendor_completions.d/tandemd.fish
	@echo "installed in $(D); next: $(PREFIX)/bin/tandemd --config $(PREFIX)/share/tandem/tandem.ini"

# What --help says, again in man pages, reference and completion; tests/system/test_man.sh and test_completion.sh want it up to date.
pages: $(B)/bin/tandem $(B)/bin/tandemd
	$(Q)sh tools/reference.sh $(B)/bin .
	$(Q)sh tools/completion.sh $(B)/bin completion

bundle: all tests
	$(Q)sh tools/bundle.sh $(B) bundle

deb: all
	$(Q)sh tools/deb.sh $(B) $(VERSION) $(B)/deb

clean:
	rm -rf build build-san bundle

# Objects are kept, also those that only a chain of rules names.
.SECONDARY:

-include $(shell find $(B) -name '*.d' 2>/dev/null)
