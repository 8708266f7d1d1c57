//go:build !linux

package main

import "syscall"

// diesWithParent is nothing here: no other system ends a program with its parent.
func diesWithParent() *syscall.SysProcAttr { return nil }

// unreadable is nothing here: it is for each system to say who reads the memory of a process.
func unreadable() error { return nil }
