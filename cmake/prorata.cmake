# How every component is built. Included once, by the top CMakeLists.txt.

set(CMAKE_CXX_STANDARD 23)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo)
endif()

option(PRORATA_WERROR "Warnings are errors (on in every preset)" OFF)
option(PRORATA_FUZZ "Build the libFuzzer targets (clang only)" OFF)
option(PRORATA_UNITY "Compile many sources of a target as one (on in most presets)" OFF)
option(PRORATA_KUBERNETES "Build prorata-kubernetes, which needs gRPC, protobuf, libcurl and yaml-cpp" OFF)
set(PRORATA_SANITIZE "" CACHE STRING "Value for -fsanitize= of everything but the client library")

set(PRORATA_BIN_DIR ${CMAKE_BINARY_DIR}/bin)
set(PRORATA_LIB_DIR ${CMAKE_BINARY_DIR}/lib)
set(PRORATA_SIM_DIR ${CMAKE_BINARY_DIR}/sim)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PRORATA_BIN_DIR})

find_package(Threads REQUIRED)

# Where ccache is installed a second build of the same sources takes two minutes, in another clone too: paths
# below the clone are taken as relative to it. It follows precompiled headers only with these options of the
# compilers, and when it may ignore their macros.
find_program(PRORATA_CCACHE ccache)
if(PRORATA_CCACHE)
  set(prorata_launcher ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros
    CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=true ${PRORATA_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${prorata_launcher})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${prorata_launcher})
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
  else()
    add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:SHELL:-Xclang -fno-pch-timestamp>")
  endif()
endif()

# GCC looks for memory to use again only beyond this (1 GiB). Looking took a twentieth of its time, and saved 0.2 GB a
# process.
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=1048576>)
endif()

add_library(prorata_warnings INTERFACE)
target_compile_options(prorata_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wimplicit-fallthrough>)
if(PRORATA_WERROR)
  target_compile_options(prorata_warnings INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:-Werror>)
endif()

