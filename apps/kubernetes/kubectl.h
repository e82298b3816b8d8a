#pragma once

// `kubectl prorata`: this program, started by the name kubectl-prorata, which is how kubectl finds
// plugins.

// Returns the exit status: 0; 1: something failed, and it was said; 2: wrong options.
int RunKubectlPlugin(int argc, char** argv);
