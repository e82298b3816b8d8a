#include "client/memory/vmm.h"

namespace prorata::client {
namespace {

// A table has no key 0. A handle may be 0; it is never all ones.
uint64_t KeyOf(uint64_t handle) { return ~handle; }

}  // namespace

uint64_t PhysicalRegistry::Make(uint32_t device, uint64_t bytes, uint64_t number, bool foreign) {
  const uint64_t record = last_record_.fetch_add(1) + 1;
  const bool made = records_.Update(record, [&](Physical& slot, bool) {
    slot = Physical{bytes, 1, number, device, foreign};
    return true;
  });
  return made ? record : 0;
}

Physical PhysicalRegistry::Look(uint64_t record) {
  Physical found;
  records_.Find(record, [&](const Physical& slot) {
    found = slot;
    return true;
  });
  return found;
}

void PhysicalRegistry::SetNumber(uint64_t record, uint64_t number) {
  records_.Find(record, [&](Physical& slot) {
    slot.number = number;
    return true;
  });
}

uint64_t PhysicalRegistry::HoldNumber(uint64_t number) {
  uint64_t record = 0;
  records_.ForEach([&](uint64_t key, Physical& slot) {
    if (record != 0 || slot.number != number) return true;
    record = key;
    ++slot.holds;
    return true;
  });
  return record;
}

bool PhysicalRegistry::PutKept(uint64_t owner, uint64_t record) {
  bool had = false;
  const uint64_t key = (owner * 0x9e3779b97f4a7c15 ^ record) | 1;
  const bool put = keeps_.Update(key, [&](Kept& slot, bool made) {
    had = !made && slot.owner == owner && slot.record == record;
    if (made) slot = Kept{owner, record};
    return true;
  });
  // Kept already, so this hold is not the last. Of two that fall on one key, the second's hold
  // simply stays.
  if (had) {
    Gone gone;
    Drop(record, 1, &gone);
  } else if (put) {
    kept_.fetch_add(1);
  }
  return put;
}

// Under the lock of an entry that owns a hold, so the record is there.
void PhysicalRegistry::HoldRecord(uint64_t record) {
  records_.Find(record, [](Physical& slot) {
    ++slot.holds;
    return true;
  });
}

uint64_t PhysicalRegistry::HoldHandle(uint64_t handle) {
  uint64_t record = 0;
  handles_.Find(KeyOf(handle), [&](const Handle& slot) {
    record = slot.record;
    HoldRecord(record);
    return true;
  });
  return record;
}

uint64_t PhysicalRegistry::HoldMapped(uint64_t address) {
  uint64_t record = 0;
  mappings_.Find(address, [&](const Mapping& slot) {
    record = slot.record;
    HoldRecord(record);
    return true;
  });
  if (record != 0) return record;
  mappings_.ForEach([&](uint64_t key, const Mapping& slot) {
    if (record == 0 && address - key < slot.bytes) {
      record = slot.record;
      HoldRecord(record);
    }
    return true;
  });
  return record;
}

void PhysicalRegistry::Drop(uint64_t record, uint64_t holds, Gone* gone) {
  records_.Find(record, [&](Physical& slot) {
    slot.holds -= holds;
    if (slot.holds > 0) return true;
    *gone = Gone{slot.bytes, slot.device, record, slot.number};
    return false;
  });
}

bool PhysicalRegistry::PutHandle(uint64_t handle, uint64_t record, Gone* gone) {
  const uint64_t stamp = Stamp();
  Handle older;
  const bool put = handles_.Update(KeyOf(handle), [&](Handle& slot, bool made) {
    if (!made && slot.record == record) {
      ++slot.references;
      return true;
    }
    older = slot;  // zeroes when it was made just now
    slot = Handle{record, 1, stamp};
    return true;
  });
  if (older.references > 0) Drop(older.record, older.references, gone);
  return put;
}

bool PhysicalRegistry::PutMapping(uint64_t address, uint64_t bytes, uint64_t record, Gone* gone) {
  const uint64_t stamp = Stamp();
  Mapping older;
  const bool put = mappings_.Update(address, [&](Mapping& slot, bool) {
    older = slot;
    slot = Mapping{record, bytes, stamp};
    return true;
  });
  if (older.record != 0) Drop(older.record, 1, gone);
  return put;
}

void PhysicalRegistry::Released(uint64_t handle, uint64_t stamp, Gone* gone) {
  uint64_t record = 0;
  handles_.Find(KeyOf(handle), [&](Handle& slot) {
    if (slot.stamp > stamp) return true;
    record = slot.record;
    return --slot.references > 0;
  });
  if (record != 0) Drop(record, 1, gone);
}

}  // namespace prorata::client
