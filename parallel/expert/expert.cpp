#include "parallel/expert/expert.h"

namespace trainerd::parallel {

using namespace kernels;

namespace {

Shape of_all_ranks(const ExpertParallel& ep, const Tensor& x) {
  Shape shape = x.shape;
  shape.sizes[0] *= ep.ranks();
  return shape;
}

}  // namespace

Tensor gather_tokens(const ExpertParallel& ep, Stream& s, const Tensor& x, const char* label) {
  if (ep.ranks() == 1) return x;
  const Tensor all = s.scratch().take(x.dtype, of_all_ranks(ep, x), MemoryTerm::activations);
  gather_tokens(ep, s, x, all, label);
  return all;
}

void gather_tokens(const ExpertParallel& ep, Stream& s, const Tensor& x, const Tensor& to,
                   const char* label) {
  base::check(ep.ranks() > 1, "tokens are gathered from several ranks");
  ep.group->all_gather(s, x, to, {.label = label})->wait(s);
}

Tensor take_results(const ExpertParallel& ep, Stream& s, const Tensor& to) {
  return ep.ranks() == 1 ? to : s.scratch().take(to.dtype, of_all_ranks(ep, to), MemoryTerm::activations);
}

void sum_results(const ExpertParallel& ep, Stream& s, const Tensor& results, const Tensor& to,
                 const char* label) {
  if (ep.ranks() > 1) ep.group->reduce_scatter(s, results, to, {.label = label})->wait(s);
}

}  // namespace trainerd::parallel
