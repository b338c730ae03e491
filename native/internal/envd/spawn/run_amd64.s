#include "go_asm.h"
#include "textflag.h"

#define SYS_clone3 435
#define SYS_exit_group 231
// A result from here on is an error number, negated.
#define FIRST_ERROR $0xfffffffffffff001

// func run(j *job) (pid, errno uintptr)
TEXT ·run(SB),NOSPLIT,$0-24
	MOVQ j+0(FP), R12
	LEAQ job_clone(R12), DI
	MOVQ $cloneArgs__size, SI
	MOVQ $SYS_clone3, AX
	SYSCALL
	TESTQ AX, AX
	JEQ child
	CMPQ AX, FIRST_ERROR
	JCC failed
	MOVQ AX, pid+8(FP)
	MOVQ $0, errno+16(FP)
	RET
failed:
	NEGQ AX
	MOVQ $0, pid+8(FP)
	MOVQ AX, errno+16(FP)
	RET

	// From here on the memory is another thread's, which waits: only the job's two results are written.
child:
	LEAQ job_calls(R12), R13
next:
	MOVQ call_number(R13), AX
	MOVQ call_arg0(R13), DI
	MOVQ call_arg1(R13), SI
	MOVQ call_arg2(R13), DX
	SYSCALL
	CMPQ AX, FIRST_ERROR
	JCC broken
	INCQ job_done(R12)
	ADDQ $call__size, R13
	JMP next
broken:
	NEGQ AX
	MOVQ AX, job_errno(R12)
end:
	MOVQ $127, DI
	MOVQ $SYS_exit_group, AX
	SYSCALL
	JMP end
