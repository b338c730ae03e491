package kvmprobe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Requests, exits and offsets of the kernel's linux/kvm.h and asm/kvm.h.
const (
	createVM            = 0xae01
	getRunSize          = 0xae04
	createVCPU          = 0xae41
	setTSSAddr          = 0xae47
	runVCPU             = 0xae80
	setMemoryRegion     = 0x4020ae46
	setRegisters        = 0x4090ae82
	getSpecialRegisters = 0x8138ae83
	setSpecialRegisters = 0x4138ae84

	exitIO            = 2
	exitInternalError = 17

	// In the state that KVM shares with us.
	exitReasonAt, portAt, dataOffsetAt = 8, 34, 40
	// In the registers.
	rcxAt, ripAt, flagsAt = 16, 128, 136
	// In the special registers.
	codeBaseAt, codeSelectorAt = 0, 12
)

const (
	memorySize         = 0x2000
	codeAddress        = 0x1000
	startPort, endPort = 0x10, 0x11
	eightBits          = 0xff
)

// program is for the mode of 16 bits that a processor starts in, and needs no tables.
var program = []byte{
	0xe6, startPort, // out startPort, al
	0xf3, 0x0f, 0xb8, 0xc1, // popcnt ax, cx
	0x9b,          // fwait
	0xe6, endPort, // out endPort, al
	0xf4, // hlt
}

// Run executes the guest by the KVM device at path. What it made ends with the process.
func Run(path string) (Outcome, string) {
	guest, err := newGuest(path)
	if err != nil {
		return Failed, err.Error()
	}
	if exit, err := guest.run(); err != nil || exit != exitIO || guest.port() != startPort {
		return Failed, fmt.Sprintf("the first instruction of a guest ended with exit %d, error %v", exit, err)
	}
	exit, err := guest.run()
	switch {
	case err == nil && exit == exitIO && guest.port() == endPort && guest.output() == 8:
		return Ran, "popcnt and fwait were executed"
	case err == nil && exit == exitInternalError:
		return Emulated, "KVM interprets guest code, and gave up at popcnt or fwait"
	default:
		return Failed, fmt.Sprintf("a guest ended with exit %d, error %v", exit, err)
	}
}

type guest struct {
	vcpu   uintptr
	shared []byte
}

func newGuest(path string) (*guest, error) {
	kvm, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	memory, err := unix.Mmap(-1, 0, memorySize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("memory for a guest: %w", err)
	}
	copy(memory[codeAddress:], program)
	// Slot, flags and address in the guest are 0.
	region := [4]uint64{2: memorySize, 3: uint64(uintptr(unsafe.Pointer(&memory[0])))}

	vm, err := ioctl("KVM_CREATE_VM", kvm.Fd(), createVM, 0)
	if err != nil {
		return nil, err
	}
	// Older processors of Intel need room for a task state segment of KVM's own, away from the guest's memory.
	if _, err := ioctl("KVM_SET_TSS_ADDR", vm, setTSSAddr, 0xfffbd000); err != nil {
		return nil, err
	}
	if _, err := ioctl("KVM_SET_USER_MEMORY_REGION", vm, setMemoryRegion, uintptr(unsafe.Pointer(&region))); err != nil {
		return nil, err
	}
	vcpu, err := ioctl("KVM_CREATE_VCPU", vm, createVCPU, 0)
	if err != nil {
		return nil, err
	}
	if err := setStart(vcpu); err != nil {
		return nil, err
	}
	size, err := ioctl("KVM_GET_VCPU_MMAP_SIZE", kvm.Fd(), getRunSize, 0)
	if err != nil {
		return nil, err
	}
	shared, err := unix.Mmap(int(vcpu), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mapping the state of a guest's processor: %w", err)
	}
	return &guest{vcpu, shared}, nil
}

func setStart(vcpu uintptr) error {
	var special [312]byte
	if _, err := ioctl("KVM_GET_SREGS", vcpu, getSpecialRegisters, uintptr(unsafe.Pointer(&special))); err != nil {
		return err
	}
	binary.LittleEndian.PutUint64(special[codeBaseAt:], 0)
	binary.LittleEndian.PutUint16(special[codeSelectorAt:], 0)
	if _, err := ioctl("KVM_SET_SREGS", vcpu, setSpecialRegisters, uintptr(unsafe.Pointer(&special))); err != nil {
		return err
	}
	var registers [144]byte
	binary.LittleEndian.PutUint64(registers[rcxAt:], eightBits)
	binary.LittleEndian.PutUint64(registers[ripAt:], codeAddress)
	binary.LittleEndian.PutUint64(registers[flagsAt:], 2) // the bit that is always set
	_, err := ioctl("KVM_SET_REGS", vcpu, setRegisters, uintptr(unsafe.Pointer(&registers)))
	return err
}

// run goes on until the guest needs something and says what.
func (g *guest) run() (exitReason uint32, err error) {
	for {
		// The Go runtime sends its threads signals.
		if _, err = ioctl("KVM_RUN", g.vcpu, runVCPU, 0); !errors.Is(err, unix.EINTR) {
			return binary.LittleEndian.Uint32(g.shared[exitReasonAt:]), err
		}
	}
}

// port and output are of an `out` of one byte.
func (g *guest) port() uint16 { return binary.LittleEndian.Uint16(g.shared[portAt:]) }

func (g *guest) output() byte { return g.shared[binary.LittleEndian.Uint64(g.shared[dataOffsetAt:])] }

//go:uintptrescapes
func ioctl(name string, fd uintptr, request uint, argument uintptr) (uintptr, error) {
	result, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, uintptr(request), argument)
	if errno != 0 {
		return 0, fmt.Errorf("%s: %w", name, errno)
	}
	return result, nil
}
