#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/hf/companions.h"
#include "core/job/model_options.h"
#include "io/checkpoint/checkpoint.h"

namespace trainerd::core::hf {

/// A tensor of a source.
struct SourceTensor {
  std::string name;                            ///< name in checkpoints
  kernels::DType dtype = kernels::DType::f32;  ///< f32 or bf16: the one that holds all its values
  std::vector<std::int64_t> shape;
};

/// The weights of a model from any kind of source, by this program's names.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  /// The directory; for a run that of its newest checkpoint.
  const std::string& path() const { return path_; }
  /// `seq_len` is the source's own maximum.
  const job::ModelOptions& model() const { return model_; }
  /// Maximum sequence length without changing the model; 0: no limit.
  std::int64_t longest_sequence() const { return longest_sequence_; }
  /// Differences between the source and this program.
  const std::vector<std::string>& notes() const { return notes_; }
  /// The origin, without its `content`.
  const Origin& origin() const { return origin_; }
  /// Directory of the tokenizer files; empty: none.
  const std::string& tokenizer() const { return tokenizer_; }
  /// All tensors, in the model's order.
  const std::vector<SourceTensor>& tensors() const { return tensors_; }

  /// A checksum of names, shapes and sizes, but not of values. Nodes compare it.
  virtual std::string outline() const = 0;
  /// Reads everything and returns its checksum. Throws CheckpointError that names a file that is damaged or
  /// has a value that is not finite.
  virtual std::string verify() const = 0;
  /// Reads a box of a logical tensor, row-major, in the box's dtype (f32 or bf16). Reads the bytes that it
  /// needs; of experts that a file has in one tensor, whole ones. The box's tensor may have fewer rows than
  /// the source's (positions of shorter sequences). Throws CheckpointError for a value that is not finite, a
  /// damaged file, or a tensor of another shape.
  virtual void read(const io::TensorSlice& box, std::span<std::byte> out) const = 0;

 protected:
  /// Index of the tensor with the box's name. Throws CheckpointError if the box does not fit it.
  std::size_t index_of(const io::TensorSlice& box) const;
  /// `where`: the file or checkpoint that holds the tensor.
  [[noreturn]] static void not_finite(const std::string& where, const std::string& tensor,
                                      std::int64_t element);

  std::string path_;
  job::ModelOptions model_;
  std::int64_t longest_sequence_ = 0;
  std::vector<std::string> notes_;
  Origin origin_;
  std::string tokenizer_;
  std::vector<SourceTensor> tensors_;
};

/// Selects a checkpoint's weights: those of its step, or their average (key `ema`).
enum class Weights : std::uint8_t { of_step, average };
/// Name prefix of such tensors in a checkpoint.
std::string name_prefix(Weights weights);
[[noreturn]] void no_average(const std::string& path);

/// The directory with a checkpoint's tokenizer files: in it, or in the output of its run. Empty if there are
/// none.
std::string tokenizer_of(const std::string& checkpoint);

/// Opens a Hugging Face directory, a checkpoint, or a run's output or directory of checkpoints (the newest
/// complete one). Reads only headers. Throws CheckpointError with the problem and a remedy.
std::unique_ptr<WeightSource> open_weights(const std::string& path);
/// Opens only a Hugging Face directory.
std::unique_ptr<WeightSource> open_directory(const std::string& path);
/// Opens only a checkpoint, or the newest of a run.
std::unique_ptr<WeightSource> open_checkpoint(const std::string& path, Weights weights = Weights::of_step);

}  // namespace trainerd::core::hf
