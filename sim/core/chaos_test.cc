#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdio>
#include <map>
#include <random>

#include "sim/core/chaos.h"
#include "sim/core/sharing_support.h"

// Eight processes do everything at random on one machine and are killed, one after the other, at a
// random step of what they do or at a random moment; each is replaced at once. Now and then all are
// killed, and then the machine must be as good as new. Environment:
// PRORATA_STORM_SEED repeats what each member does and at which step it dies (not how their calls
// interleave), PRORATA_STORM_KILLS and PRORATA_STORM_SECONDS say when to end.

namespace prorata::simgpu {
namespace {

using std::chrono::steady_clock;

constexpr size_t kMembers = 8;
constexpr int64_t kKillsBetweenEnds = 500;
constexpr auto kHang = std::chrono::seconds(300);  // on a quiet machine no member lives a second

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr && *text != 0 ? std::atoll(text) : otherwise;
}

#ifdef PRORATA_SANITIZED
constexpr int64_t kKills = 1000;
#else
constexpr int64_t kKills = 10'000;
#endif

struct Lifetime {
  steady_clock::time_point began;
  steady_clock::time_point killed_at;  // at a random moment; max: at a step of its own
};

class ChaosTest : public ::testing::Test {
 protected:
  ChaosTest() {
    sigemptyset(&child_ended_);
    sigaddset(&child_ended_, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child_ended_, nullptr);
    int sockets[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_DGRAM, 0, sockets), 0);
    exchange_->sending = sockets[0];
    exchange_->receiving = sockets[1];
  }
  ~ChaosTest() override {
    for (const auto& [pid, life] : members_) kill(pid, SIGKILL);
    for (const auto& [pid, life] : members_) Join(pid);
    close(exchange_->sending);
    close(exchange_->receiving);
  }

  void Start() {
    const auto seed = static_cast<unsigned>(random_());
    const bool step = random_() % 4 != 0;
    const std::chrono::microseconds life(random_() % 30'000);
    const pid_t pid = Spawn([&] {
      sigprocmask(SIG_UNBLOCK, &child_ended_, nullptr);
      Chaos(config_, folder_.path(), seed, step, exchange_.operator->()).Run();
    });
    const auto now = steady_clock::now();
    members_[pid] = {.began = now,
                     .killed_at = step ? steady_clock::time_point::max() : now + life};
  }

  // Waits until a member is dead, kills those whose time has come, and replaces the dead.
  void Round() {
    timespec nap{0, 2'000'000};
    sigtimedwait(&child_ended_, nullptr, &nap);
    for (const auto& [member, life] : members_) {
      if (life.killed_at < steady_clock::now()) kill(member, SIGKILL);
    }
    int status = 0;
    pid_t pid = 0;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
      ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
          << "a member ended by itself, status " << status;
      members_.erase(pid);
      ++kills_;
      Start();
    }
    for (const auto& [member, life] : members_) {
      ASSERT_LT(steady_clock::now() - life.began, kHang) << "member " << member << " hangs";
    }
  }

  // What is used is what the living have and what lies between the sockets (CheckInvariants says
  // whose each slab is), and nobody else is there.
  void Look() {
    ASSERT_EQ(observer_->CheckInvariants(), "") << "after kill " << kills_;
    for (int device = 0; device < observer_->device_count(); ++device) {
      const DeviceUsage usage = *observer_->Usage(device);
      uint64_t sum = 0;
      for (const ProcessUsage& process : usage.processes) {
        ASSERT_TRUE(members_.contains(process.pid)) << process.pid << " is dead or unknown";
        sum += process.used_bytes;
      }
      ASSERT_LE(sum, usage.used_bytes) << "paid for twice, after kill " << kills_;
    }
  }

