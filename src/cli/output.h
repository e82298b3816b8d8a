#pragma once

// What a command prints. All of it goes through here, so that what could not be written is said and
// shows in the exit status: a full disk under `prorata ps >shares` is no success.

#include <string>

#include "base/result.h"

namespace prorata::cli {

// Writes all of it to standard output, now. "closed": nobody reads it any more; "write": it cannot
// be written (the message says why).
Status WriteOut(const std::string& text);

// The same for a command that has nothing else to do: complains, and answers the exit status.
int Print(const std::string& text);

// The exit status of a program whose command ended with `status`: a refusal, where what was
// printed past these functions cannot be written.
int CloseOutput(int status);

// "prorata: MESSAGE\n" on stderr, whatever lines the message has.
void PrintError(const std::string& message);

// Complains, and answers the exit status of a refusal.
int Refuse(const Error& error);

}  // namespace prorata::cli
