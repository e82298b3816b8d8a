#include <sys/random.h>
#include <unistd.h>

#include "sim/core/attachment.h"
#include "sim/core/machine.h"
#include "sim/core/machine_operation.h"
#include "sim/core/model/model.h"

// Memory and events that processes share, by names that they tell each other.

namespace prorata::simgpu {

namespace {

using Kind = Model::Kind;

// On a local machine the same seed must give the same history, so there it is no secret.
uint64_t NewCookie(bool shared, Handle handle) {
  uint64_t cookie = 0;
  if (shared && getrandom(&cookie, sizeof cookie, 0) == ssize_t{sizeof cookie} && cookie != 0) {
    return cookie;
  }
  return handle * 0x9e3779b97f4a7c15ULL | 1;
}

// The export of a name; 0 when there is none, or no longer.
Index FindExport(const Model& model, const ShareName& name, ExportKind kind) {
  const Index index = model.Find(Kind::kExport, name.handle);
  if (index == 0) return 0;
  const ExportRecord& found = model.state().exports[index];
  return found.kind == kind && found.cookie == name.cookie ? index : 0;
}

// Shares of memory and of events have one kind of handle; 0 when it is one of the other.
Index FindShare(const Model& model, Handle handle, bool of_event) {
  const Index index = model.Find(Kind::kShare, handle);
  return index != 0 && model.state().shares[index].of_event == of_event ? index : 0;
}

SharedMemory Describe(const Model& model, Index share) {
  const Index block = model.state().shares[share].target;
  SharedMemory memory;
  memory.share = model.HandleOf(Kind::kShare, share);
  memory.block = model.HandleOf(Kind::kBlock, block);
  memory.device = static_cast<int>(model.state().blocks[block].device);
  memory.extents = model.OwnedSlabs(memory.device, kOfBlock | block);
  for (const Extent& extent : memory.extents) memory.length_bytes += extent.length_bytes;
  return memory;
}

}  // namespace

Answer<SharedMemory> Machine::ShareSlabs(Handle handle, std::span<const Extent> extents) {
  Operation op(this);
  const Index context = op.model.Find(Kind::kContext, handle);
  if (context == 0) return std::unexpected(Code::kInvalidHandle);
  const auto share = op.model.AddBlock(context, extents);
  if (!share) {
    op.model.tx().Rollback();
    return std::unexpected(share.error());
  }
  return Describe(op.model, *share);
}

Code Machine::DropShare(Handle handle) {
  const std::shared_lock wiping(wipe_mutex_);
  std::vector<Extent> extents;
  Index process = 0;
  int device = 0;
  {
    Operation op(this);
    const Index share = FindShare(op.model, handle, false);
    if (share == 0) return Code::kInvalidHandle;
    const ShareRecord& record = op.model.state().shares[share];
    process = record.process;
    device = static_cast<int>(op.model.state().blocks[record.target].device);
    extents = op.model.DropShare(share);
  }
  if (!extents.empty()) FinishFree(device, process, extents);
  return Code::kOk;
}

Code Machine::PassShare(Handle share_handle, Handle context_handle) {
  Operation op(this);
  const Index share = FindShare(op.model, share_handle, false);
  const Index context = op.model.Find(Kind::kContext, context_handle);
  if (share == 0 || context == 0) return Code::kInvalidHandle;
  const State& state = op.model.state();
  if (state.shares[share].process != state.contexts[context].process) return Code::kInvalidValue;
  op.model.tx().Mut(state.shares[share].context) = context;
  return Code::kOk;
}

// Of memory. When a context goes and its process does not.
void Machine::DropSharesOf(Index context) {
  for (;;) {
    std::vector<Extent> extents;
    Index process = 0;
    int device = 0;
    {
      Operation op(this);
      const State& state = op.model.state();
      process = state.contexts[context].process;
      Index share = state.processes[process].shares.head;
      while (share != 0 &&
             (state.shares[share].context != context || state.shares[share].of_event)) {
        share = state.shares[share].in_process.next;
      }
      if (share == 0) return;
      device = static_cast<int>(state.blocks[state.shares[share].target].device);
      extents = op.model.DropShare(share);
    }
    if (!extents.empty()) FinishFree(device, process, extents);
  }
}

Answer<ShareName> Machine::ExportAddress(Handle handle, uint64_t offset_bytes,
                                         uint64_t length_bytes, const ShareName& pool) {
  Operation op(this);
  const Index share = FindShare(op.model, handle, false);
  if (share == 0) return std::unexpected(Code::kInvalidHandle);
  // Names go with the maker's share, so a name of another's could outlive the block.
  if (!op.model.state().shares[share].maker) return std::unexpected(Code::kInvalidValue);
  const auto made = op.model.AddExport(ExportKind::kAddress, share, {offset_bytes, length_bytes},
                                       pool.handle, NewCookie(attachment_->shared(), handle));
  if (!made) return std::unexpected(made.error());
  return ShareName{op.model.HandleOf(Kind::kExport, *made), op.model.state().exports[*made].cookie};
}

Code Machine::WithdrawExport(const ShareName& name) {
  Operation op(this);
  Index index = FindExport(op.model, name, ExportKind::kAddress);
  if (index == 0) index = FindExport(op.model, name, ExportKind::kPool);
  if (index == 0) return Code::kInvalidHandle;
  op.model.DropExport(index);
  return Code::kOk;
}

Answer<SharedMemory> Machine::Import(const ShareName& name, Handle process_handle,
                                     Handle context_handle, const ShareName& pool) {
  Operation op(this);
  const Index process = op.model.Find(Kind::kProcess, process_handle);
  const Index context = context_handle == 0 ? 0 : op.model.Find(Kind::kContext, context_handle);
  if (process == 0 || (context_handle != 0 && context == 0)) {
    return std::unexpected(Code::kInvalidHandle);
  }
  const Index index = FindExport(op.model, name, ExportKind::kAddress);
  if (index == 0) return std::unexpected(Code::kInvalidValue);
  const ExportRecord& found = op.model.state().exports[index];
  if (found.pool != pool.handle) return std::unexpected(Code::kInvalidValue);
  if (found.process == process && !config_.Broken(Rule::kIpcNotItsOwn)) {
    return std::unexpected(Code::kOwn);
  }
  const auto share = op.model.AddShare(found.block, process, context);
  if (!share) return std::unexpected(share.error());
  SharedMemory memory = Describe(op.model, *share);
  memory.offset_bytes = found.offset_bytes;
  memory.length_bytes = found.length_bytes;
  return memory;
}

// --- Descriptors --------------------------------------------------------------------------------

Answer<int> Machine::ExportDescriptor(Handle handle) {
  if (!attachment_->shared()) return std::unexpected(Code::kInvalidValue);
  Operation op(this);
  const Index share = FindShare(op.model, handle, false);
  if (share == 0) return std::unexpected(Code::kInvalidHandle);
  const uint64_t cookie = NewCookie(true, handle);
  const auto made = op.model.AddExport(ExportKind::kDescriptor, share, {}, 0, cookie);
  if (!made) return std::unexpected(made.error());
  auto fd =
      attachment_->descriptors().Make(*made, {op.model.HandleOf(Kind::kExport, *made), cookie});
  if (!fd) {
    op.model.tx().Rollback();
    return std::unexpected(Code::kOutOfResources);
  }
  return fd->Release();
}

Answer<SharedMemory> Machine::ImportDescriptor(int fd, Handle process_handle) {
  ShareName name;
  if (!attachment_->shared() || !Descriptors::Read(fd, &name)) {
    return std::unexpected(Code::kInvalidValue);
  }
  Operation op(this);
  const Index process = op.model.Find(Kind::kProcess, process_handle);
  if (process == 0) return std::unexpected(Code::kInvalidHandle);
  const Index index = FindExport(op.model, name, ExportKind::kDescriptor);
  if (index == 0) return std::unexpected(Code::kInvalidValue);
  const auto share = op.model.AddShare(op.model.state().exports[index].block, process, 0);
  if (!share) return std::unexpected(share.error());
  return Describe(op.model, *share);
}

Answer<Machine::PoolExport> Machine::ExportPool(Handle process_handle, int device) {
  if (!attachment_->shared() || device < 0 || device >= device_count()) {
    return std::unexpected(Code::kInvalidValue);
  }
  Operation op(this);
  const Index process = op.model.Find(Kind::kProcess, process_handle);
  if (process == 0) return std::unexpected(Code::kInvalidHandle);
  const uint64_t cookie = NewCookie(true, process_handle);
  const auto made = op.model.AddPoolExport(process, device, cookie);
  if (!made) return std::unexpected(made.error());
  const ShareName name = {op.model.HandleOf(Kind::kExport, *made), cookie};
  auto fd = attachment_->descriptors().Make(*made, name);
  if (!fd) {
    op.model.tx().Rollback();
    return std::unexpected(Code::kOutOfResources);
  }
  return PoolExport{name, fd->Release(), device};
}

Answer<Machine::PoolExport> Machine::ImportPool(int fd, Handle process_handle) {
  PoolExport pool;
  if (!attachment_->shared() || !Descriptors::Read(fd, &pool.name)) {
    return std::unexpected(Code::kInvalidValue);
  }
  Operation op(this);
  const Index process = op.model.Find(Kind::kProcess, process_handle);
  if (process == 0) return std::unexpected(Code::kInvalidHandle);
  const Index index = FindExport(op.model, pool.name, ExportKind::kPool);
  if (index == 0) return std::unexpected(Code::kInvalidValue);
  if (op.model.state().exports[index].process == process) return std::unexpected(Code::kOwn);
  pool.device = static_cast<int>(op.model.state().exports[index].device);
  return pool;
}

// --- Events -------------------------------------------------------------------------------------

Answer<ShareName> Machine::ExportEvent(Handle handle) {
  Operation op(this);
  const Index event = op.model.Find(Kind::kEvent, handle);
  if (event == 0) return std::unexpected(Code::kInvalidHandle);
  const EventRecord& record = op.model.state().events[event];
  if (record.cookie == 0) {
    op.model.tx().Mut(record.cookie) = NewCookie(attachment_->shared(), handle);
  }
  return ShareName{handle, record.cookie};
}

Answer<Handle> Machine::OpenEvent(const ShareName& name, Handle context_handle) {
  Operation op(this);
  const Index context = op.model.Find(Kind::kContext, context_handle);
  if (context == 0) return std::unexpected(Code::kInvalidHandle);
  const Index event = op.model.Find(Kind::kEvent, name.handle);
  const State& state = op.model.state();
  if (event == 0 || state.events[event].cookie == 0 || state.events[event].cookie != name.cookie) {
    return std::unexpected(Code::kInvalidValue);
  }
  const Index owner = state.contexts[state.events[event].context].process;
  if (owner == state.contexts[context].process) return std::unexpected(Code::kOwn);
  const auto share = op.model.AddEventShare(event, context);
  if (!share) return std::unexpected(share.error());
  return op.model.HandleOf(Kind::kShare, *share);
}

Code Machine::CloseEvent(Handle event_handle, Handle share_handle) {
  Operation op(this);
  if (const Index share = FindShare(op.model, share_handle, true)) {
    op.model.DropEventShare(share);
    return Code::kOk;
  }
  // The event has become this process's own meanwhile.
  const Index event = op.model.Find(Kind::kEvent, event_handle);
  if (event == 0) return Code::kInvalidHandle;
  op.model.RemoveEvent(event);
  return Code::kOk;
}

}  // namespace prorata::simgpu
