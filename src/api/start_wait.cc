#include "api/start_wait.h"

namespace prorata::api {

std::string PlaceInWords(uint32_t place) {
  if (place == 1) return "first";
  const uint32_t last = place / 10 % 10 == 1 ? 0 : place % 10;
  const char* ending = last == 1 ? "st" : last == 2 ? "nd" : last == 3 ? "rd" : "th";
  return std::to_string(place) + ending;
}

}  // namespace prorata::api
