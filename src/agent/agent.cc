#include "agent/agent.h"

#include <signal.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>

#include "agent/control_server.h"
#include "agent/member_server.h"
#include "agent/metrics.h"
#include "agent/metrics_server.h"
#include "agent/node.h"
#include "agent/resource_configs.h"
#include "agent/runtime_dir.h"
#include "driver/nvml.h"

namespace prorata::agent {
namespace {

constexpr auto kFirstShareWithin = std::chrono::seconds(10);
constexpr auto kAfterLastShare = std::chrono::seconds(1);

// Every member is a connection, a watch and a mapping.
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

void SayReady(int fd, const std::string& line) {
  if (fd < 0) return;
  const std::string text = line + "\n";
  [[maybe_unused]] const ssize_t written = ::write(fd, text.data(), text.size());
  ::close(fd);
}

}  // namespace

struct Agent::Parts {
  Parts(const AgentOptions& options_, std::string runtime_dir_, UniqueFd lock_, driver::Nvml& nvml)
      : options(options_),
        runtime_dir(std::move(runtime_dir_)),
        lock(std::move(lock_)),
        node(loop, runtime_dir, nvml, options.dilation, options.overcommit,
             options.elastic_ceilings),
        members(loop, node, ::geteuid() == 0),
        control(loop, node, options.program_version, [this] { loop.stop(); }),
        metrics(loop,
                [this] {
                  return MetricsText(node.DescribeShares(), node.DescribeDevices(),
                                     node.events().counts());
                }),
        resource_configs(loop, node),
        idle_timer(loop),
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

  AgentOptions options;
  std::string runtime_dir;
  UniqueFd lock;
  boost::asio::io_context loop{1};
  Node node;
  MemberServer members;
  ControlServer control;
  MetricsServer metrics;
  ResourceConfigs resource_configs;
  boost::asio::steady_timer idle_timer;
  boost::asio::signal_set signals;
};

Agent::Agent(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Agent::~Agent() {
  // The socket goes first: whoever finds no socket starts another agent, which waits for no lock.
  ::unlink((parts_->runtime_dir + "/control").c_str());
}

Result<std::unique_ptr<Agent>> Agent::Start(const AgentOptions& options, driver::Nvml& nvml) {
  const std::string dir = options.runtime_dir ? *options.runtime_dir : RuntimeDir();
  auto lock = TakeRuntimeDir(dir);
  if (!lock) return std::unexpected(lock.error());
  auto parts = std::make_unique<Parts>(options, dir, std::move(*lock), nvml);
  // Before anything is taken over: an agent that cannot do what it was told changes nothing.
  if (options.metrics) {
    if (auto ok = parts->metrics.Start(*options.metrics); !ok) return std::unexpected(ok.error());
    spdlog::info("metrics are at {}", parts->metrics.url());
  }
  if (auto ok = parts->resource_configs.Name(options.resource_configs); !ok) {
    return std::unexpected(ok.error());
  }
  if (auto ok = parts->node.Adopt(); !ok) return std::unexpected(ok.error());
  if (auto ok = parts->resource_configs.Start(); !ok) return std::unexpected(ok.error());
  if (auto ok = parts->control.Start(dir + "/control"); !ok) return std::unexpected(ok.error());
  parts->EndWhenIdle(kFirstShareWithin);
  return std::unique_ptr<Agent>(new Agent(std::move(parts)));
}

void Agent::Run() { parts_->loop.run(); }

void Agent::Stop() { parts_->loop.stop(); }

void Agent::StopOnSignals() {
  parts_->signals.add(SIGTERM);
  parts_->signals.add(SIGINT);
  parts_->signals.async_wait([this](const boost::system::error_code& error, int) {
    if (!error) Stop();
  });
}

int RunAgent(const AgentOptions& options) {
  auto logger = spdlog::stderr_logger_mt("prorata");
  logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %l %v");
  logger->set_level(spdlog::level::from_str(options.log_level));
  spdlog::set_default_logger(logger);
  ::signal(SIGPIPE, SIG_IGN);
  RaiseDescriptorLimit();

  auto failed = [&options](const Error& error) {
    spdlog::error("{}", error.message);
    SayReady(options.ready_fd, error.message);
    return 1;
  };
  auto nvml = driver::OpenNvml();
  if (!nvml) return failed(nvml.error());
  auto agent = Agent::Start(options, **nvml);
  if (!agent) return failed(agent.error());

  (*agent)->StopOnSignals();
  spdlog::info("the agent is ready in {}", options.runtime_dir.value_or(RuntimeDir()));
  if (options.dilation > 1) {
    spdlog::warn("time is slowed down {} times: for tests on a simulated GPU only",
                 options.dilation);
  }
  SayReady(options.ready_fd, "ready");
  (*agent)->Run();
  spdlog::info("the agent ends");
  return 0;
}

}  // namespace prorata::agent
