package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// VersionCmd is `brevet version`.
type VersionCmd struct{}

// Run prints the versions of this binary and of Go.
func (*VersionCmd) Run(con *console) error {
	if con.json {
		return con.encode(map[string]string{"version": version(), "go": runtime.Version()})
	}
	_, err := fmt.Fprintf(con.out, "brevet %s (%s)\n", version(), runtime.Version())
	return err
}

// version returns the module's version, or the commit of a build from a checkout.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	return info.Main.Version
}
