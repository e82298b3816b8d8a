// Stand-in for the import: the EGL types that the driver API names, at their real sizes.
#pragma once
#include <stdint.h>
typedef int32_t EGLint;
