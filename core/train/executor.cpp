// The executor of the schedule's actions: the only code that knows the schedule.

#include <algorithm>
#include <array>
#include <functional>

#include "core/train/canary_step.h"
#include "core/train/trainer.h"

namespace trainerd::core::train {

using namespace kernels;
using parallel::Action;
using parallel::ActionKind;

namespace {

/// Releases what forward kept for the backward of input gradients.
void release_to_backward(const model::Frame& frame) {
  frame.to_backward->release(0);
  if (frame.host != nullptr) frame.host->release(0);
}

Activity activity_of(ActionKind kind) {
  if (kind == ActionKind::forward_only) return Activity::evaluation;
  return kind == ActionKind::forward ? Activity::forward : Activity::backward;
}

}  // namespace

int Trainer::slot_of(const PassSchedule& schedule, const Action& action, SlotClass slot_class) const {
  return schedule.slots[static_cast<std::size_t>(slot_class)].slot_of_microbatch[static_cast<std::size_t>(
      local(action.chunk))][static_cast<std::size_t>(action.microbatch)];
}

Tensor Trainer::received(const PassSchedule& schedule, const Action& action, SlotClass slot_class) {
  Arena& arena = memory_.slot(0, slot_class, slot_of(schedule, action, slot_class));
  // The slot holds one tensor: taking it again returns the same place.
  arena.release(0);
  return arena.take(job_.precision.compute, {flow_rows(), job_.model.hidden}, MemoryTerm::activations);
}

model::Frame& Trainer::frame_of(const PassSchedule& schedule, const Action& action) {
  const int pool = memory_.pool_of_chunk()[static_cast<std::size_t>(local(action.chunk))];
  return frames_[static_cast<std::size_t>(pool)]
                [static_cast<std::size_t>(slot_of(schedule, action, SlotClass::forward_to_weight))];
}

std::int64_t Trainer::flow_rows() const { return shape_.tokens() / row_shares(layout_.options); }

Tensor Trainer::of_pass(const Tensor& x, std::int64_t rows) const {
  return x.defined() ? x.rows(0, rows) : x;
}

BatchShape Trainer::batch_shape() const {
  return {.seq_len = job_.model.seq_len,
          .micro = job_.batch.micro,
          .dp = layout_.options.dp,
          .dp_rank = place_[static_cast<std::size_t>(parallel::Axis::dp)],
          .cp = layout_.options.cp,
          .cp_rank = place_[static_cast<std::size_t>(parallel::Axis::cp)],
          .global = job_.batch.global,
          .documents = job_.data.document_mask ? job_.data.max_documents : 0,
          .reset_positions = job_.data.reset_positions,
          .pairs = job_.loss.dpo.on(),
          .experts = job_.model.experts.count > 0};
}

BatchRequest Trainer::request_of(const Action& action) const {
  const model::ModelChunk& model = chunks_[static_cast<std::size_t>(local(action.chunk))].model;
  return {action.microbatch, model.first() || model.last()};
}

std::vector<BatchRequest> Trainer::batch_requests(parallel::Pass pass, std::int64_t global) const {
  std::vector<BatchRequest> requests;
  const PassSchedule& schedule =
      pass == parallel::Pass::train ? train_.at(job_.microbatches(global)) : evaluate_;
  for (const Action& action : schedule.actions)
    if (action.kind == ActionKind::forward || action.kind == ActionKind::forward_only)
      requests.push_back(request_of(action));
  return requests;
}

/// Writes the microbatch to the device. Token tensors that the chunk does not read are not written.
void Trainer::take_batch(model::Frame& frame, const Action& action, BatchSource& batches) {
  const Chunk& chunk = chunks_[static_cast<std::size_t>(local(action.chunk))];
  model::Batch& batch = frame.batch;
  Arena& arena = *frame.to_weight;
  batch.tokens_T = arena.take(DType::i32, {shape_.tokens()}, MemoryTerm::batch);
  batch.targets_T = arena.take(DType::i32, {shape_.tokens()}, MemoryTerm::batch);
  batch.positions_T = arena.take(DType::i32, {shape_.tokens()}, MemoryTerm::batch);
  batch.loss_weight_T = arena.take(DType::f32, {shape_.tokens()}, MemoryTerm::batch);
  if (shape_.experts) batch.real_T = arena.take(DType::i32, {shape_.tokens()}, MemoryTerm::batch);
  batch.sequences = shape_.sequences();
  batch.cu_seqlens = arena.take(DType::i32, {batch.sequences + 1}, MemoryTerm::batch);
  const bool pairs = job_.loss.dpo.on();
  if (pairs) batch.reference_P2 = arena.take(DType::f64, {shape_.micro, 2}, MemoryTerm::batch);
  batch.max_seqlen = shape_.seq_len;
  batch.share = shape_.share();
  batch.samples = shape_.micro;
  batch.first_token = shape_.first_sample(action.microbatch) * shape_.seq_len;
  batch.dropout_key = dropout_key_;

  batch.piece_seqlens = batch.piece_first = {};
  for (int piece = 0; !batch.share.whole() && piece < batch.share.pieces(); ++piece) {
    const auto at = static_cast<std::size_t>(piece);
    batch.piece_seqlens[at] = arena.take(DType::i32, {batch.sequences + 1}, MemoryTerm::batch);
    if (shape_.documents > 0)
      batch.piece_first[at] = arena.take(DType::i32, {batch.sequences}, MemoryTerm::batch);
  }

  if (layout_.options.ep > 1) {
    batch.crowded = slots_[static_cast<std::size_t>(slot_)].votes.rows(4, 1);
    batch.crowded_value = as_vote(groups_.rank());
  }
  batch.expert_counts = action.kind == ActionKind::forward && !alone_
                            ? slots_[static_cast<std::size_t>(slot_)].expert_counts
                            : Tensor{};
  const BatchRequest request = request_of(action);
  // In the order in which `fill` puts them.
  std::array<Tensor, 11> to;
  std::size_t count = 0;
  for (const Tensor& x :
       {batch.positions_T, batch.loss_weight_T, batch.real_T, batch.cu_seqlens, batch.piece_seqlens[0],
        batch.piece_seqlens[1], batch.piece_first[0], batch.piece_first[1]})
    if (x.defined()) to[count++] = x;
  if (request.tokens)
    for (const Tensor& x : {batch.tokens_T, batch.targets_T, batch.reference_P2})
      if (x.defined()) to[count++] = x;
  page_->enter(Activity::data_wait, action.chunk, action.microbatch);
  clock_.enter(*compute_, base::LedgerPart::data_wait);
  const auto fill = [&](std::span<std::byte> bytes) {
    const HostBatch& values = batches.next(request);
    if (adds_loss(chunk)) loss_weight_ += values.loss_weight;
    const auto put = [&](const auto& array) {
      const auto from = std::as_bytes(std::span(array));
      base::check(from.size() <= bytes.size(), "a microbatch has the size of its tensors");
      std::copy(from.begin(), from.end(), bytes.begin());
      bytes = bytes.subspan(from.size());
    };
    put(values.positions_T);
    put(values.loss_weight_T);
    put(values.real_T);
    put(values.cu_seqlens);
    for (const auto* arrays : {&values.piece_seqlens, &values.piece_first})
      for (const std::vector<std::int32_t>& array : *arrays) put(array);
    if (request.tokens) put(values.tokens_T), put(values.targets_T), put(values.reference_P2);
  };
  backend_.write_made(*compute_, std::span(to).first(count), staging_, std::ref(fill));
  page_->enter(activity_of(action.kind), action.chunk, action.microbatch);
  clock_.enter(*compute_, base::LedgerPart::compute);
  // The host has checked its data, but the copy on the device may differ, and no operator would notice.
  if (request.tokens)
    backend_.check_ids(*compute_, {.tokens_T = batch.tokens_T,
                                   .targets_T = batch.targets_T,
                                   .vocab = job_.model.vocab,
                                   .flag = slots_[static_cast<std::size_t>(slot_)].votes.rows(2, 1),
                                   .flag_value = as_vote(groups_.rank())});
}

model::Frame& Trainer::open_frame(const PassSchedule& schedule, const Action& action, BatchSource& batches) {
  const int chunk = local(action.chunk);
  const model::ModelChunk& model = chunks_[static_cast<std::size_t>(chunk)].model;
  model::Frame& frame = frame_of(schedule, action);
  frame.to_backward = &memory_.slot(chunk, SlotClass::forward_to_backward,
                                    slot_of(schedule, action, SlotClass::forward_to_backward));
  frame.to_weight = &memory_.slot(chunk, SlotClass::forward_to_weight,
                                  slot_of(schedule, action, SlotClass::forward_to_weight));
  if (flows_)
    frame.host = &memory_.slot(chunk, SlotClass::offloaded, slot_of(schedule, action, SlotClass::offloaded));
  const int grads = slot_of(schedule, action, SlotClass::backward_to_weight);
  frame.grads = grads < 0 ? nullptr : &memory_.slot(chunk, SlotClass::backward_to_weight, grads);

  take_batch(frame, action, batches);
  frame.in_TD = {};
  if (!model.first()) {
    // Backward needs the input longer than the slot in which it was received lives.
    frame.in_TD =
        model.input_arena(*compute_, frame)
            .take(job_.precision.compute, {flow_rows(), job_.model.hidden}, MemoryTerm::activations);
    const Tensor in_TD = stays_on_rank(action.chunk - 1)
                             ? of_pass(chunks_[static_cast<std::size_t>(chunk) - 1].out, flow_rows())
                             : received(schedule, action, SlotClass::received_forward);
    land(in_TD.data);
    backend_.copy(*compute_, in_TD, frame.in_TD);
  }
  return frame;
}

/// Every rank of the tp group has the same loss, so only the first adds it.
bool Trainer::adds_loss(const Chunk& chunk) const { return chunk.model.last() && params_.tp_rank() == 0; }

/// For pairs the loss operator itself adds the reported values.
std::optional<parallel::PreferenceTarget> Trainer::preference_of(const Chunk& chunk) const {
  if (!job_.loss.dpo.on()) return std::nullopt;
  const Tensor totals = slots_[static_cast<std::size_t>(slot_)].totals;
  parallel::PreferenceTarget target{.pair_tokens = shape_.seq_len,
                                    .beta = static_cast<float>(job_.loss.dpo.beta),
                                    .label_smoothing = static_cast<float>(job_.loss.dpo.label_smoothing),
                                    .reference_P2 = {},
                                    .logps_P2 = logps_P2_.rows(0, shape_.micro)};
  if (adds_loss(chunk)) target.loss = totals.rows(1, 1), target.rewards = totals.rows(3, 3);
  return target;
}

/// The last of the step's totals, with a balance loss of experts.
Tensor Trainer::balance_sum() const {
  const Tensor& totals = slots_[static_cast<std::size_t>(slot_)].totals;
  return job_.loss.expert_balance > 0 ? totals.rows(totals.numel() - 1, 1) : Tensor{};
}

void Trainer::add_loss(const Chunk& chunk, const model::LossTarget& loss) {
  if (!adds_loss(chunk) || loss.preference) return;
  const Tensor totals = slots_[static_cast<std::size_t>(slot_)].totals;
  const auto add = [&](const Tensor& x, std::int64_t to) {
    backend_.ordered_sum(*compute_, {.x = x, .out = totals.rows(to, 1), .mode = WriteMode::accumulate});
  };
  add(loss.loss_T, 1);
  if (loss.z_loss > 0) add(loss.z_loss_T, 3);
}

/// For the microbatch whose losses are in `loss_T_`, on the rank that adds them. The host may wait for the
/// device, because this is an evaluation and no training step.
void Trainer::add_sample_losses(std::int64_t microbatch) {
  const BatchShape shape = batch_shape();
  const std::int64_t first = shape.first_sample(microbatch),
                     count = std::min(shape.micro, shape.global - first);
  if (count <= 0) return;  // padding
  if (job_.loss.dpo.on())
    return backend_.read_back(*compute_, logps_P2_.rows(0, count),
                              std::as_writable_bytes(std::span(sample_losses_)
                                                         .subspan(static_cast<std::size_t>(2 * first),
                                                                  static_cast<std::size_t>(2 * count))));
  const Tensor sums = sample_sums_.rows(0, count);
  backend_.fill_zero(*compute_, sums);
  const std::int64_t rows = shape.share().piece_rows();
  for (int piece = 0; piece < shape.share().pieces(); ++piece)
    for (std::int64_t i = 0; i < count; ++i)
      backend_.ordered_sum(*compute_, {.x = loss_T_.rows((piece * shape.micro + i) * rows, rows),
                                       .out = sums.rows(i, 1),
                                       .mode = WriteMode::accumulate});
  backend_.read_back(
      *compute_, sums,
      std::as_writable_bytes(std::span(sample_losses_)
                                 .subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count))));
}

