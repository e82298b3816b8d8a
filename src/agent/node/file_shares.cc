// Shares that a resource-config.txt asks for: they are there while their line is, with members or
// without, and any number of programs joins them by name.

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <functional>
#include <utility>

#include "agent/node/node.h"
#include "agent/node/resource_plan.h"
#include "agent/share/share_events.h"

namespace prorata::agent {
namespace {

using agent::ResourceClient;

const ResourceClient* LineOf(const std::vector<ResourceClient>& clients, const std::string& name) {
  for (const ResourceClient& client : clients) {
    if (client.id == name) return &client;
  }
  return nullptr;
}

bool SaysNothing(const api::ShareSpec& spec) {
  const api::ShareSpec none;
  return spec.gpus.empty() && !spec.gpu_count && !spec.memory && !spec.memory_request &&
         spec.on.empty() && spec.compute_request == none.compute_request &&
         spec.compute_limit == none.compute_limit && spec.weight == none.weight &&
         spec.priority == none.priority && spec.yield_within_ns == none.yield_within_ns &&
         spec.on_full == none.on_full && spec.gang == none.gang && !spec.guaranteed &&
         spec.share_memory_with.empty() && spec.allow_users.Nobody();
}

// Only what grows can be refused, so what shrinks comes first.
bool Shrinks(const api::ShareTerms& now, const api::ShareTerms& terms) {
  return terms.memory_bytes <= now.memory_bytes &&
         terms.memory_request_bytes <= now.memory_request_bytes &&
         terms.compute_request <= now.compute_request;
}

}  // namespace

// A change of several shares that is undone unless all of it succeeds.
class Node::FileChange {
 public:
  // `status`: of the device, before the change.
  FileChange(Node& node, size_t device, std::string file, api::DeviceStatus status)
      : node_(node), device_(device), file_(std::move(file)), status_(std::move(status)) {}
  ~FileChange() {
    if (done_) return;
    for (auto undo = undo_.rbegin(); undo != undo_.rend(); ++undo) (*undo)();
  }
  FileChange(const FileChange&) = delete;
  FileChange& operator=(const FileChange&) = delete;

  // Nobody is in it: it goes at once, to make room.
  void TakeAway(Share& share) {
    undo_.push_back([this, config = share.config()] {
      if (auto made = node_.Make(config); !made) spdlog::error("{}", made.error().message);
    });
    node_.EndFileShare(share);
  }

  Status Change(Share& share, const api::ShareTerms& terms) {
    const std::vector<api::ShareTerms> now = share.Terms();
    if (now.front() == terms) return {};
    if (auto ok = node_.ChangeTo(share, {terms}); !ok) return ok;
    undo_.push_back([this, id = share.id(), now] {
      Share* changed = node_.Find(id);
      if (changed == nullptr) return;
      if (auto ok = node_.ChangeTo(*changed, now); !ok) {
        spdlog::error("share '{}': {}", changed->config().name, ok.error().message);
      }
    });
    return {};
  }

  Status Make(const ResourceClient& client) {
    ShareConfig config;
    config.name = client.id;
    config.owner_uid = ::geteuid();
    config.created_unix_s = ::time(nullptr);
    config.life = ShareLife::OfFile(file_);
    config.allow_users = client.allow_users;
    config.devices.push_back(OnDevice(device_, status_.uuid, TermsOf(client, {})));
    auto made = node_.Make(std::move(config));
    if (!made) return std::unexpected(made.error());
    undo_.push_back([this, id = (*made)->id()] {
      if (Share* share = node_.Find(id)) node_.EndFileShare(*share);
    });
    return {};
  }

  api::ShareTerms TermsOf(const ResourceClient& client, const api::ShareTerms& now) const {
    return agent::TermsOf(client, now, status_);
  }

  void Keep() { done_ = true; }

