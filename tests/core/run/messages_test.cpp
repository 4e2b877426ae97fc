#include "core/run/wire/messages.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "kernels/base/error.h"

using namespace trainerd;
using namespace trainerd::core;

TEST_CASE("every dtype of a slice crosses the channel by its name", "[messages]") {
  run::Ready ready;
  ready.device = "cpu";
  ready.pci_bus_id = "0000:65:00.0";
  ready.groups_seconds = 0.125;
  using kernels::DType;
  for (const DType dtype : {DType::f32, DType::bf16, DType::i32, DType::f64, DType::u8})
    ready.slices.push_back({"w", dtype, {4, 6}, {1, 2}, {3, 4}});
  ready.gemm_algorithms = "made by hand\n1 2 3\n";
  const std::string text = run::encode(run::WorkerMessage{ready});
  CHECK(text.find("\"bf16\"") != std::string::npos);
  const run::Ready back = std::get<run::Ready>(run::decode_worker_message(text));
  CHECK(back.pci_bus_id == ready.pci_bus_id);
  CHECK(back.groups_seconds == ready.groups_seconds);
  REQUIRE(back.slices.size() == 5);
  CHECK(back.gemm_algorithms == ready.gemm_algorithms);
  for (std::size_t i = 0; i < 5; ++i) {
    CHECK(back.slices[i].dtype == ready.slices[i].dtype);
    CHECK(back.slices[i].begin == ready.slices[i].begin);
  }
  std::string wrong = text;
  wrong.replace(wrong.find("\"bf16\""), 6, "\"bf61\"");
  CHECK_THROWS_AS(run::decode_worker_message(wrong), base::CommError);
}

TEST_CASE("a worker's start crosses the channel with its agent's record of the data", "[messages]") {
  run::Start start;
  start.rank = 3;
  start.data_content = "0123";
  start.weights_path = "runs/a/checkpoints/step-00000006";
  start.weights_content = "4567";
  start.order = {.start = 40, .sources = {{2, 7}, {0, 33}}};
  const run::Start back =
      std::get<run::Start>(run::decode_agent_message(run::encode(run::AgentMessage{start})));
  CHECK(back.rank == 3);
  CHECK(back.data_content == "0123");
  CHECK(back.weights_path == start.weights_path);
  CHECK(back.weights_content == "4567");
  CHECK(back.order == start.order);
}

TEST_CASE("a start carries the layout of its world and the snapshots to restore", "[messages]") {
  parallel::ParallelOptions options;
  options.tp = 2, options.pp = 2, options.dp = 4, options.zero = 2, options.zero_group = 2, options.etp = 1;
  options.schedule = parallel::ScheduleKind::interleaved, options.virtual_stages = 2;
  options.order = "dp-tp-cp-ep-pp", options.sequence_parallel = true, options.overlap_p2p = false,
  options.overlap_ep = false, options.offload_params = true,
  options.cp_comm = parallel::ContextComm::all_gather, options.ep_capacity = 1.5,
  options.ep_comm = parallel::ExpertComm::all_to_all, options.tp_overlap_chunks = 2,
  options.bucket_bytes = 4096, options.overlap_tp_backward = options.overlap_grad_reduce = false,
  options.overlap_param_gather = false, options.allow_tp_across_nodes = true, options.offload_grads = true,
  options.offload_activations = true;
  parallel::Topology topology;
  topology.nodes = 2, topology.devices_per_node = 8;
  run::Start start;
  start.layout = parallel::resolve_layout(options, topology, {.layers = 8}, 4);
  start.node_first = 8, start.node_count = 8, start.attempt = 2;
  start.held = {{640, {{"w", kernels::DType::f32, {4, 6}, {1, 2}, {3, 4}, "w#1"}}}};
  start.newest_segment = 1, start.busy_segments = {0};
  const run::Start back =
      std::get<run::Start>(run::decode_agent_message(run::encode(run::AgentMessage{start})));
  const parallel::Layout &was = start.layout, &is = back.layout;
  CHECK(is.options == was.options);
  CHECK(is.chunks == was.chunks);
  CHECK(is.grid.order() == was.grid.order());
  for (std::int64_t rank = 0; rank < was.grid.ranks(); ++rank)
    CHECK(is.grid.coordinate(rank) == was.grid.coordinate(rank));
  CHECK((is.dp_levels.size == 4 && is.dp_levels.inner == 2 && is.dp_levels.replicas));
  CHECK((back.node_first == 8 && back.node_count == 8 && back.attempt == 2 && back.newest_segment == 1));
  CHECK(back.busy_segments == start.busy_segments);
  REQUIRE(back.held.size() == 1);
  CHECK(back.held[0].bytes == 640);
  REQUIRE(back.held[0].slices.size() == 1);
  CHECK(back.held[0].slices[0].stored_name() == "w#1");
}

