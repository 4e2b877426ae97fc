#include "kernels/cuda/gemm/gemm_library.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "kernels/cuda/launch/gemm_problem.h"
#include "kernels/cuda/runtime/check.h"

namespace trainerd::kernels::cuda {
namespace {

// Number of algorithms requested from the heuristic: to run the first that fits, and to time all.
constexpr int kFirst = 8, kTimed = 96;

cudaDataType_t type_of(DType dtype, GemmFormat format = GemmFormat::plain) {
  if (format == GemmFormat::fp8) return CUDA_R_8F_E4M3;
  base::check(is_float(dtype), "a GEMM is on fp32, bf16 or fp16");
  return dtype == DType::f32 ? CUDA_R_32F : dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_16F;
}

/// A contiguous column-major matrix.
cublasLtMatrixLayout_t make_layout(cudaDataType_t type, std::int64_t rows, std::int64_t columns) {
  cublasLtMatrixLayout_t layout = nullptr;
  check(cublasLtMatrixLayoutCreate(&layout, type, static_cast<std::uint64_t>(rows),
                                   static_cast<std::uint64_t>(columns), rows),
        "describing a matrix");
  return layout;
}

template <class Value>
void set(cublasLtMatmulDesc_t descriptor, cublasLtMatmulDescAttributes_t attribute, const Value& value) {
  check(cublasLtMatmulDescSetAttribute(descriptor, attribute, &value, sizeof(value)), "describing a GEMM");
}

template <class Value>
void set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
         const Value& value) {
  check(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)),
        "what is asked of a GEMM");
}

/// The addresses in a descriptor: of the bias, whose alignment the heuristic takes into account, and of
/// scales.
void set_pointers(cublasLtMatmulDesc_t descriptor, const GemmProblem& p, const GemmArguments& args) {
  if (p.has_bias) set(descriptor, CUBLASLT_MATMUL_DESC_BIAS_POINTER, args.bias);
  if (p.format == GemmFormat::plain) return;
  set(descriptor, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, args.a_scales);
  set(descriptor, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, args.b_scales);
}

}  // namespace

struct GemmConfig {
  cublasLtMatmulDesc_t descriptor = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;  // C has the layout of D
  cublasLtMatmulAlgo_t algorithm{};
  std::size_t workspace = 0;
  bool missed = false;  ///< choices are in use, but none applies

  GemmConfig() = default;
  GemmConfig(const GemmConfig&) = delete;
  GemmConfig& operator=(const GemmConfig&) = delete;
  ~GemmConfig() {
    if (d != nullptr) cublasLtMatrixLayoutDestroy(d);
    if (b != nullptr) cublasLtMatrixLayoutDestroy(b);
    if (a != nullptr) cublasLtMatrixLayoutDestroy(a);
    if (descriptor != nullptr) cublasLtMatmulDescDestroy(descriptor);
  }
};

std::uint32_t alignment_of(const std::byte* address) {
  const auto bits = reinterpret_cast<std::uintptr_t>(address) | 256u;
  return static_cast<std::uint32_t>(bits & (~bits + 1));
}

std::string gemm_library_name() {
  const std::size_t version = cublasLtGetVersion();  // 130002 is 13.0.2
  return "cuBLASLt " + std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

GemmLibrary::GemmLibrary(std::int64_t workspace_bytes)
    : workspace_bytes_(static_cast<std::size_t>(workspace_bytes)) {
  check(cublasLtCreate(&handle_), "opening cuBLASLt");
}

GemmLibrary::~GemmLibrary() {
  plans_.clear();
  cublasLtDestroy(handle_);
}

std::unique_ptr<GemmConfig> GemmLibrary::describe(const GemmProblem& p, const GemmArguments& args) const {
  auto plan = std::make_unique<GemmConfig>();
  // COMPUTE_32F is true fp32 for fp32 operands: TF32 has a separate compute type.
  check(cublasLtMatmulDescCreate(&plan->descriptor, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describing a GEMM");
  const auto operation = [](bool transpose) { return transpose ? CUBLAS_OP_T : CUBLAS_OP_N; };
  set(plan->descriptor, CUBLASLT_MATMUL_DESC_TRANSA, operation(p.transpose_a));
  set(plan->descriptor, CUBLASLT_MATMUL_DESC_TRANSB, operation(p.transpose_b));
  // The bias has D's type, the library's default.
  if (p.has_bias) set(plan->descriptor, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
  if (p.format == GemmFormat::fp8) {
    set(plan->descriptor, CUBLASLT_MATMUL_DESC_A_SCALE_MODE,
        p.weight ? CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F : CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F);
    set(plan->descriptor, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F);
  }
  set_pointers(plan->descriptor, p, args);
  const cudaDataType_t in = type_of(p.in, p.format);
  plan->a = p.transpose_a ? make_layout(in, p.k, p.m) : make_layout(in, p.m, p.k);
  plan->b = p.transpose_b ? make_layout(in, p.n, p.k) : make_layout(in, p.k, p.n);
  plan->d = make_layout(type_of(p.out), p.m, p.n);
  return plan;
}

std::vector<cublasLtMatmulHeuristicResult_t> GemmLibrary::candidates(const GemmProblem& p,
                                                                     const GemmConfig& plan,
                                                                     int asked) const {
  cublasLtMatmulPreference_t preference = nullptr;
  check(cublasLtMatmulPreferenceCreate(&preference), "what is asked of a GEMM");
  const std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, decltype(&cublasLtMatmulPreferenceDestroy)> owner(
      preference, &cublasLtMatmulPreferenceDestroy);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(workspace_bytes_));
  // Parts of a split k are summed in fp32. In bf16 or in the output, every part would be rounded.
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, p.align_a);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, p.align_b);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, p.align_c);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, p.align_d);

  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<std::size_t>(asked));
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle_, plan.descriptor, plan.a, plan.b, plan.d, plan.d, preference, asked, results.data(), &found);
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) check(status, "choosing an algorithm for a GEMM");
  results.resize(static_cast<std::size_t>(found));
  std::erase_if(results, [this](const cublasLtMatmulHeuristicResult_t& r) {
    return r.state != CUBLAS_STATUS_SUCCESS || r.workspaceSize > workspace_bytes_;
  });
  if (results.empty())
    throw base::device_error(gemm_library_name() + " has no algorithm for a GEMM of " + cuda::describe(p) +
                             "; report it, with the name of the device");
  return results;
}

