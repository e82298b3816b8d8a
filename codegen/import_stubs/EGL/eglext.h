// Stand-in for the import: see egl.h beside this file.
#pragma once
typedef void* EGLImageKHR;
typedef void* EGLStreamKHR;
typedef void* EGLSyncKHR;
