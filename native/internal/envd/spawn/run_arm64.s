#include "go_asm.h"
#include "textflag.h"

#define SYS_clone3 435
#define SYS_exit_group 94

// func run(j *job) (pid, errno uintptr)
TEXT ·run(SB),NOSPLIT,$0-24
	MOVD j+0(FP), R19
	ADD $job_clone, R19, R0
	MOVD $cloneArgs__size, R1
	MOVD $SYS_clone3, R8
	SVC
	CBZ R0, child
	// From -4095 on a result is an error number, negated.
	CMN $4095, R0
	BCS failed
	MOVD R0, pid+8(FP)
	MOVD ZR, errno+16(FP)
	RET
failed:
	NEG R0, R0
	MOVD ZR, pid+8(FP)
	MOVD R0, errno+16(FP)
	RET

	// From here on the memory is another thread's, which waits: only the job's two results are written.
child:
	ADD $job_calls, R19, R20
	MOVD ZR, R21
next:
	MOVD call_number(R20), R8
	MOVD call_arg0(R20), R0
	MOVD call_arg1(R20), R1
	MOVD call_arg2(R20), R2
	SVC
	CMN $4095, R0
	BCS broken
	ADD $1, R21
	MOVD R21, job_done(R19)
	ADD $call__size, R20
	B next
broken:
	NEG R0, R0
	MOVD R0, job_errno(R19)
end:
	MOVD $127, R0
	MOVD $SYS_exit_group, R8
	SVC
	B end
