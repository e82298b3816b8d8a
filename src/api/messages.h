#pragma once

// The tables of the messages of control.h, and how they make up the control API.

#include <span>
#include <string_view>

#include "api/control.h"
#include "api/fields.h"

namespace prorata::api {

// A request: "op", which is the table's name, and the table's fields.
struct Operation {
  ControlOp op;
  Table table;
  std::string_view answer;                   // the fields of the reply
  void* (*part)(ControlRequest&) = nullptr;  // what the table is of; null: the request
};
std::span<const Operation> Operations();
// What replies have in their fields. The table of a message within another is found by that one's.
std::span<const Table* const> Replies();

template <>
struct Names<EventKind> {
  static const std::span<const std::pair<EventKind, std::string_view>> kAll;
};

// clang-format off
template <> const Table TableOf<TermsOnGpu>::kTable;
template <> const Table TableOf<ShareSpec>::kTable;
template <> const Table TableOf<ShareChange>::kTable;
template <> const Table TableOf<StartWait>::kTable;
template <> const Table TableOf<HelloReply>::kTable;
template <> const Table TableOf<ShareStatus>::kTable;
template <> const Table TableOf<KeptBy>::kTable;
template <> const Table TableOf<ContainerStatus>::kTable;
template <> const Table TableOf<ShareDevice>::kTable;
template <> const Table TableOf<MemberStatus>::kTable;
template <> const Table TableOf<OutsideStatus>::kTable;
template <> const Table TableOf<WaitingShare>::kTable;
template <> const Table TableOf<DeviceStatus>::kTable;
template <> const Table TableOf<DeviceLink>::kTable;
template <> const Table TableOf<Event>::kTable;
template <> const Table TableOf<EventsReply>::kTable;
template <> const Table TableOf<TraceShare>::kTable;
template <> const Table TableOf<TraceEntry>::kTable;
template <> const Table TableOf<TraceReply>::kTable;
template <> const Table TableOf<Error>::kTable;
// clang-format on

}  // namespace prorata::api
