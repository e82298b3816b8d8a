#pragma once

// What keeps a share there while nobody runs on it. Once nothing does any more, it ends with its
// last member.

#include <string>
#include <utility>
#include <variant>

#include "agent/runtime/process.h"
#include "api/control.h"

namespace prorata::agent {

class ShareLife {
 public:
  ShareLife() = default;  // of no process: it ends with its last member
  // `prorata run`: until that process ends.
  static ShareLife OfProcess(const ProcessId& process) { return ShareLife(Process{process}); }
  // A line of a resource-config.txt: until the line is gone.
  static ShareLife OfFile(std::string path) { return ShareLife(File{std::move(path)}); }
  // `prorata create`: until it is removed by its name. The token is its maker's word for this one
  // creation: asked for again with it, the share is the one that is there.
  static ShareLife OfToken(std::string token) { return ShareLife(Hold{std::move(token)}); }

  // Null: something else keeps it.
  const ProcessId* process() const {
    const auto* of = std::get_if<Process>(&by_);
    return of != nullptr ? &of->process : nullptr;
  }
  const std::string* file() const {
    const auto* of = std::get_if<File>(&by_);
    return of != nullptr ? &of->path : nullptr;
  }
  const std::string* token() const {
    const auto* of = std::get_if<Hold>(&by_);
    return of != nullptr ? &of->token : nullptr;
  }

  // It is there with programs or without, so programs join it by its name.
  bool OutlivesPrograms() const { return process() == nullptr; }

  api::KeptBy Describe() const {
    if (const ProcessId* of = process()) {
      return {.kind = api::KeptBy::Kind::kProcess, .pid = of->pid};
    }
    if (const std::string* path = file()) {
      return {.kind = api::KeptBy::Kind::kFile, .file = *path};
    }
    return {.kind = api::KeptBy::Kind::kHold};
  }

 private:
  struct Process {
    ProcessId process;
  };
  struct File {
    std::string path;
  };
  struct Hold {
    std::string token;
  };
  using By = std::variant<Process, File, Hold>;
  explicit ShareLife(By by) : by_(std::move(by)) {}

  By by_;
};

}  // namespace prorata::agent
