// The two images of the kernel "busy", as bytes in gpuload: the host object for the simulated GPU
// and the PTX text (with a closing zero) for a real one.
#ifndef BUSY_HOST_OBJECT
#error "BUSY_HOST_OBJECT and BUSY_PTX name the files"
#endif

    .section .rodata
    .balign 64
    .global gpuload_busy_host
gpuload_busy_host:
    .incbin BUSY_HOST_OBJECT
    .balign 64
    .global gpuload_busy_ptx
gpuload_busy_ptx:
    .incbin BUSY_PTX
    .byte 0

    .section .note.GNU-stack,"",@progbits
