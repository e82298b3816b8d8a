// Launching executable graphs: the steps of the plan, put on the launching stream and the graph's
// own lanes.
//
//   launching stream:  ... | wait for the last launch | fork | steps | wait for the lanes | ...
//   each other lane:         wait for the fork | steps
//
// So all of the graph comes after what was in the stream, and what comes behind waits for all of
// it.

#include <algorithm>
#include <utility>

#include "generated/cuda_abi.h"
#include "sim/cuda/context/context.h"
#include "sim/cuda/context/green.h"
#include "sim/cuda/graph/capture.h"
#include "sim/cuda/graph/graph_exec.h"
#include "sim/cuda/graph/graph_memory.h"

namespace prorata::simgpu::driver {

GraphExec::~GraphExec() {
  for (const Lane& lane : lanes) D().machine->DestroyStream(lane.stream->handle);
}

}  // namespace prorata::simgpu::driver

using namespace prorata::simgpu;
using namespace prorata::simgpu::driver;

namespace {

// Work is submitted when there is so much of it, of all lanes at once: then whatever is in a queue
// waits for entries in queues only, so waiting for room in one of them ends.
constexpr size_t kFlushAt = 200;

// Brings the plan up to date for a launch into `stream`. D().mutex held.
CUresult Prepare(GraphExec* exec, const Stream& stream) {
  const PlanLane launch = {stream.ctx, stream.priority};
  const auto usable = [](const GraphExec::Lane& lane) {
    return lane.stream->ctx->alive && lane.machine_ctx == lane.stream->ctx->handle;
  };
  if (exec->planned && exec->plan.lanes[0].ctx == launch.ctx &&
      exec->plan.lanes[0].priority == launch.priority && exec->green == stream.green &&
      std::all_of(exec->lanes.begin(), exec->lanes.end(), usable)) {
    return CUDA_SUCCESS;
  }
  for (const auto& lane : exec->lanes) D().machine->DestroyStream(lane.stream->handle);
  exec->lanes.clear();
  const bool node_priority = exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
  if (!MakePlan(*exec->graph, launch, node_priority, &exec->plan)) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 1; i < exec->plan.lanes.size(); ++i) {
    const PlanLane& lane = exec->plan.lanes[i];
    if (!lane.ctx->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    GraphExec::Lane made;
    // All of the graph that is of the launching stream's context runs where that stream runs.
    Green* const green = lane.ctx == stream.ctx ? stream.green : nullptr;
    if (CUresult result = NewStream(lane.ctx, StreamKind::kNonBlocking, CU_STREAM_NON_BLOCKING,
                                    lane.priority, &made.stream, green)) {
      return result;
    }
    made.machine_ctx = lane.ctx->handle;
    exec->lanes.push_back(std::move(made));
  }
  exec->green = stream.green;
  exec->planned = true;
  return CUDA_SUCCESS;
}

// One launch: exec->launching and stream->order are held while it lives.
class GraphLaunch {
 public:
  GraphLaunch(GraphExec* exec, const StreamRef& stream) : exec_(exec), stream_(stream) {
    lanes_.resize(1 + exec->lanes.size());
    lanes_[0].stream = stream;
    for (size_t i = 1; i < lanes_.size(); ++i) {
      lanes_[i].stream = exec->lanes[i - 1].stream;
      lanes_[i].next = exec->lanes[i - 1].submitted;
    }
    for (Lane& lane : lanes_) lane.done = {0};
  }
  ~GraphLaunch() {
    for (Lane& lane : lanes_) ForgetWork(lane.work);  // what an error left
  }

  // `operations`: of the steps of the plan.
  CUresult Run(const std::vector<StreamOp>& operations) {
    if (CUresult result = Begin()) return result;
    for (size_t i = 0; i < operations.size(); ++i) {
      if (CUresult result = Add(exec_->plan.steps[i], operations[i])) return result;
      if (buffered_ >= kFlushAt) {
        if (CUresult result = Flush()) return result;
      }
    }
    if (!Broken(Rule::kStreamWaitsForGraph)) {
      for (const PlanPoint& end : exec_->plan.ends) WaitFor(0, end);
    }
    if (CUresult result = Flush()) return result;
    exec_->last_stream = stream_->handle;
    exec_->last_sequence = lanes_[0].next;
    return CUDA_SUCCESS;
  }

 private:
  struct Lane {
    StreamRef stream;
    std::vector<Work> work;      // not submitted yet
    uint64_t next = 0;           // sequence of the last entry, submitted or not
    std::vector<uint64_t> done;  // [n]: the sequence of the nth step's last entry
  };

  void Push(size_t lane, const Work& work) {
    lanes_[lane].work.push_back(work);
    ++lanes_[lane].next;
    ++buffered_;
  }

  void WaitFor(size_t lane, const PlanPoint& point) {
    const auto& [other, steps] = point;
    Push(lane, Work::WaitForStream(lanes_[other].stream->handle, lanes_[other].done[steps]));
  }

  CUresult Begin() {
    std::vector<Work> opening;
    // An executable graph does not run beside itself.
    if (exec_->last_stream != 0 && !Broken(Rule::kGraphRelaunchWaits)) {
      opening.push_back(Work::WaitForStream(exec_->last_stream, exec_->last_sequence));
    }
    opening.push_back(Work::Host(0));
    uint64_t fork = 0;
    if (CUresult result = SubmitOrdered(stream_, opening, &fork)) return result;
    lanes_[0].next = fork;
    for (size_t lane = 1; lane < lanes_.size(); ++lane) {
      if (!Broken(Rule::kGraphWaitsForStream)) {
        Push(lane, Work::WaitForStream(stream_->handle, fork));
      }
    }
    return CUDA_SUCCESS;
  }

