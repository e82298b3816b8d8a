#include "client/memory/sharing.h"

#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "client/memory/charge.h"
#include "client/platform/table.h"
#include "client/session/connection.h"
#include "client/session/heartbeat_watch.h"
#include "client/session/requests.h"
#include "client/session/share.h"

namespace prorata::client {
namespace {

using wire::MemoryName;
using wire::MessageType;

struct Held {
  uint64_t bytes = 0;
  uint64_t owed = 0;  // uncharged when it is settled
  uint64_t holds = 0;
  uint32_t device = 0;
  bool pays = false;
  bool taken = false;     // `bytes` were charged when the agent said so
  bool settling = false;  // a thread is at it
};
// A name that was made here.
struct Named {
  uint64_t second = 0;
  uint64_t number = 0;
};

constinit Table<Held> g_references;  // by number
constinit Table<Named> g_names;      // by the name's first word
std::atomic<uint32_t> g_ended;       // holdings without holds that are not settled yet

uint64_t Mix(uint64_t value, uint64_t word) {
  value = (value ^ word) * 0x9e3779b97f4a7c15;
  return value ^ (value >> 29);
}

MemoryName Digest(HandleKind kind, const uint64_t* words, size_t count) {
  MemoryName name = {{static_cast<uint64_t>(kind), ~static_cast<uint64_t>(kind)}};
  for (size_t i = 0; i < count; ++i) {
    name.word[0] = Mix(name.word[0], words[i]);
    name.word[1] = Mix(name.word[1] + name.word[0], words[i] >> 32 | words[i] << 32);
  }
  name.word[0] |= 1;  // a table has no key 0, and no name is all zero
  return name;
}

uint64_t OwnNumber(const MemoryName& name) {
  uint64_t number = 0;
  g_names.Find(name.word[0], [&](const Named& named) {
    if (named.second == name.word[1]) number = named.number;
    return true;
  });
  return number;
}

void ForgetNames(uint64_t number) {
  g_names.ForEach([&](uint64_t, const Named& named) { return named.number != number; });
}

uint64_t NewNumber() {
  uint64_t number = 0;
  while (number == 0) {
    if (getrandom(&number, sizeof number, 0) != ssize_t{sizeof number}) return 0;
  }
  return number;
}

void SendLetGo(uint64_t number) { Send(MessageType::kMemoryLetGo, wire::MemoryLetGo{0, number}); }

// Takes a settled holding out. False: it was opened anew meanwhile; then it stays, and pays.
bool Forget(uint64_t number, Held* ended) {
  bool gone = true;
  g_references.Find(number, [&](Held& held) {
    gone = held.holds == 0;
    held.settling = false;
    *ended = held;
    return !gone;
  });
  if (gone) return true;
  g_ended.fetch_sub(1);
  Send(MessageType::kMemoryShared,
       wire::MemoryShared{0, number, ended->bytes, {}, ended->device, 1});
  return false;
}

// For how long a thread waits for the agent where it can go on without: not at all when there has
// been none for long.
int64_t PatienceNs() { return HeartbeatLostNs() > 10'000'000'000 ? 0 : 3'000'000'000; }

}  // namespace

MemoryName NameOfHandle(HandleKind kind, const void* handle, size_t bytes) {
  uint64_t words[8] = {};
  std::memcpy(words, handle, Min(bytes, sizeof words));
  return Digest(kind, words, 8);
}

bool NameOfDescriptor(int fd, MemoryName* name) {
  struct stat file;
  // By its number: as a function of its own it is newer than the glibc that this must run on.
  if (syscall(SYS_fstat, fd, &file) != 0 || !S_ISREG(file.st_mode)) return false;
  const uint64_t words[2] = {file.st_dev, file.st_ino};
  *name = Digest(HandleKind::kDescriptor, words, 2);
  return true;
}

void NoteShared(const MemoryName& name, uint32_t device, uint64_t bytes, uint64_t* number) {
  if (OwnNumber(name) != 0) return;  // a driver gives the same handle each time
  const bool known = *number != 0;
  const uint64_t block = known ? *number : NewNumber();
  if (block == 0) return;
  const auto add = [&](Held& held, bool made) {
    if (made) held = Held{bytes, 0, 0, device, true, false, false};
    if (!known) ++held.holds;
    return true;
  };
  if (!g_references.Update(block, add)) return;
  g_names.Update(name.word[0], [&](Named& named, bool) {
    named = Named{name.word[1], block};
    return true;
  });
  wire::MemoryAnswer answer = {};
  const bool reported =
      AskMemory(wire::MemoryShared{0, block, bytes, name, device, 1}, PatienceNs(), &answer);
  if (reported && answer.result != wire::MemoryResult::kNoted) {
    g_names.Find(name.word[0], [&](const Named& named) { return named.number != block; });
    if (!known) ReferenceGone(block, device, 0);
    return SettleReferences();
  }
  *number = block;  // an agent that did not answer is notified when it is there again
}

Opening BeginOpening(const MemoryName& name, uint64_t* number) {
  *number = OwnNumber(name);
  if (*number != 0) return Opening::kOwn;
  wire::MemoryAnswer answer = {};
  const bool answered = AskMemory(wire::MemoryOpening{0, name}, PatienceNs(), &answer);
  if (!answered) return Opening::kUnknown;
  *number = answer.number;
  if (answer.result == wire::MemoryResult::kForeign) return Opening::kRefused;
  return answer.held != 0 ? Opening::kHeld : Opening::kUnknown;
}

void ReferenceGone(uint64_t number, uint32_t device, uint64_t owed_bytes) {
  const bool known = g_references.Find(number, [&](Held& held) {
    if (held.holds > 0) --held.holds;
    held.owed += owed_bytes;
    if (held.holds == 0) g_ended.fetch_add(1);
    return true;
  });
  if (!known) Uncharge(device, owed_bytes);
}

void SettleReferences() {
  while (g_ended.load() != 0) {
    uint64_t number = 0;
    Held ended;
    g_references.ForEach([&](uint64_t key, Held& held) {
      if (number != 0 || held.holds != 0 || held.settling) return true;
      number = key;
      held.settling = true;
      ended = held;
      return ended.pays;  // one that does not pay is gone: a Take finds nothing from here on
    });
    if (number == 0) return;  // another thread is at it
    ForgetNames(number);
    if (ended.pays) {
      wire::MemoryAnswer answer;
      AskMemory(wire::MemoryLetGo{0, number}, PatienceNs(), &answer);
      if (!Forget(number, &ended)) continue;
    } else {
      SendLetGo(number);
    }
    Uncharge(ended.device, ended.owed + (ended.taken ? ended.bytes : 0));
    g_ended.fetch_sub(1);
  }
}

void OpeningAnswered(const wire::MemoryAnswer& answer) {
  if (answer.device >= g_share.device_count) return;
  const bool entered = g_references.Update(answer.number, [&](Held& held, bool made) {
    if (made) held = Held{answer.bytes, 0, 0, answer.device, false, false, false};
    ++held.holds;
    return true;
  });
  if (!entered) SendLetGo(answer.number);
}

void OpeningUnwanted(const wire::MemoryAnswer& answer) {
  ReferenceGone(answer.number, answer.device, 0);
  // One that does not pay can be let go of without waiting, as the helper must; another waits for
  // the next thread that settles.
  bool forgotten = false;
  g_references.Find(answer.number, [&](const Held& held) {
    forgotten = held.holds == 0 && !held.pays && !held.settling;
    return !forgotten;
  });
  if (!forgotten) return;
  g_ended.fetch_sub(1);
  SendLetGo(answer.number);
}

void TakeMemory(uint64_t number) {
  bool taken = false;
  g_references.Find(number, [&](Held& held) {
    if (!held.pays && held.holds == 0) return true;
    taken = true;
    if (held.pays) return true;  // asked again: the first answer was lost
    held.pays = held.taken = true;
    ChargeTaken(held.device, held.bytes);
    return true;
  });
  Send(MessageType::kMemoryTaken, wire::MemoryTaken{number, taken ? 1u : 0u, 0});
}

void ReportReferences() {
  // Sent from under a shard's lock: the socket of a new connection has room, and the helper, which
  // alone would empty ours, is here.
  g_names.ForEach([](uint64_t first, const Named& named) {
    Held held;
    bool known = false;
    g_references.Find(named.number, [&](const Held& found) {
      held = found;
      known = true;
      return true;
    });
    if (!known) return true;
    Send(MessageType::kMemoryShared, wire::MemoryShared{0,
                                                        named.number,
                                                        held.bytes,
                                                        {{first, named.second}},
                                                        held.device,
                                                        held.pays ? 1u : 0u});
    return true;
  });
  g_references.ForEach([](uint64_t number, const Held& held) {
    if (held.holds == 0 && !held.pays) return true;
    Send(MessageType::kMemoryShared,
         wire::MemoryShared{0, number, held.bytes, {}, held.device, held.pays ? 1u : 0u});
    return true;
  });
  SendLetGo(0);  // that was all
}

}  // namespace prorata::client
