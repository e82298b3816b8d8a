#include "agent/server/agent.h"

#include <signal.h>
#include <spdlog/async.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <chrono>
#include <future>
#include <thread>

#include "agent/node/node.h"
#include "agent/node/resource_configs.h"
#include "agent/runtime/device_lock.h"
#include "agent/runtime/runtime_dir.h"
#include "agent/runtime/worker.h"
#include "agent/server/control_server.h"
#include "agent/server/member_server.h"
#include "agent/server/metrics.h"
#include "agent/server/metrics_server.h"
#include "driver/nvml.h"

namespace prorata::agent {
namespace {

constexpr auto kFirstShareWithin = std::chrono::seconds(10);
constexpr auto kAfterLastShare = std::chrono::seconds(1);
constexpr auto kLookForSocketEvery = std::chrono::seconds(2);
constexpr auto kOpenNvmlWithin = std::chrono::seconds(30);
constexpr auto kEndWithin = std::chrono::seconds(10);
constexpr size_t kMaxLogLines = 4096;
constexpr auto kWarnEvery = std::chrono::seconds(2);

// Every member is a connection, a watch and a mapping.
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// With what was logged, but no handlers at exit.
[[noreturn]] void ExitAtOnce(int status) {
  spdlog::shutdown();
  ::_exit(status);
}

void PrintReady(int fd, const std::string& line) {
  if (fd < 0) return;
  const std::string text = line + "\n";
  [[maybe_unused]] const ssize_t written = ::write(fd, text.data(), text.size());
  ::close(fd);
}

// "nvml_hangs": it has not come back, and is left behind.
Result<std::unique_ptr<driver::Nvml>> OpenNvmlInTime() {
  using Opened = Result<std::unique_ptr<driver::Nvml>>;
  auto opening = std::make_shared<std::promise<Opened>>();
  auto opened = opening->get_future();
  std::thread([opening] { opening->set_value(driver::OpenNvml()); }).detach();
  for (auto left = kOpenNvmlWithin; left > std::chrono::seconds(0); left -= kWarnEvery) {
    if (opened.wait_for(kWarnEvery) == std::future_status::ready) return opened.get();
    spdlog::warn("the driver (NVML) has not answered yet; programs keep the limits they have");
  }
  return Fail("nvml_hangs", "the driver (NVML) did not answer within " +
                                std::to_string(kOpenNvmlWithin.count()) +
                                " s; see the kernel's log (dmesg) for its errors, and whether "
                                "nvidia-smi answers");
}

}  // namespace

struct Agent::Parts {
  Parts(const AgentOptions& options_, std::string runtime_dir_, UniqueFd lock_, driver::Nvml& nvml)
      : options(options_),
        runtime_dir(std::move(runtime_dir_)),
        lock(std::move(lock_)),
        node(loop, runtime_dir, nvml, options.dilation, options.overcommit,
             options.elastic_ceilings, options.slow_disk_ms, options.containers),
        members(loop, node),
        control(loop, node, options.program_version, [this] { loop.stop(); }),
        metrics(loop,
                [this](std::function<void(std::string)> done) {
                  node.devices().Refresh([this, done = std::move(done)] {
                    done(MetricsText(node.descriptions().OfShares(),
                                     node.descriptions().OfDevices(), node.events().counts()));
                  });
                }),
        resource_configs(loop, node.devices(), node.file_shares(), node.events()),
        idle_timer(loop),
        socket_timer(loop),
        signals(loop) {
    node.on_connection = [this](uint64_t share_id, UniqueFd socket) {
      members.Accept(share_id, std::move(socket));
    };
    node.on_share_gone = [this] { EndWhenIdle(kAfterLastShare); };
  }

  void EndWhenIdle(std::chrono::seconds after) {
    if (!options.exit_when_idle || node.HasShares()) return;
    idle_timer.expires_after(after);
    idle_timer.async_wait([this](const boost::system::error_code& stopped) {
      if (stopped || node.HasShares()) return;
      spdlog::info("no share is left; the agent ends");
      loop.stop();
    });
  }

  std::string socket_path() const { return runtime_dir + "/control"; }

  // Another agent may have the folder, where this one's lock was removed from it, too.
  bool HoldsFolder() const {
    struct stat held, there;
    return ::fstat(lock.get(), &held) == 0 &&
           ::stat((runtime_dir + "/lock").c_str(), &there) == 0 && held.st_ino == there.st_ino &&
           held.st_dev == there.st_dev;
  }

  // What cleans /run or /tmp may take the socket of an agent that lives: nobody would reach it, and
  // no other could take its place.
  void KeepSocket() {
    socket_timer.expires_after(kLookForSocketEvery);
    socket_timer.async_wait([this](const boost::system::error_code& stopped) {
      if (stopped) return;
      if (::access(socket_path().c_str(), F_OK) != 0 && errno == ENOENT && HoldsFolder()) {
        if (auto ok = control.Start(socket_path()); !ok) {
          spdlog::error("{}", ok.error().message);
        } else {
          spdlog::warn("'{}' was removed; the agent listens there again", socket_path());
        }
      }
      KeepSocket();
    });
  }

