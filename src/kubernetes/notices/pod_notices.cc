#include "kubernetes/notices/pod_notices.h"

#include <poll.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "api/control.h"
#include "base/clock.h"

namespace prorata::kubernetes {
namespace {

constexpr std::chrono::seconds kConnectEvery{1};
constexpr int kLookForTheEndEveryMs = 200;

}  // namespace

PodNotices::PodNotices(std::string agent_socket, PodEvents& events, HoldersOf holders_of)
    : agent_socket_(std::move(agent_socket)),
      events_(events),
      holders_of_(std::move(holders_of)),
      thread_([this] { Run(); }) {}

PodNotices::~PodNotices() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  stop_.notify_all();
  thread_.join();
}

void PodNotices::Run() {
  while (!stopped_) {
    if (auto connection = cli::ControlConnection::Connect(agent_socket_)) {
      Follow(std::move(*connection));
      // The next agent's events are all new.
      since_ = 0;
    }
    std::unique_lock lock(mutex_);
    stop_.wait_for(lock, kConnectEvery, [this] { return stopped_.load(); });
  }
}

void PodNotices::Follow(cli::ControlConnection connection) {
  api::ControlRequest request;
  request.op = api::ControlOp::kEvents;
  request.events = {since_, true, ""};
  if (!connection.Send(api::EncodeRequest(request))) return;
  while (const auto reply = Next(&connection)) {
    for (const api::Event& event : reply->events) Report(event);
  }
}

std::optional<api::EventsReply> PodNotices::Next(cli::ControlConnection* connection) {
  while (!stopped_) {
    auto next = cli::TakeEvents(*connection);
    if (next && *next) return std::move(*next);
    if (!next) {
      const bool gone = next.error().code == "agent_gone";
      Warn(gone ? "" : "the agent's events cannot be read: " + next.error().message);
      return std::nullopt;
    }
    pollfd readable = {connection->fd(), POLLIN, 0};
    ::poll(&readable, 1, kLookForTheEndEveryMs);
  }
  return std::nullopt;
}

void PodNotices::Report(const api::Event& event) {
  const auto notice = filter_.Admit(event, RealClock().NowNs() / kNsPerMs);
  if (!notice) return;
  for (const ShareHolder& holder : holders_of_(event.share)) {
    const std::string in =
        holder.container.empty() ? "" : "in container '" + holder.container + "' ";
    const auto recorded =
        events_.Record(holder.pod, notice->warning, notice->reason, in + notice->message);
    Warn(recorded ? "" : "pods are not told what happens: " + recorded.error().message);
  }
}

void PodNotices::Warn(const std::string& trouble) {
  if (!trouble.empty() && trouble != trouble_) spdlog::warn("{}", trouble);
  trouble_ = trouble;
}

}  // namespace prorata::kubernetes
