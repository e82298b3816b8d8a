#include "kubernetes/admission/https_server.h"

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/strand.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <vector>

namespace prorata::kubernetes {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using nlohmann::json;
using Code = boost::system::error_code;

// An object of the API server's is at most 3 MiB, and a review has two of them.
constexpr uint64_t kMaxBodyBytes = uint64_t{8} << 20;
constexpr std::chrono::seconds kHandshakeTime{10};
// The API server keeps connections; one that is silent for so long is of nobody's use.
constexpr std::chrono::seconds kIdleTime{120};

http::response<http::string_body> PlainAnswer(http::status status, const std::string& text) {
  http::response<http::string_body> answer(status, 11);
  answer.set(http::field::content_type, "text/plain");
  answer.body() = text;
  return answer;
}

http::response<http::string_body> AnswerTo(const http::request<http::string_body>& request,
                                           const HttpsServer::Handler& handler) {
  const std::string target(request.target());
  const std::string path = target.substr(0, target.find('?'));
  if (request.method() == http::verb::get && path == "/healthz") {
    return PlainAnswer(http::status::ok, "ok\n");
  }
  if (request.method() != http::verb::post) {
    return PlainAnswer(http::status::method_not_allowed, "only POST of JSON, and GET /healthz\n");
  }
  const json body = json::parse(request.body(), nullptr, false);
  if (!body.is_object()) return PlainAnswer(http::status::bad_request, "no JSON object\n");
  http::response<http::string_body> answer(http::status::ok, 11);
  answer.set(http::field::content_type, "application/json");
  answer.body() = handler(path, body).dump();
  return answer;
}

// One connection, on a strand of its own; it lives as long as something of it is waited for.
class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(tcp::socket socket, std::shared_ptr<asio::ssl::context> tls,
          const HttpsServer::Handler& handler)
      : tls_(std::move(tls)), stream_(std::move(socket), *tls_), handler_(handler) {}

  void Begin() {
    beast::get_lowest_layer(stream_).expires_after(kHandshakeTime);
    stream_.async_handshake(asio::ssl::stream_base::server,
                            [self = shared_from_this()](const Code& error) {
                              if (!error) self->Read();
                            });
  }

 private:
  void Read() {
    parser_.emplace();
    parser_->body_limit(kMaxBodyBytes);
    beast::get_lowest_layer(stream_).expires_after(kIdleTime);
    http::async_read(stream_, buffer_, *parser_,
                     [self = shared_from_this()](const Code& error, size_t) {
                       if (!error) self->Answer();
                     });
  }

  void Answer() {
    const auto& request = parser_->get();
    answer_ = AnswerTo(request, handler_);
    answer_.keep_alive(request.keep_alive());
    answer_.prepare_payload();
    beast::get_lowest_layer(stream_).expires_after(kIdleTime);
    http::async_write(stream_, answer_, [self = shared_from_this()](const Code& error, size_t) {
      if (!error && self->answer_.keep_alive()) self->Read();
    });
  }

  const std::shared_ptr<asio::ssl::context> tls_;
  beast::ssl_stream<beast::tcp_stream> stream_;
  const HttpsServer::Handler& handler_;
  beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;
  http::response<http::string_body> answer_;
};

Result<std::shared_ptr<asio::ssl::context>> TlsOf(const Certificate& certificate) {
  auto tls = std::make_shared<asio::ssl::context>(asio::ssl::context::tls_server);
  tls->set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_tlsv1 |
                   asio::ssl::context::no_tlsv1_1);
  Code error;
  tls->use_certificate_chain(asio::buffer(certificate.certificate_pem), error);
  if (!error) {
    tls->use_private_key(asio::buffer(certificate.key_pem), asio::ssl::context::pem, error);
  }
  if (error) {
    return Fail("certificate",
                "the webhook's certificate and key cannot be used: " + error.message());
  }
  return tls;
}

}  // namespace

class HttpsServer::Parts {
 public:
  explicit Parts(Handler handler) : handler_(std::move(handler)) {}
  ~Parts() {
    io_.stop();
    for (std::thread& thread : threads_) thread.join();
  }

  Status Start(const Options& options, std::shared_ptr<asio::ssl::context> tls) {
    Use(std::move(tls));
    Code error;
    const auto address = asio::ip::make_address(options.address, error);
    const tcp::endpoint endpoint(address, options.port);
    if (!error) acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(asio::socket_base::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (error) {
      return Fail("listen", "cannot listen on " + options.address + ":" +
                                std::to_string(options.port) + ": " + error.message() +
                                "; choose another --address or --port");
    }
    Accept();
    for (int i = 0; i < options.threads; ++i) threads_.emplace_back([this] { io_.run(); });
    return {};
  }

  void Use(std::shared_ptr<asio::ssl::context> tls) {
    const std::lock_guard lock(mutex_);
    tls_ = std::move(tls);
  }

 private:
  void Accept() {
    acceptor_.async_accept(asio::make_strand(io_), [this](const Code& error, tcp::socket socket) {
      std::shared_ptr<asio::ssl::context> tls;
      {
        const std::lock_guard lock(mutex_);
        tls = tls_;
      }
      if (!error) std::make_shared<Session>(std::move(socket), tls, handler_)->Begin();
      Accept();
    });
  }

  const Handler handler_;
  asio::io_context io_;
  tcp::acceptor acceptor_{io_};
  std::mutex mutex_;
  std::shared_ptr<asio::ssl::context> tls_;
  std::vector<std::thread> threads_;
};

HttpsServer::HttpsServer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
HttpsServer::~HttpsServer() = default;

Result<std::unique_ptr<HttpsServer>> HttpsServer::Start(const Options& options,
                                                        const Certificate& certificate,
                                                        Handler handler) {
  auto tls = TlsOf(certificate);
  if (!tls) return std::unexpected(tls.error());
  auto parts = std::make_unique<Parts>(std::move(handler));
  if (auto ok = parts->Start(options, std::move(*tls)); !ok) return std::unexpected(ok.error());
  return std::unique_ptr<HttpsServer>(new HttpsServer(std::move(parts)));
}

Status HttpsServer::Use(const Certificate& certificate) {
  auto tls = TlsOf(certificate);
  if (!tls) return std::unexpected(tls.error());
  parts_->Use(std::move(*tls));
  return {};
}

}  // namespace prorata::kubernetes
