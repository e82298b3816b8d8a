#include "other_process.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "conformance.h"

namespace prorata::conformance {

enum class OtherProcess::Op : uint32_t {
  kAllocate,
  kFree,
  kRead,
  kWrite,
  kFreeBytes,
  kStep,
  kSynchronize,
  kExport,
  kOpen,
  kClose,
  kRangeBytes,
  kNewContext,
  kCreateEvent,
  kExportEvent,
  kOpenEvent,
  kRecord,
  kWait,
  kQuery,
  kSynchronizeEvent,
  kDestroyEvent,
  kCreatePhysical,
  kImportPhysical,
  kDropImported,
  kImportPool,
  kImportPointer,
  kFreeAsync,
  kAllocateFrom,
};

struct OtherProcess::Request {
  Op op;
  uint64_t a = 0;
  uint64_t b = 0;
  uint64_t c = 0;
  uint64_t d = 0;
  char handle[64] = {};
};

bool SendWithFd(int socket, const void* bytes, size_t size, int fd) {
  iovec part = {const_cast<void*>(bytes), size};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  return sendmsg(socket, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(size);
}

bool ReceiveWithFd(int socket, void* bytes, size_t size, int* fd) {
  iovec part = {bytes, size};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != static_cast<ssize_t>(size)) return false;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  *fd = -1;
  if (header != nullptr) std::memcpy(fd, CMSG_DATA(header), sizeof *fd);
  return true;
}

// --- The test's side ----------------------------------------------------------------------------

OtherProcess::OtherProcess(int device) {
  int sockets[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
  const std::string ordinal = std::to_string(device);
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int keep = dup(sockets[1]);  // without the close-on-exec flag
    execl("/proc/self/exe", "conformance_suite", "--other-process", std::to_string(keep).c_str(),
          ordinal.c_str(), nullptr);
    _exit(127);
  }
  close(sockets[1]);
  socket_ = sockets[0];
  timeval limit = {300, 0};
  setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  Reply ready;
  int fd;
  EXPECT_TRUE(ReceiveWithFd(socket_, &ready, sizeof ready, &fd)) << "no other process";
  EXPECT_EQ(ready.result, CUDA_SUCCESS) << "the other process has no context";
}

OtherProcess::~OtherProcess() {
  Kill();
  close(socket_);
}

void OtherProcess::Kill() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

Reply OtherProcess::Ask(const Request& request, int fd) {
  Reply reply;
  int received = -1;
  if (!SendWithFd(socket_, &request, sizeof request, fd) ||
      !ReceiveWithFd(socket_, &reply, sizeof reply, &received)) {
    return Reply{};
  }
  reply.fd = received;
  return reply;
}

#define PRORATA_ASK(name, code, params, ...) \
  Reply OtherProcess::name params { return Ask({.op = Op::code, __VA_ARGS__}); }
PRORATA_ASK(Allocate, kAllocate, (uint64_t bytes), .a = bytes)
PRORATA_ASK(Free, kFree, (CUdeviceptr address), .a = address)
PRORATA_ASK(Read, kRead, (CUdeviceptr address), .a = address)
PRORATA_ASK(Write, kWrite, (CUdeviceptr address, uint64_t word), .a = address, .b = word)
PRORATA_ASK(FreeBytes, kFreeBytes, (), .a = 0)
PRORATA_ASK(Step, kStep, (CUdeviceptr address, uint64_t factor, uint64_t term, uint64_t ns),
            .a = address, .b = factor, .c = term, .d = ns)
PRORATA_ASK(Synchronize, kSynchronize, (), .a = 0)
PRORATA_ASK(Export, kExport, (CUdeviceptr address), .a = address)
PRORATA_ASK(Close, kClose, (CUdeviceptr address), .a = address)
PRORATA_ASK(RangeBytes, kRangeBytes, (CUdeviceptr address), .a = address)
PRORATA_ASK(NewContext, kNewContext, (), .a = 0)
PRORATA_ASK(CreateEvent, kCreateEvent, (unsigned flags), .a = flags)
PRORATA_ASK(ExportEvent, kExportEvent, (uint64_t event), .a = event)
PRORATA_ASK(Record, kRecord, (uint64_t event), .a = event)
PRORATA_ASK(Wait, kWait, (uint64_t event), .a = event)
PRORATA_ASK(Query, kQuery, (uint64_t event), .a = event)
PRORATA_ASK(SynchronizeEvent, kSynchronizeEvent, (uint64_t event), .a = event)
PRORATA_ASK(DestroyEvent, kDestroyEvent, (uint64_t event), .a = event)
PRORATA_ASK(CreatePhysical, kCreatePhysical, (uint64_t bytes), .a = bytes)
PRORATA_ASK(DropImported, kDropImported, (CUdeviceptr address, uint64_t bytes), .a = address,
            .b = bytes)
PRORATA_ASK(FreeAsync, kFreeAsync, (CUdeviceptr address), .a = address)
PRORATA_ASK(AllocateFrom, kAllocateFrom, (uint64_t pool, uint64_t bytes), .a = pool, .b = bytes)
#undef PRORATA_ASK

Reply OtherProcess::Open(const CUipcMemHandle& handle, unsigned flags) {
  Request request = {.op = Op::kOpen, .a = flags};
  std::memcpy(request.handle, handle.reserved, sizeof request.handle);
  return Ask(request);
}

Reply OtherProcess::OpenEvent(const CUipcEventHandle& handle) {
  Request request = {.op = Op::kOpenEvent};
  std::memcpy(request.handle, handle.reserved, sizeof request.handle);
  return Ask(request);
}

Reply OtherProcess::ImportPhysical(int fd, uint64_t bytes) {
  return Ask({.op = Op::kImportPhysical, .a = bytes}, fd);
}

Reply OtherProcess::ImportPool(int fd) { return Ask({.op = Op::kImportPool}, fd); }

Reply OtherProcess::ImportPointer(uint64_t pool, const CUmemPoolPtrExportData& data) {
  Request request = {.op = Op::kImportPointer, .a = pool};
  std::memcpy(request.handle, data.reserved, sizeof request.handle);
  return Ask(request);
}

// --- The other side -----------------------------------------------------------------------------

namespace {

CUmemAllocationProp Shareable(int device) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return prop;
}

}  // namespace

