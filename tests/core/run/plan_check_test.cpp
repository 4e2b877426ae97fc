#include "core/run/worker/plan_check.h"

#include <catch2/catch.hpp>

#include "core/plan/predict/plan.h"
#include "core/spec/machines.h"
#include "core/spec/spec.h"
#include "kernels/base/error.h"

using namespace trainerd;

namespace {

io::StepRecord step_of(std::int64_t step, double compute, double optimizer) {
  io::StepRecord record;
  record.step = step;
  record.time[base::LedgerPart::compute] = compute;
  record.time[base::LedgerPart::optimizer] = optimizer;
  record.step_seconds = record.time.sum();
  return record;
}

/// A plan: a step of 2 s, 1.5 s of compute and 0.5 s of optimizer; 1,000 bytes on each of two ranks.
core::run::Planned planned() {
  core::run::Planned p;
  p.step_seconds = 2;
  p.time[base::LedgerPart::compute] = 1.5;
  p.time[base::LedgerPart::optimizer] = 0.5;
  p.bytes = {{0, 1000}, {1, 1000}};
  return p;
}

const io::PredictionTerm& term(const io::PredictionRecord& record, const std::string& name) {
  for (const io::PredictionTerm& t : record.terms)
    if (t.name == name) return t;
  throw std::logic_error("no term " + name);
}

}  // namespace

TEST_CASE("the plan is compared with the medians of steps 5 to 20, once every rank has reported its memory",
          "[plan_check]") {
  core::run::PlanCheck check(planned(), 100, 1000);
  for (std::int64_t step = 101; step <= 120; ++step) {
    CHECK_FALSE(check.take());
    // The first steps and one later step are slow.
    check.add(step < 105 ? step_of(step, 50, 1) : step_of(step, step == 110 ? 90 : 1.8, 0.4));
  }
  CHECK_FALSE(check.take());
  check.add_memory(0, 1000);
  CHECK_FALSE(check.take());
  check.add_memory(1, 900);
  const auto record = check.take();
  REQUIRE(record);
  CHECK(record->first_step == 105);
  CHECK(record->last_step == 120);
  CHECK(term(*record, "step_seconds").measured == Approx(2.2));
  CHECK(term(*record, "step_seconds").error == Approx(0.1));
  CHECK(term(*record, "compute").measured == Approx(1.8));
  CHECK(term(*record, "compute").error == Approx(0.3 / 2));
  CHECK(term(*record, "optimizer").error == Approx(-0.1 / 2));
  CHECK(term(*record, "memory_bytes").predicted == 2000);
  CHECK(term(*record, "memory_bytes").error == Approx(-0.05));
  CHECK_FALSE(check.take());  // reported only once
}

TEST_CASE("only steps of the planned batch are compared with the plan", "[plan_check][ramp]") {
  for (const std::int64_t boundary : {110, 118}) {
    CAPTURE(boundary);
    core::run::Planned of_large = planned();
    of_large.samples = 8;
    core::run::PlanCheck check(of_large, 100, 1000);
    for (std::int64_t step = 101; step <= 120; ++step) {
      io::StepRecord record = step_of(step, step <= boundary ? 0.1 : 1.8, 0.4);
      record.samples = step <= boundary ? 2 : 8;
      check.add(record);
    }
    check.add_memory(0, 1000), check.add_memory(1, 1000);
    const auto record = check.take();
    REQUIRE(record);
    if (boundary == 110) CHECK(term(*record, "step_seconds").measured == Approx(2.2));
    else CHECK(record->terms.size() == 1);  // memory: two steps are too few
  }
}

TEST_CASE("a short run is compared by its steps, a shorter one not at all, and without rates only memory",
          "[plan_check]") {
  core::run::Planned memory = planned();
  memory.step_seconds.reset();
  core::run::PlanCheck check(memory, 0, 8);
  for (std::int64_t step = 1; step <= 8; ++step) check.add(step_of(step, 1, 1));
  check.add_memory(0, 1000), check.add_memory(1, 1000);
  const auto record = check.take();
  REQUIRE(record);
  CHECK(record->last_step == 8);
  REQUIRE(record->terms.size() == 1);
  CHECK(record->terms[0].error == 0);

  core::run::PlanCheck shorter(planned(), 0, 6);
  for (std::int64_t step = 1; step <= 6; ++step) shorter.add(step_of(step, 1, 1));
  shorter.add_memory(0, 1000), shorter.add_memory(1, 1000);
  CHECK_FALSE(shorter.take());
}

TEST_CASE("a cluster's rates apply to a machine with the same kind of devices", "[plan_check]") {
  const parallel::Topology cluster = core::spec::named_cluster("dgx-h100", "--rates");
  parallel::Topology here;
  here.device.kind = kernels::DeviceKind::cuda;
  here.device.name = "a GPU";
  here.devices_per_node = 2;
  here.device_memory_bytes = 1000;
  const parallel::Topology rated = core::spec::with_rates(here, cluster);
  CHECK(rated.rates.known());
  CHECK(rated.rail == cluster.rail);
  CHECK(rated.peak == cluster.peak);
  CHECK(rated.devices_per_node == 2);
  CHECK(rated.device_memory_bytes == 1000);
  CHECK(rated.device.name == "a GPU");
  // The cluster defines the links between devices, so that a layout over several devices has link speeds.
  CHECK(rated.nvlink_domain == cluster.nvlink_domain);
  CHECK(rated.rails == cluster.rails);
  const core::job::JobSpec job = core::spec::parse_job(
      "model: {preset: llama-3-8b}\nsteps: 1\ncluster: {preset: dgx-h100}\nparallel: {dp: 2}\n"
      "batch: {global: 2, micro: 1}\nprecision: bf16\ndata: {format: synthetic}\n",
      "job.yaml");
  CHECK(core::plan::make_plan(job, rated).timed);
  here.device.kind = kernels::DeviceKind::cpu;
  CHECK_THROWS_AS(core::spec::with_rates(here, cluster), base::SpecError);
}
