#include "agent/node/state_writer.h"

#include <spdlog/spdlog.h>

#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/clock.h"

namespace prorata::agent {
namespace {

constexpr int64_t kSlowNs = kNsPerS;
constexpr auto kSaveWithin = std::chrono::milliseconds(50);

}  // namespace

Error NotSaved(const Error& why, const std::string& what_holds) {
  return {why.code, why.message + "; " + what_holds +
                        ". See that the agent's folder may be written and that its disk has room "
                        "(df), and try again"};
}

StateWriter::StateWriter(boost::asio::io_context& loop, std::string path,
                         std::function<SavedState()> state, uint32_t slow_ms)
    : path_(std::move(path)),
      state_(std::move(state)),
      slow_ms_(slow_ms),
      timer_(loop),
      worker_(loop, 2) {}

StateWriter::~StateWriter() {
  if (next_) worker_.Run([write = WriteNext()] { [[maybe_unused]] const Status ok = write(); }, {});
}

std::function<Status()> StateWriter::WriteNext() {
  std::string text = std::move(*next_);
  next_.reset();
  return [path = path_, text = std::move(text), slow_ms = slow_ms_] {
    if (slow_ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(slow_ms));
    return WriteState(path, text);
  };
}

void StateWriter::Save(Then then) {
  next_ = EncodeState(state_());
  if (then) next_waiting_.push_back(std::move(then));
  if (!under_way_) Start();
}

void StateWriter::SaveAndLog() {
  Save([](const Status& saved) {
    if (!saved) spdlog::error("{}", saved.error().message);
  });
}

void StateWriter::SaveSoon() {
  if (armed_) return;
  armed_ = true;
  timer_.expires_after(kSaveWithin);
  timer_.async_wait([this](const boost::system::error_code& stopped) {
    if (stopped) return;
    armed_ = false;
    SaveAndLog();
  });
}

Status StateWriter::SaveNow() {
  const std::string text = EncodeState(state_());
  if (next_) *next_ = text;  // or what was to be written later would be older
  auto written = std::make_shared<std::promise<Status>>();
  auto result = written->get_future();
  PRORATA_CHECK(worker_.Run(
      [path = path_, text, written] { written->set_value(WriteState(path, text)); }, {}));
  return result.get();
}

void StateWriter::Start() {
  under_way_ = true;
  waiting_ = std::exchange(next_waiting_, {});
  auto result = std::make_shared<Status>();
  const auto then = [this, result] {
    under_way_ = false;
    const auto waiting = std::exchange(waiting_, {});
    if (next_) Start();
    for (const Then& one : waiting) one(*result);
  };
  PRORATA_CHECK(worker_.Run([write = WriteNext(), result] { *result = write(); }, then));
}

int64_t StateWriter::UnansweredNs() const {
  const int64_t busy_ns = worker_.BusyNs();
  return busy_ns < kSlowNs ? 0 : busy_ns;
}

}  // namespace prorata::agent
