// Copies between contexts, and so between devices.

#include "generated/cuda_abi.h"
#include "sim/cuda/context/context.h"
#include "sim/cuda/copy/copy.h"
#include "sim/cuda/graph/capture.h"
#include "sim/cuda/memory/memory.h"

using namespace prorata::simgpu;
using namespace prorata::simgpu::driver;

namespace {

// The contexts of a call: null is the current one. D().mutex held.
CUresult FindContexts(CUcontext dst, CUcontext src, Context* out[2]) {
  if (CUresult result = LiveContext(dst, &out[0])) return result;
  return LiveContext(src, &out[1]);
}

// Puts an entry at the end of a stream, and gives its place there.
CUresult PutOn(const StreamRef& stream, const Work& work, uint64_t* sequence) {
  return SubmitWork(stream, {work}, sequence);
}

// "serialized with respect to all pending and future asynchronous work into the current context,
// the copy's source context, and the copy's destination context": before the copy the current
// stream waits for the default streams of the other two, after it these wait for it.
CUresult Serialized(const CopyCall& copy, Context* const contexts[2], bool per_thread) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  if (CUresult result = CheckCaptureSafe()) return result;
  StreamRef here;
  std::vector<StreamRef> others;
  {
    std::lock_guard lock(D().mutex);
    if (CUresult result = FindStream(nullptr, per_thread, ctx, &here)) return result;
    for (int i = 0; i < 2; ++i) {
      if (contexts[i] != ctx && (i == 0 || contexts[0] != contexts[1])) {
        others.push_back(contexts[i]->legacy);
      }
    }
  }
  uint64_t sequence = 0;
  for (const StreamRef& other : others) {
    if (CUresult result = PutOn(other, Work::Host(0), &sequence)) return result;
    if (CUresult result = PutOn(here, Work::WaitForStream(other->handle, sequence), &sequence)) {
      return result;
    }
  }
  if (CUresult result = Enqueue(here, copy, &sequence)) return result;
  uint64_t unused = 0;
  for (const StreamRef& other : others) {
    if (CUresult result = PutOn(other, Work::WaitForStream(here->handle, sequence), &unused)) {
      return result;
    }
  }
  return CUDA_SUCCESS;
}

struct Peers {
  CUcontext dst;
  CUcontext src;
};

template <typename Make>
CUresult Copy(const Peers& peers, CUstream stream, bool per_thread, Ending ending, Make make) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  CopyCall copy;
  Context* contexts[2];
  {
    std::lock_guard lock(D().mutex);
    if (CUresult result = FindContexts(peers.dst, peers.src, contexts)) return result;
    if (CUresult result = make(&copy)) return result;
  }
  if (copy.bytes() == 0) return CUDA_SUCCESS;
  const bool between_devices =
      copy.direction == WorkKind::kCopyToPeer || copy.direction == WorkKind::kCopyOnDevice;
  if (ending == Ending::kBlocking && between_devices && !Broken(Rule::kPeerCopyIsSerialized)) {
    return Serialized(copy, contexts, per_thread);
  }
  return CopyOnHost(copy, stream, per_thread, ending);
}

CUresult Bytes(CUdeviceptr dst, CUcontext dst_ctx, CUdeviceptr src, CUcontext src_ctx, size_t bytes,
               CUstream stream, bool per_thread, Ending ending) {
  return Copy({dst_ctx, src_ctx}, stream, per_thread, ending, [&](CopyCall* copy) {
    return MakeCopy(dst, Side::kDevice, src, Side::kDevice, bytes, copy);
  });
}

CUresult Box(const CUDA_MEMCPY3D_PEER* box, CUstream stream, bool per_thread, Ending ending) {
  if (!box) return CUDA_ERROR_INVALID_VALUE;
  return Copy({box->dstContext, box->srcContext}, stream, per_thread, ending,
              [&](CopyCall* copy) { return MakeBoxCopy(BoxOf(*box), copy); });
}

}  // namespace

#define PRORATA_PEER(suffix, per_thread)                                                     \
  CUresult cuMemcpyPeer##suffix(CUdeviceptr dst, CUcontext dst_ctx, CUdeviceptr src,         \
                                CUcontext src_ctx, size_t bytes) {                           \
    return Bytes(dst, dst_ctx, src, src_ctx, bytes, nullptr, per_thread, Ending::kBlocking); \
  }                                                                                          \
  CUresult cuMemcpy3DPeer##suffix(const CUDA_MEMCPY3D_PEER* box) {                           \
    return Box(box, nullptr, per_thread, Ending::kBlocking);                                 \
  }
#define PRORATA_PEER_ASYNC(suffix, per_thread)                                            \
  CUresult cuMemcpyPeerAsync##suffix(CUdeviceptr dst, CUcontext dst_ctx, CUdeviceptr src, \
                                     CUcontext src_ctx, size_t bytes, CUstream stream) {  \
    return Bytes(dst, dst_ctx, src, src_ctx, bytes, stream, per_thread, Ending::kAsync);  \
  }                                                                                       \
  CUresult cuMemcpy3DPeerAsync##suffix(const CUDA_MEMCPY3D_PEER* box, CUstream stream) {  \
    return Box(box, stream, per_thread, Ending::kAsync);                                  \
  }

PRORATA_PEER(, false)
PRORATA_PEER(_ptds, true)
PRORATA_PEER_ASYNC(, false)
PRORATA_PEER_ASYNC(_ptsz, true)

#undef PRORATA_PEER
#undef PRORATA_PEER_ASYNC
