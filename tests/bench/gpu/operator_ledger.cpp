#include "tests/bench/gpu/operator_ledger.h"

#include <algorithm>
#include <vector>

namespace trainerd::bench {
namespace {

using namespace kernels;

std::string joined(std::initializer_list<std::int64_t> sizes) {
  std::string text;
  for (const std::int64_t size : sizes) text += (text.empty() ? "" : " x ") + std::to_string(size);
  return text;
}

/// m x n x k of a GEMM, or sequences x length x heads x head size of attention.
std::string shape_of(const OpClass& c) {
  switch (c.kind) {
    case OpClass::Kind::memory: return "";
    case OpClass::Kind::gemm:
    case OpClass::Kind::experts:
      return joined({c.m, c.n, c.k}) + (c.adds ? ", adds" : "") + (c.bias ? ", bias" : "");
    case OpClass::Kind::attention_forward:
    case OpClass::Kind::attention_backward: return joined({c.sequences, c.length, c.heads, c.head_size});
  }
  return "";
}

const char* kind_of(const OpClass& c) {
  if (c.kind == OpClass::Kind::gemm || c.kind == OpClass::Kind::experts) return "gemm";
  return c.kind == OpClass::Kind::memory ? "memory" : "attention";
}

}  // namespace

void OperatorLedger::add(const ObservedCall& call) {
  Total& total = totals_[{call.op, call.what}];
  ++total.calls;
  total.seconds += call.seconds;
  total.flops += call.cost.flops;
  total.bytes += call.cost.bytes;
  const double by_flops = rates_.flops_per_second > 0 ? call.cost.flops / rates_.flops_per_second : 0.0;
  total.floor_seconds += std::max(call.cost.bytes / rates_.bytes_per_second, by_flops);
}

std::vector<nlohmann::ordered_json> OperatorLedger::rows(const std::string& job) const {
  std::vector<nlohmann::ordered_json> rows;
  for (const auto& [key, total] : totals_) {
    const auto& [op, what] = key;
    rows.push_back({{"kind", "ledger"},
                    {"job", job},
                    {"op", name_of(op)},
                    {"class", kind_of(what)},
                    {"shape", shape_of(what)},
                    {"dtype", kernels::name_of(what.dtype)},
                    {"calls", total.calls},
                    {"seconds", total.seconds},
                    {"flops", total.flops},
                    {"bytes", total.bytes},
                    {"floor_seconds", total.floor_seconds}});
  }
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
    return a["seconds"].template get<double>() > b["seconds"].template get<double>();
  });
  return rows;
}

double OperatorLedger::seconds() const {
  double sum = 0;
  for (const auto& [key, total] : totals_) sum += total.seconds;
  return sum;
}

double OperatorLedger::floor_seconds() const {
  double sum = 0;
  for (const auto& [key, total] : totals_) sum += total.floor_seconds;
  return sum;
}

}  // namespace trainerd::bench
