#!/usr/bin/env bash
# Installs what prorata needs on Debian 12, and only what is missing: where nothing is, it does
# nothing and needs no network.
#
#   scripts/setup.sh build               compiler, CMake and libraries (apt; sudo where not root)
#   scripts/setup.sh lint                clang 19 with clang-format and clang-tidy
#   scripts/setup.sh cuda-venv BUILD     nvcc and cudart from PyPI into BUILD/venv-cuda13 and -cuda12
set -euo pipefail

build_packages=(
  g++ make cmake ninja-build git ca-certificates python3 python3-venv binutils
  libboost-dev nlohmann-json3-dev libtomlplusplus-dev libcli11-dev libspdlog-dev libfmt-dev
  libgtest-dev libbenchmark-dev strace
)
lint_packages=(clang-19 clang-format-19 clang-tidy-19 libclang-rt-19-dev)

# Exact versions, so that a test that passed here passes elsewhere. About 265 MB together.
cuda13_wheels=(
  nvidia-cuda-runtime==13.0.96 nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88
  nvidia-nvvm==13.0.88 nvidia-nvml-dev==13.0.87
)
cuda12_wheels=(nvidia-cuda-runtime-cu12==12.9.79)

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

install_packages() {
  local missing=() package
  for package in "$@"; do
    dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed ||
      missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  echo "setup: installing ${missing[*]}"
  if ! command -v apt-get >/dev/null; then
    echo "setup: this is not Debian: install the like of these yourself: ${missing[*]}" >&2
    exit 1
  fi
  as_root apt-get update -qq
  as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# venv FOLDER WHEEL...: made once; made again when the list changes.
install_venv() {
  local folder=$1 stamp
  shift
  stamp="$*"
  [ "$(cat "$folder/.wheels" 2>/dev/null)" != "$stamp" ] || return 0
  echo "setup: fetching $stamp"
  rm -rf "$folder"
  python3 -m venv "$folder"
  "$folder/bin/pip" install --quiet --disable-pip-version-check --no-deps "$@"
  echo "$stamp" >"$folder/.wheels"
}

case "${1:-}" in
  build) install_packages "${build_packages[@]}" ;;
  lint) install_packages "${lint_packages[@]}" ;;
  cuda-venv)
    install_venv "$2/venv-cuda13" "${cuda13_wheels[@]}"
    install_venv "$2/venv-cuda12" "${cuda12_wheels[@]}"
    ;;
  *)
    sed -n '2,8s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