  AgentOptions options;
  std::string runtime_dir;
  UniqueFd lock;
  boost::asio::io_context loop{1};
  DeviceLocks device_locks;
  Node node;
  MemberServer members;
  ControlServer control;
  MetricsServer metrics;
  ResourceConfigs resource_configs;
  boost::asio::steady_timer idle_timer;
  boost::asio::steady_timer socket_timer;
  boost::asio::signal_set signals;
};

Agent::Agent(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Agent::~Agent() {
  // The socket goes first: whoever finds no socket starts another agent, which waits for no lock.
  ::unlink(parts_->socket_path().c_str());
}

Result<std::unique_ptr<Agent>> Agent::Start(const AgentOptions& options, driver::Nvml& nvml,
                                            UniqueFd lock) {
  const std::string dir = options.runtime_dir.value_or(RuntimeDir());
  if (!lock) {
    auto taken = TakeRuntimeDir(dir);
    if (!taken) return std::unexpected(taken.error());
    lock = std::move(*taken);
  }
  auto parts = std::make_unique<Parts>(options, dir, std::move(lock), nvml);
  auto device_locks = DeviceLocks::Take(parts->loop, nvml);
  if (!device_locks) return std::unexpected(device_locks.error());
  parts->device_locks = std::move(*device_locks);
  // Before anything is taken over: an agent that cannot do what its options ask changes nothing.
  if (options.metrics) {
    if (auto ok = parts->metrics.Start(*options.metrics); !ok) return std::unexpected(ok.error());
    spdlog::info("metrics are at {}", parts->metrics.url());
  }
  if (auto ok = parts->resource_configs.Name(options.resource_configs); !ok) {
    return std::unexpected(ok.error());
  }
  if (auto ok = parts->node.Adopt(); !ok) return std::unexpected(ok.error());
  if (auto ok = parts->resource_configs.Start(); !ok) return std::unexpected(ok.error());
  if (auto ok = parts->node.SaveNow(); !ok) return std::unexpected(ok.error());
  if (auto ok = parts->control.Start(parts->socket_path()); !ok) return std::unexpected(ok.error());
  parts->KeepSocket();
  parts->EndWhenIdle(kFirstShareWithin);
  return std::unique_ptr<Agent>(new Agent(std::move(parts)));
}

void Agent::Run() { parts_->loop.run(); }

void Agent::Stop() { parts_->loop.stop(); }

void Agent::StopOnSignals() {
  parts_->signals.add(SIGTERM);
  parts_->signals.add(SIGINT);
  // Of a terminal that closes; `nohup` has it ignored.
  struct sigaction hang_up = {};
  ::sigaction(SIGHUP, nullptr, &hang_up);
  if (hang_up.sa_handler != SIG_IGN) parts_->signals.add(SIGHUP);
  parts_->signals.async_wait([this](const boost::system::error_code& error, int) {
    if (!error) Stop();
  });
}

int RunAgent(const AgentOptions& options) {
  // Written by a thread of spdlog's, for whoever reads our standard error may stop reading; what
  // does not fit meanwhile is lost, the oldest first.
  spdlog::init_thread_pool(kMaxLogLines, 1);
  auto logger = spdlog::create_async_nb<spdlog::sinks::stderr_sink_mt>("prorata");
  logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %l %v");
  logger->set_level(spdlog::level::from_str(options.log_level));
  spdlog::set_default_logger(logger);
  ::signal(SIGPIPE, SIG_IGN);
  RaiseDescriptorLimit();

  auto failed = [&options](const Error& error) {
    spdlog::error("{}", error.message);
    PrintReady(options.ready_fd, error.message);
    return 1;
  };
  // First of all: whoever looks for an agent while the driver takes its time sees that one is here.
  auto lock = TakeRuntimeDir(options.runtime_dir.value_or(RuntimeDir()));
  if (!lock) return failed(lock.error());
  auto nvml = OpenNvmlInTime();
  if (!nvml) {
    const int status = failed(nvml.error());
    // The driver's own handlers at exit may wait for the call that has not returned.
    if (nvml.error().code == "nvml_hangs") ExitAtOnce(status);
    return status;
  }
  auto agent = Agent::Start(options, **nvml, std::move(*lock));
  if (!agent) return failed(agent.error());

  (*agent)->StopOnSignals();
  spdlog::info("the agent is ready in {}", options.runtime_dir.value_or(RuntimeDir()));
  if (options.dilation > 1) {
    spdlog::warn("time is slowed down {} times: for tests on a simulated GPU only",
                 options.dilation);
  }
  PrintReady(options.ready_fd, "ready");
  (*agent)->Run();
  // Whatever still hangs from here on, the agent ends.
  ::signal(SIGALRM, SIG_DFL);
  ::alarm(kEndWithin.count());
  agent->reset();
  spdlog::info("the agent ends");
  // A call of a worker has not returned, and what it works with must stay; as above.
  if (Worker::AnyLeftBehind()) {
    spdlog::warn("the driver or the disk still does not answer");
    ExitAtOnce(0);
  }
  return 0;
}

}  // namespace prorata::agent