TEST_CASE("an evaluation that is not finite crosses the channel", "[messages]") {
  const io::EvaluationRecord record{.step = 3, .loss = std::nan(""), .tokens = 5, .seconds = 0.25};
  const auto back =
      std::get<io::EvaluationRecord>(run::decode_worker_message(run::encode(run::WorkerMessage{record})));
  CHECK(std::isnan(back.loss));
  CHECK(back.step == 3);
  CHECK(back.seconds == 0.25);
}

TEST_CASE("an evaluation's progress and a rank's request to stop cross the channel", "[messages]") {
  const auto progress = std::get<io::EvaluationProgress>(
      run::decode_worker_message(run::encode(run::WorkerMessage{io::EvaluationProgress{7, 2, 9}})));
  CHECK((progress.step == 7 && progress.done == 2 && progress.batches == 9));
  const auto reference = std::get<run::ReferenceProgress>(
      run::decode_worker_message(run::encode(run::WorkerMessage{run::ReferenceProgress{12, 20, 1.5}})));
  CHECK((reference.done == 12 && reference.pairs == 20 && reference.seconds == 1.5));
  CHECK(std::get<run::StopNeeded>(
            run::decode_worker_message(encode(run::WorkerMessage{run::StopNeeded{"SIGXCPU"}})))
            .reason == "SIGXCPU");
  run::Start start;
  start.evaluate_first = true;
  CHECK(std::get<run::Start>(run::decode_agent_message(encode(run::AgentMessage{start}))).evaluate_first);
}

TEST_CASE("a worker's notice crosses the channel", "[messages]") {
  const io::NoticeRecord notice{io::NoticeKind::warning, 4, "slow", {"by 2 s"}};
  const auto reported =
      std::get<io::NoticeRecord>(run::decode_worker_message(run::encode(run::WorkerMessage{notice})));
  CHECK(reported.kind == notice.kind);
  CHECK(reported.step == 4);
  CHECK(reported.message == "slow");
  CHECK(reported.details == notice.details);
}

TEST_CASE("a snapshot's outcome crosses the channel", "[messages]") {
  CHECK(std::get<run::SnapshotSaved>(
            run::decode_agent_message(encode(run::AgentMessage{run::SnapshotSaved{1}})))
            .segment == 1);
  CHECK(std::get<run::SnapshotDelayed>(
            run::decode_agent_message(encode(run::AgentMessage{run::SnapshotDelayed{1}})))
            .segment == 1);
}

TEST_CASE("a snapshot's purpose crosses the channel", "[messages]") {
  for (const run::SnapshotUse use : {run::SnapshotUse::checkpoint, run::SnapshotUse::memory}) {
    const run::SnapshotReady ready{2, use, 640, 7, 28, 1792, 0.25};
    const auto back =
        std::get<run::SnapshotReady>(run::decode_worker_message(encode(run::WorkerMessage{ready})));
    CHECK((back.segment == 2 && back.use == use && back.bytes == 640 && back.step == 7));
    CHECK((back.cursor == 28 && back.tokens == 1792 && back.seconds == 0.25));
  }
}

TEST_CASE("a rank's status crosses the channel", "[messages]") {
  const io::RankStatusRecord was{.rank = 3,
                                 .step = 70,
                                 .steps = 20,
                                 .step_seconds = 0.125,
                                 .time = {{base::LedgerPart::compute, 2.25}, {base::LedgerPart::other, 0.5}},
                                 .memory_used_bytes = std::int64_t{1} << 40,
                                 .memory_planned_bytes = (std::int64_t{1} << 40) + 1,
                                 .resident_bytes = 77,
                                 .reads = io::ObjectReads{1, 2, std::int64_t{1} << 40, 4, 5, 6}};
  const auto is = std::get<io::RankStatusRecord>(run::decode_worker_message(encode(run::WorkerMessage{was})));
  CHECK((is.rank == 3 && is.step == 70 && is.steps == 20 && is.step_seconds == 0.125));
  CHECK(
      (is.memory_used_bytes == was.memory_used_bytes && is.memory_planned_bytes == was.memory_planned_bytes));
  CHECK(is.resident_bytes == 77);
  REQUIRE(is.reads);
  CHECK((is.reads->requests == 1 && is.reads->retries == 2 && is.reads->bytes == std::int64_t{1} << 40));
  CHECK((is.reads->cached_bytes == 4 && is.reads->cache_failures == 5 && is.reads->renewals == 6));
  const auto local = io::RankStatusRecord{.rank = 1, .time = {}};
  CHECK_FALSE(
      std::get<io::RankStatusRecord>(run::decode_worker_message(encode(run::WorkerMessage{local}))).reads);
  for (const base::LedgerPartInfo& part : base::kLedgerParts)
    CHECK(is.time[part.part] == was.time[part.part]);
}

TEST_CASE("a rank's memory crosses the channel", "[messages]") {
  CHECK(std::get<run::MemoryUsed>(
            run::decode_worker_message(encode(run::WorkerMessage{run::MemoryUsed{std::int64_t{1} << 40}})))
            .bytes == std::int64_t{1} << 40);
}

