#include "core/slurm/slurm_text.h"

#include <algorithm>
#include <charconv>
#include <sstream>

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

std::optional<std::string> read_node_address(const std::string& text) {
  const std::string key = "NodeAddr=";
  std::istringstream words(text);
  for (std::string word; words >> word;)
    if (word.starts_with(key) && word.size() > key.size()) return word.substr(key.size());
  return std::nullopt;
}

}  // namespace trainerd::core::slurm
