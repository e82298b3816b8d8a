// memory_stress: many threads in many processes allocate and free in every way that there is.
//
//   prorata run --memory 2GiB -- memory_stress --processes 8 --threads 8 --seconds 60 --seed 7
//       [--kinds plain,vmm,...] [--most BYTES]
//
// It ends after so many seconds, or with SIGTERM, but not before something of every kind was made
// and something refused. A process that is killed is replaced. Prints {"event": "begun"} when all
// processes have their context; at the end, when everything was freed and every process has ended,
// a line with what was made and refused of each kind, how many processes were killed, and the
// errors: a call that answered something else than success, out of memory, or what another
// process's death explains. Then it waits for the end of its standard input, so that a test may
// look at the share.
//
// Exit status: 0; 1 errors, or a process that crashed; 2 it could not begin.

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>
#include <vector>

#include "worker.h"

namespace prorata::stress {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr int kNoGpuYet = 10;  // of a process that did not get a context: try again
constexpr auto kNap = std::chrono::milliseconds(5);
constexpr auto kMaxExtra = std::chrono::seconds(300);

struct Options {
  uint32_t processes = 8;
  uint32_t threads = 8;
  double seconds = 5;
  uint64_t seed = 1;
  uint64_t most_bytes = uint64_t{64} << 20;
  std::vector<int> kinds;  // indices of Kinds()
};

// In memory of all processes.
struct Board {
  std::atomic<bool> stop{false};
  std::atomic<bool> go{false};
  std::atomic<uint32_t> ready{0};
  Tally tally;
};

void RunThread(Worker* worker, const Options& options, const Board& board, Tally* tally) {
  Worker& w = *worker;
  if (!w.Try(w.driver.cuCtxSetCurrent(w.context), "cuCtxSetCurrent")) return;
  while (!board.stop && !w.Try(w.driver.cuStreamCreate(&w.stream, 1), "cuStreamCreate")) {
    std::this_thread::sleep_for(kNap);
  }
  std::vector<uint32_t> weights;
  for (const int kind : options.kinds) weights.push_back(Kinds()[kind].weight);
  std::discrete_distribution<size_t> pick(weights.begin(), weights.end());
  std::vector<Held> held;
  const auto release_one = [&] {
    std::swap(held[w.random() % held.size()], held.back());
    held.back().release();
    held.pop_back();
  };
  while (!board.stop) {
    if (!held.empty() && w.random() % 100 >= 55) {
      release_one();
      continue;
    }
    const int kind = options.kinds[pick(w.random)];
    w.Begin();
    if (auto made = Kinds()[kind].make(w)) {
      held.push_back(std::move(*made));
      tally->made[kind].fetch_add(1, std::memory_order_relaxed);
    } else if (w.was_refused()) {
      tally->refused[kind].fetch_add(1, std::memory_order_relaxed);
      if (w.OneIn(8)) {
        while (!held.empty()) release_one();
      }
    }
    size_t free_bytes = 0, total_bytes = 0;
    if (w.OneIn(16) && w.Try(w.driver.cuMemGetInfo_v2(&free_bytes, &total_bytes), "cuMemGetInfo") &&
        free_bytes > total_bytes) {
      w.Note(CUDA_SUCCESS, "cuMemGetInfo: more is free than there is; it");
    }
  }
  while (!held.empty()) release_one();
  if (w.pool != nullptr) w.Must(w.driver.cuMemPoolDestroy(w.pool), "cuMemPoolDestroy");
  if (w.stream != nullptr) {
    w.Must(w.driver.cuStreamSynchronize(w.stream), "cuStreamSynchronize");
    w.Must(w.driver.cuStreamDestroy_v2(w.stream), "cuStreamDestroy");
  }
}

int RunProcess(uint32_t number, uint64_t seed, const Options& options, Exchange* exchange,
               Board* board) {
  exchange->Enter(number);
  const char* missing = nullptr;
  const Driver* driver = LoadDriver(&missing);
  if (driver == nullptr) {
    std::cerr << "memory_stress: " << missing << "\n";
    return 2;
  }
  CUdevice device = 0;
  CUcontext context = nullptr;
  if (driver->cuInit(0) != CUDA_SUCCESS || driver->cuDeviceGet(&device, 0) != CUDA_SUCCESS) {
    return kNoGpuYet;  // its agent is being killed
  }
  Tally* tally = &board->tally;
  Worker first(*driver, exchange, tally, nullptr, device, seed, options.most_bytes);
  // A share that is full refuses a context, too.
  while (!first.Try(driver->cuDevicePrimaryCtxRetain(&context, device), "retain a context")) {
    if (board->stop) return 0;
    std::this_thread::sleep_for(kNap);
  }
  board->ready.fetch_add(1);
  while (!board->go && !board->stop) std::this_thread::sleep_for(kNap);
  {
    std::vector<std::unique_ptr<Worker>> workers;
    std::vector<std::jthread> threads;
    for (uint32_t i = 0; i < options.threads; ++i) {
      workers.push_back(std::make_unique<Worker>(*driver, exchange, tally, context, device,
                                                 seed * 1000 + i, options.most_bytes));
      threads.emplace_back(
          [&, worker = workers.back().get()] { RunThread(worker, options, *board, tally); });
    }
  }
  first.Must(driver->cuDevicePrimaryCtxRelease_v2(device), "release the context");
  return 0;
}

class Herd {
 public:
  Herd(const Options& options, Exchange* exchange, Board* board)
      : options_(options), exchange_(exchange), board_(board) {}

