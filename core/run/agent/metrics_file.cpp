#include "core/run/agent/metrics_file.h"

#include <unistd.h>

#include <array>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "core/run/log/log.h"
#include "kernels/base/atomic_file.h"
#include "kernels/base/error.h"

namespace trainerd::core {
namespace {

std::string reachable(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  const std::string host = address.substr(0, colon);
  if (host != "0.0.0.0" && host != "[::]") return address;
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return address;
  return name.data() + address.substr(colon);
}

}  // namespace

MetricsFile::MetricsFile(std::string path, const std::string& address, const std::string& run,
                         std::int64_t node)
    : path_(std::move(path)) {
  const nlohmann::ordered_json targets = {
      {{"targets", {reachable(address)}}, {"labels", {{"run", run}, {"node", std::to_string(node)}}}}};
  const std::string text = targets.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  if (const int error = base::write_file_atomically(path_, std::as_bytes(std::span(text))); error != 0)
    log::warn("{} cannot be written: {}", path_, base::errno_text(error));
}

MetricsFile::~MetricsFile() { ::unlink(path_.c_str()); }

}  // namespace trainerd::core
