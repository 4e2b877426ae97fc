// The job's keys for attention on a GPU, and a run's reaction to calls that fell back.

#include <catch2/catch.hpp>

#include "core/run/worker/report_record.h"
#include "core/spec/spec.h"
#include "kernels/base/error.h"

using namespace trainerd;

namespace {

core::job::JobSpec with_attention(const std::string& attention) {
  return core::spec::parse_job(
      "model: {layers: 2, hidden: 256, heads: 4, ffn: 512, vocab: 512, seq_len: 256}\n"
      "batch: {global: 8, micro: 4}\nsteps: 3\ndata: {format: synthetic}\ndevice: cuda\n" +
          (attention.empty() ? "" : "attention: " + attention + "\n"),
      "job.yaml");
}

}  // namespace

TEST_CASE("attention has a short form and a map", "[spec][attention]") {
  using core::job::AttentionRequire, kernels::Determinism;
  CHECK(with_attention("").attention.backward == Determinism::deterministic);
  CHECK(with_attention("").attention.require == AttentionRequire::any);
  CHECK(with_attention("fast").attention.backward == Determinism::fast);
  CHECK(with_attention("{backward: fast}") == with_attention("fast"));
  CHECK(with_attention("{}") == with_attention("deterministic"));
  const core::job::JobSpec strict = with_attention("{backward: fast, require: library}");
  CHECK(strict.attention.backward == Determinism::fast);
  CHECK(strict.attention.require == AttentionRequire::library);
  CHECK(with_attention("{require: library}").attention.backward == Determinism::deterministic);
  for (const std::string text : {"", "fast", "{require: library}", "{backward: fast, require: library}"})
    CHECK(core::spec::parse_job(core::spec::to_yaml(with_attention(text)), "resolved.yaml") ==
          with_attention(text));
  CHECK(core::spec::to_yaml(with_attention("fast")).find("attention: fast\n") != std::string::npos);
  CHECK_THROWS_WITH(with_attention("{require: fast}"),
                    Catch::Contains("attention.require: expected any or library"));
  CHECK_THROWS_WITH(with_attention("{forward: fast}"), Catch::Contains("attention.forward: unknown key"));
  CHECK_THROWS_WITH(with_attention("quick"), Catch::Contains("attention: expected deterministic or fast"));
}

TEST_CASE("attention calls that fell back are reported, or end the run", "[run][attention]") {
  kernels::BackendCounters counters{.own_attention = 5};
  io::StepRecord record;
  record.step = 7;
  core::run::put_counters(counters, with_attention(""), record);
  CHECK(record.own_attention == 5);
  CHECK(core::run::attention_warning(record, "cuDNN 9.19.0").empty());  // the plan expected them
  counters.attention_fallbacks = 3;
  core::run::put_counters(counters, with_attention(""), record);
  CHECK_THAT(core::run::attention_warning(record, "cuDNN 9.19.0"),
             Catch::Contains("3 calls of attention") && Catch::Contains("planned for cuDNN 9.19.0"));
  CHECK(io::parse_step_record(io::to_json_line(record)).attention_fallbacks == 3);
  CHECK(io::to_json_line(io::StepRecord{}).find("attention") == std::string::npos);
  CHECK_THROWS_WITH(core::run::put_counters(counters, with_attention("{require: library}"), record),
                    Catch::Contains("step 7: attention.require is library, and 5 calls"));
  CHECK_THROWS_AS(core::run::put_counters(counters, with_attention("{require: library}"), record),
                  base::SpecError);
  CHECK_NOTHROW(core::run::put_counters({}, with_attention("{require: library}"), record));
}
