// cuDNN makes plans for devices that are not present (stand_in_driver.cpp). Checks for each architecture that
// it supports training's problems and that its workspace is at most the planned one.

#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>
#include <span>
#include <string>

#include "kernels/cuda/cudnn/attention_graph.h"
#include "kernels/cuda/cudnn/attention_library.h"
#include "kernels/cuda/cudnn/attention_plans.h"
#include "kernels/cuda/launch/attention_problem.h"
#include "tests/full.h"
#include "tests/kernels/cuda/stand_in_runtime.h"

namespace trainerd::test {
namespace {

using kernels::AttentionCall;
using kernels::Determinism;
using kernels::cuda::AttentionProblem;
using kernels::cuda::library_workspace;

struct Device {
  const char* file;
  int sm_version;
};
constexpr Device kDevices[] = {{"a100", 80}, {"h200", 90}, {"b200", 100}, {"rtx5090", 120}};

struct Shape {
  const char* name;
  std::int64_t sequences, heads, kv_heads, tokens, head_size, value_size = head_size;
};
constexpr Shape kShapes[] = {{"qwen2.5-1.5b", 32, 12, 2, 1024, 128},
                             {"odd length", 4, 32, 8, 1000, 128},
                             {"llama-3-8b", 1, 32, 8, 8192, 128},
                             {"gpt2", 8, 12, 12, 1024, 64},
                             {"short", 2, 4, 2, 17, 32}};

/// The first `most` shapes for sm_90, and one for other devices (two in full runs): making a plan takes 1 to
/// 2 s.
std::span<const Shape> shapes_for(const Device& d, std::size_t most) {
  return std::span(kShapes).first(d.sm_version == 90 ? most : runs_full() ? 2 : 1);
}

/// Except in full runs, devices other than sm_90 get every second plan.
bool skips(const Device& d, std::size_t turn) {
  return !runs_full() && d.sm_version != 90 && (static_cast<std::size_t>(&d - kDevices) + turn) % 2 != 0;
}

kernels::cuda::AttentionDevice device_of(const Device& d) {
  std::ifstream in(std::string(TRAINERD_DEVICES) + "/" + d.file + ".json", std::ios::binary);
  kernels::cuda::AttentionDevice device;
  device.description.assign(std::istreambuf_iterator<char>(in), {});
  device.sm_version = d.sm_version;
  REQUIRE(!device.description.empty());
  set_stand_in_device(d.sm_version);
  return device;
}

AttentionProblem problem(const Shape& s) {
  AttentionProblem p;
  p.sequences = s.sequences;
  p.heads = s.heads;
  p.kv_heads = s.kv_heads;
  p.tokens = s.tokens;
  p.head_size = s.head_size;
  p.value_size = s.value_size;
  const std::int64_t qkv = (s.heads + s.kv_heads) * s.head_size + s.kv_heads * s.value_size,
                     out = s.heads * s.value_size;
  p.strides = {.q = qkv, .k = qkv, .v = qkv, .out = out, .dout = out, .dq = qkv, .dk = qkv, .dv = qkv};
  p.scale = 0.1f;
  return p;
}

enum class Pass : std::uint8_t { forward, backward };
AttentionCall call(const Shape& s, Pass pass, Determinism determinism = Determinism::deterministic) {
  return {.backward = pass == Pass::backward,
          .causal = true,
          .deterministic = determinism == Determinism::deterministic,
          .sequences = s.sequences,
          .heads = s.heads,
          .kv_heads = s.kv_heads,
          .tokens = s.tokens,
          .head_size = s.head_size,
          .value_size = s.value_size};
}

kernels::Target target_of(const Device& d) {
  kernels::Target target;
  target.kind = kernels::DeviceKind::cuda;
  target.sm_version = d.sm_version;
  return target;
}

}  // namespace

TEST_CASE("cuDNN has forward plans for every architecture, as the formula predicts", "[cudnn]") {
  std::size_t turn = 0;
  for (const Device& d : kDevices)
    for (const Shape& s : shapes_for(d, 2)) {
      if (!in_slice(turn++, 4)) continue;
      std::string why;
      const auto graph = make_attention_graph(problem(s), device_of(d), &why);
      INFO(d.file << ", " << s.name << ": " << why);
      REQUIRE(graph != nullptr);
      CHECK(graph->workspace_bytes() <= library_workspace(call(s, Pass::forward), target_of(d)));
    }
}

TEST_CASE(
    "cuDNN has backward plans for every architecture, deterministic and fast, within the workspace foreseen",
    "[cudnn]") {
  std::size_t turn = 0;
  for (const Device& d : kDevices)
    for (const Shape& s : shapes_for(d, std::size(kShapes)))
      for (const Determinism determinism : {Determinism::deterministic, Determinism::fast}) {
        if (skips(d, determinism == Determinism::fast ? 1 : 0) || !in_slice(turn++, 6)) continue;
        AttentionProblem p = problem(s);
        p.backward = true;
        p.deterministic = determinism == Determinism::deterministic;
        std::string why;
        const auto graph = make_attention_graph(p, device_of(d), &why);
        INFO(d.file << ", " << s.name << (p.deterministic ? ", deterministic: " : ", fast: ") << why);
        REQUIRE(graph != nullptr);
        const std::int64_t foreseen = library_workspace(call(s, Pass::backward, determinism), target_of(d));
        CHECK(graph->workspace_bytes() <= foreseen);
        // The plan must also be tight: unused workspace is memory that the batch could use.
        if (s.tokens >= 1024 && d.sm_version == 90) CHECK(foreseen <= graph->workspace_bytes() + 8192);
      }
}

TEST_CASE("the formula predicts which large heads cuDNN has plans for", "[cudnn]") {
  std::size_t turn = 0;
  for (const Device& d : kDevices) {
    // As an agent asks for plans: from the device's description alone.
    kernels::cuda::AttentionPlans plans(device_of(d));
    for (const std::int64_t head_size : {136, 256}) {
      if (skips(d, head_size == 256 ? 1 : 0) || !in_slice(turn++, 4)) continue;
      const Shape s{"large heads", 1, 8, 2, 1024, head_size};
      INFO(d.file << ", heads of " << head_size);
      CHECK(plans.workspace(call(s, Pass::forward)) >= 0);
      for (const Determinism determinism : {Determinism::deterministic, Determinism::fast}) {
        const AttentionCall asked = call(s, Pass::backward, determinism);
        const std::int64_t planned = plans.workspace(asked),
                           foreseen = library_workspace(asked, target_of(d));
        CHECK((planned == kernels::kNoAttentionPlan) == (foreseen == kernels::kNoAttentionPlan));
        CHECK(planned <= foreseen);
        if (d.sm_version == 90) CHECK(foreseen <= planned + 8192);
      }
    }
    if (!runs_full() && d.sm_version != 90) continue;
    // Repeated calls give the same value, which is the plan's own.
    const AttentionCall small = call(kShapes[4], Pass::backward);
    AttentionProblem p = problem(kShapes[4]);
    p.backward = true;
    CHECK(plans.workspace(small) == make_attention_graph(p, device_of(d))->workspace_bytes());
    CHECK(plans.workspace(small) == plans.workspace(small));
  }
}

TEST_CASE("the formula predicts which heads of latent attention cuDNN has plans for", "[cudnn]") {
  std::size_t turn = 0;
  for (const Device& d : kDevices)
    for (const Shape& s :
         {Shape{"deepseek-v3", 1, 16, 16, 4096, 192, 128}, Shape{"small", 2, 4, 4, 1024, 96, 64}}) {
      if (!runs_full() && !in_slice(turn++, 4)) continue;
      kernels::cuda::AttentionPlans plans(device_of(d));
      INFO(d.file << ", " << s.name);
      CHECK(plans.workspace(call(s, Pass::forward)) >= 0);
      for (const Determinism determinism : {Determinism::deterministic, Determinism::fast}) {
        const AttentionCall asked = call(s, Pass::backward, determinism);
        const std::int64_t planned = plans.workspace(asked),
                           foreseen = library_workspace(asked, target_of(d));
        INFO((asked.deterministic ? "deterministic: " : "fast: ") << planned << ", foreseen " << foreseen);
        CHECK((planned == kernels::kNoAttentionPlan) == (foreseen == kernels::kNoAttentionPlan));
        CHECK(planned <= foreseen);
        if (d.sm_version == 90) CHECK(foreseen <= planned + 8192);
      }
    }
}

TEST_CASE("if no plan can be made at all, the call is not blamed", "[cudnn]") {
  const AttentionCall any = call(kShapes[4], Pass::backward);
  CHECK(kernels::cuda::AttentionPlans({}).workspace(any) == kernels::kUnknownAttentionPlan);
  kernels::cuda::AttentionDevice nonsense = device_of(kDevices[1]);
  nonsense.description = {'{', '}'};
  CHECK(kernels::cuda::AttentionPlans(nonsense).workspace(any) == kernels::kUnknownAttentionPlan);
  // The stand-in driver describes no device.
  CHECK(kernels::cuda::attention_workspace_plans()(target_of(kDevices[1]), any) ==
        kernels::kUnknownAttentionPlan);
}

}  // namespace trainerd::test
