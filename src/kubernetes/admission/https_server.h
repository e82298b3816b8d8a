#pragma once

// A small HTTPS server: POSTs of JSON, and GET /healthz. Thread-safe.

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/result.h"
#include "kubernetes/admission/certificate.h"

namespace prorata::kubernetes {

class HttpsServer {
 public:
  struct Options {
    std::string address = "0.0.0.0";
    uint16_t port = 9443;
    int threads = 4;  // so many requests are answered at once
  };
  // An object in, an object out; from several threads.
  using Handler = std::function<nlohmann::json(const std::string& path, const nlohmann::json&)>;

  // Serves from now on. "listen": the address cannot be had; "certificate": it is none.
  static Result<std::unique_ptr<HttpsServer>> Start(const Options& options,
                                                    const Certificate& certificate,
                                                    Handler handler);
  // Ends with the requests that are being answered.
  ~HttpsServer();
  HttpsServer(const HttpsServer&) = delete;
  HttpsServer& operator=(const HttpsServer&) = delete;

  // For new connections. "certificate": it is none; the one of before stays.
  Status Use(const Certificate& certificate);

 private:
  class Parts;
  explicit HttpsServer(std::unique_ptr<Parts> parts);

  std::unique_ptr<Parts> parts_;
};

}  // namespace prorata::kubernetes
