#include "core/spec/fields.h"

#include <algorithm>

#include "core/spec/faults_fields.h"
#include "core/spec/field_table.h"
#include "core/spec/lora.h"
#include "core/spec/problems.h"
#include "kernels/base/error.h"
#include "parallel/layout/grid.h"

namespace trainerd::core::spec {
namespace {

using kernels::DType;

// Upper limits are far beyond any machine. With those of check_sizes they keep products of sizes within 63
// bits and a plan within seconds: its time grows with layers, ranks and microbatches, not with the other
// sizes.
constexpr double kMaxLayers = 1 << 10;
constexpr double kMaxHidden = 1 << 20;
constexpr double kMaxHeads = 1 << 12;
constexpr double kMaxHeadDim = 1 << 12;
constexpr double kMaxFfn = 1 << 22;
constexpr double kMaxVocab = 2147483647;  // token ids are int32
constexpr double kMaxSeqLen = 1 << 27;
constexpr double kMaxSequences = 1 << 24;
constexpr double kMaxRanks = parallel::kMaxRanks;
constexpr double kMaxSteps = 1e12;
constexpr double kMaxThreads = 4096;
constexpr double kMaxPrefetch = 1024;

std::vector<Field> fields_of_batch_span(job::BatchSpan& span) {
  FieldTable t;
  t.add("global", &span.global, "sequences of each of its steps, at most `batch.global`")
      .between(1, kMaxSequences)
      .needed();
  t.add("steps", &span.steps, "how many steps it has").between(1, kMaxSteps).needed();
  return t.take();
}

void add_model(FieldTable& t, job::ModelOptions& m) {
  const bool rope = m.positions == job::Positions::rope;
  t.add("model.preset", &m.preset,
        "a built-in model, or the path of a YAML file of `model` keys (with a `/` or ending in `.yaml`); "
        "the job's own keys go over it")
      .or_else("none");
  t.add("model.from", &m.from,
        "weights to begin from: a Hugging Face directory, a checkpoint, or a run's output (its newest); the "
        "other keys of `model` come from there, and those that are given must agree, but for `seq_len`; the "
        "run's own checkpoint goes before it")
      .or_else("none");
  t.add("model.layers", &m.layers, "transformer blocks").between(1, kMaxLayers).needed();
  t.add("model.hidden", &m.hidden, "width of the residual stream").between(1, kMaxHidden).needed();
  t.add("model.heads", &m.heads, "query heads").between(1, kMaxHeads).needed();
  t.add("model.kv_heads", &m.kv_heads, "key and value heads; divides `heads`")
      .between(1, kMaxHeads)
      .or_else("`heads`")
      .idle_if(m.mla.on(), "with mla each query head has a key head");
  t.add("model.head_dim", &m.head_dim, "width of a head; even with `positions: rope`")
      .between(1, kMaxHeadDim)
      .or_else("`hidden` / `heads`")
      .idle_if(m.mla.on(), "mla.qk_nope_head_dim and mla.qk_rope_head_dim give it");
  t.add("model.ffn", &m.ffn, "inner width of the MLP").between(1, kMaxFfn).needed();
  t.add("model.vocab", &m.vocab, "token ids").between(1, kMaxVocab).needed();
  t.add("model.seq_len", &m.seq_len, "tokens of a training sequence").between(1, kMaxSeqLen).needed();
  t.choice("model.norm", m.norm, {{"rms", job::Norm::rms}, {"layer", job::Norm::layer}},
           "RMSNorm, or LayerNorm with weight and bias");
  t.choice("model.positions", m.positions,
           {{"rope", job::Positions::rope}, {"learned", job::Positions::learned}},
           "rotary embedding, or a learned table of `seq_len` rows");
  t.add("model.rope_theta", &m.rope_theta, "base of the rotary angles")
      .above(0)
      .idle_if(!rope, "positions: learned has no rotary angles");
  add_layers(t, m);
  add_mla(t, m);
  t.choice(
      "model.mlp", m.mlp,
      {{"swiglu", job::Mlp::swiglu},
       {"gelu", job::Mlp::gelu},
       {"geglu", job::Mlp::geglu},
       {"swiglu_clamped", job::Mlp::swiglu_clamped}},
      "gated SiLU (three matrices), GELU (two), gated GELU (three; Gemma), or gated SiLU with limits (three; "
      "gpt-oss): x sigmoid(1.702 x) (u + 1), x = min(gate, 7), u within -7 and 7");
  add_biases(t, m);
  t.add("model.qk_norm", &m.qk_norm,
        "RMSNorm of queries and keys, of each head (Qwen3) or by `qk_norm_span`");
  t.add("model.tie_embeddings", &m.tie_embeddings, "the output head is the input embedding");
  t.add("model.norm_eps", &m.norm_eps, "added to the variance in every norm").above(0);
  t.add("model.init", &m.init,
        "standard deviation of the initial weights; output projections get `init` / sqrt(2 `layers`)")
      .above(0)
      .idle_if(!m.from.empty(), "the weights come from model.from");
}

void add_recompute(FieldTable& t, job::RecomputeOptions& r) {
  t.choice(
      "recompute.kind", r.kind,
      {{"none", job::RecomputeKind::none},
       {"selective", job::RecomputeKind::selective},
       {"full", job::RecomputeKind::full}},
      "activations that backward makes again in place of keeping them; selective: norms, attention and GELU; "
      "full: all of a layer but its input");
  t.add("recompute.every", &r.every, "recompute every n-th layer, from the first, and keep the others whole")
      .between(1, kMaxLayers)
      .idle_if(r.kind != job::RecomputeKind::full, "only kind: full chooses layers");
}

void add_optimizer(FieldTable& t, job::JobSpec& job) {
  job::OptimizerOptions& o = job.optimizer;
  job::LrSchedule& s = o.schedule;
  t.choice(
       "optimizer.name", o.kind,
       {{"adamw", job::OptimizerKind::adamw},
        {"lion", job::OptimizerKind::lion},
        {"sgd", job::OptimizerKind::sgd},
        {"muon", job::OptimizerKind::muon}},
       "the update rule; lion moves each parameter by the sign of a mean of gradients and keeps one state "
       "instead of AdamW's two, sgd moves along the gradient")
      .contradicts("muon", {{"lora.rank", Says::not_default}},
                   "muon is not for adapters: set it to adamw, lion or sgd");
  t.add("optimizer.lr", &o.lr, "peak learning rate; with muon that of the layers' matrices")
      .above(0)
      .or_else("`3.0e-04`; lion: `1.0e-04`; sgd: `0.01`; muon: `0.02`");
  const bool muon = o.kind == job::OptimizerKind::muon, sgd = o.kind == job::OptimizerKind::sgd,
             lion = o.kind == job::OptimizerKind::lion;
  const auto of_momentum = [&](Field& field) { field.idle_if(!muon && !sgd, "only muon and sgd have it"); };
  of_momentum(t.add("optimizer.momentum", &o.momentum,
                    "weight of the past in Muon's mean of gradients, or in SGD's sum of them")
                  .from_below(0, 1)
                  .or_else("`0.95`; sgd: `0.9`"));
  of_momentum(t.add("optimizer.nesterov", &o.nesterov, "move along the mean as the next step would see it")
                  .or_else("`true`; sgd: `false`"));
  t.add("optimizer.adamw_lr", &o.adamw_lr,
        "with muon: peak learning rate of embeddings, head, norms, biases and routers, which AdamW updates; "
        "goes with the schedule of `lr` in proportion")
      .above(0)
      .idle_if(!muon, "only name: muon has it");
  t.add("optimizer.betas", NumberPair{&o.beta1, &o.beta2},
        "decay of the first and second moment; lion: of the mean whose sign it moves by, and of its state")
      .from_below(0, 1)
      .or_else("`[0.9, 0.95]`; lion: `[0.9, 0.99]`")
      .idle_if(sgd, "sgd has none: its decay is `momentum`");
  t.add("optimizer.eps", &o.eps, "added to the root of the second moment")
      .above(0)
      .idle_if(lion || sgd, "lion and sgd divide by nothing");
  t.add("optimizer.weight_decay", &o.weight_decay, "decoupled decay of matrices; norms and biases get none")
      .at_least(0);
  t.add("optimizer.expert_bias_rate", &o.expert_bias_rate,
        "change of each expert's bias per step (`model.experts.bias`); 0: the biases stay as they are")
      .at_least(0)
      .idle_if(!job.model.experts.bias || job.model.lora.on(),
               job.model.experts.bias ? "adapters (lora) leave the biases as they are"
                                      : "there are no biases without model.experts.bias");
  t.add("optimizer.offload", &o.offload,
        "keep master weights and the optimizer's states in pinned host memory, which a GPU reads and writes "
        "over its link in the update")
      .idle_if(job.device != job::DeviceChoice::cuda && job.cluster.preset == "local",
               "on CPUs they are in host memory anyway");
  t.add("optimizer.grad_clip", &o.grad_clip, "largest global gradient norm; 0: no clipping").at_least(0);
  t.choice("optimizer.schedule.kind", s.kind,
           {{"constant", job::LrKind::constant},
            {"cosine", job::LrKind::cosine},
            {"linear", job::LrKind::linear},
            {"wsd", job::LrKind::wsd}},
           "course of the learning rate after the warm-up; wsd: constant, then linear over the last `decay` "
           "steps");
  t.add("optimizer.schedule.warmup", &s.warmup, "steps of linear warm-up").between(0, kMaxSteps);
  t.add("optimizer.schedule.min_lr", &s.min_lr, "learning rate of the last step")
      .at_least(0)
      .idle_if(s.kind == job::LrKind::constant, "kind: constant stays at lr");
  t.add("optimizer.schedule.decay", &s.decay, "steps of decay in wsd; 0: a tenth of all steps, at least one")
      .between(0, kMaxSteps)
      .idle_if(s.kind != job::LrKind::wsd, "only kind: wsd has a decay phase");
}

void add_data(FieldTable& t, io::DataOptions& d) {
  const std::string no_files = "format: synthetic reads no files";
  const bool synthetic = d.format == io::DataFormat::synthetic;
  t.add("data.train", &d.train,
        "files, directories or glob patterns (`*`, `?`, `[]`, `**`) of the training data; relative ones are "
        "in the job file's directory when they exist there")
      .or_else("required unless synthetic or with `sources`")
      .idle_if(synthetic, no_files);
  add_sources(t, d, synthetic ? no_files : "");
  add_validation(t, d, synthetic ? no_files : "");
  t.choice("data.format", d.format,
           {{"text", io::DataFormat::text},
            {"tokens", io::DataFormat::tokens},
            {"synthetic", io::DataFormat::synthetic}},
           "raw text, token files (own, llm.c's, Megatron's `.bin` with its `.idx`, or plain arrays), or "
           "random tokens");
  t.add("data.tokenizer", &d.tokenizer, "how text becomes tokens; bytes: one token a byte")
      .reserved(d.tokenizer == "bytes", "bytes", ", or give token files with format: tokens")
      .idle_if(d.format != io::DataFormat::text, "only format: text is tokenized");
  t.choice("data.dtype", d.dtype,
           {{"auto", io::TokenType::automatic},
            {"uint8", io::TokenType::uint8},
            {"uint16", io::TokenType::uint16},
            {"int32", io::TokenType::int32},
            {"uint32", io::TokenType::uint32},
            {"int64", io::TokenType::int64}},
           "what the numbers of token files are; auto: as the header or Megatron's `.idx` says, and files "
           "without either are refused")
      .idle_if(d.format != io::DataFormat::tokens, "only format: tokens has numbers in its files");
  t.choice("data.on_change", d.on_change,
           {{"refuse", io::DataChange::refuse}, {"continue", io::DataChange::go_on}},
           "when a resumed run finds other training data than its checkpoint's: refuse, or go on with the "
           "new data, whose samples follow in a "
           "new order from the start of an epoch")
      .idle_if(synthetic, no_files);
  t.choice("data.other_tokenizer", d.other_tokenizer,
           {{"refuse", io::OtherTokenizer::refuse}, {"allow", io::OtherTokenizer::allow}},
           "when the data was made by another tokenizer file than the model's, or is text (one token a byte) "
           "for a model that has a tokenizer: refuse, or allow")
      .idle_if(synthetic, no_files);
  t.add("data.prefetch", &d.prefetch,
        "microbatches that a thread of each rank reads ahead; 0: each is read when its step asks for it")
      .between(0, kMaxPrefetch);
  add_cache(t, d);
}

}  // namespace

const std::string& Choice::word() const {
  const auto at = std::find(values.begin(), values.end(), *value);
  base::check(at != values.end(), "every value of a key has a word");
  return words[static_cast<std::size_t>(at - values.begin())];
}

std::vector<Field> fields_of(job::JobSpec& job) {
  FieldTable t;
  t.add("extends", BaseFile{},
        "another job file, by its path from this one; its keys go below this file's, map by map, and `~` "
        "takes one of them away")
      .or_else("none");
  t.add("name", &job.name, "name of the run: letters, digits, `.`, `_`, `-`");
  t.add("seed", &job.seed, "of initial weights and data order");
  t.add("output", &job.output, "directory of the resolved job, records, checkpoints and report")
      .or_else("`runs/<name>`");
  t.choice("device", job.device,
           {{"auto", job::DeviceChoice::automatic},
            {"cpu", job::DeviceChoice::cpu},
            {"cuda", job::DeviceChoice::cuda}},
           "where the workers compute; auto: on CUDA devices where the machine has them, else on the CPU");
  add_attention(t, job);
  t.choice("gemm_algorithms", job.gemm_algorithms,
           {{"first", job::GemmAlgorithms::first}, {"timed", job::GemmAlgorithms::timed}},
           "of a GPU's matrix products: the first that cuBLASLt proposes; timed: rank 0 times several before "
           "the first step, all use its "
           "choices, and they are kept in gemm-algorithms.txt of the output directory for the runs that go "
           "on there")
      .idle_if(job.device != job::DeviceChoice::cuda, "a CPU has no choice of them");
  t.choice(
      "cuda_graphs", job.cuda_graphs, {{"auto", job::CudaGraphs::automatic}, {"off", job::CudaGraphs::off}},
      "on a GPU; auto: operators that repeat with every microbatch are captured and launched as CUDA graphs, "
      "where the host needs at least a quarter of the step's time to launch them one by one, as with small "
      "models; the results are the same to the bit; off: operators are launched one by one; no effect on a "
      "CPU");
  t.choice("isa", job.isa,
           {{"auto", job::IsaChoice::automatic},
            {"portable", job::IsaChoice::portable},
            {"avx2", job::IsaChoice::avx2},
            {"avx512", job::IsaChoice::avx512},
            {"avx512_bf16", job::IsaChoice::avx512_bf16}},
           "instruction set of the CPU's kernels and of oneDNN: avx2 has FMA and F16C, avx512 is F, BW, DQ "
           "and VL, "
           "avx512_bf16 also BF16 and VBMI; "
           "auto: the best that every node has, and that oneDNN may use (`ONEDNN_MAX_CPU_ISA`)")
      .idle_if(job.device == job::DeviceChoice::cuda, "the kernels are a GPU's");
  t.add("threads", &job.threads, "CPU threads of a worker; 0: one for each core").between(0, kMaxThreads);
  t.add("restarts", &job.restarts,
        "how often the workers start again after one has ended by a signal (killed, out of memory, a crash) "
        "or "
        "hung, within 10 minutes: from the newest snapshot in memory, else from the newest checkpoint, else "
        "from the start; one death more ends the run; 0: the first one does. Also `supervise.restarts`")
      .between(0, kMaxRestarts);
  t.add("steps", &job.steps, "optimizer steps of the whole run").between(1, kMaxSteps).needed();
  add_attention_section(t, job);
  add_model(t, job.model);
  add_lora(t, job.model.lora);
  add_parallel(t, job);
  add_recompute(t, job.recompute);
  t.add("batch.global", &job.batch.global,
        "sequences of an optimizer step, over all ranks; where `micro` x dp does not divide it, ranks fill "
        "their last microbatches with padding that has no weight")
      .between(1, kMaxSequences)
      .needed();
  t.add("batch.micro", &job.batch.micro, "sequences of one forward pass of a rank")
      .between(1, kMaxSequences)
      .needed();
  t.add("batch.ramp", MapList(job.batch.ramp, fields_of_batch_span),
        "smaller batches at the start of a run, stage by stage; `global` is of the steps that follow")
      .or_else("none");
  add_precision(t, job.precision);
  add_optimizer(t, job);
  add_objective(t, job);
  add_data(t, job.data);
  add_checkpoint(t, job);
  add_evaluation(t, job);
  t.add("metrics.listen", &job.metrics.listen,
        "host:port of the Prometheus endpoint; a port that is taken: the next free one, with a warning; port "
        "0: any free one; off: none");
  t.add("metrics.discovery", &job.metrics.discovery,
        "directory for Prometheus' `file_sd_configs` (see `deploy/prometheus/`): each process that serves "
        "metrics writes a file with its address there; it removes the file when the run is done or stopped, "
        "and leaves it after a failure or a kill until the run goes on")
      .or_else("none")
      .idle_if(!job.metrics.serves(), "metrics.listen: off serves none");
  t.add("metrics.tensorboard", &job.metrics.tensorboard,
        "write event files for TensorBoard into `tensorboard/` in the output directory");
  t.add("metrics.powercap", &job.metrics.powercap,
        "directory of the kernel's energy counters (RAPL); in a container, where the host's is mounted; they "
        "are read where this user may")
      .idle_if(!job.metrics.serves() && !job.metrics.otlp.sends(), "metrics are neither served nor sent");
  t.add(
       "metrics.mlflow.uri", &job.metrics.mlflow.uri,
       "http(s)://host:port of an MLflow server that logs the run; one that is down never holds up training; "
       "credentials come from `MLFLOW_TRACKING_TOKEN`, or `MLFLOW_TRACKING_USERNAME` and "
       "`MLFLOW_TRACKING_PASSWORD`")
      .or_else("none");
  t.add("metrics.mlflow.experiment", &job.metrics.mlflow.experiment,
        "the run's experiment there; made where it is not there")
      .idle_if(!job.metrics.mlflow.logs(), "there is no metrics.mlflow.uri");
  t.add("metrics.otlp.endpoint", &job.metrics.otlp.endpoint,
        "http://host:port of an OpenTelemetry receiver, to whose path `/v1/metrics` each node posts the same "
        "metrics (OTLP, binary); one that is down never holds up training")
      .or_else("none");
  t.add("metrics.otlp.every", Duration{&job.metrics.otlp.every_seconds}, "time between two posts")
      .above(0)
      .idle_if(!job.metrics.otlp.sends(), "there is no metrics.otlp.endpoint");
  add_group_norms(t, job.metrics);
  t.add("trace.steps", &job.trace.steps,
        "steps of which a trace is written to `traces/` in the output directory, for Perfetto")
      .between(1, kMaxSteps)
      .or_else("none");
  add_faults(t, job.faults);
  t.add("cluster.preset", &job.cluster.preset,
        "the machines; local: this one, as detected; else a built-in cluster (`dgx-a100`, `dgx-h100`, "
        "`dgx-h200`, "
        "`dgx-b200`, `gb200-nvl72`) or the path of a YAML file like those in `configs/clusters/`, which "
        "`validate` "
        "places the ranks on and `run` refuses where its devices, by name, are not this machine's");
  t.add("cluster.nodes", &job.cluster.nodes,
        "machines of the job, with as many ranks on each; an agent (`trainerd run`) on every one")
      .between(1, kMaxRanks)
      .or_else("1; under `srun` the nodes of its step; of a preset as many as the ranks need");
  t.choice("cluster.communication", job.cluster.communication,
           {{"auto", parallel::Communication::automatic},
            {"nccl", parallel::Communication::nccl},
            {"staged", parallel::Communication::staged}},
           "how ranks on CUDA devices reach each other; nccl: each on a device of its own; staged: through "
           "host memory, slowly, so "
           "that several may share a device; auto: nccl")
      .idle_if(job.device != job::DeviceChoice::cuda && job.cluster.preset == "local",
               "on CPUs ranks share memory, or use Gloo between nodes");
  t.add(
       "cluster.timeout", Duration{&job.cluster.timeout_seconds},
       "longest time that a communication of the ranks takes; then the run ends, and says what each rank did "
       "last")
      .above(0);
  add_supervise(t, job);
  return t.take();
}

bool same_value(const Storage& a, const Storage& b) {
  return std::visit(
      [&](const auto& value) {
        using Held = std::decay_t<decltype(value)>;
        if constexpr (std::is_pointer_v<Held>) return *value == *std::get<Held>(b);
        if constexpr (std::is_same_v<Held, Choice>) return *value.value == *std::get<Held>(b).value;
        return false;
      },
      a);
}

std::string section_of(const std::string& path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string::npos ? std::string() : path.substr(0, dot);
}

}  // namespace trainerd::core::spec
