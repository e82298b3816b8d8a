// The operations of a stream program. Each notes what the driver answered and what it saw.

#include <algorithm>
#include <chrono>
#include <thread>

#include "tests/stream_fuzz/thread.h"

#define ON(chain, function, ...) \
  ((chain).ptsz ? driver_.function##_ptsz(__VA_ARGS__) : driver_.function(__VA_ARGS__))

namespace prorata::stream_fuzz {
namespace {

CUdeviceptr Address(const void* pointer) {
  return static_cast<CUdeviceptr>(reinterpret_cast<uint64_t>(pointer));
}

bool IsFree(const Chain& chain) { return chain.gates.empty(); }
bool IsMade(const Chain& chain) { return chain.made; }
bool IsNonBlocking(const Chain& chain) { return !chain.blocking; }
bool IsMadeBlocking(const Chain& chain) { return chain.blocking && chain.made; }
bool HasGraph(const Chain& chain) { return chain.graph != nullptr; }

}  // namespace

void Thread::Kernel() {
  const Chain& chain = AnyChain();
  Note("kernel", chain.number, {Mix(chain)});
}

// As a rule more than any bound on queued work holds.
void Thread::Burst() {
  const Chain& chain = AnyChain();
  const uint64_t count = Pick(10, 60);
  CUresult worst = CUDA_SUCCESS;
  for (uint64_t i = 0; i < count; ++i) worst = std::max(worst, Mix(chain));
  Note("burst", chain.number, {worst});
}

void Thread::Create() {
  if (chains_.size() >= kMaxChains) return;
  const bool blocking = Chance(35);
  CUstream stream = nullptr;
  const CUresult result = driver_.cuStreamCreate(&stream, blocking ? 0 : 1);
  AddChain(stream, false, blocking, true);
  Note("create", chains_.back().number, {result, blocking});
}

// With or without work in it.
void Thread::Destroy() {
  Chain* chain = ChainWhere(IsMade);
  if (chain == nullptr) return;
  if (!chain->gates.empty() && Chance(70)) return;
  Note("destroy", chain->number, {driver_.cuStreamDestroy_v2(chain->stream)});
  destroyed_.push_back(*chain);
  std::erase_if(chains_,
                [number = chain->number](const Chain& one) { return one.number == number; });
}

void Thread::RecordEvent() {
  const Chain& chain = AnyChain();
  Record* record = AnyRecord();
  if (record == nullptr || (records_.size() < 8 && Chance(50))) {
    Record made;
    const CUresult result = driver_.cuEventCreate(&made.event, Chance(50) ? 2 : 0);
    Note("event", records_.size(), {result});
    records_.push_back(made);
    record = &records_.back();
  }
  Note("record", chain.number, {Snapshot(chain, record)});
}

void Thread::WaitEvent() {
  const Record* record = AnyRecord();
  if (record == nullptr || record->snapshot == nullptr) return;
  Chain& chain = AnyChain();
  if (chain.blocking && !record->gates.empty()) return;
  const CUresult waited = ON(chain, cuStreamWaitEvent, chain.stream, record->event, 0);
  chain.gates.insert(record->gates.begin(), record->gates.end());
  Note("wait-event", chain.number, {waited, Mix(chain, chain.word, record->snapshot)});
}

void Thread::DestroyEvent() {
  if (records_.empty()) return;
  const uint64_t index = Pick(0, records_.size() - 1);
  Note("destroy-event", index, {driver_.cuEventDestroy_v2(records_[index].event)});
  records_.erase(records_.begin() + static_cast<std::ptrdiff_t>(index));
}

void Thread::Gate() {
  Chain* chain = ChainWhere(IsNonBlocking);
  if (chain == nullptr || pending_.size() >= 4) return;
  const uint32_t flag = flags_used_++;
  const CUresult result =
      driver_.cuStreamWaitValue32_v2(chain->stream, Address(flags_ + flag), 1, 0);
  pending_.insert(flag);
  chain->gates.insert(flag);
  Note("gate", chain->number, {flag, result});
}

// Writes a flag that streams wait for: the host does, or a stream, or a host function in one.
void Thread::Write() {
  if (pending_.empty()) return;
  const uint32_t flag =
      *std::next(pending_.begin(), static_cast<std::ptrdiff_t>(Pick(0, pending_.size() - 1)));
  const Chain& chain = AnyChain();
  const uint64_t how = chain.gates.contains(flag) ? 0 : Pick(0, 2);
  CUresult result = CUDA_SUCCESS;
  const Gates by = how == 0 ? Gates{} : chain.gates;
  if (how == 0) {
    __atomic_store_n(flags_ + flag, 1, __ATOMIC_SEQ_CST);
  } else if (how == 1) {
    result = ON(chain, cuStreamWriteValue32_v2, chain.stream, Address(flags_ + flag), 1, 0);
  } else {
    result = HostFunction(chain, nullptr, flags_ + flag);
  }
  Written(flag, by);
  Note("write", chain.number, {how, flag, result});
}

void Thread::Host() {
  const Chain& chain = AnyChain();
  Note("host", chain.number, {HostFunction(chain, chain.word, nullptr)});
}

void Thread::Copy() {
  const Chain& chain = AnyChain();
  const CUdeviceptr word = Address(chain.word);
  uint64_t* scratch = NewWord();
  uint64_t* slot = NewSlot();
  CUresult result = CUDA_SUCCESS;
  switch (Pick(0, 2)) {
    case 0:
      result = ON(chain, cuMemcpyDtoHAsync_v2, slot, word, 8, chain.stream);
      break;
    case 1:
      *slot = random_();
      result = ON(chain, cuMemcpyHtoDAsync_v2, Address(scratch), slot, 8, chain.stream);
      break;
    default:
      result = ON(chain, cuMemsetD8Async, Address(scratch),
                  static_cast<unsigned char>(Pick(1, 255)), 8, chain.stream);
  }
  Note("copy", chain.number, {result, Mix(chain, chain.word, scratch)});
}

// Memory that lives in the stream alone.
void Thread::PoolMemory() {
  const Chain& chain = AnyChain();
  CUdeviceptr memory = 0;
  const CUresult allocated = ON(chain, cuMemAllocAsync, &memory, 4096, chain.stream);
  if (allocated != CUDA_SUCCESS) return Note("pool", chain.number, {allocated});
  auto* word = reinterpret_cast<uint64_t*>(memory);
  const CUresult filled = ON(chain, cuMemsetD8Async, memory, 3, 4096, chain.stream);
  const CUresult mixed = Mix(chain, chain.word, word);
  const CUresult freed = ON(chain, cuMemFreeAsync, memory, chain.stream);
  Note("pool", chain.number, {allocated, filled, mixed, freed});
}

// Freeing waits for the whole device.
void Thread::PlainMemory() {
  if (!pending_.empty()) return;
  const std::lock_guard lock(shared_->capture);
  CUdeviceptr memory = 0;
  const CUresult allocated = driver_.cuMemAlloc_v2(&memory, Pick(1, 4 << 20));
  Note("memory", 0, {allocated, driver_.cuMemFree_v2(memory)});
}

// The order of the legacy stream and blocking streams, without events.
void Thread::Direct() {
  const Chain* other = ChainWhere(IsMadeBlocking);
  if (other == nullptr) return;
  const Chain& legacy = chains_[0];
  const bool into_legacy = Chance(50);
  const Chain& to = into_legacy ? legacy : *other;
  const Chain& from = into_legacy ? *other : legacy;
  Note("direct", to.number, {from.number, Mix(to, to.word, from.word)});
}

// Waits for a chain that no flag gates, in one of four ways.
CUresult Thread::Wait(Chain& chain, uint64_t how) {
  CUevent event = nullptr;
  CUresult result = CUDA_SUCCESS;
  switch (how) {
    case 0:
      return ON(chain, cuStreamSynchronize, chain.stream);
    case 1:
      while ((result = ON(chain, cuStreamQuery, chain.stream)) == CUDA_ERROR_NOT_READY) {
        std::this_thread::yield();
      }
      return result;
    default:
      driver_.cuEventCreate(&event, how == 2 ? 0 : 1);  // spinning, blocking
      result = ON(chain, cuEventRecord, event, chain.stream);
      if (result == CUDA_SUCCESS && Chance(50)) {
        result = driver_.cuEventSynchronize(event);
      } else if (result == CUDA_SUCCESS) {
        while ((result = driver_.cuEventQuery(event)) == CUDA_ERROR_NOT_READY) {
        }
      }
      driver_.cuEventDestroy_v2(event);
      return result;
  }
}

void Thread::Synchronise() {
  Chain* chain = ChainWhere(IsFree);
  if (chain == nullptr) return;
  const uint64_t how = Pick(0, 3);
  const CUresult waited = Wait(*chain, how);
  Note("synchronise", chain->number, {how, waited, *chain->word});
}

void Thread::SynchroniseAll() {
  if (!pending_.empty()) return;
  const std::lock_guard lock(shared_->capture);
  Note("synchronise-all", 0, {driver_.cuCtxSynchronize()});
  for (const Chain& chain : chains_) Note("saw", chain.number, {*chain.word});
}

// Work on the graph's own words, in one or two streams.
CUresult Thread::CaptureBody(const Chain& chain, Chain* beside, bool misuse) {
  uint64_t* word = chain.graph_word;
  CUresult worst = Mix(chain, word, words_);
  const auto also = [&worst](CUresult result) { worst = std::max(worst, result); };
  CUevent fork = nullptr;
  CUevent join = nullptr;
  driver_.cuEventCreate(&fork, 2);
  driver_.cuEventCreate(&join, 2);
  if (misuse) Note("misused", chain.number, {driver_.cuStreamQuery(chain.stream)});
  uint64_t* side = NewWord();
  if (beside != nullptr) {
    also(driver_.cuEventRecord(fork, chain.stream));
    also(driver_.cuStreamWaitEvent(beside->stream, fork, 0));
    for (uint64_t i = Pick(1, 4); i > 0; --i) also(Mix(*beside, side, words_));
  }
  for (uint64_t i = Pick(1, 6); i > 0; --i) also(Mix(chain, word, words_));
  if (Chance(50)) also(HostFunction(chain, word, nullptr));
  if (Chance(50)) also(driver_.cuMemcpyDtoHAsync_v2(NewSlot(), Address(word), 8, chain.stream));
  if (beside != nullptr) {
    also(driver_.cuEventRecord(join, beside->stream));
    also(driver_.cuStreamWaitEvent(chain.stream, join, 0));
    also(Mix(chain, word, side));
  }
  driver_.cuEventDestroy_v2(fork);
  driver_.cuEventDestroy_v2(join);
  return worst;
}

void Thread::Capture() {
  Chain* chain = ChainWhere(IsNonBlocking);
  if (chain == nullptr || (shared_->several && !pending_.empty())) return;
  Chain* beside = ChainWhere(IsNonBlocking);
  if (beside == chain) beside = nullptr;
  const std::lock_guard lock(shared_->capture);
  const auto mode = static_cast<CUstreamCaptureMode>(Pick(shared_->several ? 1 : 0, 2));
  uint64_t* const last_word = chain->graph_word;
  chain->graph_word = NewWord();
  const bool misuse = Chance(10);
  const CUresult begun = driver_.cuStreamBeginCapture_v2(chain->stream, mode);
  const CUresult body = CaptureBody(*chain, beside, misuse);
  CUgraph graph = nullptr;
  const CUresult ended = driver_.cuStreamEndCapture(chain->stream, &graph);
  CUgraphExec made = nullptr;
  CUresult instantiated = CUDA_SUCCESS;
  if (graph != nullptr) {
    instantiated = driver_.cuGraphInstantiateWithFlags(&made, graph, 0);
    driver_.cuGraphDestroy(graph);
  }
  Note("capture", chain->number, {mode, begun, body, ended, instantiated});
  if (made == nullptr) {
    chain->graph_word = last_word;
    return;
  }
  // The one before may still run.
  if (chain->graph != nullptr) driver_.cuGraphExecDestroy(chain->graph);
  chain->graph = made;
}

void Thread::LaunchGraph() {
  Chain* chain = ChainWhere(HasGraph);
  if (chain == nullptr) return;
  CUresult worst = CUDA_SUCCESS;
  for (uint64_t i = Pick(1, 4); i > 0; --i) {
    worst = std::max(worst, driver_.cuGraphLaunch(chain->graph, chain->stream));
    worst = std::max(worst, Mix(*chain, chain->word, chain->graph_word));
  }
  Note("graph", chain->number, {worst});
}

// Waits on the host until a lower thread has recorded an event, then in a stream for that.
void Thread::Consume() {
  if (number_ == 0 || !pending_.empty()) return;
  Shared::Published& from = shared_->published[Pick(0, number_ - 1)];
  const auto which = static_cast<int>(Pick(0, kPublications - 1));
  while (from.count <= which) std::this_thread::sleep_for(std::chrono::microseconds(50));
  const Record& record = from.records[which];
  Chain& chain = AnyChain();
  const CUresult waited = ON(chain, cuStreamWaitEvent, chain.stream, record.event, 0);
  Note("consume", chain.number, {waited, Mix(chain, chain.word, record.snapshot)});
}

void Thread::Publish() {
  Shared::Published& mine = shared_->published[number_];
  if (mine.count >= kPublications) return;
  Chain* chain = ChainWhere(IsFree);  // the legacy stream always is
  Record& record = mine.records[mine.count];
  driver_.cuEventCreate(&record.event, 2);
  Note("publish", chain->number, {Snapshot(*chain, &record)});
  ++mine.count;
}

void Thread::Sleep() { std::this_thread::sleep_for(std::chrono::microseconds(Pick(100, 6000))); }

// What the driver refuses stays refused, and by the same code.
void Thread::Misuse() {
  const Chain& chain = AnyChain();
  const CUresult launched = ON(chain, cuLaunchKernel, shared_->device.mix, 0, 1, 1, 1, 1, 1, 0,
                               chain.stream, nullptr, nullptr);
  Note("misuse", chain.number,
       {launched, ON(chain, cuEventRecord, nullptr, chain.stream),
        driver_.cuStreamWaitValue32_v2(chain.stream, 0, 1, 0)});
}

}  // namespace prorata::stream_fuzz
