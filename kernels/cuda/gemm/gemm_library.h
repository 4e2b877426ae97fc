#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/launch/gemm_choices.h"
#include "kernels/tensor/tensor.h"

namespace trainerd::kernels::cuda {

/// Memory of one call. `c` may equal `d`; null without C.
struct GemmArguments {
  const std::byte* a = nullptr;
  const std::byte* b = nullptr;
  const std::byte* c = nullptr;
  std::byte* d = nullptr;
  const std::byte* bias = nullptr;
  const float *a_scales = nullptr, *b_scales = nullptr;  ///< of FP8 operands (launch/fp8_operand.h)
  std::byte* scratch = nullptr;                          ///< gemm_scratch bytes (gemm_problem.h)
};

/// Largest power of two, up to 256, that divides an address.
std::uint32_t alignment_of(const std::byte* address);

/// "cuBLASLt 13.0.2"
std::string gemm_library_name();

struct GemmConfig;  // descriptors and the chosen algorithm of one problem

/// cuBLASLt, with plans by problem. The algorithm is the one chosen by timing, if choices are in use, and
/// otherwise the first that the library's heuristic offers within the workspace. It is the same in every run
/// of one library version on one device. FP8 operands have scales of their blocks, which the library supports
/// on Hopper alone. fp32 operands are multiplied in fp32, never in TF32. bf16 products are summed in fp32,
/// and so are the parts if an algorithm splits k. A plan costs about 0.1 ms on the host, once.
class GemmLibrary {
 public:
  /// Algorithms use at most `workspace_bytes` of workspace.
  explicit GemmLibrary(std::int64_t workspace_bytes);
  ~GemmLibrary();
  GemmLibrary(const GemmLibrary&) = delete;
  GemmLibrary& operator=(const GemmLibrary&) = delete;

  /// Assigns D, or adds to C. Throws DeviceError if the library has no algorithm for the problem.
  void run(cudaStream_t stream, GemmProblem problem, const GemmArguments& args);

  /// Seconds of one call on the stream; waits for its end.
  using Measure = std::function<double(const std::function<void()>& call)>;
  /// The fastest of the heuristic's first 96 algorithms for a problem with aligned operands, chosen by
  /// `quickest_algorithm` with this `late`. Overwrites the memory that `args` point to.
  GemmChoice time(cudaStream_t stream, const GemmProblem& problem, const GemmArguments& args,
                  const Measure& measure, const std::function<bool()>& late);
  /// From now on uses these choices for their problems, and no earlier ones. Throws DeviceError if the
  /// library does not know one.
  void use(std::vector<GemmChoice> choices);
  /// Number of products run without a choice while choices were in use.
  std::int64_t missed_choices() const { return missed_choices_; }

 private:
  GemmConfig& plan_of(const GemmProblem& problem, const GemmArguments& args);
  std::unique_ptr<GemmConfig> describe(const GemmProblem& problem, const GemmArguments& args) const;
  std::vector<cublasLtMatmulHeuristicResult_t> candidates(const GemmProblem& problem, const GemmConfig& plan,
                                                          int asked) const;
  cublasStatus_t start(cudaStream_t stream, const GemmConfig& plan, const GemmArguments& args) const;
  cublasLtHandle_t handle_ = nullptr;
  std::size_t workspace_bytes_;
  GemmChoices choices_;
  std::int64_t missed_choices_ = 0;
  std::map<GemmProblem, std::unique_ptr<GemmConfig>> plans_;
};

}  // namespace trainerd::kernels::cuda
