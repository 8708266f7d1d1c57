package devstack

// These are internals that the tests of this package use.
var (
	BuiltVault   = builtVault
	PrivateGroup = privateGroup
	OwnUser      = ownUser
	VaultSource  = vaultSource
)
