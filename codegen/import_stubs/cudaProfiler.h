// Stand-in for the import: cudaProfiler.h is in no package beside cuda.h; its Typedefs header is.
#pragma once
#include <cuda.h>
typedef enum CUoutput_mode_enum { CU_OUT_KEY_VALUE_PAIR = 0x00, CU_OUT_CSV = 0x01 } CUoutput_mode;
CUresult cuProfilerInitialize(const char* configFile, const char* outputFile,
                              CUoutput_mode outputMode);
CUresult cuProfilerStart(void);
CUresult cuProfilerStop(void);
