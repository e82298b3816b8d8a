#include "sim/core/chaos.h"

#include <unistd.h>

#include <cstdio>

namespace prorata::simgpu {

int StatusOf(const char* file, int line, const char* condition) {
  std::fprintf(stderr, "chaos: %s, line %d: not so: %s\n", file, line, condition);
  return 1;
}

Chaos::Chaos(const MachineConfig& config, const std::string& folder, unsigned seed, bool step,
             Exchange* exchange)
    : random_(seed), exchange_(*exchange) {
  auto machine = Machine::Attach(config, folder);
  MUST(machine);
  machine_ = std::move(*machine);
  // Few steps as often as many: joining and registering are short.
  const uint32_t magnitude = random_() % 12 + 5;
  if (step) DieAt({Step::kCount, static_cast<int>(random_() % (1u << magnitude)) + 1});
  const auto process = machine_->RegisterProcess();
  MUST(process);
  process_ = *process;
  if (random_() % 4 == 0) executor_ = std::thread([this] { Execute(); });
}

void Chaos::Run() {
  for (;;) {
    device_ = static_cast<int>(random_() % 2);
    const auto context = machine_->CreateContext(process_, device_);
    if (!context) {
      // What it holds itself may be what others wait for.
      if (!process_shares_.empty()) Drop();
      continue;
    }
    context_ = *context;
    LiveInAContext();
    if (random_() % 16 == 0 && !executor_.joinable()) {
      MUST(machine_->UnregisterProcess(process_) == Code::kOk);
      process_ = machine_->RegisterProcess().value();
      process_shares_.clear();
      pools_.clear();
    }
  }
}

void Chaos::LiveInAContext() {
  streams_ = {New(StreamKind::kLegacy), New(StreamKind::kBlocking), New(StreamKind::kNonBlocking)};
  const auto event = machine_->CreateEvent(context_);
  MUST(event);
  event_ = *event;
  const uint32_t acts = random_() % 200;
  for (uint32_t act = 0; act < acts; ++act) Act();
  if (random_() % 8 == 0) {
    MUST(machine_->DropWork(context_) == Code::kOk);
  }
  if (random_() % 8 == 0) {
    MUST(machine_->FreeAllSlabs(context_) == Code::kOk);
  }
  MUST(machine_->DestroyContext(context_) == Code::kOk);
  held_.clear();
  shares_.clear();
  opened_.clear();
}

Handle Chaos::New(StreamKind kind) {
  const auto stream = machine_->CreateStream(context_, kind, -static_cast<int>(random_() % 3));
  MUST(stream);
  return *stream;
}

void Chaos::Act() {
  switch (random_() % 14) {
    case 0:
    case 1:
      Alloc();
      break;
    case 2:
      if (held_.empty()) break;
      MUST(machine_->FreeSlabs(context_, held_.back()) == Code::kOk);
      held_.pop_back();
      break;
    case 3:
    case 4:
      Submit();
      break;
    case 5:
      if (!executor_.joinable()) RunActions();
      break;
    case 6:
      machine_->WaitEvent(event_, machine_->NowNs() + kNsPerMs);
      machine_->WaitForRoom(AnyStream(), 1, machine_->NowNs() + kNsPerMs);
      break;
    case 7: {
      const size_t which = 1 + random_() % 2;
      MUST(machine_->DestroyStream(streams_[which]) == Code::kOk);
      streams_[which] = New(which == 1 ? StreamKind::kBlocking : StreamKind::kNonBlocking);
      break;
    }
    case 8:
      MUST(machine_->DestroyEvent(event_) == Code::kOk);
      event_ = machine_->CreateEvent(context_).value();
      break;
    case 9:
      // Ends only if the executor runs all that is there and nothing is lost or forgotten.
      if (executor_.joinable()) {
        MUST(machine_->WaitContext(context_) == Code::kOk);
      } else {
        machine_->QueryContext(context_);
      }
      machine_->MemInfo(static_cast<int>(random_() % 2)).value();
      break;
    default:
      ActWithOthers();
  }
}

void Chaos::Alloc() {
  auto extents = machine_->AllocSlabs(context_, (random_() % 20 + 1) * kMiB);
  if (!extents) return;
  for (const Extent& extent : *extents) {
    char byte = 0;
    const off_t last = static_cast<off_t>(extent.offset_bytes + extent.length_bytes - 1);
    MUST(pread(machine_->memory_fd(device_), &byte, 1, last) == 1 && byte == 0);
  }
  Soil(*machine_, device_, *extents);
  held_.push_back(std::move(*extents));
}

void Chaos::Submit() {
  const uint64_t token = random_() % 2;
  const Work work[] = {Work::Kernel(random_() % 100'000, random_() % 1'000'000 + 1, token),
                       Work::Record(event_),
                       Work::Copy(WorkKind::kCopyToDevice, random_() % 1'000'000 + 1, token),
                       Work::Copy(WorkKind::kCopyOnDevice, random_() % 1'000'000 + 1),
                       Work::Host(token),
                       Work::WaitFor(event_)};
  const size_t first = random_() % std::size(work);
  const size_t count = random_() % (std::size(work) - first) + 1;
  const auto sequence =
      machine_->Submit(AnyStream(), std::span<const Work>(work).subspan(first, count));
  MUST(sequence || sequence.error() == Code::kFull || sequence.error() == Code::kOutOfResources);
}

void Chaos::RunActions() {
  while (const auto action = machine_->NextAction(process_, 0)) {
    if (random_() % 4 == 0) machine_->DeferAction(*action);
    MUST(machine_->CompleteAction(*action) == Code::kOk);
  }
}

// Its answers may be refused: the other thread destroys what it works for.
void Chaos::Execute() {
  while (const auto action = machine_->NextAction(process_)) machine_->CompleteAction(*action);
  MUST(false);
}

}  // namespace prorata::simgpu
