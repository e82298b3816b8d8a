#include "tests/stream_fuzz/thread.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

// A function of the driver as the chain reaches its stream.
#define ON(chain, function, ...) \
  ((chain).ptsz ? driver_.function##_ptsz(__VA_ARGS__) : driver_.function(__VA_ARGS__))

namespace prorata::stream_fuzz {
namespace {

constexpr unsigned kNonBlocking = 1;  // CU_STREAM_NON_BLOCKING
constexpr uint64_t kFlags = 1024;
constexpr unsigned kBlocksThatFill = 264;

CUdeviceptr AddressOf(const void* pointer) {
  return static_cast<CUdeviceptr>(reinterpret_cast<uint64_t>(pointer));
}

void RunHostCall(void* data) {
  const auto* call = static_cast<const HostCall*>(data);
  if (call->sleep_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(call->sleep_us));
  if (call->word != nullptr) *call->word = *call->word * call->times + call->plus;
  if (call->flag != nullptr) __atomic_store_n(call->flag, 1, __ATOMIC_SEQ_CST);
}

}  // namespace

Thread::Thread(Shared* shared, uint64_t seed, size_t number)
    : shared_(shared),
      driver_(*shared->device.driver),
      random_(seed * 16 + number),
      number_(number) {
  CUdeviceptr words = 0;
  void* host = nullptr;
  if (driver_.cuMemAlloc_v2(&words, 8 * kWords) != CUDA_SUCCESS ||
      driver_.cuMemHostAlloc(&host, 8 * kSlots + 4 * kFlags, 0) != CUDA_SUCCESS) {
    std::fputs("stream_programs: out of memory\n", stderr);
    std::exit(1);
  }
  driver_.cuMemsetD8_v2(words, 0, 8 * kWords);
  words_ = reinterpret_cast<uint64_t*>(words);
  slots_ = static_cast<uint64_t*>(host);
  std::fill_n(slots_, kSlots, 0);
  flags_ = reinterpret_cast<uint32_t*>(slots_ + kSlots);
  std::fill_n(flags_, kFlags, 0);
}

uint64_t Thread::Pick(uint64_t least, uint64_t most) {
  return least + random_() % (most - least + 1);
}

uint64_t Thread::KernelNs() {
  const uint64_t kind = Pick(1, 100);
  if (kind <= 80) return Pick(2'000, 100'000);
  return kind <= 96 ? Pick(100'000, 1'000'000) : Pick(1'000'000, 8'000'000);
}

void Thread::Note(const char* op, size_t chain, std::initializer_list<uint64_t> values) {
  std::string line = "t" + std::to_string(number_) + " " + std::to_string(lines_.size()) + " " +
                     op + " " + std::to_string(chain);
  for (const uint64_t value : values) line += " " + std::to_string(value);
  lines_.push_back(std::move(line));
}

Chain* Thread::ChainWhere(bool (*good)(const Chain&)) {
  const size_t first = Pick(0, chains_.size() - 1);
  for (size_t i = 0; i < chains_.size(); ++i) {
    Chain& chain = chains_[(first + i) % chains_.size()];
    if (good(chain)) return &chain;
  }
  return nullptr;
}

Record* Thread::AnyRecord() {
  return records_.empty() ? nullptr : &records_[Pick(0, records_.size() - 1)];
}

void Thread::AddChain(CUstream stream, bool ptsz, bool blocking, bool made) {
  Chain chain;
  chain.number = chains_.size() + destroyed_.size();
  chain.stream = stream;
  chain.ptsz = ptsz;
  chain.blocking = blocking;
  chain.made = made;
  chain.word = NewWord();
  chains_.push_back(chain);
}

CUresult Thread::Mix(const Chain& chain, uint64_t* word, const uint64_t* from) {
  uint64_t values[] = {AddressOf(word), AddressOf(from), 2 * Pick(1, 1000) + 1, Pick(1, 1000),
                       KernelNs()};
  void* params[] = {&values[0], &values[1], &values[2], &values[3], &values[4]};
  const unsigned blocks = Chance(30) ? kBlocksThatFill : 1;
  return ON(chain, cuLaunchKernel, shared_->device.mix, blocks, 1, 1, blocks > 1 ? 1024 : 32, 1, 1,
            0, chain.stream, params, nullptr);
}

CUresult Thread::Snapshot(const Chain& chain, Record* record) {
  record->snapshot = NewWord();
  record->gates = chain.gates;
  const CUresult copied = ON(chain, cuMemcpyDtoDAsync_v2, AddressOf(record->snapshot),
                             AddressOf(chain.word), 8, chain.stream);
  const CUresult recorded = ON(chain, cuEventRecord, record->event, chain.stream);
  return copied != CUDA_SUCCESS ? copied : recorded;
}

CUresult Thread::HostFunction(const Chain& chain, uint64_t* word, uint32_t* flag) {
  calls_.push_back({word, 2 * Pick(1, 1000) + 1, Pick(1, 1000),
                    Chance(20) ? static_cast<int64_t>(Pick(100, 3000)) : 0, flag});
  return ON(chain, cuLaunchHostFunc, chain.stream, RunHostCall, &calls_.back());
}

// `flag` will be written once all of `by` are.
void Thread::Written(uint32_t flag, const Gates& by) {
  pending_.erase(flag);
  const auto replace = [&](Gates& gates) {
    if (gates.erase(flag) != 0) gates.insert(by.begin(), by.end());
  };
  for (Chain& chain : chains_) replace(chain.gates);
  for (Record& record : records_) replace(record.gates);
}

void Thread::Run() {
  driver_.cuCtxSetCurrent(shared_->device.context);
  AddChain(nullptr, false, true, false);               // the legacy stream
  AddChain(nullptr, true, true, false);                // the thread's default stream, and the same
  AddChain(CU_STREAM_PER_THREAD, false, true, false);  // by its handle: see below
  chains_[2].word = chains_[1].word;
  Create();
  static constexpr Choice kChoices[] = {
      {20, &Thread::Kernel},        {5, &Thread::Burst},        {6, &Thread::Create},
      {4, &Thread::Destroy},        {10, &Thread::RecordEvent}, {12, &Thread::WaitEvent},
      {2, &Thread::DestroyEvent},   {4, &Thread::Gate},         {6, &Thread::Write},
      {5, &Thread::Host},           {6, &Thread::Copy},         {2, &Thread::PoolMemory},
      {1, &Thread::PlainMemory},    {6, &Thread::Direct},       {7, &Thread::Synchronise},
      {2, &Thread::SynchroniseAll}, {3, &Thread::Capture},      {5, &Thread::LaunchGraph},
      {3, &Thread::Consume},        {2, &Thread::Sleep},        {1, &Thread::Misuse},
  };
  int total = 0;
  for (const Choice& choice : kChoices) total += choice.weight;
  const uint64_t ops = Pick(30, 120);
  for (uint64_t i = 0; i < ops; ++i) {
    if ((i + 1) % (ops / (kPublications + 1)) == 0) Publish();
    auto at = static_cast<int>(Pick(1, static_cast<uint64_t>(total)));
    const Choice* choice = kChoices;
    while ((at -= choice->weight) > 0) ++choice;
    (this->*choice->op)();
  }
  while (shared_->published[number_].count < kPublications) Publish();
  while (!pending_.empty()) {
    __atomic_store_n(flags_ + *pending_.begin(), 1, __ATOMIC_SEQ_CST);
    Written(*pending_.begin(), {});
  }
  for (Chain& chain : chains_) {
    Note("at-end", chain.number, {Wait(chain, Pick(0, 3)), *chain.word});
  }
}

void Thread::Finish() {
  std::vector<uint64_t> words(kWords);
  Note("words", 0, {driver_.cuMemcpyDtoH_v2(words.data(), AddressOf(words_), 8 * kWords)});
  uint64_t all = 0;
  for (uint64_t i = 0; i < kWords; ++i) {
    all = all * 31 + words[i];
    if (i <= words_used_) Note("word", i, {words[i]});
  }
  for (uint64_t i = 0; i < kSlots; ++i) all = all * 31 + slots_[i];
  Note("all", 0, {all});
  for (auto* chains : {&chains_, &destroyed_}) {
    for (const Chain& chain : *chains) {
      if (chain.graph != nullptr) driver_.cuGraphExecDestroy(chain.graph);
      if (chains == &chains_ && chain.made) driver_.cuStreamDestroy_v2(chain.stream);
    }
  }
  for (const Record& record : records_) driver_.cuEventDestroy_v2(record.event);
  for (const Record& record : shared_->published[number_].records) {
    driver_.cuEventDestroy_v2(record.event);
  }
  driver_.cuMemFree_v2(AddressOf(words_));
  driver_.cuMemFreeHost(slots_);
}

}  // namespace prorata::stream_fuzz
