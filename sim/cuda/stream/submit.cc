// Operations become work of the machine here.

#include <algorithm>
#include <cstring>
#include <ctime>
#include <thread>

#include "sim/cuda/context/green.h"
#include "sim/cuda/faults.h"
#include "sim/cuda/graph/capture.h"
#include "sim/cuda/memory/sparse.h"
#include "sim/cuda/module/function.h"
#include "sim/cuda/stream/executor.h"
#include "sim/cuda/stream/operation.h"
#include "sim/cuda/stream/stream_value.h"

namespace prorata::simgpu::driver {
namespace {

// Callbacks of the program: CUDA calls are refused while one runs.
class InsideCallback {
 public:
  InsideCallback() { Self().inside_callback += count_; }
  ~InsideCallback() { Self().inside_callback -= count_; }

 private:
  const int count_ = Broken(Rule::kCallbackMayNotCall) ? 0 : 1;
};

int64_t Times(int64_t ns, double factor) {
  return factor == 1 ? ns : static_cast<int64_t>(static_cast<double>(ns) * factor);
}

// `always`: also when the context is in error.
CUresult AddWork(Context* ctx, Work work, ActionFunction function, std::vector<Work>* out,
                 bool always = false, RunsOn thread = RunsOn::kExecutor) {
  if (!always) {
    function = [ctx, inner = std::move(function)](const Action& action) {
      return ErrorOf(*ctx) != CUDA_SUCCESS || inner(action);
    };
  }
  work.token = AddAction(ctx, std::move(function), thread);
  if (work.token == 0) return CUDA_ERROR_OPERATING_SYSTEM;
  out->push_back(work);
  return CUDA_SUCCESS;
}

struct WorkMaker {
  Context* ctx;
  uint32_t sm_count;  // that its kernels may use
  std::vector<Work>* out;

  CUresult operator()(const EmptyCall&) const { return Plain(Work::Host(0)); }
  CUresult operator()(const GraphAllocCall&) const { return Plain(Work::Host(0)); }
  CUresult operator()(const GraphFreeCall&) const { return Plain(Work::Host(0)); }
  CUresult operator()(const RecordCall& call) const {
    return Plain(Work::Record(call.event->handle));
  }
  CUresult operator()(const WaitCall& call) const {
    return Plain(Work::WaitFor(call.event->handle));
  }

  CUresult operator()(const KernelCall& call) const {
    const KernelCost cost = CostOf(call, sm_count, D().config(ctx->device).sm_count);
    const LaunchFault fault = CountLaunch(ctx->device);
    Work work = Work::Kernel(Times(cost.duration_ns, fault.factor), cost.sm_ppm);
    work.rendezvous = cost.rendezvous;
    work.rendezvous_size = cost.rendezvous_size;
    if (fault.harms()) {
      return AddWork(
          ctx, work, [owner = ctx, fault](const Action&) { return Harm(owner, fault), true; }, out,
          true);
    }
    if (!call.function->host_kernel) return Plain(work);
    return AddWork(
        ctx, work,
        [call, sm_count = sm_count](const Action& action) {
          InsideCallback inside;
          RunHostKernel(call, sm_count, action);
          return true;
        },
        out);
  }

  CUresult operator()(const CopyCall& call) const {
    const uint64_t bytes = Slowed(call.bytes());
    Work work = Work::Copy(call.direction, bytes);
    if (call.direction == WorkKind::kHost) work = Work::Host(0);
    if (call.direction == WorkKind::kCopyToPeer) {
      work = Work::PeerCopy(call.from_device, call.to_device, bytes);
    }
    return AddWork(ctx, work, [call](const Action&) { return RunCopy(call), true; }, out);
  }

  CUresult operator()(const FillCall& call) const {
    // A fill only writes: half the traffic of a copy of as many bytes.
    const uint64_t bytes = Slowed(std::max<uint64_t>(call.bytes() / 2, 1));
    const Work work = Work::Copy(WorkKind::kCopyOnDevice, bytes);
    if (call.placeholder) return FillOfPlaceholder(call, work);
    return AddWork(ctx, work, [call](const Action&) { return RunFill(call), true; }, out);
  }

  CUresult FillOfPlaceholder(const FillCall& call, const Work& work) const {
    return AddWork(
        ctx, work,
        [call, owner = ctx](const Action&) {
          bool valid;
          {
            const std::lock_guard lock(D().mutex);
            valid = FillIsValid(call);
          }
          if (valid) {
            RunFill(call);
          } else {
            Harm(owner, {.error = CUDA_ERROR_ILLEGAL_ADDRESS});
          }
          return true;
        },
        out);
  }

  CUresult operator()(const HostCall& call) const {
    const bool apart = !Broken(Rule::kHostFunctionIsApart);
    return AddWork(
        ctx, Work::Host(0),
        [call, owner = ctx](const Action&) {
          if (Broken(Rule::kHostFunctionHolds)) {
            std::thread(RunHostCall, call, ErrorOf(*owner)).detach();
          } else {
            RunHostCall(call, ErrorOf(*owner));
          }
          return true;
        },
        out, true, apart ? RunsOn::kHostThread : RunsOn::kExecutor);
  }

  CUresult operator()(const TilesCall& call) const {
    return AddWork(
        ctx, Work::Host(0), [call](const Action&) { return ApplyTileChanges(call.number), true; },
        out);
  }

  CUresult operator()(const BatchCall& batch) const {
    if (batch.calls.empty()) return Plain(Work::Host(0));
    for (const ValueCall& call : batch.calls) {
      const auto run = [call](const Action&) { return RunValue(call); };
      if (CUresult result = AddWork(ctx, Work::Host(0), run, out)) return result;
    }
    return CUDA_SUCCESS;
  }

