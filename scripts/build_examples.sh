#!/usr/bin/env bash
# Builds the examples with nvcc: build_examples.sh OUTPUT_FOLDER
#
# nvcc is $NVCC, or the one on the PATH. Leaves vector_add (static cudart), vector_add_shared
# (shared cudart) and, where cuBLAS is installed beside nvcc, matmul_loop. Exit 3: there is no nvcc.
set -euo pipefail

out=${1:?usage: build_examples.sh OUTPUT_FOLDER}
examples=$(cd "$(dirname "$0")/../examples" && pwd)
nvcc=${NVCC:-$(command -v nvcc || true)}
if [[ -z $nvcc || ! -x $nvcc ]]; then
  echo "build_examples: there is no nvcc on the PATH, and NVCC names none; nothing was built" >&2
  exit 3
fi
toolkit=$(cd "$(dirname "$(readlink -f "$nvcc")")/.." && pwd)
mkdir -p "$out"

# PyPI's packages keep the libraries in lib/ and give the shared ones no development name.
libraries=$toolkit/lib64
[[ -d $libraries ]] || libraries=$toolkit/lib
newest() { find "$libraries" -maxdepth 1 -name "$1" | sort -V | tail -n 1; }

"$nvcc" -O2 -std=c++17 -arch=sm_75 -cudart static -L "$libraries" \
  -o "$out/vector_add" "$examples/vector_add.cu"

cudart=$(newest 'libcudart.so.*')
if [[ -n $cudart ]]; then
  "$nvcc" -O2 -std=c++17 -arch=sm_75 -cudart none -L "$libraries" \
    -Xlinker "$cudart" -Xlinker -rpath="$libraries" \
    -o "$out/vector_add_shared" "$examples/vector_add.cu"
fi

cublas=$(newest 'libcublas.so.*')
if [[ -n $cublas && -f $toolkit/include/cublas_v2.h ]]; then
  "$nvcc" -O2 -std=c++17 -arch=sm_75 -cudart static -L "$libraries" \
    -Xlinker "$cublas" -Xlinker -rpath="$libraries" \
    -o "$out/matmul_loop" "$examples/matmul_loop.cu"
fi
