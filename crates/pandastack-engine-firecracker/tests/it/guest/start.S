# Entry of the toy guest: 64-bit mode, the first gigabyte mapped one to one, no stack worth keeping.
    .section .text.start, "ax"
    .globl _start
_start:
    lea stack_end(%rip), %rsp
    call run
1:  hlt
    jmp 1b

    .bss
    .balign 16
    .skip 16384
stack_end:

    .section .note.GNU-stack, "", @progbits
