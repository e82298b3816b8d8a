#pragma once

#include <optional>
#include <string>

#include "api/control_connection.h"
#include "base/result.h"
#include "cli/top/top_view.h"

namespace prorata::cli {

// What an agent says, asked for again and again, without ever waiting for it: an agent that is
// stopped, ends or comes back is part of the picture. After an error the next Ask connects anew.
class TopFeed {
 public:
  explicit TopFeed(std::string socket_path) : socket_path_(std::move(socket_path)) {}

  // Asks, unless it was asked already and has not answered. Errors: of ControlConnection.
  Status Ask();
  bool asked() const { return answers_due_ > 0; }
  // To poll for reading; -1: nothing will come.
  int fd() const { return connection_ ? connection_->fd() : -1; }
  // What came; nothing: it is not whole yet.
  Result<std::optional<TopSnapshot>> Take();

 private:
  Status Read(const nlohmann::json& reply);
  Result<std::optional<TopSnapshot>> TakeAll();

  std::string socket_path_;
  std::optional<ControlConnection> connection_;
  int answers_due_ = 0;  // of the two: shares, then devices
  TopSnapshot partial_;
};

}  // namespace prorata::cli
