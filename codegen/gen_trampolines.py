"""generated/{driver,nvml}_trampolines.S: the client library's exports.

Every symbol owns a slot in a table of addresses. An export that is not overridden is one jump
through its slot. A slot starts at a stub that asks C++ for the real address (and C++ then writes
it into the slot), so loading the library touches no driver.

The lazy path runs on behalf of a call already under way: it keeps every register that may carry an
argument, keeps the stack aligned for the C++ it calls, and leaves the caller's frame as it was.
"""

HEAD = """
# An export: one jump through the symbol's slot.
.macro export name, index
  .globl \\name
  .type \\name, @function
  .p2align 4
\\name:
  endbr64
  jmp *prorata_{lib}_slots+8*\\index(%rip)
  .size \\name, .-\\name
.endm

# What a slot holds until its symbol is resolved. r11 is free in every call.
.macro stub index
.Lstub\\index:
  endbr64
  mov $\\index, %r11d
  jmp prorata_{lib}_lazy
.endm

.macro slot index
  .quad .Lstub\\index
.endm

.macro name_entry text
  .section .rodata.str1.1, "aMS", @progbits, 1
.Lname\\@:
  .asciz "\\text"
  .section .data.rel.ro.local, "aw", @progbits
  .quad .Lname\\@
.endm

.macro table name, count
  .hidden \\name
  .globl \\name
  .type \\name, @object
  .size \\name, 8*\\count
  .balign 64
\\name:
.endm

  .text
  .hidden prorata_{lib}_resolve
  .hidden prorata_{lib}_lazy
  .globl prorata_{lib}_lazy
  .type prorata_{lib}_lazy, @function
  .p2align 4
# In: r11d = index, arguments in place. Frame, from rsp up:
#   0 rdi  8 rsi  16 rdx  24 rcx  32 r8  40 r9  48 rax  56 r10  64.. xmm0-7
prorata_{lib}_lazy:
  .cfi_startproc
  push %rbp
  .cfi_def_cfa_offset 16
  .cfi_offset %rbp, -16
  mov %rsp, %rbp
  .cfi_def_cfa_register %rbp
  sub $192, %rsp
{saves}
  mov %r11d, %edi
  call prorata_{lib}_resolve
  mov %rax, %r11
{restores}
  leave
  .cfi_def_cfa %rsp, 8
  jmp *%r11
  .cfi_endproc
  .size prorata_{lib}_lazy, .-prorata_{lib}_lazy
"""

INTEGERS = ("rdi", "rsi", "rdx", "rcx", "r8", "r9", "rax", "r10")


def _head(lib):
    places = [("mov", reg, 8 * i) for i, reg in enumerate(INTEGERS)]
    places += [("movaps", f"xmm{i}", 64 + 16 * i) for i in range(8)]
    saves = "\n".join(f"  {op} %{reg}, {at}(%rsp)" for op, reg, at in places)
    restores = "\n".join(f"  {op} {at}(%rsp), %{reg}" for op, reg, at in places)
    return HEAD.format(lib=lib, saves=saves, restores=restores).splitlines()


def generate(library):
    lib = "driver" if library.name == "cuda" else library.name
    count = len(library.functions)
    out = _head(lib)
    out += ["", "# Overridden symbols have a slot but no export here."]
    out += [f"  export {f.symbol} {f.index}" for f in library.functions if not f.overridden]
    out += ["", "  .p2align 4"]
    out += [f"  stub {f.index}" for f in library.functions]
    out += ["", '  .section .data.rel.local, "aw", @progbits',
            f"  table prorata_{lib}_slots {count}"]
    out += [f"  slot {f.index}" for f in library.functions]
    out += ["", '  .section .data.rel.ro.local, "aw", @progbits',
            f"  table prorata_{lib}_names {count}"]
    out += [f"  name_entry {f.symbol}" for f in library.functions]
    out += ["", '  .section .note.GNU-stack, "", @progbits']
    return out
