#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/job/job.h"
#include "core/model/param_store.h"
#include "io/checkpoint/checkpoint.h"
#include "kernels/target/target.h"

namespace trainerd::core::train {

/// A rank's share of a checkpoint: master weights under the parameters' own names, and the optimizer's states
/// under optimizer.STATE.NAME (optimizer.moment1.NAME). The bytes of a snapshot are a whole safetensors file.
/// Parameters that are not trainable are in no checkpoint.
class Snapshot {
 public:
  explicit Snapshot(const model::ParamStore& params);

  std::int64_t bytes() const { return layout_.file_bytes; }
  /// The boxes of logical tensors that the file's tensors are.
  const std::vector<io::TensorSlice>& slices() const { return slices_; }

  /// The boxes of this rank's state that other ranks save.
  const std::vector<io::TensorSlice>& borrowed() const { return borrowed_; }
  /// Of these, what `load_and_share` does not give this rank.
  std::vector<io::TensorSlice> not_shared() const;

  /// The start of the file, which does not change.
  void write_header(std::span<std::byte> segment) const;
  /// Shows what this rank saves: the elements, and where in the file they go.
  void each_saved(const std::function<void(const kernels::Tensor& elements, std::int64_t at)>& show) const;
  /// Copies the state out of the device. `segment` is at least `bytes()` long.
  void fill(kernels::Backend& backend, kernels::Stream& stream, std::span<std::byte> segment) const;
  /// Copies a checkpoint's state, whatever layout saved it, into the device. Publish the parameters
  /// afterwards.
  void load(kernels::Backend& backend, kernels::Stream& stream, io::CheckpointReader& reader) const;
  /// The same, but of ranks that hold the same state the one that saves it reads it and sends it to the
  /// others. All ranks call it.
  void load_and_share(kernels::Backend& backend, kernels::Stream& stream, io::CheckpointReader& reader) const;
  /// Fills a box of a logical tensor, row-major, in the box's dtype.
  using ReadBox = std::function<void(const io::TensorSlice& box, std::span<std::byte> out)>;
  /// Whether the rank has parameters that are not trainable: those that `load_weights` reads.
  bool has_base() const { return has_base_; }
  /// Copies weights into the master weights and leaves the optimizer's states as they are. With parameters
  /// that are not trainable, into these alone. Publish the parameters afterwards.
  void load_weights(kernels::Backend& backend, kernels::Stream& stream, const ReadBox& read) const;

 private:
  struct Part {
    kernels::Tensor elements;
    io::TensorSlice slice;
    bool weight = false;  ///< else a state of the optimizer
    bool trainable = true;
    bool owned = true;
    const model::ParamView* view = nullptr;
  };
  static void load_part(kernels::Backend& backend, kernels::Stream& stream, const Part& part,
                        const ReadBox& read, std::vector<std::byte>& staging);
  bool has_base_ = false;
  std::vector<Part> parts_;         ///< of the whole state of this rank
  std::vector<std::size_t> saved_;  ///< those that this rank saves, in the order of the file
  std::vector<io::TensorSlice> slices_, borrowed_;
  io::SafetensorsLayout layout_;
};

/// What a checkpoint of this job must agree on with the job that resumes it, for people to read.
std::map<std::string, std::string> checkpoint_identity(const job::JobSpec& job);
/// What bit-for-bit continuation also depends on: instruction set, threads, versions, layout.
std::map<std::string, std::string> checkpoint_environment(const kernels::Target& target,
                                                          const std::string& layout);

/// Throws CheckpointError naming every entry of `identity` that the job does not share.
void require_same_identity(const std::string& path, const std::map<std::string, std::string>& saved,
                           const job::JobSpec& job);

/// What of the environment changed since a checkpoint, for people: "threads was 2, is 1; ...". Empty: nothing
/// did.
std::string environment_differences(const std::map<std::string, std::string>& saved,
                                    const std::map<std::string, std::string>& now);

}  // namespace trainerd::core::train
