// Requests of the control socket to and from JSON.

#include "api/control.h"

#include <algorithm>
#include <array>

#include "api/messages.h"

namespace prorata::api {
namespace {

// More than any machine has; how many a share may hold is ValidateShare's to say.
constexpr size_t kMaxGpusNamed = 64;

// Either of the two ways to say how much memory.
template <uint64_t kLeast>
struct AsBytes : Between<kLeast, kMaxWhole> {
  static bool Present(const MemorySize& size) { return size.part == Fraction::Zero(); }
  static json Write(const MemorySize& size) { return size.bytes; }
  static Status Read(const json& value, const Place& place, MemorySize& size) {
    size = {};
    return Between<kLeast, kMaxWhole>::Read(value, place, size.bytes);
  }
};
struct AsPart : Codec<Fraction> {
  static bool Present(const MemorySize& size) { return size.part > Fraction::Zero(); }
  static json Write(const MemorySize& size) { return size.part.value(); }
  static Status Read(const json& value, const Place& place, MemorySize& size) {
    const Status ok = Codec<Fraction>::Read(value, place, size.part);
    if (ok && !Present(size)) return Malformed(place, "is not above 0");
    return ok;
  }
};

// One GPU as a text, several as a list.
struct OneGpuOrSeveral : ListOf<Codec<std::string>, kMaxGpusNamed> {
  static json Write(const std::vector<std::string>& gpus) {
    return gpus.size() == 1 ? json(gpus.front()) : json(gpus);
  }
  static Status Read(const json& value, const Place& place, std::vector<std::string>& gpus) {
    if (!value.is_array()) return Codec<std::string>::Read(value, place, gpus.emplace_back());
    if (value.empty()) return Malformed(place, "is an empty list");
    return ListOf::Read(value, place, gpus);
  }
};

struct LastSeconds : Codec<double> {
  static Status Read(const json& value, const Place& place, double& seconds) {
    const Status ok = Codec<double>::Read(value, place, seconds);
    if (!ok || (seconds > 0 && seconds <= kMaxTraceSeconds)) return ok;
    return Malformed(place, "is not above 0 and at most 3600");
  }
};

constexpr WordsOfFlag kContainers = {"one", "any"};
constexpr WordsOfFlag kMode = {"shared", "exclusive"};
using Priority = Between<kMinPriority, kMaxPriority>;
using YieldWithin = Between<kMinYieldWithinNs, kMaxYieldWithinNs>;
using Sequence = Between<0, kMaxWhole>;
using Milliseconds = Between<0, uint64_t{1} << 53>;
using GpuCount = Between<1, kMaxGpusNamed>;
static_assert(kMaxNameOfGpu == kMaxTextLength);
using ShareNames = ListOf<Codec<std::string>, kMaxSharedWith>;
using Terms = ListOf<Codec<TermsOnGpu>, kMaxGpusNamed>;

using Spec = ShareSpec;
using Change = ShareChange;
using Request = ControlRequest;

constexpr const char* kAllowUsers = "whose programs may join, beside the owner's";
constexpr const char* kOn = "terms on single GPUs of the share, in place of the common ones";
constexpr const char* kOnFull = "what becomes of an allocation that the GPU is too full for";
constexpr const char* kGang = "with several GPUs: whether it runs on all of them at the same time";

// Of a new share it is always said; else only where it is to be another.
template <auto kMember, typename How = CodecOf<kMember>>
constexpr Field Term(std::string_view name, std::string_view what, Unit unit) {
  const Presence presence = kIsOptional<kMember> ? Presence::kOptional : Presence::kDefaulted;
  return FieldOfMember<kMember, How>(presence, name, what, unit);
}

// clang-format off
// The terms of a share on its GPUs, or on one of them, after `more` fields.
template <typename M, typename... More>
constexpr auto TermsAnd(const More&... more) {
  return std::array<Field, 9 + sizeof...(More)>{
    more...,
    Term<&M::memory, AsBytes<1>>("memory_bytes", "memory limit, of each GPU", kBytes),
    Optional<&M::memory, AsPart>("memory_part",
        "the same, as a part of the GPU's memory", kRatio).InsteadOf("memory_bytes"),
    Term<&M::memory_request, AsBytes<0>>("memory_request_bytes",
        "what is guaranteed of each GPU. Absent: all of the limit, or nothing of a GPU that the "
        "agent overcommits", kBytes),
    Optional<&M::memory_request, AsPart>("memory_request_part",
        "the same, as a part of the GPU's memory", kRatio).InsteadOf("memory_request_bytes"),
    Term<&M::compute_request>("compute_request", "GPU time that is guaranteed", kRatio),
    Term<&M::compute_limit>("compute_limit", "the most GPU time that it may use", kRatio),
    Term<&M::weight, Between<1, kMaxWeight>>("weight",
        "free GPU time is divided in proportion to the weights of shares", kParts),
    Term<&M::priority, Priority>("priority",
        "while it wants the GPU, shares of a lower priority launch nothing", kRank),
    Term<&M::yield_within_ns, YieldWithin>("yield_within_ns",
        "the most work of lower priorities that it may wait behind", kNs)};
}

constexpr auto kTermsOnGpu = TermsAnd<TermsOnGpu>(
    Required<&TermsOnGpu::gpu>("gpu", "index or UUID, as the share's `gpu` names it"));

constexpr auto kSpec = TermsAnd<Spec>(
    Optional<&Spec::name>("name", "absent: the agent makes one up"),
    Optional<&Spec::token>("token",
        "with a `name`: the share stays until it is removed, and who asks again with the same token "
        "gets the same share. Absent: it stays while the process that asked lives"),
    Optional<&Spec::any_container, FlagAs<kContainers>>("containers",
        "how many containers may have it at once. Absent: one"),
    Optional<&Spec::exclusive, FlagAs<kMode>>("mode",
        "exclusive: whole GPUs for containers with the plain driver; it has a token, and neither "
        "terms nor users. Absent: shared"),
    Optional<&Spec::gpus, OneGpuOrSeveral>("gpu",
        "indices or UUIDs; a single one without a list, too. Absent: where it fits best"),
    Optional<&Spec::gpu_count, GpuCount>("gpus",
        "how many GPUs. Absent: as many as are named, or one", kCount),
    Optional<&Spec::on, Terms>("on", kOn),
    Defaulted<&Spec::on_full>("on_full", kOnFull),
    Defaulted<&Spec::gang>("gang", kGang),
    Defaulted<&Spec::guaranteed>("guaranteed", "the memory request is all of the limit"),
    Optional<&Spec::allow_users>("allow_users", kAllowUsers),
    Optional<&Spec::share_memory_with, ShareNames>("share_memory_with",
        "names of shares whose programs may open memory that this one's export"));

constexpr auto kChange = TermsAnd<Change>(
    Optional<&Change::on, Terms>("on", kOn),
    Optional<&Change::on_full>("on_full", kOnFull),
    Optional<&Change::gang>("gang", kGang),
    Optional<&Change::allow_users>("allow_users", kAllowUsers));

constexpr Field kStartWait[] = {
    Optional<&StartWait::within_ms, Milliseconds>("within_ms",
        "the longest wait. Absent: as long as it takes", kMs),
    Optional<&StartWait::since_ms, Milliseconds>("since_ms",
        "keeps a place in line over the death of an agent: the `since_ms` that it said "
        "(CLOCK_BOOTTIME)", kMs),
};

constexpr Field kCreate[] = {
    Defaulted<&Request::share>("share", "what is asked for"),
    Optional<&Request::wait>("wait", "waits in line until it fits. Absent: it is refused"),
};
constexpr Field kNamed[] = {
    Required<&Request::name>("name", "the share"),
};
constexpr Field kUpdate[] = {
    Required<&Request::name>("name", "the share"),
    Required<&Request::change>("change", "what is to be different; all else stays"),
};
constexpr Field kEvents[] = {
    Optional<&EventsRequest::since, Sequence>("since",
        "events after this one; 0: all that are kept. Absent: only what happens from now on", kId),
    Optional<&EventsRequest::follow>("follow",
        "sends more replies as events happen, until either side closes; nothing more can be asked "
        "on the connection"),
    Optional<&EventsRequest::share>("share", "of this share only"),
};
constexpr Field kTrace[] = {
    Required<&TraceRequest::gpu>("gpu", "index or UUID"),
    Defaulted<&TraceRequest::seconds, LastSeconds>("seconds", "the last so many", kSeconds),
    Optional<&TraceRequest::after, Sequence>("after", "goes on after a reply: its `next`", kId),
};

constexpr Operation kOperations[] = {
    {ControlOp::kHello, {"hello", "Asks who the agent is.", {}},
     "the fields of [version](#version)"},
    {ControlOp::kCreateShare, {"create_share",
     "Makes a share for the user of the process that asks. A share that is there already, of the "
     "same name and token, is the answer.", kCreate},
     "`share`: the [share](#share). Before it, whenever its place in line changes, a reply with "
     "`waiting`: a [waiting share](#waiting-share)"},
    {ControlOp::kUpdateShare, {"update_share", "Changes a share, whole or not at all.", kUpdate},
     "`share`: the [share](#share) as it is now"},
    {ControlOp::kRemoveShare, {"remove_share",
     "Ends a share: at once, or with its last process.", kNamed},
     "`share`: the [share](#share), while it still has processes"},
    {ControlOp::kInspectShare, {"inspect_share", "Asks about one share.", kNamed},
     "`share`: the [share](#share); `cdi`: the specification by which container engines know it, "
     "if they do"},
    {ControlOp::kListShares, {"list_shares", "Asks about all shares.", {}},
     "`shares`: a list of [shares](#share); `waiting`: a list of [waiting shares](#waiting-share), "
     "in the order of their line"},
    {ControlOp::kListDevices, {"list_devices", "Asks about all GPUs.", {}},
     "`devices`: a list of [devices](#device)"},
    {ControlOp::kEvents, {"events", "Asks for events.", kEvents},
     "the fields of [events](#events)",
     [](ControlRequest& request) -> void* { return &request.events; }},
    {ControlOp::kTrace, {"trace", "Asks what a GPU did: who ran, who waited and why.", kTrace},
     "`trace`: a [trace](#trace)",
     [](ControlRequest& request) -> void* { return &request.trace; }},
    {ControlOp::kShutdown, {"shutdown", "Ends the agent; root and its user may.", {}}, "no fields"},
};
// clang-format on

std::string CheckTermsOnGpu(const void* message) {
  const auto& terms = *static_cast<const TermsOnGpu*>(message);
  const bool empty = WriteMessage(TableOf<TermsOnGpu>::kTable, message).size() == 1;  // the GPU
  return empty ? "'on' says nothing of GPU '" + terms.gpu + "'" : "";
}

std::string CheckSpec(const void* message) {
  const auto& spec = *static_cast<const ShareSpec*>(message);
  const bool right = !spec.token || (!spec.token->empty() && spec.name);
  return right ? "" : "a 'token' is a text, beside a 'name'";
}

std::string CheckChange(const void* message) {
  const bool empty = static_cast<const ShareChange*>(message)->Empty();
  return empty ? "'change' says nothing to change" : "";
}

void* PartOf(const Operation& operation, ControlRequest& request) {
  return operation.part == nullptr ? &request : operation.part(request);
}

// Whether a text from outside nests so deep that a recursive parser would end badly. (nlohmann's
// parser is iterative; what it builds is destroyed by recursion.)
bool NestsTooDeep(std::string_view text) {
  int depth = 0;
  for (const char c : text) {
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') --depth;
    if (depth > 32) return true;
  }
  return false;
}

Result<ControlRequest> ReadRequest(json object) {
  if (!object.is_object()) return Fail("malformed", "it is not a JSON object");
  const auto op = object.find("op");
  if (op == object.end()) return Fail("malformed", "it has no 'op'");
  std::string name;
  if (auto ok = ReadText(*op, {Source::kRequest, "op"}, kMaxTextLength, name); !ok) {
    return std::unexpected(ok.error());
  }
  const auto* known = std::ranges::find(
      kOperations, name, [](const Operation& operation) { return operation.table.name; });
  if (known == std::end(kOperations)) {
    return Fail("malformed", "the op '" + name + "' is not known to this agent");
  }
  object.erase(op);
  ControlRequest request;
  request.op = known->op;
  const auto ok = ReadMessage(known->table, object, {Source::kRequest}, PartOf(*known, request));
  if (!ok) return std::unexpected(ok.error());
  return request;
}

}  // namespace

// clang-format off
template <> constinit const Table TableOf<TermsOnGpu>::kTable = {
    "terms on a GPU", "What is different on one GPU of a share; at least one term.", kTermsOnGpu,
    CheckTermsOnGpu};
template <> constinit const Table TableOf<ShareSpec>::kTable = {
    "new share", "What a person asks for.", kSpec, CheckSpec};
template <> constinit const Table TableOf<ShareChange>::kTable = {
    "change", "What is to be different about a share; at least one field.", kChange, CheckChange};
template <> constinit const Table TableOf<StartWait>::kTable = {
    "wait", "For how long a share that does not fit waits in line.", kStartWait};
// clang-format on

bool ShareChange::Empty() const { return WriteMessage(TableOf<ShareChange>::kTable, this).empty(); }

std::span<const Operation> Operations() { return kOperations; }

Result<ControlRequest> DecodeRequest(std::string_view text) {
  if (NestsTooDeep(text)) return Fail("malformed", "malformed request: it nests too deep");
  auto request = ReadRequest(json::parse(text.begin(), text.end(), nullptr, false));
  if (!request && request.error().code == "malformed") {
    return Fail("malformed", "malformed request: " + request.error().message);
  }
  return request;
}

std::string EncodeRequest(const ControlRequest& request) {
  ControlRequest copy = request;
  const auto* operation = std::ranges::find(kOperations, request.op, &Operation::op);
  json object = WriteMessage(operation->table, PartOf(*operation, copy));
  object["op"] = operation->table.name;
  return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace prorata::api
