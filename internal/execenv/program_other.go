//go:build !linux

package execenv

import "syscall"

// diesWithParent returns nil, because no other system ends a program with its parent.
func diesWithParent() *syscall.SysProcAttr { return nil }
