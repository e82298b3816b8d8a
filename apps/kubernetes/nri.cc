#include "apps/kubernetes/nri.h"

#include <spdlog/spdlog.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "apps/kubernetes/ending.h"
#include "kubernetes/api/repeated.h"
#include "kubernetes/dra/agent_client.h"
#include "kubernetes/kai/kai_shares.h"
#include "kubernetes/nri/nri_plugin.h"

namespace prorata::apps {
namespace {

using namespace prorata::kubernetes;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

// The name is the one in containerd's list of required plugins. The index comes after those of
// plugins that change what KAI set, if there are any.
constexpr char kPluginName[] = "prorata";
constexpr char kPluginIndex[] = "90";
constexpr char kLookingName[] = "prorata-look";
constexpr char kLookingIndex[] = "91";
// What no event reports, such as a share that could not be removed, is seen this late.
constexpr seconds kLookEvery{5};
constexpr milliseconds kLookPause{100};
constexpr seconds kLookWithin{10};
// The runtime waits two seconds in all, half of which is the deadline.
constexpr milliseconds kLateAnswer{300};

struct NriOptions {
  std::string socket = "/var/run/nri/nri.sock";
  std::string agent_dir = "/run/prorata";
};

class Upkeep {
 public:
  Upkeep(KaiShares& shares, std::string socket) : shares_(shares), socket_(std::move(socket)) {}

  void Look() {
    const Status looked = LookOnce();
    const std::string now = looked ? "" : looked.error().message;
    if (now != trouble_ && !looked) {
      spdlog::warn("shares of pods that have ended may be there still: {}; trying again every {} s",
                   now, kLookEvery.count());
    }
    trouble_ = now;
  }

 private:
  Status LookOnce() {
    const auto deadline = steady_clock::now() + kLookWithin;
    const auto doubtful = shares_.Doubtful(deadline);
    if (!doubtful) return std::unexpected(doubtful.error());
    Status asked;
    if (*doubtful) {
      const auto state = AskRuntime(socket_, {kLookingName, kLookingIndex, true}, kLookWithin);
      if (state) shares_.Confirm(state->pods, state->containers);
      if (!state) asked = std::unexpected(state.error());
    }
    const auto removed = shares_.RemoveStale(deadline);
    if (!removed) return std::unexpected(removed.error());
    for (const std::string& name : *removed) {
      spdlog::info("removed share {}, whose pod has ended", name);
    }
    return asked;
  }

  KaiShares& shares_;
  const std::string socket_;
  std::string trouble_ = {};
};

int RunNri(const NriOptions& options) {
  const Ending ending;
  AgentClient agent(options.agent_dir + "/control", kLateAnswer);
  std::function<void()> soon;
  KaiShares shares(agent, [&soon] { soon(); });
  Upkeep upkeep(shares, options.socket);
  Repeated look(kLookEvery, kLookPause, [&] { upkeep.Look(); });
  soon = [&look] { look.Soon(); };
  const NriPlugin plugin(options.socket, {kPluginName, kPluginIndex}, shares);
  spdlog::info("holding pods of KAI's to their parts of GPUs, by NRI at {}, for the agent in {}",
               options.socket, options.agent_dir);
  spdlog::info("ending, by signal {}", ending.Wait());
  return EXIT_SUCCESS;
}

}  // namespace

void AddNri(CLI::App& app, std::function<int()>* run) {
  const auto options = std::make_shared<NriOptions>();
  CLI::App* role = app.add_subcommand(
      "nri", "the NRI plugin of a node: holds pods that KAI places to their parts of GPUs");
  role->add_option("--nri-socket", options->socket,
                   "the container runtime's socket for NRI plugins")
      ->capture_default_str();
  role->add_option("--agent-dir", options->agent_dir, "the folder of the node's agent")
      ->envname("PRORATA_DIR")
      ->capture_default_str();
  role->callback([options, run] { *run = [options] { return RunNri(*options); }; });
}

}  // namespace prorata::apps
