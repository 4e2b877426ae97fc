#include "core/run/worker/judge_ties.h"

#include <utility>
#include <vector>

namespace trainerd::core::run {

JudgeTies judge_ties(train::Trainer& trainer, JudgeWorker worker) {
  return {.hash = [&trainer] { return trainer.hash_gradients(); },
          .names = trainer.gradients()->names(),
          .most = [&trainer](const std::vector<float>& values) { return trainer.most_of_ranks(values); },
          .report_differing = [send = worker.send](const ResultsDiffer& m) { send(m); },
          .report_action =
              [send = worker.send, cursor = std::move(worker.cursor)](SpikeActed m) {
                m.cursor = cursor();
                send(m);
              },
          .require_alive = std::move(worker.require_alive),
          .await_end =
              [await = std::move(worker.await)] {
                for (;;) await();
              }};
}

}  // namespace trainerd::core::run
