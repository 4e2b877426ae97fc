#include "io/metrics/cpu_energy.h"

#include <prometheus/metric_family.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>

#include "kernels/base/clock.h"

namespace trainerd::io {
namespace {

std::string word_in(const std::string& path) {
  std::string word;
  std::ifstream(path) >> word;
  return word;
}

std::optional<double> number_in(const std::string& path) {
  double value = 0;
  std::ifstream file(path);
  return file >> value ? std::optional(value) : std::nullopt;
}

/// Returns the label of the zone in the directory `zone` ("intel-rapl:0", "intel-rapl:0:2"; AMD uses these
/// names too); empty if its energy is counted elsewhere.
std::string zone_label(const std::string& zone, const std::string& name) {
  if (!zone.starts_with("intel-rapl:")) return "";
  const auto depth = std::count(zone.begin(), zone.end(), ':');
  if (depth == 1 && name.starts_with("package")) return name;
  const std::size_t first = zone.find(':') + 1;
  if (depth == 2 && name == "dram") return "dram-" + zone.substr(first, zone.find(':', first) - first);
  return "";
}

}  // namespace

CpuEnergy::CpuEnergy(const std::string& powercap) : read_at_(base::monotonic_seconds()) {
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(powercap, none)) {
    const std::string directory = entry.path().string();
    const std::string label = zone_label(entry.path().filename().string(), word_in(directory + "/name"));
    if (label.empty()) continue;
    const std::optional<double> energy = number_in(directory + "/energy_uj");
    if (!energy) continue;
    zones_.push_back({.name = label,
                      .file = directory + "/energy_uj",
                      .range = number_in(directory + "/max_energy_range_uj").value_or(0),
                      .before = *energy});
  }
}

void CpuEnergy::read() const {
  read_at_ = base::monotonic_seconds();
  for (Zone& zone : zones_) {
    const std::optional<double> now = number_in(zone.file);
    if (!now) continue;
    const bool began_anew = *now < zone.before;
    zone.joules += 1e-6 * (began_anew ? *now + std::max(0.0, zone.range - zone.before) : *now - zone.before);
    zone.before = *now;
  }
}

void CpuEnergy::read_within(double seconds) {
  const std::scoped_lock lock(mutex_);
  if (!zones_.empty() && base::monotonic_seconds() - read_at_ >= seconds) read();
}

std::vector<prometheus::MetricFamily> CpuEnergy::Collect() const {
  const std::scoped_lock lock(mutex_);
  if (zones_.empty()) return {};
  read();
  prometheus::MetricFamily family{
      .name = "trainerd_cpu_energy_joules_total",
      .help =
          "Energy taken by this machine's CPUs and their memory, by all its processes, since this one began.",
      .type = prometheus::MetricType::Counter,
      .metric = {}};
  for (const Zone& zone : zones_) {
    prometheus::ClientMetric metric;
    metric.label = {{"zone", zone.name}};
    metric.counter.value = zone.joules;
    family.metric.push_back(std::move(metric));
  }
  return {family};
}

}  // namespace trainerd::io
