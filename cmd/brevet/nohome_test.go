package main

import "testing"

// TestWorkloadWithoutAHomeActsAsItself checks that commands of officials act as the workload where no folder for a login exists, as in
// a container whose only variables are those of the Workload API.
func TestWorkloadWithoutAHomeActsAsItself(t *testing.T) {
	t.Setenv("HOME", "")
	t.Setenv("XDG_CONFIG_HOME", "")
	workload := identityFlags{WorkloadAPI: "unix:///run/spiffe.sock"}
	if workload.asPerson() {
		t.Error("a workload without HOME acts as a person")
	}
	workload.Person = true
	if !workload.asPerson() {
		t.Error("--person is ignored")
	}
}
