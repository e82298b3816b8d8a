#include "apps/kubernetes/kubectl.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "cli/text/one_line.h"
#include "kubernetes/kubectl/cluster.h"
#include "kubernetes/kubectl/kubectl.h"
#include "kubernetes/kubectl/pod_shares.h"

namespace {

using namespace prorata::kubernetes;
using prorata::Error;
using prorata::Result;

struct Asked {
  std::string kubeconfig;
  std::string context;
  std::string pod_namespace;
  bool all_namespaces = false;
  std::string system_namespace = "prorata-system";
  std::string pod;
  int seconds = 2;
  int count = 0;
};

int PrintFailure(const Error& error) {
  std::fprintf(stderr, "kubectl prorata: %s\n", error.message.c_str());
  return 1;
}

Kubectl KubectlOf(const Asked& asked) {
  std::vector<std::string> options;
  if (!asked.kubeconfig.empty()) options.push_back("--kubeconfig=" + asked.kubeconfig);
  if (!asked.context.empty()) options.push_back("--context=" + asked.context);
  return Kubectl(std::move(options));
}

// As kubectl itself: the one asked for, else the context's, else "default".
Result<std::string> NamespaceOf(const Kubectl& kubectl, const Asked& asked) {
  if (!asked.pod_namespace.empty()) return asked.pod_namespace;
  auto said = kubectl.Run({"config", "view", "--minify", "--output=jsonpath={..namespace}"});
  if (!said) return std::unexpected(said.error());
  return said->empty() ? "default" : *said;
}

Result<ClusterShares> Ask(const Kubectl& kubectl, const Asked& asked) {
  if (asked.all_namespaces) return AskCluster(kubectl, asked.system_namespace, "");
  const auto of = NamespaceOf(kubectl, asked);
  if (!of) return std::unexpected(of.error());
  return AskCluster(kubectl, asked.system_namespace, *of);
}

// What a node that does not answer has is unknown: that is said, and the exit status says so too.
int Print(const ClusterShares& seen) {
  std::fputs(PodTable(seen.shares).c_str(), stdout);
  std::fflush(stdout);
  for (const std::string& problem : seen.problems) {
    std::fprintf(stderr, "kubectl prorata: %s\n", problem.c_str());
  }
  return seen.problems.empty() ? 0 : 1;
}

int RunPs(const Asked& asked) {
  const auto seen = Ask(KubectlOf(asked), asked);
  return seen ? Print(*seen) : PrintFailure(seen.error());
}

double MostTime(const PodShare& of) {
  double most = 0;
  for (const auto& on : of.share.devices) most = std::max(most, on.achieved);
  return most;
}

int RunTop(const Asked& asked) {
  const Kubectl kubectl = KubectlOf(asked);
  for (int round = 1;; ++round) {
    auto seen = Ask(kubectl, asked);
    if (!seen) return PrintFailure(seen.error());
    std::stable_sort(
        seen->shares.begin(), seen->shares.end(),
        [](const PodShare& a, const PodShare& b) { return MostTime(a) > MostTime(b); });
    if (::isatty(STDOUT_FILENO) != 0) std::fputs("\033[H\033[2J", stdout);
    const int status = Print(*seen);
    if (round == asked.count) return status;
    std::this_thread::sleep_for(std::chrono::seconds(asked.seconds));
  }
}

int RunWhy(const Asked& asked) {
  const Kubectl kubectl = KubectlOf(asked);
  const auto of = NamespaceOf(kubectl, asked);
  if (!of) return PrintFailure(of.error());
  const auto pods = GetItems(
      kubectl, {"pods", "--namespace=" + *of, "--field-selector=metadata.name=" + asked.pod});
  if (!pods) return PrintFailure(pods.error());
  if (pods->empty()) {
    return PrintFailure(
        {"no_pod", "there is no pod '" + asked.pod + "' in namespace '" + *of + "'"});
  }
  const auto events = GetItems(kubectl, {"events", "--namespace=" + *of, "--sort-by=.lastTimestamp",
                                         "--field-selector=involvedObject.name=" + asked.pod});
  if (!events) return PrintFailure(events.error());
  const auto seen = AskCluster(kubectl, asked.system_namespace, *of);
  if (!seen) return PrintFailure(seen.error());
  std::fputs(WhyText(pods->front(), *events, seen->shares).c_str(), stdout);
  for (const std::string& problem : seen->problems) PrintFailure({"no_answer", problem});
  return seen->problems.empty() ? 0 : 1;
}

std::string UsageErrorText(const CLI::App& app, const CLI::ParseError& error) {
  const auto parsed = app.get_subcommands();
  const std::string command = parsed.empty() ? "" : " " + parsed.front()->get_name();
  std::string text = error.what();
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
    std::string known;
    for (const CLI::App* sub : app.get_subcommands({})) {
      known += (known.empty() ? "" : ", ") + sub->get_name();
    }
    const std::vector<std::string> extras = app.remaining();
    const std::string what =
        extras.empty() ? "no command"
                       : "'" + prorata::cli::OneLine(extras.front()) + "' is not a command";
    text = command.empty() ? what + "; they are " + known : "the name of a pod is missing";
  }
  return "kubectl prorata" + command + ": " + text + "; see `kubectl prorata" + command +
         " --help`";
}

}  // namespace

int RunKubectlPlugin(int argc, char** argv) {
  Asked asked;
  CLI::App app("Shares of GPUs in the cluster: who has what, and why it is slow",
               "kubectl prorata");
  app.require_subcommand(1);
  app.fallthrough();
  app.add_option("--kubeconfig", asked.kubeconfig, "kubectl's configuration (default: as kubectl)");
  app.add_option("--context", asked.context, "which of its clusters (default: the current one)");
  app.add_option("-n,--namespace", asked.pod_namespace, "whose pods (default: the context's)");
  app.add_option("--system-namespace", asked.system_namespace, "where prorata is installed")
      ->capture_default_str();
  CLI::App* ps =
      app.add_subcommand("ps", "the shares of pods: memory, GPU time, and why they are slow");
  ps->add_flag("-A,--all-namespaces", asked.all_namespaces,
               "of all namespaces, and shares that are no pod's");
  CLI::App* top = app.add_subcommand("top", "the same, again and again, most GPU time first");
  top->add_flag("-A,--all-namespaces", asked.all_namespaces, "of all namespaces");
  top->add_option("--seconds", asked.seconds, "between two of them")
      ->check(CLI::Range(1, 3600))
      ->capture_default_str();
  top->add_option("--count", asked.count, "ends after so many (default: never)")
      ->check(CLI::PositiveNumber);
  CLI::App* why =
      app.add_subcommand("why", "what a pod has of GPUs and gets, and why it is slow or waits");
  why->add_option("POD", asked.pod, "the pod")->required();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help
    const std::string text = UsageErrorText(app, error);
    std::fprintf(stderr, "%s\n", text.c_str());
    return 2;
  }
  if (ps->parsed()) return RunPs(asked);
  return top->parsed() ? RunTop(asked) : RunWhy(asked);
}
