#!/usr/bin/env bash
# Installs what prorata needs on Debian 12, and only what is missing: where nothing is, it does
# nothing and needs no network.
#
#   scripts/setup.sh build               compiler, CMake and libraries (apt; sudo where not root)
#   scripts/setup.sh ccache              so that what was compiled once is not again, in a second clone either
#   scripts/setup.sh lint                clang 19 with clang-format and sanitizers; shellcheck
#   scripts/setup.sh checkers BUILD      clang-tidy and ruff from PyPI into BUILD/venv-checkers
#   scripts/setup.sh pytest BUILD        what runs Python tests, from PyPI (4 MB) into BUILD/venv-pytest
#   scripts/setup.sh plots               matplotlib, for the pictures of docs/ (bench/charts.py)
#   scripts/setup.sh cuda-venv BUILD     nvcc and cudart from PyPI into BUILD/venv-cuda13 and -cuda12
#   scripts/setup.sh nvidia-smi BUILD    the program alone, from Debian's non-free, into BUILD/nvidia-smi
#   scripts/setup.sh containers          podman, containerd and runc, for tests (needs root)
#   scripts/setup.sh kubernetes          gRPC, protobuf, libcurl, yaml-cpp: what prorata-kubernetes is built with
#   scripts/setup.sh kubernetes-tests    etcd, runc and more for a cluster of tests (needs root)
#   scripts/setup.sh userlands BUILD     the C libraries of Debian 11 and 13 (30 MB with their lists), for tests
#   scripts/setup.sh compatibility BUILD light     NVIDIA's libraries from PyPI into BUILD/compatibility; `all` for PyTorch and more too
set -euo pipefail

build_packages=(
  g++ make cmake ninja-build git ca-certificates python3 python3-venv binutils
  libboost-dev nlohmann-json3-dev libtomlplusplus-dev libcli11-dev libspdlog-dev libfmt-dev
  libgtest-dev libbenchmark-dev liblz4-dev libzstd-dev prometheus-cpp-dev libncurses-dev strace
  musl-tools libfccp-dev gnuplot-nox
)
kubernetes_packages=(
  libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc libcurl4-openssl-dev libyaml-cpp-dev
)
kubernetes_test_packages=(
  etcd-server runc containernetworking-plugins iptables conntrack socat ethtool iproute2 openssl podman debootstrap
)
container_packages=(podman containerd runc uidmap podman-compose)
lint_packages=(clang-19 llvm-19 clang-format-19 libclang-rt-19-dev shellcheck)

# Exact versions, so that a test that passed here passes elsewhere. About 265 MB together.
cuda13_wheels=(
  nvidia-cuda-runtime==13.0.96 nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88
  nvidia-nvvm==13.0.88 nvidia-nvml-dev==13.0.87
)
cuda12_wheels=(nvidia-cuda-runtime-cu12==12.9.79)

# All of them Python alone: a build that is carried to a machine with a GPU carries them.
pytest_wheels=(
  pytest==9.2.0 iniconfig==2.3.1 packaging==26.3 pluggy==1.7.0 pygments==2.21.0
  pytest-xdist==3.8.0 execnet==2.1.2 pytest-timeout==2.4.0
  pexpect==4.9.0 ptyprocess==0.7.0 pyte==0.8.2 wcwidth==0.9.4
)

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

