package confine_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// callsOfTheProcessor are attempts that only this processor has.
var callsOfTheProcessor = []attempt{
	{"system_calls_of_x32", x32, "function not implemented", false},
	{"system_calls_of_i386", i386, "function not implemented", false},
	{"system_call_that_a_tracer_changes", changedByTracer, denied, true},
	{"ports_of_the_processor", func() error { return errnoOf(unix.SYS_IOPL, 3) }, notPermitted + "|function not implemented", false},
}

func x32() error {
	const bit = 0x40000000
	return errnoOf(bit+unix.SYS_SOCKET, unix.AF_UNIX, unix.SOCK_STREAM)
}

// i386 opens a Unix socket by the interrupt of 32-bit programs. A kernel without it kills the program that tries.
func i386() error {
	if os.Getenv("I386") == "" {
		cmd := exec.Command("/proc/self/exe", "try", "system_calls_of_i386")
		cmd.Env = append(os.Environ(), "I386=1")
		out, err := cmd.Output()
		if err != nil {
			return unix.ENOSYS
		}
		return errors.New(string(out))
	}
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return err
	}
	copy(page, []byte{
		0xb8, 0x67, 0x01, 0, 0, // mov eax, 359: socket
		0xbb, 1, 0, 0, 0, // mov ebx, AF_UNIX
		0xb9, 1, 0, 0, 0, // mov ecx, SOCK_STREAM
		0x31, 0xd2, // xor edx, edx
		0xcd, 0x80, // int 0x80
		0xc3, // ret
	})
	if err := unix.Mprotect(page, unix.PROT_READ|unix.PROT_EXEC); err != nil {
		return err
	}
	code := &page[0]
	at := &code
	if result := (*(*func() int)(unsafe.Pointer(&at)))(); result < 0 {
		return syscall.Errno(-result)
	}
	return nil
}

// changedByTracer lets a program begin a harmless call, which its tracer then makes one that opens a Unix socket.
func changedByTracer() error {
	runtime.LockOSThread()
	cmd := exec.Command("true")
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() { _ = cmd.Process.Kill() }()
	pid := cmd.Process.Pid
	var status syscall.WaitStatus
	var regs syscall.PtraceRegs
	step := func() error {
		return errors.Join(syscall.PtraceSyscall(pid, 0), func() error { _, err := syscall.Wait4(pid, &status, 0, nil); return err }(), syscall.PtraceGetRegs(pid, &regs))
	}
	if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil {
		return err
	}
	if err := step(); err != nil {
		return fmt.Errorf("waiting for a call: %w", err)
	}
	regs.Orig_rax, regs.Rdi, regs.Rsi, regs.Rdx = unix.SYS_SOCKET, unix.AF_UNIX, unix.SOCK_STREAM, 0
	if err := syscall.PtraceSetRegs(pid, &regs); err != nil {
		return fmt.Errorf("changing the call: %w", err)
	}
	if err := step(); err != nil {
		return fmt.Errorf("waiting for its end: %w", err)
	}
	if result := int64(regs.Rax); result < 0 {
		return syscall.Errno(-result)
	}
	return nil
}
