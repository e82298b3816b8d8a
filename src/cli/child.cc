#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>

#include "base/unique_fd.h"
#include "cli/command.h"

// How a signal reaches the program exactly once:
//   A. typed at a terminal (SIGINT, SIGQUIT, a hang-up): the kernel sends it to the whole
//   foreground
//      group, the child is in it, and nothing is passed on. Seen by si_code SI_KERNEL.
//   B. sent to this process by kill(): passed on.
//   C. sent by kill() to the group: reaches the child twice. It cannot be told from B.

namespace prorata::cli {
namespace {

constexpr std::array<int, 6> kPassedOn = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

std::unexpected<Error> ExecError(const std::string& program, int error_number) {
  const char* code = error_number == ENOENT ? "not_found" : "not_executable";
  return FailErrno(code, "cannot execute '" + program + "'", error_number);
}

int WaitPassingOn(pid_t child, const sigset_t& signals) {
  while (true) {
    int status = 0;
    const pid_t ended = ::waitpid(child, &status, WNOHANG);
    if (ended == child) return status;
    siginfo_t info;
    const int signal_number = ::sigwaitinfo(&signals, &info);
    if (signal_number < 0 || signal_number == SIGCHLD) continue;
    if (info.si_code != SI_KERNEL) ::kill(child, signal_number);
  }
}

}  // namespace

Result<int> RunChild(const std::string& program, const std::vector<std::string>& command,
                     const std::vector<std::string>& environment) {
  sigset_t signals;
  sigset_t before;
  ::sigemptyset(&signals);
  ::sigaddset(&signals, SIGCHLD);
  for (const int signal_number : kPassedOn) ::sigaddset(&signals, signal_number);
  // An ignored SIGCHLD (inherited) would reap the child unseen; waitpid needs the default.
  struct sigaction normal = {};
  struct sigaction old_child = {};
  normal.sa_handler = SIG_DFL;
  ::sigaction(SIGCHLD, &normal, &old_child);
  ::sigprocmask(SIG_BLOCK, &signals, &before);

  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return FailErrno("spawn", "cannot make a pipe", errno);
  UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  const std::vector<char*> arguments = Pointers(command);
  const std::vector<char*> variables = Pointers(environment);
  const pid_t child = ::fork();
  if (child < 0) return FailErrno("spawn", "cannot start a process", errno);
  if (child == 0) {
    ::sigaction(SIGCHLD, &old_child, nullptr);
    ::sigprocmask(SIG_SETMASK, &before, nullptr);
    ::execve(program.c_str(), arguments.data(), variables.data());
    const int error_number = errno;
    [[maybe_unused]] const ssize_t told = ::write(writer.get(), &error_number, sizeof error_number);
    ::_exit(127);
  }
  writer.Reset();
  int error_number = 0;
  ssize_t got;
  do {
    got = ::read(reader.get(), &error_number, sizeof error_number);
  } while (got < 0 && errno == EINTR);
  const int status = WaitPassingOn(child, signals);
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  ::sigaction(SIGCHLD, &old_child, nullptr);
  if (got == sizeof error_number) return ExecError(program, error_number);
  return status;
}

void EndAs(int wait_status) {
  if (WIFEXITED(wait_status)) std::exit(WEXITSTATUS(wait_status));
  const int signal_number = WTERMSIG(wait_status);
  const struct rlimit no_core = {0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
  struct sigaction normal = {};
  normal.sa_handler = SIG_DFL;
  ::sigaction(signal_number, &normal, nullptr);
  sigset_t one;
  ::sigemptyset(&one);
  ::sigaddset(&one, signal_number);
  ::sigprocmask(SIG_UNBLOCK, &one, nullptr);
  ::raise(signal_number);
  std::exit(128 + signal_number);
}

}  // namespace prorata::cli
