#include "core/spec/check_optimizer.h"

#include <algorithm>
#include <initializer_list>
#include <string>

#include "core/spec/write.h"

namespace trainerd::core::spec {

void derive_optimizer(job::OptimizerOptions& options, const Given& given) {
  const auto or_else = [&](const char* key, auto& value, auto of_rule) {
    if (!given(key)) value = of_rule;
  };
  switch (options.kind) {
    case job::OptimizerKind::adamw: break;
    case job::OptimizerKind::lion:
      or_else("optimizer.lr", options.lr, 1e-4);
      or_else("optimizer.betas", options.beta2, 0.99);
      break;
    case job::OptimizerKind::sgd:
      or_else("optimizer.lr", options.lr, 0.01);
      or_else("optimizer.momentum", options.momentum, 0.9);
      or_else("optimizer.nesterov", options.nesterov, false);
      break;
    case job::OptimizerKind::muon: or_else("optimizer.lr", options.lr, 0.02); break;
  }
}

std::vector<KeyProblem> optimizer_problems(const job::JobSpec& job, const Problems& problems) {
  const job::OptimizerOptions& o = job.optimizer;
  const job::LrSchedule& s = o.schedule;
  const auto good = [&](std::initializer_list<const char*> keys) {
    return std::none_of(keys.begin(), keys.end(), [&](const char* key) { return problems.bad(key); });
  };
  std::vector<KeyProblem> found;
  if (good({"optimizer.schedule.min_lr", "optimizer.lr"}) && s.min_lr > o.lr)
    found.push_back({"optimizer.schedule.min_lr", number_text(s.min_lr) + " is more than lr " +
                                                      number_text(o.lr) +
                                                      " (nearest valid: " + number_text(o.lr) + ")"});
  if (!good({"steps", "optimizer.schedule.warmup"})) return found;
  const std::int64_t after = job.steps - s.warmup;
  if (after < 0)
    found.push_back({"optimizer.schedule.warmup", std::to_string(s.warmup) + " is more than steps " +
                                                      std::to_string(job.steps) +
                                                      " (nearest valid: " + std::to_string(job.steps) + ")"});
  else if (good({"optimizer.schedule.decay", "optimizer.schedule.kind"}) && s.kind == job::LrKind::wsd &&
           s.decay > after)
    found.push_back({"optimizer.schedule.decay",
                     std::to_string(s.decay) + " is more than the " + std::to_string(after) +
                         " steps after the warm-up (nearest valid: " + std::to_string(after) + ")"});
  return found;
}

}  // namespace trainerd::core::spec
