#include "kubernetes/api/list_watch.h"

#include <spdlog/spdlog.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

namespace prorata::kubernetes {
namespace {

using nlohmann::json;

constexpr std::chrono::milliseconds kListAgainAfter{1'000};
constexpr char kListPage[] = "limit=500";
constexpr char kWatchQuery[] = "watch=true&allowWatchBookmarks=true&timeoutSeconds=240";

std::string MetadataOf(const json& object, const char* field) {
  const auto metadata = object.find("metadata");
  return metadata != object.end() ? metadata->value(field, "") : "";
}

}  // namespace

ListWatch::ListWatch(KubeClient& client, std::string path, std::string what, Handlers handlers)
    : client_(client),
      path_(std::move(path)),
      what_(std::move(what)),
      handlers_(std::move(handlers)),
      thread_([this] { Run(); }) {}

ListWatch::~ListWatch() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  stopping_.notify_all();
  thread_.join();
}

void ListWatch::Run() {
  while (!stopped_) {
    Status outcome = version_.empty() ? List() : Watch();
    Report(outcome);
    if (outcome) continue;
    // Too old to go on from, or whatever else went wrong: a list is right in any case.
    version_.clear();
    std::unique_lock lock(mutex_);
    stopping_.wait_for(lock, kListAgainAfter, [this] { return stopped_.load(); });
  }
}

std::string ListWatch::PathWith(const std::string& query) const {
  return path_ + (path_.find('?') == std::string::npos ? "?" : "&") + query;
}

Status ListWatch::List() {
  std::unordered_set<std::string> uids;
  std::string version;
  std::string rest;
  do {
    const auto page = client_.Get(PathWith(kListPage) + (rest.empty() ? "" : "&continue=" + rest));
    if (!page) return std::unexpected(page.error());
    if (stopped_) return {};
    try {
      for (const json& object : page->at("items")) {
        uids.insert(MetadataOf(object, "uid"));
        handlers_.changed(object);
      }
    } catch (const json::exception& error) {
      return Fail("api_error", "the API server's list of " + what_ + ": " + error.what());
    }
    rest = MetadataOf(*page, "continue");
    version = MetadataOf(*page, "resourceVersion");
  } while (!rest.empty());
  handlers_.listed(uids);
  version_ = version;
  return {};
}

Status ListWatch::Watch() {
  bool broken = false;
  const auto ended = client_.Watch(
      PathWith(std::string(kWatchQuery) + "&resourceVersion=" + version_),
      [&](const json& event) {
        broken = broken || event.value("type", "") == "ERROR";
        if (!broken) OnEvent(event);
      },
      stopped_);
  if (!ended) return ended;
  if (broken) return Fail("gone", "the watch of " + what_ + " cannot be continued");
  return {};
}

void ListWatch::OnEvent(const json& event) {
  const auto object = event.find("object");
  if (object == event.end() || !object->is_object()) return;
  const std::string type = event.value("type", "");
  try {
    if (type == "DELETED") handlers_.gone(*object);
    if (type == "ADDED" || type == "MODIFIED") handlers_.changed(*object);
  } catch (const json::exception& error) {
    spdlog::warn("an object among {} cannot be read: {}", what_, error.what());
  }
  version_ = MetadataOf(*object, "resourceVersion");
}

void ListWatch::Report(const Status& outcome) {
  // That a watch is too old is no trouble: it happens when nothing changed for long.
  const bool trouble = !outcome && outcome.error().code != "gone";
  const std::string now = trouble ? outcome.error().message : "";
  if (now == trouble_ || stopped_) return;
  if (trouble) {
    spdlog::warn("cannot follow {}: {}; trying again every second", what_, now);
  } else {
    spdlog::info("following {} again", what_);
  }
  trouble_ = now;
}

}  // namespace prorata::kubernetes
