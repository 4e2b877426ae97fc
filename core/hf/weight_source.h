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

/// A tensor that a source holds.
struct SourceTensor {
  std::string name;                            ///< as checkpoints call it
  kernels::DType dtype = kernels::DType::f32;  ///< f32 or bf16: the one that holds all its values
  std::vector<std::int64_t> shape;
};

/// The weights of a model, wherever they lie, by this program's names.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  /// The directory: of a run its newest checkpoint's.
  const std::string& path() const { return path_; }
  /// `seq_len` is the longest that the source says of itself.
  const job::ModelOptions& model() const { return model_; }
  /// Longer sequences would mean another model than the source's; 0: any may be trained.
  std::int64_t longest_sequence() const { return longest_sequence_; }
  /// What of the source is otherwise here.
  const std::vector<std::string>& notes() const { return notes_; }
  /// Without `content`.
  const Origin& origin() const { return origin_; }
  /// The directory of the tokenizer's files; empty: it has none.
  const std::string& tokenizer() const { return tokenizer_; }
  /// In the model's order.
  const std::vector<SourceTensor>& tensors() const { return tensors_; }

  /// A checksum of all but the weights' values: names, shapes, sizes. Nodes compare it.
  virtual std::string outline() const = 0;
  /// Reads everything and returns its checksum. Throws CheckpointError naming the file that is damaged or has
  /// a value that is not finite.
  virtual std::string verify() const = 0;
  /// Fills a box of a logical tensor, row-major, in the box's dtype, f32 or bf16; reads the bytes that it
  /// needs and no others. A box's tensor may have fewer rows than the source's (positions of shorter
  /// sequences). Throws CheckpointError: a value that is not finite, a file that is damaged, a tensor of
  /// another shape.
  virtual void read(const io::TensorSlice& box, std::span<std::byte> out) const = 0;

 protected:
  /// Of the name. Throws CheckpointError when the box is not of it.
  std::size_t index_of(const io::TensorSlice& box) const;
  /// `where`: the file or the checkpoint that holds it.
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

/// Which weights of a checkpoint are meant: those of its step, or their average (key `ema`).
enum class Weights : std::uint8_t { of_step, average };
/// What is before the names of such tensors in a checkpoint.
std::string name_prefix(Weights weights);
[[noreturn]] void no_average(const std::string& path);

/// The directory of the tokenizer's files that belong to a checkpoint: in it, or in the output of its run.
/// Empty: there are none.
std::string tokenizer_of(const std::string& checkpoint);

/// What is at `path`: a Hugging Face directory, a checkpoint, or a run's output or directory of checkpoints,
/// of which the newest complete one. Reads headers alone. Throws CheckpointError with what is wrong and what
/// to do.
std::unique_ptr<WeightSource> open_weights(const std::string& path);
/// The first alone.
std::unique_ptr<WeightSource> open_directory(const std::string& path);
/// The others.
std::unique_ptr<WeightSource> open_checkpoint(const std::string& path, Weights weights = Weights::of_step);

}  // namespace trainerd::core::hf
