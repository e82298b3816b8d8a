#include "agent/server/metrics_server.h"

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace prorata::agent {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr size_t kMaxMetricsSessions = 16;
constexpr uint32_t kMaxRequestBytes = 8192;
constexpr auto kRequestWithin = std::chrono::seconds(10);
constexpr int64_t kTextForNs = 100 * kNsPerMs;

}  // namespace

struct MetricsServer::State {
  State(asio::io_context& loop, MakeText make)
      : acceptor(loop), pause(loop), make_text(std::move(make)) {}

  // At most kMaxMetricsSessions wait for one text.
  static void WithText(const std::shared_ptr<State>& state,
                       std::function<void(const std::string&)> then) {
    if (state->made_ns && RealClock().NowNs() - *state->made_ns < kTextForNs) {
      return then(state->text);
    }
    state->waiting.push_back(std::move(then));
    if (state->waiting.size() > 1) return;
    state->make_text([state](std::string made) {
      state->text = std::move(made);
      state->made_ns = RealClock().NowNs();
      for (const auto& one : std::exchange(state->waiting, {})) one(state->text);
    });
  }

  tcp::acceptor acceptor;
  asio::steady_timer pause;
  MakeText make_text;
  std::vector<std::function<void(const std::string&)>> waiting;
  std::string text;
  std::optional<int64_t> made_ns;
  size_t sessions = 0;
  bool accepting = false;
  bool ended = false;
};

// One connection, one request. Kept by the handler that is under way.
class MetricsServer::Session : public std::enable_shared_from_this<Session> {
 public:
  Session(std::shared_ptr<State> state, tcp::socket socket)
      : state_(std::move(state)), stream_(std::move(socket)), buffer_(kMaxRequestBytes) {
    ++state_->sessions;
    parser_.header_limit(kMaxRequestBytes);
    parser_.body_limit(uint64_t{0});
  }
  ~Session() {
    --state_->sessions;
    if (!state_->ended) Accept(state_);
  }

  void Read() {
    stream_.expires_after(kRequestWithin);
    http::async_read(stream_, buffer_, parser_,
                     [self = shared_from_this()](const error_code& error, size_t) {
                       if (!error && !self->state_->ended) self->Answer();
                     });
  }

 private:
  void Answer() {
    const auto& request = parser_.get();
    head_ = request.method() == http::verb::head;
    const bool get = head_ || request.method() == http::verb::get;
    const bool known = request.target() == "/metrics";
    response_.version(request.version());
    response_.keep_alive(false);
    response_.set(http::field::content_type, "text/plain; version=0.0.4; charset=utf-8");
    if (get && known) {
      return State::WithText(state_, [self = shared_from_this()](const std::string& text) {
        self->response_.body() = text;
        if (!self->state_->ended) self->Write();
      });
    }
    if (get && request.target() == "/") {  // a person, in a browser
      response_.result(http::status::found);
      response_.set(http::field::location, "/metrics");
    } else if (known || request.target() == "/") {
      response_.result(http::status::method_not_allowed);
      response_.set(http::field::allow, "GET, HEAD");
    } else {
      response_.result(http::status::not_found);
    }
    response_.set(http::field::content_type, "text/plain; charset=utf-8");
    response_.body() = "the metrics are at /metrics, for GET and HEAD\n";
    Write();
  }

  void Write() {
    response_.prepare_payload();
    if (head_) response_.body().clear();  // its length is in the header already
    stream_.expires_after(kRequestWithin);
    http::async_write(stream_, response_,
                      [self = shared_from_this()](const error_code& error, size_t) {
                        error_code ignored;
                        if (!error)
                          self->stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
                      });
  }

  std::shared_ptr<State> state_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;
  http::request_parser<http::string_body> parser_;
  http::response<http::string_body> response_;
  bool head_ = false;
};

MetricsServer::MetricsServer(asio::io_context& loop, MakeText make_text)
    : state_(std::make_shared<State>(loop, std::move(make_text))) {}

MetricsServer::~MetricsServer() {
  state_->ended = true;
  error_code ignored;
  state_->acceptor.close(ignored);
  state_->pause.cancel();
}

Status MetricsServer::Start(const agent::MetricsAddress& where) {
  error_code error;
  const tcp::endpoint endpoint(asio::ip::make_address(where.address, error), where.port);
  tcp::acceptor& acceptor = state_->acceptor;
  if (!error) acceptor.open(endpoint.protocol(), error);
  // The agent after a killed one takes its port at once; one that is listened at stays refused.
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (!error) acceptor.non_blocking(true, error);
  if (error) {
    return Fail("metrics_listen", "cannot offer metrics at " + where.address + " port " +
                                      std::to_string(where.port) + ": " + error.message() +
                                      "; give --metrics another address or port (0: a free one)");
  }
  const tcp::endpoint bound = acceptor.local_endpoint(error);
  const bool brackets = bound.address().is_v6();
  url_ = std::string("http://") + (brackets ? "[" : "") + bound.address().to_string() +
         (brackets ? "]" : "") + ":" + std::to_string(bound.port()) + "/metrics";
  Accept(state_);
  return {};
}

void MetricsServer::Accept(const std::shared_ptr<State>& state) {
  if (state->accepting || state->sessions >= kMaxMetricsSessions) return;
  state->accepting = true;
  state->acceptor.async_accept([state](const error_code& error, tcp::socket socket) {
    state->accepting = false;
    if (state->ended) return;
    if (!error) {
      std::make_shared<Session>(state, std::move(socket))->Read();
      Accept(state);
      return;
    }
    // Out of descriptors, say: those who wait stay in the queue for a moment.
    state->accepting = true;
    state->pause.expires_after(std::chrono::milliseconds(100));
    state->pause.async_wait([state](const error_code& stopped) {
      state->accepting = false;
      if (!stopped && !state->ended) Accept(state);
    });
  });
}

}  // namespace prorata::agent
