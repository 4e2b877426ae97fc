// The results of calibrate: curves, the cluster file, and plans from it. No test here measures time.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "core/plan/calibrate/calibrate.h"
#include "core/plan/calibrate/operator_samples.h"
#include "core/plan/cost/cost_model.h"
#include "core/plan/cost/measured_cost.h"
#include "core/plan/predict/plan.h"
#include "core/spec/cluster.h"
#include "core/spec/machines.h"
#include "core/spec/spec.h"
#include "kernels/base/error.h"

using namespace trainerd;
using kernels::DType;

namespace {

core::plan::OperatorSamples::Sample product(std::int64_t m, std::int64_t n, std::int64_t k, double seconds) {
  const double flops = 2.0 * static_cast<double>(m * n * k),
               bytes = 4.0 * static_cast<double>(m * k + n * k + m * n);
  return {{kernels::Operator::linear_fprop,
           kernels::gemm_class(kernels::GemmRole::fprop, DType::f32, DType::f32, m, n, k),
           {flops, bytes}},
          seconds,
          1};
}

core::plan::OperatorSamples::Sample memory(kernels::Operator op, double bytes, double seconds) {
  return {{op, {.dtype = DType::f32}, {0, bytes}}, seconds, 1};
}

/// A machine with products at 100 and 200 GFLOP/s and other operators at 10 GB/s. Two busy devices take 1.5
/// times as long.
core::plan::Calibration made_up() {
  core::plan::Calibration made;
  parallel::Topology& t = made.topology;
  t.devices_per_node = 2;
  t.device.name = "a \"processor\"";
  t.device.isa = kernels::Isa::avx512_bf16;
  t.device.bf16_gemm = t.device.amx = true;
  t.node_memory_bytes = std::int64_t{64} << 30;
  t.peak.fp32 = 1e11, t.peak.bf16 = 2e11;
  parallel::MeasuredRates& rates = t.measured;
  rates.devices = 2;
  rates.operator_seconds = 1e-6;
  for (const char* dtype : {"fp32", "bf16"}) {
    const double rate = dtype == std::string("fp32") ? 1e11 : 2e11;
    for (const char* op : {"linear_fprop", "linear_dgrad", "linear_wgrad", "linear_swiglu",
                           "linear_dgrad_swiglu", "attention_forward", "attention_backward"}) {
      rates.alone[std::string(op) + "." + dtype] = {1e-6, 1 / rate, 0, 0, 0, 0};
      rates.crowded[std::string(op) + "." + dtype] = {1e-6, 1.5 / rate, 0, 0, 0, 0};
    }
    rates.alone[std::string("other.") + dtype] = {1e3, 1e-7, 1e9, 0.1};
    rates.crowded[std::string("other.") + dtype] = {1e3, 1.5e-7, 1e9, 0.15};
  }
  for (const char* operation :
       {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "barrier", "message"})
    rates.collectives[operation] = {64, 2e-6, 1e9, 0.2};
  return made;
}

class File {
 public:
  explicit File(const std::string& text)
      : path_(std::filesystem::temp_directory_path() / "trainerd-calibrate-test.yaml") {
    std::ofstream(path_) << text;
  }
  ~File() { std::filesystem::remove(path_); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

core::plan::Plan plan_on(const std::string& cluster, const std::string& more, std::int64_t micro = 4) {
  const core::job::JobSpec job = core::spec::parse_job(
      "model: {layers: 4, hidden: 256, heads: 4, ffn: 704, vocab: 512, seq_len: 128}\ndevice: cpu\nthreads: "
      "1\nsteps: 10\nbatch: {global: 16, micro: " +
          std::to_string(micro) +
          "}\ndata: {format: synthetic}\nprecision: fp32\ncluster: {preset: " + cluster + "}\n" + more,
      "job.yaml");
  return core::plan::make_plan(job, core::spec::job_topology(job));
}

}  // namespace

TEST_CASE("the fit of a product's curve recovers the terms of its samples", "[calibrate]") {
  std::vector<core::plan::OperatorSamples::Sample> samples;
  const auto seconds = [](double m, double n, double k) {
    const double out_of_cache = std::max(0.0, 4 * (m * k + n * k + m * n) - (1 << 20));
    return 3e-6 + 2 * m * n * k / 2e11 + m * k * 5e-11 + out_of_cache / 2e10;
  };
  for (const std::int64_t m : {64, 512, 4096})
    for (const std::int64_t n : {96, 384, 1536})
      for (const std::int64_t k : {64, 256, 1024})
        samples.push_back(product(
            m, n, k, seconds(static_cast<double>(m), static_cast<double>(n), static_cast<double>(k))));
  const core::plan::FittedCurves fitted = core::plan::fit_curves(samples);
  CHECK(fitted.error < 1e-3);
  parallel::MeasuredRates rates;
  rates.alone = fitted.curves;
  CHECK(core::plan::measured_seconds(product(200, 700, 300, 1).op, rates) ==
        Approx(seconds(200, 700, 300)).epsilon(0.01));
  for (const double term : rates.alone.at("linear_fprop.fp32")) CHECK(term >= 0);
}

TEST_CASE("other operators have one point per doubling of their bytes", "[calibrate]") {
  const core::plan::FittedCurves fitted = core::plan::fit_curves(
      {memory(kernels::Operator::scale, 1e4, 1e-6), memory(kernels::Operator::scale, 1.1e4, 1e-6),
       memory(kernels::Operator::scale, 1e6, 1e-4)});
  const std::vector<double>& points = fitted.curves.at("scale.fp32");
  REQUIRE(points.size() == 4);
  CHECK(core::plan::on_points(points, points[0]) == Approx(1e-6));
  CHECK(core::plan::on_points(points, 1e7) == Approx(1e-3));
  CHECK(core::plan::on_points(points, 1e5) == Approx(1e-5).epsilon(0.1));
  CHECK(core::plan::on_points(points, 1) == Approx(5e-7));
  CHECK(fitted.curves.at("other.fp32") == points);
}

TEST_CASE("a cluster file that calibrate writes is read back, and plans jobs of this kind of machine",
          "[calibrate]") {
  const File file(core::plan::cluster_yaml(made_up(), "made up"));
  core::spec::Problems problems;
  const auto topology = core::spec::read_cluster(
      file.path(), {problems.add_source("test", core::spec::Problems::SourceKind::argument), 1, 1}, problems);
  problems.throw_if_any();
  REQUIRE(topology);
  CHECK(topology->device.kind == kernels::DeviceKind::cpu);
  CHECK(topology->devices_per_node == 2);
  CHECK(topology->measured.alone == made_up().topology.measured.alone);
  CHECK(topology->measured.collectives == made_up().topology.measured.collectives);

  const core::plan::Plan one = plan_on(file.path(), "");
  REQUIRE(one.timed);
  const double step = one.time.step_seconds;
  CHECK(std::isfinite(step));
  CHECK(one.time.mean.sum() == Approx(step));
  // The products alone take their FLOPs / 100 GFLOP/s.
  CHECK(step > one.hardware_tflops_per_device * 1e12 * step / 1e11 * 0.99);
  const core::plan::Plan two = plan_on(file.path(), "parallel: {dp: 2}\n");
  CHECK(two.time.step_seconds > 0.5 * step);  // the two devices slow each other
  CHECK(two.time.step_seconds < step);
  CHECK(two.time.mean.sum() == Approx(two.time.step_seconds));
  CHECK(plan_on(file.path(), "recompute: {kind: full}\n").time.step_seconds > step);
  CHECK(plan_on(file.path(), "parallel: {pp: 2}\n", 1).time.bubble > 0);
  CHECK(plan_on(file.path(), "parallel: {tp: 2}\n").time.mean[base::LedgerPart::exposed_tp] > 0);
}

TEST_CASE("a calibrated machine has no times of a job in fp16, and says why", "[calibrate]") {
  const parallel::Topology topology = made_up().topology;
  core::job::JobSpec job;
  CHECK(core::plan::has_rates(topology, job));
  job.precision.compute = kernels::DType::f16;
  CHECK_FALSE(core::plan::has_rates(topology, job));
  CHECK(core::plan::how_to_get_rates(topology, job) ==
        "calibrations measure fp32 and bf16, and the job computes in fp16");
}

TEST_CASE("a curve of any operator and dtype is read back", "[calibrate]") {
  core::plan::Calibration made = made_up();
  parallel::MeasuredRates& rates = made.topology.measured;
  for (std::size_t i = 0; i < static_cast<std::size_t>(kernels::Operator::write); ++i)
    for (const DType dtype : {DType::f32, DType::bf16, DType::i32, DType::f64, DType::u8}) {
      const auto op = static_cast<kernels::Operator>(i);
      const kernels::OpClass what{.dtype = dtype};
      // made_up() has the coefficients of products and attention.
      const std::string name = core::plan::curve_of(op, what);
      if (!name.starts_with("linear") && !name.starts_with("attention"))
        rates.alone[core::plan::curve_of(op, what)] =
            rates.crowded[core::plan::curve_of(op, what)] = {1e3, 1e-7, 1e9, 0.1};
      rates.alone[core::plan::other_curve(dtype)] = {1e3, 1e-7, 1e9, 0.1};
    }
  const File file(core::plan::cluster_yaml(made, "made up"));
  core::spec::Problems problems;
  const auto topology = core::spec::read_cluster(
      file.path(), {problems.add_source("test", core::spec::Problems::SourceKind::argument), 1, 1}, problems);
  problems.throw_if_any();
  REQUIRE(topology);
  CHECK(topology->measured.alone.contains("check_ids.int32"));
  CHECK(topology->measured.alone == rates.alone);
  CHECK(topology->measured.crowded == rates.crowded);
}

TEST_CASE("a cluster file of a CPU with keys for GPUs only, or with a broken curve, is refused",
          "[calibrate]") {
  const std::string good = core::plan::cluster_yaml(made_up(), "made up");
  const auto refused = [](const std::string& text) {
    const File file(text);
    core::spec::Problems problems;
    const core::spec::Place place{problems.add_source("test", core::spec::Problems::SourceKind::argument), 1,
                                  1};
    core::spec::read_cluster(file.path(), place, problems);
    CHECK_THROWS_AS(problems.throw_if_any(), base::SpecError);
  };
  refused(good + "rails: 8\n");
  refused(good + "kind2: cpu\n");
  std::string broken = good;
  broken.replace(broken.find("barrier: ["), 10, "barrier: [5, ");
  refused(broken);
}
