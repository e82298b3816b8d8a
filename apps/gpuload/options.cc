#include "apps/gpuload/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <iostream>
#include <map>

#include "base/bytes.h"

namespace prorata::gpuload {
namespace {

const std::map<std::string, LoadMode> kLoadModes = {
    {"dlopen", LoadMode::kDlopen},
    {"dlopen-local", LoadMode::kDlopenLocal},
    {"dlopen-dev", LoadMode::kDlopenDev},
    {"getprocaddress", LoadMode::kGetProcAddress},
    {"getprocaddress-v1", LoadMode::kGetProcAddressV1},
};

const std::map<std::string, Allocator> kAllocators = {
    {"plain", Allocator::kPlain},
    {"async", Allocator::kAsync},
    {"managed", Allocator::kManaged},
    {"vmm", Allocator::kVmm},
    {"vmm-released", Allocator::kVmmReleased},
    {"pitch", Allocator::kPitch},
    {"array", Allocator::kArray},
};

constexpr const char* kFooter =
    "\nExamples:\n"
    "  gpuload --seconds 5 --kernel-us 500\n"
    "  gpuload --allocate 128MiB --until-refused\n"
    "  gpuload --stress --threads 4 --seconds 10 --seed 7\n"
    "  gpuload --load getprocaddress --graph 20 --seconds 2 --stamps stamps.json\n\n"
    "Prints one line of JSON at the end: what it achieved, by its kernels' own stamps.";

// "1000", "20-5000" or "20,200,5000".
void ReadKernelTimes(const std::string& text, Options* options) {
  std::vector<uint64_t> numbers;
  std::string separators;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find_first_of("-,", at), text.size());
    uint64_t number = 0;
    const auto [rest, error] = std::from_chars(&text[at], &text[at] + (end - at), number);
    if (error != std::errc() || rest != &text[at] + (end - at) || number > 1'000'000'000) {
      throw CLI::ValidationError("--kernel-us: '" + text + "' is not N, LEAST-MOST or A,B,...");
    }
    numbers.push_back(number);
    if (end < text.size()) separators += text[end];
    at = end + 1;
  }
  const bool range = separators == "-" && numbers[0] <= numbers[1];
  if (!range && separators.find('-') != std::string::npos) {
    throw CLI::ValidationError("--kernel-us: '" + text + "' is not N, LEAST-MOST or A,B,...");
  }
  options->kernel_us = numbers[0];
  options->kernel_most_us = range ? numbers[1] : 0;
  if (!range && numbers.size() > 1) options->kernel_choice_us = numbers;
}

