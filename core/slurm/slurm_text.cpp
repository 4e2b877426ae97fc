#include "core/slurm/slurm_text.h"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <sstream>
#include <vector>

namespace trainerd::core::slurm {
namespace {

/// The number at the start of a text; 0: none.
std::int64_t leading_number(std::string_view text) {
  std::int64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

/// Number of GPUs in "gpu:h100:8(S:0-1),gpu:2,nvme:1".
std::int64_t count_gpus(const std::string& gres) {
  std::int64_t gpus = 0;
  std::string item;
  int depth = 0;  // depth of parentheses, which contain commas too
  for (const char c : gres + ",") {
    if (c == '(') ++depth;
    else if (c == ')') --depth;
    else if (depth == 0 && c != ',') item += c;
    if (c != ',' || depth != 0) continue;
    const std::size_t colon = item.rfind(':');
    if (item.starts_with("gpu") && (item.size() == 3 || item[3] == ':'))
      gpus += colon == std::string::npos ? 1 : leading_number(std::string_view(item).substr(colon + 1));
    item.clear();
  }
  return gpus;
}

}  // namespace

std::string job_number(const std::string& text) {
  const std::size_t end = text.find_first_not_of("0123456789");
  const bool ends = end == std::string::npos || text[end] == ';' || text[end] == '\n';
  return ends ? text.substr(0, end) : "";
}

std::map<std::string, std::string> read_job_states(const std::string& text) {
  std::map<std::string, std::string> states;
  std::istringstream lines(text);
  for (std::string job, state; lines >> job >> state;) states[job] = state;
  return states;
}

SlurmNodes read_nodes(const std::string& text) {
  SlurmNodes least;
  std::istringstream lines(text);
  for (std::string cpus, gres; lines >> cpus >> gres;) {
    const SlurmNodes node{leading_number(cpus), count_gpus(gres)};
    const bool first = least.cpus == 0;
    least.cpus = first ? node.cpus : std::min(least.cpus, node.cpus);
    least.gpus = first ? node.gpus : std::min(least.gpus, node.gpus);
  }
  return least;
}

std::optional<double> read_time_limit(const std::string& text) {
  const std::size_t dash = text.find('-');
  const bool has_days = dash != std::string::npos;
  std::vector<double> numbers;  // days, or what comes first; then those after each ':'
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end =
        std::min(text.find_first_of(numbers.empty() && has_days ? "-" : ":", begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    if (word.empty() || word.size() > 9 || word.find_first_not_of("0123456789") != std::string::npos)
      return std::nullopt;
    numbers.push_back(std::stod(word));
    begin = end + 1;
  }
  std::vector<double> units{86400, 3600, 60, 1};
  if (!has_days) units = numbers.size() == 3 ? std::vector<double>{3600, 60, 1} : std::vector<double>{60, 1};
  if (numbers.size() > units.size() || (has_days && numbers.size() < 2)) return std::nullopt;
  const double seconds = std::inner_product(numbers.begin(), numbers.end(), units.begin(), 0.0);
  return seconds > 0 ? std::optional(seconds) : std::nullopt;
}

std::optional<std::string> read_node_address(const std::string& text) {
  const std::string key = "NodeAddr=";
  std::istringstream words(text);
  for (std::string word; words >> word;)
    if (word.starts_with(key) && word.size() > key.size()) return word.substr(key.size());
  return std::nullopt;
}

}  // namespace trainerd::core::slurm
