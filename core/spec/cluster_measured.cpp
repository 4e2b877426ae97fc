#include "core/spec/cluster_measured.h"

#include <array>

#include "kernels/ops/operators.h"
#include "kernels/tensor/dtype.h"

namespace trainerd::core::spec {
namespace {

using parallel::MeasuredRates;

constexpr std::array kCollectives = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all",
                                     "broadcast",  "barrier",    "message"};

/// All words of `kernels::name_of(DType)`, which `calibrate` uses to name curves: fp32 and bf16 for products
/// and attention, the type that they read for others (check_ids: int32).
std::vector<std::string> dtype_words() {
  std::vector<std::string> words;
  for (std::uint8_t i = 0; kernels::parse_dtype(kernels::name_of(static_cast<kernels::DType>(i))); ++i)
    words.emplace_back(kernels::name_of(static_cast<kernels::DType>(i)));
  return words;
}

/// True for rising x and seconds of 0 or more.
bool are_points(const std::vector<double>& numbers) {
  if (numbers.size() < 2 || numbers.size() % 2 != 0) return false;
  for (std::size_t i = 0; i < numbers.size(); i += 2)
    if (numbers[i] <= 0 || numbers[i + 1] <= 0 || (i > 0 && numbers[i] <= numbers[i - 2])) return false;
  return true;
}

}  // namespace

void add_measured_fields(std::vector<Field>& fields, const std::string& prefix, MeasuredRates& rates) {
  const auto add = [&](const std::string& key, Storage storage, const char* meaning) {
    fields.emplace_back(Field{prefix + key, std::move(storage), meaning}).at_least(0);
  };
  add("operator_seconds", &rates.operator_seconds, "of the host between two operators");
  for (const auto& [section, curves] : {std::pair{"alone.", &rates.alone}, {"crowded.", &rates.crowded}})
    for (const std::string& dtype : dtype_words()) {
      const auto add_curve = [&](const char* op) {
        const std::string key = std::string(op) + "." + dtype;
        add(section + key, &(*curves)[key], "of an operator: coefficients, or bytes and seconds in turn");
      };
      for (std::size_t i = 0; i < static_cast<std::size_t>(kernels::Operator::write); ++i)
        add_curve(kernels::kOperatorNames[i]);
      add_curve("other");  // for any operator without a shape
    }
  for (const char* operation : kCollectives)
    add(std::string("collectives.") + operation, &rates.collectives[operation], "bytes and seconds in turn");
}

void drop_empty_curves(MeasuredRates& rates) {
  for (auto* curves : {&rates.alone, &rates.crowded, &rates.collectives})
    std::erase_if(*curves, [](const auto& curve) { return curve.second.empty(); });
}

std::string curve_problem(const MeasuredRates& rates) {
  for (const auto& [section, curves] : {std::pair{"alone.", &rates.alone},
                                        {"crowded.", &rates.crowded},
                                        {"collectives.", &rates.collectives}})
    for (const auto& [name, numbers] : *curves) {
      const bool shaped = name.starts_with("linear") || name.starts_with("attention");
      if (shaped ? numbers.size() != kernels::kShapeTerms : !are_points(numbers))
        return section + name +
               (shaped ? " must be " + std::to_string(kernels::kShapeTerms) + " coefficients"
                       : " must be pairs of rising bytes and seconds") +
               ": make the file anew with `trainerd calibrate`";
    }
  return "";
}

}  // namespace trainerd::core::spec
