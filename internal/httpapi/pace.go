package httpapi

// A person's calls: a few for each thing that they look at, more at once when they decide on many. Beyond that it is no
// person (H95).
const (
	callsPerSecond = 20
	callsAtOnce    = 200
	// pollsPerSecond is one each pollAfter, a second less for the sake of the network.
	pollsPerSecond = 1.0 / (pollAfter - 1)
	// A sandbox reads what it may ask for once, and again after a change. Each time, all policies are held against all scopes.
	offersPerSecond = 1
	offersAtOnce    = 10
	// A gateway reports once of each credential, and of all that it holds for a sandbox when it stops.
	reportsPerSecond = 20
	reportsAtOnce    = 1000
)
