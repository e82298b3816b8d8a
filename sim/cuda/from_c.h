#pragma once

// In C an enum holds any int, and programs do hand over values that no header names; in C++ such a
// value is undefined, and UBSan says so. For functions that read one to find out whether it is
// known.
#define PRORATA_ENUMS_FROM_C __attribute__((no_sanitize("undefined")))
