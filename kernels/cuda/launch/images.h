#pragma once

// Which devices a build's kernels run on. Host code without CUDA.

#include <string>
#include <string_view>

namespace trainerd::kernels::cuda {

/// The entry of `compiled` that a device of compute capability `sm_version` (90: 9.0) runs; empty: none.
/// `compiled` is a list as CMAKE_CUDA_ARCHITECTURES has it, with commas: "80-real,90a-real,120". By the CUDA
/// programming guide, section "Compute capability compatibility": machine code runs on its own major version
/// from its own minor version on, with `a` on that version alone, with `f` on its family; PTX, which an entry
/// without "-real" has, runs on every later version, with `a` and `f` as above. Throws std::logic_error for
/// an entry of another form.
std::string image_for(std::string_view compiled, int sm_version);

}  // namespace trainerd::kernels::cuda