TEST_CASE("a part of a trace crosses the channel unchanged", "[messages]") {
  const io::TraceSlice slice{.name = "tp all_reduce",
                             .category = "exposed_tp",
                             .process = 3,
                             .row = 1,
                             .start_seconds = 86400.000000001,
                             .seconds = 1e-9,
                             .numbers = {{"chunk", 0}, {"bytes", 1ll << 40}},
                             .label = "attention"};
  const auto back = std::get<run::StepTrace>(
      run::decode_worker_message(run::encode(run::WorkerMessage{run::StepTrace{5, {slice, slice}, true}})));
  CHECK(back.step == 5);
  CHECK(back.last);
  REQUIRE(back.slices.size() == 2);
  const io::TraceSlice& s = back.slices[1];
  CHECK(s.name == slice.name);
  CHECK(s.category == slice.category);
  CHECK(s.process == 3);
  CHECK(s.row == 1);
  CHECK(s.start_seconds == slice.start_seconds);
  CHECK(s.seconds == slice.seconds);
  CHECK(s.numbers == slice.numbers);
  CHECK(s.label == slice.label);
}

TEST_CASE("text that is no message is a communication error, whatever is wrong with it", "[messages]") {
  for (
      const std::string text :
      {"", "{", "[]", "{}", R"({"type":"party"})", R"({"type":"step","line":"{}"})",
       R"({"type":"step","line":"{\"step\":"})", R"({"type":"step"})", R"({"type":"evaluation","line":"{}"})",
       R"({"type":"evaluation","line":"{\"event\":\"checkpoint\",\"step\":1,\"bytes\":1,\"snapshot_seconds\":1,\"write_seconds\":1,\"path\":\"\"}"})",
       R"({"type":"failed","kind":"mood","message":""})",
       R"({"type":"finished","step":"one","stopped":false})"}) {
    INFO(text);
    CHECK_THROWS_AS(run::decode_worker_message(text), base::CommError);
  }
  CHECK_THROWS_AS(run::decode_agent_message(R"({"type":"finished"})"), base::CommError);
  CHECK_THROWS_AS(run::decode_agent_message(R"({"type":"start","job":1})"), base::CommError);
}

TEST_CASE("a fault and the hashes of copies cross the channel", "[messages]") {
  const run::FaultInjected fault{
      "drop_link step 3 rank 0", "injected", job::FaultKind::drop_link, 2.5, 3, 79};
  const auto reported =
      std::get<run::FaultInjected>(run::decode_worker_message(run::encode(run::WorkerMessage{fault})));
  CHECK((reported.id == fault.id && reported.message == fault.message &&
         reported.at_agent == fault.at_agent && reported.seconds == fault.seconds && reported.rank == 3 &&
         reported.xid == 79));
  const run::CopiesHashed hashes{2, 15, {"a [0:2]"}, {0xffffffffffffffffu, 1}, 3};
  const auto back =
      std::get<run::CopiesHashed>(run::decode_worker_message(run::encode(run::WorkerMessage{hashes})));
  CHECK((back.rank == 2 && back.step == 15 && back.attempt == 3));
  CHECK(back.names == hashes.names);
  CHECK(back.hashes == hashes.hashes);
  const run::ResultsDiffer differ{2, 15, {"w", "loss"}, {1, 2}, run::ResultsDiffer::Found::after_spike, 3};
  const auto differs =
      std::get<run::ResultsDiffer>(run::decode_worker_message(run::encode(run::WorkerMessage{differ})));
  CHECK((differs.rank == 2 && differs.step == 15 && differs.attempt == 3 && differs.found == differ.found));
  CHECK((differs.tensors == differ.tensors && differs.ranks == differ.ranks));
  const run::SpikeActed spike{7, core::job::SpikeAction::rollback, 2, "back", 96};
  const auto acted =
      std::get<run::SpikeActed>(run::decode_worker_message(run::encode(run::WorkerMessage{spike})));
  CHECK((acted.step == 7 && acted.action == spike.action && acted.used == 2 && acted.message == "back" &&
         acted.cursor == 96));
  run::Start start;
  start.spikes = {.used = {1, 0, 2}, .losses = {0.1, 2.5}, .norms = {1e-300, 3}};
  const auto history =
      std::get<run::Start>(run::decode_agent_message(encode(run::AgentMessage{start}))).spikes;
  CHECK((history.used == start.spikes.used && history.losses == start.spikes.losses &&
         history.norms == start.spikes.norms));
  start.faults_done = {"x", "y"};
  start.peak_flops = 1.5e12;
  CHECK(std::get<run::Start>(run::decode_agent_message(encode(run::AgentMessage{start}))).peak_flops ==
        1.5e12);
  CHECK(std::get<run::Start>(run::decode_agent_message(encode(run::AgentMessage{start}))).faults_done ==
        start.faults_done);
}
