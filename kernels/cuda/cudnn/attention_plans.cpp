#include "kernels/cuda/cudnn/attention_plans.h"

namespace trainerd::kernels::cuda {
namespace {

/// The problem with rows of a merged projection, as layers use it. The scale does not affect a plan.
AttentionProblem problem_of(const AttentionCall& c) {
  const std::int64_t out = c.heads * c.value_size,
                     qkv = (c.heads + c.kv_heads) * c.head_size + c.kv_heads * c.value_size;
  AttentionProblem p;
  p.backward = c.backward;
  p.causal = c.causal;
  p.deterministic = c.deterministic;
  p.fp16 = c.fp16;
  p.sequences = c.sequences;
  p.heads = c.heads;
  p.kv_heads = c.kv_heads;
  p.tokens = c.tokens;
  p.head_size = c.head_size;
  p.value_size = c.value_size;
  p.strides = {.q = qkv, .k = qkv, .v = qkv, .out = out};
  if (c.backward) p.strides.dout = out, p.strides.dq = p.strides.dk = p.strides.dv = qkv;
  return p;
}

constexpr AttentionCall kPlainest{
    .sequences = 1, .heads = 1, .kv_heads = 1, .tokens = 1024, .head_size = 64, .value_size = 64};

}  // namespace

std::int64_t AttentionPlans::plan(const AttentionCall& call) const {
  const auto graph = make_attention_graph(problem_of(call), device_);
  return graph == nullptr ? kNoAttentionPlan : graph->workspace_bytes();
}

bool AttentionPlans::works() {
  auto plainest = workspaces_.find(kPlainest);
  if (plainest == workspaces_.end()) plainest = workspaces_.emplace(kPlainest, plan(kPlainest)).first;
  return plainest->second != kNoAttentionPlan;
}

std::int64_t AttentionPlans::workspace(const AttentionCall& call) {
  if (device_.description.empty()) return kUnknownAttentionPlan;
  auto found = workspaces_.find(call);
  if (found == workspaces_.end()) found = workspaces_.emplace(call, plan(call)).first;
  return found->second == kNoAttentionPlan && !works() ? kUnknownAttentionPlan : found->second;
}

}  // namespace trainerd::kernels::cuda
