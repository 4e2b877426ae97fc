// Writes results of a job's model, which parity.py compares with transformers: logits of the first batch,
// gradients of the first step under the names of a Hugging Face model, and the loss of every step.
//
//   parity_dump JOB.yaml TOKENS OUT.safetensors [CHECKPOINT]
//
// TOKENS: int32, [steps, global batch, seq_len + 1]. The job is for one rank and starts from model.from.
// Adapters have this program's names: initial values ("adapter.") and gradients of the first step. With
// CHECKPOINT only the logits of the trained model.

#include <cmath>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <stdexcept>

#include "core/hf/config.h"
#include "core/hf/weight_source.h"
#include "core/rank/device_rank.h"
#include "core/spec/spec.h"
#include "core/train/snapshot.h"
#include "io/checkpoint/tensor_file.h"
#include "kernels/cpu/cpu_backend.h"
#include "parallel/layout/topology.h"

using namespace trainerd;

namespace {

/// Records the logits between the head's GEMM and its softmax.
class LogitsTap final : public kernels::ObservedBackend {
 public:
  explicit LogitsTap(kernels::Backend& inner)
      : kernels::ObservedBackend(inner, [](const kernels::ObservedCall&) {}) {}
  void ce_stats(kernels::Stream& s, const kernels::CeStats& a) override {
    const std::int64_t rows = a.logits_TV.size(0), columns = a.logits_TV.size(1);
    if (a.logits_TV.dtype != kernels::DType::f32) throw std::logic_error("parity is of fp32 jobs");
    const float* values = a.logits_TV.as<float>();
    for (std::int64_t t = 0; t < rows; ++t)
      logits.insert(logits.end(), values + t * columns, values + t * columns + a.vocab);
    if (a.softcap > 0)
      for (auto i = logits.end() - rows * a.vocab; i != logits.end(); ++i)
        *i = a.softcap * std::tanh(*i / a.softcap);
    kernels::ObservedBackend::ce_stats(s, a);
  }
  std::vector<float> logits;
};

struct Out {
  std::vector<io::StoredTensor> tensors;
  std::vector<std::vector<float>> values;

