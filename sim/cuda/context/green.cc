#include "sim/cuda/context/green.h"

#include <tuple>

namespace prorata::simgpu::driver {

CUresult LiveGreen(CUgreenCtx handle, Green** out) {
  auto* const green = reinterpret_cast<Green*>(handle);
  if (!D().greens.contains(green)) return CUDA_ERROR_INVALID_CONTEXT;
  *out = green;
  return green->alive ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

Green* CurrentGreen() {
  const auto& stack = Self().stack;
  if (stack.empty() || !stack.back() || !stack.back()->alive) return nullptr;
  return stack.back()->green;
}

uint32_t SmsOf(const Stream& stream) {
  return stream.green ? stream.green->sms.count() : D().config(stream.ctx->device).sm_count;
}

std::vector<StreamRef> StreamsOf(const Green& green) {
  std::vector<StreamRef> out;
  if (green.legacy) out.push_back(green.legacy);
  for (const auto& [thread, stream] : green.per_thread) {
    if (stream) out.push_back(stream);
  }
  for (const auto& [handle, stream] : D().streams) {
    if (stream->green == &green) out.push_back(stream);
  }
  return out;
}

CUresult JoinGreen(const Stream& stream) {
  const Green& green = *stream.green;
  if (green.gated == 0) return CUDA_SUCCESS;
  const Work wait = Work::WaitForStream(green.gate->handle, green.gated);
  const auto answer = D().machine->Submit(stream.handle, wait);
  return answer ? CUDA_SUCCESS : FromCode(answer.error());
}

void LeaveGreen(const Stream& stream) {
  Machine& machine = *D().machine;
  // Of nothing: tells what was submitted last.
  const auto last = machine.Submit(stream.handle, std::span<const Work>());
  if (!last || *last == 0) return;
  // Where the queue is full of waits, one is let go: the context looks idle sooner.
  std::ignore =
      machine.Submit(stream.green->collector->handle, Work::WaitForStream(stream.handle, *last));
}

void EndGreens(const Context* primary) {
  for (const auto& [key, green] : D().greens) {
    if (green->primary != primary) continue;
    green->view.alive = false;
    green->legacy.reset();
    green->per_thread.clear();
    green->gate.reset();
    green->collector.reset();
    green->gated = 0;
  }
}

}  // namespace prorata::simgpu::driver
