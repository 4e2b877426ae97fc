#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/train/optimizer.h"
#include "parallel/data/rank_levels.h"

namespace trainerd::core::train {

/// Muon (K. Jordan et al., 2024): each matrix moves along its orthogonalised momentum,
///   w -= lr (sqrt(max(1, rows / columns)) newton_schulz(direction) + decay w),
/// with `direction` of kernels::MomentumUpdate. Queries, keys, values, gate and up are matrices by
/// themselves.
///
/// State, gradients and weights stay in element parts. The whole matrices of a pipeline stage are shared out
/// over its tensor-parallel ranks and those that its state is sharded over, largest first, one for each rank
/// and round. In a round the ranks send the owners their parts of the direction, each owner orthogonalises
/// its matrix, and gets the parts back to where they are applied. So a matrix is computed by one rank, in one
/// shape, whatever the layout. Whole states (ZeRO 0) are updated alike on every data-parallel rank.
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
    std::vector<std::int64_t> shares;  ///< elements of each rank that the state is sharded over
  };
  /// Elements of a matrix in one of this rank's state parts.
  struct Piece {
    std::size_t part = 0;
    std::int64_t begin = 0, count = 0;  ///< of the part
    std::int64_t at = 0;                ///< in what is sent
    std::vector<kernels::UpdateRange> ranges;
    float scale = 1;
  };
  struct Round {
    std::int64_t share = 0;  ///< elements that a rank sends to an owner
    std::vector<Piece> pieces;
    /// This rank's own matrix: its boxes in what it receives, and all in what it sends back. Without rows:
    /// none.
    std::int64_t rows = 0, columns = 0;
    std::vector<kernels::MatrixBox> boxes, all_boxes;
  };
  std::vector<Matrix> matrices() const;
  void add_pieces(Round& round, const Matrix& matrix, std::int64_t owner, const job::JobSpec& job) const;
  void take_ownership(Round& round, const Matrix& matrix) const;
  void orthogonalise(kernels::Stream& stream, const Round& round, const kernels::Tensor& packed,
                     const kernels::Tensor& other) const;
  std::int64_t parts() const;

  job::OptimizerOptions options_;
  kernels::Rounding rounding_;
  model::ParamView& view_;
  kernels::Backend& backend_;
  parallel::RankLevels ranks_;  ///< tp, then what the state is sharded over
  std::vector<Round> rounds_;
};

}  // namespace trainerd::core::train
