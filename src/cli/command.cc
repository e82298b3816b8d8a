#include "cli/command.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "cli/options/options.h"

namespace prorata::cli {
namespace {

enum class Found { kYes, kNo, kNotExecutable };

Found Examine(const std::string& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) {
    return errno == EACCES ? Found::kNotExecutable : Found::kNo;
  }
  if (S_ISDIR(info.st_mode) || ::access(path.c_str(), X_OK) != 0) return Found::kNotExecutable;
  return Found::kYes;
}

std::unexpected<Error> NotExecutable(std::string_view path) {
  struct stat info;
  const bool folder = ::stat(std::string(path).c_str(), &info) == 0 && S_ISDIR(info.st_mode);
  return Fail("not_executable", "'" + std::string(path) + "' cannot be executed; " +
                                    (folder ? "it is a folder" : "check its permissions"));
}

std::unexpected<Error> NotFound(std::string_view name) {
  return Fail("not_found", "command '" + std::string(name) + "' not found; no share was made");
}

// "NAME=first:old" or "NAME=first", and every other entry of `environment` but NAME's.
void Prepend(std::vector<std::string>* environment, const std::string& name,
             const std::string& first) {
  const std::string prefix = name + "=";
  std::string value = prefix + first;
  std::erase_if(*environment, [&](const std::string& entry) {
    if (!entry.starts_with(prefix)) return false;
    // An empty LD_LIBRARY_PATH means nothing, but an empty entry in it is the current folder.
    if (entry.size() > prefix.size()) value = prefix + first + ":" + entry.substr(prefix.size());
    return true;
  });
  environment->push_back(std::move(value));
}

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

Result<std::string> FindProgram(std::string_view name, std::string_view path) {
  if (name.find('/') != std::string_view::npos) {
    switch (Examine(std::string(name))) {
      case Found::kYes:
        return std::string(name);
      case Found::kNo:
        return NotFound(name);
      case Found::kNotExecutable:
        return NotExecutable(name);
    }
  }
  std::string blocked;
  while (true) {
    const size_t colon = path.find(':');
    const std::string_view folder = path.substr(0, colon);
    const std::string candidate =
        folder.empty() ? "./" + std::string(name) : std::string(folder) + "/" + std::string(name);
    const Found found = Examine(candidate);
    if (found == Found::kYes) return candidate;
    struct stat info;
    const bool regular = ::stat(candidate.c_str(), &info) == 0 && S_ISREG(info.st_mode);
    if (found == Found::kNotExecutable && regular && blocked.empty()) blocked = candidate;
    if (colon == std::string_view::npos) break;
    path.remove_prefix(colon + 1);
  }
  if (!blocked.empty()) return NotExecutable(blocked);
  return NotFound(name);
}

int ExitStatusOf(const Error& error) {
  if (error.code == "not_found") return kExitNotFound;
  if (error.code == "not_executable") return kExitNotExecutable;
  return kExitRefused;
}

Result<std::vector<std::string>> ShareEnvironment(const std::vector<std::string>& environment,
                                                  const std::string& share_dir,
                                                  const std::string& library_dir) {
  // ld.so(8): both lists are cut at colons, one at semicolons and one at spaces, and '$' begins a
  // token; there is no way to write these characters.
  if (const size_t at = library_dir.find_first_of(":; $\t\n"); at != std::string::npos) {
    return Fail("library_dir", "the client library lies in '" + library_dir + "', and the '" +
                                   library_dir[at] +
                                   "' in that name is one the dynamic loader cannot take; move "
                                   "prorata to another folder");
  }
  std::vector<std::string> result = environment;
  std::erase_if(result,
                [](const std::string& entry) { return entry.starts_with("PRORATA_SHARE="); });
  result.push_back("PRORATA_SHARE=" + share_dir);
  Prepend(&result, "LD_LIBRARY_PATH", library_dir);
  Prepend(&result, "LD_PRELOAD", library_dir + "/libcuda.so.1");
  return result;
}

Result<std::string> FindLibraryDir(const std::string& executable) {
  const std::filesystem::path prefix =
      std::filesystem::path(executable).parent_path().parent_path();
  for (const char* folder : {"lib/prorata", "lib"}) {
    const std::filesystem::path candidate = prefix / folder;
    std::error_code ignored;
    if (std::filesystem::exists(candidate / "libcuda.so.1", ignored)) return candidate.string();
  }
  return Fail("no_client_library", "the client library libcuda.so.1 is neither in '" +
                                       (prefix / "lib/prorata").string() + "' nor in '" +
                                       (prefix / "lib").string() +
                                       "'; build or install prorata whole");
}

Error BecomeProgram(const std::string& program, const std::vector<std::string>& command,
                    const std::vector<std::string>& environment) {
  const std::vector<char*> arguments = Pointers(command);
  const std::vector<char*> variables = Pointers(environment);
  ::execve(program.c_str(), arguments.data(), variables.data());
  const int error_number = errno;
  const char* code = error_number == ENOENT ? "not_found" : "not_executable";
  return FailErrno(code, "cannot execute '" + program + "'", error_number).error();
}

}  // namespace prorata::cli
