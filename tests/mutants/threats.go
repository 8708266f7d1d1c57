package mutants

// threats break what stops T1 to T11.
var threats = []Mutant{}
