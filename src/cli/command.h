#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace prorata::cli {

// Where the program of a command lies, found as the shell finds it: a name with a slash is a path,
// any other is looked for along `path` (the value of PATH; empty entries mean the current folder).
// Errors: "not_found" (exit 127) and "not_executable" (exit 126).
Result<std::string> FindProgram(std::string_view name, std::string_view path);

// The exit status for an error of FindProgram.
int ExitStatusOf(const Error& error);

// The environment of a program on a share: `environment` ("NAME=value" each) with PRORATA_SHARE
// set, and the client library in `library_dir` found first by dlopen (LD_LIBRARY_PATH) and loaded
// in any case (LD_PRELOAD); what those two held before stays behind it.
// Errors: "library_dir" when the dynamic loader could not read such a folder's name.
Result<std::vector<std::string>> ShareEnvironment(const std::vector<std::string>& environment,
                                                  const std::string& share_dir,
                                                  const std::string& library_dir);

// The folder of the client library (libcuda.so.1 and its other names), from where the running
// prorata lies: ../lib in a build, ../lib/prorata when installed.
// Errors: "no_client_library".
Result<std::string> FindLibraryDir(const std::string& executable);

// Becomes the program: same process, same parent, terminal and signals, and so its exit status is
// the program's own by nature. Returns only the error: FindProgram's codes.
Error BecomeProgram(const std::string& program, const std::vector<std::string>& command,
                    const std::vector<std::string>& environment);

}  // namespace prorata::cli