# nvidia_smi FOLDER: nothing is installed and no package list of the machine changes: the sources it
# has, with non-free in place of their components, are read into a folder. Where it cannot be had,
# its test is skipped by name, so that is no error.
nvidia_smi() {
  local folder=$1 apt
  [ ! -e "$folder/.tried" ] || return 0
  command -v apt-get >/dev/null || return 0
  rm -rf "$folder"
  mkdir -p "$folder/apt/lists/partial" "$folder/apt/sources" "$folder/apt/cache"
  # Debian's own suites only: others have no such component.
  sed -nE 's/^(deb (\[[^]]*\] )?[^ ]*\/debian\/? +[a-z]+) .*/\1 non-free/p' \
    /etc/apt/sources.list /etc/apt/sources.list.d/*.list \
    >"$folder/apt/sources/classic.list" 2>/dev/null || true
  local file
  for file in /etc/apt/sources.list.d/*.sources; do
    if grep -q 'debian-archive-keyring' "$file" 2>/dev/null; then
      sed -E 's/^Components:.*/Components: non-free/' "$file" >"$folder/apt/sources/${file##*/}"
    fi
  done
  apt=(apt-get -qq -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$folder/apt/sources"
    -o "Dir::State::lists=$folder/apt/lists" -o "Dir::Cache=$folder/apt/cache"
    -o APT::Sandbox::User=root -o Acquire::Retries=2)
  echo 'setup: fetching nvidia-smi (0.4 MB) from non-free'
  if "${apt[@]}" update 2>"$folder/apt/log" &&
    (cd "$folder/apt" && "${apt[@]}" download nvidia-smi 2>>"$folder/apt/log"); then
    dpkg-deb -x "$folder"/apt/nvidia-smi_*.deb "$folder/apt/tree"
    find "$folder/apt/tree" -type f -name nvidia-smi -perm /111 -path '*/lib/*' \
      -exec cp {} "$folder/nvidia-smi" \;
    touch "$folder/.tried"
  else
    echo "setup: nvidia-smi cannot be had (see $folder/apt/log); its test will be skipped" >&2
  fi
}

# userland FOLDER SUITE PACKAGE...: unpacked from the machine's Debian mirror; nothing is installed.
# Where it cannot be had, its tests are skipped by name, so that is no error.
userland() {
  local folder=$1 suite=$2 mirror work apt
  shift 2
  [ ! -e "$folder/.tried" ] || return 0
  command -v apt-get >/dev/null || return 0
  mirror=$(grep -ohE 'https?://[^ ]+/debian/?( |$)' -r /etc/apt/sources.list.d /etc/apt/sources.list \
    2>/dev/null | sort -u | head -1) || true
  [ -n "$mirror" ] || return 0
  work=$folder/apt
  rm -rf "$folder"
  mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" >"$work/sources.list"
  apt=(apt-get -qq -o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=/dev/null
    -o "Dir::State::lists=$work/lists" -o Dir::State::status=/dev/null -o "Dir::Cache=$work/cache"
    -o Acquire::Languages=none -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false
    -o APT::Sandbox::User=root -o Acquire::Retries=2)
  echo "setup: fetching $* of Debian's $suite"
  if "${apt[@]}" update 2>"$work/log" && (cd "$work" && "${apt[@]}" download "$@" 2>>"$work/log"); then
    for package in "$work"/*.deb; do dpkg-deb -x "$package" "$folder/tree"; done
    cp "$work/log" "$folder/.tried"
    rm -rf "$work"
  else
    echo "setup: $suite cannot be had (see $work/log); its tests will be skipped" >&2
  fi
}

case "${1:-}" in
  build) install_packages "${build_packages[@]}" ;;
  ccache) install_packages ccache ;;
  lint) install_packages "${lint_packages[@]}" ;;
  containers)
    # Where they cannot be had, their tests are skipped by name, so that is no error.
    if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
      install_packages "${container_packages[@]}" ||
        echo 'setup: podman or containerd cannot be had; their tests will be skipped' >&2
    fi
    ;;
  kubernetes) install_packages "${kubernetes_packages[@]}" ;;
  kubernetes-tests)
    if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
      install_packages "${kubernetes_test_packages[@]}" ||
        echo 'setup: etcd or runc cannot be had; tests on a cluster will be skipped' >&2
    fi
    ;;
  checkers) install_venv "$2/venv-checkers" clang-tidy==23.1.4 ruff==0.14.5 ;;
  plots) install_packages python3-matplotlib ;;
  pytest) install_venv "$2/venv-pytest" "${pytest_wheels[@]}" ;;
  cuda-venv)
    install_venv "$2/venv-cuda13" "${cuda13_wheels[@]}"
    install_venv "$2/venv-cuda12" "${cuda12_wheels[@]}"
    ;;
  nvidia-smi) nvidia_smi "$(realpath -m "$2")/nvidia-smi" ;;
  userlands)
    folder=$(realpath -m "$2")/userlands
    userland "$folder/debian11" bullseye libc6 libc-bin busybox-static
    userland "$folder/debian13" trixie libc6 libc-bin
    ;;
  compatibility) python3 "$(dirname "$0")/compatibility_wheels.py" "$2" "$3" ;;
  *)
    sed -n '2,18s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