void AddKernelOptions(CLI::App* app, Options* options) {
  app->add_option("--seconds", options->seconds, "Launch kernels (or stress) for so long")
      ->check(CLI::NonNegativeNumber);
  app->add_option("--kernels", options->kernels, "Launch so many kernels in each thread");
  app->add_option_function<std::string>(
         "--kernel-us", [=](const std::string& text) { ReadKernelTimes(text, options); },
         "Duration of a kernel (1000): N, or LEAST-MOST, or one of A,B,...")
      ->option_text("US");
  app->add_option("--functions", options->functions,
                  "Launch so many functions, at random, each of which always takes the same time")
      ->check(CLI::Range(1, 10'000))
      ->capture_default_str();
  app->add_option("--gap-us", options->gap_us, "Sleep after each synchronisation");
  app->add_option("--every-us", options->every_us,
                  "Open loop: --per-sync launches and a synchronisation so often, whether the last "
                  "are done or not; tells how long each took since it was due");
  app->add_flag("--poisson", options->poisson, "With --every-us: at random, so often in the mean");
  app->add_option("--per-sync", options->per_sync,
                  "Launches from one synchronisation to the next (0: none before the end)")
      ->capture_default_str();
  app->add_option("--threads", options->threads, "Host threads")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app->add_option("--streams", options->streams, "Streams of each thread")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app->add_option("--graph", options->graph, "Capture so many kernels and replay the graph");
  app->add_option("--collective-every", options->collective_every,
                  "Every so manieth launch ends together with those of other processes (simulated "
                  "GPUs; one thread, no graph)");
  app->add_option("--collective-size", options->collective_size, "Of so many processes")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app->add_option("--collective-job", options->collective_job, "That say the same number here")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app->add_option("--priority", options->priority, "Priority of the streams");
  app->add_option("--blocks", options->blocks, "Blocks of a kernel (0: as --sm-fraction says)");
  app->add_option("--sm-fraction", options->sm_fraction, "The part of the device a kernel fills")
      ->check(CLI::Range(1e-6, 1.0));
  app->add_option("--block-threads", options->block_threads, "Threads of a block")
      ->check(CLI::Range(1, 1024));
  app->add_option("--stamp-capacity", options->stamp_capacity, "Stamps kept on the device")
      ->check(CLI::PositiveNumber);
  app->add_option("--stamps", options->stamps_file, "Write all stamps to this file (JSON)");
  app->add_flag("--capture-beside", options->capture_beside,
                "One more thread captures in global mode all the while");
}

void AddMemoryOptions(CLI::App* app, Options* options) {
  const auto size = [](const std::string& text, uint64_t* target) {
    auto bytes = ParseBytes(text);
    if (!bytes) throw CLI::ValidationError(bytes.error().message);
    *target = *bytes;
  };
  app->add_option_function<std::string>(
         "--allocate", [=](const std::string& text) { size(text, &options->allocate_bytes); },
         "Allocate this much")
      ->option_text("SIZE");
  app->add_option("--count", options->allocate_count, "So many times")->capture_default_str();
  app->add_flag("--until-refused", options->until_refused, "Again and again until refused");
  app->add_flag("--again", options->again, "Free it all, and allocate the same once more");
  app->add_option("--allocator", options->allocator,
                  "plain|async|managed|vmm|vmm-released|pitch|array")
      ->transform(CLI::CheckedTransformer(kAllocators))
      ->option_text("KIND");
  app->add_flag("--verify", options->verify, "Write a pattern to what was allocated, read it back");
  app->add_flag("--stress", options->stress, "Allocate and free at random in every thread");
  app->add_option_function<std::string>(
         "--stress-max", [=](const std::string& text) { size(text, &options->stress_max_bytes); },
         "Largest allocation of the stress")
      ->option_text("SIZE");
  app->add_option("--seed", options->seed, "Seed of the stress, and of kernels' durations")
      ->capture_default_str();
}

}  // namespace

Parsed ParseOptions(int argc, char** argv) {
  Parsed parsed;
  Options* options = &parsed.options;
  CLI::App app("A small GPU workload on the driver API.", "gpuload");
  app.footer(kFooter);
  app.add_option_function<std::string>(
         "--load",
         [=](const std::string& text) {
           if (text.find('/') != std::string::npos) {
             options->load = LoadMode::kAbsolute;
             options->library = text;
           } else if (const auto found = kLoadModes.find(text); found != kLoadModes.end()) {
             options->load = found->second;
           } else {
             throw CLI::ValidationError("--load: '" + text + "' is neither a way nor a path");
           }
         },
         "How to reach the driver: dlopen, dlopen-local, dlopen-dev (libcuda.so), "
         "getprocaddress, getprocaddress-v1, or an absolute path")
      ->option_text("WAY");
  app.add_option("--api-version", options->api_version, "Version asked of cuGetProcAddress")
      ->capture_default_str();
  app.add_flag("--per-thread-default", options->per_thread_default,
               "Ask cuGetProcAddress for the per-thread default stream variants");
  app.add_option("--device", options->device, "Device ordinal");
  AddKernelOptions(&app, options);
  AddMemoryOptions(&app, options);
  app.add_option("--hold", options->hold_s, "Keep everything so many seconds after the work");
  app.add_flag("--watch-memory", options->watch_memory,
               "With --hold and --announce: a line whenever the GPU's memory is another amount");
  app.add_option("--delay", options->delay_s, "Begin so many seconds later")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--dilation", options->dilation,
                 "Real seconds for one of --seconds, --delay, --gap-us and --every-us (simulated "
                 "GPUs)")
      ->check(CLI::Range(1.0, 10000.0));
  app.add_option("--wait-for", options->wait_for,
                 "Begin, with the context made, when this file exists");
  app.add_flag("--announce", options->announce,
               "Print a line when it is ready, memory is held, kernels begin, work is done");
  app.add_flag("--fork", options->fork_after_init, "Fork after cuInit, go on in the parent");
  try {
    app.parse(argc, argv);
    if (options->every_us > 0 && options->per_sync == 0) {
      throw CLI::ValidationError(
          "--every-us: a request ends with a synchronisation, and --per-sync "
          "is 0");
    }
    if (options->collective_every > 0 && (options->threads > 1 || options->graph > 0)) {
      throw CLI::ValidationError("--collective-every: goes with one thread and no graph");
    }
  } catch (const CLI::Success& help) {
    parsed.exit_status = app.exit(help);
  } catch (const CLI::ParseError& error) {
    std::cerr << "gpuload: " << error.what() << "; see gpuload --help\n";
    parsed.exit_status = 2;
  }
  return parsed;
}

}  // namespace prorata::gpuload
