#include "kubernetes/extender/http_server.h"

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

namespace prorata::kubernetes {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using boost::system::error_code;

// The names of 50,000 nodes.
constexpr uint64_t kMaxNodesBytes = uint64_t{16} << 20;
constexpr size_t kMaxConnections = 256;
constexpr auto kIdleFor = std::chrono::seconds(120);
constexpr auto kAcceptPause = std::chrono::milliseconds(100);
// Calls that wait for the API server: as many pods are bound at once.
constexpr size_t kCalls = 16;

}  // namespace

class HttpServer::Parts {
 public:
  explicit Parts(Handle handle) : handle_(std::move(handle)) {}
  ~Parts() {
    calls_.join();
    loop_.stop();
    if (thread_.joinable()) thread_.join();
  }

  Status Start(const std::string& address, uint16_t port) {
    error_code error;
    const tcp::endpoint endpoint(asio::ip::make_address(address, error), port);
    if (!error) acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (error) {
      return Fail("listen", "cannot listen at " + address + " port " + std::to_string(port) + ": " +
                                error.message() + "; give --listen another address or port");
    }
    port_ = acceptor_.local_endpoint(error).port();
    Accept();
    thread_ = std::thread([this] { loop_.run(); });
    return {};
  }

  uint16_t port() const { return port_; }

 private:
  class Session;
  void Accept();

  Handle handle_;
  // Before the loop: sessions that end with it count themselves out.
  size_t sessions_ = 0;
  bool accepting_ = false;
  uint16_t port_ = 0;
  asio::io_context loop_{1};
  tcp::acceptor acceptor_{loop_};
  asio::steady_timer pause_{loop_};
  asio::thread_pool calls_{kCalls};
  std::thread thread_;
};

// One connection, on the loop; only the call itself runs on a thread of the pool.
class HttpServer::Parts::Session : public std::enable_shared_from_this<Session> {
 public:
  Session(Parts* server, tcp::socket socket) : server_(server), stream_(std::move(socket)) {
    ++server_->sessions_;
    error_code ignored;
    stream_.socket().set_option(tcp::no_delay(true), ignored);
  }
  ~Session() {
    --server_->sessions_;
    if (!server_->loop_.stopped()) server_->Accept();
  }

  void Read() {
    parser_.emplace();
    parser_->body_limit(kMaxNodesBytes);
    stream_.expires_after(kIdleFor);
    http::async_read(stream_, buffer_, *parser_,
                     [self = shared_from_this()](const error_code& error, size_t) {
                       if (!error) self->Call();
                     });
  }

 private:
  void Call() {
    stream_.expires_never();
    asio::post(server_->calls_, [self = shared_from_this()]() mutable {
      const auto& request = self->parser_->get();
      const std::string_view target(request.target().data(), request.target().size());
      HttpReply reply =
          self->server_->handle_(request.method() == http::verb::post, target, request.body());
      Parts* server = self->server_;
      // The session ends on the loop, whoever held it last.
      asio::post(server->loop_, [kept = std::move(self), reply = std::move(reply)]() mutable {
        kept->Write(std::move(reply));
      });
    });
  }

  void Write(HttpReply reply) {
    response_ = {};
    response_.version(parser_->get().version());
    response_.keep_alive(parser_->get().keep_alive());
    response_.result(reply.status);
    response_.set(http::field::content_type, reply.content_type);
    response_.body() = std::move(reply.body);
    response_.prepare_payload();
    stream_.expires_after(kIdleFor);
    http::async_write(stream_, response_,
                      [self = shared_from_this()](const error_code& error, size_t) {
                        if (!error && self->response_.keep_alive()) self->Read();
                      });
  }

  Parts* server_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;
  http::response<http::string_body> response_;
};

void HttpServer::Parts::Accept() {
  if (accepting_ || sessions_ >= kMaxConnections) return;
  accepting_ = true;
  acceptor_.async_accept([this](const error_code& error, tcp::socket socket) {
    accepting_ = false;
    if (!error) {
      std::make_shared<Session>(this, std::move(socket))->Read();
      return Accept();
    }
    // Out of descriptors, say: those who wait stay in the queue for a moment.
    pause_.expires_after(kAcceptPause);
    pause_.async_wait([this](const error_code& stopped) {
      if (!stopped) Accept();
    });
  });
}

HttpServer::HttpServer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
HttpServer::~HttpServer() = default;

Result<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& address, uint16_t port,
                                                      Handle handle) {
  auto parts = std::make_unique<Parts>(std::move(handle));
  if (auto ok = parts->Start(address, port); !ok) return std::unexpected(ok.error());
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(parts)));
}

uint16_t HttpServer::port() const { return parts_->port(); }

}  // namespace prorata::kubernetes
