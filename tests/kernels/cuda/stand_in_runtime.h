#pragma once

namespace trainerd::test {

/// Sets the compute capability (90 for 9.0) of the stand-in runtime's only device.
void set_stand_in_device(int sm_version);

}  // namespace trainerd::test
