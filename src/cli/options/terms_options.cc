#include "cli/options/terms_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <optional>

#include "agent/config/of_gpu.h"
#include "base/bytes.h"
#include "base/duration.h"

namespace prorata::cli {
namespace {

using api::ShareChange;
using api::TermsOnGpu;

TermsOnGpu& TermsOn(const std::string& gpu, ShareChange* terms) {
  for (TermsOnGpu& known : terms->on) {
    if (known.gpu == gpu) return known;
  }
  return terms->on.emplace_back(TermsOnGpu{gpu});
}

// Reads a list of values, each for a GPU or for all, into the field that `common` and `single`
// point at.
template <typename Value, typename Parse>
Status ReadOption(const std::string& flag, const std::string& text, const char* example,
                  Parse parse, ShareChange* terms, std::optional<Value> ShareChange::* common,
                  std::optional<Value> TermsOnGpu::* single) {
  if (text.starts_with('=')) {  // -m=4G
    return Fail("usage", flag + ": '" + text + "' begins with a '='; write " + flag + text);
  }
  const auto list = agent::SplitGpuList(text, example);
  if (!list) return Fail("usage", flag + ": " + list.error().message);
  for (const agent::OfGpu& one : *list) {
    auto value = parse(std::string(one.value));
    if (!value) return Fail("usage", flag + ": " + value.error().message);
    (one.gpu.empty() ? terms->*common : TermsOn(one.gpu, terms).*single) = *value;
  }
  return {};
}

Result<Fraction> ParseLimit(const std::string& text) {
  auto fraction = ParseFraction(text);
  if (fraction && *fraction == Fraction::Zero()) {
    return Fail("usage",
                "a share that may take no GPU time at all cannot run; write for "
                "example 0.3 or 30%");
  }
  return fraction;
}

Result<uint32_t> ParseWeight(const std::string& text) {
  const bool digits =
      !text.empty() && text.size() <= 5 &&
      std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  const uint32_t weight = digits ? static_cast<uint32_t>(std::stoul(text)) : 0;
  if (weight == 0 || weight > api::kMaxWeight) {
    return Fail("usage", "'" + text + "' is not a whole number from 1 to 10000");
  }
  return weight;
}

Result<int32_t> ParsePriority(const std::string& text) {
  int32_t priority = 0;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(end - text.size(), end, priority);
  if (text.empty() || error != std::errc{} || at != end || priority < api::kMinPriority ||
      priority > api::kMaxPriority) {
    return Fail("usage", "'" + text + "' is not a whole number from -100 to 100");
  }
  return priority;
}

Result<int64_t> ParseYieldWithin(const std::string& text) {
  auto span_ns = ParseDuration(text);
  if (!span_ns) {
    return Fail("usage", "'" + text.substr(0, 80) + "' is not a span of time, as 2ms or 500us");
  }
  if (*span_ns < api::kMinYieldWithinNs || *span_ns > api::kMaxYieldWithinNs) {
    return Fail("usage", "'" + text.substr(0, 80) + "' is not from 500us to 1s");
  }
  return span_ns;
}

Status CheckOrder(const std::optional<Fraction>& request, const std::optional<Fraction>& limit,
                  const std::string& where) {
  if (!request || !limit || !(*limit < *request)) return {};
  return Fail("usage", "--compute-limit " + FormatFraction(*limit) + where +
                           " is below --compute " + FormatFraction(*request) +
                           "; raise the limit or lower the request");
}

// A size and a part of a device are compared by the agent, which knows the device.
Status CheckMemoryOrder(const std::optional<api::MemorySize>& request,
                        const std::optional<api::MemorySize>& limit, const std::string& where) {
  if (!request || !limit) return {};
  const bool parts = request->part > Fraction::Zero() && limit->part > Fraction::Zero();
  const bool sizes = request->part == Fraction::Zero() && limit->part == Fraction::Zero();
  if (!(parts && limit->part < request->part) && !(sizes && limit->bytes < request->bytes)) {
    return {};
  }
  return Fail("usage", "--memory " + FormatMemorySize(*limit) + where +
                           " is below --memory-request " + FormatMemorySize(*request) +
                           "; raise the limit or lower the request");
}

}  // namespace

void AddTermsOptions(CLI::App* app, RawTerms* raw, const RawTerms& without) {
  app->add_option("-m,--memory", raw->memory,
                  "Memory limit: the most GPU memory that the share may hold, e.g. 512M, 4G or 25% "
                  "of the GPU's" +
                      without.memory)
      ->option_text("SIZE");
  app->add_option(
         "--memory-request", raw->memory_request,
         "Memory request: the part of the limit that is guaranteed; the rest it gets while "
         "the GPU has it (--on-full)" +
             without.memory_request)
      ->option_text("SIZE");
  app->add_option("--compute", raw->compute,
                  "Compute request: the part of the GPU's time that it is guaranteed whenever it "
                  "wants it and no share of a higher priority does, e.g. 0.3 or 30%" +
                      without.compute)
      ->option_text("FRACTION");
  app->add_option(
         "--compute-limit", raw->compute_limit,
         "Compute limit: the most of the GPU's time that it may take" + without.compute_limit)
      ->option_text("FRACTION");
  app->add_option(
         "--weight", raw->weight,
         "How GPU time beyond the requests is divided: 200 gets twice as much as 100; from "
         "1 to 10000" +
             without.weight)
      ->option_text("N");
  app->add_option(
         "--priority", raw->priority,
         "While it wants the GPU, shares of a lower priority wait, with their compute requests, "
         "too; a --compute-limit leaves them the rest. From -100 to 100" +
             without.priority)
      ->option_text("N");
  app->add_option("--yield-within", raw->yield_within,
                  "For how long it may have to wait for work of shares of a lower priority, from "
                  "500us to 1s" +
                      without.yield_within)
      ->option_text("DURATION");
  app->add_option("--on-full", raw->on_full,
                  "When the GPU is full and the limit is not reached, an allocation fails, waits, "
                  "or waits for at most DURATION" +
                      without.on_full)
      ->option_text("fail|wait[=DURATION]");
  app->add_option("--gang", raw->gang,
                  "With several GPUs, whether it runs on all of them at the same time, as kernels "
                  "need that wait for each other: always, never, or auto: once they were seen to "
                  "wait" +
                      without.gang)
      ->option_text("auto|always|never");
}

Status ReadTermsOptions(const CLI::App& app, const RawTerms& raw, ShareChange* terms) {
  Status ok;
  auto read = [&](const char* flag, const std::string& text, const char* example, auto parse,
                  auto common, auto single) {
    if (!ok || app.count(flag) == 0) return;
    ok = ReadOption(flag, text, example, parse, terms, common, single);
  };
  auto size = [](const std::string& text) { return api::ParseMemorySize(text); };
  auto size_or_none = [](const std::string& text) { return api::ParseMemoryRequest(text); };
  auto fraction = [](const std::string& text) { return ParseFraction(text); };
  read("--memory", raw.memory, "4GiB,2=6GiB", size, &ShareChange::memory, &TermsOnGpu::memory);
  read("--memory-request", raw.memory_request, "4GiB,2=6GiB", size_or_none,
       &ShareChange::memory_request, &TermsOnGpu::memory_request);
  read("--compute", raw.compute, "0.3,2=0.5", fraction, &ShareChange::compute_request,
       &TermsOnGpu::compute_request);
  read("--compute-limit", raw.compute_limit, "0.3,2=0.5", ParseLimit, &ShareChange::compute_limit,
       &TermsOnGpu::compute_limit);
  read("--weight", raw.weight, "100,2=200", ParseWeight, &ShareChange::weight, &TermsOnGpu::weight);
  read("--priority", raw.priority, "0,2=10", ParsePriority, &ShareChange::priority,
       &TermsOnGpu::priority);
  read("--yield-within", raw.yield_within, "2ms,2=5ms", ParseYieldWithin,
       &ShareChange::yield_within_ns, &TermsOnGpu::yield_within_ns);
  if (ok && app.count("--on-full") > 0) {
    auto on_full = api::ParseOnFull(raw.on_full);
    if (!on_full) return Fail("usage", "--on-full: " + on_full.error().message);
    terms->on_full = *on_full;
  }
  if (ok && app.count("--gang") > 0) {
    auto gang = api::ParseGang(raw.gang);
    if (!gang) return Fail("usage", "--gang: " + gang.error().message);
    terms->gang = *gang;
  }
  if (ok) ok = CheckMemoryOrder(terms->memory_request, terms->memory, "");
  if (ok) ok = CheckOrder(terms->compute_request, terms->compute_limit, "");
  for (const TermsOnGpu& on : terms->on) {
    if (!ok) break;
    const auto& request = on.compute_request ? on.compute_request : terms->compute_request;
    const auto& limit = on.compute_limit ? on.compute_limit : terms->compute_limit;
    ok = CheckOrder(request, limit, " on GPU " + on.gpu);
    if (ok) {
      ok = CheckMemoryOrder(on.memory_request ? on.memory_request : terms->memory_request,
                            on.memory ? on.memory : terms->memory, " on GPU " + on.gpu);
    }
  }
  return ok;
}

}  // namespace prorata::cli
