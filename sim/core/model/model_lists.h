#pragma once

#include "sim/core/model/model.h"

namespace prorata::simgpu {

// Doubly linked lists through the tables: Table is the array in State, kLink the member that links
// its records. Every change goes through the transaction.
template <auto kTable, auto kLink>
struct ListIn {
  static const auto& At(const State& state, Index index) { return (state.*kTable)[index]; }

  static void InsertBefore(Transaction& tx, const List& list, Index next, Index index) {
    const State& state = tx.state();
    const Index prev = next != 0 ? (At(state, next).*kLink).prev : list.tail;
    tx.Mut(At(state, index).*kLink) = {prev, next};
    if (prev != 0) {
      tx.Mut(At(state, prev).*kLink).next = index;
    } else {
      tx.Mut(list).head = index;
    }
    if (next != 0) {
      tx.Mut(At(state, next).*kLink).prev = index;
    } else {
      tx.Mut(list).tail = index;
    }
  }
  static void Append(Transaction& tx, const List& list, Index index) {
    InsertBefore(tx, list, 0, index);
  }
  static void Remove(Transaction& tx, const List& list, Index index) {
    const State& state = tx.state();
    const Link link = At(state, index).*kLink;
    if (link.prev != 0) {
      tx.Mut(At(state, link.prev).*kLink).next = link.next;
    } else {
      tx.Mut(list).head = link.next;
    }
    if (link.next != 0) {
      tx.Mut(At(state, link.next).*kLink).prev = link.prev;
    } else {
      tx.Mut(list).tail = link.prev;
    }
    tx.Mut(At(state, index).*kLink) = {};
  }
  static Index Next(const State& state, Index index) { return (At(state, index).*kLink).next; }
  static Index Prev(const State& state, Index index) { return (At(state, index).*kLink).prev; }
};

using PlaceList = ListIn<&State::streams, &StreamRecord::at_place>;
using WaiterList = ListIn<&State::streams, &StreamRecord::as_waiter>;
using DirtyList = ListIn<&State::streams, &StreamRecord::in_dirty>;
using ContextStreams = ListIn<&State::streams, &StreamRecord::in_context>;
using ContextEvents = ListIn<&State::events, &EventRecord::in_context>;
using ProcessContexts = ListIn<&State::contexts, &ContextRecord::in_process>;
using ActionList = ListIn<&State::items, &ItemRecord::in_actions>;
using TicketWaiters = WaiterList;  // through the same link: a stream waits for one thing
using BlockShares = ListIn<&State::shares, &ShareRecord::in_target>;
using EventShares = BlockShares;
using ProcessShares = ListIn<&State::shares, &ShareRecord::in_process>;
using ExportList = ListIn<&State::exports, &ExportRecord::in_list>;
using DescriptorList = ListIn<&State::exports, &ExportRecord::in_descriptors>;
using Ring = ListIn<&State::contexts, &ContextRecord::in_ring>;

}  // namespace prorata::simgpu
