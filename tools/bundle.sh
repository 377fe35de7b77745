#!/bin/sh
# Puts what was built and every library it needs into one folder that runs on another x86-64 Linux machine without installing anything there.
# Usage: tools/bundle.sh BUILD_FOLDER OUT. The C library and the CUDA libraries stay the other machine's own: it needs glibc 2.35 or newer, and
# a driver and libcublas if the GPU is to be used. Programs find their libraries by RPATH ($ORIGIN/../lib), which also holds for the libraries'
# own needs; RUNPATH would not.
set -e
B=$1
OUT=$2
cd "$(dirname "$0")/.."
[ -n "$OUT" ] && [ -x "$B/bin/tandemd" ] || { echo "bundle: run 'make bundle'" >&2; exit 2; }

rm -rf "$OUT"
mkdir -p "$OUT/bin" "$OUT/lib" "$OUT/tests" "$OUT/models" "$OUT/docs" "$OUT/include" "$OUT/tools"
cp "$B"/bin/* "$OUT/bin/"
cp -r models/tiny "$OUT/models/"
cp client/tandem.h "$OUT/include/"
cp "$B/libtandem.so.0" "$OUT/lib/"
[ ! -e "$B/lib/tandem-cuda.so" ] || cp "$B/lib/tandem-cuda.so" "$OUT/lib/"
cp tools/demo.sh "$OUT/tools/"
cp docs/*.md "$OUT/docs/"
cp README.md LICENSE CHANGELOG.md "$OUT/"
# The tests, as they lie in the tree, with their programs beside them: "B=. sh tests/run.sh" inside the bundle runs them.
for t in tests/*; do
	case $t in tests/unit | tests/tools | tests/lib | *.c | *.h) ;; *) cp -r "$t" "$OUT/tests/" ;; esac
done
rm -f "$OUT"/tests/*/*.c "$OUT"/tests/*/*.h
# These look at the source tree and its compiler.
rm -f "$OUT"/tests/system/test_bundle.sh "$OUT"/tests/system/test_install.sh "$OUT"/tests/system/test_make.sh "$OUT"/tests/system/test_docs.sh \
	"$OUT"/tests/system/test_deb.sh "$OUT"/tests/system/test_units.sh
for t in "$B"/tests/*; do
	case $t in */dense_times) continue ;; esac # links cublasLt itself; made by nvcc where it is to run
	[ -f "$t" ] && [ -x "$t" ] && cp "$t" "$OUT/tests/"
done

programs=
for f in "$OUT"/bin/* "$OUT"/tests/* "$OUT"/lib/*.so*; do
	[ -f "$f" ] && [ "$(head -c 4 "$f" | tr -d '\177')" = ELF ] && programs="$programs $f"
done
strip --strip-debug $programs
ldd $programs 2>/dev/null | awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' | sort -u | while read -r name path; do
	case $name in
	libc.so.* | ld-linux* | libm.so.* | libpthread.so.* | libdl.so.* | librt.so.* | libutil.so.* | libresolv.so.*) ;;
	libcuda.so.* | libcublas.so.* | libcublasLt.so.* | libcudart.so.* | libnvidia* | libtandem.so.*) ;;
	*) cp -L "$path" "$OUT/lib/$name" ;;
	esac
done
missing=$(ldd $programs 2>/dev/null | awk '/not found/ && $1 !~ /^libcu(da|blas|blasLt)\.so/ { print $1 }' | sort -u)
[ -z "$missing" ] || { echo "bundle: these libraries were not found:" $missing >&2; exit 1; }
echo "bundle: $OUT ($(du -sh "$OUT" | cut -f 1)); try: $OUT/tools/demo.sh"
