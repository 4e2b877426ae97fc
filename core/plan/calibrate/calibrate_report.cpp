#include <fmt/format.h>

#include <map>

#include "core/plan/calibrate/calibrate.h"

namespace trainerd::core::plan {
namespace {

using Operators = parallel::MeasuredRates::Operators;

std::string list_of(const std::vector<double>& numbers) {
  std::string text;
  for (const double x : numbers) text += fmt::format("{}{:.4g}", text.empty() ? "" : ", ", x);
  return "[" + text + "]";
}

/// "linear_fprop.fp32" and "linear_fprop.bf16" share one line.
std::string curves_text(const char* name, const Operators& curves) {
  std::map<std::string, std::string> lines;
  for (const auto& [key, numbers] : curves) {
    const std::size_t dot = key.find('.');
    std::string& line = lines[key.substr(0, dot)];
    line += (line.empty() ? "" : ", ") + key.substr(dot + 1) + ": " + list_of(numbers);
  }
  std::string text = fmt::format("  {}:\n", name);
  for (const auto& [op, line] : lines) text += fmt::format("    {}: {{{}}}\n", op, line);
  return text;
}

std::string quoted(const std::string& name) {
  std::string text;
  for (const char c : name)
    if (c != '"' && c != '\\' && static_cast<unsigned char>(c) >= 0x20) text += c;
  return "\"" + text + "\"";
}

}  // namespace

std::string cluster_yaml(const Calibration& made, const std::string& source) {
  const parallel::Topology& t = made.topology;
  const parallel::MeasuredRates& rates = t.measured;
  const bool processor = t.device.kind == kernels::DeviceKind::cpu;
  constexpr double kTera = 1e12;
  std::string text = fmt::format(
      "# Every number under `peak_tflops` and `measured`: {}, {} {} of {} {}, medians of {} {} of {} "
      "models.\n"
      "# The curves are {:.1f}% of the operators' time away from what they were made from; {:.1f}% of a step "
      "was outside operators.\n",
      source, rates.devices, rates.devices == 1 ? "rank" : "ranks", t.device.threads,
      t.device.threads == 1 ? "thread" : "threads", made.rounds, made.rounds == 1 ? "round" : "rounds",
      made.models, 100 * made.fit_error, 100 * made.host_share);
  text += fmt::format("kind: {}\ndevice: {}\n", to_string(t.device.kind), quoted(t.device.name));
  if (processor)
    text += fmt::format(
        "threads: {}                            # of a device\nisa: {}\nbf16_gemm: {}\namx: "
        "{}\ngemm_library: {}\n",
        t.device.threads, to_string(t.device.isa), t.device.bf16_gemm, t.device.amx,
        quoted(t.device.gemm_library));
  else
    text += fmt::format("sm_version: {}\nsm_count: {}\nnvlink_domain: 0\nrails: 0\ndevice_memory_mib: {}\n",
                        t.device.sm_version, t.device.sm_count, t.device_memory_bytes >> 20);
  text += fmt::format("devices_per_node: {}\nnode_memory_gib: {}\n", t.devices_per_node,
                      t.node_memory_bytes >> 30);
  text += fmt::format(
      "peak_tflops: {{fp32: {:.4g}, bf16: {:.4g}}}  # the best of a product of 1024 x 1024 x 1024 by this "
      "library\n",
      t.peak.fp32 / kTera, t.peak.bf16 / kTera);
  text +=
      "measured:                               # seconds\n"
      "  # Products and attention: what 1, a FLOP, a byte, and an element of either operand (of attention: a "
      "score, and nothing) add.\n"
      "  # Others: bytes and seconds in role.\n";
  text += fmt::format("  operator_seconds: {:.4g}\n", rates.operator_seconds);
  text += curves_text("alone", rates.alone);
  if (!rates.crowded.empty()) text += curves_text("crowded", rates.crowded);
  if (!rates.collectives.empty()) {
    text += fmt::format(
        "  collectives:                          # among {} ranks over shared memory; message: from one to "
        "another\n",
        rates.devices);
    for (const auto& [operation, numbers] : rates.collectives)
      text += fmt::format("    {}: {}\n", operation, list_of(numbers));
  }
  return text;
}

}  // namespace trainerd::core::plan
