#include "core/spec/field_table.h"
#include "core/spec/fields.h"

namespace trainerd::core::spec {
namespace {

std::string why_idle(const job::JobSpec& job) {
  return job.device != job::DeviceChoice::cuda && job.cluster.preset == "local"
             ? "on a CPU it is always deterministic"
             : "";
}

}  // namespace

void add_attention(FieldTable& t, job::JobSpec& job) {
  const std::string idle = why_idle(job);
  t.choice("attention", job.attention.backward,
           {{"deterministic", kernels::Determinism::deterministic}, {"fast", kernels::Determinism::fast}},
           "backward pass of attention on a GPU; fast: its sums, and so the last bits of a run, depend on "
           "timing; "
           "or a map with the keys `backward` and `require`")
      .heads_section()
      .written_if(job.attention.require == job::AttentionRequire::any)
      .idle_if(!idle.empty(), idle);
}

void add_attention_section(FieldTable& t, job::JobSpec& job) {
  const std::string idle = why_idle(job);
  const bool written = job.attention.require != job::AttentionRequire::any;
  t.choice("attention.backward", job.attention.backward,
           {{"deterministic", kernels::Determinism::deterministic}, {"fast", kernels::Determinism::fast}},
           "the same as `attention: deterministic` or `attention: fast`")
      .written_if(written)
      .idle_if(!idle.empty(), idle);
  t.choice("attention.require", job.attention.require,
           {{"any", job::AttentionRequire::any}, {"library", job::AttentionRequire::library}},
           "what attention runs by on a GPU: the library where it can, else our own kernels, with a warning "
           "where that was not planned; library: a job whose attention would run by our own kernels is "
           "refused, and a run where it does ends")
      .written_if(written)
      .idle_if(!idle.empty(), idle);
}

}  // namespace trainerd::core::spec
