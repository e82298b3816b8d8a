"""generated/simgpu_*_defaults.S and null_*_driver.S: a weak definition of every exported name.

A hand-written definition of the same name is strong and wins at link time.
"""

HEAD = """
.macro answer name, value
  .weak \\name
  .type \\name, @function
  .p2align 4
\\name:
  endbr64
  mov $\\value, %eax
  ret
  .size \\name, .-\\name
.endm

# For the functions that return text instead of a status.
.macro answer_text name
  .weak \\name
  .type \\name, @function
  .p2align 4
\\name:
  endbr64
  lea .Ltext(%rip), %rax
  ret
  .size \\name, .-\\name
.endm

  .section .rodata
.Ltext:
  .asciz "unknown"

  .text
"""
STATUS = {"cuda": "CUresult", "nvml": "nvmlReturn_t"}


def generate(library, status):
    out = HEAD.splitlines()
    for f in library.functions:
        if f.returns == STATUS[library.name]:
            out.append(f"  answer {f.symbol} {status}")
        elif f.returns == "const char *":
            out.append(f"  answer_text {f.symbol}")
        else:
            raise ValueError(f"{f.symbol} returns {f.returns}: no default answer")
    return out + ["", '  .section .note.GNU-stack, "", @progbits']
