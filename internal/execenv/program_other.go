//go:build !linux

package execenv

import "syscall"

// dieWithParent does nothing, because no other system ends a program with its parent.
func dieWithParent(*syscall.SysProcAttr) {}
