package migrations

// CheckVersion is CheckServer of a server that says so: there is only one here.
var CheckVersion = checkVersion
