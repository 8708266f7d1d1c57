// Bench compares the cost of a credential from Brevet with the alternatives without it: a login at Vault, a signature of
// Transit, and a database login of Vault, each requested directly. It starts a separate stack, with the broker as a separate
// process. It measures the targets in turn, so that changes in the machine's load affect all of them alike.
//
// It prints ratios within one run. It must never be pointed at servers that it has not started.
package main