/// Issues sends and receives as one group.
void Trainer::transfer(const PassSchedule& schedule, std::span<const Action> actions) {
  std::vector<parallel::Transfer> sends, receives;
  for (const Action& action : actions) {
    const Chunk& chunk = chunks_[static_cast<std::size_t>(local(action.chunk))];
    if (action.kind == ActionKind::send_forward)
      sends.push_back({action.peer, of_pass(chunk.out, flow_rows())});
    else if (action.kind == ActionKind::send_backward)
      sends.push_back({action.peer, of_pass(chunk.din, flow_rows())});
    else if (action.kind == ActionKind::recv_forward)
      receives.push_back({action.peer, received(schedule, action, SlotClass::received_forward)});
    else receives.push_back({action.peer, received(schedule, action, SlotClass::received_backward)});
  }
  Flight& flight = flights_.emplace_back();
  for (const auto& transfers : {sends, receives})
    for (const parallel::Transfer& t : transfers) flight.tensors.push_back(t.tensor.data);
  flight.work = groups_.pp().exchange(*compute_, sends, receives, {.label = "pipeline"});
  if (!layout_.options.overlap_p2p) land(flight.tensors.front());
}

/// Waits for the transfer of `tensor`, if one is under way: before received data is used, or a sent tensor is
/// overwritten.
void Trainer::land(const std::byte* tensor) {
  const auto takes_part = [&](const Flight& f) {
    return std::find(f.tensors.begin(), f.tensors.end(), tensor) != f.tensors.end();
  };
  const auto flight = std::find_if(flights_.begin(), flights_.end(), takes_part);
  if (flight == flights_.end()) return;
  flight->work->wait(*compute_);
  flights_.erase(flight);
}

