// on_fixture FOLDER UUID LIMIT_BYTES COMMAND...
//
// Runs a command on a fixture share (bench/micro/fixture_share.h): the client library without an
// agent. The command's status is the answer; a last line on stdout says what the member used. For
// tests of the library alone. A test may write into FOLDER/limits meanwhile. ON_FIXTURE_WELCOME_MS:
// how late members are welcomed.

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "bench/micro/fixture_share.h"

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr, "usage: on_fixture FOLDER UUID LIMIT_BYTES COMMAND...\n");
    return 2;
  }
  prorata::bench::FixtureShare share(argv[1], argv[2], std::strtoull(argv[3], nullptr, 10));
  if (const char* ms = getenv("ON_FIXTURE_WELCOME_MS")) share.WelcomeAfter(std::atoi(ms));
  const pid_t child = fork();
  if (child == 0) {
    setenv("PRORATA_SHARE", argv[1], 1);
    execvp(argv[4], argv + 4);
    std::perror(argv[4]);
    _exit(127);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return 2;
  const prorata::shm::UsageFile* usage = share.usage();
  if (usage != nullptr) {
    const prorata::shm::DeviceUsage& one = usage->devices[0];
    std::printf(
        "{\"used_bytes\": %llu, \"overhead_bytes\": %llu, \"refusals\": %llu, "
        "\"device_time_ns\": %llu, \"launches\": %llu, \"joins\": %llu, "
        "\"ungoverned_functions\": %llu}\n",
        (unsigned long long)one.used_bytes, (unsigned long long)one.overhead_bytes,
        (unsigned long long)one.refusals, (unsigned long long)one.device_time_ns,
        (unsigned long long)one.launches, (unsigned long long)share.joins(),
        (unsigned long long)one.ungoverned_functions);
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
