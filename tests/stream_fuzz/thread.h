#pragma once

#include <atomic>
#include <deque>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/stream_fuzz/program.h"

namespace prorata::stream_fuzz {

inline constexpr uint64_t kWords = 8192;  // of each thread, on the device
inline constexpr uint64_t kSlots = 4096;  // of each thread, in pinned host memory
inline constexpr int kPublications = 3;   // of each thread
inline constexpr size_t kMaxChains = 12;

using Gates = std::set<uint32_t>;  // flags, by their number, that are not written yet

// An event's last record, and the word of its stream as it was then.
struct Record {
  CUevent event = nullptr;
  uint64_t* snapshot = nullptr;
  Gates gates = {};
};

// A stream and its word.
struct Chain {
  size_t number = 0;
  CUstream stream = nullptr;
  bool ptsz = false;  // reached by the functions' variants for per-thread default streams
  bool blocking = false;
  bool made = false;  // by us, so that it can be destroyed
  uint64_t* word = nullptr;
  Gates gates = {};
  CUgraphExec graph = nullptr;  // is launched here alone
  uint64_t* graph_word = nullptr;
};

struct HostCall {
  uint64_t* word;
  uint64_t times, plus;
  int64_t sleep_us;
  uint32_t* flag;  // not null: is written
};

// What the threads of one program share.
struct Shared {
  const Device& device;
  bool several = false;     // threads
  std::mutex capture = {};  // held by who captures, and by who waits for the whole context
  struct Published {
    Record records[kPublications] = {};
    std::atomic<int> count = 0;
  };
  std::deque<Published> published = {};  // by thread
};

class Thread {
 public:
  Thread(Shared* shared, uint64_t seed, size_t number);
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;

  void Run();
  // When all threads have ended: waits for the device and notes every word, then frees all.
  void Finish();
  const std::vector<std::string>& lines() const { return lines_; }

 private:
  using Op = void (Thread::*)();
  struct Choice {
    int weight;
    Op op;
  };

  uint64_t Pick(uint64_t least, uint64_t most);
  bool Chance(int percent) { return Pick(1, 100) <= static_cast<uint64_t>(percent); }
  uint64_t KernelNs();
  void Note(const char* op, size_t chain, std::initializer_list<uint64_t> values);
  uint64_t* NewWord() { return words_ + ++words_used_ % kWords; }
  uint64_t* NewSlot() { return slots_ + slots_used_++ % kSlots; }
  Chain& AnyChain() { return chains_[Pick(0, chains_.size() - 1)]; }
  Chain* ChainWhere(bool (*good)(const Chain&));
  Record* AnyRecord();
  void AddChain(CUstream stream, bool ptsz, bool blocking, bool made);

  CUresult Mix(const Chain& chain, uint64_t* word, const uint64_t* from);
  CUresult Mix(const Chain& chain) { return Mix(chain, chain.word, words_); }
  CUresult Snapshot(const Chain& chain, Record* record);
  CUresult HostFunction(const Chain& chain, uint64_t* word, uint32_t* flag);
  void Written(uint32_t flag, const Gates& by);
  CUresult Wait(Chain& chain, uint64_t how);

  // The operations.
  void Kernel();
  void Burst();
  void Create();
  void Destroy();
  void RecordEvent();
  void WaitEvent();
  void DestroyEvent();
  void Gate();
  void Write();
  void Host();
  void Copy();
  void PoolMemory();
  void PlainMemory();
  void Direct();
  void Synchronise();
  void SynchroniseAll();
  void Capture();
  void LaunchGraph();
  void Consume();
  void Sleep();
  void Misuse();
  void Publish();

  CUresult CaptureBody(const Chain& chain, Chain* beside, bool misuse);

  Shared* shared_;
  const Driver& driver_;
  std::mt19937_64 random_;
  const size_t number_;
  uint64_t* words_ = nullptr;  // the first stays zero
  uint64_t* slots_ = nullptr;
  uint32_t* flags_ = nullptr;
  uint64_t words_used_ = 0;
  uint64_t slots_used_ = 0;
  uint32_t flags_used_ = 0;
  Gates pending_;  // flags that this thread has yet to write
  std::deque<Chain> chains_;
  std::deque<Chain> destroyed_;
  std::vector<Record> records_;
  std::deque<HostCall> calls_;
  std::vector<std::string> lines_;
};

}  // namespace prorata::stream_fuzz