model::LossTarget Trainer::loss_target(const Chunk& chunk, ActionKind kind) const {
  model::LossTarget loss{.loss_T = of_pass(loss_T_, shape_.tokens()),
                         .grad_scale = grad_scale_,
                         .preference = preference_of(chunk)};
  if (kind == ActionKind::forward_only) return loss;
  if (params_.loss_scale().defined()) loss.loss_scale = params_.loss_scale().rows(0, 1);
  loss.label_smoothing = static_cast<float>(job_.loss.label_smoothing);
  loss.z_loss = static_cast<float>(job_.loss.z_loss);
  loss.expert_balance = static_cast<float>(job_.loss.expert_balance);
  loss.balance_sum = balance_sum();
  loss.z_loss_T = of_pass(z_loss_T_, shape_.tokens());
  return loss;
}

/// What the compute stream does from here on.
void Trainer::show(const Action& action) {
  page_->enter(activity_of(action.kind), action.chunk, action.microbatch);
  clock_.act(*compute_, &action);
}

/// Waits for what the walk reads and for the memory that it writes.
Trainer::OpenWalk Trainer::open_walk(const PassSchedule& schedule, const Action& action,
                                     BatchSource& batches) {
  show(action);
  params_.begin_walk();
  Chunk& chunk = chunks_[static_cast<std::size_t>(local(action.chunk))];
  const bool forward = action.kind == ActionKind::forward || action.kind == ActionKind::forward_only,
             backward = action.kind == ActionKind::backward || action.kind == ActionKind::backward_input;
  // The last result may still be being sent, so write to the other buffer.
  if (forward) {
    std::swap(chunk.out, chunk.other_out);
    land(chunk.out.data);
  } else if (backward) {
    std::swap(chunk.din, chunk.other_din);
    land(chunk.din.data);
  }
  OpenWalk walk{.action = action,
                .chunk = chunk,
                .frame = forward ? open_frame(schedule, action, batches) : frame_of(schedule, action),
                .out = of_pass(chunk.out, flow_rows()),
                .din = of_pass(chunk.din, flow_rows()),
                .dout = {},
                .loss = loss_target(chunk, action.kind)};
  if (backward && !chunk.model.last()) {
    walk.dout = stays_on_rank(action.chunk)
                    ? of_pass(chunks_[static_cast<std::size_t>(local(action.chunk)) + 1].din, flow_rows())
                    : received(schedule, action, SlotClass::received_backward);
    land(walk.dout.data);
  }
  return walk;
}

