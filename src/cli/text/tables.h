#pragma once

#include <string>
#include <vector>

#include "api/control.h"

namespace prorata::cli {

// Plain columns with a header line, one row for each device of each share / each device. Columns
// are as wide as their widest entry, and separated by two spaces; no entry contains two spaces.
std::string ShareTable(const std::vector<api::ShareStatus>& shares);
// Those that wait to be made, one row for each.
std::string WaitingTable(const std::vector<api::WaitingShare>& line);
std::string DeviceTable(const std::vector<api::DeviceStatus>& devices);

// Such columns of any rows, all of the same length, the first the header.
std::string FormatRows(const std::vector<std::vector<std::string>>& rows);

}  // namespace prorata::cli
