#include "agent/node/file_shares.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <functional>
#include <string>
#include <utility>

#include "agent/share/resource_plan.h"
#include "agent/share/share_events.h"

namespace prorata::agent {
namespace {

const ResourceClient* LineOf(const std::vector<ResourceClient>& clients, const std::string& name) {
  for (const ResourceClient& client : clients) {
    if (client.id == name) return &client;
  }
  return nullptr;
}

// Only what grows can be refused, so what shrinks comes first.
bool Shrinks(const api::ShareTerms& now, const api::ShareTerms& terms) {
  return terms.memory_bytes <= now.memory_bytes &&
         terms.memory_request_bytes <= now.memory_request_bytes &&
         terms.compute_request <= now.compute_request;
}

}  // namespace

// A change of several shares that is undone unless all of it succeeds.
class FileShares::Change {
 public:
  // `status`: of the device, before the change.
  Change(FileShares& shares, size_t device, std::string file, api::DeviceStatus status)
      : of_(shares), device_(device), file_(std::move(file)), status_(std::move(status)) {}
  ~Change() {
    if (done_) return;
    for (auto undo = undo_.rbegin(); undo != undo_.rend(); ++undo) (*undo)();
  }
  Change(const Change&) = delete;
  Change& operator=(const Change&) = delete;

  // Nobody is in it: it goes at once, to make room.
  void TakeAway(Share& share) {
    undo_.push_back([this, config = share.config()] {
      if (auto made = of_.lives_.Make(config); !made) spdlog::error("{}", made.error().message);
    });
    of_.End(share);
  }

  Status SetTerms(Share& share, const api::ShareTerms& terms) {
    const std::vector<api::ShareTerms> now = share.Terms();
    if (now.front() == terms) return {};
    if (auto ok = of_.changes_.Apply(share, {terms}); !ok) return ok;
    undo_.push_back([this, id = share.id(), now] {
      Share* changed = of_.shares_.Find(id);
      if (changed == nullptr) return;
      if (auto ok = of_.changes_.Apply(*changed, now); !ok) {
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
    auto made = of_.lives_.Make(std::move(config));
    if (!made) return std::unexpected(made.error());
    undo_.push_back([this, id = (*made)->id()] {
      if (Share* share = of_.shares_.Find(id)) of_.End(*share);
    });
    return {};
  }

  api::ShareTerms TermsOf(const ResourceClient& client, const api::ShareTerms& now) const {
    return agent::TermsOf(client, now, status_);
  }

  void Keep() { done_ = true; }

 private:
  FileShares& of_;
  const size_t device_;
  const std::string file_;
  const api::DeviceStatus status_;
  std::vector<std::function<void()>> undo_;
  bool done_ = false;
};

std::vector<Share*> FileShares::On(size_t device) const {
  std::vector<Share*> found;
  for (const auto& [share, index] : shares_.On(device)) {
    if (share->config().life.file() != nullptr) found.push_back(share);
  }
  return found;
}

Status FileShares::Apply(size_t device, const std::string& file,
                         const std::vector<ResourceClient>& clients) {
  for (Share* share : On(device)) members_.SweepDead(*share);
  const std::vector<Share*> former = On(device);
  std::vector<FileShare> judged;
  for (const Share* share : former) {
    judged.push_back({share->config().name, share->Terms().front(), share->HasMembers()});
  }
  std::vector<std::string> others;
  for (Share* share : shares_.All()) {
    const bool own = std::find(former.begin(), former.end(), share) != former.end();
    if (!own) others.push_back(share->config().name);
  }
  const api::DeviceStatus status = descriptions_.OfDevices()[device];
  if (auto ok = CheckResourcePlan(file, clients, status, judged, others); !ok) return ok;

  auto at_line = [&file](const ResourceClient& client, const Error& error) {
    return Fail("resource_config",
                AtLine(file, client.line, "'" + client.id + "': " + error.message));
  };
  Change change(*this, device, file, status);
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
      Share* share = shares_.FindByName(client.id);
      if (share == nullptr) continue;
      const api::ShareTerms now = share->Terms().front();
      const api::ShareTerms terms = change.TermsOf(client, now);
      if (Shrinks(now, terms) == growing) continue;
      if (auto ok = change.SetTerms(*share, terms); !ok) return at_line(client, ok.error());
    }
  }
  for (const ResourceClient& client : clients) {
    if (shares_.FindByName(client.id) != nullptr) continue;
    if (auto ok = change.Make(client); !ok) return at_line(client, ok.error());
  }
  change.Keep();

  for (Share* share : without_line) End(*share);
  for (Share* share : On(device)) {
    const ResourceClient* line = LineOf(clients, share->config().name);
    if (line == nullptr) continue;
    const bool back = share->ended();
    share->KeepAgain(ShareLife::OfFile(file));
    changes_.SetUsers(*share, line->allow_users);
    if (!back) continue;
    api::Event event = EventOf(api::EventKind::kShareChanged, *share, nullptr, 0);
    event.detail = "its line is in '" + file + "' again: programs may join";
    events_.Add(std::move(event));
  }
  state_.SaveAndLog();
  return {};
}

void FileShares::EndAll(size_t device) {
  for (Share* share : On(device)) End(*share);
}

void FileShares::End(Share& share) {
  if (share.ended()) return;
  share.End();
  share.LetGo();
  if (share.HasMembers()) {
    api::Event event = EventOf(api::EventKind::kShareChanged, share, nullptr, 0);
    event.detail =
        "its line in '" + *share.config().life.file() + "' is gone: it ends with its last process";
    events_.Add(std::move(event));
  }
  state_.SaveSoon();
  lives_.TakeAwayIfDone(share.id());
}

}  // namespace prorata::agent
