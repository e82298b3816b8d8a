#pragma once

namespace prorata {

// Whichever of the descriptors 0, 1 and 2 is closed stands for nothing from now on: reading from
// it, or writing to it, fails as before, and no file or socket that is opened later gets its
// number. Programs that are executed find it closed again. To be called first in main, by one
// thread.
void ReserveStandardDescriptors();

}  // namespace prorata
