#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/train/optimizer.h"
#include "parallel/data/rank_levels.h"

namespace trainerd::core::train {

/// Muon (K. Jordan et al., 2024): each matrix moves along its orthogonalised momentum,
///   w -= lr (sqrt(max(1, rows / columns)) newton_schulz(direction) + decay w),
/// where `direction` is that of kernels::MomentumUpdate. Queries, keys, values, gate and up are separate
/// matrices, and so are those of each expert. Routers are not among them.
///
/// State, gradients and weights stay cut into element parts. A matrix that is whole in a rank's part is
/// updated there. The others of a pipeline stage are distributed over its tensor-parallel ranks and the ranks
/// that its state is sharded over, largest first, one per rank and round. In a round the ranks send each
/// owner their parts of its direction; each owner orthogonalises its matrix and sends the parts back. So one
/// rank computes a matrix, in one shape, in any layout. Unsharded states (ZeRO 0) are updated redundantly on
/// every data-parallel rank.
class Muon final : public Optimizer {
 public:
  static std::vector<std::string> states() { return {"momentum"}; }

  Muon(const job::JobSpec& job, model::ParamView& view, parallel::Communicator& tp,
       kernels::Backend& backend);
  void update(kernels::Stream& stream, const UpdateStep& step) override;

 private:
  struct Matrix {
    model::ParamId id = model::kNoParam;
    parallel::WholeMatrix whole;
    std::vector<std::int64_t> shares;  ///< elements per rank that the state is sharded over
  };
  /// Elements of a matrix in one of this rank's state parts.
  struct Piece {
    std::size_t part = 0;
    std::int64_t begin = 0, count = 0;  ///< in the part
    std::int64_t at = 0;                ///< in the send buffer
    std::vector<kernels::UpdateRange> ranges;
    float scale = 1;
  };
  struct Round {
    bool exchanges = true;   ///< false: of a matrix that is whole on this rank
    std::int64_t share = 0;  ///< elements that a rank sends to an owner
    std::vector<Piece> pieces;
    /// This rank's own matrix; 0 rows: none. `boxes` are in the receive buffer, `all_boxes` in the send
    /// buffer.
    std::int64_t rows = 0, columns = 0;
    std::vector<kernels::MatrixBox> boxes, all_boxes;
  };
  std::vector<Matrix> matrices() const;
  void add_pieces(Round& round, const Matrix& matrix, std::int64_t owner, const job::JobSpec& job) const;
  void take_ownership(Round& round, const Matrix& matrix) const;
  /// Takes the matrices of tensors that each rank has as many whole ones of. Adds this rank's.
  std::vector<Matrix> without_held(std::vector<Matrix> all, const job::JobSpec& job);
  void add_held(const Matrix& matrix, const job::JobSpec& job);
  void orthogonalise(kernels::Stream& stream, const Round& round, const kernels::Tensor& packed,
                     const kernels::Tensor& other) const;
  std::int64_t parts() const;

  job::OptimizerOptions options_;
  kernels::Rounding rounding_;
  model::ParamView& view_;
  kernels::Backend& backend_;
  parallel::RankLevels ranks_;  ///< tp, then the ranks that the state is sharded over
  std::vector<Round> rounds_;
};

}  // namespace trainerd::core::train
