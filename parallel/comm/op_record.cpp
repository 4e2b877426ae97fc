#include "parallel/comm/op_record.h"

#include "parallel/comm/flight_recorder.h"

namespace trainerd::parallel {

const char* to_string(OpKind kind) {
  switch (kind) {
    case OpKind::all_reduce: return "all_reduce";
    case OpKind::all_gather: return "all_gather";
    case OpKind::reduce_scatter: return "reduce_scatter";
    case OpKind::all_to_all: return "all_to_all";
    case OpKind::broadcast: return "broadcast";
    case OpKind::barrier: return "barrier";
    case OpKind::exchange: return "exchange";
  }
  return "?";
}

void OpRecord::set_label(std::string_view text) {
  put_text(label, text);
  // FNV-1a of the full label, so that labels that differ only after the truncated part have different hashes.
  label_hash = 0xcbf29ce484222325u;
  for (const char c : text) label_hash = (label_hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
}

bool OpRecord::agrees_with(const OpRecord& other) const {
  return sequence == other.sequence && bytes == other.bytes && label_hash == other.label_hash &&
         root == other.root && kind == other.kind && dtype == other.dtype && reduce == other.reduce &&
         accumulate == other.accumulate;
}

OpRecord message_record(const kernels::Tensor& x, const char* label, std::uint64_t sequence) {
  OpRecord record{.sequence = sequence, .bytes = x.bytes(), .kind = OpKind::exchange, .dtype = x.dtype};
  record.set_label(label);
  return record;
}

std::string describe(const OpRecord& record) {
  std::string text = to_string(record.kind);
  if (record.kind == OpKind::all_reduce || record.kind == OpKind::reduce_scatter) {
    text += record.reduce == ReduceOp::sum ? " (sum)" : " (max)";
    if (record.accumulate != kernels::DType::f32)
      text += std::string(" in ") + kernels::name_of(record.accumulate);
  }
  if (record.kind == OpKind::broadcast) text += " from " + std::to_string(record.root);
  text += std::string(" \"") + record.label.data() + "\"";
  if (record.kind != OpKind::barrier)
    text += " of " + std::to_string(record.bytes) + " bytes " + kernels::name_of(record.dtype);
  return text;
}

}  // namespace trainerd::parallel
