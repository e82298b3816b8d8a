#pragma once

// /etc/ld.so.cache, in which glibc's loader, `ldconfig -p` and some programs look libraries up: the
// new format ("glibc-ld.so.cache1.1"), alone or behind the old one, little-endian, as glibc 2.2 to
// 2.41 read and write it:
//
//   header      magic, how many entries, flags, where the extension is (0: none)
//   entries     flags, name and path as offsets from the header, hwcap; sorted by name, descending
//   strings     each ended by a zero
//   extension   since 2.33: the names of the folders below glibc-hwcaps/ that entries refer to
//
// Pure: bytes in, bytes out. The bytes may be anything (they are an image's).

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace prorata::agent {

// A cache with these libraries (paths, x86-64) first among those of their names; the rest of it is
// as it was. Again with the same libraries it changes nothing. "loader_cache": it is no such cache.
Result<std::string> AddToLoaderCache(std::string_view cache,
                                     const std::vector<std::string>& libraries);

}  // namespace prorata::agent