void Trainer::walk(const OpenWalk& w) {
  model::ModelChunk& model = w.chunk.model;
  switch (w.action.kind) {
    case ActionKind::forward: return model.forward(*compute_, w.frame, w.out);
    case ActionKind::forward_only: return model.forward_only(*compute_, w.frame, w.out, w.loss);
    case ActionKind::backward: return model.backward(*compute_, w.frame, w.dout, w.din, w.loss);
    case ActionKind::backward_input: return model.backward_input(*compute_, w.frame, w.dout, w.din, w.loss);
    case ActionKind::backward_weight: return model.backward_weight(*compute_, w.frame);
    default: base::check(false, "a transfer is not computed");
  }
}

/// Adds the loss and releases the memory that nothing reads any more.
void Trainer::close_walk(const OpenWalk& w) {
  switch (w.action.kind) {
    case ActionKind::forward_only:
      add_loss(w.chunk, w.loss);
      if (!sample_losses_.empty() && adds_loss(w.chunk)) add_sample_losses(w.action.microbatch);
      release_to_backward(w.frame);
      w.frame.to_weight->release(0);
      return;
    case ActionKind::backward:
      add_loss(w.chunk, w.loss);
      release_to_backward(w.frame);
      w.frame.to_weight->release(0);
      return;
    case ActionKind::backward_input:
      add_loss(w.chunk, w.loss);
      release_to_backward(w.frame);
      return;
    case ActionKind::backward_weight:
      w.frame.grads->release(0);
      w.frame.to_weight->release(0);
      return;
    default: return;
  }
}

