//go:build !linux

package main

import "syscall"

// diesWithParent is nothing here: no other system ends a program with its parent.
func diesWithParent() *syscall.SysProcAttr { return nil }
