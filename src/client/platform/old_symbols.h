#pragma once

// Included into every file of the client library by the compiler's command line: these functions
// got a new symbol version when glibc 2.34 moved them into libc.so.6. The old one is there for
// ever, so the library loads on glibc 2.27 and later. tests/client/test_elf.py holds the floor.
__asm__(".symver dlopen,dlopen@GLIBC_2.2.5");
__asm__(".symver dlsym,dlsym@GLIBC_2.2.5");
__asm__(".symver dladdr,dladdr@GLIBC_2.2.5");
__asm__(".symver dlerror,dlerror@GLIBC_2.2.5");