struct OtherProcess::Server {
  int device = 0;
  CUcontext ctx = nullptr;
  CUstream stream = nullptr;
  CUmodule module = nullptr;

  CUresult NewContext();
  CUresult LaunchStep(CUdeviceptr word, uint64_t factor, uint64_t term, uint64_t ns);
  CUresult MapImported(int fd, uint64_t bytes, CUdeviceptr* address);
  // Each does the calls of its kind and leaves the others alone.
  void Plain(const Request& request, Reply* reply);
  void Ipc(const Request& request, Reply* reply);
  void Descriptors(const Request& request, int fd, Reply* reply, int* out_fd);
};

CUresult OtherProcess::Server::LaunchStep(CUdeviceptr word, uint64_t factor, uint64_t term,
                                          uint64_t ns) {
  if (!module) {
    if (CUresult result = CUDA(cuModuleLoad)(&module, KernelImage().c_str())) return result;
  }
  CUfunction step;
  if (CUresult result = CUDA(cuModuleGetFunction)(&step, module, "step")) return result;
  void* params[] = {&word, &factor, &term, &ns};
  return CUDA(cuLaunchKernel)(step, 1, 1, 1, 1, 1, 1, 0, stream, params, nullptr);
}

CUresult OtherProcess::Server::MapImported(int fd, uint64_t bytes, CUdeviceptr* address) {
  CUmemGenericAllocationHandle handle;
  if (CUresult result = CUDA(cuMemImportFromShareableHandle)(
          &handle, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)) {
    return result;
  }
  if (CUresult result = CUDA(cuMemAddressReserve)(address, bytes, 0, 0, 0)) return result;
  if (CUresult result = CUDA(cuMemMap)(*address, bytes, 0, handle, 0)) return result;
  const CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, device},
                                  CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  if (CUresult result = CUDA(cuMemSetAccess)(*address, bytes, &access, 1)) return result;
  return CUDA(cuMemRelease)(handle);
}

CUresult OtherProcess::Server::NewContext() {
  if (CUresult result = CUDA(cuCtxCreate_v2)(&ctx, 0, device)) return result;
  module = nullptr;
  return CUDA(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING);
}

// What each kind of call needs, from the request's bytes.
template <typename Handle>
Handle Take(const char (&bytes)[64]) {
  Handle handle;
  std::memcpy(&handle, bytes, sizeof bytes);
  return handle;
}

void OtherProcess::Server::Plain(const Request& request, Reply* reply) {
  using Op = OtherProcess::Op;
  CUdeviceptr address = 0;
  switch (request.op) {
    case Op::kAllocate:
      reply->result = CUDA(cuMemAlloc_v2)(&address, request.a);
      reply->value = address;
      break;
    case Op::kFree:
      reply->result = CUDA(cuMemFree_v2)(request.a);
      break;
    case Op::kRead:
      reply->result = CUDA(cuMemcpyDtoHAsync_v2)(&reply->value, request.a, 8, stream);
      if (reply->result == CUDA_SUCCESS) reply->result = CUDA(cuStreamSynchronize)(stream);
      break;
    case Op::kWrite:
      reply->result = CUDA(cuMemcpyHtoD_v2)(request.a, &request.b, 8);
      if (reply->result == CUDA_SUCCESS) reply->result = CUDA(cuCtxSynchronize)();
      break;
    case Op::kFreeBytes: {
      size_t free_bytes = 0;
      size_t total = 0;
      reply->result = CUDA(cuMemGetInfo_v2)(&free_bytes, &total);
      reply->value = free_bytes;
      break;
    }
    case Op::kStep:
      reply->result = LaunchStep(request.a, request.b, request.c, request.d);
      break;
    case Op::kSynchronize:
      reply->result = CUDA(cuCtxSynchronize)();
      break;
    default:
      break;
  }
}

