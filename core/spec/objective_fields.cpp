#include "core/spec/field_table.h"

// Keys of the loss terms, and of options besides the optimizer.

namespace trainerd::core::spec {
namespace {

constexpr double kMaxStepCount = 1e12;

}  // namespace

void add_objective(FieldTable& t, job::JobSpec& job) {
  t.add("loss.label_smoothing", &job.loss.label_smoothing,
        "part of the target that is spread evenly over the vocabulary, as in PyTorch's cross entropy; the "
        "training loss is that cross entropy")
      .from_below(0, 1)
      .not_with("loss.dpo.beta",
                "is of the cross entropy: with loss.dpo set loss.dpo.label_smoothing, or leave it out");
  t.add("loss.z_loss", &job.loss.z_loss,
        "factor of the mean of logsumexp(logits)^2 over the tokens that count, which is minimised beside the "
        "cross entropy (PaLM: 1.0e-04); `loss` of the records is without it, `z_loss` is this term")
      .at_least(0)
      .not_with("loss.dpo.beta", "is minimised beside the cross entropy alone: with loss.dpo leave it out");
  t.add("loss.expert_balance", &job.loss.expert_balance,
        "factor of a loss that is least when the tokens of each sequence use all experts alike (Switch "
        "Transformers, "
        "section 2.2; 0.01), added for each layer; `loss` of the records is without it")
      .at_least(0)
      .not_with("loss.dpo.beta", "is minimised beside the cross entropy alone: with loss.dpo leave it out")
      .idle_if(!job.model.experts.on(), "the MLPs are dense without model.experts.count");
  job::DpoOptions& dpo = job.loss.dpo;
  t.add("loss.dpo.beta", &dpo.beta,
        "in place of the cross entropy minimise the loss of direct preference optimisation over pairs of "
        "answers "
        "(`trainerd data prepare --pairs`), with this factor of the log-ratios (0.1); the reference is the "
        "weights "
        "that the run begins from, whose log-probabilities are computed once before the first step; 0: off")
      .at_least(0);
  t.add("loss.dpo.label_smoothing", &dpo.label_smoothing,
        "how likely a pair is taken to be the wrong way round (conservative DPO)")
      .from_below(0, 0.5)
      .idle_if(!dpo.on(), "loss.dpo.beta is 0");
  job::AverageOptions& average = job.optimizer.average;
  t.add(
       "ema.decay", &average.decay,
       "keep an exponential moving average of the trained weights, in fp32 beside the optimizer's states: at "
       "each update `decay` of it and the rest of the new weights; it begins as the first weights, is in "
       "checkpoints, and `trainerd export --ema` takes it; 0: none. A run keeps one from its start or not at "
       "all")
      .from_below(0, 1);
  t.add("ema.every", &average.every, "steps between its updates")
      .between(1, kMaxStepCount)
      .idle_if(!average.on(), "ema.decay is 0");
  job::DropoutOptions& dropout = job.model.dropout;
  t.add("dropout.embedding", &dropout.embedding,
        "part of the embeddings' elements that training drops (GPT-2's embd_pdrop), drawn by seed, step, "
        "sample and place, so that every layout drops the same; evaluation drops none")
      .from_below(0, 1);
  t.add("dropout.residual", &dropout.residual,
        "the same of what attention and MLP add to the residual stream (resid_pdrop)")
      .from_below(0, 1);
  t.add("dropout.attention", FixedWord{"0"}, "the same of attention's probabilities (attn_pdrop)");
}

void add_group_norms(FieldTable& t, io::MetricsOptions& m) {
  t.add("metrics.grad_norms.every", &m.grad_norms.every,
        "steps between records of the gradients' norm by groups of parameters (`grad_norms`); 0: never")
      .between(0, kMaxStepCount);
  t.choice("metrics.grad_norms.by", m.grad_norms.by,
           {{"kind", io::NormGroups::kind}, {"layer", io::NormGroups::layer}},
           "the groups: kinds of parameters (embedding, attention, mlp, norm, head; with LoRA "
           "adapters.attention and adapters.mlp), or layers beside embedding and head")
      .idle_if(m.grad_norms.every == 0, "metrics.grad_norms.every is 0");
}

}  // namespace trainerd::core::spec
