#include "core/sweep/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/spec/fields.h"
#include "core/spec/json.h"
#include "io/text/json.h"

namespace trainerd::core::sweep {

std::vector<std::string> keys_of(const Sweep& sweep) {
  std::vector<std::string> keys;
  for (const SweepJob& job : sweep.jobs)
    for (const SetKey& key : job.set)
      if (std::find(keys.begin(), keys.end(), key.path) == keys.end()) keys.push_back(key.path);
  return keys;
}

nlohmann::ordered_json json_of(const SweepJob& job, const std::string& key) {
  for (const SetKey& set : job.set)
    if (set.path == key && set.json != "null") return nlohmann::ordered_json::parse(set.json);
  job::JobSpec spec = job.spec;
  for (const spec::Field& field : spec::fields_of(spec))
    if (field.path == key && field.idle.empty()) return spec::value_json(field);
  return {};
}

std::string value_of(const SweepJob& job, const std::string& key) {
  const nlohmann::ordered_json value = json_of(job, key);
  if (value.is_null()) return "-";
  if (value.is_number_float()) return fmt::format("{:.4g}", value.get<double>());
  return value.is_string() ? value.get<std::string>() : io::to_text(value);
}

std::string set_text(const SweepJob& job) {
  std::string text;
  for (const SetKey& key : job.set)
    text += (text.empty() ? ": " : ", ") + key.path + " " + value_of(job, key.path);
  return text;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

std::string loss_text(const std::optional<double>& loss) { return loss ? fmt::format("{:.4f}", *loss) : "-"; }

std::string text_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()), 0);
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i)
      out += i + 1 == row.size() ? row[i] : fmt::format("{:<{}}", row[i], widths[i] + 2);
    out.erase(out.find_last_not_of(' ') + 1);
    out += '\n';
  }
  return out;
}

}  // namespace trainerd::core::sweep
