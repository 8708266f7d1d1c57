//go:build !linux

package upgrade_test

import "syscall"

func mortal() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
