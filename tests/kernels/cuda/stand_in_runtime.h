#pragma once

namespace trainerd::test {

/// The compute capability (90 for 9.0) that the stand-in runtime's only device has from now on.
void set_stand_in_device(int sm_version);

}  // namespace trainerd::test
