#pragma once

// The devices that a build's kernels run on. Host code without CUDA.

#include <string>
#include <string_view>

namespace trainerd::kernels::cuda {

/// The entry of `compiled` that runs on a device of compute capability `sm_version` (90: 9.0); empty if there
/// is none. `compiled` has the form of CMAKE_CUDA_ARCHITECTURES, with commas: "80-real,90a-real,120". Rules
/// (CUDA programming guide, section "Compute capability compatibility"): machine code runs on its own major
/// version from its own minor version on, with `a` only on that version, with `f` on its family. PTX, which
/// an entry without "-real" includes, runs on every later version, with `a` and `f` as above. Throws
/// std::logic_error for any other form of entry.
std::string image_for(std::string_view compiled, int sm_version);

}  // namespace trainerd::kernels::cuda