  CUresult Add(const PlanStep& step, const StreamOp& operation) {
    if (!Broken(Rule::kGraphEdgesOrder)) {
      for (const PlanPoint& point : step.waits) WaitFor(step.lane, point);
    }
    Lane& lane = lanes_[step.lane];
    const size_t before = lane.work.size();
    const CUresult result = MakeWork(*lane.stream, operation, &lane.work);
    lane.next += lane.work.size() - before;
    buffered_ += lane.work.size() - before;
    lane.done.push_back(lane.next);
    return result;
  }

  CUresult Flush() {
    for (size_t i = 0; i < lanes_.size(); ++i) {
      Lane& lane = lanes_[i];
      if (lane.work.empty()) continue;
      uint64_t sequence = 0;
      const std::vector<Work> work = std::exchange(lane.work, {});
      const CUresult result = i == 0 ? SubmitOrdered(lane.stream, work, &sequence)
                                     : SubmitWork(lane.stream, work, &sequence);
      if (result != CUDA_SUCCESS) return result;
      if (i > 0) exec_->lanes[i - 1].submitted = sequence;
    }
    buffered_ = 0;
    return CUDA_SUCCESS;
  }

  GraphExec* exec_;
  StreamRef stream_;
  std::vector<Lane> lanes_;
  size_t buffered_ = 0;
};

// What the steps do now; parameters may change later.
std::vector<StreamOp> Operations(const GraphPlan& plan) {
  std::vector<StreamOp> out;
  out.reserve(plan.steps.size());
  for (const PlanStep& step : plan.steps) {
    const bool rests =
        !step.node || (!step.node->enabled && !Broken(Rule::kGraphDisabledNodeRests));
    out.push_back(rests ? StreamOp(EmptyCall{}) : step.node->operation);
  }
  return out;
}

void MarkRecorded(const std::vector<StreamOp>& operations) {
  for (const StreamOp& operation : operations) {
    const auto* record = std::get_if<RecordCall>(&operation);
    if (!record) continue;
    record->event->capture = nullptr;
    record->event->captured.clear();
    record->event->recorded = true;
    ForgetOrder(record->event.get());
  }
}

CUresult Find(CUgraphExec handle, CUstream stream_handle, bool per_thread,
              std::shared_ptr<GraphExec>* exec, StreamRef* stream) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  std::lock_guard lock(D().mutex);
  if (CUresult result = FindExec(handle, exec)) return result;
  return FindStream(stream_handle, per_thread, ctx, stream);
}

// `graph` gets the graph that the plan is of: an update may replace it meanwhile.
CUresult LaunchFound(const std::shared_ptr<GraphExec>& exec, const StreamRef& stream,
                     std::shared_ptr<Graph>* graph) {
  std::lock_guard launching(exec->launching);
  bool captured = false;
  if (CUresult result = CaptureGraph(stream, exec->graph, &captured)) return result;
  if (captured) return CUDA_SUCCESS;
  std::lock_guard order(stream->order);
  std::vector<StreamOp> operations;
  {
    std::lock_guard lock(D().mutex);
    if (CUresult result = Prepare(exec.get(), *stream)) return result;
    if (CUresult result = AttachGraphMemory(*exec, true)) return result;
    *graph = exec->graph;
    operations = Operations(exec->plan);
    MarkRecorded(operations);
  }
  const CUresult result = GraphLaunch(exec.get(), stream).Run(operations);
  std::lock_guard lock(D().mutex);
  if (result == CUDA_SUCCESS) {
    GraphMemoryLaunched(*exec, exec->last_stream, exec->last_sequence);
  } else {
    exec->planned = false;  // what is on the lanes is not known
  }
  return result;
}

CUresult Launch(CUgraphExec handle, CUstream stream_handle, bool per_thread) {
  std::shared_ptr<GraphExec> exec;
  std::shared_ptr<Graph> graph;
  StreamRef stream;
  if (CUresult result = Find(handle, stream_handle, per_thread, &exec, &stream)) return result;
  const CUresult result = LaunchFound(exec, stream, &graph);
  // Whoever destroyed it meanwhile left the last of it to this thread, and graphs go under the
  // lock.
  std::lock_guard lock(D().mutex);
  exec.reset();
  graph.reset();
  return result;
}

CUresult Upload(CUgraphExec handle, CUstream stream_handle, bool per_thread) {
  std::shared_ptr<GraphExec> exec;
  StreamRef stream;
  if (CUresult result = Find(handle, stream_handle, per_thread, &exec, &stream)) return result;
  std::lock_guard lock(D().mutex);
  return AttachGraphMemory(*exec, false);
}

}  // namespace

CUresult cuGraphLaunch(CUgraphExec hGraph, CUstream hStream) {
  return Launch(hGraph, hStream, false);
}
CUresult cuGraphLaunch_ptsz(CUgraphExec hGraphExec, CUstream hStream) {
  return Launch(hGraphExec, hStream, true);
}
CUresult cuGraphUpload(CUgraphExec hGraph, CUstream hStream) {
  return Upload(hGraph, hStream, false);
}
CUresult cuGraphUpload_ptsz(CUgraphExec hGraphExec, CUstream hStream) {
  return Upload(hGraphExec, hStream, true);
}
