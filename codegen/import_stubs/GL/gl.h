// Stand-in for the import: the OpenGL types that the driver API names, at their real sizes.
#pragma once
typedef unsigned int GLenum;
typedef unsigned int GLuint;
