#include "core/run/agent/metrics_file.h"

#include <unistd.h>

#include <array>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "core/run/log/log.h"
#include "io/text/json.h"
#include "kernels/base/atomic_file.h"
#include "kernels/base/error.h"

namespace trainerd::core::run {
namespace {

std::string reachable(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  const std::string host = address.substr(0, colon);
  if (host != "0.0.0.0" && host != "[::]") return address;
  const std::string name = host_name();
  return name.empty() ? address : name + address.substr(colon);
}

}  // namespace

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "";
  return name.data();
}

std::string target_text(const MetricsTarget& target, const std::map<std::string, std::string>& more) {
  nlohmann::ordered_json labels = {{"run", target.run}, {"node", std::to_string(target.node)}};
  for (const auto& [label, value] : more) labels[label] = value;
  nlohmann::ordered_json group;
  group["targets"] = nlohmann::ordered_json::array({reachable(target.address)});
  group["labels"] = std::move(labels);
  const auto groups = nlohmann::ordered_json::array({std::move(group)});
  return io::to_text(groups) + "\n";
}

MetricsFile::MetricsFile(std::string path, const MetricsTarget& target) : path_(std::move(path)) {
  const std::string text = target_text(target);
  if (const int error = base::write_file_atomically(path_, std::as_bytes(std::span(text))); error != 0)
    log::warn("{} cannot be written: {}", path_, base::errno_text(error));
}

MetricsFile::~MetricsFile() {
  if (!path_.empty()) ::unlink(path_.c_str());
}

}  // namespace trainerd::core::run
