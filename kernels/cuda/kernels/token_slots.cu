// Slots for tokens at the ranks of their experts. Floor = bytes / memory bandwidth: the choices once for each
// rank, slots and sources; a few hundred KB, so launches cost more.

#include "kernels/cuda/kernels/flat.cuh"
#include "kernels/cuda/kernels/reduce.cuh"

namespace trainerd::kernels::cuda {
namespace {

constexpr int kSlotThreads = 256;
constexpr int kSlotWarps = kSlotThreads / 32;

/// A block for each rank. Its threads take tokens in their order, and count those that chose the rank.
__global__ void __launch_bounds__(kSlotThreads)
    place_tokens_kernel(const std::int32_t* expert, std::int64_t tokens, int copies, int experts_of_rank,
                        std::int64_t slots, std::int32_t* slot, std::int32_t* source, float* flag,
                        float flag_value) {
  __shared__ std::int32_t of_warp[kSlotWarps];
  const int rank = static_cast<int>(blockIdx.x);
  std::int64_t used = 0;
  for (std::int64_t begin = 0; begin < tokens; begin += kSlotThreads) {
    const std::int64_t t = begin + threadIdx.x, first = t * copies;
    int chosen = -1;  // the first copy whose expert is at the rank
    for (int k = 0; t < tokens && k < copies; ++k) {
      const std::int32_t e = expert[first + k];
      if (chosen < 0 && e >= 0 && e / experts_of_rank == rank) chosen = k;
      if (rank == 0 && e < 0) slot[first + k] = -1;
    }
    int through = chosen >= 0 ? 1 : 0;  // tokens of the warp's lanes up to this one
    for (int offset = 1; offset < 32; offset *= 2) {
      const int before = __shfl_up_sync(kFullWarp, through, offset);
      if (lane_id() >= offset) through += before;
    }
    if (lane_id() == 31) of_warp[warp_id()] = through;
    __syncthreads();
    std::int64_t place = used + through - 1;
    for (int w = 0; w < kSlotWarps; ++w) {
      if (w < warp_id()) place += of_warp[w];
      used += of_warp[w];
    }
    __syncthreads();
    if (chosen < 0) continue;
    const bool fits = place < slots;
    const auto mine = static_cast<std::int32_t>(rank * slots + place);
    for (int k = chosen; k < copies; ++k) {
      const std::int32_t e = expert[first + k];
      if (e >= 0 && e / experts_of_rank == rank)
        slot[first + k] = !fits ? -1 : k == chosen ? mine : same_slot(mine);
    }
    if (fits) source[mine] = static_cast<std::int32_t>(first + chosen);
    else *flag = flag_value;
  }
  for (std::int64_t i = used + threadIdx.x; i < slots; i += kSlotThreads) source[rank * slots + i] = -1;
}

struct SlotChoicesBody {
  const std::int32_t *expert, *source;
  const float* weight;
  std::int32_t* expert_out;
  float* weight_out;
  std::int64_t copies;

  template <int N>
  __device__ void at(std::int64_t i) const {
    const std::int64_t from = source[i / copies];
    const bool empty = from < 0;
    const std::int64_t choice = empty ? 0 : from / copies * copies + i % copies;
    expert_out[i] = empty ? -1 : expert[choice];
    weight_out[i] = empty ? 0.0f : weight[choice];
  }
};

struct SlotWeightsBody {
  const float* from;
  const std::int32_t* slot;
  float* weight;
  std::int64_t copies;

  template <int N>
  __device__ void at(std::int64_t i) const {
    const std::int32_t own = slot[i] < -1 ? same_slot(slot[i]) : slot[i];
    weight[i] = own < 0 ? 0.0f : from[own * copies + i % copies];
  }
};

}  // namespace

void place_tokens(const Launch& where, const PlaceTokens& a) {
  check_args(a);
  launch(where, {a.source_NS.size(0)}, kSlotThreads, "place_tokens", place_tokens_kernel,
         at<std::int32_t>(a.expert_TK), a.expert_TK.size(0), static_cast<int>(a.expert_TK.size(1)),
         static_cast<int>(a.experts_of_rank), a.source_NS.size(1), at<std::int32_t>(a.slot_TK),
         at<std::int32_t>(a.source_NS), at<float>(a.flag), a.flag_value);
}

void slot_choices(const Launch& where, const SlotChoices& a) {
  check_args(a);
  launch_flat<1>(
      where, a.expert_RK.numel(), false, "slot_choices",
      SlotChoicesBody{at<std::int32_t>(a.expert_TK), at<std::int32_t>(a.source_NS), at<float>(a.weight_TK),
                      at<std::int32_t>(a.expert_RK), at<float>(a.weight_RK), a.expert_TK.size(1)});
}

void slot_weights(const Launch& where, const SlotWeights& a) {
  check_args(a);
  launch_flat<1>(where, a.slot_TK.numel(), false, "slot_weights",
                 SlotWeightsBody{at<float>(a.from_RK), at<std::int32_t>(a.slot_TK), at<float>(a.weight_TK),
                                 a.slot_TK.size(1)});
}

}  // namespace trainerd::kernels::cuda
