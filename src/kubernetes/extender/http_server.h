#pragma once

// A small HTTP/1.1 server for the scheduler's calls: POST with a body, GET /healthz. Connections
// are kept; a response is one write, sent at once.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace prorata::kubernetes {

struct HttpReply {
  unsigned status = 200;
  std::string body;
  const char* content_type = "application/json";
};

class HttpServer {
 public:
  // Called from several threads; it may block.
  using Handle = std::function<HttpReply(bool post, std::string_view path, std::string_view body)>;

  // Listens at `address` and `port` (0: a free one) and serves from threads of its own. "listen".
  static Result<std::unique_ptr<HttpServer>> Start(const std::string& address, uint16_t port,
                                                   Handle handle);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  uint16_t port() const;

 private:
  class Parts;
  explicit HttpServer(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace prorata::kubernetes
