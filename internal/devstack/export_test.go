package devstack

// What the tests of this package see of its inside.
var (
	BuiltVault   = builtVault
	PrivateGroup = privateGroup
	VaultSource  = vaultSource
)
