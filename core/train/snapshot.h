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

/// A rank's part of a checkpoint: master weights under the parameters' own names, and optimizer states under
/// optimizer.STATE.NAME (optimizer.moment1.NAME). The bytes of a snapshot are a complete safetensors file.
/// Parameters that are not trainable are in no checkpoint.
class Snapshot {
 public:
  explicit Snapshot(const model::ParamStore& params);

  std::int64_t bytes() const { return layout_.file_bytes; }
  /// The file's tensors, as slices of logical tensors.
  const std::vector<io::TensorSlice>& slices() const { return slices_; }

  /// The slices of this rank's state that other ranks save.
  const std::vector<io::TensorSlice>& borrowed() const { return borrowed_; }
  /// Those of `borrowed` that `load_and_share` does not provide.
  std::vector<io::TensorSlice> not_shared() const;

  /// Writes the start of the file, which is the same for every snapshot.
  void write_header(std::span<std::byte> segment) const;
  /// Calls `show` for each part that this rank saves, with its elements and its offset in the file.
  void each_saved(const std::function<void(const kernels::Tensor& elements, std::int64_t at)>& show) const;
  /// Copies the state from the device. `segment` is at least `bytes()` long.
  void fill(kernels::Backend& backend, kernels::Stream& stream, std::span<std::byte> segment) const;
  /// Copies a checkpoint's state, saved by any layout, to the device. Call `publish` afterwards.
  void load(kernels::Backend& backend, kernels::Stream& stream, io::CheckpointReader& reader) const;
  /// The same, but one of the ranks with equal state reads it and sends it to the others. All ranks must call
  /// it.
  void load_and_share(kernels::Backend& backend, kernels::Stream& stream, io::CheckpointReader& reader) const;
  /// Reads a slice of a logical tensor into `out`, row-major, in the slice's dtype.
  using ReadBox = std::function<void(const io::TensorSlice& box, std::span<std::byte> out)>;
  /// True if the rank has parameters that are not trainable, which `load_weights` reads.
  bool has_base() const { return has_base_; }
  /// Copies weights into the master weights; optimizer states stay. If there are parameters that are not
  /// trainable, only these are loaded. Call `publish` afterwards.
  void load_weights(kernels::Backend& backend, kernels::Stream& stream, const ReadBox& read) const;

 private:
  struct Part {
    kernels::Tensor elements;
    io::TensorSlice slice;
    bool weight = false;  ///< else an optimizer state
    bool trainable = true;
    bool owned = true;
    const model::ParamView* view = nullptr;  ///< null: the state of loss scaling
  };
  static bool is_in(const io::CheckpointReader& reader, const Part& part);
  static void load_part(kernels::Backend& backend, kernels::Stream& stream, const Part& part,
                        const ReadBox& read, std::vector<std::byte>& staging);
  bool has_base_ = false;
  std::vector<Part> parts_;         ///< this rank's whole state
  std::vector<std::size_t> saved_;  ///< parts that this rank saves, in file order
  std::vector<io::TensorSlice> slices_, borrowed_;
  io::SafetensorsLayout layout_;
};

/// The properties in which a checkpoint and a job that resumes from it must agree, as readable text.
std::map<std::string, std::string> checkpoint_identity(const job::JobSpec& job);
/// What else bit-for-bit continuation depends on: instruction set, threads, versions, layout.
std::map<std::string, std::string> checkpoint_environment(const kernels::Target& target,
                                                          const std::string& layout);

/// Throws CheckpointError that names every entry of `saved` in which the job differs.
void require_same_identity(const std::string& path, const std::map<std::string, std::string>& saved,
                           const job::JobSpec& job);

/// The differences of the environment since a checkpoint: "threads was 2, is 1; ...". Empty if there are
/// none.
std::string environment_differences(const std::map<std::string, std::string>& saved,
                                    const std::map<std::string, std::string>& now);

}  // namespace trainerd::core::train
