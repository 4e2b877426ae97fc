#pragma once

// Arguments of operators: updates along an orthogonalised matrix. See ops.h.

#include <cstdint>
#include <span>

#include "kernels/base/error.h"
#include "kernels/ops/op_class.h"
#include "kernels/ops/update.h"

namespace trainerd::kernels {

/// Momentum as a running mean, as in torch.optim.Muon and its author's code, in fp32 with
/// g = grad * grad_factor:
///   m = mu m + (1 - mu) g; direction = mu m + (1 - mu) g (Nesterov), else m
/// If `control.skip` is set, m is unchanged and the direction is 0. A bf16 momentum is rounded to nearest,
/// which suffices because it changes by a twentieth of itself per step. The direction is computed from the
/// fp32 value.
struct MomentumUpdate {
  Tensor grads;      ///< f32 or bf16
  Tensor momentum;   ///< f32 or bf16
  Tensor direction;  ///< f32
  Tensor control;    ///< output of `StepControl`
  float mu = 0.95f;
  bool nesterov = true;
  bool host_grads = false, host_momentum = false;  ///< they are in host memory

  bool operator==(const MomentumUpdate&) const = default;
};

/// A row-major box of a matrix, stored at elements [begin, begin + rows * columns) of a packed array.
struct MatrixBox {
  std::int64_t begin = 0;
  std::int64_t row = 0, column = 0;
  std::int64_t rows = 0, columns = 0;
};

/// Copies boxes between a packed array and their matrix, which may be stored transposed.
struct CopyBoxes {
  enum class To : std::uint8_t { matrix, packed } to = To::matrix;
  std::span<const MatrixBox> boxes;
  Tensor packed;            ///< f32, flat
  Tensor matrix;            ///< f32, two dims
  bool transposed = false;  ///< element (r, c) of the boxes' matrix is element (c, r) of `matrix`
};
inline void check_boxes(const CopyBoxes& a) {
  base::check(a.packed.dtype == DType::f32 && a.matrix.dtype == DType::f32 && a.matrix.shape.ndim == 2,
              "boxes: fp32, of a matrix");
  const std::int64_t rows = a.matrix.size(a.transposed ? 1 : 0),
                     columns = a.matrix.size(a.transposed ? 0 : 1);
  for (const MatrixBox& box : a.boxes)
    base::check(box.row + box.rows <= rows && box.column + box.columns <= columns &&
                    box.begin + box.rows * box.columns <= a.packed.numel(),
                "boxes: they lie in both");
}

/// x /= sqrt(sum of x^2) + eps. The sum is in double, in blocks of kNormBlock.
struct Normalise {
  Tensor x;  ///< f32
  float eps = 0;

  bool operator==(const Normalise&) const = default;
};

/// w -= lr (scale * direction + decay w), in fp32 on flat arrays, only in `ranges`. Does nothing if
/// `control.skip` is set. `params` and `rounding` as in ParamUpdate: a bf16 master weight uses the low half
/// of an element's 32 random bits.
struct DirectionUpdate {
  std::span<const UpdateRange> ranges;
  Tensor direction;  ///< f32, flat
  Tensor master;     ///< f32 or bf16
  Tensor params;     ///< optional
  Tensor control;    ///< output of `StepControl`
  float lr = 0, scale = 1;
  std::int64_t step = 1;
  Rounding rounding = Rounding::nearest;
  bool host_master = false, host_params = false;  ///< they are in host memory
};
inline void check_ranges(const DirectionUpdate& a) {
  base::check(
      a.direction.dtype == DType::f32 && a.direction.numel() == a.master.numel() &&
          (!a.params.defined() || (a.params.numel() == a.master.numel() && a.master.dtype == DType::f32)),
      "direction update: all flat arrays have one length; master weights in bf16 are the parameters");
  for (const UpdateRange& range : a.ranges)
    base::check(range.begin >= 0 && range.count >= 0 && range.begin + range.count <= a.master.numel(),
                "direction update: ranges lie within the arrays");
}

inline OpClass op_class(const MomentumUpdate& a) { return memory_class(a.direction); }
inline OpClass op_class(const CopyBoxes& a) { return memory_class(a.matrix); }
inline OpClass op_class(const Normalise& a) { return memory_class(a.x); }
inline OpClass op_class(const DirectionUpdate& a) { return memory_class(a.direction); }

}  // namespace trainerd::kernels