add_library(prorata_sanitize INTERFACE)
if(PRORATA_SANITIZE)
  target_compile_options(prorata_sanitize INTERFACE
    -fsanitize=${PRORATA_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(prorata_sanitize INTERFACE -fsanitize=${PRORATA_SANITIZE})
  # For tests that do less then. The compilers have no macro in common: clang 19 defines none.
  target_compile_definitions(prorata_sanitize INTERFACE PRORATA_SANITIZED)
  if(PRORATA_SANITIZE MATCHES address)
    # Enumerations of C hold what a program passes to the simulated driver, which refuses it. Frames on
    # the heap make each fork slower, and tests kill a process at every step.
    target_compile_options(prorata_sanitize INTERFACE
      -fno-sanitize=enum -fsanitize-address-use-after-return=never)
  endif()
endif()
if(PRORATA_SANITIZE AND NOT PRORATA_FUZZ)
  # One sanitizer's library for a program and for the libraries that it loads; Python loads the
  # simulated NVML, which is sanitized, too.
  string(REGEX MATCH "address|thread" sanitizer "${PRORATA_SANITIZE}")
  string(SUBSTRING "${sanitizer}" 0 1 sanitizer)
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libclang_rt.${sanitizer}san-x86_64.so
    OUTPUT_VARIABLE sanitizer OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  cmake_path(GET sanitizer PARENT_PATH sanitizer)
  target_link_options(prorata_sanitize INTERFACE -shared-libsan LINKER:-rpath,${sanitizer})
endif()
if(PRORATA_FUZZ)
  # libFuzzer follows the branches of the libraries too, not only of its own program.
  target_compile_options(prorata_sanitize INTERFACE -fsanitize=fuzzer-no-link)
endif()

# Header-only Boost.Asio, without the parts of Boost that it would otherwise ask for.
add_library(prorata_asio INTERFACE)
target_compile_definitions(prorata_asio INTERFACE
  BOOST_ASIO_HEADER_ONLY BOOST_ERROR_CODE_HEADER_ONLY BOOST_ASIO_NO_DEPRECATED)
if(PRORATA_SANITIZE MATCHES thread)
  # TSan knows no fences (-Wtsan). Without them handlers are still ordered by the scheduler's mutex.
  target_compile_definitions(prorata_asio INTERFACE BOOST_ASIO_DISABLE_FENCED_BLOCK)
endif()

# Most of a source's compile time goes to the standard library's and GoogleTest's headers: they are
# compiled once per kind of target. A source still includes what it uses: `make check ALL=1` and the
# fuzzers' build see product sources without these (scripts/lint.py). The client library has none, nor may <iostream> be
# here: it would start the streams in every program.
option(PRORATA_PRECOMPILE "Compile the headers that most sources include once" ON)
set(prorata_common_headers
  <algorithm> <array> <atomic> <chrono> <cstdint> <cstring> <deque> <functional> <map> <memory> <mutex>
  <optional> <random> <set> <span> <string> <string_view> <thread> <utility> <vector>)

# Even so, most of what is left goes to the headers that each source reads and the templates that it
# instantiates: a target's sources are compiled as few, neighbours together, which takes two thirds of the time. So
# names in anonymous namespaces of one target differ, or its FOLDERS are kept apart. `dev` compiles each source by
# itself, and so does `fuzz`, without precompiled headers: what leans on another source's includes fails there.
set(PRORATA_UNITY_SOURCES 32 CACHE STRING "Up to so many sources are compiled as one")
function(prorata_unity name)
  cmake_parse_arguments(arg "FOLDERS" "" "" ${ARGN})
  if(NOT PRORATA_UNITY)
    return()
  endif()
  set(sources ${arg_UNPARSED_ARGUMENTS})
  list(FILTER sources INCLUDE REGEX "^[^/].*[.]cc$")
  list(SORT sources)
  list(LENGTH sources count)
  math(EXPR parts "(${count} + ${PRORATA_UNITY_SOURCES} - 1) / ${PRORATA_UNITY_SOURCES}")
  set(index 0)
  foreach(source ${sources})
    math(EXPR group "${index} * ${parts} / ${count}")
    math(EXPR index "${index} + 1")
    if(arg_FOLDERS)
      cmake_path(GET source PARENT_PATH group)
      string(MAKE_C_IDENTIFIER "${group}" group)
    endif()
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP "${group}")
  endforeach()
  set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()

# What GCC 12 thinks of its own std::string (its bug 105329), and clang of GCC's library. They are
# silent about system headers, but not about a precompiled one.
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  set(prorata_false_alarms -Wno-array-bounds -Wno-restrict -Wno-stringop-overflow -Wno-stringop-overread)
else()  # std::stable_sort uses what its own library deprecates
  set(prorata_false_alarms -Wno-deprecated-declarations)
endif()

# prorata_precompile(TARGET HEADER...): these beside the common ones, for this target alone. Called
# after its properties are set.
function(prorata_precompile name)
  if(PRORATA_PRECOMPILE AND NOT PRORATA_FUZZ)
    target_precompile_headers(${name} PRIVATE ${prorata_common_headers} ${ARGN})
    target_compile_options(${name} PRIVATE ${prorata_false_alarms})
  endif()
endfunction()

# One set for all small libraries (-fPIC), one for all tests (-fPIE).
function(prorata_precompile_as name like)
  if(PRORATA_PRECOMPILE AND NOT PRORATA_FUZZ)
    target_precompile_headers(${name} REUSE_FROM ${like})
    target_compile_options(${name} PRIVATE ${prorata_false_alarms})
  endif()
endfunction()

# What `make asan-ubsan` and `make tsan` build (the unit tests, and what the multi-process tests
# that they run need: tests/CMakeLists.txt), and what `make fuzz` builds.
add_custom_target(sanitizer_tests)
add_custom_target(fuzzers)

# Tests took a third of a build's time, and half of that went to optimising what runs for a few milliseconds.
set(prorata_test_options -O0)
# Programs, and libraries whose work takes no longer than whom they wait for (a person, an API server, the kernel),
# are optimised less; under a sanitizer not at all: tests spend their time in policies and the simulated GPU.
set(prorata_waiting_options $<$<CONFIG:RelWithDebInfo>:-O1>)
if(PRORATA_SANITIZE)
  set(prorata_waiting_options -O0)
endif()

find_package(GTest REQUIRED)
file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/precompiled.cc CONTENT "int main() { return 0; }\n")
add_library(prorata_precompiled STATIC ${CMAKE_BINARY_DIR}/precompiled.cc)
target_link_libraries(prorata_precompiled PRIVATE prorata_sanitize prorata_warnings)
prorata_precompile(prorata_precompiled)
add_executable(prorata_precompiled_tests ${CMAKE_BINARY_DIR}/precompiled.cc)
target_link_libraries(prorata_precompiled_tests PRIVATE GTest::gtest prorata_sanitize prorata_warnings)
set_target_properties(prorata_precompiled_tests PROPERTIES
  RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
prorata_precompile(prorata_precompiled_tests <gtest/gtest.h>)
target_compile_options(prorata_precompiled_tests PRIVATE ${prorata_test_options})
# The same with JSON's. GCC optimises what is in a precompiled header as it was made, so it has the options of the
# libraries that use it: all of them wait.
add_library(prorata_precompiled_json STATIC ${CMAKE_BINARY_DIR}/precompiled.cc)
target_link_libraries(prorata_precompiled_json PRIVATE prorata_sanitize prorata_warnings)
target_compile_options(prorata_precompiled_json PRIVATE ${prorata_waiting_options})
prorata_precompile(prorata_precompiled_json <nlohmann/json.hpp>)
add_executable(prorata_precompiled_json_tests ${CMAKE_BINARY_DIR}/precompiled.cc)
target_link_libraries(prorata_precompiled_json_tests PRIVATE GTest::gtest prorata_sanitize prorata_warnings)
set_target_properties(prorata_precompiled_json_tests PROPERTIES
  RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
target_compile_options(prorata_precompiled_json_tests PRIVATE ${prorata_test_options})
prorata_precompile(prorata_precompiled_json_tests <gtest/gtest.h> <nlohmann/json.hpp>)

# prorata_library(NAME SOURCES a.cc b.cc [DEPS component ...]): a component, or part of one, as a static library.
# WAITS: with the options for what waits. JSON: that, and its header precompiled. PLAIN: no precompiled headers.
function(prorata_library name)
  cmake_parse_arguments(arg "PLAIN;WAITS;JSON" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${arg_SOURCES})
  prorata_unity(${name} ${arg_SOURCES})
  if(arg_WAITS OR arg_JSON)
    target_compile_options(${name} PRIVATE ${prorata_waiting_options})
  endif()
  target_include_directories(${name} PUBLIC ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR})
  target_link_libraries(${name} PUBLIC ${arg_DEPS} prorata_sanitize PRIVATE prorata_warnings)
  if(arg_JSON)
    prorata_precompile_as(${name} prorata_precompiled_json)
  elseif(NOT arg_PLAIN)
    prorata_precompile_as(${name} prorata_precompiled)
  endif()
endfunction()

# prorata_program(NAME SOURCES main.cc DEPS ...): a program in build/bin. MEASURES: its own code is measured, and
# optimised; that of most waits, and what takes them time is in their libraries. JSON: with its header precompiled.
function(prorata_program name)
  cmake_parse_arguments(arg "MEASURES;JSON" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  prorata_unity(${name} ${arg_SOURCES})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${arg_DEPS} prorata_sanitize prorata_warnings)
  if(NOT arg_MEASURES)
    target_compile_options(${name} PRIVATE ${prorata_waiting_options})
  endif()
  if(arg_JSON)
    target_compile_options(${name} PRIVATE -fPIC)  # as the libraries, whose precompiled header it is
    prorata_precompile_as(${name} prorata_precompiled_json)
  endif()
endfunction()

# Ends a test that hangs. Far above what any takes on a busy machine under a sanitizer: a test that is
# merely slow must not fail.
set(prorata_test_timeout_s 900)

# prorata_test(NAME SOURCES a_test.cc DEPS component [LABELS ...]): a GoogleTest program; every TEST in it
# is a test of ctest. ONE_PROCESS: of many short tests; a sanitizer's start takes 0.1 s, so that under one they
# are a single test. Labelled no-tsan (one thread: nothing to see) or no-asan-ubsan (it would take too
# long), it is neither built nor run under that sanitizer. FORKS: it starts processes by the thousand.
# JSON: with its header precompiled. FOLDERS: as for prorata_unity.
function(prorata_test name)
  cmake_parse_arguments(arg "ONE_PROCESS;FORKS;FOLDERS;JSON" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT ${prorata_test_timeout_s})
  endif()
  add_executable(${name} ${arg_SOURCES})
  if(arg_FOLDERS)
    prorata_unity(${name} FOLDERS ${arg_SOURCES})
  else()
    prorata_unity(${name} ${arg_SOURCES})
  endif()
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${arg_DEPS} GTest::gtest_main prorata_sanitize prorata_warnings)
  target_compile_options(${name} PRIVATE ${prorata_test_options})
  include(GoogleTest)
  # ASan keeps 256 MiB of freed memory to find its use, and each fork copies the page tables of that.
  if(arg_FORKS AND PRORATA_SANITIZE MATCHES address)
    set(environment ENVIRONMENT ASAN_OPTIONS=quarantine_size_mb=4)
  endif()
  if(arg_ONE_PROCESS AND PRORATA_SANITIZE)
    add_test(NAME ${name} COMMAND ${name})
    set_tests_properties(${name} PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "unit;${arg_LABELS}" ${environment})
  else()
    # One label: gtest_discover_tests would take a second one for the name of the next property. The others say what is built.
    gtest_discover_tests(${name} TEST_PREFIX "${name}." DISCOVERY_TIMEOUT 600
      PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS unit ${environment})
  endif()
  if(arg_JSON)
    prorata_precompile_as(${name} prorata_precompiled_json_tests)
  else()
    prorata_precompile_as(${name} prorata_precompiled_tests)
  endif()
  if(NOT (PRORATA_SANITIZE MATCHES thread AND no-tsan IN_LIST arg_LABELS) AND
      NOT (PRORATA_SANITIZE MATCHES address AND no-asan-ubsan IN_LIST arg_LABELS))
    add_dependencies(sanitizer_tests ${name})
  endif()
endfunction()

# prorata_fuzzer(NAME SOURCES a_fuzz.cc DEPS component): a libFuzzer program under build/fuzz, with
# PRORATA_FUZZ only.
function(prorata_fuzzer name)
  if(NOT PRORATA_FUZZ)
    return()
  endif()
  cmake_parse_arguments(arg "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  prorata_unity(${name} ${arg_SOURCES})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fuzz)
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${arg_DEPS} prorata_sanitize prorata_warnings)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  add_dependencies(fuzzers ${name})
endfunction()
