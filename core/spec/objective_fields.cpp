#include "core/spec/field_table.h"

// The keys of what is minimised, and of what goes beside the optimizer.

namespace trainerd::core::spec {

void add_objective(FieldTable& t, job::JobSpec& job) {
  t.add("loss.label_smoothing", &job.loss.label_smoothing,
        "part of the target that is spread evenly over the vocabulary, as in PyTorch's cross entropy; the "
        "training loss is that cross entropy")
      .from_below(0, 1);
  t.add("loss.z_loss", &job.loss.z_loss,
        "factor of the mean of logsumexp(logits)^2 over the tokens that count, which is minimised beside the "
        "cross entropy (PaLM: 1.0e-04); `loss` of the records is without it, `z_loss` is this term")
      .at_least(0);
}

}  // namespace trainerd::core::spec