  // So many bytes take as long as these on a slow device.
  uint64_t Slowed(uint64_t bytes) const {
    return static_cast<uint64_t>(Times(static_cast<int64_t>(bytes), CopyFactor(ctx->device)));
  }

  CUresult Plain(const Work& work) const {
    out->push_back(work);
    return CUDA_SUCCESS;
  }
};

// One row, of which parts may be behind tiles: what is not mapped reads as zeros and takes nothing.
void MoveTiled(uint64_t to, uint64_t from, size_t bytes) {
  std::lock_guard lock(D().mutex);
  while (bytes > 0) {
    size_t part = bytes;
    uint8_t* const target = SparseBytes(to, &part);
    const uint8_t* const source = SparseBytes(from, &part);
    if (target && source) std::memmove(target, source, part);
    if (target && !source) std::memset(target, 0, part);
    to += part;
    from += part;
    bytes -= part;
  }
}

}  // namespace

void ForgetWork(std::span<const Work> work) {
  for (const Work& entry : work) {
    if (entry.token != 0) DropAction(entry.token);
  }
}

// As CUDA documents both: after an error of the context the function is not called, the older
// callback gets it.
void RunHostCall(const HostCall& call, CUresult error) {
  InsideCallback inside;
  if (call.function && error == CUDA_SUCCESS) {
    call.function(call.user_data);
  } else if (call.callback) {
    call.callback(call.stream, error, call.user_data);
  }
}

void RunCopy(const CopyCall& copy) {
  const uint64_t source = copy.staged ? reinterpret_cast<uint64_t>(copy.staged->data()) : copy.src;
  const bool tiled = AnySparse();
  const size_t src_pitch = copy.staged ? copy.width : copy.src_pitch;
  const size_t src_slice = copy.staged ? copy.width * copy.height : copy.src_slice;
  for (size_t z = 0; z < copy.depth; ++z) {
    for (size_t y = 0; y < copy.height; ++y) {
      const uint64_t to = copy.dst + z * copy.dst_slice + y * copy.dst_pitch;
      const uint64_t from = source + z * src_slice + y * src_pitch;
      if (tiled) {
        MoveTiled(to, from, copy.width);
      } else {
        std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), copy.width);
      }
    }
  }
}

bool FillIsValid(const FillCall& fill) {
  const uint64_t row = uint64_t{fill.width} * fill.element_bytes;
  return DeviceRangeIsValid(fill.dst, (fill.height - 1) * uint64_t{fill.pitch} + row);
}

void RunFill(const FillCall& fill) {
  for (size_t y = 0; y < fill.height; ++y) {
    auto* row = reinterpret_cast<uint8_t*>(fill.dst + y * fill.pitch);
    if (fill.element_bytes == 1) {
      std::memset(row, static_cast<int>(fill.value & 0xff), fill.width);
    } else if (fill.element_bytes == 2) {
      std::fill_n(reinterpret_cast<uint16_t*>(row), fill.width, static_cast<uint16_t>(fill.value));
    } else {
      std::fill_n(reinterpret_cast<uint32_t*>(row), fill.width, fill.value);
    }
  }
}

CUresult MakeWork(const Stream& stream, const StreamOp& operation, std::vector<Work>* work) {
  return std::visit(WorkMaker{stream.ctx, SmsOf(stream), work}, operation);
}

CUresult SubmitWork(const StreamRef& stream, const std::vector<Work>& work, uint64_t* sequence) {
  std::lock_guard order(stream->order);
  return SubmitOrdered(stream, work, sequence);
}

CUresult SubmitOrdered(const StreamRef& stream, const std::vector<Work>& work, uint64_t* sequence) {
  Machine& machine = *D().machine;
  std::span<const Work> rest(work);
  while (!rest.empty()) {
    const auto batch = rest.first(std::min<size_t>(rest.size(), Machine::kMaxBatch));
    auto answer = machine.Submit(stream->handle, batch);
    if (answer) {
      if (sequence) *sequence = *answer;
      rest = rest.subspan(batch.size());
      continue;
    }
    Code code = answer.error();
    if (code == Code::kFull) {
      // As on a device whose queue is full: the launch waits.
      code = machine.WaitForRoom(stream->handle, static_cast<uint32_t>(batch.size()));
      if (code == Code::kOk) continue;
    } else if (code == Code::kOutOfResources) {
      // Other processes fill the machine's table of entries; it empties as they run.
      const timespec pause = {0, 1'000'000};
      nanosleep(&pause, nullptr);
      continue;
    }
    ForgetWork(rest);
    return FromCode(code);
  }
  return CUDA_SUCCESS;
}

CUresult Enqueue(const StreamRef& stream, StreamOp operation, uint64_t* sequence) {
  bool captured = false;
  if (CUresult result = CaptureOperation(stream, &operation, &captured)) return result;
  if (captured) return CUDA_SUCCESS;
  std::vector<Work> work;
  if (CUresult result = MakeWork(*stream, operation, &work)) return result;
  return SubmitWork(stream, work, sequence);
}

CUresult EnqueueAndWait(const StreamRef& stream, StreamOp operation) {
  {
    std::lock_guard lock(D().mutex);
    if (CUresult result = CheckNotCapturing(stream.get())) return result;
  }
  uint64_t sequence = 0;
  if (CUresult result = Enqueue(stream, std::move(operation), &sequence)) return result;
  if (sequence == 0) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (CUresult result = FromCode(D().machine->WaitStream(stream->handle, sequence))) return result;
  return ErrorOf(*stream->ctx);
}

}  // namespace prorata::simgpu::driver
