package mutants

// crashes break what happens at C1 to C9.
var crashes = []Mutant{}
