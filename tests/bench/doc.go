// Bench measures what a credential from Brevet costs, side by side with what one would do without it: a login at Vault,
// a signature of Transit, a database login of Vault, each asked for directly. It starts a stack of its own, with the
// broker as a process of its own, and asks them in turn, so that what the machine does meanwhile befalls all alike.
//
// What it prints are ratios of one run. It must never be pointed at servers that it has not started.
package main