  void add(const std::string& name, std::vector<std::int64_t> shape, std::vector<float> data) {
    tensors.push_back({.name = name, .dtype = kernels::DType::f32, .shape = std::move(shape)});
    values.push_back(std::move(data));
  }
  void write(const std::string& path) const {
    io::TensorFileWriter writer(path, io::lay_out_safetensors(tensors, {{"format", "pt"}}, io::Gaps::none));
    for (const std::vector<float>& data : values) writer.append(std::as_bytes(std::span(data)));
    writer.finish();
  }
};

void add_gradients(Out& out, const core::hf::SourceConfig& config, core::model::ParamStore& params) {
  for (const core::hf::MappedTensor& tensor :
       core::hf::map_tensors(core::hf::tensor_rules(config.family), config.model))
    for (core::model::ParamId id = 0; id < params.count(); ++id) {
      if (params.info(id).name != tensor.name || !params.info(id).has_grad()) continue;
      const float* grad = params.grad(id).as<float>();
      const std::int64_t columns = tensor.columns();
      for (const core::hf::TheirTensor& part : tensor.parts) {
        std::vector<float> values;
        const auto at = [&](std::int64_t row, std::int64_t column) {
          return grad[(part.first_row + row) * columns + column];
        };
        if (tensor.stacked > 0) {
          const std::int64_t rows = tensor.expert_rows();
          values.resize(static_cast<std::size_t>(part.rows * columns));
          for (std::int64_t r = 0; r < part.rows; ++r)
            for (std::int64_t c = 0; c < columns; ++c)
              values[static_cast<std::size_t>((r / rows * columns + c) * rows + tensor.their_row(r % rows))] =
                  at(r, c);
        } else if (tensor.transposed)
          for (std::int64_t c = 0; c < columns; ++c)
            for (std::int64_t r = 0; r < part.rows; ++r) values.push_back(at(r, c));
        else
          for (std::int64_t r = 0; r < part.rows; ++r)
            for (std::int64_t c = 0; c < columns; ++c) values.push_back(at(r, c));
        out.add("grad." + part.name, tensor.their_shape(part), std::move(values));
      }
    }
}

/// Adds adapters or their gradients under this program's names.
void add_adapters(Out& out, core::model::ParamStore& params, const std::string& prefix, bool gradients) {
  for (core::model::ParamId id = 0; id < params.count(); ++id) {
    const core::model::ParamInfo& info = params.info(id);
    if (!info.name.ends_with(".lora_a") && !info.name.ends_with(".lora_b")) continue;
    const kernels::Tensor t = gradients ? params.grad(id) : params.master(id);
    const float* values = t.as<float>();
    out.add(prefix + info.name, {info.shard.logical[0], info.shard.logical[1]}, {values, values + t.numel()});
  }
}

std::vector<std::int32_t> read_tokens(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::vector<std::int32_t> tokens(bytes.size() / sizeof(std::int32_t));
  std::memcpy(tokens.data(), bytes.data(), tokens.size() * sizeof(std::int32_t));
  return tokens;
}

void dump(const std::string& job_file, const std::string& tokens_file, const std::string& out_file,
          const std::string& checkpoint) {
  const core::job::JobSpec job = core::spec::load_job(job_file, {});
  const std::unique_ptr<core::hf::WeightSource> weights = core::hf::open_weights(job.model.from);
  const core::hf::SourceConfig config = core::hf::read_config(weights->origin().config, "config.json");
  const std::vector<std::int32_t> tokens = read_tokens(tokens_file);
  const auto per_step = static_cast<std::size_t>(job.batch.global * (job.model.seq_len + 1));
  if (tokens.size() != per_step * static_cast<std::size_t>(job.steps))
    throw std::runtime_error("the tokens are not those of the job's steps");

  // Builds a rank as core::rank::DeviceRank does, on the tap's backend.
  const parallel::Topology topology = parallel::detect_topology(1);
  const parallel::Layout layout = core::rank::layout_of(job, topology);
  const core::rank::DryRun plan = core::rank::dry_run(job, layout, 0, topology.device);
  base::ThreadPool pool(1);
  kernels::CpuBackend cpu(topology.device, pool);
  LogitsTap backend(cpu);
  parallel::SingleRankWorld alone;
  core::train::StepMemory memory(backend, core::train::count_slots(job, layout, 0), plan.memory);
  const core::train::RankGroups groups(layout, 0, job.model, alone, backend);
  core::train::Trainer trainer(job, layout, backend, groups, memory);
  const core::train::Snapshot snapshot(trainer.params());
  if (snapshot.has_base()) trainer.initialise_adapters();
  else trainer.initialise_tables();
  snapshot.load_weights(backend, trainer.stream(),
                        [&](const io::TensorSlice& box, std::span<std::byte> to) { weights->read(box, to); });
  if (!checkpoint.empty()) {
    io::CheckpointReader reader(checkpoint);
    snapshot.load(backend, trainer.stream(), reader);
  }
  trainer.publish();

  std::size_t step = 0;
  core::train::SampleBatches batches(
      trainer.batch_shape(), [&](std::int64_t sample, core::train::HostSample& to) {
        const std::span into(to.tokens_S1);
        const std::size_t begin = step * per_step + static_cast<std::size_t>(sample) * into.size();
        std::copy_n(tokens.begin() + static_cast<std::ptrdiff_t>(begin), into.size(), into.begin());
      });
  Out out;
  trainer.evaluate(batches);
  out.add("logits", {job.batch.global * job.model.seq_len, job.model.vocab}, backend.logits);
  if (!checkpoint.empty()) return out.write(out_file);
  add_adapters(out, trainer.params(), "adapter.", false);
  std::vector<float> losses;
  for (; step < static_cast<std::size_t>(job.steps); ++step) {
    losses.push_back(static_cast<float>(trainer.step(static_cast<std::int64_t>(step) + 1, batches, {}).loss));
    if (step == 0) add_gradients(out, config, trainer.params());
    if (step == 0) add_adapters(out, trainer.params(), "grad.", true);
  }
  out.add("losses", {job.steps}, losses);
  out.write(out_file);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 4 && argc != 5)
      throw std::runtime_error("usage: parity_dump JOB.yaml TOKENS OUT.safetensors [CHECKPOINT]");
    dump(argv[1], argv[2], argv[3], argc == 5 ? argv[4] : "");
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "parity_dump: " << error.what() << "\n";
    return 1;
  }
}
