#pragma once

#include <ostream>

namespace prorata::simulation {

class World;

// What `prorata debug trace` would write of this world's devices, from the rings of its agent: all
// that they have. Times are of the virtual clock. Empty but for the devices where no agent is
// alive.
void WriteChromeTrace(World& world, std::ostream& out);

}  // namespace prorata::simulation
