#pragma once

// Connections that say nothing, of which anybody who reaches a socket can open any number: they
// must keep nobody else away, neither another user nor another program of the same one.
//
// A connection is quiet from when it is accepted, or from its last answer, until it has sent a
// whole request. Of each user so many may be quiet, and so many of all users together; beyond that
// the one that was quiet the longest is closed (of the user who has the most), and the newcomer
// stays. So there is always room for who comes and speaks at once, as every honest client does. One
// whose bytes have come and wait for the loop is not quiet. For use on the loop's thread only.

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "agent/runtime/connection.h"

namespace prorata::agent {

class QuietConnections {
 public:
  static constexpr size_t kMaxOfUser = 64;
  static constexpr size_t kMost = 256;

  // It is quiet from now on. May close others, by which their owners call Remove.
  void Add(uint64_t id, uid_t user, const std::shared_ptr<Connection>& connection);
  // It has spoken, or is gone; nothing if it was not quiet.
  void Remove(uint64_t id);

 private:
  struct Quiet {
    uint64_t id = 0;
    uid_t user = 0;
    std::weak_ptr<Connection> connection;
  };
  // The one to close; null: all have bytes that wait.
  std::shared_ptr<Connection> LongestQuiet(uid_t user) const;

  uint64_t next_ = 1;
  std::map<uint64_t, Quiet> by_age_;
  std::map<uint64_t, uint64_t> ages_;  // by id
  std::map<uid_t, size_t> of_user_;
};

}  // namespace prorata::agent