/// One computation, or two that take turns.
void Trainer::compute(const PassSchedule& schedule, std::span<const Action> actions, BatchSource& batches) {
  // Each unit was reduced when its last gradient was computed.
  if (actions.front().kind == ActionKind::reduce_grads) return;
  if (actions.size() == 2 && !takes_turns_) {
    compute(schedule, actions.first(1), batches);
    return compute(schedule, actions.last(1), batches);
  }
  Stream& s = *compute_;
  const OpenWalk first = open_walk(schedule, actions.front(), batches);
  // The batch is written before the list, and results are read back or added to a report after it. So the
  // list's calls are the same for every microbatch, except for addresses.
  const auto list = [&](const char* part) {
    backend_.open_list(s, {.part = part,
                           .chunk = local(first.action.chunk),
                           .of_step = first.action.kind != ActionKind::forward_only && !alone_});
  };
  if (actions.size() == 1) {
    list(parallel::to_string(first.action.kind));
    walk(first);
    backend_.close_list(s);
    close_walk(first);
  } else {
    const OpenWalk second = open_walk(schedule, actions.back(), batches);
    const auto in_turns = [&](const OpenWalk& w, Arena& scratch) {
      return WalkTurns::Walk{
          .run = [this, &w] { walk(w); }, .goes_on = [this, &w] { show(w.action); }, .scratch = &scratch};
    };
    list("forward and backward");
    // The backward begins with a message where its last layer has experts, which the forward's attention
    // hides.
    turns_.run(s, in_turns(second, s.scratch()), in_turns(first, memory_.turn_scratch()));
    backend_.close_list(s);
    close_walk(first);
    close_walk(second);
    base::check(memory_.turn_scratch().top() == 0, "scratch is empty between actions");
  }
  base::check(s.scratch().top() == 0, "scratch is empty between actions");
}

void Trainer::run(parallel::ParamGatherer::Pass pass, BatchSource& batches) {
  const PassSchedule& schedule =
      pass == parallel::ParamGatherer::Pass::train ? train_.at(microbatches_) : evaluate_;
  params_.begin_pass({pass, microbatches_});
  loss_weight_ = 0;
  backend_.fill_zero(*compute_, slots_[static_cast<std::size_t>(slot_)].totals);
  for (std::size_t i = 0; i < schedule.actions.size();) {
    const std::span<const Action> rest = std::span(schedule.actions).subspan(i);
    const std::span<const Action> next = rest.first(parallel::group_size(rest));
    if (observe_) observe_(next);
    if (parallel::is_send(next.front().kind) || parallel::is_receive(next.front().kind))
      transfer(schedule, next);
    else compute(schedule, next, batches);
    i += next.size();
  }
  clock_.act(*compute_, nullptr);
  while (!flights_.empty()) land(flights_.front().tensors.front());
  backend_.write(*compute_, std::as_bytes(std::span(&loss_weight_, 1)),
                 slots_[static_cast<std::size_t>(slot_)].totals.rows(2, 1));
  if (observe_) observe_({});
}

}  // namespace trainerd::core::train
