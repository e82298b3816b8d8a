// gpu-facts: what prorata and its simulated GPU need to know about a device, measured.

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <utility>

#include "bench/gpu_facts/bench.h"
#include "bench/gpu_facts/nvml.h"
#include "bench/gpu_facts/sections.h"
#include "bench/gpu_facts/worker.h"

namespace prorata::gpufacts {
namespace {

struct Section {
  const char* name;
  Result<nlohmann::json> (*measure)(const Bench& bench);
};

// Memory comes first: kernels leave small allocations behind, whose slab would hide the first
// allocation's cost.
constexpr Section kSections[] = {
    {"context_memory", MeasureContextMemory},
    {"allocation", MeasureAllocation},
    {"pool", MeasurePool},
    {"events", MeasureEvents},
    {"launches", MeasureLaunches},
    {"kernel_gap", MeasureKernelGap},
    {"time_slice", MeasureTimeSlice},
    {"copies", MeasureCopies},
};

constexpr const char* kFooter =
    "\nPrints JSON: for each subject, figures with unit, number of samples, median, 10th and 90th\n"
    "percentile and least. The driver is the one that the loader finds, or --library, or that of\n"
    "the folder PRORATA_DRIVER_DIR names. Use a device that is otherwise idle.\n"
    "Exit status: 0 all measured, 1 a subject failed (its \"error\" says why), 2 bad arguments.\n\n"
    "Examples:\n"
    "  gpu-facts\n"
    "  gpu-facts --only time_slice --slice-seconds 5\n"
    "  PRORATA_DRIVER_DIR=build/sim gpu-facts";

int ParseOptions(int argc, char** argv, Options* options) {
  CLI::App app("Measures what a GPU and its driver do.", "gpu-facts");
  app.footer(kFooter);
  std::vector<std::string> names;
  for (const Section& section : kSections) names.emplace_back(section.name);
  app.add_option("--library", options->library, "The driver's libcuda.so.1");
  app.add_option("--device", options->device, "Index, as CUDA counts them")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--seconds", options->seconds, "Begin nothing after so long")
      ->check(CLI::Range(1.0, 3600.0))
      ->capture_default_str();
  app.add_option("--slice-kernel-us", options->slice_kernel_us,
                 "Length of the kernels of two processes that take turns")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  app.add_option("--slice-seconds", options->slice_seconds, "How long they take turns")
      ->check(CLI::Range(0.05, 10.0))
      ->capture_default_str();
  app.add_option("--only", options->only, "One subject")->check(CLI::IsMember(names));
  app.add_option("--worker", options->worker)
      ->check(CLI::IsMember({"context", "slice"}))
      ->group("");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int status = app.exit(error, std::cout, std::cerr);
    return status == 0 ? 0 : 2;
  }
  const char* folder = ::getenv("PRORATA_DRIVER_DIR");
  if (options->library.empty() && folder != nullptr && *folder != '\0') {
    options->library = (std::filesystem::path(folder) / "libcuda.so.1").string();
  }
  return -1;
}

nlohmann::json DescribeDevice(const gpuload::Gpu& gpu) {
  nlohmann::json device = {{"name", gpu.name},
                           {"uuid", gpu.uuid},
                           {"cuda_version", gpu.driver_version},
                           {"sms", gpu.sm_count}};
  if (auto memory = gpuload::SeeMemory(gpu)) {
    device["memory_bytes"] = memory->device_total_bytes;
    device["free_bytes"] = memory->free_bytes;
  }
  const Nvml nvml = Nvml::Open(gpu.uuid);
  device["driver"] = nvml.DriverVersion().value_or("");
  // Only the simulated driver loads a kernel that is an x86 object.
  auto kernel = MakeKernel(gpu, 0, false, 1);
  device["simulated"] = kernel && std::string_view(kernel->image()) == "host";
  return device;
}

int Run(const Options& options) {
  const auto begin = HostClock::now();
  auto gpu = gpuload::OpenGpu(DriverOptions(options));
  if (!gpu) {
    std::cerr << "gpu-facts: cannot use device " << options.device << ": " << gpu.error().message
              << "\n";
    return 1;
  }
  Bench bench{options, std::move(*gpu), begin};
  bench.end += std::chrono::duration_cast<HostClock::duration>(
      std::chrono::duration<double>(options.seconds));
  nlohmann::ordered_json report;
  int status = 0;
  for (const Section& section : kSections) {
    if (!options.only.empty() && options.only != section.name) continue;
    const auto section_begin = HostClock::now();
    nlohmann::json facts;
    if (bench.TimeIsUp()) {
      facts["error"] = "not begun: the time of --seconds was over";
    } else if (auto measured = section.measure(bench)) {
      facts = std::move(*measured);
    } else {
      facts["error"] = measured.error().message;
    }
    if (facts.contains("error")) status = 1;
    facts["seconds"] = std::chrono::duration<double>(HostClock::now() - section_begin).count();
    report[section.name] = facts;
  }
  // After the sections, since it leaves a small allocation behind.
  report["device"] = DescribeDevice(bench.gpu);
  report["seconds"] = std::chrono::duration<double>(HostClock::now() - begin).count();
  std::cout << report.dump(2) << std::endl;
  return status;
}

}  // namespace
}  // namespace prorata::gpufacts

int main(int argc, char** argv) {
  using namespace prorata::gpufacts;
  Options options;
  if (const int status = ParseOptions(argc, argv, &options); status >= 0) return status;
  ::signal(SIGPIPE, SIG_IGN);
  if (!options.worker.empty()) return RunWorker(options);
  return Run(options);
}
