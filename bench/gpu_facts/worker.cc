#include "bench/gpu_facts/worker.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>

namespace prorata::gpufacts {
namespace {

// cuInit of a driver without a persistence daemon takes seconds; a worker that has not answered by
// then never will.
constexpr std::chrono::seconds kPatience(20);
// How long a worker that was asked to end may take before it is killed.
constexpr std::chrono::seconds kFarewell(3);

}  // namespace

Result<Worker> Worker::Start(const Options& options, const std::string& what) {
  int to[2];
  int from[2];
  if (::pipe2(to, O_CLOEXEC) != 0) return FailErrno("worker", "cannot make a pipe", errno);
  UniqueFd to_read(to[0]);
  UniqueFd to_write(to[1]);
  if (::pipe2(from, O_CLOEXEC) != 0) return FailErrno("worker", "cannot make a pipe", errno);
  UniqueFd from_read(from[0]);
  UniqueFd from_write(from[1]);
  std::vector<std::string> words = {"gpu-facts",
                                    "--worker",
                                    what,
                                    "--device",
                                    std::to_string(options.device),
                                    "--slice-kernel-us",
                                    std::to_string(options.slice_kernel_us),
                                    "--slice-seconds",
                                    std::to_string(options.slice_seconds)};
  if (!options.library.empty()) words.insert(words.end(), {"--library", options.library});
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, to_read.get(), STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, from_write.get(), STDOUT_FILENO);
  pid_t pid = -1;
  const int error =
      ::posix_spawn(&pid, "/proc/self/exe", &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return FailErrno("worker", "cannot run this program again", error);
  return Worker(pid, std::move(to_write), std::move(from_read));
}

Worker::Worker(pid_t pid, UniqueFd to, UniqueFd from)
    : pid_(pid), to_(std::move(to)), from_(std::move(from)), end_(HostClock::now() + kPatience) {}

Worker::Worker(Worker&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      to_(std::move(other.to_)),
      from_(std::move(other.from_)),
      end_(other.end_) {}

Worker::~Worker() {
  if (pid_ < 0) return;
  to_.Reset();
  const auto end = HostClock::now() + kFarewell;
  while (::waitpid(pid_, nullptr, WNOHANG) == 0) {
    if (HostClock::now() > end) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

Status Worker::ReadSome(char* buffer, size_t size) {
  while (size > 0) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(end_ - HostClock::now());
    pollfd waiting = {from_.get(), POLLIN, 0};
    const int ready = ::poll(&waiting, 1, static_cast<int>(std::max<int64_t>(0, left.count())));
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) {
      return Fail("worker", "the second process " + std::to_string(pid_) +
                                " did not answer within " + std::to_string(kPatience.count()) +
                                " s");
    }
    const ssize_t got = ::read(from_.get(), buffer, size);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      return Fail("worker", "the second process ended early; its message is on standard error");
    }
    buffer += got;
    size -= static_cast<size_t>(got);
  }
  return {};
}

Result<std::string> Worker::Hear(const std::string& expected) {
  std::string line;
  for (char c = 0; line.size() < 200; line += c) {
    if (auto ok = ReadSome(&c, 1); !ok) return std::unexpected(ok.error());
    if (c == '\n') break;
  }
  if (!line.starts_with(expected)) {
    return Fail("worker",
                "the second process said \"" + line + "\" in place of \"" + expected + "\"");
  }
  return line;
}

Status Worker::Notify() {
  // A worker that died shows at the next Hear; SIGPIPE is ignored by main.
  if (::write(to_.get(), "\n", 1) != 1) {
    return FailErrno("worker", "cannot talk to the second process", errno);
  }
  return {};
}

Result<std::vector<Stamp>> Worker::HearStamps() {
  const std::string word = "stamps ";
  auto line = Hear(word);
  if (!line) return std::unexpected(line.error());
  constexpr uint64_t kMost = 1 << 24;
  const uint64_t count = std::min<uint64_t>(kMost, std::stoull("0" + line->substr(word.size())));
  std::vector<Stamp> stamps(count);
  static_assert(sizeof(Stamp) == 16);
  if (count > 0) {
    GPUFACTS_TRY(ReadSome(reinterpret_cast<char*>(stamps.data()), 16 * count));
  }
  return stamps;
}

}  // namespace prorata::gpufacts
