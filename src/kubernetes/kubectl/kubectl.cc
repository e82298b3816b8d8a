#include "kubernetes/kubectl/kubectl.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <thread>

namespace prorata::kubernetes {
namespace {

// Both ends are closed when a program is started; spawn makes the child's own copies.
struct Pipe {
  Pipe() { opened = ::pipe2(ends.data(), O_CLOEXEC) == 0; }
  ~Pipe() {
    for (const int end : ends) {
      if (end >= 0) ::close(end);
    }
  }
  void CloseWriting() {
    ::close(ends[1]);
    ends[1] = -1;
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  std::array<int, 2> ends = {-1, -1};
  bool opened = false;
};

std::string ReadToEnd(int fd) {
  std::string text;
  std::array<char, 4096> buffer;
  while (true) {
    const ssize_t got = ::read(fd, buffer.data(), buffer.size());
    if (got > 0) text.append(buffer.data(), static_cast<size_t>(got));
    if (got == 0 || (got < 0 && errno != EINTR)) return text;
  }
}

}  // namespace

Result<std::string> Kubectl::Run(const std::vector<std::string>& arguments) const {
  std::vector<std::string> words = {"kubectl"};
  words.insert(words.end(), options_.begin(), options_.end());
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);

  Pipe out, err;
  if (!out.opened || !err.opened) {
    return Fail("no_kubectl",
                std::string("cannot make a pipe to kubectl: ") + std::strerror(errno));
  }
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, out.ends[1], STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, err.ends[1], STDERR_FILENO);
  pid_t pid = 0;
  const int failed = ::posix_spawnp(&pid, "kubectl", &actions, nullptr, pointers.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) {
    return Fail("no_kubectl",
                std::string("cannot start kubectl: ") + std::strerror(failed) + "; is it in PATH?");
  }
  out.CloseWriting();
  err.CloseWriting();
  std::string complaint;
  std::thread reader([&] { complaint = ReadToEnd(err.ends[0]); });
  std::string text = ReadToEnd(out.ends[0]);
  reader.join();
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return text;
  while (!complaint.empty() && complaint.back() == '\n') complaint.pop_back();
  std::string asked;
  for (const std::string& word : arguments) asked += " " + word;
  return Fail("kubectl_failed", "`kubectl" + asked + "` failed: " + complaint);
}

}  // namespace prorata::kubernetes