  void Start(uint32_t number) {
    const uint64_t seed = options_.seed * 1000 + started_++;
    const pid_t parent = ::getpid();
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::signal(SIGTERM, SIG_DFL);
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(0);
      ::_exit(RunProcess(number, seed, options_, exchange_, board_));
    }
    if (pid < 0) {
      std::perror("memory_stress: fork");
      std::exit(2);
    }
    living_[pid] = number;
  }

  // Buries who has ended; replaces them until the stop.
  void Look() {
    int status = 0;
    for (pid_t pid; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
      const uint32_t number = living_.at(pid);
      living_.erase(pid);
      const bool again = WIFEXITED(status) && WEXITSTATUS(status) == kNoGpuYet;
      if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
        ++killed_;
      } else if (!again && status != 0) {
        crashed_.push_back(status);
      }
      if (!board_->stop) Start(number);
    }
  }

  bool empty() const { return living_.empty(); }
  uint64_t killed() const { return killed_; }
  const std::vector<int>& crashed() const { return crashed_; }

 private:
  const Options& options_;
  Exchange* exchange_;
  Board* board_;
  std::map<pid_t, uint32_t> living_;
  uint64_t started_ = 0;
  uint64_t killed_ = 0;
  std::vector<int> crashed_;  // wait statuses
};

std::atomic<bool> g_asked_to_stop{false};
static_assert(std::atomic<bool>::is_always_lock_free);

int Report(const Options& options, const Board& board, const Herd& herd) {
  nlohmann::json made = nlohmann::json::object(), refused = nlohmann::json::object();
  for (const int kind : options.kinds) {
    made[Kinds()[kind].name] = board.tally.made[kind].load();
    refused[Kinds()[kind].name] = board.tally.refused[kind].load();
  }
  const uint64_t errors = board.tally.errors.load();
  std::cout << nlohmann::json{{"made", made},
                              {"refused", refused},
                              {"killed", herd.killed()},
                              {"crashed", herd.crashed()},
                              {"errors", errors},
                              {"first_error", std::string(board.tally.first_error)}}
                   .dump()
            << std::endl;
  return errors != 0 || !herd.crashed().empty() ? 1 : 0;
}

// Each kind was made, and something was refused: else a busy machine needs more time.
bool Enough(const Options& options, const Board& board) {
  uint64_t refused = 0;
  for (const int kind : options.kinds) {
    if (board.tally.made[kind].load() == 0) return false;
    refused += board.tally.refused[kind].load();
  }
  return refused > 0;
}

int Run(const Options& options) {
  void* pages =
      ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) {
    std::perror("memory_stress: map the board");
    return 2;
  }
  Board* board = new (pages) Board;
  Exchange exchange(options.processes);
  Herd herd(options, &exchange, board);
  ::signal(SIGTERM, [](int) { g_asked_to_stop = true; });
  for (uint32_t i = 0; i < options.processes; ++i) herd.Start(i);
  while (board->ready < options.processes && !g_asked_to_stop) {
    herd.Look();
    std::this_thread::sleep_for(kNap);
  }
  board->go = true;
  std::cout << R"({"event": "begun"})" << std::endl;
  const auto begin = SteadyClock::now();
  const auto end = begin + std::chrono::duration<double>(options.seconds);
  while ((SteadyClock::now() < end && !g_asked_to_stop) ||
         (!Enough(options, *board) && SteadyClock::now() < begin + kMaxExtra + (end - begin))) {
    herd.Look();
    std::this_thread::sleep_for(kNap);
  }
  board->stop = true;
  while (!herd.empty()) {
    herd.Look();
    std::this_thread::sleep_for(kNap);
  }
  exchange.CloseUnread();
  const int status = Report(options, *board, herd);
  for (char ignored; ::read(STDIN_FILENO, &ignored, 1) > 0;) {
  }
  return status;
}

// False: the text names something that is no kind.
bool ReadKinds(const std::string& text, std::vector<int>* kinds) {
  std::istringstream names(text);
  for (std::string name; std::getline(names, name, ',');) {
    int found = -1;
    for (size_t i = 0; i < Kinds().size(); ++i) {
      if (name == Kinds()[i].name) found = static_cast<int>(i);
    }
    if (found < 0) return false;
    kinds->push_back(found);
  }
  return true;
}

int Main(int argc, char** argv) {
  Options options;
  bool good = argc % 2 == 1;
  for (int i = 1; good && i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--processes") {
      options.processes = static_cast<uint32_t>(std::stoul(value));
    } else if (name == "--threads") {
      options.threads = static_cast<uint32_t>(std::stoul(value));
    } else if (name == "--seconds") {
      options.seconds = std::stod(value);
    } else if (name == "--seed") {
      options.seed = std::stoull(value);
    } else if (name == "--most") {
      options.most_bytes = std::stoull(value);
    } else if (name == "--kinds") {
      good = ReadKinds(value, &options.kinds);
    } else {
      good = false;
    }
  }
  good = good && options.processes >= 1 && options.processes <= kMaxProcesses &&
         options.most_bytes >= 1;
  if (!good) {
    std::cerr << "usage: memory_stress [--processes N] [--threads N] [--seconds S] [--seed N]\n"
                 "                     [--most BYTES] [--kinds ";
    for (const Kind& kind : Kinds())
      std::cerr << kind.name << (&kind == &Kinds().back() ? "]\n" : ",");
    return 2;
  }
  if (options.kinds.empty()) {
    for (size_t i = 0; i < Kinds().size(); ++i) options.kinds.push_back(static_cast<int>(i));
  }
  return Run(options);
}

}  // namespace
}  // namespace prorata::stress

int main(int argc, char** argv) { return prorata::stress::Main(argc, argv); }