GemmConfig& GemmLibrary::plan_of(const GemmProblem& p, const GemmArguments& args) {
  if (const auto found = plans_.find(p); found != plans_.end()) return *found->second;
  auto plan = describe(p, args);
  plan->missed = choices_.missed(p);
  if (const GemmChoice* chosen = choices_.find(p)) {
    static_assert(sizeof(plan->algorithm) == sizeof(chosen->algorithm));
    std::memcpy(&plan->algorithm, chosen->algorithm.data(), sizeof(plan->algorithm));
    plan->workspace = static_cast<std::size_t>(chosen->workspace_bytes);
    cublasLtMatmulHeuristicResult_t result{};
    if (plan->workspace > workspace_bytes_ ||
        cublasLtMatmulAlgoCheck(handle_, plan->descriptor, plan->a, plan->b, plan->d, plan->d,
                                &plan->algorithm, &result) != CUBLAS_STATUS_SUCCESS ||
        result.workspaceSize > plan->workspace)
      throw base::device_error(
          gemm_library_name() + " does not take the algorithm that was chosen for a GEMM of " +
          cuda::describe(p) +
          ": remove gemm-algorithms.txt from the output directory to have them timed again");
  } else {
    const cublasLtMatmulHeuristicResult_t first = candidates(p, *plan, kFirst).front();
    plan->algorithm = first.algo;
    plan->workspace = first.workspaceSize;
  }
  return *plans_.emplace(p, std::move(plan)).first->second;
}

cublasStatus_t GemmLibrary::start(cudaStream_t stream, const GemmConfig& plan,
                                  const GemmArguments& args) const {
  const auto address = reinterpret_cast<std::uintptr_t>(args.scratch);
  std::byte* workspace =
      args.scratch +
      (static_cast<std::uintptr_t>(align_up(static_cast<std::int64_t>(address), kGemmWorkspaceAlignment)) -
       address);
  const float one = 1.0f, beta = args.c != nullptr ? 1.0f : 0.0f;
  const std::byte* c = args.c != nullptr ? args.c : args.d;
  return cublasLtMatmul(handle_, plan.descriptor, &one, args.a, plan.a, args.b, plan.b, &beta, c, plan.d,
                        args.d, plan.d, &plan.algorithm, workspace, plan.workspace, stream);
}

void GemmLibrary::run(cudaStream_t stream, GemmProblem p, const GemmArguments& args) {
  p.has_c = args.c != nullptr;
  p.has_bias = args.bias != nullptr;
  p.align_a = alignment_of(args.a);
  p.align_b = alignment_of(args.b);
  p.align_c = alignment_of(p.has_c ? args.c : args.d);
  p.align_d = alignment_of(args.d);
  p.align_bias = p.has_bias ? alignment_of(args.bias) : 256;
  GemmConfig& plan = plan_of(p, args);
  set_pointers(plan.descriptor, p, args);
  missed_choices_ += plan.missed;
  check(start(stream, plan, args), "running a GEMM");
}

GemmChoice GemmLibrary::time(cudaStream_t stream, const GemmProblem& p, const GemmArguments& args,
                             const Measure& measure, const std::function<bool()>& late) {
  const auto plan = describe(p, args);
  const std::vector<cublasLtMatmulHeuristicResult_t> results = candidates(p, *plan, kTimed);
  const auto seconds_of = [&](std::size_t i) {
    plan->algorithm = results[i].algo;
    plan->workspace = results[i].workspaceSize;
    bool refused = false;  // the heuristic may propose what the call does not take
    const double seconds = measure([&] {
      const cublasStatus_t status = start(stream, *plan, args);
      refused = status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE;
      if (!refused) check(status, "timing a GEMM");
    });
    return refused ? std::numeric_limits<double>::infinity() : seconds;
  };
  const std::size_t best = quickest_algorithm(results.size(), seconds_of, late);
  const cublasLtMatmulHeuristicResult_t& result = results[best];
  GemmChoice choice{
      .problem = p, .algorithm = {}, .workspace_bytes = static_cast<std::int64_t>(result.workspaceSize)};
  std::memcpy(choice.algorithm.data(), &result.algo, sizeof(result.algo));
  return choice;
}

void GemmLibrary::use(std::vector<GemmChoice> choices) {
  plans_.clear();
  choices_.use(std::move(choices));
}

}  // namespace trainerd::kernels::cuda
