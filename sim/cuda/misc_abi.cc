// Calls that change nothing in the model: user objects, attributes of kernel nodes. They check
// their arguments as the driver does, so that programs go their usual way.

#include <cstring>

#include "generated/cuda_abi.h"
#include "sim/cuda/graph/graph.h"
#include "sim/cuda/stream/operation.h"

using namespace prorata::simgpu;
using namespace prorata::simgpu::driver;

namespace {

// A thing of the program that a graph keeps: counted, and destroyed by the program's function.
struct UserObject {
  CUhostFn destroy;
  void* data;
  uint64_t references;
};

// Leaked, like the Driver.
std::unordered_map<const void*, std::unique_ptr<UserObject>>& UserObjects() {
  static auto* const objects = new std::unordered_map<const void*, std::unique_ptr<UserObject>>;
  return *objects;
}

CUresult ReleaseObject(CUuserObject handle, unsigned count) {
  std::unique_ptr<UserObject> last;
  {
    std::lock_guard lock(D().mutex);
    auto found = UserObjects().find(handle);
    if (found == UserObjects().end() || count == 0 || count > found->second->references) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    found->second->references -= count;
    if (found->second->references > 0) return CUDA_SUCCESS;
    last = std::move(found->second);
    UserObjects().erase(found);
  }
  last->destroy(last->data);
  return CUDA_SUCCESS;
}

CUresult Retain(CUuserObject handle, unsigned count) {
  std::lock_guard lock(D().mutex);
  auto found = UserObjects().find(handle);
  if (found == UserObjects().end() || count == 0) return CUDA_ERROR_INVALID_VALUE;
  found->second->references += count;
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuUserObjectCreate(CUuserObject* object_out, void* ptr, CUhostFn destroy,
                            unsigned int initialRefcount, unsigned int flags) {
  if (CUresult result = EnterCall()) return result;
  if (!object_out || !destroy || initialRefcount == 0) return CUDA_ERROR_INVALID_VALUE;
  if (flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) return CUDA_ERROR_INVALID_VALUE;
  auto object = std::make_unique<UserObject>(UserObject{destroy, ptr, initialRefcount});
  std::lock_guard lock(D().mutex);
  *object_out = reinterpret_cast<CUuserObject>(object.get());
  UserObjects()[object.get()] = std::move(object);
  return CUDA_SUCCESS;
}

CUresult cuUserObjectRetain(CUuserObject object, unsigned int count) {
  if (CUresult result = EnterCall()) return result;
  return Retain(object, count);
}

CUresult cuUserObjectRelease(CUuserObject object, unsigned int count) {
  if (CUresult result = EnterCall()) return result;
  return ReleaseObject(object, count);
}

namespace {

CUresult ReadNodeAttribute(CUgraphNode handle, CUkernelNodeAttrID attribute,
                           CUkernelNodeAttrValue* out) {
  if (CUresult result = EnterCall()) return result;
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  GraphNode* node;
  if (CUresult result = FindNode(handle, &node)) return result;
  if (node->type != CU_GRAPH_NODE_TYPE_KERNEL) return CUDA_ERROR_INVALID_VALUE;
  auto set = node->attributes.find(attribute);
  if (set != node->attributes.end()) {
    *out = set->second;
  } else {
    std::memset(out, 0, sizeof(*out));
  }
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuGraphKernelNodeGetAttribute(CUgraphNode hNode, CUkernelNodeAttrID attr,
                                       CUkernelNodeAttrValue* value_out) {
  return ReadNodeAttribute(hNode, attr, value_out);
}

CUresult cuGraphKernelNodeSetAttribute(CUgraphNode hNode, CUkernelNodeAttrID attr,
                                       const CUkernelNodeAttrValue* value) {
  if (CUresult result = EnterCall()) return result;
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  GraphNode* node;
  if (CUresult result = FindNode(hNode, &node)) return result;
  if (node->type != CU_GRAPH_NODE_TYPE_KERNEL) return CUDA_ERROR_INVALID_VALUE;
  node->attributes[attr] = *value;
  return CUDA_SUCCESS;
}

CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode dst, CUgraphNode src) {
  if (CUresult result = EnterCall()) return result;
  std::lock_guard lock(D().mutex);
  GraphNode* to;
  GraphNode* from;
  if (CUresult result = FindNode(dst, &to)) return result;
  if (CUresult result = FindNode(src, &from)) return result;
  if (to->type != CU_GRAPH_NODE_TYPE_KERNEL || from->type != CU_GRAPH_NODE_TYPE_KERNEL) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  to->attributes = from->attributes;
  return CUDA_SUCCESS;
}