void OtherProcess::Server::Ipc(const Request& request, Reply* reply) {
  using Op = OtherProcess::Op;
  CUdeviceptr address = 0;
  const CUevent event = reinterpret_cast<CUevent>(request.a);
  auto memory = Take<CUipcMemHandle>(request.handle);
  auto event_handle = Take<CUipcEventHandle>(request.handle);
  switch (request.op) {
    case Op::kExport:
      reply->result = CUDA(cuIpcGetMemHandle)(&memory, request.a);
      std::memcpy(reply->handle, memory.reserved, sizeof reply->handle);
      break;
    case Op::kOpen:
      reply->result =
          CUDA(cuIpcOpenMemHandle_v2)(&address, memory, static_cast<unsigned>(request.a));
      reply->value = address;
      break;
    case Op::kClose:
      reply->result = CUDA(cuIpcCloseMemHandle)(request.a);
      break;
    case Op::kRangeBytes: {
      size_t bytes = 0;
      reply->result = CUDA(cuMemGetAddressRange_v2)(&address, &bytes, request.a);
      reply->value = bytes;
      break;
    }
    case Op::kNewContext:
      reply->result = NewContext();
      break;
    case Op::kCreateEvent: {
      CUevent made = nullptr;
      reply->result = CUDA(cuEventCreate)(&made, static_cast<unsigned>(request.a));
      reply->value = reinterpret_cast<uint64_t>(made);
      break;
    }
    case Op::kExportEvent:
      reply->result = CUDA(cuIpcGetEventHandle)(&event_handle, event);
      std::memcpy(reply->handle, event_handle.reserved, sizeof reply->handle);
      break;
    case Op::kOpenEvent: {
      CUevent made = nullptr;
      reply->result = CUDA(cuIpcOpenEventHandle)(&made, event_handle);
      reply->value = reinterpret_cast<uint64_t>(made);
      break;
    }
    case Op::kRecord:
      reply->result = CUDA(cuEventRecord)(event, stream);
      break;
    case Op::kWait:
      reply->result = CUDA(cuStreamWaitEvent)(stream, event, 0);
      break;
    case Op::kQuery:
      reply->result = CUDA(cuEventQuery)(event);
      break;
    case Op::kSynchronizeEvent:
      reply->result = CUDA(cuEventSynchronize)(event);
      break;
    case Op::kDestroyEvent:
      reply->result = CUDA(cuEventDestroy_v2)(event);
      break;
    default:
      break;
  }
}

void OtherProcess::Server::Descriptors(const Request& request, int fd, Reply* reply, int* out_fd) {
  using Op = OtherProcess::Op;
  CUdeviceptr address = 0;
  auto pointer = Take<CUmemPoolPtrExportData>(request.handle);
  switch (request.op) {
    case Op::kCreatePhysical: {
      CUmemGenericAllocationHandle handle = 0;
      const CUmemAllocationProp prop = Shareable(device);
      reply->result = CUDA(cuMemCreate)(&handle, request.a, &prop, 0);
      if (reply->result == CUDA_SUCCESS) {
        reply->result = CUDA(cuMemExportToShareableHandle)(
            out_fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
      }
      reply->value = handle;
      break;
    }
    case Op::kImportPhysical:
      reply->result = MapImported(fd, request.a, &address);
      reply->value = address;
      break;
    case Op::kDropImported:
      reply->result = CUDA(cuMemUnmap)(request.a, request.b);
      break;
    case Op::kImportPool: {
      CUmemoryPool pool = nullptr;
      reply->result = CUDA(cuMemPoolImportFromShareableHandle)(
          &pool, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
      reply->value = reinterpret_cast<uint64_t>(pool);
      break;
    }
    case Op::kImportPointer:
      reply->result = CUDA(cuMemPoolImportPointer)(
          &address, reinterpret_cast<CUmemoryPool>(request.a), &pointer);
      reply->value = address;
      break;
    case Op::kFreeAsync:
      reply->result = CUDA(cuMemFreeAsync)(request.a, stream);
      if (reply->result == CUDA_SUCCESS) reply->result = CUDA(cuStreamSynchronize)(stream);
      break;
    case Op::kAllocateFrom:
      reply->result = CUDA(cuMemAllocFromPoolAsync)(
          &address, request.b, reinterpret_cast<CUmemoryPool>(request.a), stream);
      reply->value = address;
      break;
    default:
      break;
  }
}

int ServeOtherProcess(int socket, int device) {
  OtherProcess::Server server;
  server.device = device;
  Reply reply;
  reply.result = CUDA(cuInit)(0);
  if (reply.result == CUDA_SUCCESS) reply.result = server.NewContext();
  if (!SendWithFd(socket, &reply, sizeof reply, -1)) return 1;
  OtherProcess::Request request;
  int fd = -1;
  while (ReceiveWithFd(socket, &request, sizeof request, &fd)) {
    reply = Reply{};
    int out_fd = -1;
    server.Plain(request, &reply);
    server.Ipc(request, &reply);
    server.Descriptors(request, fd, &reply, &out_fd);
    if (fd >= 0) close(fd);
    if (!SendWithFd(socket, &reply, sizeof reply, out_fd)) return 1;
    if (out_fd >= 0) close(out_fd);
  }
  return 0;
}

}  // namespace prorata::conformance
