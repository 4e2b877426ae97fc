#include "kernels/cuda/launch/gemm_choices.h"

#include <algorithm>
#include <array>
#include <limits>
#include <sstream>
#include <utility>

#include "kernels/base/error.h"

namespace trainerd::kernels::cuda {
namespace {

constexpr const char* kTitle = "GEMM algorithms by timing, ";

/// Dtypes of operands and results, by their number in the file.
constexpr std::array kDTypes{DType::f32, DType::bf16, DType::f16};
std::ptrdiff_t number_of(DType dtype) {
  return std::find(kDTypes.begin(), kDTypes.end(), dtype) - kDTypes.begin();
}

constexpr const char* kRemedy =
    ": remove gemm-algorithms.txt from the output directory to have them timed again";

}  // namespace

GemmProblem problem_of(const OpClass& g) {
  base::check(g.kind == OpClass::Kind::gemm, "a matrix product is asked for");
  GemmProblem p{.m = g.n,
                .n = g.m,
                .k = g.k,
                .transpose_a = g.role == GemmRole::fprop,
                .transpose_b = g.role == GemmRole::wgrad,
                .in = g.dtype,
                .out = g.out,
                .has_c = g.adds,
                .has_bias = g.bias};
  if (g.format == GemmFormat::fp8)
    p.format = g.format, p.weight = g.role != GemmRole::wgrad, p.transpose_a = true, p.transpose_b = false;
  // See wgrad_through_scratch in gemm_problem.h.
  if (g.role == GemmRole::wgrad && g.dtype == DType::f32 && g.out == DType::bf16)
    p.out = DType::f32, p.has_c = false;
  return p;
}

std::string describe(const GemmProblem& p) {
  return "m " + std::to_string(p.m) + ", n " + std::to_string(p.n) + ", k " + std::to_string(p.k) + ", " +
         (p.format == GemmFormat::fp8 ? "fp8" : name_of(p.in)) + " to " + name_of(p.out) +
         (p.transpose_a ? ", A transposed" : "") + (p.transpose_b ? ", B transposed" : "") +
         (p.has_c ? ", with C" : "") + (p.has_bias ? ", with bias" : "");
}

std::string to_text(const std::string& made_with, const std::vector<GemmChoice>& choices) {
  std::ostringstream out;
  out << kTitle << made_with << '\n';
  for (const GemmChoice& c : choices) {
    const GemmProblem& p = c.problem;
    out << p.m << ' ' << p.n << ' ' << p.k << ' ' << p.transpose_a << ' ' << p.transpose_b << ' '
        << number_of(p.in) << ' ' << number_of(p.out) << ' ' << p.has_c << ' ' << p.has_bias << ' '
        << c.workspace_bytes << std::hex;
    for (const std::uint64_t word : c.algorithm) out << ' ' << word;
    out << std::dec << '\n';
  }
  return out.str();
}

std::vector<GemmChoice> parse_choices(const std::string& text, const std::string& made_with) {
  std::istringstream lines(text);
  std::string line;
  if (!std::getline(lines, line) || line != kTitle + made_with)
    throw base::device_error("the run's GEMM algorithms were not chosen with " + made_with + " (\"" +
                             line.substr(0, 120) + "\")" + kRemedy);
  std::vector<GemmChoice> choices;
  while (std::getline(lines, line)) {
    std::istringstream in(line);
    GemmChoice c;
    GemmProblem& p = c.problem;
    std::size_t operands = kDTypes.size(), result = kDTypes.size();
    in >> p.m >> p.n >> p.k >> p.transpose_a >> p.transpose_b >> operands >> result >> p.has_c >>
        p.has_bias >> c.workspace_bytes >> std::hex;
    for (std::uint64_t& word : c.algorithm) in >> word;
    if (!in || !(in >> std::ws).eof() || operands >= kDTypes.size() || result >= kDTypes.size() || p.m < 1 ||
        p.n < 1 || p.k < 1 || c.workspace_bytes < 0)
      throw base::device_error("\"" + line.substr(0, 120) + "\" is no choice of a GEMM algorithm" + kRemedy);
    p.in = kDTypes[operands];
    p.out = kDTypes[result];
    choices.push_back(c);
  }
  return choices;
}

std::size_t quickest_algorithm(std::size_t count, const MeasureAlgorithm& measure,
                               const std::function<bool()>& late) {
  constexpr int kRounds = 5;
  constexpr double kContender = 1.25, kGain = 0.98, kNever = std::numeric_limits<double>::infinity();
  std::vector<double> quickest(count, kNever);
  double least = kNever;
  for (std::size_t i = 0; i < count && !(least < kNever && late()); ++i)
    least = std::min(least, quickest[i] = measure(i));
  if (least == kNever)
    throw base::device_error("the library refuses all algorithms that it proposes for a GEMM");
  std::vector<std::size_t> contenders;
  for (std::size_t i = 0; i < count; ++i)
    if (quickest[i] < kNever && (i == 0 || quickest[i] <= kContender * least)) contenders.push_back(i);
  for (int round = 1; round < kRounds; ++round)
    for (const std::size_t i : contenders)
      if (!late()) quickest[i] = std::min(quickest[i], measure(i));
  const auto best =
      static_cast<std::size_t>(std::min_element(quickest.begin(), quickest.end()) - quickest.begin());
  return quickest[best] < kGain * quickest[0] ? best : 0;
}

void GemmChoices::use(std::vector<GemmChoice> choices) {
  chosen_.clear();
  for (GemmChoice& choice : choices) chosen_[choice.problem] = std::move(choice);
}

const GemmChoice* GemmChoices::find(const GemmProblem& problem) const {
  const auto found = chosen_.find(problem);
  return found == chosen_.end() ? nullptr : &found->second;
}

bool GemmChoices::missed(const GemmProblem& problem) const {
  return !chosen_.empty() && problem.format == GemmFormat::plain && !chosen_.contains(problem);
}

}  // namespace trainerd::kernels::cuda
