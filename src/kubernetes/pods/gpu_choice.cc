#include "kubernetes/pods/gpu_choice.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kubernetes/pods/annotations.h"

namespace prorata::kubernetes {
namespace {

using nlohmann::json;
using Names = GpuChoice::Names;

constexpr char kNot = '!';

std::string_view Trim(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

Result<Names> NamesOf(const json& pod, const char* annotation) {
  Names names;
  const auto text = AnnotationOf(pod, annotation);
  if (!text) return names;
  std::string_view rest = *text;
  for (bool more = true; more;) {
    const size_t comma = rest.find(',');
    std::string_view one = Trim(rest.substr(0, comma));
    const bool never = one.starts_with(kNot);
    if (never) one = Trim(one.substr(1));
    if (one.empty()) {
      return Fail("bad_annotation", std::string("annotation ") + annotation + " is '" + *text +
                                        "', and must be names with commas between them, such as "
                                        "A100,H100 or !V100");
    }
    (never ? names.not_of : names.any).emplace_back(one);
    more = comma != std::string_view::npos;
    if (more) rest.remove_prefix(comma + 1);
  }
  return names;
}

template <typename Matches>
bool AllowedBy(const Names& names, Matches matches) {
  return (names.any.empty() || std::ranges::any_of(names.any, matches)) &&
         std::ranges::none_of(names.not_of, matches);
}

void Write(const Names& names, const char* annotation, json* pod) {
  std::string text;
  for (const std::string& one : names.any) text += (text.empty() ? "" : ",") + one;
  for (const std::string& one : names.not_of) text += (text.empty() ? "!" : ",!") + one;
  if (!text.empty()) (*pod)["metadata"]["annotations"][annotation] = text;
}

void Describe(const Names& names, const std::string& what, std::string* text) {
  const auto add = [&](const std::vector<std::string>& list, const std::string& before) {
    for (size_t i = 0; i < list.size(); ++i) {
      if (i > 0) {
        *text += " or ";
      } else {
        *text += (text->empty() ? "" : ", ") + before + what + " ";
      }
      *text += list[i];
    }
  };
  add(names.any, "of ");
  add(names.not_of, "not of ");
}

}  // namespace

std::string ComparableModel(std::string_view name) {
  std::string comparable(name);
  for (char& c : comparable) {
    if (c == '-') c = ' ';
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return comparable;
}

bool GpuChoice::AllowsModel(std::string_view model) const {
  const std::string comparable = ComparableModel(model);
  return AllowedBy(models, [&](const std::string& part) {
    return comparable.find(ComparableModel(part)) != std::string::npos;
  });
}

bool GpuChoice::AllowsUuid(std::string_view uuid) const {
  return AllowedBy(uuids, [&](const std::string& one) { return one == uuid; });
}

Result<GpuChoice> GpuChoiceOf(const json& pod) {
  auto models = NamesOf(pod, kGpuModelAnnotation);
  if (!models) return std::unexpected(models.error());
  auto uuids = NamesOf(pod, kGpuUuidAnnotation);
  if (!uuids) return std::unexpected(uuids.error());
  return GpuChoice{std::move(*models), std::move(*uuids)};
}

void WriteGpuChoice(const GpuChoice& choice, json* pod) {
  Write(choice.models, kGpuModelAnnotation, pod);
  Write(choice.uuids, kGpuUuidAnnotation, pod);
}

std::string DescribeGpuChoice(const GpuChoice& choice) {
  std::string text;
  Describe(choice.models, "model", &text);
  Describe(choice.uuids, "UUID", &text);
  return text;
}

}  // namespace prorata::kubernetes