 private:
  Node& node_;
  const size_t device_;
  const std::string file_;
  const api::DeviceStatus status_;
  std::vector<std::function<void()>> undo_;
  bool done_ = false;
};

std::vector<Share*> Node::FileShares(size_t device) const {
  std::vector<Share*> found;
  for (const auto& [share, index] : shares_.On(device)) {
    if (share->config().life.file() != nullptr) found.push_back(share);
  }
  return found;
}

bool Node::HasFileShares(size_t device) const { return !FileShares(device).empty(); }

Status Node::ApplyResourceConfig(size_t device, const std::string& file,
                                 const std::vector<ResourceClient>& clients) {
  for (Share* share : FileShares(device)) SweepDead(*share);
  const std::vector<Share*> former = FileShares(device);
  std::vector<agent::FileShare> judged;
  for (const Share* share : former) {
    judged.push_back({share->config().name, share->Terms().front(), share->HasMembers()});
  }
  std::vector<std::string> others;
  for (Share* share : shares_.All()) {
    const bool own = std::find(former.begin(), former.end(), share) != former.end();
    if (!own) others.push_back(share->config().name);
  }
  const api::DeviceStatus status = DescribeDevices()[device];
  if (auto ok = agent::CheckResourcePlan(file, clients, status, judged, others); !ok) return ok;

  auto at_line = [&file](const ResourceClient& client, const Error& error) {
    return Fail("resource_config",
                agent::AtLine(file, client.line, "'" + client.id + "': " + error.message));
  };
  FileChange change(*this, device, file, status);
  std::vector<Share*> without_line;
  for (Share* share : former) {
    if (LineOf(clients, share->config().name) != nullptr) continue;
    if (share->HasMembers()) {
      without_line.push_back(share);
    } else {
      change.TakeAway(*share);
    }
  }
  for (const bool growing : {false, true}) {
    for (const ResourceClient& client : clients) {
      Share* share = FindByName(client.id);
      if (share == nullptr) continue;
      const api::ShareTerms now = share->Terms().front();
      const api::ShareTerms terms = change.TermsOf(client, now);
      if (Shrinks(now, terms) == growing) continue;
      if (auto ok = change.Change(*share, terms); !ok) return at_line(client, ok.error());
    }
  }
  for (const ResourceClient& client : clients) {
    if (FindByName(client.id) != nullptr) continue;
    if (auto ok = change.Make(client); !ok) return at_line(client, ok.error());
  }
  change.Keep();

  for (Share* share : without_line) EndFileShare(*share);
  for (Share* share : FileShares(device)) {
    const ResourceClient* line = LineOf(clients, share->config().name);
    if (line == nullptr) continue;
    const bool back = share->ended();
    share->KeepAgain(ShareLife::OfFile(file));
    ChangeUsers(*share, line->allow_users);
    if (!back) continue;
    api::Event event = EventOf(api::EventKind::kShareChanged, *share, nullptr, 0);
    event.detail = "its line is in '" + file + "' again: programs may join";
    events_.Add(std::move(event));
  }
  SaveAndLog();
  return {};
}

void Node::EndFileShares(size_t device) {
  for (Share* share : FileShares(device)) EndFileShare(*share);
}

void Node::EndFileShare(Share& share) {
  if (share.ended()) return;
  share.End();
  share.LetGo();
  if (share.HasMembers()) {
    api::Event event = EventOf(api::EventKind::kShareChanged, share, nullptr, 0);
    event.detail =
        "its line in '" + *share.config().life.file() + "' is gone: it ends with its last process";
    events_.Add(std::move(event));
  }
  SaveSoon();
  TakeAwayIfDone(share.id());
}

Result<Share*> Node::Join(Share& share, const api::ShareSpec& spec) {
  const std::string& name = share.config().name;
  const std::string* file = share.config().life.file();
  if (share.ended()) {
    return Fail("share_ended", "share '" + name + "' is ending: " +
                                   (file != nullptr ? "its line in '" + *file + "' is gone"
                                                    : std::string("it was removed")) +
                                   "; nobody joins it any more");
  }
  if (share.config().exclusive) {
    return Fail("exclusive", "share '" + name +
                                 "' is whole GPUs for containers (--mode exclusive), which no "
                                 "program joins; on this machine itself run the program without "
                                 "prorata, with CUDA_VISIBLE_DEVICES=" +
                                 share.config().devices.front().uuid);
  }
  if (!SaysNothing(spec) && file != nullptr) {
    return Fail("resource_config",
                "share '" + name + "' has its terms from '" + *file +
                    "'; give `prorata run` nothing but its --name, or change its line there");
  }
  if (!SaysNothing(spec)) {
    return Fail("share_exists", "share '" + name +
                                    "' is there already, with terms of its own: give `prorata run` "
                                    "nothing but its --name, or change it with `prorata update`");
  }
  return &share;
}

Status Node::MayChange(const Share& share, const api::ShareChange& change) const {
  const std::string* file = share.config().life.file();
  if (file == nullptr) return {};
  bool in_line =
      change.memory || change.memory_request || change.compute_request || change.compute_limit;
  for (const api::TermsOnGpu& on : change.on) {
    in_line |= on.memory || on.memory_request || on.compute_request || on.compute_limit;
  }
  in_line |= change.allow_users.has_value();
  if (!in_line) return {};
  return Fail("resource_config", "the memory, request, limit and users of share '" +
                                     share.config().name + "' are those of its line in '" + *file +
                                     "'; change that");
}

}  // namespace prorata::agent
