#include "core/spec/changes.h"

#include <algorithm>
#include <set>
#include <utility>

#include "core/spec/document.h"
#include "core/spec/spec.h"

namespace trainerd::core::spec {
namespace {

using Values = std::vector<std::pair<std::string, std::string>>;  // by key, in the order of the document

std::string value_text(const Node& node) {
  if (node.kind == Node::Kind::map) {  // an item of a list
    std::string text = "{";
    for (const Entry& entry : node.entries)
      text += (text.size() > 1 ? ", " : "") + entry.key + ": " + value_text(entry.value);
    return text + "}";
  }
  if (node.kind != Node::Kind::list) return node.text;
  std::string text = "[";
  for (const Node& item : node.items) text += (text.size() > 1 ? ", " : "") + value_text(item);
  return text + "]";
}

void collect(const Node& node, const std::string& path, Values& values) {
  if (node.kind != Node::Kind::map) return values.emplace_back(path, value_text(node)), void();
  for (const Entry& entry : node.entries)
    collect(entry.value, path.empty() ? entry.key : path + "." + entry.key, values);
}

std::optional<Values> values_of(const std::string& yaml) {
  Problems problems;
  try {
    const Node root =
        parse_document(yaml, problems.add_source("job.yaml", Problems::SourceKind::file), "", problems);
    if (root.kind != Node::Kind::map) return std::nullopt;
    Values values;
    collect(root, "", values);
    return values;
  } catch (const Stop&) {
    return std::nullopt;
  }
}

std::optional<std::string> find(const Values& values, const std::string& key) {
  const auto it =
      std::find_if(values.begin(), values.end(), [&](const auto& value) { return value.first == key; });
  return it == values.end() ? std::nullopt : std::optional(it->second);
}

}  // namespace

std::vector<std::pair<std::string, std::string>> key_values(const job::JobSpec& job) {
  return values_of(to_yaml(job)).value_or(Values{});
}

std::optional<std::vector<KeyChange>> changed_keys(const std::string& was, const job::JobSpec& now) {
  const auto before = values_of(was), after = values_of(to_yaml(now)),
             defaults = values_of(to_yaml(job::JobSpec{}));
  if (!before || !after || !defaults) return std::nullopt;
  std::vector<KeyChange> changes;
  for (const auto& [key, value] : *after) {
    const auto old = find(*before, key);
    if (old ? *old != value : find(*defaults, key) != value)
      changes.push_back({key, old.value_or(""), value});
  }
  for (const auto& [key, value] : *before)
    if (!find(*after, key) && find(*defaults, key) != value) changes.push_back({key, value, ""});
  return changes;
}

std::vector<KeyValues> differing_keys(const std::vector<std::string>& jobs) {
  const Values defaults = values_of(to_yaml(job::JobSpec{})).value_or(Values{});
  std::vector<Values> all;
  std::vector<KeyValues> differing;
  std::set<std::string> seen{"name", "output"};
  for (const std::string& job : jobs) all.push_back(values_of(job).value_or(Values{}));
  for (const Values& own : all)
    for (const auto& [key, value] : own) {
      if (!seen.insert(key).second) continue;
      KeyValues row{key, {}};
      bool differs = false;
      for (const Values& values : all) {
        row.values.push_back(values.empty() ? ""
                                            : find(values, key).value_or(find(defaults, key).value_or("")));
        differs |= !values.empty() && row.values.back() != find(own, key);
      }
      if (differs) differing.push_back(std::move(row));
    }
  return differing;
}

std::string to_text(const KeyChange& change) {
  const auto shown = [](const std::string& value) { return value.empty() ? "none" : value; };
  return change.key + ": " + shown(change.was) + " -> " + shown(change.is);
}

}  // namespace trainerd::core::spec
