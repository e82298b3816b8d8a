#include "kubernetes/nri/nri_plugin.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "kubernetes/nri/frames.h"
#include "kubernetes/nri/nri.pb.h"
#include "kubernetes/nri/ttrpc.pb.h"

namespace prorata::kubernetes {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// What happened, for a thread that waits for it.
class Heard final : public RuntimeEvents {
 public:
  void Synchronized(const std::vector<RuntimePod>& pods,
                    const std::vector<RuntimeContainer>&) override {
    Add("synchronized " + (pods.empty() ? "" : pods.front().uid));
  }
  Result<std::vector<std::string>> CreateContainer(const RuntimePod&, const RuntimeContainer&,
                                                   std::chrono::steady_clock::time_point) override {
    return std::vector<std::string>();
  }
  void PodRuns(const RuntimePod&) override {}
  void PodEnded(const RuntimePod&) override {}
  void ContainerStopped(const RuntimePod&, const RuntimeContainer&) override {}
  void Disconnected() override { Add("disconnected"); }

  // Whether it was heard, after what was waited for before.
  bool WaitFor(const std::string& event) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, seconds(20), [&] {
      while (next_ < events_.size()) {
        if (events_[next_++] == event) return true;
      }
      return false;
    });
  }

 private:
  void Add(std::string event) {
    {
      const std::lock_guard lock(mutex_);
      events_.push_back(std::move(event));
    }
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> events_;
  size_t next_ = 0;
};

// A runtime that has one pod. Each step is taken by the test's thread.
class NriPluginTest : public testing::Test {
 protected:
  NriPluginTest() {
    std::string folder = testing::TempDir() + "nri-XXXXXX";
    EXPECT_NE(::mkdtemp(folder.data()), nullptr);
    folder_ = folder;
    path_ = folder_ + "/nri.sock";
  }
  ~NriPluginTest() override {
    ::unlink(path_.c_str());
    ::rmdir(folder_.c_str());
  }

  void Listen() {
    ::unlink(path_.c_str());
    listener_ = UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.c_str(), path_.size() + 1);
    ASSERT_EQ(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    ASSERT_EQ(::listen(listener_.get(), 4), 0);
  }

  void Accept() {
    connection_ = UniqueFd(::accept(listener_.get(), nullptr, nullptr));
    decoder_ = FrameDecoder();
    taken_.clear();
  }

  void Send(const std::string& bytes) {
    ASSERT_EQ(::send(connection_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }

  void Ask(uint32_t stream, const std::string& method, const std::string& payload) {
    ttrpc::Request request;
    request.set_service("nri.pkg.api.v1alpha1.Plugin");
    request.set_method(method);
    request.set_payload(payload);
    Send(EncodeFrames(
        {kPluginConnection, stream, TtrpcType::kRequest, 0, request.SerializeAsString()}));
  }

  TtrpcMessage Receive() {
    char buffer[4096];
    while (taken_.empty()) {
      const ssize_t got = ::recv(connection_.get(), buffer, sizeof buffer, 0);
      if (got <= 0) return {};
      taken_ = *decoder_.Take({buffer, static_cast<size_t>(got)});
    }
    TtrpcMessage first = std::move(taken_.front());
    taken_.erase(taken_.begin());
    return first;
  }

  // As containerd: it takes the plugin and says what there is.
  void Register(const std::string& uid) {
    Accept();
    EXPECT_EQ(Receive().connection, kRuntimeConnection);
    Send(EncodeFrames({kRuntimeConnection, 1, TtrpcType::kResponse, 0, ""}));
    Ask(1, "Configure", "");
    EXPECT_EQ(Receive().stream, 1u);
    nri::pkg::api::v1alpha1::SynchronizeRequest state;
    state.add_pods()->set_uid(uid);
    Ask(3, "Synchronize", state.SerializeAsString());
    EXPECT_EQ(Receive().stream, 3u);
  }

  std::string folder_;
  std::string path_;
  UniqueFd listener_;
  UniqueFd connection_;
  FrameDecoder decoder_;
  std::vector<TtrpcMessage> taken_;
  Heard heard_;
};

TEST_F(NriPluginTest, ItConnectsAgainWhenTheRuntimeIsBack) {
  const NriPlugin plugin(path_, {"prorata", "90"}, heard_);
  ASSERT_TRUE(heard_.WaitFor("disconnected")) << "nobody listens yet";
  Listen();
  Register("first");
  ASSERT_TRUE(heard_.WaitFor("synchronized first"));
  connection_.Reset();
  ASSERT_TRUE(heard_.WaitFor("disconnected"));
  Register("second");
  ASSERT_TRUE(heard_.WaitFor("synchronized second"));
  Send("this is no frame of NRI's");
  ASSERT_TRUE(heard_.WaitFor("disconnected"));
  EXPECT_EQ(Receive().stream, 0u) << "it closed the connection";
  Register("third");
  ASSERT_TRUE(heard_.WaitFor("synchronized third"));
}

TEST_F(NriPluginTest, ItEndsWhileItWaits) {
  Listen();
  {
    const NriPlugin plugin(path_, {"prorata", "90"}, heard_);
    Register("a");
    ASSERT_TRUE(heard_.WaitFor("synchronized a"));
  }
  EXPECT_TRUE(heard_.WaitFor("disconnected"));
}

TEST_F(NriPluginTest, TheRuntimeIsAskedWhatThereIs) {
  Listen();
  std::thread runtime([this] { Register("a"); });
  const auto state = AskRuntime(path_, {"prorata-look", "91", true}, seconds(20));
  runtime.join();
  ASSERT_TRUE(state) << state.error().message;
  ASSERT_EQ(state->pods.size(), 1u);
  EXPECT_EQ(state->pods.front().uid, "a");
  EXPECT_EQ(Receive().stream, 0u) << "nothing more";
}

TEST_F(NriPluginTest, ARuntimeThatDoesNotSay) {
  const auto code = [this] {
    return AskRuntime(path_, {"prorata-look", "91", true}, milliseconds(50)).error().code;
  };
  EXPECT_EQ(code(), "nri_socket");
  Listen();
  EXPECT_EQ(code(), "nri_slow");
  path_ = "/" + std::string(200, 'x');
  EXPECT_EQ(code(), "nri_socket");
}

}  // namespace
}  // namespace prorata::kubernetes
