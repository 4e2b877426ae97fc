#include "parallel/tensor/latent.h"

#include "parallel/tensor/flow.h"

namespace trainerd::parallel {

using namespace kernels;

void latent_heads_forward(const TensorParallel& tp, Stream& s, const LatentHeadsForward& a) {
  const ArenaScope scope(s.scratch());
  LatentHeadsForward all = a;
  all.k_rope_TR = gathered(tp, s, a.k_rope_TR, "latent_keys");
  tp.backend.latent_heads_forward(s, all);
}

void latent_heads_backward(const TensorParallel& tp, Stream& s, const LatentHeadsBackward& a) {
  summed(tp, s, a.dk_rope_TR, "latent_key_gradients", [&](const Tensor& dk_rope_TR) {
    LatentHeadsBackward part = a;
    part.dk_rope_TR = dk_rope_TR;
    tp.backend.latent_heads_backward(s, part);
  });
}

}  // namespace trainerd::parallel