  // Nobody is left, and nothing lies in between: no byte may be in use, or be anything but zero.
  void KillAll() {
    for (const auto& [pid, life] : members_) kill(pid, SIGKILL);
    for (const auto& [pid, life] : members_) EXPECT_EQ(Join(pid), -SIGKILL);
    kills_ += static_cast<int64_t>(members_.size());
    members_.clear();
    char what = 0;
    for (int fd = 0; (fd = ReceiveDescriptor(exchange_->receiving, &what)) >= 0;) close(fd);
    ASSERT_EQ(WrongAfterKill(*observer_), "") << "after kill " << kills_;
  }

  const int64_t seed_ = FromEnvironment("PRORATA_STORM_SEED", std::random_device{}());
  std::minstd_rand random_{static_cast<unsigned>(seed_)};
  sigset_t child_ended_;
  Board<Exchange> exchange_;
  StateFolder folder_;
  MachineConfig config_ = TwoDevices();
  std::unique_ptr<Machine> observer_ = AttachOrFail(config_, folder_.path());
  std::map<pid_t, Lifetime> members_;
  int64_t kills_ = 0;
};

TEST_F(ChaosTest, LosesNothing) {
  const int64_t seconds = FromEnvironment("PRORATA_STORM_SECONDS", 0);
  const int64_t kills = FromEnvironment("PRORATA_STORM_KILLS", seconds != 0 ? INT64_MAX : kKills);
  const auto began = steady_clock::now();
  const auto seconds_gone = [&] {
    return std::chrono::duration_cast<std::chrono::seconds>(steady_clock::now() - began).count();
  };
  const uint64_t before = g_census.Total();
  std::printf("seed: PRORATA_STORM_SEED=%lld\n", static_cast<long long>(seed_));
  std::fflush(stdout);
  SCOPED_TRACE("PRORATA_STORM_SEED=" + std::to_string(seed_));
  int64_t looks = 0;
  int64_t ends = 0;
  while (kills_ < kills && (seconds == 0 || seconds_gone() < seconds)) {
    while (members_.size() < kMembers) Start();
    ASSERT_NO_FATAL_FAILURE(Round());
    if (kills_ >= kKillsBetweenEnds * (ends + 1)) {
      ASSERT_NO_FATAL_FAILURE(KillAll());
      ++ends;
    }
    if (kills_ >= 4 * looks) {
      ASSERT_NO_FATAL_FAILURE(Look());
      ++looks;
    }
  }
  ASSERT_NO_FATAL_FAILURE(KillAll());
  // All of it can be had again.
  const Handle process = observer_->RegisterProcess().value();
  for (int device = 0; device < observer_->device_count(); ++device) {
    const Handle context = observer_->CreateContext(process, device).value();
    EXPECT_TRUE(observer_->AllocSlabs(context, observer_->MemInfo(device)->free_bytes));
  }
  std::printf("%lld kills, %llu of them at a chosen step, in %lld s; looked %lld times\n",
              static_cast<long long>(kills_),
              static_cast<unsigned long long>(g_census.Total() - before),
              static_cast<long long>(seconds_gone()), static_cast<long long>(looks));
  std::printf("imported %u, received %u, opened %u, moved %u\n", exchange_->imported.load(),
              exchange_->received.load(), exchange_->opened.load(), exchange_->moved.load());
  if (kills_ < 2000) return;
  for (const auto* done :
       {&exchange_->imported, &exchange_->received, &exchange_->opened, &exchange_->moved}) {
    EXPECT_GT(done->load(), 100u);
  }
  for (const Step step : {Step::kBeforeLogged, Step::kLogged, Step::kCounted, Step::kBeforeCommit,
                          Step::kCommitted, Step::kBeforeWiped, Step::kWiped, Step::kLocked,
                          Step::kBeforeUnlocked, Step::kUnlocked, Step::kClaimed}) {
    EXPECT_GT(g_census.At(step), 0u) << "nobody was killed at step " << static_cast<int>(step);
  }
}

}  // namespace
}  // namespace prorata::simgpu
