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

// Runs a program as a child and waits for it, passing on SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1
// and SIGUSR2 that were sent to this process alone; those that a terminal generates reach the
// child by themselves, for it stays in the same process group. Answers the status of waitpid().
// Errors: "spawn", and FindProgram's codes when exec fails for such a reason after all.
// Blocks those signals in the calling thread until it returns. One call at a time in a process.
Result<int> RunChild(const std::string& program, const std::vector<std::string>& command,
                     const std::vector<std::string>& environment);

// Ends this process as the program ended: by the same exit status, or by the same signal (without
// a core of ours).
[[noreturn]] void EndAs(int wait_status);

}  // namespace prorata::cli
